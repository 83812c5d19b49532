import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { byOrdinal, gathered, rooflinePlaces } = await load("ladder.js");
const ROOF = { bandwidth: 1e12, flops: 2e13, ridge: 20 };
const BOX = { width: 300, height: 200, left: 40, right: 10, top: 20, bottom: 30 };

test("rows of a kernel are counted by source line, generated ones last, unknown ones not", () => {
  const links = { panes: [{ id: "source", first: 0, segments: [] }, { id: "ptx", first: 2, segments: [["k0", 0, 1], ["k1", 1, 6]] }], ordinal: [1, 2, 9, 2, 0, 1, 2, -1] };
  assert.deepEqual(byOrdinal(links, "k1"), [{ pane: "ptx", title: "PTX", count: 4, parts: [[1, 1], [2, 2], [0, 1]] }]);
  assert.deepEqual(byOrdinal(links, "k7"), []);
});

test("points lie inside the box and never above the roof; a faster kernel is higher", () => {
  const points = [{ intensity: 0, flops: 0 }, { intensity: 0.5, flops: 2e11 }, { intensity: 80, flops: 1.9e13 }, { intensity: 1e-9, flops: 1 }];
  const { x, y, ticks, path } = rooflinePlaces(ROOF, points, BOX);
  for (const p of points) {
    assert.ok(x(p.intensity) >= 40 && x(p.intensity) <= 290);
    assert.ok(y(p.flops) >= 20 && y(p.flops) <= 170);
    if (p.intensity > 1e-3) assert.ok(y(p.flops) >= y(Math.min(2e13, p.intensity * 1e12)));
  }
  assert.ok(y(1e12) < y(1e11));
  assert.ok(ticks.x.length >= 3 && ticks.x.length < 10 && ticks.y.length >= 2 && ticks.y.length < 10);
  assert.match(path, /^M[\d.]+ [\d.]+L[\d.]+ [\d.]+H[\d.]+$/);
});

test("decisions with one reason are told once, with every node and the sum of what they save", () => {
  const decide = (first, fused, saved) => ({ first: [first], second: [first, "out"], fused, reason: fused ? "same row" : "too big", saved });
  const found = gathered([decide("a", false, ""), decide("b", true, "4 kB"), decide("c", true, "4 kB"), decide("d", true, "1 kB")]);
  assert.deepEqual(found.map((d) => [d.fused, d.first, d.second, d.saved]), [[true, "b, c, d", "out", "2 × 4 kB + 1 kB"], [false, "a", "out", ""]]);
});
