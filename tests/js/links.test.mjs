import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { LINKED, Links, SAME_LINE, placeOf, rowOf } = await load("links.js");

/** Panes from [id, parent, rows], laid out one after another. */
function structure(panes, up, more = {}) {
  let first = 0;
  const made = panes.map(([id, parent, rows]) => {
    const pane = { id, parent, rows, first, lines: rows, heads: [], segments: [] };
    first += rows;
    return pane;
  });
  return { panes: made, up, callers: {}, ordinals: {}, labels: [], ...more };
}

// Two source lines, two fx nodes, three aten nodes (the last generated), two Triton lines, three PTX lines, two TTIR lines.
const PART = structure(
  [["source", "", 2], ["fx", "source", 2], ["aten", "fx", 3], ["triton", "aten", 2], ["ttir", "triton", 2], ["ptx", "triton", 3]],
  [-1, -1, 0, 1, 2, 3, -1, [4, 5], 6, 7, 8, 7, 7, 8],
  { ordinals: { 0: 1, 1: 2 }, labels: [0, 0, 0, 0, 0, 0, 1] },
);
const rows = (links, level, id) => links.hits(links.panes.find((p) => p.id === id), level);

test("a source line lights up everything that came of it", () => {
  const links = new Links(PART), level = links.select(0);
  assert.deepEqual(["fx", "aten", "triton", "ttir", "ptx"].map((id) => rows(links, level, id)), [[0], [0], [0], [0], [0, 1]]);
  assert.equal(level[1], 0);
});

test("a machine line lights up its chain upwards, and other stages of the same Triton line", () => {
  const links = new Links(PART), level = links.select(11);
  assert.deepEqual(["source", "fx", "aten", "triton", "ttir", "ptx"].map((id) => rows(links, level, id)), [[0, 1], [0, 1], [0, 1], [0], [0], [0, 1]]);
});

test("what shares only the source line is marked weaker than what is on the chain", () => {
  const part = structure([["source", "", 1], ["fx", "source", 2], ["aten", "fx", 2]], [-1, 0, 0, 1, 2], { ordinals: { 0: 1 } });
  const level = new Links(part).select(1);
  assert.deepEqual([...level], [LINKED, LINKED, SAME_LINE, LINKED, SAME_LINE]);
});

test("an ATen node that was not lowered does not borrow its sibling's kernel lines", () => {
  const part = structure([["source", "", 1], ["fx", "source", 1], ["aten", "fx", 2], ["triton", "aten", 1]], [-1, 0, 1, 1, 2], { ordinals: { 0: 1 } });
  const links = new Links(part);
  assert.deepEqual(rows(links, links.select(3), "triton"), []);
});

test("rows without a user line are 0 where a reason is known and -1 where nothing is", () => {
  const links = new Links(PART);
  assert.equal(links.ordinal[6], 0);
  assert.equal(links.ordinal[13], 0);
  assert.equal(links.ordinal[7], 1);
  const bare = structure([["source", "", 1], ["fx", "source", 1]], [-1, -1]);
  assert.deepEqual([...new Links(bare).ordinal], [-1, -1]);
});

test("a line that calls an inlined function lights up the function's nodes, and they light it up weakly", () => {
  const part = structure([["source", "", 2], ["fx", "source", 1]], [-1, -1, 0], { ordinals: { 0: 2, 1: 1 }, callers: { 2: [1] } });
  const links = new Links(part);
  assert.deepEqual(rows(links, links.select(1), "fx"), [0]);
  assert.equal(links.select(2)[1], SAME_LINE);
});

test("ten thousand lines are lit up in less than 50 ms", () => {
  const n = 10_000, lines = 100;
  const up = [...Array(lines).fill(-1), ...Array.from({ length: lines }, (_, i) => i), ...Array.from({ length: lines }, (_, i) => lines + i), ...Array.from({ length: n }, (_, i) => 2 * lines + Math.floor((i * lines) / n))];
  const ordinals = Object.fromEntries(Array.from({ length: lines }, (_, i) => [i, i + 1]));
  const links = new Links(structure([["source", "", lines], ["fx", "source", lines], ["triton", "fx", lines], ["ptx", "triton", n]], up, { ordinals }));
  links.select(0);
  const start = performance.now();
  for (let i = 0; i < 20; i++) links.select(i * 3);
  const each = (performance.now() - start) / 20;
  assert.ok(each < 50, `${each} ms`);
});

test("a place survives when another kernel's lines arrive before it", () => {
  const before = { id: "ptx", rows: 3, segments: [["k1", 0, 3]] };
  const after = { id: "ptx", rows: 8, segments: [["k0", 0, 5], ["k1", 5, 8]] };
  assert.equal(rowOf([after], placeOf(before, 2)), 7);
});

test("the first selection is the line with most rows in the kernels, never one that no kernel came of", () => {
  // Line 1 has the first operation and most graph nodes, line 2 most Triton rows.
  const part = structure(
    [["source", "", 2], ["fx", "source", 3], ["aten", "fx", 3], ["triton", "aten", 2]],
    [-1, -1, 0, 0, 1, 2, 3, 4, 7, 7],
    { ordinals: { 0: 1, 1: 2 } },
  );
  assert.equal(new Links(part).busiest(), 1);
  const graphOnly = structure([["source", "", 2], ["fx", "source", 3]], [-1, -1, 0, 1, 1], { ordinals: { 0: 1, 1: 2 } });
  assert.equal(new Links(graphOnly).busiest(), 1);
  assert.equal(new Links(structure([["source", "", 1]], [-1])).busiest(), -1);
});
