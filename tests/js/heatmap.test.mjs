import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { fastest, heatMap, valuesOf } = await load("heatmap.js");
const point = (x, warps, seconds, more = {}) => ({ values: { BLOCK: x, num_warps: warps, num_stages: 0 }, seconds, registers: null, spills: null, occupancy: null, problem: "", ...more });
const CONTROLS = [{ name: "BLOCK", values: [256, 512], default: 512 }, { name: "num_warps", values: [4, 8], default: 4 }, { name: "num_stages", values: [0, 3], default: 0 }];

test("cells are the settings of two controls; the others have their default or the value given", () => {
  const tuning = { device: "a GPU", controls: CONTROLS, points: [point(512, 4, 2e-6), point(256, 8, 1e-6)], chosen: null };
  const rows = heatMap(tuning, "BLOCK", "num_warps", {});
  assert.deepEqual(rows.map((r) => r.map((c) => c.point?.seconds ?? null)), [[null, 1e-6], [2e-6, null]]);
  assert.deepEqual(rows[0][1].values, { BLOCK: 256, num_warps: 8, num_stages: 0 });
  assert.ok(rows[0][1].shade > rows[1][0].shade && rows[1][0].shade > 0 && rows[0][0].shade === 0);
  assert.equal(fastest(tuning), tuning.points[1]);
  assert.ok(heatMap(tuning, "BLOCK", "num_warps", { num_stages: 3 }).flat().every((c) => c.point === null));
  assert.deepEqual(heatMap(tuning, "num_warps", "", { BLOCK: 256 }).map((r) => r.length), [1, 1]);
});

test("values that a script tried are on the axis; without times, occupancy without spills has most color", () => {
  const found = [point(384, 4, null, { registers: 40, spills: 8, occupancy: 1 }), point(512, 4, null, { registers: 20, spills: 0, occupancy: 0.75 })];
  const tuning = { device: "", controls: CONTROLS, points: found, chosen: null };
  assert.deepEqual(valuesOf(tuning, "BLOCK"), [256, 384, 512]);
  const [, spilled, good] = heatMap(tuning, "BLOCK", "num_warps", {}).map((r) => r[0].shade);
  assert.ok(good > spilled && spilled > 0);
  assert.equal(fastest(tuning), null);
});
