// What the reader has done to the model: a list of short codes, which also stand in the page's address.
//
//   cut:7>5   cut:7>5@0   cut:7>5@0.2     an edge, in all heads, in a block, in one head
//   scale:0.2*0   off:0.ffn   off:1       a head times a number; an FFN, a block without a word
//   norm:0.norm_mha   plus:1.ffn          a norm taken out; a residual taken out
//   swap:2-5                              two tokens exchange their positions

const SITES = {
  norm: /^([01]\.norm_(mha|ffn)|norm_final)$/, plus: /^[01]\.(mha|ffn)$/, off: /^[01](\.ffn)?$/,
};

/** Read one code; null if it is none. */
export function parsed(code) {
  const [kind, what] = code.split(/:(.*)/s);
  let m;
  if (SITES[kind]?.test(what)) return { kind, at: what };
  if (kind === 'cut' && (m = /^(\d{1,2})>(\d{1,2})(?:@([01])(?:\.([0-3]))?)?$/.exec(what)) && +m[2] <= +m[1] && +m[1] < 16 && +m[1] > 0)
    return { kind, query: +m[1], key: +m[2], block: m[3] && +m[3], head: m[4] && +m[4] };
  if (kind === 'scale' && (m = /^([01]\.[0-3])\*(\d(?:\.\d{1,2})?)$/.exec(what))) return { kind, at: m[1], by: +m[2] };
  if (kind === 'swap' && (m = /^(\d{1,2})-(\d{1,2})$/.exec(what)) && +m[1] < +m[2] && +m[2] < 16) return { kind, a: +m[1], b: +m[2] };
  return null;
}

/** Return what model.js wants. */
export function changeOf(codes) {
  const change = {};
  const put = (name, value) => (change[name] ??= []).push(value);
  for (const code of codes.map(parsed)) {
    if (code.kind === 'cut') {
      const { query, key, block, head } = code;
      put('cut', { query, key, block, head });
    } else if (code.kind === 'scale') (change.scale ??= {})[code.at] = code.by;
    else if (code.kind === 'swap') put('swap', [code.a, code.b]);
    else put({ off: 'silent', norm: 'noNorm', plus: 'noResidual' }[code.kind], code.at);
  }
  return change;
}

const block = at => `block ${+at[0] + 1}`;
const part = at => at.endsWith('ffn') ? 'FFN' : 'attention';

/** Say what a code does; `nameOf` names the token at a place. */
export function said(code, nameOf) {
  const c = parsed(code);
  if (c.kind === 'cut') {
    const where = c.block === undefined ? 'in all heads'
      : c.head === undefined ? `in block ${c.block + 1}` : `in head ${c.head + 1} of block ${c.block + 1}`;
    return `${nameOf(c.query)} no longer reads ${nameOf(c.key)}, ${where}`;
  }
  if (c.kind === 'scale') {
    const head = `head ${+c.at[2] + 1} of ${block(c.at)}`;
    return c.by === 0 ? `${head} is silent` : `${head} speaks ${c.by} times as loud`;
  }
  if (c.kind === 'off') return c.at.length > 1 ? `the FFN of ${block(c.at)} is silent` : `${block(c.at)} adds nothing`;
  if (c.kind === 'norm') return c.at === 'norm_final' ? 'the last norm is out' : `the norm before the ${part(c.at)} of ${block(c.at)} is out`;
  if (c.kind === 'plus') return `no residual around the ${part(c.at)} of ${block(c.at)}`;
  return `${nameOf(c.a)} and ${nameOf(c.b)} have exchanged positions`;
}

/** Tell whether two codes are about the same thing, so that the newer takes the other's place. */
export const same = (a, b) => a.split('*')[0] === b.split('*')[0];

/** The whole state as the end of an address, and back; what cannot be understood is left out. */
export function toHash({ words, step, changes }) {
  const parts = [`say=${words.map(encodeURIComponent).join('+')}`, `step=${step}`];
  if (changes.length) parts.push(`do=${changes.join(';')}`);
  return `#${parts.join('&')}`;
}

export function fromHash(hash, { idOf, vocabulary, sizes, digests }) {
  const given = new URLSearchParams(hash.replace(/^#/, '').replaceAll('%2B', '+'));
  if (!given.has('say') && !given.has('step') && !given.has('do')) return null;
  const words = (given.get('say') ?? '').split(' ').filter(word => (idOf.get(word) ?? 0) > 1).slice(0, sizes.n_ctx - 1);
  const read = (given.get('do') ?? '').split(';').filter(parsed);
  const changes = read.filter(code => parsed(code).kind !== 'cut' || !starved(read, code));
  const step = Object.hasOwn(digests, given.get('step')) ? Number(given.get('step')) : 800;
  const asked = (given.get('say') ?? '').split(' ').filter(Boolean).length + (given.get('do') ?? '').split(';').filter(Boolean).length;
  return { state: { words, step, changes }, lost: asked - words.length - changes.length };
}

/** Tell whether a cut would leave a token nothing to read in some head. */
export function starved(codes, code) {
  const cuts = [...codes, code].map(parsed).filter(c => c.kind === 'cut'), { query } = parsed(code);
  for (const block of [0, 1]) for (const head of [0, 1, 2, 3]) {
    const gone = new Set(cuts.filter(c => c.query === query && (c.block ?? block) === block && (c.head ?? head) === head).map(c => c.key));
    if (gone.size > query) return true;
  }
  return false;
}
