// Before the first paint: the reader's colour mode, and the mathematics fonts that travel inside katex.css.
(() => {
  const root = document.documentElement;
  if (!localStorage.getItem('mode')) root.dataset.mode = 'auto';
  if (root.dataset.mode === 'auto')
    root.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  for (const font of ['1em KaTeX_Main', 'italic 1em KaTeX_Math', '1em KaTeX_AMS', '1em KaTeX_Size1', '1em KaTeX_Size2', '1em KaTeX_Size3', '1em KaTeX_Size4'])
    document.fonts.load(font);

  // Paper is white: print in the light colours, whatever the screen shows.
  let onScreen = null;
  const print = on => {
    if (on === (onScreen !== null)) return;
    [root.dataset.theme, onScreen] = on ? ['light', root.dataset.theme] : [onScreen, null];
  };
  matchMedia('print').addEventListener('change', event => print(event.matches));
  addEventListener('beforeprint', () => print(true));
  addEventListener('afterprint', () => print(false));
})();
