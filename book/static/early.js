// Before the first paint: the reader's colour mode, and the mathematics fonts that travel inside katex.css.
(() => {
  const root = document.documentElement;
  let chosen = null;
  try { chosen = localStorage.getItem('mode'); } catch { /* storage is off: follow the system */ }
  if (!chosen) root.dataset.mode = 'auto';
  if (root.dataset.mode === 'auto')
    root.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  for (const font of ['1em KaTeX_Main', 'italic 1em KaTeX_Math', '1em KaTeX_AMS', '1em KaTeX_Size1', '1em KaTeX_Size2', '1em KaTeX_Size3', '1em KaTeX_Size4'])
    document.fonts.load(font);
})();
