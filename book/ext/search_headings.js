// Sphinx finds pages; here each find leads on to the heading under which the words stand most often,
// headings that hold the very words come first, and then the pages that hold them most often. Stands
// where Sphinx takes a scorer: after its search, before its index; search_words.py writes the headings.
{
  const sphinx = Search._performSearch;
  const plain = text => text.toLowerCase().replace(/[^\p{L}\p{N}_]+/gu, ' ').trim();
  const heading = title => plain(title.split(' > ').at(-1).replace(/^\d+\.? /, '')).replace(/^(the|an?) /, '');

  // How often a page holds the terms, and the heading under which most of them stand.
  const look = (page, terms) => {
    const { at, of } = window.SECTIONS?.[page] ?? { at: [], of: {} }, votes = at.map(() => 0);
    let often = 0;
    for (const term of terms) {
      const key = term in of ? term : Object.keys(of).find(word => term.length > 2 && word.includes(term));
      const [times, ...best] = of[key] ?? [0];
      often += Math.log1p(times); // each of the terms counts, not only the most frequent
      best.forEach((number, place) => { votes[number] += 3 - place; });
    }
    const most = Math.max(0, ...votes);
    return { often, place: most ? at[votes.indexOf(most)] : null };
  };

  const rank = ([page, title, , object], wanted) => {
    const own = heading(title);
    if (object !== null) return title.split('.').at(-1).toLowerCase() === wanted ? 2 : 0;
    if (page === 'book/api') return 0;
    if (own === wanted) return title.includes(' > ') ? 4 : 5; // a whole page of it before a part of one
    return /\p{Script=Han}/u.test(wanted) ? 1 + 2 * own.includes(wanted) : 1 + 2 * ` ${own} `.includes(` ${wanted} `);
  };

  // Sphinx hands over its finds in reverse: the best is last.
  Search._performSearch = (query, terms, ...rest) => {
    const wanted = plain(query).replace(/^(the|an?) /, ''), seen = new Set();
    const finds = sphinx.call(Search, query, terms, ...rest).map((find, order) => {
      const [page, title, anchor, object, ...more] = find, { often, place } = look(page, terms);
      const led = place && !anchor && object === null && heading(title) !== wanted
        ? [page, `${title} > ${place[1]}`, `#${place[0]}`, object, ...more] : find;
      return { led, often, order, rank: rank(led, wanted) };
    });
    return finds.sort((a, b) => b.rank - a.rank || b.often - a.often || b.order - a.order).map(({ led }) => led)
      .filter(([page, , anchor]) => !seen.has(page + anchor) && seen.add(page + anchor)).reverse();
  };
}
