// Timings: the stages of each compilation as nested bars, all on one scale.

import { h, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { barPlaces } from "./shared/layout.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const STAGES = ["trace", "guards", "aot", "lowering", "kernels", "compile"];

export class TimingsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "timings";
    this.at = 0;
    this.context = h("div", { class: "ctx" });
    this.body = h("div", { class: "scr tall pad" });
    this.el = h("div", { class: "timings" }, this.context, this.body);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous compilation", (k) => { this.at += k === "ArrowDown" ? 1 : -1; this.draw(); }),
      key("Enter", "show it in the linked view", () => this.link()),
    ];
  }

  open() {}

  link() {
    const row = this.part && this.part.rows[this.at];
    if (row) this.frame.open("linked", row.compilation);
  }

  /** A stage's colour is the same in every row. @param {string} stage */
  colour(stage) {
    const at = STAGES.indexOf(stage);
    return at === STAGES.length - 1 ? "o0" : "o" + ((at < 0 ? stage.length : at) % 6 + 1);
  }

  draw() {
    const part = this.frame.part("timings");
    /** @type {any} */
    this.part = part;
    if (!part) return put(this.body, h("p", { class: "mut" }, "Loading …"));
    this.at = Math.max(0, Math.min(part.rows.length - 1, this.at));
    const longest = Math.max(...part.rows.map((/** @type {any} */ r) => r.seconds), 1e-9);
    put(this.context, h("b", {}, plural(part.rows.length, "compilation")), h("span", { class: "mut" }, "Compile time on this machine, never a kernel's speed."));
    put(
      this.body,
      part.rows.map((/** @type {any} */ row, /** @type {number} */ i) => this.#row(row, i, longest)),
      h("h4", {}, "By stage, without what is nested in it"),
      h("table", { class: "t" }, h("tbody", {}, part.totals.map((/** @type {any} */ t) => h("tr", {}, h("td", {}, h("i", { class: "dot " + this.colour(t.stage) }), " " + t.stage), h("td", { class: "num" }, t.text), h("td", { class: "num" }, Math.round(t.share * 100) + " %"), h("td", { class: "meter" }, h("i", { class: this.colour(t.stage), style: `width:${t.share * 100}%` })))))),
    );
    const row = part.rows[this.at];
    if (!row) return this.frame.say("No compilation was timed.");
    const slow = row.bars.filter((/** @type {any} */ b) => b.stage !== "compile").sort((/** @type {any} */ a, /** @type {any} */ b) => b.seconds - a.seconds)[0];
    this.frame.say(h("b", {}, `${row.name} entry ${row.compilation.split("/").pop()}`), `: ${row.text}`, slow ? `, longest in ${slow.stage} (${slow.text})` : "", ". ", h("span", { class: "mut" }, row.cause ? `Compiled because: ${row.cause}.` : ""));
  }

  /** @param {any} row @param {number} i @param {number} longest */
  #row(row, i, longest) {
    const places = barPlaces(row.bars, longest);
    const depth = Math.max(...places.map((p) => p.row), 0) + 1;
    const label = (/** @type {any} */ b) => `${b.stage} ${b.text}`;
    return h(
      "div",
      { class: "time" + (i === this.at ? " sel" : ""), role: "group", "aria-label": `${row.name} ${row.compilation}: ${row.bars.map(label).join(", ")}`, onclick: () => { this.at = i; this.draw(); this.frame.focus(); } },
      h("div", { class: "timehead" }, h("b", {}, row.name), ` entry ${row.compilation.split("/").pop()} `, h("span", { class: "mut" }, row.text + (row.after ? ` · kernels for the target: ${(row.after).toFixed(2)} s in the background` : ""))),
      h("div", { class: "track", style: `height:${depth * 18}px` }, row.bars.map((/** @type {any} */ b, /** @type {number} */ j) => h("span", { class: "tbar " + this.colour(b.stage), title: label(b), style: `left:${places[j].left}%;width:${places[j].width}%;top:${places[j].row * 18}px` }, places[j].width > 6 ? label(b) : ""))),
    );
  }
}

VIEWS.set("timings", TimingsView);
