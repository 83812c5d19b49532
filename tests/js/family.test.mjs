import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { family } = await load("family.js");

// One eager node became two captured ones, of which the second is half of a compiled one; the last compiled row is generated.
const row = (...up) => ["", "", up];
const PANES = [[row(), row()], [row(0), row(0), row(1), row()], [row(1, 2), row()]].map((rows) => ({ rows }));
const lit = (pane, at) => family(PANES, pane, at).map((s) => [...s].sort());

test("a row lights up what it came from and what came of it", () => {
  assert.deepEqual(lit(0, 0), [[0], [0, 1], [0]]);
  assert.deepEqual(lit(1, 2), [[1], [2], [0]]);
  assert.deepEqual(lit(2, 0), [[0, 1], [1, 2], [0]]);
});

test("a generated row stands alone", () => {
  assert.deepEqual(lit(2, 1), [[], [], [1]]);
  assert.deepEqual(lit(1, 3), [[], [3], []]);
});
