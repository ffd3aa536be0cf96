// Who reads whom: arcs over the sentence for one head or all, a row for each head, and the cutting of edges.
import { button, choice, h, refill, selector, share, svg, word } from './dom.js';
import { starved } from './changes.js';

const HEADS = [0, 1].flatMap(block => [0, 1, 2, 3].map(head => ({ block, head, name: `block ${block + 1}, head ${head + 1}` })));

export function attentionPart(page) {
  const { state } = page;
  let mode = 'reads', shown = 'all';
  const modes = choice('mode', 'Show', [['reads', 'whom it reads'], ['read', 'who reads it']], value => { mode = value; update(); });
  modes.set(mode);
  const head = selector('Arcs of', [['all', 'all heads, their mean'], ...HEADS.map(({ name }, i) => [i, name])], { onchange: event => { shown = event.target.value; update(); } });
  const arcs = h('div', { class: 'tb-play-arcs', tabindex: '0', role: 'region', 'aria-label': 'Arcs over the sentence' });
  const table = h('div', { class: 'tb-play-scroll', tabindex: '0', role: 'region', 'aria-label': 'Attention as a table' });

  const reader = selector('Cut: the word', []), read = selector('no longer reads', []);
  const where = selector('in', [['', 'all heads'], ['@0', 'block 1'], ['@1', 'block 2'], ...HEADS.map(({ block, head, name }) => [`@${block}.${head}`, name])]);
  const said = h('span', { role: 'status' });
  const fillRead = () => {
    const q = +reader.select.value, mostRead = [...Array(q + 1).keys()].sort((a, b) => mean(q, b) - mean(q, a))[0];
    refill(read.select, page.tokens().slice(0, q + 1), mostRead);
  };
  reader.select.addEventListener('change', fillRead);
  const cutEdge = () => {
    const code = `cut:${reader.select.value}>${read.select.value}${where.select.value}`;
    if (starved(state.changes, code)) said.textContent = 'Not this one too: the word would have nothing left to read.';
    else { said.textContent = ''; page.change(code); }
  };
  const cutButton = button('Cut this edge', cutEdge, { class: 'tb-play-button tb-play-cut' });

  const element = h('div', {},
    h('p', { class: 'tb-play-lead' }, 'Point at a word of the sentence above, or move to it with the Tab key, to see whom it reads. A word reads itself and what stands before it, never what comes after. Press a number in the table to choose that edge for a cut.'),
    h('div', { class: 'tb-play-row' }, modes.group, head.field), arcs, table,
    h('div', { class: 'tb-play-row tb-play-form' }, reader.field, read.field, where.field, cutButton, said));

  const weight = (run, { block, head }, q, k) => run?.blocks[block].A[head][q]?.[k] ?? 0;
  const mean = (q, k, over = HEADS) => over.reduce((sum, one) => sum + weight(page.now, one, q, k), 0) / over.length;
  let offered = {};
  const update = () => {
    const run = page.now, tokens = page.tokens();
    const words = ['<bos>', ...state.words], sentence = [page.hand(), ...words].join(' '), whole = [!run, ...state.changes].join(' ');
    if (sentence !== offered.sentence) { // else what was chosen stays
      reader.select.replaceChildren();
      refill(reader.select, tokens.slice(1), page.hand() || 1);
    }
    if (sentence !== offered.sentence || whole !== offered.whole) {
      read.select.replaceChildren();
      fillRead();
    }
    offered = { sentence, whole };
    cutButton.disabled = tokens.length < 2;
    if (!run) { arcs.replaceChildren(page.waiting); table.replaceChildren(); return; }
    const place = page.looking();
    const at = (one, i) => mode === 'reads' ? weight(run, one, place, i) : weight(run, one, i, place);
    const chosen = shown === 'all' ? HEADS : [HEADS[shown]];
    const means = words.map((_, i) => mode === 'reads' ? mean(place, i, chosen) : mean(i, place, chosen));
    const name = words[place] === '<bos>' ? '‹begin›' : words[place];
    arcs.replaceChildren(drawn(words, place, means, mode, shown === 'all' ? 0 : HEADS[shown].block + 1, page));
    table.replaceChildren(h('table', { class: 'tb-play-weights' },
      h('caption', {}, mode === 'reads' ? 'How much of its attention “' : 'How much of their attention the words give to “', word(name), mode === 'reads' ? '” gives to each word' : '”'),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'head'), words.map((w, i) => h('th', { scope: 'col', class: i === place ? 'tb-play-hand' : null }, word(w))))),
      h('tbody', {}, HEADS.map((one, row) => h('tr', { class: row === 4 ? 'tb-play-second' : null },
        h('th', { scope: 'row' }, one.name),
        words.map((_, i) => {
          const hidden = mode === 'reads' ? i > place : i < place, value = at(one, i);
          if (hidden) return h('td', { class: 'tb-play-future' }, h('span', { class: 'tb-play-quiet' }, 'hidden'));
          return h('td', {
            style: `--share:${value.toFixed(3)}`, class: one.block ? 'tb-play-two' : null,
            onclick: () => { const [q, k] = mode === 'reads' ? [place, i] : [i, place]; if (!q) return; reader.select.value = q; fillRead(); read.select.value = k; where.select.value = `@${one.block}.${one.head}`; },
          }, value < 0.005 ? '0' : share(value));
        }))))));
  };
  return { element, update };
}

function drawn(words, place, values, mode, block, page) {
  const widths = words.map(w => w === '<bos>' ? 58 : [...w].reduce((sum, c) => sum + (c > '⺀' ? 17 : 9.2), 16));
  const lefts = widths.map((_, i) => widths.slice(0, i).reduce((a, b) => a + b, 8));
  const width = lefts.at(-1) + widths.at(-1) + 8, height = 150, line = 118;
  const middle = i => lefts[i] + widths[i] / 2;
  const strongest = values.map((v, i) => [v, i]).filter(([v]) => v >= 0.02).sort((a, b) => b[0] - a[0]);
  const say = strongest.slice(0, 3).map(([v, i]) => `${words[i]} ${share(v)}`).join(', ') || 'no word';
  const label = (mode === 'reads' ? `${words[place]} reads ${say}` : `${words[place]} is read by ${say}`).replaceAll('<bos>', '‹begin›');
  return svg('svg', { viewBox: `0 0 ${width} ${height}`, width, role: 'img', 'aria-label': label, class: `tb-play-drawing tb-play-block-${block}` },
    values.map((v, i) => {
      if (v < 0.02) return null;
      const [a, b] = [middle(place), middle(i)], rise = i === place ? 26 : Math.min(100, 24 + Math.abs(a - b) * 0.22);
      const path = i === place ? `M${a - 7} ${line - 18}C${a - 20} ${line - 18 - rise} ${a + 20} ${line - 18 - rise} ${a + 7} ${line - 18}`
        : `M${a} ${line - 18}C${a} ${line - 18 - rise} ${b} ${line - 18 - rise} ${b} ${line - 18}`;
      return svg('path', { d: path, 'stroke-width': 1 + 7 * v, 'stroke-opacity': 0.25 + 0.75 * v });
    }),
    words.map((w, i) => svg('g', { class: i === place ? 'tb-play-hand' : null, onclick: () => page.set({ hand: i }, false) },
      svg('rect', { x: lefts[i], y: line - 16, width: widths[i], height: 26, rx: 5 }),
      svg('text', { x: middle(i), y: line + 2, 'text-anchor': 'middle', lang: /[\u4e00-\u9fff，。]/.test(w) ? 'zh' : null }, w === '<bos>' ? '‹begin›' : w),
      values[i] >= 0.02 ? svg('text', { x: middle(i), y: line + 25, 'text-anchor': 'middle', class: 'tb-play-small' }, share(values[i])) : null)));
}
