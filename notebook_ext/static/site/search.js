/**
 * Offline search of the site. Everything here is text: no result is ever read as HTML.
 * @typedef {[number, string, string, string]} Section number of the page, anchor, title, text
 * @typedef {{ pages: [string, string][], sections: Section[] }} Index
 * @typedef {{ address: string, title: string, page: string, parts: [string, boolean][], score: number }} Hit
 */

const EXCERPT = 180;

/**
 * The words of a query, in lower case.
 * @param {string} query
 * @returns {string[]}
 */
export function queryWords(query) {
  return query.toLowerCase().split(/\s+/).filter(Boolean);
}

/**
 * How well a section fits one word; 0 if it does not have it.
 * @param {string} word
 * @param {string} title
 * @param {string} page
 * @param {string} text
 */
function wordScore(word, title, page, text) {
  if (title === word) return 200;
  const inTitle = title.startsWith(word) ? 60 : title.includes(word) ? 30 : 0;
  const inPage = page.includes(word) ? 10 : 0;
  const at = text.indexOf(word);
  const inText = at < 0 ? 0 : /\w/.test(text[at - 1] ?? "") ? 2 : 6;
  return inTitle + inPage + inText;
}

/**
 * The sections that have all words of a query, best first.
 * @param {Index} index
 * @param {string} query
 * @returns {Hit[]}
 */
export function findSections(index, query) {
  const words = queryWords(query);
  const whole = words.join(" ");
  const hits = [];
  for (const [page, anchor, title, text] of words.length ? index.sections : []) {
    const [address, pageTitle] = index.pages[page];
    const [lowTitle, lowPage, lowText] = [title, pageTitle, text].map((t) => t.toLowerCase());
    const scores = words.map((word) => wordScore(word, lowTitle, lowPage, lowText));
    if (scores.includes(0)) continue;
    const exact = lowTitle === whole ? 500 : lowText.includes(whole) ? 5 : 0;
    const score = scores.reduce((sum, s) => sum + s, exact);
    hits.push({ address: anchor ? `${address}#${anchor}` : address, title: title || pageTitle, page: pageTitle, parts: excerpt(text, words), score });
  }
  return hits.sort((a, b) => b.score - a.score);
}

/**
 * A piece of a text around its first match, cut into pieces that match (true) and others.
 * @param {string} text
 * @param {string[]} words
 * @returns {[string, boolean][]}
 */
export function excerpt(text, words) {
  const low = text.toLowerCase();
  const first = Math.min(...words.map((word) => low.indexOf(word)).map((at) => (at < 0 ? Infinity : at)));
  const start = first === Infinity || first < EXCERPT / 3 ? 0 : text.lastIndexOf(" ", first - EXCERPT / 4) + 1;
  const end = Math.min(text.length, start + EXCERPT);
  /** @type {[string, boolean][]} */
  const parts = [];
  let at = start;
  while (at < end) {
    const next = words.map((word) => [low.indexOf(word, at), word.length]).filter(([found]) => found >= 0 && found < end).sort((a, b) => a[0] - b[0] || b[1] - a[1])[0];
    if (!next) break;
    if (next[0] > at) parts.push([text.slice(at, next[0]), false]);
    parts.push([text.slice(next[0], next[0] + next[1]), true]);
    at = next[0] + next[1];
  }
  if (at < end) parts.push([text.slice(at, end), false]);
  if (start > 0) parts.unshift(["… ", false]);
  if (end < text.length) parts.push([" …", false]);
  return parts;
}
