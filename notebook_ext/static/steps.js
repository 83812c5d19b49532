// The tracer's steps. The state after any step is rebuilt from the columns, so stepping back is exact. No DOM here.

/**
 * What the kernel sends; see views/tracer_steps.py.
 * @typedef {object} TracerPart
 * @property {number} count
 * @property {number[]} frame
 * @property {number[]} depth
 * @property {number[]} op
 * @property {number[]} event
 * @property {number[]} stack
 * @property {number[]} caller
 * @property {number[][]} locals
 * @property {[number, number][]} nodes
 * @property {[number, number][]} guards
 * @property {[number, number][]} effects
 * @property {number[][]} ops
 * @property {number[][]} cells
 * @property {string[]} strings
 * @property {string[]} codes
 */

/**
 * A value as it is shown.
 * @typedef {object} Shown
 * @property {string} text
 * @property {string} node graph node that computes it, "" for none
 * @property {boolean} isNew since the step before
 */

export const EVENT = { inline: 1, return: 2, raise: 3, break: 4 };

/**
 * How many of the ascending `steps` are at most `k`.
 * @param {number[]} steps
 * @param {number} k
 */
export function countUpTo(steps, k) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= k) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Positions of ticks on a line of `bins` positions, each once.
 * @param {number[]} steps
 * @param {number} count
 * @param {number} bins
 */
export function tickPlaces(steps, count, bins) {
  const scale = Math.max(1, count - 1);
  return [...new Set(steps.map((k) => Math.round((k / scale) * bins)))].map((bin) => bin / bins);
}

export class Timeline {
  /** @param {TracerPart} part */
  constructor(part) {
    this.part = part;
    this.count = part.count;
    this.nodeSteps = part.nodes.map(([k]) => k);
    this.guardSteps = part.guards.map(([k]) => k);
    this.effectSteps = part.effects.map(([k]) => k);
    /** Steps that add a graph operation, inlined calls in and out, and breaks. */
    this.opSteps = [...new Set(this.nodeSteps)];
    /** @type {number[]} */
    this.inSteps = [];
    /** @type {number[]} */
    this.outSteps = [];
    /** @type {number[]} */
    this.breakSteps = [];
    for (let k = 0; k < this.count; k++) {
      const change = k + 1 < this.count ? part.depth[k + 1] - part.depth[k] : 0;
      if (change > 0) this.inSteps.push(k);
      else if (change < 0) this.outSteps.push(k);
      // A break unwinds every waiting frame; the break itself is the step that nothing follows.
      if (part.event[k] === EVENT.break && k === this.count - 1) this.breakSteps.push(k);
    }
    /** Changes of variables by frame, in order. @type {Map<number, number[][]>} */
    this.changes = new Map();
    for (const change of part.locals) {
      const known = this.changes.get(change[1]);
      if (known) known.push(change);
      else this.changes.set(change[1], [change]);
    }
    /** @type {Map<string, number>} */
    this.makers = new Map();
    for (const [k, name] of part.nodes) if (!this.makers.has(part.strings[name])) this.makers.set(part.strings[name], k);
  }

  /** The frame that executes next, whose state is shown after step `k`. @param {number} k */
  shown(k) {
    return this.part.frame[Math.min(k + 1, this.count - 1)];
  }

  /** The instruction of a step: [code, offset, name, argument, row, line, from, to]. @param {number} k */
  op(k) {
    return this.part.ops[this.part.op[k]];
  }

  /** Name of the function that a step belongs to. @param {number} k */
  codeName(k) {
    return this.part.codes[this.op(k)[0]];
  }

  /** An instruction in words. @param {number} k */
  words(k) {
    const [, , name, argument] = this.op(k), { strings } = this.part;
    return (strings[name] + " " + strings[argument]).trim();
  }

  /** Cells of a stack, bottom first. @param {number} cell @returns {number[]} */
  #cells(cell) {
    const found = [];
    for (let at = cell; at >= 0; at = this.part.cells[at][0]) found.push(at);
    return found.reverse();
  }

  /** The last step before `k` after which the same frame was shown, -1 for none. @param {number} k */
  #before(k) {
    const frame = this.shown(k);
    let at = k - 1;
    while (at >= 0 && this.shown(at) !== frame) at--;
    return at;
  }

  /** The stack after step `k`, bottom first. @param {number} k @returns {Shown[]} */
  stack(k) {
    const before = this.#before(k), old = before < 0 ? [] : this.#cells(this.part.stack[before]);
    return this.#cells(this.part.stack[k]).map((cell, i) => {
      const [, text, node] = this.part.cells[cell];
      return { text: this.part.strings[text], node: node < 0 ? "" : this.part.strings[node], isNew: cell !== old[i] };
    });
  }

  /** The step that put the value at `place` (counted from the bottom) on the stack that is shown after step `k`. @param {number} k @param {number} place */
  pushedBy(k, place) {
    const wanted = this.#cells(this.part.stack[k])[place], frame = this.shown(k);
    let found = k;
    for (let at = k - 1; at >= 0; at--) {
      if (this.shown(at) !== frame) continue;
      if (this.#cells(this.part.stack[at])[place] !== wanted) break;
      found = at;
    }
    return found;
  }

  /** Variables after step `k` of the frame that is shown, by name, with the step that bound each. @param {number} k @returns {Map<string, Shown & {step: number}>} */
  locals(k) {
    const { strings } = this.part, frame = this.shown(k), before = this.#before(k), found = new Map();
    for (const [step, , name, text, node] of this.changes.get(frame) || []) {
      if (step > k) break;
      if (text < 0) found.delete(strings[name]);
      else found.set(strings[name], { text: strings[text], node: node < 0 ? "" : strings[node], isNew: step > before, step });
    }
    return found;
  }

  /** Frames after step `k`, innermost first: function name, line, and the step that sets the line. @param {number} k */
  frames(k) {
    const next = Math.min(k + 1, this.count - 1);
    const found = [{ name: this.codeName(next), line: this.op(next)[5], step: next }];
    for (let at = this.part.caller[k]; at >= 0; at = at ? this.part.caller[at - 1] : -1) found.push({ name: this.codeName(at), line: this.op(at)[5], step: at });
    return found;
  }

  /** The next of `steps` after or before `k`, -1 for none. @param {number[]} steps @param {number} k @param {number} direction */
  next(steps, k, direction) {
    if (direction > 0) return steps[countUpTo(steps, k)] ?? -1;
    return steps[countUpTo(steps, k - 1) - 1] ?? -1;
  }

  /** The next step on another source line, -1 for none; going back, the first step on the line. @param {number} k @param {number} direction */
  line(k, direction) {
    const isSame = (/** @type {number} */ a, /** @type {number} */ b) => this.op(a)[5] === this.op(b)[5] && this.part.frame[a] === this.part.frame[b];
    let at = k + direction;
    while (at >= 0 && at < this.count && isSame(at, k)) at += direction;
    if (at < 0) return k > 0 ? 0 : -1;
    if (at >= this.count) return -1;
    if (direction < 0) while (at > 0 && isSame(at - 1, at)) at--;
    return at;
  }

  /** The first step inside the next inlined call, -1 for none. @param {number} k */
  into(k) {
    const found = this.next(this.inSteps, k - 1, 1);
    return found < 0 ? -1 : found + 1;
  }

  /** The first step after the frame of step `k` returned; -1 if it never does. @param {number} k */
  out(k) {
    const depth = this.part.depth[k];
    for (let at = k + 1; at < this.count; at++) if (this.part.depth[at] < depth) return at;
    return -1;
  }

  /** The next step on one of the rows in `rows`, coming from another line; -1 for none. @param {number} k @param {Set<number>} rows @param {number} direction */
  stop(k, rows, direction) {
    for (let at = k + direction; at >= 0 && at < this.count; at += direction) {
      const row = this.op(at)[4];
      if (rows.has(row) && (at === 0 || this.op(at - 1)[4] !== row)) return at;
    }
    return -1;
  }
}
