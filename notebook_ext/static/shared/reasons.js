// Reasons in the user's terms: a line of code, a hint, a list of fixes.

import { h, mutedLine, sentence } from "./dom.js";
import { tokens } from "./tokens.js";

/** Suggested changes as a list. @param {any[]} fixes @param {boolean} [isObserved] of stock torch.compile, whose calls are not replayed */
export function fixList(fixes, isObserved) {
  if (!fixes.length) return mutedLine("No safe fix is known: accept another cache entry, or do not change this input.");
  const untried = fixes.some((f) => f.code && !f.verified && !f.unverified_reason);
  return h(
    "div",
    {},
    h("ol", { class: "fixes" }, fixes.map((f) => h("li", {}, sentence(f.text), f.code ? h("pre", { class: "code" }, f.code) : null, f.verified ? h("p", { class: "ok" }, "✓ verified: " + f.verified) : f.unverified_reason ? mutedLine(sentence(f.unverified_reason)) : null))),
    untried ? mutedLine(isObserved ? "Not verified: calls of stock torch.compile are not replayed here." : "Not tried yet, so not verified.") : null,
  );
}

/** The hint for a guard failure. @param {string} text */
export function failureHint(text) {
  return text ? h("details", { class: "lesson" }, h("summary", {}, "Hint"), h("p", {}, text)) : null;
}

/** A line of the user's code. @param {string} source */
export function sourceLine(source) {
  return h("pre", { class: "code" }, tokens(source, "python").map(([kind, text]) => (kind ? h("span", { class: kind }, text) : text)));
}
