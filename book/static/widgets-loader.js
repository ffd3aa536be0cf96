// Fetches the widget code when a widget comes near the view, or when the page has been idle.
(() => {
  const here = document.currentScript.src.replace(/[^/]*$/, '');
  let asked = false;
  const load = () => {
    if (asked) return;
    asked = true;
    const style = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: here + 'vendor/widgets.css' });
    style.onload = () => document.head.append(Object.assign(document.createElement('script'), { src: here + 'vendor/widgets.js' }));
    document.head.prepend(style);
  };
  const start = () => {
    const places = document.querySelectorAll('script[type="application/vnd.jupyter.widget-view+json"]');
    if (!places.length) return;
    const near = new IntersectionObserver(seen => seen.some(s => s.isIntersecting) && load(), { rootMargin: '1000px' });
    places.forEach(place => near.observe(place.parentElement));
    const idle = () => navigator.connection?.saveData || setTimeout(() => (window.requestIdleCallback || setTimeout)(load), 1500);
    document.readyState === 'complete' ? idle() : addEventListener('load', idle);
  };
  document.readyState === 'loading' ? addEventListener('DOMContentLoaded', start) : start();
})();
