import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { bytesByKind, bytesText, stairs } = await load("livebytes.js");


test("blocks count from their first to their last step", () => {
  const rows = bytesByKind([{ kind: "saved", bytes: 8, first: 0, last: 1 }, { kind: "output", bytes: 4, first: 1, last: 2 }], 3);
  assert.deepEqual(rows, [[8, 8, 0], [0, 0, 0], [0, 4, 4], [0, 0, 0]]);
});

test("an area goes up the high stairs and back along the low ones", () => {
  assert.equal(stairs([0, 5], [5, 10], 10), "M0 500.0H500.0V0.0H1000.0V500.0H500.0V1000.0H0.0Z");
});

test("bytes have decimal prefixes", () => {
  assert.deepEqual([0, 999, 4096, 1.5e9].map(bytesText), ["0 B", "999 B", "4.1 kB", "1.5 GB"]);
});
