// The living model's page: one state (sentence, moment, changes), and parts that show it.
import { forward, readOff } from './model.js';
import { attentionPart } from './play/attention.js';
import { changeOf, fromHash, said, same, toHash } from './play/changes.js';
import { button, choice, h, marked, nats, word } from './play/dom.js';
import { experimentsPart } from './play/experiments.js';
import { encode, excess, languageFrom, logSoftmax, nextWords } from './play/language.js';
import { partsPart } from './play/parts.js';
import { kept } from './play/sampling.js';
import { scoresPart } from './play/scores.js';
import { sentencePart } from './play/sentence.js';
import { modelFrom, packed, unpacked } from './play/weights.js';

const here = document.currentScript.src.replace(/vendor\/[^/]*$/, 'living/');

function start(mount, facts) {
  const language = { ...languageFrom(facts), room: facts.sizes.n_ctx - 1 };
  const inAddress = () => fromHash(location.hash, { ...facts, idOf: language.idOf });
  const given = inAddress();
  const state = { words: 'Mary bought a new phone , its'.split(' '), step: 800, changes: [], hand: null, ...given?.state };
  const page = {
    facts, language, state, model: null, numbers: null, now: null, whole: null, waiting: '…',
    still: matchMedia('(prefers-reduced-motion: reduce)').matches,
    hand: () => Math.min(state.hand ?? state.words.length, state.words.length),
    looking: () => Math.min(looked ?? page.hand(), state.words.length),
    tokens: () => ['‹begin›', ...state.words].map((name, i, all) => [i, all.indexOf(name) === all.lastIndexOf(name) ? name : `${name} (${i})`]),
    set, change, toggle, likeliest, excessOf, effect,
    look(place) { if (place !== looked) { looked = place; lookers.forEach(part => safely(part)); } },
  };
  const past = [], loaded = new Map();
  let looked = null;

  // Changes of the state, and the way back.
  const snapshot = () => JSON.stringify({ words: state.words, step: state.step, changes: state.changes });
  function set(next, remember = true, then = () => {}) {
    const before = snapshot();
    Object.assign(state, next);
    looked = null;
    if (remember && before !== snapshot()) past.push(before);
    if ('step' in next) load().then(then);
    else { compute(); then(); }
  }
  function change(code, remove = false) {
    set({ changes: [...state.changes.filter(other => !same(other, code)), ...remove ? [] : [code]] });
  }
  function toggle(code) { change(code, state.changes.includes(code)); }
  const undo = () => { if (past.length) set(JSON.parse(past.pop()), false); };

  // The model.
  async function load() {
    const { step } = state;
    if (!loaded.has(step)) {
      withoutModel(`Fetching the weights of step ${step} …`);
      bar.hidden = false;
      try {
        const text = await packed(step, here, got => { bar.value = got / facts.letters[step]; });
        const numbers = await unpacked(text).catch(() => { throw new Error('the file is damaged'); });
        loaded.set(step, { numbers, model: modelFrom(facts, numbers) });
      } catch (error) {
        if (state.step === step) withoutModel(`The weights of step ${step} did not arrive whole (${error.message}). Reload the page, or choose another moment.`);
        return;
      } finally { bar.hidden = true; }
    }
    if (state.step !== step) return;
    Object.assign(page, loaded.get(step), { waiting: '' });
    status.textContent = '';
    compute();
  }
  function withoutModel(why) {
    Object.assign(page, { model: null, now: null, whole: null, waiting: why });
    status.textContent = why;
    compute();
  }
  function compute() {
    if (page.model) {
      const ids = encode(language, state.words);
      page.whole = forward(page.model, ids);
      page.now = state.changes.length ? forward(page.model, ids, changeOf(state.changes)) : page.whole;
    }
    parts.forEach(part => safely(part));
    try { history.replaceState(null, '', toHash(state)); } catch { /* a frame that may not: the link is only not in the address */ }
  }
  /** The words at a token, likeliest first; `after` so many blocks, read off the stream there. */
  function likeliest(run, t, after = 2) {
    const x = after ? run.blocks[after - 1].X[t] : run.X0[t];
    const logits = after === 2 ? run.logits[t] : readOff(page.model, x, changeOf(state.changes));
    return Array.from(logSoftmax(logits), (v, id) => [language.vocabulary[id], Math.exp(v)]).sort((a, b) => b[1] - a[1]);
  }
  function excessOf(run) {
    const exact = nextWords(language, state.words);
    return exact.length ? excess(exact, logSoftmax(run.logits.at(-1)), language.idOf) : null;
  }
  /** What the changes do to the answer, in nats and in words. */
  function effect() {
    if (!state.changes.length || !page.now) return [];
    const [was, is] = [page.whole, page.now].map(run => likeliest(run, state.words.length)[0][0]);
    const worse = excessOf(page.now) === null ? null : excessOf(page.now) - excessOf(page.whole);
    const far = worse === null ? '' : Math.abs(worse) < 0.0005 ? 'The changes make no difference here. '
      : `${nats(Math.abs(worse))} nats ${worse > 0 ? 'worse' : 'better'} than the whole model. `;
    return [far, ...is === was ? ['It still says ', word(is), '.'] : ['It now says ', word(is), ', not ', word(was), '.']];
  }

  // What stands on the page.
  const status = h('p', { class: 'tb-play-status tb-play-heard', role: 'status' }), bar = h('progress', { max: 1, value: 0, hidden: true, 'aria-label': 'Weights fetched' });
  const moments = choice('moment', 'Steps of training', Object.keys(facts.digests).map(step => [step, step]), step => set({ step: Number(step) }));
  const list = h('ul', { 'aria-label': 'Changes to the model' });
  const undoButton = button('Undo', undo), resetButton = button('Reset', () => set({ changes: [], step: 800, hand: null }));
  const copied = h('span', { role: 'status' });
  const link = h('input', { type: 'text', readonly: true, hidden: true, 'aria-label': 'Link to this state' });
  const share = button('Copy link', async () => {
    const address = location.href.replace(/#.*|$/, toHash(state));
    try {
      await navigator.clipboard.writeText(address);
      copied.textContent = 'Copied: it opens this sentence, moment and changes.';
    } catch {
      Object.assign(link, { value: address, hidden: false }).select();
      copied.textContent = 'Copy it from the field.';
    }
  });
  const changes = {
    name: 'list of changes',
    element: h('div', { class: 'tb-play-changes' }, h('div', { class: 'tb-play-row' }, moments.group, undoButton, resetButton, share, link, copied), list, bar, status),
    update() {
      moments.set(state.step);
      undoButton.disabled = !past.length;
      const names = page.tokens();
      const nameOf = place => !place ? '‹begin›' : names[place] ? `“${names[place][1]}”` : `position ${place}`;
      list.replaceChildren(...state.changes.map(code => h('li', {}, marked(said(code, nameOf)),
        h('button', { type: 'button', 'aria-label': `Take back: ${said(code, nameOf)}`, onclick: () => change(code, true) }, '×'))));
      list.hidden = !state.changes.length;
    },
  };
  const sentence = { name: 'sentence', ...sentencePart(page) };
  const panels = [
    ['Who reads whom', attentionPart(page)], ['Inside the blocks', partsPart(page)],
    ['Six experiments', experimentsPart(page)], ['Scoreboard', scoresPart(page)],
  ].map(([name, part], i) => ({ name, ...part, tab: h('button', { type: 'button', role: 'tab', id: `tb-play-tab-${i}`, 'aria-controls': `tb-play-panel-${i}`, onclick: () => choose(i) }, name),
    panel: h('div', { role: 'tabpanel', id: `tb-play-panel-${i}`, 'aria-labelledby': `tb-play-tab-${i}`, class: 'tb-play-panel' }, part.element) }));
  const tabs = h('div', { role: 'tablist', class: 'tb-play-tabs', 'aria-label': 'Looks at the model', onkeydown: event => {
    const i = panels.findIndex(({ tab }) => tab === event.target), n = panels.length;
    const to = { ArrowLeft: i + n - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to % n);
    panels[to % n].tab.focus();
  } }, panels.map(({ tab }) => tab));
  function choose(chosen) {
    panels.forEach(({ tab, panel, show }, i) => {
      tab.setAttribute('aria-selected', String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panel.hidden = i !== chosen;
      show?.(i === chosen);
    });
  }
  const parts = [changes, sentence, ...panels], lookers = panels.slice(0, 2);
  function safely(part) {
    try { part.update(); } catch (error) {
      console.error(error);
      part.element.replaceChildren(h('p', { role: 'alert' }, `This part of the page has failed: “${part.name}” (${error.message}). The others still work; reload the page to have it back.`));
    }
  }
  mount.replaceChildren(sentence.element, changes.element, tabs, ...panels.map(({ panel }) => panel));
  choose(0);
  addEventListener('hashchange', () => {
    const asked = inAddress();
    if (!asked) return;
    set({ ...asked.state, hand: null });
    admit(asked);
  });
  const admit = asked => sentence.complain(asked?.lost ? 'Part of this link could not be understood and was left out.' : '');
  admit(given);
  load();
  // For the console and for the tests: the model itself.
  Object.assign(facts, { page, forward, modelFrom, kept, changeOf, nextWords, language });
}

const mount = document.getElementById('living-model');
try {
  if (typeof livingModel === 'undefined') throw new Error('its file language.js is missing or damaged');
  start(mount, livingModel);
  mount.dataset.alive = '';
} catch (error) {
  console.error(error);
  mount.prepend(h('p', { role: 'alert' }, `The living model could not be started here (${error.message}). Below is its still picture.`));
}
