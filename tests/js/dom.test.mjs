import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { ms } = await load("shared/dom.js");

test("durations have two digits and never an exponent", () => {
  const seconds = [4e-9, 9.96e-7, 9.95e-5, 0.0996, 0.00999, 0.9996, 1.25, 9.96, 240];
  assert.deepEqual(seconds.map(ms), ["4 ns", "1 µs", "100 µs", "100 ms", "10 ms", "1000 ms", "1.3 s", "10 s", "240 s"]);
});
