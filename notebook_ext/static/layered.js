// Linear-time layout of a graph whose nodes are nested in calls. No DOM here.

/**
 * @typedef {object} Node the layout's fields of a node; more are allowed
 * @property {boolean} isInput a placeholder or a constant
 * @property {string[]} path of the calls that made it, outermost first
 *
 * @typedef {object} Group one call: a run of adjacent nodes of the graph
 * @property {string} label
 * @property {string} path
 * @property {number} parent -1 at the top
 * @property {number} depth
 * @property {number[]} nodes all inside, in order
 * @property {number[]} groups
 *
 * @typedef {object} Box a node's or a group's place
 * @property {number} x @property {number} y @property {number} width @property {number} height
 *
 * @typedef {object} Picture
 * @property {(Box | undefined)[]} nodes undefined inside a closed group
 * @property {(Box | undefined)[]} groups undefined inside a closed one
 * @property {number} width @property {number} height
 */

export const NODE = { width: 168, height: 34 };
const GAP = { x: 22, y: 26 };
const PAD = { x: 10, top: 24, bottom: 12 };
/** Wider ranks (hundreds of parameters) wrap into several rows. */
const PER_ROW = 8;
/** An edge longer than this is drawn as two pins with one name. */
export const LONG = 250;

/**
 * The tree of calls that contain the nodes. A module that is called twice has two groups. An input belongs to the group
 * of its first user: edges are in the order of users.
 * @param {Node[]} nodes @param {[number, number][]} edges
 * @returns {{groups: Group[], groupOf: Int32Array}}
 */
export function nesting(nodes, edges) {
  /** @type {Group[]} */
  const groups = [];
  const groupOf = new Int32Array(nodes.length).fill(-1);
  /** @type {number[]} */
  let open = [];
  nodes.forEach((node, i) => {
    if (node.isInput) return;
    let shared = 0;
    while (shared < open.length && shared < node.path.length && groups[open[shared]].path === node.path.slice(0, shared + 1).join(".")) shared++;
    open = open.slice(0, shared);
    for (let d = shared; d < node.path.length; d++) {
      const parent = d ? open[d - 1] : -1;
      groups.push({ label: node.path[d], path: node.path.slice(0, d + 1).join("."), parent, depth: d, nodes: [], groups: [] });
      if (parent >= 0) groups[parent].groups.push(groups.length - 1);
      open.push(groups.length - 1);
    }
    groupOf[i] = open.length ? open[open.length - 1] : -1;
  });
  const isPlaced = new Set();
  for (const [from, to] of edges) {
    if (!nodes[from].isInput || isPlaced.has(from)) continue;
    isPlaced.add(from);
    groupOf[from] = groupOf[to];
  }
  const found = joined(groups, groupOf);
  nodes.forEach((_, i) => { for (let g = found.groupOf[i]; g >= 0; g = found.groups[g].parent) found.groups[g].nodes.push(i); });
  return found;
}

/**
 * Merge groups that contain only one group: `h` that contains only `0` becomes `h.0`.
 * @param {Group[]} groups @param {Int32Array} groupOf
 */
function joined(groups, groupOf) {
  const own = new Set(groupOf), number = new Map();
  const isShell = groups.map((g, i) => g.groups.length === 1 && !own.has(i));
  /** @type {Group[]} */
  const kept = [];
  groups.forEach((g, i) => {
    if (isShell[i]) return;
    let { label } = g, up = g.parent;
    for (; up >= 0 && isShell[up]; up = groups[up].parent) label = groups[up].label + "." + label;
    const parent = up >= 0 ? number.get(up) : -1;
    number.set(i, kept.length);
    if (parent >= 0) kept[parent].groups.push(kept.length);
    kept.push({ ...g, label, parent, depth: parent >= 0 ? kept[parent].depth + 1 : 0, groups: [], nodes: [] });
  });
  return { groups: kept, groupOf: groupOf.map((g) => (g >= 0 ? number.get(g) : -1)) };
}

/**
 * Groups that are closed at first: open groups from the outside while at most `most` boxes are drawn.
 * @param {Group[]} groups @param {number} count of nodes @param {Int32Array} groupOf @param {number} [most]
 */
export function closedAtFirst(groups, count, groupOf, most = 40) {
  /** @type {Set<number>} */
  const closed = new Set();
  if (count <= 60) return closed;
  groups.forEach((_, i) => closed.add(i));
  const own = new Int32Array(groups.length);
  let drawn = 0;
  for (const g of groupOf) {
    if (g >= 0) own[g]++;
    else drawn++;
  }
  let queue = groups.flatMap((g, i) => (g.parent < 0 ? [i] : []));
  drawn += queue.length;
  while (queue.length) {
    const [first, ...rest] = queue, more = own[first] + groups[first].groups.length - 1;
    if (drawn + more > most) break;
    drawn += more;
    closed.delete(first);
    queue = [...rest, ...groups[first].groups];
  }
  return closed;
}

/**
 * The outermost closed group around each node; -1 if the node is drawn.
 * @param {Group[]} groups @param {Int32Array} groupOf @param {Set<number>} closed
 */
export function hiddenIn(groups, groupOf, closed) {
  const of = groups.map((g, i) => i);
  groups.forEach((g, i) => { of[i] = g.parent >= 0 && of[g.parent] !== -1 ? of[g.parent] : closed.has(i) ? i : -1; });
  return Int32Array.from(groupOf, (g) => (g >= 0 ? of[g] : -1));
}

/**
 * Positions of all drawn boxes: rank by rank from the top; the nodes of an open call are inside its box.
 * @param {Node[]} nodes @param {[number, number][]} edges @param {Group[]} groups @param {Int32Array} groupOf @param {Set<number>} closed
 * @returns {Picture}
 */
export function places(nodes, edges, groups, groupOf, closed) {
  const hidden = hiddenIn(groups, groupOf, closed);
  /** An item is a node (its number) or a group (`nodes.length` plus its number). */
  const item = (/** @type {number} */ i) => (hidden[i] >= 0 ? nodes.length + hidden[i] : i);
  const parentOf = (/** @type {number} */ id) => (id < nodes.length ? groupOf[id] : groups[id - nodes.length].parent);
  const depthOf = (/** @type {number} */ g) => (g < 0 ? 0 : groups[g].depth + 1);
  /** @type {Map<number, number[]>} */
  const children = new Map();
  const seen = new Set();
  const add = (/** @type {number} */ id) => {
    if (seen.has(id)) return;
    seen.add(id);
    const parent = parentOf(id);
    if (parent >= 0) add(nodes.length + parent);
    const list = children.get(parent);
    if (list) list.push(id);
    else children.set(parent, [id]);
  };
  // A call is placed at its first operation, so inputs of a node always come before it.
  nodes.forEach((n, i) => n.isInput || add(item(i)));
  nodes.forEach((n, i) => n.isInput && add(item(i)));
  /** Inputs of each item; both are lifted to children of one parent. @type {Map<number, Set<number>>} */
  const reads = new Map();
  for (const [from, to] of edges) {
    let a = item(from), b = item(to);
    if (a === b) continue;
    while (parentOf(a) !== parentOf(b)) {
      if (depthOf(parentOf(a)) >= depthOf(parentOf(b))) a = nodes.length + parentOf(a);
      else b = nodes.length + parentOf(b);
    }
    if (a === b) continue;
    const list = reads.get(b);
    if (list) list.add(a);
    else reads.set(b, new Set([a]));
  }
  /** @type {Picture} */
  const picture = { nodes: new Array(nodes.length), groups: new Array(groups.length), width: 0, height: 0 };
  const isInput = (/** @type {number} */ id) => id < nodes.length && nodes[id].isInput;
  /** Lay out the children of a group with its top left at (0, 0); returns its size. @param {number} group @returns {{width: number, height: number, moves: (dx: number, dy: number) => void}} */
  const inside = (group) => {
    const order = children.get(group) || [];
    const sizes = new Map(order.map((id) => [id, id >= nodes.length && !closed.has(id - nodes.length) ? inside(id - nodes.length) : null]));
    const rank = ranks(order, reads, isInput);
    /** @type {number[][]} */
    const rows = [];
    for (const id of order) (rows[/** @type {number} */ (rank.get(id))] ||= []).push(id);
    /** @type {Map<number, Box>} */
    const boxes = new Map();
    let y = 0, width = 0;
    for (const row of rows) {
      if (!row) continue;
      const wanted = new Map(row.map((id) => [id, wish(id, reads, boxes, isInput)]));
      const sorted = [...row].sort((p, q) => /** @type {number} */ (wanted.get(p)) - /** @type {number} */ (wanted.get(q)));
      for (let start = 0; start < sorted.length; start += PER_ROW) {
        let x = 0, height = 0;
        for (const id of sorted.slice(start, start + PER_ROW)) {
          const size = sizes.get(id) || NODE, middle = /** @type {number} */ (wanted.get(id));
          if (middle < Infinity && sorted.length <= PER_ROW) x = Math.max(x, middle - size.width / 2);
          boxes.set(id, { x, y, width: size.width, height: size.height });
          width = Math.max(width, x + size.width);
          height = Math.max(height, size.height);
          x += size.width + GAP.x;
        }
        y += height + GAP.y;
      }
    }
    const pad = group < 0 ? { x: 0, top: 0, bottom: 0 } : PAD;
    const moves = (/** @type {number} */ dx, /** @type {number} */ dy) => {
      for (const [id, box] of boxes) {
        const placed = { ...box, x: box.x + dx + pad.x, y: box.y + dy + pad.top };
        if (id < nodes.length) picture.nodes[id] = placed;
        else picture.groups[id - nodes.length] = placed;
        sizes.get(id)?.moves(placed.x, placed.y);
      }
    };
    return { width: width + 2 * pad.x, height: Math.max(0, y - GAP.y) + pad.top + pad.bottom, moves };
  };
  const whole = inside(-1);
  whole.moves(0, 0);
  return { ...picture, width: whole.width, height: whole.height };
}

/**
 * Depth of each item among its siblings; inputs are just above their first user.
 * @param {number[]} order @param {Map<number, Set<number>>} reads @param {(id: number) => boolean} isInput
 */
function ranks(order, reads, isInput) {
  /** @type {Map<number, number>} */
  const rank = new Map(), first = new Map();
  for (const id of order) {
    let own = 0;
    for (const read of reads.get(id) || []) own = Math.max(own, isInput(read) ? 1 : (rank.get(read) ?? -1) + 1);
    rank.set(id, own);
    for (const read of reads.get(id) || []) if (isInput(read)) first.set(read, Math.min(first.get(read) ?? Infinity, own));
  }
  for (const [id, reader] of first) rank.set(id, Math.max(0, reader - 1));
  return rank;
}

/**
 * Preferred center of an item: below its inputs, placeholders excluded; at the end if it has none.
 * @param {number} id @param {Map<number, Set<number>>} reads @param {Map<number, Box>} boxes @param {(id: number) => boolean} isInput
 */
function wish(id, reads, boxes, isInput) {
  let sum = 0, count = 0, inputs = 0, inputSum = 0;
  for (const read of reads.get(id) || []) {
    const box = boxes.get(read);
    if (!box) continue;
    const middle = box.x + box.width / 2;
    if (isInput(read)) [inputs, inputSum] = [inputs + 1, inputSum + middle];
    else [count, sum] = [count + 1, sum + middle];
  }
  return count ? sum / count : inputs ? inputSum / inputs : Infinity;
}

/**
 * Edges between drawn boxes, each once: [from, to] as box numbers (`nodes.length` plus the group for a closed one); long ones as pins.
 * @param {Picture} picture @param {[number, number][]} edges @param {Int32Array} hidden
 * @returns {{edges: [number, number][], pins: [number, number][]}}
 */
export function drawnEdges(picture, edges, hidden) {
  const count = picture.nodes.length, seen = new Set();
  /** @type {[number, number][]} */
  const short = [];
  /** @type {[number, number][]} */
  const pins = [];
  for (const [from, to] of edges) {
    const a = hidden[from] >= 0 ? count + hidden[from] : from, b = hidden[to] >= 0 ? count + hidden[to] : to;
    const name = a * 1e6 + b;
    if (a === b || seen.has(name)) continue;
    seen.add(name);
    const p = boxOf(picture, a), q = boxOf(picture, b);
    if (p && q) (q.y - p.y - p.height > LONG ? pins : short).push([a, b]);
  }
  return { edges: short, pins };
}

/**
 * The picture with positions from another program, all calls open: a frame around the nodes of each call.
 * @param {{nodes: [number, number][], width: number, height: number}} placed @param {Group[]} groups @param {Int32Array} groupOf
 * @returns {Picture}
 */
export function framed(placed, groups, groupOf) {
  const nodes = placed.nodes.map(([x, y]) => ({ x, y, ...NODE }));
  /** @type {Box[][]} */
  const inside = groups.map(() => []);
  groupOf.forEach((g, i) => { if (g >= 0) inside[g].push(nodes[i]); });
  /** @type {Box[]} */
  const frames = new Array(groups.length);
  for (let g = groups.length - 1; g >= 0; g--) { // inner calls come after outer ones
    const x = Math.min(...inside[g].map((b) => b.x)) - PAD.x, y = Math.min(...inside[g].map((b) => b.y)) - PAD.top;
    frames[g] = { x, y, width: Math.max(...inside[g].map((b) => b.x + b.width)) + PAD.x - x, height: Math.max(...inside[g].map((b) => b.y + b.height)) + PAD.bottom - y };
    if (groups[g].parent >= 0) inside[groups[g].parent].push(frames[g]);
  }
  return { nodes, groups: frames, width: placed.width, height: placed.height };
}

/** Position of a box by its number. @param {Picture} picture @param {number} id */
export function boxOf(picture, id) {
  return id < picture.nodes.length ? picture.nodes[id] : picture.groups[id - picture.nodes.length];
}

/**
 * The nodes that each operation of the previous stage became, in its order; last, the nodes without an origin.
 * @param {boolean[]} isInput for each previous node; inputs do not change
 * @param {number[][]} from for each new node, its origins
 * @param {(before: number, after: number) => boolean} isSame true for a node that a pass left as it was
 * @returns {{before: number, after: number[]}[]} before is -1 for nodes without an origin
 */
export function rewrites(isInput, from, isSame) {
  /** @type {{before: number, after: number[]}[]} */
  const steps = isInput.map((_, before) => ({ before, after: [] }));
  /** @type {number[]} */
  const made = [];
  from.forEach((origins, i) => {
    if (origins.length) for (const o of origins) steps[o].after.push(i);
    else made.push(i);
  });
  const operations = steps.filter((s) => !isInput[s.before] && !(s.after.length === 1 && isSame(s.before, s.after[0])));
  return made.length ? [...operations, { before: -1, after: made }] : operations;
}
