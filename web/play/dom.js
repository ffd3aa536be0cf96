// Making and showing: every text of the reader's goes in as text, never as HTML.

const SVG = 'http://www.w3.org/2000/svg';
const HAN = /[\u4e00-\u9fff，。：]/;

/** Make an element; props are attributes, except on… (listeners) and what an element has as a property. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'value' || name === 'checked') element[name] = value;
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

/** A word of the language; a Chinese one says that it is Chinese, so that a screen reader changes its voice. */
export const word = text => text === '<bos>' ? '‹begin›'
  : HAN.test(text) ? h('span', { lang: 'zh' }, text) : text;

/** A text with Chinese words in it, marked as such. */
export const marked = text => text.split(/([\u4e00-\u9fff，。：]+)/).map(word);

export const share = p => p > 0.995 && p < 1 ? '> .99' : p < 0.005 && p > 0 ? '< .01'
  : p.toFixed(2).replace(/^0/, '');
export const nats = value => value === null ? '–' : value < 0.0005 ? '0.000' : value.toFixed(value < 1 ? 3 : 2);

/** A group of radio buttons that look like one bar; `pick` hears the value. */
export function choice(name, label, options, pick) {
  const inputs = options.map(([value, text]) => h('label', {},
    h('input', { type: 'radio', name: `tb-play-${name}`, value, onchange: () => pick(value) }), h('span', {}, text)));
  const group = h('fieldset', { class: 'tb-play-choice' }, h('legend', {}, label), inputs);
  const set = chosen => inputs.forEach(({ firstChild }) => { firstChild.checked = firstChild.value === String(chosen); });
  return { group, set };
}

/** A labelled list to choose from. */
export function selector(label, options, props = {}) {
  const select = h('select', props, options.map(([value, text]) => h('option', { value }, text)));
  return { field: h('label', { class: 'tb-play-field' }, h('span', {}, label), select), select };
}

/** Put other options into a list, and keep what was chosen where it is still there. */
export function refill(select, options, fallback) {
  const kept = select.value;
  select.replaceChildren(...options.map(([value, text]) => h('option', { value }, text)));
  const values = options.map(([value]) => String(value));
  select.value = values.includes(kept) ? kept : String(fallback ?? values[0]);
}

export const button = (text, onclick, props = {}) => h('button', { type: 'button', class: 'tb-play-button', onclick, ...props }, text);
