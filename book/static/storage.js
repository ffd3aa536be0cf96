// Where the browser blocks storage, a store that lasts as long as the page: search and theme need one.
for (const name of ['localStorage', 'sessionStorage']) {
  try {
    window[name].setItem('tried', '');
    window[name].removeItem('tried');
  } catch {
    const kept = new Map();
    Object.defineProperty(window, name, { value: {
      getItem: key => kept.get(key) ?? null,
      setItem: (key, value) => { kept.set(key, String(value)); },
      removeItem: key => { kept.delete(key); },
    } });
  }
}
