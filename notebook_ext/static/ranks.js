// Ranks: groups of equal ranks, where the others differ first, and how long ranks wait for the last one.

import { h, put } from "./shared/dom.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

class RanksView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "ranks";
    this.keys = [];
    this.el = h("div", { class: "ranks scr tall pad", tabindex: "0", role: "group", "aria-label": "Ranks" });
  }

  open() {}

  where() {
    return [];
  }

  draw() {
    const part = this.frame.part("ranks");
    if (!part) return put(this.el, h("p", { class: "mut" }, "Loading …"));
    put(this.el, part.sections.map((/** @type {any} */ s) => h("details", { open: s.open }, h("summary", {}, s.title), s.rows.map((/** @type {any} */ r) => this.#row(r)))));
    this.frame.say(part.outcome);
  }

  /** @param {any} r */
  #row(r) {
    return h("div", {}, h("b", {}, r.name + " "), "share" in r ? h("meter", { value: r.share, "aria-label": r.name }) : null, r.code ? h("pre", { class: "code" }, r.code) : null, h("span", { class: "mut" }, r.text));
  }
}

VIEWS.set("ranks", RanksView);
