// The language model of this book: its forward pass, number by number.
//
// X is a list of rows, one for each token, of d_model numbers; a matrix W is stored as PyTorch
// stores it, [out, in]. `change` says what is done to the model while it runs; {} leaves it whole.
// Blocks and heads count from 0 here. `at` names a place in the model, such as '1.norm_ffn'.
//
//   cut         [{ query, key, block, head }]  an edge: its score becomes −∞ (no block: in both
//                                              blocks; no head: in all heads)
//   scale       { '0.2': 0 }                   what a head adds, times this; 0 silences it
//   silent      ['0.ffn', '1']                 an FFN, or a whole block, adds nothing
//   noNorm      ['0.norm_mha', 'norm_final']   a norm hands on what it is given
//   noResidual  ['0.mha', '1.ffn']             this part replaces the stream, nothing is added
//   swap        [[2, 5]]                       two tokens exchange their positions' vectors

/**
 * Return X^(0), every block's inner numbers, and the logits after every token. `past` is the run of
 * the tokens before these, under the same change: its keys and values are read and not made again.
 */
export function forward(model, ids, change = {}, past = { n: 0 }) {
  const { E, P } = model.weights;
  const places = ids.map((_, t) => place(past.n + t, change.swap));
  let X = ids.map((id, t) => plus(row(E, id), row(P, places[t])));
  const run = { n: past.n + ids.length, X0: X, blocks: [] };
  for (let i = 0; i < model.sizes.n_layers; i++) {
    run.blocks.push(block(model, i, X, change, past.blocks?.[i]));
    X = run.blocks[i].X;
  }
  run.logits = X.map(x => readOff(model, x, change));
  return run;
}

/** The two equations: H = X + MHA(Norm(X)), X' = H + FFN(Norm(H)). */
function block(model, i, X, change, past) {
  const mha = attention(model, i, norm(model, `${i}.norm_mha`, X, change), change, past);
  const H = add(X, mha.O, `${i}.mha`, change);
  const ffn = feedForward(model, i, norm(model, `${i}.norm_ffn`, H, change), change);
  return { ...mha, H, ffn, X: add(H, ffn, `${i}.ffn`, change) };
}

/** Each head: A = softmax(Q Kᵀ / √d_head) over the tokens so far; it adds A V W_O to the stream. */
function attention(model, i, X, change, past = { K: [], V: [] }) {
  const { n_heads, d_model } = model.sizes, d_head = d_model / n_heads;
  const [W_Q, W_K, W_V, W_O] = ['W_Q', 'W_K', 'W_V', 'W_O'].map(W => model.weights[`${i}.mha.${W}`]);
  const K = [], V = [], A = [], addends = [];
  for (let h = 0; h < n_heads; h++) {
    const strip = [h * d_head, (h + 1) * d_head]; // the rows of W_Q, W_K, W_V, the columns of W_O
    const before = past.K[h]?.length ?? 0;
    const Q = X.map(x => times(W_Q, x, strip));
    K[h] = [...past.K[h] ?? [], ...X.map(x => times(W_K, x, strip))];
    V[h] = [...past.V[h] ?? [], ...X.map(x => times(W_V, x, strip))];
    A[h] = Q.map((q, t) => softmax(K[h].slice(0, before + t + 1).map((k, s) =>
      isCut(change, i, h, before + t, s) ? -Infinity : dot(q, k) / Math.sqrt(d_head))));
    const loud = change.silent?.includes(`${i}`) ? 0 : change.scale?.[`${i}.${h}`] ?? 1;
    addends[h] = A[h].map(weights => timesColumns(W_O, mix(weights, V[h]).map(z => loud * z), strip));
  }
  return { K, V, A, addends, O: X.map((_, t) => addends.map(of => of[t]).reduce(plus)) };
}

/** FFN(x) = GELU(x W₁ + b₁) W₂ + b₂, on each token alone. */
function feedForward(model, i, X, change) {
  if (change.silent?.some(at => at === `${i}` || at === `${i}.ffn`)) return X.map(x => x.map(() => 0));
  const [W_1, b_1, W_2, b_2] = ['W_1', 'b_1', 'W_2', 'b_2'].map(W => model.weights[`${i}.ffn.${W}`]);
  return X.map(x => plus(times(W_2, plus(times(W_1, x), b_1).map(gelu)), b_2));
}

/** γ (x − μ) / √(σ² + ε) + β, over the numbers of one token. */
function norm(model, at, X, change) {
  if (change.noNorm?.includes(at)) return X;
  const gamma = model.weights[`${at}.gamma`], beta = model.weights[`${at}.beta`];
  return X.map(x => {
    const mu = sum(x) / x.length;
    const deviation = Math.sqrt(sum(x.map(v => (v - mu) ** 2)) / x.length + 1e-5);
    return x.map((v, j) => gamma[j] * (v - mu) / deviation + beta[j]);
  });
}

/** Logits of every word, read off a token's stream: Norm(x) W_LM. After the last block, the answer. */
export const readOff = (model, x, change = {}) =>
  times(model.weights.W_LM, norm(model, 'norm_final', [x], change)[0]);

export function softmax(scores) {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  if (most === -Infinity) throw new Error('a token has nothing left to read');
  const powers = scores.map(s => Math.exp(s - most)), total = sum(powers);
  return powers.map(p => p / total);
}

const add = (X, Y, at, change) => change.noResidual?.includes(at) ? Y : X.map((x, t) => plus(x, Y[t]));
const plus = (x, y) => x.map((v, j) => v + y[j]);
const sum = x => x.reduce((total, v) => total + v, 0);
const row = ({ data, shape: [, width] }, i) => Float64Array.from(data.subarray(i * width, (i + 1) * width));
const isCut = ({ cut = [] }, i, h, query, key) => cut.some(edge =>
  edge.query === query && edge.key === key && (edge.block ?? i) === i && (edge.head ?? h) === h);

/** Whose position's vector the token at t gets; the last exchange was made upon those before it. */
const place = (t, swap = []) => swap.reduceRight((p, [a, b]) => p === a ? b : p === b ? a : p, t);

/** Σ_s weights[s] V[s] */
function mix(weights, V) {
  const z = new Float64Array(V[0].length);
  weights.forEach((a, s) => { for (let j = 0; j < z.length; j++) z[j] += a * V[s][j]; });
  return z;
}

function dot(x, y) {
  let total = 0;
  for (let j = 0; j < x.length; j++) total += x[j] * y[j];
  return total;
}

/** x Wᵀ, or only the outputs from … to. */
function times({ data, shape: [out, width] }, x, [from, to] = [0, out]) {
  const y = new Float64Array(to - from);
  for (let r = from; r < to; r++) {
    let a = 0, b = 0, c = 0, d = 0; // four sums at a time: much faster than one
    for (let j = 0, k = r * width; j < width; j += 4, k += 4) {
      a += data[k] * x[j];
      b += data[k + 1] * x[j + 1];
      c += data[k + 2] * x[j + 2];
      d += data[k + 3] * x[j + 3];
    }
    y[r - from] = a + b + c + d;
  }
  return y;
}

/** z times the columns from … of W: what one head writes through its strip of W_O. */
function timesColumns({ data, shape: [out, width] }, z, [from]) {
  const y = new Float64Array(out);
  for (let r = 0; r < out; r++) {
    let total = 0;
    for (let j = 0; j < z.length; j++) total += data[r * width + from + j] * z[j];
    y[r] = total;
  }
  return y;
}

/** x Φ(x); Φ by formula 7.1.26 of Abramowitz and Stegun, to 1e-7. */
function gelu(x) {
  const a = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * a);
  const tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const erf = 1 - tail * Math.exp(-a * a);
  return x * (1 + Math.sign(x) * erf) / 2;
}
