// What the finder finds.

import assert from "node:assert";
import test from "node:test";
import { load } from "./load.mjs";

const { foundIn, linesIn } = await load("search.js");
const PTX = { title: "PTX", lines: ["mul.f32 %f1, %f2;", "add.f32 %f3, %f1;", "fma.rn.f32 %f4;"] };
const TRITON = { title: "Triton", lines: ["x = tl.load(x_ptr)", "y = x * 2.0"] };

test("a name that is what was typed comes before one that holds it", () => {
  const rows = [["node", "softmax_1", ""], ["node", "softmax", ""], ["line", "y = softmax(x)", ""]];
  assert.deepEqual(foundIn(rows, "softmax", 9).found, [1, 0, 2]);
});

test("lines are found in every listing, counted beyond what is kept", () => {
  assert.deepEqual(linesIn([TRITON, PTX], "f32", 2), { found: [[1, 0], [1, 1]], count: 3 });
});

test("a word may name the listing, and the name alone finds no line", () => {
  assert.deepEqual(linesIn([TRITON, PTX], "ptx fma", 9).found, [[1, 2]]);
  assert.deepEqual(linesIn([TRITON, PTX], "triton load", 9).found, [[0, 0]]);
  assert.equal(linesIn([TRITON, PTX], "ptx", 9).count, 0);
});

test("one letter finds no lines", () => {
  assert.equal(linesIn([PTX], "f", 9).count, 0);
});
