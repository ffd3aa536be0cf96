// The drawing of the two blocks with this run's numbers in it: each part is a button that takes it out.
import { button, h, refill, selector, share, word } from './dom.js';

const length = x => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));
const cosine = (x, y) => x.reduce((sum, v, i) => sum + v * y[i], 0) / (length(x) * length(y) || 1);
const digits = v => v >= 100 ? v.toFixed(0) : v.toFixed(v >= 10 ? 1 : 2);
const sign = v => (v < 0 ? '−' : '+') + Math.abs(v).toFixed(2).replace(/^0/, '');

export function partsPart(page) {
  const { state } = page;
  const drawing = h('div', { class: 'tb-play-blocks' });
  const rows = h('tbody');
  const toggles = new Map();

  const toggle = (code, name, what) => {
    const number = h('span', { class: 'tb-play-number' }), extra = h('span', { class: 'tb-play-says' });
    const element = h('button', { type: 'button', class: 'tb-play-part', 'data-code': code, 'aria-pressed': 'false', title: `${what}: press to take it out, again to put it back`, onclick: () => page.toggle(code) },
      h('span', {}, name), number, extra);
    toggles.set(code, { element, number, extra });
    return element;
  };
  const readouts = [0, 1, 2].map(() => h('p', { class: 'tb-play-readout' }));
  const stream = [0, 1, 2].map(() => h('span', { class: 'tb-play-number' }));
  const names = ['X⁽⁰⁾, the embedding and the position', 'X⁽¹⁾, after block 1', 'X⁽²⁾, after block 2'];
  const stage = i => h('div', { class: 'tb-play-stage' }, h('span', {}, names[i]), stream[i], readouts[i]);
  const blockDrawn = b => h('fieldset', { class: 'tb-play-block' }, h('legend', {}, `Block ${b + 1}`),
    toggle(`norm:${b}.norm_mha`, 'Norm', `the norm before the attention of block ${b + 1}`),
    h('div', { class: 'tb-play-heads' }, [0, 1, 2, 3].map(i => toggle(`scale:${b}.${i}*0`, `head ${i + 1}`, `head ${i + 1} of block ${b + 1}`))),
    toggle(`plus:${b}.mha`, '⊕ H = X + MHA(Norm(X))', `the residual around the attention of block ${b + 1}`),
    toggle(`norm:${b}.norm_ffn`, 'Norm', `the norm before the FFN of block ${b + 1}`),
    toggle(`off:${b}.ffn`, 'FFN', `the FFN of block ${b + 1}`),
    toggle(`plus:${b}.ffn`, '⊕ X′ = H + FFN(Norm(H))', `the residual around the FFN of block ${b + 1}`),
    toggle(`off:${b}`, `block ${b + 1} as a whole`, `all that block ${b + 1} adds`));
  const column = (...parts) => h('div', { class: 'tb-play-column' }, parts);
  drawing.append(column(stage(0), blockDrawn(0)), column(stage(1), blockDrawn(1)),
    h('div', { class: 'tb-play-last' }, stage(2), toggle('norm:norm_final', 'the last Norm', 'the norm before the words are read off')));

  const heads = [0, 1].flatMap(b => [0, 1, 2, 3].map(i => [`${b}.${i}`, `block ${b + 1}, head ${i + 1}`]));
  const loud = selector('Scale', heads);
  const by = selector('by', ['0', '0.5', '1', '1.5', '2', '3', '5'].map(v => [v, `× ${v}`]));
  by.select.value = '2';
  const scaled = () => page.change(`scale:${loud.select.value}*${by.select.value}`, by.select.value === '1');
  const one = selector('Exchange the positions of', []), other = selector('and', []);
  const swapped = () => {
    const [a, b] = [+one.select.value, +other.select.value].sort((x, y) => x - y);
    if (a !== b) page.change(`swap:${a}-${b}`);
  };
  const hand = h('b');
  const element = h('div', {},
    h('p', { class: 'tb-play-lead' }, 'One token’s way through the model. In hand: ', hand, '. The number in a part is the length of the vector that it adds, or of the stream after it; a word is what the vector pushes up most. Press a part to take it out.'),
    drawing,
    h('div', { class: 'tb-play-row tb-play-form' }, loud.field, by.field, button('Scale this head', scaled)),
    h('div', { class: 'tb-play-row tb-play-form' }, one.field, other.field, button('Exchange', swapped)),
    h('details', {}, h('summary', {}, 'As a table: length and direction of what each part adds'),
      h('div', { class: 'tb-play-scroll', tabindex: '0', role: 'region', 'aria-label': 'What each part adds' }, h('table', {},
        h('thead', {}, h('tr', {}, ['part', 'length', 'cosine with the stream it meets', 'pushes up'].map(text => h('th', { scope: 'col' }, text)))), rows)),
      h('p', {}, 'A cosine of +1 makes the stream longer and nothing else, −1 shorter, and 0 turns it. “Pushes up” reads the addition alone through the last norm’s γ and W_LM: the words whose logits it raises most over the average.')));

  const pushes = x => {
    const { W_LM, 'norm_final.gamma': gamma } = page.model.weights, { data, shape: [out, width] } = W_LM;
    const logits = Array.from({ length: out }, (_, r) => x.reduce((sum, v, j) => sum + data[r * width + j] * gamma[j] * v, 0));
    return logits.map((v, id) => [v, id]).slice(2).sort((a, b) => b[0] - a[0]).slice(0, 2).map(([, id]) => page.language.vocabulary[id]);
  };
  const update = () => {
    const tokens = page.tokens();
    refill(one.select, tokens, 0);
    refill(other.select, tokens, tokens.length - 1);
    if (!page.now) { hand.textContent = page.waiting; return; }
    const t = page.looking(), { now } = page;
    hand.replaceChildren(word(t ? state.words[t - 1] : '<bos>'));
    const table = [];
    const streams = [now.X0[t], ...now.blocks.map(block => block.X[t])];
    streams.forEach((x, i) => {
      stream[i].textContent = `length ${digits(length(x))}`;
      readouts[i].replaceChildren('Read off here: ', ...page.likeliest(now, t, i).slice(0, 3).flatMap(([w, p], j) => [j ? ', ' : '', word(w), ` ${share(p)}`]));
    });
    const show = (code, x, meets, name) => {
      const { number, extra } = toggles.get(code), silent = length(x) === 0;
      number.textContent = digits(length(x));
      const words = silent ? [] : pushes(x);
      if (name) {
        extra.replaceChildren(...words.slice(0, 1).map(word));
        table.push(h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, digits(length(x))), h('td', {}, silent ? '–' : sign(cosine(x, meets))), h('td', {}, words.flatMap((w, i) => [i ? ', ' : '', word(w)]))));
      }
    };
    now.blocks.forEach((block, b) => {
      const X = streams[b];
      block.addends.forEach((of, i) => show(`scale:${b}.${i}*0`, of[t], X, `block ${b + 1}, head ${i + 1}`));
      show(`plus:${b}.mha`, block.H[t]);
      show(`off:${b}.ffn`, block.ffn[t], block.H[t], `block ${b + 1}, FFN`);
      show(`plus:${b}.ffn`, block.X[t]);
    });
    rows.replaceChildren(...table);
    for (const [code, { element: part }] of toggles) {
      const out = state.changes.includes(code) || (code.startsWith('scale') && state.changes.includes(`off:${code[6]}`)) || (/off:\d\.ffn/.test(code) && state.changes.includes(code.slice(0, 5)));
      part.setAttribute('aria-pressed', String(out));
    }
  };
  return { element, update };
}
