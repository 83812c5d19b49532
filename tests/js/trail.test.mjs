import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { Trail } = await load("trail.js");
const { foundIn } = await load("search.js");

test("the trail goes back and forth, and forgets what lay ahead when something new is selected", () => {
  const trail = new Trail();
  for (const place of ["a", "b", "b", "c"]) trail.add(place);
  assert.deepEqual([trail.go(-1), trail.go(-1), trail.go(-1), trail.go(1)], ["b", "a", undefined, "b"]);
  trail.add("d");
  assert.equal(trail.go(1), undefined);
  assert.equal(trail.go(-1), "b");
});

test("the trail keeps the newest five hundred places", () => {
  const trail = new Trail();
  for (let i = 0; i < 600; i++) trail.add(String(i));
  assert.equal(trail.past.length, 500);
  assert.equal(trail.here, "599");
});

const ROWS = [["node", "add_1", "aten: add_1 = aten.add(x, y)"], ["node", "add", "fx: add = x + y"], ["guard", "x shape", "[4, 16]"], ["line", "y = add(x, 1)", "line 3 of cell 1"]];

test("every word must be in a row; a name that is what was typed comes first, then one that begins with it", () => {
  assert.deepEqual(foundIn(ROWS, "add", 10).found, [1, 0, 3]);
  assert.deepEqual(foundIn(ROWS, "GUARD 16", 10).found, [2]);
  assert.deepEqual(foundIn(ROWS, "nothing like it", 10), { found: [], count: 0 });
});

test("without words everything is there, and what is too much is counted", () => {
  assert.deepEqual(foundIn(ROWS, "  ", 2), { found: [0, 1], count: 4 });
  assert.deepEqual(foundIn(ROWS, "add", 1), { found: [1], count: 3 });
});
