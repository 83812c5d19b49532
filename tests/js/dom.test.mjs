import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { entryName, ms, wordBreaks } = await load("shared/dom.js");

test("durations have two digits and never an exponent", () => {
  const seconds = [4e-9, 9.96e-7, 9.95e-5, 0.0996, 0.00999, 0.9996, 1.25, 9.96, 240];
  assert.deepEqual(seconds.map(ms), ["4 ns", "1 µs", "100 µs", "100 ms", "10 ms", "1000 ms", "1.3 s", "10 s", "240 s"]);
});

test("a cache entry is named with its target before its signature, which may be cut", () => {
  const entry = { name: "f after line 3", entry: "0", inputs: "x f32[s0]" };
  assert.equal(entryName(entry), "f after line 3 entry 0: x f32[s0]");
  assert.equal(entryName(entry, "this CPU"), "f after line 3 entry 0 · this CPU: x f32[s0]");
  assert.equal(entryName({ ...entry, inputs: "" }), "f after line 3 entry 0");
});

test("a name breaks between its words, not inside one", () => {
  assert.deepEqual(wordBreaks("blocks_0_attn.kv_weight"), ["blocks_", "0_", "attn.", "kv_", "weight"]);
  assert.deepEqual(wordBreaks("__self"), ["__", "self"]);
  assert.deepEqual(wordBreaks("x"), ["x"]);
});
