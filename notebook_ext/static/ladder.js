// Numbers of the kernel view: rows at each stage by source line, roofline positions, fusion decisions grouped by reason. No DOM here.

/** @typedef {import("./links.js").Links} Links */

/** Panes from loops to machine code, in order. @type {[string, string][]} */
export const LADDER = [["loop", "Loop IR"], ["triton", "Triton"], ["llopt", "Optimized IR"], ["asm", "Assembly"], ["ttir", "TTIR"], ["ttgir", "TTGIR"], ["llir", "LLVM IR"], ["ptx", "PTX"], ["sass", "SASS"], ["amdgcn", "AMDGCN"]];

/**
 * For each stage that has the kernel: the number of rows of each source line. Rows without a line and without a known origin
 * (directives, braces) are left out.
 * @param {Links} links @param {string} kernel
 * @returns {{pane: string, title: string, count: number, parts: [number, number][]}[]}
 */
export function byOrdinal(links, kernel) {
  return LADDER.flatMap(([id, title]) => {
    const pane = links.panes.find((p) => p.id === id);
    const segment = pane && pane.segments.find(([k]) => k === kernel);
    if (!pane || !segment) return [];
    /** @type {Map<number, number>} */
    const counts = new Map();
    for (let row = segment[1]; row < segment[2]; row++) {
      const ordinal = links.ordinal[pane.first + row];
      if (ordinal >= 0) counts.set(ordinal, (counts.get(ordinal) || 0) + 1);
    }
    const parts = [...counts].sort(([a], [b]) => (a || Infinity) - (b || Infinity));
    const count = parts.reduce((n, [, c]) => n + c, 0);
    return count ? [{ pane: id, title: pane.title || title, count, parts }] : [];
  });
}

/**
 * Logarithmic axes that fit the roof and all points, and the roof as a path.
 * @param {{bandwidth: number, flops: number, ridge: number}} roof
 * @param {{intensity: number, flops: number}[]} points
 * @param {{width: number, height: number, left: number, right: number, top: number, bottom: number}} box
 */
export function rooflinePlaces(roof, points, box) {
  const low = (/** @type {number[]} */ values, /** @type {number} */ most) => 10 ** Math.floor(Math.log10(Math.min(most, ...values.filter((v) => v > 0))));
  const x0 = Math.max(1e-4, low(points.map((p) => p.intensity), 0.1)), x1 = 10 ** Math.ceil(Math.log10(roof.ridge * 4));
  const y0 = Math.max(1e3, low(points.map((p) => p.flops), 1e9)), y1 = roof.flops * 2;
  const place = (/** @type {number} */ v, /** @type {number} */ a, /** @type {number} */ b) => Math.max(0, Math.min(1, Math.log(Math.max(v, a) / a) / Math.log(b / a)));
  const x = (/** @type {number} */ v) => box.left + place(v, x0, x1) * (box.width - box.left - box.right);
  const y = (/** @type {number} */ v) => box.height - box.bottom - place(v, y0, y1) * (box.height - box.top - box.bottom);
  const tens = (/** @type {number} */ a, /** @type {number} */ b, /** @type {number} */ step) => {
    const found = [];
    for (let e = Math.round(Math.log10(a)); 10 ** e <= b * 1.0001; e += step) found.push(e < 0 ? Number((10 ** e).toPrecision(1)) : 10 ** e);
    return found;
  };
  const start = Math.max(x0, y0 / roof.bandwidth);
  const path = `M${x(start)} ${y(start * roof.bandwidth)}L${x(roof.ridge)} ${y(roof.flops)}H${x(x1)}`;
  return { x, y, path, ticks: { x: tens(x0, x1, x1 / x0 > 1e5 ? 2 : 1), y: tens(y0, y1, y1 / y0 > 1e6 ? 3 : y1 / y0 > 1e4 ? 2 : 1) } };
}

/**
 * Merge decisions with the same outcome and reason; each node is named once; fusions first.
 * @param {any[]} decisions
 * @returns {{fused: boolean, first: string, second: string, reason: string, saved: string}[]}
 */
export function gathered(decisions) {
  const by = new Map();
  for (const d of decisions) {
    const name = `${d.fused}|${d.reason}`;
    if (!by.has(name)) by.set(name, { ...d, first: new Set(), second: new Set(), saved: [] });
    const group = by.get(name);
    for (const node of d.first) group.first.add(node);
    for (const node of d.second) group.second.add(node);
    if (d.saved) group.saved.push(d.saved);
  }
  const names = (/** @type {string[]} */ list) => list.slice(0, 6).join(", ") + (list.length > 6 ? ` and ${list.length - 6} more` : "");
  const sums = (/** @type {string[]} */ saved) => {
    const counts = new Map();
    for (const s of saved) counts.set(s, (counts.get(s) || 0) + 1);
    return [...counts].map(([s, n]) => (n > 1 ? `${n} × ${s}` : s)).join(" + ");
  };
  return [...by.values()]
    .sort((a, b) => Number(b.fused) - Number(a.fused))
    .map((d) => ({ fused: d.fused, reason: d.reason, first: names([...d.first]), second: names([...d.second].filter((n) => !d.first.has(n))), saved: sums(d.saved) }));
}
