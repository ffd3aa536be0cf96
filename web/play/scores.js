// The scoreboard: the whole language judged, for the model in hand, by a worker.
import workerText from './worker.js';
import { changeOf } from './changes.js';
import { h, nats } from './dom.js';

export function scoresPart(page) {
  const { facts } = page;
  const progress = h('progress', { max: 1, value: 0, 'aria-label': 'Sentences judged' }), said = h('p', { role: 'status' });
  const cells = facts.families.map(() => [h('td'), h('td'), h('td')]), total = [h('td'), h('td'), h('td')];
  const row = (name, example, of) => h('tr', {}, h('th', { scope: 'row' }, name, example && h('small', {}, example)), of);
  const element = h('div', {},
    h('p', { class: 'tb-play-lead' }, 'Excess over the best possible loss, in nats per token, over every beginning of all ', String(page.language.sentences.length), ' sentences. A change counts at its positions in every sentence. So you see what else a cut has damaged.'),
    said, progress,
    h('div', { class: 'tb-play-scroll', tabindex: '0', role: 'region', 'aria-label': 'Excess by family' }, h('table', { class: 'tb-play-scores' },
      h('thead', {}, h('tr', {}, ['family', 'the whole model', 'the model in hand', 'lost'].map(text => h('th', { scope: 'col' }, text)))),
      h('tbody', {}, row('all sentences', null, total), facts.families.map((family, f) => row(family.name.replace('_zh', ', Chinese'), null, cells[f]))))));
  const known = new Map();
  let worker = null, visible = false, wanted = '';

  const judge = (change, on) => new Promise((resolve, reject) => {
    const address = URL.createObjectURL(new Blob([workerText], { type: 'text/javascript' }));
    worker = new Worker(address);
    worker.onmessage = ({ data }) => {
      if (data.scores) { worker.terminate(); URL.revokeObjectURL(address); resolve(data.scores); } else on(data.progress);
    };
    worker.onerror = event => { worker.terminate(); reject(new Error(event.message)); };
    worker.postMessage({ facts: { vocabulary: facts.vocabulary, families: facts.families, sizes: facts.sizes, shapes: facts.shapes }, numbers: page.numbers, change });
  });
  const update = async () => {
    if (!visible || !page.model) return;
    const changes = [...page.state.changes].sort(), key = `${page.state.step} ${changes.join(';')}`, whole = `${page.state.step} `;
    if (key === wanted) return;
    wanted = key;
    worker?.terminate();
    const missing = [whole, key].filter((k, i, all) => !known.has(k) && all.indexOf(k) === i);
    progress.hidden = !missing.length;
    try {
      for (const [i, k] of missing.entries()) {
        said.textContent = k === whole ? 'Judging the whole model …' : 'Judging the model in hand …';
        const scores = await judge(k === whole ? {} : changeOf(changes), done => { progress.value = (i + done) / missing.length; });
        if (wanted !== key) return;
        known.set(k, scores);
      }
    } catch (error) {
      wanted = '';
      progress.hidden = true;
      said.textContent = `The scores could not be computed here (${error.message}). The rest of the page works.`;
      return;
    }
    progress.hidden = true;
    show(known.get(whole), known.get(key), changes.length);
  };
  const show = (whole, now, changed) => {
    const most = Math.max(...now.families, ...whole.families, 0.05);
    const put = ([a, b, c], was, is) => {
      a.textContent = nats(was);
      b.replaceChildren(h('span', { class: 'tb-play-bar tb-play-model', 'aria-hidden': 'true', style: `--share:${Math.min(1, is / most)}` }), h('span', {}, nats(is)));
      c.textContent = changed ? (Math.abs(is - was) < 0.0005 ? '0' : `${is > was ? '+' : '−'}${nats(Math.abs(is - was))}`) : '';
      c.className = is - was > 0.1 ? 'tb-play-hurt' : '';
    };
    put(total, whole.all, now.all);
    whole.families.forEach((was, f) => put(cells[f], was, now.families[f]));
    const worst = now.families.map((is, f) => [is - whole.families[f], facts.families[f].name]).sort((a, b) => b[0] - a[0])[0];
    said.textContent = changed ? `All sentences: ${nats(whole.all)} before, ${nats(now.all)} now. Hurt most: ${worst[1]}, by ${nats(Math.max(0, worst[0]))}.`
      : `All sentences: ${nats(now.all)} nats per token above the best possible. Change the model, and the damage shows here.`;
  };
  return { element, update, show(is) { visible = is; update(); } };
}
