// Links between rows of the panes. No DOM here.

/**
 * @typedef {object} Pane
 * @property {string} id
 * @property {string} title
 * @property {string} parent
 * @property {string} language
 * @property {number} first number of its first row
 * @property {number} rows
 * @property {number} lines rows that are not headings
 * @property {number[]} heads
 * @property {string[] | null} numbers
 * @property {[string, number, number][]} segments
 * @property {string} note
 * @property {string} empty
 */

/** Highlight level of a row; 0 is none. */
export const SAME_LINE = 1;
export const LINKED = 2;

/** Adjacency in two flat arrays: the children of row r are `to[start[r]] .. to[start[r + 1] - 1]`. */
class Edges {
  /** @param {number} rows @param {[number, number][]} pairs (from, to) */
  constructor(rows, pairs) {
    this.start = new Int32Array(rows + 1);
    this.to = new Int32Array(pairs.length);
    for (const [from] of pairs) this.start[from + 1]++;
    for (let i = 0; i < rows; i++) this.start[i + 1] += this.start[i];
    const next = this.start.slice();
    for (const [from, to] of pairs) this.to[next[from]++] = to;
  }

  /** @param {number} row */
  of(row) {
    return this.to.subarray(this.start[row], this.start[row + 1]);
  }
}

/** The links of one compilation, and the rows that a selection highlights. */
export class Links {
  /** @param {Record<string, any>} part the result of `views/linked` */
  constructor(part) {
    /** @type {Pane[]} */
    this.panes = part.panes;
    this.count = part.up.length;
    this.byId = new Map(this.panes.map((p, i) => [p.id, i]));
    /** Number of the last walk that visited a row: cheaper than a set per walk. */
    this.stamps = new Uint32Array(this.count);
    this.stamp = 0;
    /** @type {number[][]} */
    const up = part.up.map((/** @type {number | number[]} */ u) => (Array.isArray(u) ? u : u < 0 ? [] : [u]));
    this.up = new Edges(this.count, up.flatMap((rows, r) => rows.map((u) => /** @type {[number, number]} */ ([r, u]))));
    this.down = new Edges(this.count, up.flatMap((rows, r) => rows.map((u) => /** @type {[number, number]} */ ([u, r]))));
    /** @type {[string, number[]][]} */
    const callers = Object.entries(part.callers);
    /** @type {Map<number, number[]>} source rows that called the row's own line */
    this.callers = new Map(callers.map(([r, rows]) => [+r, rows]));
    this.called = new Edges(this.count, callers.flatMap(([r, rows]) => rows.map((u) => /** @type {[number, number]} */ ([u, +r]))));
    this.paneOf = new Int16Array(this.count);
    this.panes.forEach((p, i) => this.paneOf.fill(i, p.first, p.first + p.rows));
    this.chains = this.panes.map((p) => this.#chain(p));
    this.ordinal = this.#ordinals(part, up);
  }

  /** Panes from this one up to the source, by number. @param {Pane} pane */
  #chain(pane) {
    const chain = [];
    for (let id = pane.id; id && this.byId.has(id); id = this.panes[chain[chain.length - 1]].parent) chain.push(/** @type {number} */ (this.byId.get(id)));
    return chain;
  }

  /**
   * Each row's source line as its ordinal; 0: compiler-generated, -1: unknown.
   * @param {Record<string, any>} part
   * @param {number[][]} up
   */
  #ordinals(part, up) {
    const ordinal = new Int32Array(this.count).fill(-1);
    for (const [row, n] of Object.entries(part.ordinals)) ordinal[+row] = /** @type {number} */ (n);
    for (let r = 0; r < this.count; r++) {
      if (ordinal[r] > 0) continue;
      const known = up[r].map((u) => ordinal[u]);
      if (known.length) ordinal[r] = known.find((o) => o > 0) ?? Math.max(...known);
      else if (part.labels[r]) ordinal[r] = 0;
    }
    return ordinal;
  }

  /**
   * Rows reached by following edges from `rows`, those included.
   * @param {Edges} edges
   * @param {Iterable<number>} rows
   */
  #reach(edges, rows) {
    const { start, to } = edges, stamp = ++this.stamp;
    const found = [...rows];
    for (const row of found) this.stamps[row] = stamp;
    for (let i = 0; i < found.length; i++) {
      for (let e = start[found[i]]; e < start[found[i] + 1]; e++) {
        if (this.stamps[to[e]] === stamp) continue;
        this.stamps[to[e]] = stamp;
        found.push(to[e]);
      }
    }
    return found;
  }

  /**
   * Highlight levels for a selected row: for each row 0, SAME_LINE (same source line) or LINKED (origin or descendant of the selected row).
   *
   * Ancestor and descendant panes are followed row by row; a sibling pane (TTIR beside PTX) through the nearest common stage.
   * @param {number} row
   */
  select(row) {
    const level = new Uint8Array(this.count);
    const own = this.paneOf[row], triton = this.byId.get("triton");
    const chain = this.chains[own];
    const above = this.#reach(this.up, [row]);
    const source = above.filter((r) => this.paneOf[r] === 0);
    const firsts = own === 0 ? [row, ...this.called.of(row)] : source;
    for (const r of this.#reach(this.down, firsts)) level[r] = SAME_LINE;
    for (const r of above) for (const caller of this.callers.get(r) || []) level[caller] = SAME_LINE;
    for (const r of above) level[r] = LINKED;
    for (const r of this.#reach(this.down, own === 0 ? firsts : [row])) level[r] = LINKED;
    /** @type {Map<number, number[]>} */
    const below = new Map();
    this.panes.forEach((pane, i) => {
      const isOwnMachine = i === own && triton !== undefined && i !== triton && chain.includes(triton);
      if (chain.includes(i) && !isOwnMachine) return;
      const shared = isOwnMachine ? triton : this.chains[i].find((c) => chain.includes(c));
      if (shared === undefined || shared === own) return;
      if (!below.has(shared)) below.set(shared, this.#reach(this.down, above.filter((r) => this.paneOf[r] === shared)));
      for (const r of /** @type {number[]} */ (below.get(shared))) if (this.paneOf[r] === i) level[r] = LINKED;
    });
    return level;
  }

  /** The source row with most rows in the lowest stage that has any: kernels, else graphs; -1 if there is none. */
  busiest() {
    const numbered = new Map();
    for (let row = 0; row < this.panes[0].rows; row++) if (this.ordinal[row] > 0 && !numbered.has(this.ordinal[row])) numbered.set(this.ordinal[row], row);
    for (const id of ["triton", "loop", "decomposed", "aten", "fx", "bytecode"]) {
      const pane = this.panes[this.byId.get(id) ?? -1], counts = new Map();
      for (let r = 0; pane && r < pane.rows; r++) {
        const own = this.ordinal[pane.first + r];
        if (numbered.has(own)) counts.set(own, (counts.get(own) || 0) + 1);
      }
      // The sort is stable: of equal counts the line that is used first comes first.
      const [most] = [...counts].sort(([a, m], [b, n]) => n - m || a - b);
      if (most) return numbered.get(most[0]);
    }
    return -1;
  }

  /**
   * Rows of a pane at a level, relative to the pane.
   * @param {Pane} pane
   * @param {Uint8Array} level
   * @param {number} [wanted]
   */
  hits(pane, level, wanted = LINKED) {
    const rows = [];
    for (let r = 0; r < pane.rows; r++) if (level[pane.first + r] >= wanted) rows.push(r);
    return rows;
  }
}

/**
 * A position that stays valid when more kernels arrive: pane, kernel and row within the kernel.
 * @param {Pane} pane
 * @param {number} row relative to the pane
 */
export function placeOf(pane, row) {
  const segment = pane.segments.find(([, start, end]) => row >= start && row < end);
  return segment ? { pane: pane.id, kernel: segment[0], row: row - segment[1] } : { pane: pane.id, kernel: "", row };
}

/**
 * The row of such a position in newer panes, relative to its pane.
 * @param {Pane[]} panes
 * @param {{pane: string, kernel: string, row: number}} place
 */
export function rowOf(panes, place) {
  const pane = panes.find((p) => p.id === place.pane);
  if (!pane) return -1;
  const segment = pane.segments.find(([kernel]) => kernel === place.kernel);
  const row = place.row + (segment ? segment[1] : 0);
  return Math.min(row, pane.rows - 1);
}
