// Judges a model on every beginning of every sentence, away from the page, so that it never waits.
import { forward } from '../model.js';
import { excess, languageFrom, logSoftmax, nextWords } from './language.js';
import { modelFrom } from './weights.js';

/** Excess in nats per token, of all sentences and of each family; `onProgress` hears the share done. */
export function judged(facts, numbers, change, onProgress = () => {}) {
  const language = languageFrom(facts), model = modelFrom(facts, numbers), { idOf } = language;
  const lost = language.names.map(() => 0), tokens = language.names.map(() => 0);
  let all = 0, done = 0, told = performance.now();
  // From each beginning to those one word longer: keys and values of the tokens before are kept.
  const walk = (node, id, past, words) => {
    if (!node.next.size) return;
    const run = forward(model, [id], change, past);
    const kl = excess(nextWords(language, words), logSoftmax(run.logits[0]), idOf);
    all += node.p * kl;
    done += node.p;
    node.families.forEach((p, f) => { lost[f] += p * kl; tokens[f] += p; });
    if (performance.now() - told > 100) {
      told = performance.now();
      onProgress(done / language.meanLength);
    }
    for (const [word, child] of node.next) walk(child, idOf.get(word), run, [...words, word]);
  };
  walk(language.root, idOf.get('<bos>'), undefined, []);
  return { all: all / language.meanLength, families: lost.map((total, f) => total / tokens[f]) };
}

if (typeof WorkerGlobalScope !== 'undefined') {
  onmessage = ({ data: { facts, numbers, change } }) => {
    const scores = judged(facts, numbers, change, progress => postMessage({ progress }));
    postMessage({ scores });
  };
}
