import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { changedColumns, changeStarts, folded, matches, sideBySide } = await load("diff.js");

/** A number between 0 and 1 from the one before: the same on every run. */
let seed = 7;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const lines = (count, kinds) => Array.from({ length: count }, () => "l" + Math.floor(random() * kinds));

/** The length of the longest common subsequence, by the textbook. */
function longest(a, b) {
  const row = new Array(b.length + 1).fill(0);
  for (const x of a) {
    let corner = 0;
    b.forEach((y, j) => {
      const above = row[j + 1];
      row[j + 1] = x === y ? corner + 1 : Math.max(above, row[j]);
      corner = above;
    });
  }
  return row[b.length];
}

test("both texts come back whole and in order, whatever they are", () => {
  for (let round = 0; round < 200; round++) {
    const a = lines(Math.floor(random() * 30), 6), b = lines(Math.floor(random() * 30), 6);
    const rows = sideBySide(a, b);
    assert.deepEqual(rows.filter((r) => r.a >= 0).map((r) => r.a), a.map((_, i) => i));
    assert.deepEqual(rows.filter((r) => r.b >= 0).map((r) => r.b), b.map((_, i) => i));
    for (const row of rows) if (row.kind === "same") assert.equal(a[row.a], b[row.b]);
  }
});

test("as many lines as possible are equal, where no line is unique", () => {
  for (let round = 0; round < 100; round++) {
    const a = lines(40, 4), b = lines(40, 4);
    if (a.some((l) => a.filter((x) => x === l).length === 1)) continue;
    assert.equal(matches(a, b).reduce((n, run) => n + run[2], 0), longest(a, b));
  }
});

test("an inserted, a removed and a replaced line are told apart", () => {
  assert.deepEqual(sideBySide(["a", "b", "c", "d"], ["a", "x", "c", "new", "d"]).map((r) => r.kind), ["same", "changed", "same", "right", "same"]);
  assert.deepEqual(sideBySide(["a", "b"], ["a"]).map((r) => r.kind), ["same", "left"]);
  assert.deepEqual(sideBySide([], []), []);
});

test("a line that only numbers its names otherwise is no change, as long as one renaming explains it", () => {
  const a = ["mul_4 = mul(x, 2)", "mul_5 = mul(y, 3)", "out = add(mul_5, x)"], b = ["mul_2 = mul(y, 3)", "out = add(mul_2, x)"];
  assert.deepEqual(sideBySide(a, b).map((r) => r.kind), ["left", "renamed", "renamed"]);
  const swapped = sideBySide(["a_1 = f(x)", "a_2 = g(x)", "return a_1"], ["a_1 = f(x)", "a_2 = g(x)", "return a_2"]);
  assert.deepEqual(swapped.map((r) => r.kind), ["same", "same", "changed"]);
});

test("long runs of equal lines are folded and counted, changes keep some around them", () => {
  const a = Array.from({ length: 30 }, (_, i) => "l" + i), b = a.with(15, "new");
  const rows = folded(sideBySide(a, b));
  assert.deepEqual(rows.filter((r) => typeof r === "number"), [12, 11]);
  assert.equal(rows.length, 9);
  assert.deepEqual(changeStarts(rows), [4]);
  assert.deepEqual(folded(sideBySide(a, a)), [30]);
});

test("within two lines only the columns between what they share differ", () => {
  assert.deepEqual(changedColumns("x[2, 16]", "x[3, 16]"), [2, 3, 3]);
  assert.deepEqual(changedColumns("aa", "aaa"), [2, 2, 3]);
  assert.deepEqual(changedColumns("", "b"), [0, 0, 1]);
});

test("texts of ten thousand lines are compared in well under a second", () => {
  const a = lines(10_000, 5_000), b = a.map((l, i) => (i % 40 ? l : l + "x")), start = performance.now();
  const same = sideBySide(a, b).filter((r) => r.kind === "same").length;
  assert.ok(same > 9_700 && performance.now() - start < 700);
  assert.ok(sideBySide(lines(10_000, 3), lines(10_000, 3)).length >= 10_000);
});
