// Line diff of two texts. No DOM here.

/**
 * One row of a side-by-side diff: line numbers from 0; -1 if a side has no line.
 * @typedef {object} Row
 * @property {"same" | "renamed" | "changed" | "left" | "right"} kind "renamed": equal once names that the compiler numbered are matched
 * @property {number} a
 * @property {number} b
 */

/** Maximum number of edits searched in one gap; a gap that needs more is shown as replaced. */
const MOST_EDITS = 1500;

/**
 * Runs of equal lines, ascending in both: [start in a, start in b, length].
 *
 * Lines that occur once in each text anchor the rest (patience, after Bram Cohen); Myers' greedy algorithm (1986) compares the gaps.
 * @param {string[]} a @param {string[]} b
 * @returns {[number, number, number][]}
 */
export function matches(a, b) {
  /** @type {[number, number, number][]} */
  const runs = [];
  const add = (/** @type {number} */ i, /** @type {number} */ j) => {
    const last = runs[runs.length - 1];
    if (last && last[0] + last[2] === i && last[1] + last[2] === j) last[2]++;
    else runs.push([i, j, 1]);
  };
  let i = 0, j = 0;
  for (const [x, y] of [...anchors(a, b), /** @type {[number, number]} */ ([a.length, b.length])]) {
    between(a, i, x, b, j, y, add);
    if (x < a.length) add(x, y);
    [i, j] = [x + 1, y + 1];
  }
  return runs;
}

/**
 * Pairs of lines that are unique in both texts, the longest ascending chain of them.
 * @param {string[]} a @param {string[]} b
 * @returns {[number, number][]}
 */
function anchors(a, b) {
  const once = (/** @type {string[]} */ lines) => {
    const places = new Map();
    lines.forEach((line, i) => places.set(line, places.has(line) ? -1 : i));
    return places;
  };
  const inA = once(a), inB = once(b);
  /** @type {[number, number][]} */
  const pairs = [];
  for (const [line, i] of inA) if (i >= 0 && (inB.get(line) ?? -1) >= 0) pairs.push([i, inB.get(line)]);
  /** @type {number[]} */
  const tails = [], before = pairs.map(() => -1);
  pairs.forEach(([, j], n) => {
    let low = 0, high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[tails[middle]][1] < j) low = middle + 1;
      else high = middle;
    }
    if (low) before[n] = tails[low - 1];
    tails[low] = n;
  });
  const chain = [];
  for (let n = tails.length ? tails[tails.length - 1] : -1; n >= 0; n = before[n]) chain.push(pairs[n]);
  return chain.reverse();
}

/**
 * Call `add` for the equal lines of a[i..x) and b[j..y).
 * @param {string[]} a @param {number} i @param {number} x @param {string[]} b @param {number} j @param {number} y @param {(i: number, j: number) => void} add
 */
function between(a, i, x, b, j, y, add) {
  while (i < x && j < y && a[i] === b[j]) add(i++, j++);
  let tail = 0;
  while (i < x - tail && j < y - tail && a[x - tail - 1] === b[y - tail - 1]) tail++;
  x -= tail;
  y -= tail;
  for (const [p, q] of i < x && j < y ? greedy(a.slice(i, x), b.slice(j, y)) : []) add(i + p, j + q);
  for (let n = 0; n < tail; n++) add(x + n, y + n);
}

/**
 * Myers' greedy algorithm: the equal pairs on a shortest edit path; none if the path is too long.
 * @param {string[]} a @param {string[]} b
 * @returns {[number, number][]}
 */
function greedy(a, b) {
  const most = Math.min(a.length + b.length, MOST_EDITS), off = most + 1;
  const far = new Int32Array(2 * most + 3).fill(-1);
  far[off + 1] = 0;
  /** @type {Int32Array[]} */
  const trail = [];
  for (let d = 0; d <= most; d++) {
    trail.push(far.slice(off - d - 1, off + d + 2));
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && far[off + k - 1] < far[off + k + 1]) ? far[off + k + 1] : far[off + k - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      far[off + k] = x;
      if (x >= a.length && x - k >= b.length) return way(trail, a.length, b.length);
    }
  }
  return [];
}

/**
 * Trace the path back through the saved state of each edit count.
 * @param {Int32Array[]} trail @param {number} x @param {number} y
 * @returns {[number, number][]}
 */
function way(trail, x, y) {
  /** @type {[number, number][]} */
  const pairs = [];
  for (let d = trail.length - 1; d >= 0; d--) {
    const kept = trail[d], at = (/** @type {number} */ k) => kept[k + d + 1], k = x - y;
    const from = k === -d || (k !== d && at(k - 1) < at(k + 1)) ? k + 1 : k - 1;
    const startX = d ? at(from) : 0, startY = d ? startX - from : 0;
    const enter = d ? (from < k ? startX + 1 : startX) : 0;
    while (x > enter) pairs.push([--x, --y]);
    if (d) [x, y] = [startX, startY];
  }
  return pairs.reverse();
}

/** Names that compilers number, such as `mul_12`, `%34` and `%rd5`. */
const NUMBERED = /(?<=\w)_\d+\b|%[a-z]*\d+\b/g;
const NAMES = /%?[A-Za-z_]\w*|%\d+/g;

/** Tests if two lines are equal under one renaming of numbered names. The renaming grows with each compared line. */
class Renaming {
  constructor() {
    this.to = new Map();
    this.from = new Map();
  }

  /** @param {string} a @param {string} b */
  fits(a, b) {
    const left = a.match(NAMES) || [], right = b.match(NAMES) || [];
    if (left.length !== right.length) return false;
    const isFree = left.every((x, i) => (this.to.get(x) ?? right[i]) === right[i] && (this.from.get(right[i]) ?? x) === x);
    if (isFree) left.forEach((x, i) => { this.to.set(x, right[i]); this.from.set(right[i], x); });
    return isFree;
  }
}

/**
 * Side-by-side rows of two texts: equal lines in one row, replaced lines paired from the top, the rest alone.
 *
 * Lines that differ only in numbered names are marked as renamed if one renaming explains all of them.
 * @param {string[]} a @param {string[]} b
 * @returns {Row[]}
 */
export function sideBySide(a, b) {
  const plain = (/** @type {string[]} */ lines) => lines.map((line) => line.replace(NUMBERED, ""));
  const renaming = new Renaming();
  /** @type {Row[]} */
  const rows = [];
  let i = 0, j = 0;
  for (const [x, y, length] of [...matches(plain(a), plain(b)), /** @type {[number, number, number]} */ ([a.length, b.length, 0])]) {
    while (i < x && j < y) rows.push({ kind: "changed", a: i++, b: j++ });
    while (i < x) rows.push({ kind: "left", a: i++, b: -1 });
    while (j < y) rows.push({ kind: "right", a: -1, b: j++ });
    for (let n = 0; n < length; n++, i++, j++) {
      const fits = renaming.fits(a[i], b[j]);
      rows.push({ kind: a[i] === b[j] ? "same" : fits ? "renamed" : "changed", a: i, b: j });
    }
  }
  return rows;
}

/** @param {Row} row */
export function isEqual(row) {
  return row.kind === "same" || row.kind === "renamed";
}

/**
 * Rows with long equal runs folded: a number stands for that many omitted equal rows.
 * @param {Row[]} rows
 * @param {number} around equal rows shown around a change
 * @returns {(Row | number)[]}
 */
export function folded(rows, around = 3) {
  /** @type {(Row | number)[]} */
  const shown = [];
  for (let i = 0; i < rows.length; ) {
    let end = i;
    while (end < rows.length && isEqual(rows[end])) end++;
    const first = i === 0 ? 0 : around, last = end === rows.length ? 0 : around, hidden = end - i - first - last;
    if (hidden > 1) {
      shown.push(...rows.slice(i, i + first), hidden, ...rows.slice(end - last, end));
    } else shown.push(...rows.slice(i, end));
    if (end < rows.length) shown.push(rows[end]);
    i = end + 1;
  }
  return shown;
}

/**
 * The columns in which two lines differ: after the common prefix, before the common suffix.
 * @param {string} a @param {string} b
 * @returns {[number, number, number]} start in both, end in a, end in b
 */
export function changedColumns(a, b) {
  const most = Math.min(a.length, b.length);
  let start = 0, tail = 0;
  while (start < most && a[start] === b[start]) start++;
  while (tail < most - start && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  return [start, a.length - tail, b.length - tail];
}

/**
 * Starts of runs of rows that differ.
 * @param {(Row | number)[]} rows
 */
export function changeStarts(rows) {
  const differs = (/** @type {Row | number | undefined} */ row) => typeof row === "object" && !isEqual(row);
  return rows.flatMap((row, i) => (differs(row) && !differs(rows[i - 1]) ? [i] : []));
}
