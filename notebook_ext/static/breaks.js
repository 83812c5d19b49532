// Breaks: graph breaks with their reasons, frames that ran as Python, and internal errors.

import { button, h, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

class BreaksView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    this.context = h("div", { class: "ctx" });
    this.body = h("div", { class: "scr tall pad", tabindex: "0", role: "group", "aria-label": "Graph breaks" });
    this.el = h("div", { class: "breaks" }, this.context, this.body);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous break", (k) => { this.at += k === "ArrowDown" ? 1 : -1; this.draw(); }),
      key("Enter", "show its line in the linked view", () => this.link()),
    ];
  }

  /** @param {string} [entry] @param {string} [what] "break=2", counted over all entries */
  open(entry, what) {
    this.wanted = entry;
    if (what && what.startsWith("break=")) {
      this.at = +what.slice(6) - 1;
      this.wanted = undefined;
    }
  }

  /** The current selection, as arguments of `open`. */
  where() {
    const found = this.part && this.part.breaks[this.at];
    return found ? [found.compilation, "break=" + (this.at + 1)] : [];
  }

  link() {
    const found = this.part && this.part.breaks[this.at];
    if (found) this.frame.open("linked", found.compilation, "line=" + found.line);
  }

  draw() {
    const part = this.frame.part("breaks");
    /** @type {any} */
    this.part = part;
    if (!part) return put(this.body, mutedLine("Loading …"));
    if (this.wanted) this.at = part.breaks.findIndex((/** @type {any} */ b) => b.compilation === this.wanted);
    this.wanted = undefined;
    this.at = Math.max(0, Math.min(part.breaks.length - 1, this.at));
    const has = this.frame.overview.entries.some((/** @type {any} */ e) => e.has_graph), none = has ? "No graph break: each function that was compiled is one graph." : "Nothing was compiled, so there is no graph to break.";
    const { breaks, attempts, skipped, failures, notes } = part, errors = breaks.filter((/** @type {any} */ b) => b.is_error).length;
    const functions = skipped.flatMap((/** @type {any} */ s) => s.name.split(/, | and /)).length;
    put(this.context, h("b", {}, plural(breaks.length - errors, "graph break")), muted([errors && plural(errors, "exception"), functions && `${functions} not compiled`, failures.length && plural(failures.length, "failure")].filter(Boolean).join(" · ")));
    put(
      this.body,
      breaks.length ? breaks.map((/** @type {any} */ b, /** @type {number} */ i) => this.#break(b, i)) : h("p", {}, none),
      attempts.length ? [h("h4", {}, "Discarded attempts (retraced without a break)"), this.#attempts(attempts)] : null,
      skipped.length ? [h("h4", {}, "Not compiled"), skipped.map((/** @type {any} */ s) => h("p", {}, h("code", {}, s.name), ": " + s.reason + ". ", muted(s.hint)))] : null,
      failures.length ? [h("h4", {}, "Failures (the code still ran)"), failures.map((/** @type {any} */ f) => h("div", {}, h("p", {}, f.compilation ? h("code", {}, f.compilation + " ") : null, `${f.sentence} Instead: ${f.fallback}. `, f.compilation ? this.frame.scriptButton(f.compilation, "failure") : null), f.detail ? h("details", {}, h("summary", {}, "Traceback"), h("pre", { class: "code" }, f.detail)) : null))] : null,
      notes.length ? [h("h4", {}, "Notes"), notes.map((/** @type {string} */ n) => h("p", {}, n))] : null,
    );
    const b = breaks[this.at];
    if (b) this.frame.say(h("b", {}, `${b.is_error ? "Exception" : b.skipped ? "Ran as Python (frame skipped)" : "Graph break"} in ${b.root}, ${b.place}. `), b.title + ". ", sentence(b.why) + " ", muted(b.hints[0] || ""));
    else this.frame.say(breaks.length ? "" : none);
  }

  /**
   * A collapsible section. A click in it does not select the card, because selecting redraws it.
   * @param {string} title @param {HTMLElement} inside
   */
  #details(title, inside) {
    return h("details", { onclick: (/** @type {Event} */ e) => e.stopPropagation() }, h("summary", {}, title), inside);
  }

  /** @param {string[]} told */
  #attempts(told) {
    return h("ul", { class: "fixes" }, told.map((t) => h("li", {}, sentence(t))));
  }

  /** @param {any} b @param {number} i */
  #break(b, i) {
    return h(
      "section",
      { class: "card" + (i === this.at ? " sel" : ""), "aria-current": i === this.at ? "true" : null, onclick: (/** @type {Event} */ e) => { if (/** @type {Element} */ (e.target).closest("button")) return; this.at = i; this.draw(); this.frame.focus(); } },
      h("p", {}, h("b", {}, `${b.root}, ${b.place || "unknown line"}: `), b.title, b.skipped ? h("span", { class: "bad" }, "  frame skipped: all of it ran as Python") : null, b.times > 1 ? muted(`  hit ${b.times} times`) : null),
      b.pointed ? h("pre", { class: "code" }, b.pointed) : null,
      b.what && (b.is_error || !b.pointed) ? h("p", {}, h("code", {}, b.what)) : null,
      b.stack.length ? mutedLine("Called from ", b.stack.join(" → ")) : null,
      h("p", {}, sentence(b.why)),
      b.hints.length ? h("ul", { class: "fixes" }, b.hints.map((/** @type {string} */ r) => h("li", {}, sentence(r)))) : null,
      b.before ? this.#details("Example: before and after", h("div", { class: "pair" }, h("div", {}, mutedLine("Breaks"), h("pre", { class: "code" }, b.before)), h("div", {}, mutedLine("One graph"), h("pre", { class: "code" }, b.after)))) : null,
      b.attempts.length ? this.#details(`${plural(b.attempts.length, "discarded attempt")} of the tracer`, this.#attempts(b.attempts)) : null,
      b.line ? button("Show in linked view", "Enter", () => { this.at = i; this.link(); }) : null, " ", this.frame.scriptButton(b.compilation, "break"),
    );
  }
}

VIEWS.set("breaks", BreaksView);
