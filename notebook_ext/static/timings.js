// Timeline: all events on one clock, then the stages of each compilation as nested bars on one scale.

import { button, h, ms, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { barPlaces } from "./shared/layout.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const OUTCOMES = { hit: ["ok", "hit"], compiled: ["new", "compiled"], python: ["mut", "ran as Python (frame skipped)"] };
const STAGES = ["trace", "guards", "aot", "lowering", "kernels", "compile"];

class TimingsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "timings";
    this.at = 0;
    this.zoom = 1;
    this.context = h("div", { class: "ctx" });
    this.clock = h("div", { class: "clock scr", tabindex: "0" });
    this.body = h("div", { class: "scr tall pad", tabindex: "0" });
    this.el = h("div", { class: "timings" }, this.context, this.clock, this.body);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous compilation", (k) => { this.at += k === "ArrowDown" ? 1 : -1; this.draw(); }),
      key("+ -", "zoom the clock in or out", (k) => this.scale(k === "+" ? 1.5 : 1 / 1.5)),
      key("Enter", "show it in the linked view", () => this.link()),
    ];
  }

  /** @param {string} [entry] */
  open(entry) {
    this.wanted = entry;
  }

  /** The current selection, as arguments of `open`. */
  where() {
    const row = this.part && this.part.rows[this.at];
    return row ? [row.compilation] : [];
  }

  link() {
    const row = this.part && this.part.rows[this.at];
    if (row) this.frame.open("linked", row.compilation);
  }

  /** @param {number} by */
  scale(by) {
    this.zoom = Math.max(1, Math.min(200, this.zoom * by));
    this.draw();
    /** @type {HTMLElement | null} */ (this.clock.querySelector(".sel"))?.scrollIntoView({ block: "nearest", inline: "center" });
  }

  /** All compilations and calls on one clock. @param {any} part */
  #clock(part) {
    const { calls, rows } = part, end = Math.max(part.end, ...calls.map((/** @type {any[]} */ c) => c[0]), 1e-9);
    const left = (/** @type {number} */ t) => (t / end) * 100, deepest = Math.max(0, ...rows.flatMap((/** @type {any} */ r) => r.bars.map((/** @type {any} */ b) => b.depth)));
    const step = 10 ** Math.floor(Math.log10(end / this.zoom)) / (end / this.zoom / 10 ** Math.floor(Math.log10(end / this.zoom)) < 3 ? 2 : 1);
    const ticks = Array.from({ length: Math.min(2_000, Math.floor(end / step) + 1) }, (_, i) => i * step);
    const dense = calls.length > 400 ? calls.filter((/** @type {any[]} */ c, /** @type {number} */ i) => !i || c[1] !== "hit" || left(c[0] - calls[i - 1][0]) * this.zoom > 0.1) : calls;
    put(
      this.clock,
      h("div", { class: "clockin", style: `width:${this.zoom * 100}%;height:${(deepest + 1) * 18 + 44}px`, role: "img", "aria-label": `${plural(rows.length, "compilation")} and ${plural(calls.length, "call")} within ${ms(end)}` },
        ticks.map((t) => h("i", { class: "tick", style: `left:${left(t)}%` }, t ? ms(t) : "0")),
        rows.flatMap((/** @type {any} */ row, /** @type {number} */ i) => row.bars.map((/** @type {any} */ b) => h("span", { class: "tbar " + this.color(b.stage) + (i === this.at ? " sel" : ""), title: `${row.name} entry ${row.compilation.split("/").pop()}, ${b.stage} ${b.text}`, style: `left:${left(b.start)}%;width:${Math.max(left(b.seconds), 0.1)}%;top:${20 + b.depth * 18}px`, onclick: () => { this.at = i; this.draw(); this.frame.focus(); } }, left(b.seconds) * this.zoom > 7 ? (b.depth ? b.stage : row.name) : ""))),
        dense.map((/** @type {any[]} */ c) => { const [kind, word] = OUTCOMES[/** @type {keyof typeof OUTCOMES} */ (c[1])] || OUTCOMES.python; return h("i", { class: "call " + kind, style: `left:${left(c[0])}%`, title: `call ${c[3]} of ${c[2]}: ${word}, at ${ms(c[0])}` }); })),
    );
  }

  /** A stage's color is the same in every row. @param {string} stage */
  color(stage) {
    const at = STAGES.indexOf(stage);
    return at === STAGES.length - 1 ? "o0" : "o" + ((at < 0 ? stage.length : at) % 6 + 1);
  }

  draw() {
    const part = this.frame.part("timings");
    /** @type {any} */
    this.part = part;
    if (!part) return put(this.body, h("p", { class: "mut" }, "Loading …"));
    if (this.wanted) this.at = part.rows.findIndex((/** @type {any} */ r) => r.compilation === this.wanted);
    this.wanted = undefined;
    this.at = Math.max(0, Math.min(part.rows.length - 1, this.at));
    const longest = Math.max(...part.rows.map((/** @type {any} */ r) => r.seconds), 1e-9);
    put(this.context, h("b", {}, plural(part.rows.length, "compilation")), h("span", { class: "mut" }, (part.calls.length ? plural(part.calls.length, "call") + " · " : "") + "compile time on this machine, not kernel run time"), h("span", { class: "sp" }), button("−", "-", () => this.scale(1 / 1.5), { "aria-label": "Wider" }), button("+", "+", () => this.scale(1.5), { "aria-label": "Closer" }));
    this.#clock(part);
    put(
      this.body,
      part.rows.map((/** @type {any} */ row, /** @type {number} */ i) => this.#row(row, i, longest)),
      h("h4", {}, "Self time by stage"),
      h("table", { class: "t" }, h("tbody", {}, part.totals.map((/** @type {any} */ t) => h("tr", {}, h("td", {}, h("i", { class: "dot " + this.color(t.stage) }), " " + t.stage), h("td", { class: "num" }, t.text), h("td", { class: "num" }, Math.round(t.share * 100) + " %"), h("td", { class: "meter" }, h("i", { class: this.color(t.stage), style: `width:${t.share * 100}%` })))))),
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
      h("div", { class: "track", style: `height:${depth * 18}px` }, row.bars.map((/** @type {any} */ b, /** @type {number} */ j) => h("span", { class: "tbar " + this.color(b.stage), title: label(b), style: `left:${places[j].left}%;width:${places[j].width}%;top:${places[j].row * 18}px` }, places[j].width > 6 ? label(b) : ""))),
    );
  }
}

VIEWS.set("timings", TimingsView);
