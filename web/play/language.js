// The exact language: every sentence with its probability, and what follows from it.

/** Make the language of the sentences in living/language.js. */
export function languageFrom({ vocabulary, families }) {
  const idOf = new Map(vocabulary.map((word, id) => [word, id]));
  const root = { next: new Map(), p: 0, families: families.map(() => 0) };
  const sentences = [];
  let meanLength = 0;
  families.forEach(({ weight, sentences: listed }, f) => listed.forEach(([share, texts]) => texts.forEach(text => {
    const words = text.split(' '), p = weight * share;
    sentences.push(words);
    meanLength += p * words.length;
    let node = root;
    for (const word of words) {
      node.p += p;
      node.families[f] += p;
      if (!node.next.has(word)) node.next.set(word, { next: new Map(), p: 0, families: families.map(() => 0), ends: 0 });
      node = node.next.get(word);
    }
    node.ends += p;
  })));
  return { vocabulary, idOf, root, sentences, meanLength, names: families.map(family => family.name) };
}

const mass = node => node.p + (node.ends ?? 0);

/** Return the exact chance of each next word, likeliest first; none if no sentence goes on from here. */
export function nextWords(language, words) {
  const node = nodeAt(language, words);
  if (!node) return [];
  return [...node.next].map(([word, child]) => [word, mass(child) / node.p]).sort((a, b) => b[1] - a[1]);
}

/** Return the place of a beginning among all beginnings, or undefined if no sentence begins so. */
export function nodeAt({ root }, words) {
  let node = root;
  for (const word of words) node = node?.next.get(word);
  return node;
}

/** Return ids, begun with <bos>. */
export const encode = ({ idOf }, words) => [idOf.get('<bos>'), ...words.map(word => idOf.get(word))];

/** KL(language ‖ model) in nats: how far the model's logits are from the exact chances. */
export function excess(exact, logP, idOf) {
  return exact.reduce((total, [word, p]) => total + p * (Math.log(p) - logP[idOf.get(word)]), 0);
}

export function logSoftmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  const log = most + Math.log(logits.reduce((total, v) => total + Math.exp(v - most), 0));
  return logits.map(v => v - log);
}

const isChinese = text => /[\u4e00-\u9fff，。：]/.test(text);

/** Write words as a text: spaces between English words, none in Chinese. */
export const join = words => words.reduce((text, word) =>
  !text || '.,'.includes(word) || (isChinese(word) && isChinese(text.at(-1))) ? text + word : `${text} ${word}`, '');

/** Cut a text into words: { words, unknown }, where unknown is the rest that is no word, if any. */
export function cut({ idOf }, text) {
  const words = [];
  for (const piece of text.match(/[,.:]|[^\s,.:]+/g) ?? []) {
    if (piece === '<bos>' || piece === '<pad>') return { words, unknown: piece };
    if (idOf.has(piece)) words.push(piece);
    else if (idOf.has(piece.toLowerCase())) words.push(piece.toLowerCase());
    else {
      let start = 0;
      while (isChinese(piece) && start < piece.length) {
        let end = piece.length;
        while (end > start && !idOf.has(piece.slice(start, end))) end--;
        if (end === start) break;
        words.push(piece.slice(start, end));
        start = end;
      }
      if (start < piece.length) return { words, unknown: piece.slice(start) };
    }
  }
  return { words, unknown: '' };
}

/** Return the words most like a text: fewest letters to change, then those that begin alike. */
export function near({ vocabulary }, text, most = 3) {
  const wanted = text.toLowerCase();
  return vocabulary.slice(2)
    .map(word => [word, distance(word.toLowerCase(), wanted) / Math.max(word.length, wanted.length)])
    .filter(([, far]) => far <= 0.5).sort((a, b) => a[1] - b[1]).slice(0, most).map(([word]) => word);
}

function distance(a, b) {
  let above = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const line = [i];
    for (let j = 1; j <= b.length; j++)
      line[j] = Math.min(above[j] + 1, line[j - 1] + 1, above[j - 1] + (a[i - 1] !== b[j - 1]));
    above = line;
  }
  return above[b.length];
}
