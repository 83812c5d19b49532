// Numbers of the memory view: stacked bytes, areas, units. No DOM here.

/** Kinds of blocks from the bottom of the chart up: kind, label, color. @type {[string, string, string][]} */
export const KINDS = [["saved", "saved for backward", "o3"], ["tangent", "gradients of outputs", "o6"], ["output", "returned or saved", "o2"], ["intermediate", "intermediate", "o1"]];
const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** Bytes with a decimal prefix, as the views of Python print them. @param {number} count */
export function bytesText(count) {
  const power = Math.max(0, Math.min(4, Math.floor(Math.log10(Math.max(count, 1)) / 3)));
  return Number((count / 1000 ** power).toPrecision(3)) + " " + UNITS[power];
}

/**
 * Bytes by kind at each step, in the order of `KINDS`.
 * @param {any[]} blocks @param {number} count of steps
 */
export function bytesByKind(blocks, count) {
  return KINDS.map(([kind]) => {
    const change = new Array(count + 1).fill(0);
    for (const b of blocks) if (b.kind === kind) { change[b.first] += b.bytes; change[b.last + 1] -= b.bytes; }
    let total = 0;
    return change.slice(0, count).map((c) => (total += c));
  });
}

/**
 * A stair-shaped area between two rows of heights, on a square of side 1000.
 * @param {number[]} low @param {number[]} high @param {number} top
 */
export function stairs(low, high, top) {
  const n = high.length, y = (/** @type {number} */ v) => (1000 - (v / top) * 1000).toFixed(1), x = (/** @type {number} */ i) => ((i / n) * 1000).toFixed(1);
  const up = high.map((v, i) => `${i ? "V" : "M0 "}${y(v)}H${x(i + 1)}`).join("");
  return up + low.map((_, i) => `V${y(low[n - 1 - i])}H${x(n - 1 - i)}`).join("") + "Z";
}
