// Devices: the mesh with its ranks, what they hold and send, where ranks differ first, and how long they wait for the last one.

import { h, muted, mutedLine, put } from "./shared/dom.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

class DevicesView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.keys = [];
    this.el = h("div", { class: "devices scr tall pad", tabindex: "0", role: "group", "aria-label": "Devices" });
  }

  open() {}

  where() {
    return [];
  }

  draw() {
    const part = this.frame.part("devices");
    if (!part) return put(this.el, mutedLine("Loading …"));
    put(this.el, part.sections.map((/** @type {any} */ s) => h("details", { open: s.open }, h("summary", {}, s.title), s.image ? h("img", { src: s.image, alt: s.title, style: "max-width:100%" }) : null, s.cells ? h("div", { style: "overflow-x:auto", tabindex: "0", role: "group", "aria-label": s.title }, h("table", { class: "t" }, h("thead", {}, h("tr", {}, s.heads.map((/** @type {string} */ t) => h("th", { scope: "col" }, t)))), h("tbody", {}, s.cells.map((/** @type {string[]} */ r) => h("tr", {}, r.map((t, i) => h("td", {}, i === r.length - 1 ? h("code", {}, t) : t))))))) : null, s.rows.map((/** @type {any} */ r) => this.#row(r)))));
    this.frame.say(part.outcome);
  }

  /** @param {any} r */
  #row(r) {
    return h("div", {}, r.color ? h("span", { class: "dot", style: `margin-right:4px;background:${r.color}` }) : null, h("b", {}, r.name + " "), "share" in r ? h("meter", { value: r.share, "aria-label": r.name }) : null, r.code ? h("pre", { class: "code" }, r.code) : null, muted(r.text));
  }
}

VIEWS.set("devices", DevicesView);
