import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { marked, tokens } = await load("shared/tokens.js");
const LANGUAGES = ["python", "mlir", "llvm", "assembly", "bytecode", "none"];

test("no character is lost or invented, whatever the line", () => {
  const lines = ["", "s = x * 0.125  # half", "'unclosed", '"""doc', "%0 = tt.load %x : tensor<128xf32> #loc", "@!P0 FMUL R3, R3, 0.5 ;", "<script>'", "\u{1F600} é", "a".repeat(5_000)];
  for (const language of LANGUAGES) for (const line of lines) assert.equal(tokens(line, language).map((t) => t[1]).join(""), line);
});

test("keywords, strings, numbers and comments of Python are told apart", () => {
  assert.deepEqual(tokens("return 1.5 # x", "python").filter(([kind]) => kind), [["k", "return"], ["d", "1.5"], ["c", "# x"]]);
  assert.deepEqual(tokens('print("a # b")', "python").filter(([kind]) => kind), [["s", '"a # b"']]);
  assert.deepEqual(tokens("x1.returns", "python"), [["", "x1.returns"]]);
});

test("a mark cuts runs at its columns and keeps their kinds", () => {
  assert.deepEqual(marked([["", "ab"], ["k", "cdef"]], 1, 4), [["", "a", false], ["", "b", true], ["k", "cd", true], ["k", "ef", false]]);
});

test("a line of ten thousand characters is split in a few milliseconds", () => {
  const start = performance.now();
  for (const language of LANGUAGES) for (const unit of ["(", "'", "a.", "0x", "\\", "@", " "]) tokens(unit.repeat(1_999), language);
  assert.ok(performance.now() - start < 1_000);
});
