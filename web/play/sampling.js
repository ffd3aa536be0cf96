// From logits to a word: temperature, then top-k, then top-p, as the package's next_token_probs.

/** Return the distribution that a word is drawn from. Temperature 0 is greedy. */
export function kept(logits, { temperature = 1, topK = null, topP = null }) {
  const best = logits.reduce((a, b) => Math.max(a, b));
  if (temperature === 0) {
    const first = logits.indexOf(best);
    return Array.from(logits, (_, id) => id === first ? 1 : 0);
  }
  const ranked = Array.from(logits, (v, id) => ({ id, power: Math.exp((v - best) / temperature) }))
    .sort((a, b) => b.power - a.power || a.id - b.id).slice(0, topK ?? logits.length);
  const total = ranked.reduce((t, { power }) => t + power, 0);
  let before = 0;
  const chosen = ranked.filter(({ power }, rank) => {
    const keep = rank === 0 || topP === null || before < topP - 1e-12;
    before += power / total;
    return keep;
  });
  const left = chosen.reduce((t, { power }) => t + power, 0);
  const probs = new Array(logits.length).fill(0);
  for (const { id, power } of chosen) probs[id] = power / left;
  return probs;
}

/** Draw an id; `random` gives numbers from 0 up to 1. */
export function draw(probs, random = Math.random) {
  let left = random();
  for (let id = 0; id < probs.length; id++) if (probs[id] && (left -= probs[id]) < 0) return id;
  return probs.findLastIndex(p => p > 0);
}
