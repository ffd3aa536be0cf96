// What page_checks.py asks inside the page. Each function returns faults in words, or a measure.
(() => {
  const CONTROLS = '.widget-slider, .widget-dropdown, [role=slider], select';
  const WIDGETS = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const text = e => (e.textContent ?? '').trim().slice(0, 40);

  // Things that stick out sideways and cannot be scrolled to inside their own room.
  const overflow = () => {
    const faults = [], root = document.documentElement, width = root.clientWidth;
    if (root.scrollWidth > width) faults.push(`the page is ${root.scrollWidth} px wide`);
    const scrolls = e => {
      for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
        if (['auto', 'scroll'].includes(getComputedStyle(p).overflowX)) return true;
      return false;
    };
    for (const e of document.querySelectorAll('main :is(article *, p, pre, table, svg, img)')) {
      if (e.closest('.katex, [hidden]') || e.parentElement.closest('svg')) continue;
      const box = e.getBoundingClientRect();
      if (box.width <= 1 || box.height <= 1) continue; // hidden from the eye on purpose
      if (getComputedStyle(e).visibility === 'hidden') continue;
      if ((box.right > width + 1 || box.left < -1) && !scrolls(e))
        faults.push(`<${e.localName}> ends at ${Math.round(box.right)} px: ${text(e)}`);
      if (faults.length > 5) break;
    }
    return faults;
  };

  // On paper nothing scrolls, and paper is white: what is cut off, and what is too pale for it.
  const paper = () => {
    const faults = [], width = document.documentElement.clientWidth;
    const light = colour => {
      const [r, g, b] = colour.match(/[\d.]+/g).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
      return .2126 * r + .7152 * g + .0722 * b;
    };
    for (const e of document.querySelectorAll('main :is(p, pre, td, th, code, table, svg, img, .katex-html)')) {
      if (e.closest('[hidden], button') || e.parentElement.closest('svg')) continue;
      const box = e.getBoundingClientRect();
      if (box.width <= 1 || box.height <= 1) continue;
      const inside = e.localName === 'pre' && e.scrollWidth > e.clientWidth + 1;
      if (box.right > width + 1 || inside) faults.push(`<${e.localName}> loses its right end: ${text(e)}`);
      const contrast = 1.05 / (light(getComputedStyle(e).color) + .05);
      if (contrast < 4.5 && text(e)) faults.push(`<${e.localName}> is pale (${contrast.toFixed(2)}:1): ${text(e)}`);
      if (faults.length > 5) break;
    }
    for (const e of document.querySelectorAll('main details.hide > summary'))
      if (/\b(show|hide)\b/i.test(e.innerText)) faults.push(`a fold asks for a click: ${text(e)}`);
    for (const e of document.querySelectorAll('main table:not(.genindextable) :is(td, th)')) {
      const loose = [...e.querySelectorAll('.katex .mord')].some(m => getComputedStyle(m).whiteSpace !== 'nowrap');
      if (loose || tornWord(e)) faults.push(`a table cell is torn: ${text(e)}`);
    }
    return faults.slice(0, 8);
  };

  // Whether a short word of the element goes on on the next line.
  const tornWord = e => {
    const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (texts.nextNode()) {
      const node = texts.currentNode;
      if (node.parentElement.closest('.katex, [hidden]')) continue;
      for (const { 0: word, index } of node.data.matchAll(/\p{Script=Latin}{2,10}/gu)) {
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        if (tops.size > 1) return true;
      }
    }
    return false;
  };

  // Chinese text that does not say that it is Chinese.
  const unmarked = () => {
    const faults = [], texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const { parentElement: e, data } = texts.currentNode;
      if (!/\p{Script=Han}/u.test(data) || e.closest('[lang|="zh"], script, style, title, option')) continue;
      faults.push(`Chinese without lang="zh" in <${e.localName}>: ${data.trim().slice(0, 40)}`);
    }
    return faults.slice(0, 5);
  };

  // Pictures of the text without a description, or with a file's path for one.
  const nameless = () => [...document.querySelectorAll('article :is(img, svg)')].filter(e => {
    if (e.closest('[aria-hidden="true"], .katex, button') || e.parentElement.closest('svg')) return false;
    if (e.localName === 'img') return !e.alt || /^(\.\.\/)*_images/.test(e.alt);
    const named = e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.querySelector(':scope > title');
    // a picture that holds links is a group of them, not one image
    return !named || e.getAttribute('role') !== (e.querySelector('a') ? 'group' : 'img');
  }).map(e => `no description: ${e.outerHTML.slice(0, 120)}`);

  // Widgets that show nothing before, or without, their code.
  const blank = () => [...document.querySelectorAll(WIDGETS)].flatMap((tag, i) => {
    const still = tag.previousElementSibling;
    if (!still?.classList.contains('widget-still')) return [`widget ${i + 1} has no still picture`];
    const shown = still.querySelector('svg, table, p, pre, img');
    return shown && still.getBoundingClientRect().height > 20 ? [] : [`widget ${i + 1} has an empty still picture`];
  });

  // Leave out what says the same to axe a thousand times, which would take most of its time: words
  // of code in dress seen before, and the inside of formulas of one colour. Their text stays.
  const thin = () => {
    const seen = new Set();
    for (const e of document.querySelectorAll('.highlight pre span:not(:has(*))')) {
      let dress = '';
      for (let p = e; p && p.localName !== 'article'; p = p.parentElement) dress += `${p.className}<`;
      if (seen.has(dress)) e.replaceWith(e.textContent);
      seen.add(dress);
    }
    for (const e of document.querySelectorAll('.katex-html:not(:has([style*=color]))')) e.textContent = e.textContent;
  };

  // All rules, or only those named: what colours and width decide need not be asked with the rest.
  const barriers = async (...rules) => (await axe.run(document, {
    resultTypes: ['violations'], preload: false, ...(rules.length && { runOnly: rules }),
  })).violations
    .filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => `${v.id} (${v.impact}): ` + v.nodes.slice(0, 3)
      .map(n => `${n.target.join(' ')} ${(n.any[0] ?? n.all[0] ?? n.none[0])?.message ?? ''}`).join('; '));

  // What a widget shows besides its controls.
  const picture = area => {
    const copy = area.cloneNode(true);
    copy.querySelectorAll(CONTROLS).forEach(e => e.remove());
    return copy.innerHTML;
  };

  // How many positions a control has, by its own description of itself.
  const positions = e => e.localName === 'select' ? e.options.length
    : 1 + Math.round(Number(e.getAttribute('aria-valuemax')) - Number(e.getAttribute('aria-valuemin')));

  // From a key press to the frame that shows the changed picture, in ms, one entry a press.
  const answers = [];
  const watch = area => {
    let pressed = null;
    answers.length = 0;
    addEventListener('keydown', e => { pressed = e.timeStamp; }, true);
    const outside = node => !(node.closest ? node : node.parentElement)?.closest(CONTROLS);
    new MutationObserver(changes => {
      if (pressed === null || !changes.some(c => outside(c.target))) return;
      const since = pressed;
      pressed = null;
      requestAnimationFrame(() => answers.push(performance.now() - since));
    }).observe(area, { childList: true, subtree: true, characterData: true });
  };

  // Whether a place of the page stands in the upper half of the window, under nothing else.
  const atTop = id => {
    const e = document.getElementById(id), box = (e.querySelector('h1, h2, h3') ?? e).getBoundingClientRect();
    const shown = document.elementFromPoint(box.left + 2, box.top + box.height / 2);
    return box.top >= 0 && box.bottom <= innerHeight / 2 && (e.contains(shown) || shown?.contains(e));
  };

  // What moves for longer than a hundredth of a second: elements and their pseudo-elements.
  const moving = () => {
    const longest = times => Math.max(...times.split(',').map(parseFloat)), faults = new Set();
    for (const e of document.querySelectorAll('*'))
      for (const part of ['', '::before', '::after']) {
        const style = getComputedStyle(e, part || null);
        const span = Math.max(longest(style.transitionDuration), style.animationName === 'none' ? 0 : longest(style.animationDuration));
        if (span > .01 || style.scrollBehavior === 'smooth') faults.add(`${e.localName}${part} ${e.className}`);
      }
    return [...faults].slice(0, 5);
  };

  // Where the system sets the colours: controls that show neither a word, nor a picture, nor an edge.
  const edgeless = () => [...document.querySelectorAll(`main :is(button, [role=slider], input, select, summary), main .noUi-target`)]
    .filter(e => {
      const style = getComputedStyle(e), box = e.getBoundingClientRect();
      if (box.width <= 1 || style.visibility === 'hidden' || style.opacity === '0' || e.type === 'radio') return false;
      const own = style.forcedColorAdjust === 'none' && style.backgroundColor !== getComputedStyle(document.body).backgroundColor;
      return !(e.innerText?.trim() || e.querySelector('svg, i, span') || /[1-9]/.test(style.borderWidth) || own);
    }).map(e => `no edge: ${e.localName} ${e.className}`);

  // The places that Tab should stop at, numbered in the page's order, and the one where it is.
  const STOPS = 'a[href], button, input, select, summary, [tabindex="0"], [role=slider]', numbers = new Map();
  const what = e => (e.getAttribute('aria-label') || e.innerText || e.placeholder || e.className || e.localName).trim().slice(0, 40);
  const stopsHere = e => e.checkVisibility({ visibilityProperty: true }) && !e.disabled
    && !e.closest('[inert]') && !e.matches('[tabindex="-1"]')
    && !(e.type === 'radio' && !e.checked && document.querySelector(`input[name="${e.name}"]:checked`));
  const numberStops = () => document.querySelectorAll('*').forEach((e, number) => numbers.set(e, number));
  const stops = () => [...document.querySelectorAll(STOPS)].filter(stopsHere).map(e => [numbers.get(e), what(e)]);
  const stop = () => {
    const e = document.activeElement, box = e.getBoundingClientRect();
    if (e === document.body || !numbers.has(e)) return null;
    const rings = [e, e.parentElement, e.nextElementSibling].filter(Boolean).map(one => getComputedStyle(one));
    return {
      number: numbers.get(e), what: what(e),
      ring: rings.some(style => (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== 'none'),
      shown: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    };
  };

  window.ask = { moving, edgeless, numberStops, stops, stop, atTop, overflow, paper, unmarked, nameless, blank, thin, barriers, picture, positions, answers, watch };
})();
