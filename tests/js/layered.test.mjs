import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { boxOf, closedAtFirst, drawnEdges, hiddenIn, nesting, places, rewrites } = await load("layered.js");
const node = (path, isInput = false) => ({ path: path ? path.split(".") : [], isInput });
const overlap = (p, q) => p.x < q.x + q.width && q.x < p.x + p.width && p.y < q.y + q.height && q.y < p.y + p.height;

// x, w -> a.l1 -> a.l2 -> top -> a.l3 (a second call) -> out
const NODES = [node("", true), node("", true), node("a.b"), node("a.b"), node(""), node("a"), node("")];
const EDGES = [[0, 2], [1, 3], [2, 3], [3, 4], [4, 5], [5, 6], [2, 6]];

function whole(nodes, edges, closed) {
  const { groups, groupOf } = nesting(nodes, edges);
  const shut = closed || new Set();
  return { groups, groupOf, picture: places(nodes, edges, groups, groupOf, shut), hidden: hiddenIn(groups, groupOf, shut) };
}

test("nodes of one call stand together; a module called twice is two groups; an input joins its first reader", () => {
  const { groups, groupOf } = nesting(NODES, EDGES);
  assert.deepEqual(groups.map((g) => [g.label, g.nodes]), [["a.b", [0, 1, 2, 3]], ["a", [5]]]);
  assert.deepEqual([...groupOf], [0, 0, 0, 0, -1, 1, -1]);
  const two = nesting([node("", true), node("a.b"), node("a.c"), node("d")], [[0, 1], [0, 2], [2, 3]]);
  assert.deepEqual([two.groups.map((g) => g.label), [...two.groupOf]], [["a", "b", "c", "d"], [1, 1, 2, 3]]);
});

test("boxes of a rank do not overlap, a group holds what is in it, readers stand below what they read", () => {
  const { groups, picture } = whole(NODES, EDGES);
  const boxes = picture.nodes;
  for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) assert.ok(!overlap(boxes[i], boxes[j]));
  for (const [a, b] of EDGES) assert.ok(boxes[a].y + boxes[a].height <= boxes[b].y);
  groups.forEach((g, i) => { for (const n of g.nodes) assert.ok(boxes[n].x >= picture.groups[i].x && boxes[n].y + boxes[n].height <= picture.groups[i].y + picture.groups[i].height); });
  for (const box of [...boxes, ...picture.groups]) assert.ok(box.x >= 0 && box.x + box.width <= picture.width && box.y + box.height <= picture.height);
});

test("a closed group is one box, and edges to its nodes are its own", () => {
  const { picture, hidden } = whole(NODES, EDGES, new Set([0]));
  assert.deepEqual(Array.from(picture.nodes, Boolean), [false, false, false, false, true, true, true]);
  assert.deepEqual(Array.from(picture.groups, Boolean), [true, true]);
  const drawn = drawnEdges(picture, EDGES, hidden);
  assert.deepEqual([...drawn.edges, ...drawn.pins].sort(), [[4, 5], [5, 6], [7, 4], [7, 6]]);
  for (const [a, b] of drawn.edges) assert.ok(boxOf(picture, a) && boxOf(picture, b));
});

test("large graphs begin closed, opened as far as few boxes are drawn; small ones begin open", () => {
  const nodes = Array.from({ length: 600 }, (_, i) => node(`m.layer${Math.floor(i / 50)}.part${Math.floor(i / 10)}`));
  const edges = nodes.slice(1).map((_, i) => [i, i + 1]);
  const { groups, groupOf } = nesting(nodes, edges);
  const closed = closedAtFirst(groups, nodes.length, groupOf);
  const { picture } = whole(nodes, edges, closed);
  const drawn = picture.nodes.filter(Boolean).length + [...closed].filter((g) => picture.groups[g]).length;
  assert.ok(drawn > 10 && drawn <= 40, String(drawn));
  assert.equal(closedAtFirst(groups, 60, groupOf).size, 0);
});

test("a joint graph of ten thousand nodes, each forward node read far below, is placed in well under a second", () => {
  const half = 5_000, nodes = Array.from({ length: 2 * half }, (_, i) => node(`h.${Math.floor((i < half ? i : 2 * half - i) / 50)}`, false));
  const edges = [];
  for (let i = 1; i < 2 * half; i++) edges.push([i - 1, i]);
  for (let i = 0; i < half; i++) edges.push([i, 2 * half - 1 - i]);
  const start = performance.now();
  const { picture, hidden } = whole(nodes, edges);
  const drawn = drawnEdges(picture, edges, hidden);
  assert.ok(performance.now() - start < 900);
  assert.ok(drawn.pins.length > 4_900);
});

test("hundreds of inputs of one reader wrap into rows", () => {
  const nodes = [...Array.from({ length: 300 }, () => node("", true)), node("")];
  const { picture } = whole(nodes, Array.from({ length: 300 }, (_, i) => [i, 300]));
  assert.ok(picture.width < 8 * 200);
});

test("each node of the stage before is followed to what became of it; the rest was made by the compiler", () => {
  const steps = rewrites([false, false, false, true], [[0], [0, 2], [], [3]], () => false);
  assert.deepEqual(steps, [{ before: 0, after: [0, 1] }, { before: 1, after: [] }, { before: 2, after: [1] }, { before: -1, after: [2] }]);
  assert.deepEqual(rewrites([false, false], [[0], [1]], (before) => before === 0), [{ before: 1, after: [1] }]); // what a pass left is no rewrite
});
