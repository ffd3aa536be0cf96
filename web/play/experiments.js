// Six short experiments: a question, a guess, one click, and what it shows, with the numbers of this run.
import { button, h, marked, share } from './dom.js';

/** Each with its sentence, what is done, and what it shows; `p(word)` is the chance after it, `q(word)` before. */
export const EXPERIMENTS = [
  {
    title: 'What does “its” stand for?', words: 'Mary bought a new phone , its', changes: ['cut:7>5'],
    question: 'Keep “its” from reading “phone”, in all heads. What will the model say?',
    guesses: ['screen or battery, as before', 'a part of some other product', 'anything at all'], right: 1,
    shows: (p, q) => `Screen and battery had ${share(q('screen') + q('battery'))} together and have ${share(p('screen') + p('battery'))}; strap and dial have ${share(p('strap') + p('dial'))}. The model still knows that a part must come. Which product it was came over this one edge: put “car” for “phone” and it says almost the same.`,
  },
  {
    title: 'One word, two senses', words: 'the river bank', changes: ['cut:3>2'],
    question: 'A river bank hides or feeds something; a central bank raises or lowers. Keep “bank” from reading “river”. Which sense is left?',
    guesses: ['hides and feeds', 'raised and lowered', 'both alike'], right: 1,
    shows: (p, q) => `Hides and feeds fall from ${share(q('hides') + q('feeds'))} to ${share(p('hides') + p('feeds'))}; raised and lowered get ${share(p('raised') + p('lowered'))}. Without its neighbour the word has one sense, and here that is money. Do the same to “the central bank” and you see almost no change: a cut that changes nothing does not prove that nothing was read.`,
  },
  {
    title: 'Saying it again', words: 'say red blue green : red', changes: ['scale:0.2*0'],
    question: 'After the colon the colours come again, in order. Silence one head, the third of block 1. What comes after the second “red”?',
    guesses: ['blue, as before', 'green', 'no colour'], right: 1,
    shows: (p, q) => `Blue falls from ${share(q('blue'))} to ${share(p('blue'))}; green has ${share(p('green'))}. The other heads still say “a colour of the list”; which one is next came through this head. Silence another head of block 1 instead, and blue stays.`,
  },
  {
    title: 'A fact with two keys', words: 'Mary Brown lives in', changes: ['cut:4>2'],
    question: 'No rule leads from the names to the city: the model had to learn 64 facts. Keep “in” from reading “Brown”. “Mary” is still read. Where does she live?',
    guesses: ['still in Madrid', 'in some other city', 'nowhere: no city is said'], right: 1,
    shows: (p, q) => `Madrid falls from ${share(q('Madrid'))} to ${share(p('Madrid'))}, and Berlin has ${share(p('Berlin'))}. It still says a city. Half of a key is no key: neither name alone tells the city. Cut the edge to “Mary” instead, and it is a third city.`,
  },
  {
    title: 'Who is happy, and why?', words: 'Mary bought a new phone , she is', changes: ['cut:8>4'],
    question: 'She is happy, because the phone is new. Keep “is” from reading “new”. How is she?',
    guesses: ['happy', 'sad', 'the model cannot decide'], right: 1,
    shows: (p, q) => `Happy had ${share(q('happy'))} and has ${share(p('happy'))}; sad has ${share(p('sad'))}. The model is not in doubt: where it reads neither “new” nor “broken”, it says sad. Put “broken” for “new” and cut the same edge: nothing changes, and that would have told you nothing.`,
  },
  {
    title: '苹果, a fruit and a firm', words: '小明 吃 了 新鲜 苹果 ， 它 的', changes: ['cut:8>5'],
    question: '苹果 is an apple where it is eaten, and a firm where it releases a phone. An apple’s 它的 goes on with 味道 (taste). Keep 的 from reading 苹果. What comes now?',
    guesses: ['味道, as before', '屏幕 (screen), as after a phone', 'nothing sensible'], right: 0,
    shows: (p, q) => `味道 had ${share(q('味道'))} and keeps ${share(p('味道'))}. That something is eaten also stands in 吃 (eats) and 新鲜 (fresh), and 的 reads them as well. Go on to 味道 很 and the apple itself is needed: cut 很 → 苹果 there, and sweet turns to sour.`,
  },
];

export function experimentsPart(page) {
  const cards = EXPERIMENTS.map((experiment, i) => {
    const result = h('div', { class: 'tb-play-result', role: 'status' });
    const guesses = experiment.guesses.map((text, g) => h('label', {}, h('input', { type: 'radio', name: `tb-play-guess-${i}`, value: g }), h('span', {}, marked(text))));
    const card = h('section', { class: 'tb-play-card' });
    const run = () => {
      const chosen = card.querySelector('input:checked');
      page.set({ words: experiment.words.split(' '), changes: experiment.changes, step: 800, hand: null }, true, () => {
        const chance = of => w => Object.fromEntries(page.likeliest(of, page.state.words.length))[w];
        const verdict = !chosen ? 'You made no guess.' : +chosen.value === experiment.right ? 'As you guessed.' : 'Not as you guessed.';
        result.replaceChildren(h('p', {}, h('b', {}, verdict), ' ', marked(experiment.shows(chance(page.now), chance(page.whole)))));
      });
    };
    card.append(h('h2', {}, `${i + 1}. `, marked(experiment.title)), h('p', {}, marked(experiment.question)),
      h('fieldset', { class: 'tb-play-guesses' }, h('legend', {}, 'Your guess'), guesses),
      button('Do it', run), result);
    return card;
  });
  return {
    element: h('div', {}, h('p', { class: 'tb-play-lead' }, 'Guess first, then do it. The sentence and the answer above change with it, and so can you: undo, look, try another word.'), h('div', { class: 'tb-play-cards' }, cards)),
    update() {},
  };
}
