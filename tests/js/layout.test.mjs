import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { barPlaces, clockText, lineTops, nextHit, openRows, rowOfLine, rulerMarks, scrollFor, visibleRows, ROW } = await load("shared/layout.js");

test("a short list is drawn whole, a long one around what is in view", () => {
  assert.deepEqual(visibleRows(200, 900, 300), [0, 200]);
  const [first, end] = visibleRows(10_000, 5_000 * ROW, 30 * ROW);
  assert.ok(first < 5_000 && first > 4_950);
  assert.ok(end > 5_030 && end < 5_080);
  assert.deepEqual(visibleRows(10_000, 0, 100)[0], 0);
  assert.equal(visibleRows(10_000, 10_000 * ROW, 100)[1], 10_000);
});

test("a row in view is not scrolled to, one outside comes to `lead` below the top", () => {
  assert.equal(scrollFor(5, 0, 300, 50), 0);
  assert.equal(scrollFor(100, 0, 300, 54), 100 * ROW - 54);
  assert.equal(scrollFor(1, 900, 300, 54), 0);
});

test("ruler marks join neighbors and never exceed the limit by much", () => {
  assert.deepEqual(rulerMarks([0, 1, 2, 50], 100), [[0, 0.03], [0.5, 0.01]]);
  const every = Array.from({ length: 5_000 }, (_, i) => i * 2);
  assert.ok(rulerMarks(every, 10_000).length <= 150);
  assert.deepEqual(rulerMarks([], 0), []);
});

test("the next hit goes round at both ends", () => {
  assert.equal(nextHit([3, 7], 3, 1), 7);
  assert.equal(nextHit([3, 7], 7, 1), 3);
  assert.equal(nextHit([3, 7], 3, -1), 7);
  assert.equal(nextHit([], 3, 1), -1);
});

test("bars share one scale and start where their stage started", () => {
  const places = barPlaces([{ start: 10, seconds: 2, depth: 0 }, { start: 11, seconds: 1, depth: 1 }], 4);
  assert.deepEqual(places, [{ left: 0, width: 50, row: 0 }, { left: 25, width: 25, row: 1 }]);
});

test("rows below a closed value are hidden at every depth", () => {
  const tree = [{ parent: -1 }, { parent: 0 }, { parent: 1 }, { parent: -1 }];
  assert.deepEqual(openRows(tree, new Set()), [0, 1, 2, 3]);
  assert.deepEqual(openRows(tree, new Set([1])), [0, 1, 3]);
  assert.deepEqual(openRows(tree, new Set([0])), [0, 3]);
});

test("neighboring ticks of a clock have different texts", () => {
  assert.deepEqual([clockText(0, 1), clockText(8.245, 0.005), clockText(3, 1), clockText(0.02, 0.005), clockText(2e-5, 1e-5)], ["0", "8.245 s", "3 s", "20 ms", "20 µs"]);
});

test("wrapped rows take as many lines as their text needs, and a line leads back to its row", () => {
  const tops = lineTops(["", "x".repeat(10), "x".repeat(11), "漢".repeat(6), "y"], 10);
  assert.deepEqual(tops, [0, 1, 2, 4, 6, 7]);
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6].map((line) => rowOfLine(tops, line)), [0, 1, 2, 2, 3, 3, 4]);
  assert.equal(rowOfLine(lineTops([], 10), 0), 0);
});
