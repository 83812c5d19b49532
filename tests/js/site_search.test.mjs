// What the search of the static site finds, and in which order.

import assert from "node:assert";
import test from "node:test";
import { load } from "./load.mjs";

const { excerpt, findSections, queryWords } = await load("site/search.js");
const INDEX = {
  pages: [["a.html", "Guards"], ["b.html", "Glossary"]],
  sections: [
    [0, "shape", "Shape", "A guard fails when a size differs."],
    [1, "guard", "guard", "A condition on the inputs."],
    [1, "graph-break", "graph break", "Python runs the line. <b>guard</b>"],
    [0, "", "Guards", "Everything that compiled code can assume."],
  ],
};

test("a section with the query as its title comes first", () => {
  assert.deepEqual(findSections(INDEX, "guard").map((hit) => hit.address), ["b.html#guard", "a.html", "a.html#shape", "b.html#graph-break"]);
});

test("all words must occur, in any case and anywhere in a section", () => {
  assert.deepEqual(findSections(INDEX, "SIZE guard").map((hit) => hit.title), ["Shape"]);
  assert.deepEqual(findSections(INDEX, "size missing"), []);
  assert.deepEqual(findSections(INDEX, "  "), []);
});

test("an excerpt keeps the text, and marks what was searched", () => {
  const parts = excerpt("Python runs the line. <b>guard</b>", queryWords("GUARD line"));
  assert.deepEqual(parts, [["Python runs the ", false], ["line", true], [". <b>", false], ["guard", true], ["</b>", false]]);
});

test("a long text is cut around its first match", () => {
  const parts = excerpt(`${"word ".repeat(100)}needle${" word".repeat(100)}`, ["needle"]);
  assert.ok(parts.some(([text, isMatch]) => isMatch && text === "needle"));
  assert.equal(parts[0][0], "… ");
  assert.equal(parts.at(-1)[0], " …");
  assert.ok(parts.map(([text]) => text).join("").length < 200);
});
