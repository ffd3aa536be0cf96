// The sentence in the middle of the page: its words, the field that takes the next one, the answer.
import { button, choice, h, marked, nats, share, word } from './dom.js';
import { cut, join, near, nextWords } from './language.js';
import { draw, kept } from './sampling.js';

const EXAMPLES = [
  'Mary bought a new phone , its', 'the river bank', 'say red blue green : red', 'Mary Brown lives in',
  'the weather is so nice today , I want to go to the', '小明 吃 了 新鲜 苹果 ， 它 的', '今天 天气 真 好 ， 我 想 去',
];
const LISTED = 8;

export function sentencePart(page) {
  const { language, state } = page;
  const chips = h('span', { class: 'tb-play-chips', role: 'group', 'aria-label': 'Your sentence; press a word to take it in hand' });
  const list = h('ul', { id: 'tb-play-list', role: 'listbox', 'aria-label': 'Words that fit', hidden: true });
  const input = h('input', {
    type: 'text', role: 'combobox', 'aria-label': 'Next word', placeholder: 'next word …', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false',
    'aria-expanded': 'false', 'aria-controls': 'tb-play-list', 'aria-autocomplete': 'list', size: 11,
  });
  const message = h('p', { class: 'tb-play-message', role: 'status' });
  const on = h('div', { class: 'tb-play-on' });
  let active = -1;

  // The field: a word is taken at a space, a sign, Enter, or from the list.
  const complain = text => { message.replaceChildren(...marked(text)); };
  const take = words => {
    const room = language.room - state.words.length;
    const kept = words.slice(0, room);
    if (kept.length) page.set({ words: [...state.words, ...kept], hand: null });
    complain(kept.length < words.length ? `The model reads at most ${language.room} words.` : '');
  };
  const commit = text => {
    const { words, unknown } = cut(language, text);
    input.value = unknown;
    if (words.length) take(words);
    if (unknown) {
      const alike = near(language, unknown);
      complain(`“${unknown}” is not one of the ${language.vocabulary.length - 2} words of this language. ${alike.length ? `Near it: ${alike.join(', ')}.` : 'Press the arrow down to see what fits here.'}`);
    }
    return !unknown;
  };
  const fitting = () => {
    const typed = input.value.trim().toLowerCase(), follows = nextWords(language, state.words).map(([w]) => w);
    const rest = language.vocabulary.slice(2).filter(w => !follows.includes(w));
    return [...follows, ...typed ? rest : []].filter(w => w.toLowerCase().startsWith(typed)).slice(0, LISTED);
  };
  const open = show => {
    const words = show ? fitting() : [];
    const allowed = new Map(nextWords(language, state.words));
    active = -1;
    list.replaceChildren(...words.map((w, i) => h('li', {
      role: 'option', id: `tb-play-option-${i}`, 'aria-selected': 'false', onpointerdown: event => { event.preventDefault(); choose(w); },
    }, word(w), h('small', {}, allowed.has(w) ? share(allowed.get(w)) : 'not here'))));
    list.hidden = !words.length;
    input.setAttribute('aria-expanded', String(!list.hidden));
    input.removeAttribute('aria-activedescendant');
  };
  const choose = w => { input.value = ''; take([w]); open(false); };
  const move = step => {
    if (list.hidden) open(true);
    if (list.hidden) return;
    list.children[active]?.setAttribute('aria-selected', 'false');
    active = (active + step + list.children.length + (active < 0 && step < 0)) % list.children.length;
    list.children[active].setAttribute('aria-selected', 'true');
    input.setAttribute('aria-activedescendant', `tb-play-option-${active}`);
  };
  input.addEventListener('input', event => {
    if (event.isComposing) return;
    if (/[\s,.:，。：]/.test(input.value)) commit(input.value) && open(false);
    else {
      complain('');
      open(input.value !== '');
    }
  });
  input.addEventListener('compositionend', () => open(true));
  input.addEventListener('keydown', event => {
    if (event.isComposing) return;
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') { event.preventDefault(); move(event.key === 'ArrowDown' ? 1 : -1); }
    else if (event.key === 'Escape') open(false);
    else if (event.key === 'Enter') {
      event.preventDefault();
      const words = fitting();
      if (active >= 0) choose(list.children[active].firstChild.textContent);
      else if (input.value && !language.idOf.has(input.value) && words.length === 1) choose(words[0]);
      else if (input.value) commit(input.value) && open(false);
    } else if (event.key === 'Backspace' && !input.value && state.words.length) {
      page.set({ words: state.words.slice(0, -1), hand: null });
      open(false);
    }
  });
  input.addEventListener('blur', () => open(false));

  // The next word, chosen by the model.
  const how = { temperature: 0, topK: null, topP: null };
  const shown = h('p', { class: 'tb-play-drawn' });
  const oneMore = () => {
    const probs = kept(page.now.logits.at(-1), how);
    page.set({ words: [...state.words, language.vocabulary[draw(probs)]], hand: null });
  };
  const stopped = () => state.words.length >= language.room || ['.', '。'].includes(state.words.at(-1));
  const writeOn = async () => {
    for (let words = state.words; page.now && state.words === words && !stopped();) { // until the reader does something else
      oneMore();
      ({ words } = state);
      await new Promise(resolve => setTimeout(resolve, page.still ? 0 : 120));
    }
  };
  const kind = choice('how', 'The next word is', [['greedy', 'the likeliest'], ['drawn', 'drawn']], value => {
    how.temperature = value === 'greedy' ? 0 : Number(heat.value);
    dials.hidden = value === 'greedy';
    showDrawn();
  });
  const dial = (label, props, hear) => {
    const field = h('input', { type: 'number', ...props, oninput: () => { hear(field.value === '' || !field.validity.valid ? null : Number(field.value)); showDrawn(); } });
    return { field, label: h('label', { class: 'tb-play-field' }, h('span', {}, label), field) };
  };
  const { field: heat, label: heatLabel } = dial('temperature', { min: 0, max: 5, step: 0.1, value: 1 }, value => { how.temperature = value ?? 1; });
  const { label: kLabel } = dial('top-k', { min: 1, max: language.vocabulary.length, placeholder: 'all' }, value => { how.topK = value; });
  const { label: pLabel } = dial('top-p', { min: 0.05, max: 1, step: 0.05, placeholder: 'all' }, value => { how.topP = value; });
  const dials = h('span', { class: 'tb-play-dials', hidden: true }, heatLabel, kLabel, pLabel);
  kind.set('greedy');
  const showDrawn = () => {
    if (!page.now || how.temperature === 0) { shown.replaceChildren(); return; }
    const probs = kept(page.now.logits.at(-1), how);
    const left = probs.map((p, id) => [language.vocabulary[id], p]).filter(([, p]) => p > 0).sort((a, b) => b[1] - a[1]);
    shown.replaceChildren(`Drawn from ${left.length} word${left.length > 1 ? 's' : ''}: `,
      ...left.slice(0, 3).flatMap(([w, p], i) => [i ? ', ' : '', word(w), ` ${share(p)}`]), left.length > 3 ? ' …' : '.');
  };

  // The answer.
  const rows = h('tbody');
  const verdict = h('p', { class: 'tb-play-verdict' });
  const against = h('p', { class: 'tb-play-against' });
  const heard = h('p', { class: 'tb-play-heard', role: 'status' });
  const next = button('One word', oneMore), all = button('Write on', writeOn), clear = button('Clear', () => { page.set({ words: [], hand: null }); input.focus(); });

  const element = h('section', { class: 'tb-play-main', 'aria-label': 'The sentence and the answer' },
    h('div', { class: 'tb-play-sentence' }, chips, h('span', { class: 'tb-play-entry' }, input, list)), message,
    h('div', { class: 'tb-play-answer' },
      h('table', {}, h('caption', {}, 'What comes next?'),
        h('thead', {}, h('tr', {}, ['word', 'the model', 'the exact chance'].map(text => h('th', { scope: 'col' }, text)))), rows),
      h('div', { class: 'tb-play-side' }, verdict, against, on)),
    h('div', { class: 'tb-play-row' }, all, next, clear, kind.group, dials), shown,
    h('div', { class: 'tb-play-examples', role: 'group', 'aria-label': 'Sentences to try' }, h('span', {}, 'Try'), EXAMPLES.map(text =>
      h('button', { type: 'button', onclick: () => { complain(''); page.set({ words: text.split(' '), hand: null }); } }, marked(`${join(text.split(' '))} …`)))),
    heard);

  let last = '';
  const update = () => {
    const words = ['<bos>', ...state.words], place = page.hand();
    const focused = [...chips.children].indexOf(document.activeElement);
    chips.replaceChildren(...words.map((w, i) => h('button', {
      type: 'button', 'aria-pressed': String(i === place), 'data-place': i,
      onclick: () => page.set({ hand: i }, false), onpointerenter: event => event.pointerType === 'mouse' && page.look(i),
      onpointerleave: () => page.look(null), onfocus: () => page.look(i), onblur: () => page.look(null),
      onkeydown: event => {
        const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: words.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        chips.children[Math.min(Math.max(to, 0), words.length - 1)].focus();
      },
    }, word(w))));
    chips.children[Math.min(focused, words.length - 1)]?.focus();
    const exact = nextWords(language, state.words);
    on.replaceChildren(...follows(exact));
    for (const b of [next, all]) b.disabled = !page.now || stopped();
    if (!page.now) { // as high as the answer, so that nothing moves when it comes
      rows.replaceChildren(h('tr', {}, h('td', { colspan: 3, class: 'tb-play-waiting' }, page.waiting)));
      verdict.replaceChildren(h('strong', {}, '…'));
      against.replaceChildren();
      return;
    }
    const chance = new Map(exact), best = page.likeliest(page.now, state.words.length).slice(0, 5);
    const most = Math.max(...best.map(([, p]) => p), ...exact.map(([, p]) => p));
    rows.replaceChildren(...best.map(([w, p]) => h('tr', {},
      h('th', { scope: 'row' }, h('button', { type: 'button', title: `go on with ${w}`, onclick: () => take([w]) }, word(w))),
      bar(p, most, 'model'), exact.length ? bar(chance.get(w) ?? 0, most, 'exact') : h('td', {}, '–'))));
    const value = page.excessOf(page.now);
    verdict.replaceChildren(...(value === null
      ? [h('strong', {}, '–'), ended(state.words) ? 'The sentence is complete: the language says nothing after it.' : 'No sentence of the language begins so. There is no right answer, and the model says one all the same.']
      : [h('strong', {}, nats(value)), ' nats above the best possible answer at this place']));
    against.replaceChildren(...page.effect());
    const text = `${best.slice(0, 2).map(([w, p]) => `${w} ${share(p)}`).join(', ')}; ${value === null ? 'no exact chance' : `${nats(value)} nats above the best possible`}. ${against.textContent}`;
    if (text !== last) heard.replaceChildren(...marked(`The model says ${last = text}`));
    showDrawn();
  };
  const ended = words => ['.', '。'].includes(words.at(-1));
  const follows = exact => {
    if (!exact.length) return [];
    const pick = ([w, p]) => h('button', { type: 'button', onclick: () => take([w]) }, word(w), h('small', {}, share(p)));
    const more = exact.slice(LISTED);
    return [h('span', {}, 'The language may go on with'), ...exact.slice(0, LISTED).map(pick),
      more.length ? h('details', {}, h('summary', {}, `${more.length} more`), more.map(pick)) : null].filter(Boolean);
  };
  return { element, update, focus: () => input.focus(), complain };
}

const bar = (p, most, kind) => h('td', {}, p > 0 && h('span', { class: `tb-play-bar tb-play-${kind}`, 'aria-hidden': 'true', style: `--share:${p / most}` }), h('span', {}, p === 0 ? '0' : share(p)));
