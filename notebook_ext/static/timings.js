// Timeline: all events on one clock, then the stages of each compilation as nested bars on one scale.

import { save } from "./copy.js";
import { button, h, ms, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { barPlaces, clockText } from "./shared/layout.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const OUTCOMES = { hit: ["ok", "hit"], compiled: ["new", "compiled"], python: ["mut", "ran as Python (frame skipped)"] };
/** Longest zoom of the clock. */
const MAX_ZOOM = 5000;
/** Files for other tools, by part. @type {Record<string, string>} */
const FILES = { perfetto: "timeline.perfetto.json", speedscope: "timeline.speedscope.json" };
/** Width of a tick's text. */
const TICK_PX = 44;
const STAGES = ["trace", "guards", "aot", "lowering", "kernels", "CPU lowering", "compile"];

class TimingsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    this.zoom = 1;
    /** Format of the file that is waited for. */
    this.exporting = "";
    this.context = h("div", { class: "ctx" });
    this.ticks = h("div", { class: "ticks", "aria-hidden": "true" });
    this.clock = h("div", { class: "clock scr", tabindex: "0", role: "group", "aria-label": "Clock of all compilations and calls", onscroll: () => this.#drawTicks(), onwheel: (/** @type {WheelEvent} */ e) => this.#wheel(e) });
    this.body = h("div", { class: "scr tall pad", tabindex: "0", role: "group", "aria-label": "Stages of each compilation" });
    this.el = h("div", { class: "timings" }, this.context, this.clock, this.body);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous compilation", (k) => { this.at += k === "ArrowDown" ? 1 : -1; this.draw(); }),
      key("+ -", "zoom the clock in or out; also the wheel with Ctrl", (k) => this.scale(k === "+" ? 1.5 : 1 / 1.5)),
      key("z", "zoom to the selected compilation; a double click zooms to a stage", () => this.#zoomToSelected()),
      key("w", "show the whole clock", () => this.zoomTo(0, Infinity)),
      key("e", "save the timeline for Perfetto or Chrome", () => this.export("perfetto")),
      key("E", "save the timeline for speedscope", () => this.export("speedscope")),
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

  /** Zoom around a fraction of the visible width, whose moment stays where it is. @param {number} by @param {number} [around] */
  scale(by, around = 0.5) {
    const { clientWidth, scrollLeft } = this.clock, moment = (scrollLeft + clientWidth * around) / (clientWidth * this.zoom || 1);
    this.zoom = Math.max(1, Math.min(MAX_ZOOM, this.zoom * by));
    this.draw();
    this.clock.scrollLeft = moment * clientWidth * this.zoom - clientWidth * around;
  }

  /** Zoom so that these seconds fill the clock. @param {number} start @param {number} seconds */
  zoomTo(start, seconds) {
    const end = this.#end(), span = Math.max(Math.min(seconds, end), end / MAX_ZOOM);
    this.zoom = Math.max(1, Math.min(MAX_ZOOM, (0.9 * end) / span));
    this.draw();
    this.clock.scrollLeft = ((start - span * 0.05) / end) * this.clock.clientWidth * this.zoom;
  }

  #zoomToSelected() {
    const bar = this.part?.rows[this.at]?.bars[0];
    if (bar) this.zoomTo(bar.start, bar.seconds);
  }

  /** @param {WheelEvent} e */
  #wheel(e) {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    this.scale(e.deltaY < 0 ? 1.25 : 0.8, (e.clientX - this.clock.getBoundingClientRect().left) / this.clock.clientWidth);
  }

  /** The last second of the clock. */
  #end() {
    return Math.max(this.part.end, ...this.part.calls.map((/** @type {any[]} */ c) => c[0]), 1e-9);
  }

  /** Save the timeline for another tool, as soon as its part is here. @param {string} format */
  export(format) {
    this.exporting = format;
    const part = this.frame.part(format);
    if (!part) return this.frame.say("Preparing the file …");
    this.exporting = "";
    save(FILES[format], JSON.stringify(part), "application/json");
    this.frame.say(`Saved ${FILES[format]}. `, muted(format === "perfetto" ? "Open it at ui.perfetto.dev or in chrome://tracing." : "Open it at speedscope.app."));
  }

  /** Ticks of the visible part of the clock. */
  #drawTicks() {
    if (!this.part) return;
    const end = this.#end(), wide = this.clock.clientWidth * this.zoom || 1, shown = end / this.zoom;
    const step = 10 ** Math.floor(Math.log10(shown)) / (shown / 10 ** Math.floor(Math.log10(shown)) < 3 ? 2 : 1);
    const first = Math.max(0, Math.floor(((this.clock.scrollLeft / wide) * end - shown) / step)), last = Math.min(Math.floor(end / step), first + Math.ceil((3 * shown) / step));
    put(this.ticks, Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step).filter((t) => (1 - t / end) * wide > TICK_PX).map((t) => h("i", { class: "tick", style: `left:${(t / end) * 100}%` }, clockText(t, step))));
  }

  /** All compilations and calls on one clock. @param {any} part */
  #clock(part) {
    const { calls, rows } = part, end = this.#end();
    const left = (/** @type {number} */ t) => (t / end) * 100, deepest = Math.max(0, ...rows.flatMap((/** @type {any} */ r) => r.bars.map((/** @type {any} */ b) => b.depth)));
    const dense = calls.length > 400 ? calls.filter((/** @type {any[]} */ c, /** @type {number} */ i) => !i || c[1] !== "hit" || left(c[0] - calls[i - 1][0]) * this.zoom > 0.1) : calls;
    put(
      this.clock,
      h("div", { class: "clockin", style: `width:${this.zoom * 100}%;height:${(deepest + 1) * 18 + 44}px`, role: "img", "aria-label": `${plural(rows.length, "compilation")} and ${plural(calls.length, "call")} within ${ms(end)}` },
        this.ticks,
        rows.flatMap((/** @type {any} */ row, /** @type {number} */ i) => row.bars.map((/** @type {any} */ b) => h("span", { class: "tbar " + this.color(b.stage) + (i === this.at ? " sel" : ""), title: `${row.name} entry ${row.compilation.split("/").pop()}, ${b.stage} ${b.text}`, style: `left:min(${left(b.start)}%,100% - 3px);width:${Math.max(left(b.seconds), 0.1)}%;top:${20 + b.depth * 18}px`, onclick: () => { if (this.at !== i) { this.at = i; this.draw(); } this.frame.focus(); }, ondblclick: () => this.zoomTo(b.start, b.seconds) }, left(b.seconds) * this.zoom > 4 ? h("span", {}, `${b.depth ? b.stage : row.name} ${b.text}`) : null))),
        dense.map((/** @type {any[]} */ c) => { const [kind, word] = OUTCOMES[/** @type {keyof typeof OUTCOMES} */ (c[1])] || OUTCOMES.python; return h("i", { class: "call " + kind, style: `left:min(${left(c[0])}%,100% - 3px)`, title: `call ${c[3]} of ${c[2]}: ${word}, at ${ms(c[0])}` }); })),
    );
    this.#drawTicks();
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
    if (!part) return put(this.body, mutedLine("Loading …"));
    if (this.wanted) this.at = part.rows.findIndex((/** @type {any} */ r) => r.compilation === this.wanted);
    this.wanted = undefined;
    this.at = Math.max(0, Math.min(part.rows.length - 1, this.at));
    if (this.exporting && this.frame.parts.has(this.exporting)) this.export(this.exporting);
    const longest = Math.max(...part.rows.map((/** @type {any} */ r) => r.seconds), 1e-9);
    put(this.context, h("b", {}, plural(part.rows.length, "compilation")), muted((part.root_calls ? plural(part.root_calls, "call") + " · " : "") + "compile time, not kernel run time"), h("span", { class: "sp" }), button("−", "-", () => this.scale(1 / 1.5), { "aria-label": "Wider" }), button("+", "+", () => this.scale(1.5), { "aria-label": "Closer" }), button("Zoom", "z", () => this.#zoomToSelected(), { title: "Zoom to the selected compilation. Key: z" }), button("Whole", "w", () => this.zoomTo(0, Infinity), { title: "Show the whole clock. Key: w" }), button("Perfetto", "e", () => this.export("perfetto"), { title: "Save the timeline for Perfetto or Chrome. Key: e" }), button("speedscope", "E", () => this.export("speedscope"), { title: "Save the timeline for speedscope. Key: E" }));
    this.#clock(part);
    put(
      this.body,
      part.rows.map((/** @type {any} */ row, /** @type {number} */ i) => this.#row(row, i, longest)),
      h("h4", {}, "Self time by stage"),
      h("table", { class: "t" }, h("tbody", {}, part.totals.map((/** @type {any} */ t) => h("tr", {}, h("td", {}, h("i", { class: "dot " + this.color(t.stage) }), t.stage === "compile" ? " compile, outside these stages" : " " + t.stage), h("td", { class: "num" }, t.text), h("td", { class: "num" }, `${Math.round(t.share * 100) || "< 1"} %`), h("td", { class: "meter" }, h("i", { class: this.color(t.stage), style: `width:${t.share * 100}%` })))))),
    );
    const row = part.rows[this.at];
    if (!row) return this.frame.say("No compilation was timed.");
    const slow = row.bars.filter((/** @type {any} */ b) => b.stage !== "compile").sort((/** @type {any} */ a, /** @type {any} */ b) => b.seconds - a.seconds)[0];
    this.frame.say(h("b", {}, `${row.name} entry ${row.compilation.split("/").pop()}`), `: ${row.text}`, slow ? `, longest in ${slow.stage} (${slow.text})` : "", ". ", muted(row.cause ? `Compiled because: ${sentence(row.cause)}` : ""));
  }

  /** @param {any} row @param {number} i @param {number} longest */
  #row(row, i, longest) {
    const places = barPlaces(row.bars, longest);
    const depth = Math.max(...places.map((p) => p.row), 0) + 1;
    const label = (/** @type {any} */ b) => `${b.stage} ${b.text}`;
    return h(
      "div",
      { class: "time" + (i === this.at ? " sel" : ""), role: "group", "aria-label": `${row.name} ${row.compilation}: ${row.bars.map(label).join(", ")}`, onclick: () => { this.at = i; this.draw(); this.frame.focus(); } },
      h("div", { class: "timehead" }, h("b", {}, row.name), ` entry ${row.compilation.split("/").pop()} `, muted(row.text + (row.after ? ` · kernels for the target: ${ms(row.after)} in the background` : ""))),
      h("div", { class: "track", style: `height:${depth * 18}px` }, row.bars.map((/** @type {any} */ b, /** @type {number} */ j) => h("span", { class: "tbar " + this.color(b.stage), title: label(b), style: `left:min(${places[j].left}%,100% - 3px);width:${places[j].width}%;top:${places[j].row * 18}px` }, places[j].width > 6 ? label(b) : ""))),
    );
  }
}

VIEWS.set("timings", TimingsView);
