import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

/** An element that keeps its text. */
class Element {
  text = "";
  style = {};
  append(...kids) {
    this.text += kids.map((kid) => kid.text ?? kid).join("");
  }
  setAttribute() {}
}
globalThis.document = { createElement: () => new Element(), createElementNS: () => new Element() };
const { fixList } = await load("shared/reasons.js", "shared/dom.js", "shared/tokens.js");

test("a fix that was not tried says whether it can be", () => {
  const fixes = [{ text: "Mark the dimension as dynamic", code: "mark_dynamic(x, 0)" }];
  assert.match(fixList(fixes).text, /Not tried yet, so not verified\.$/);
  assert.match(fixList(fixes, true).text, /calls of stock torch\.compile are not replayed here\.$/);
  assert.doesNotMatch(fixList([{ ...fixes[0], verified: "1 compile less" }], true).text, /Not/);
});
