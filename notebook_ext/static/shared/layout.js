// Arithmetic of lists, rulers and bars. No DOM here.

export const ROW = 18;
export const ALL_ROWS = 200;
const OVERSCAN = 20;

/**
 * Rows to draw: all of a short list, else the visible ones and some around them.
 * @param {number} count
 * @param {number} scrollTop
 * @param {number} height of the view
 * @param {number} [row] height of a row
 * @param {number} [all] maximum length of a list that is drawn completely
 * @returns {[number, number]} first and end
 */
export function visibleRows(count, scrollTop, height, row = ROW, all = ALL_ROWS) {
  if (count <= all) return [0, count];
  const first = Math.max(0, Math.floor(scrollTop / row) - OVERSCAN);
  return [Math.min(first, count), Math.min(count, Math.ceil((scrollTop + height) / row) + OVERSCAN)];
}

/** East Asian characters, which take two columns. */
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]/g;

/**
 * Number of lines above each row when long texts are wrapped; the last number is that of all lines.
 * @param {string[]} texts
 * @param {number} columns characters in a line
 */
export function lineTops(texts, columns) {
  const tops = [0];
  for (const text of texts) tops.push(tops[tops.length - 1] + Math.max(1, Math.ceil((text.length + (text.match(WIDE) || []).length) / columns)));
  return tops;
}

/** The row that has a line. @param {number[]} tops of `lineTops` @param {number} line */
export function rowOfLine(tops, line) {
  let low = 0, high = tops.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle] <= line) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * Scroll position that shows a row: unchanged if the row is visible, else `lead` pixels below the top.
 * @param {number} index
 * @param {number} scrollTop
 * @param {number} height
 * @param {number} lead
 * @param {number} [row]
 */
export function scrollFor(index, scrollTop, height, lead, row = ROW) {
  const y = index * row;
  if (y >= scrollTop && y + row <= scrollTop + height) return scrollTop;
  return Math.max(0, Math.floor((y - lead) / row) * row);
}

/**
 * Runs of marked rows for a ruler: [top, height] as fractions, at most `most` of them (neighbors are joined).
 * @param {number[]} hits ascending row numbers
 * @param {number} count of rows
 * @param {number} [most]
 * @returns {[number, number][]}
 */
export function rulerMarks(hits, count, most = 150) {
  if (!count) return [];
  const join = Math.max(1, Math.ceil(count / most));
  /** @type {[number, number][]} */
  const runs = [];
  for (const hit of hits) {
    const last = runs[runs.length - 1];
    if (last && hit - last[1] < join) last[1] = hit + 1;
    else runs.push([hit, hit + 1]);
  }
  return runs.map(([a, b]) => [a / count, (b - a) / count]);
}

/**
 * The next of `hits` after row `at`, wrapping around; -1 if there is none.
 * @param {number[]} hits ascending
 * @param {number} at
 * @param {1 | -1} step
 */
export function nextHit(hits, at, step) {
  if (!hits.length) return -1;
  if (step > 0) return hits.find((hit) => hit > at) ?? hits[0];
  return hits.findLast((hit) => hit < at) ?? hits[hits.length - 1];
}

/**
 * Bars of one compilation on a scale of `longest` seconds: left and width in percent, row by depth.
 * @param {{start: number, seconds: number, depth: number}[]} bars
 * @param {number} longest
 */
export function barPlaces(bars, longest) {
  const first = Math.min(...bars.map((b) => b.start));
  const scale = longest > 0 ? 100 / longest : 0;
  return bars.map((b) => ({ left: (b.start - first) * scale, width: Math.max(b.seconds * scale, 0.15), row: b.depth }));
}

/**
 * A moment on a clock with a tick at every `step` seconds, precise enough to tell neighbors apart.
 * @param {number} moment in seconds
 * @param {number} step
 */
export function clockText(moment, step) {
  if (!moment) return "0";
  const [unit, scale] = moment >= 1 ? ["s", 1] : moment >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  return `${(moment * scale).toFixed(Math.max(0, Math.min(9, Math.ceil(-Math.log10(step * scale) - 1e-9))))} ${unit}`;
}

/**
 * Rows of a flat tree that are not inside a closed one.
 * @param {{parent: number}[]} tree
 * @param {Set<number>} closed
 */
export function openRows(tree, closed) {
  /** @type {boolean[]} */
  const hidden = [];
  /** @type {number[]} */
  const rows = [];
  tree.forEach((row, i) => {
    hidden[i] = row.parent >= 0 && (hidden[row.parent] || closed.has(row.parent));
    if (!hidden[i]) rows.push(i);
  });
  return rows;
}
