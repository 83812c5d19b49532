// Widths of columns while the line between two of them is dragged.

import assert from "node:assert/strict";
import test from "node:test";
import { moved } from "../../notebook_ext/static/resize.js";

test("only the two columns around the line change", () => {
  assert.deepEqual(moved([400, 300, 200], 0, 50), [450, 250, 200]);
  assert.deepEqual(moved([400, 300, 200], 1, -50), [400, 250, 250]);
});

test("no column gets narrower than it can be used", () => {
  assert.deepEqual(moved([400, 300], 0, 900), [580, 120]);
  assert.deepEqual(moved([400, 300], 0, -900), [120, 580]);
  assert.deepEqual(moved([100, 300], 0, -10), [100, 300]);
});
