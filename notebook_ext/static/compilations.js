// Compilations: one row for each; for the selected one its facts, cache results and text artifacts.

import { button, h, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { Rows } from "./shared/rows.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const SHOWN = 400;

class CompilationsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    this.find = "";
    /** @type {number | null} */
    this.file = null;
    this.kind = "kernel";
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Find a frame  /", "aria-label": "Find a frame", oninput: () => { this.find = this.search.value.toLowerCase(); this.at = 0; this.draw(); } }));
    this.count = h("span", { class: "mut" });
    this.context = h("div", { class: "ctx" }, h("b", {}, "Every compilation"), this.count, h("span", { class: "sp" }), this.search);
    this.table = h("div", { tabindex: "0", role: "group", "aria-label": "Compilations" });
    this.side = h("div", { class: "side" });
    this.el = h("div", { class: "compilations" }, this.context, h("div", { class: "two" }, this.table, this.side));
    /** @type {string[]} */
    this.lines = [];
    this.rows = new Rows((i) => h("div", { class: "ln" }, h("i", {}, i + 1), this.lines[i]), { tabindex: "0", role: "document", "aria-label": "Text" }, 18);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous compilation", (k) => this.move(k === "ArrowDown" ? 1 : -1)),
      key("Enter", "show it in the linked view", () => this.link()),
      key("/", "find a frame", () => this.search.focus()),
    ];
  }

  /** The current selection, as arguments of `open`. */
  where() {
    const row = this.shown && this.shown[this.at];
    return row ? [row.id] : [];
  }

  /** The open text, else the list. */
  text() {
    return this.file === null ? "" : this.lines.join("\n");
  }

  /** @param {string} [entry] */
  open(entry) {
    this.wanted = entry;
  }

  /** @param {number} step */
  move(step) {
    this.at += step;
    this.file = null;
    this.draw();
  }

  link() {
    const row = this.shown && this.shown[this.at];
    if (row) this.frame.open("linked", row.id);
  }

  draw() {
    const part = this.frame.part("compilations");
    if (!part) return put(this.table, h("p", { class: "mut blk" }, "Loading …"));
    /** @type {any[]} */
    const rows = part.rows.filter((/** @type {any} */ r) => !this.find || `${r.name} ${r.id} ${r.place} ${r.outcome}`.toLowerCase().includes(this.find));
    this.shown = rows;
    this.kind = part.kernel_title === "Kernels" ? "kernel" : "CPU kernel";
    if (this.wanted) this.at = rows.findIndex((/** @type {any} */ r) => r.id === this.wanted);
    this.wanted = undefined;
    this.at = Math.max(0, Math.min(rows.length - 1, this.at));
    put(this.count, `${plural(rows.length, "compilation")}${this.find ? " found" : ""}${part.texts.length ? ` · ${plural(part.texts.length, "text")} about the whole session` : ""}`);
    const first = Math.max(0, Math.min(this.at - SHOWN / 2, rows.length - SHOWN));
    const some = rows.slice(first, first + SHOWN);
    const cut = rows.length - some.length;
    put(
      this.table,
      h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Compile id", "Function", "Outcome"].map((t) => h("th", { scope: "col" }, t)), ["Graphs", "Break at", part.has_restarts ? "Restarts" : "", part.kernel_title + (part.rows.some((/** @type {any} */ r) => r.externs) ? " + ATen" : ""), "Time"].filter(Boolean).map((t) => h("th", { scope: "col", class: "num" }, t)))), h("tbody", {}, some.map((r, i) => this.#row(r, first + i, part)))),
      cut ? h("p", { class: "mut blk" }, `${plural(cut, "more compilation")}: move the selection, or search.`) : null,
      rows.length ? null : h("p", { class: "blk" }, this.find ? "No match." : "Nothing was compiled."),
    );
    const selected = this.table.querySelector("tr.sel");
    if (selected && this.frame.view === this) selected.scrollIntoView({ block: "nearest" });
    this.#side(rows[this.at]);
  }

  /** @param {any} r @param {number} i @param {any} part */
  #row(r, i, part) {
    const bad = r.outcome === "failed" || r.outcome === "skipped";
    const numbers = [r.graphs, r.breaks || "–", ...(part.has_restarts ? [r.restarts] : []), r.kernels + (r.externs ? ` + ${r.externs}` : ""), r.time];
    return h(
      "tr",
      { class: i === this.at ? "sel" : null, "data-id": r.id, "aria-current": i === this.at ? "true" : null, onclick: () => { this.at = i; this.file = null; this.draw(); this.frame.focus(); } },
      h("td", {}, h("code", {}, r.id)),
      h("td", { class: "nm", title: `${r.name}  ${r.place}  ${r.called}` }, r.name, muted(`  ${r.role === "callee" ? "called by another frame, " : ""}${r.place}`), r.called ? h("div", { class: "mut" }, r.called) : null),
      h("td", { class: bad ? "bad" : r.outcome === "one graph" ? "ok" : null }, r.outcome),
      numbers.map((n) => h("td", { class: "num" }, n || n === 0 ? String(n) : "")),
    );
  }

  /** Facts of one compilation. @param {any} row */
  #side(row) {
    const id = row ? row.id : "";
    const facts = this.frame.part("facts|" + id);
    if (!facts) return put(this.side, mutedLine("Loading …"));
    const list = (/** @type {string} */ title, /** @type {any[]} */ items, /** @type {(item: any) => any} */ draw) => (items && items.length ? [h("h4", {}, title), items.map(draw)] : null);
    put(
      this.side,
      row ? h("p", {}, h("b", {}, `${row.name} entry ${id.split("/").pop()} `), button("Linked view", "Enter", () => this.link())) : h("p", {}, h("b", {}, "Whole session")),
      facts.cause ? h("p", {}, "Compiled because: " + sentence(facts.cause)) : null,
      list("Tracing restarts", facts.restarts, (r) => h("p", {}, sentence(r))),
      list("Disk caches", facts.caches, (c) => h("p", {}, `${c.cache}: `, h("b", {}, c.outcome), c.note ? ": " + c.note : "", c.key ? muted("  " + c.key) : null)),
      list("Symbols", facts.symbols, (s) => h("details", { open: facts.symbols.length < 5 }, h("summary", {}, h("code", {}, s.name), ` = ${s.source}`, muted(`${s.value ? `, was ${s.value}` : ""}${s.range ? `, in ${s.range}` : ""}${s.place ? `, ${s.place}` : ""}`)), s.events.map((/** @type {any} */ e) => h("p", {}, h("span", { class: e.kind === "specialized" ? "bad" : "mut" }, e.kind + " "), h("code", {}, e.text), e.place ? muted(`  ${e.place}: ${e.source}`) : null)))),
      list("Inputs and outputs, as analyzed", facts.aot, ([name, what]) => h("p", {}, h("code", {}, name), ": " + what)),
      list("Failures", facts.failures, (f) => h("details", {}, h("summary", { class: "bad" }, f.sentence), h("pre", { class: "code" }, f.detail))),
      facts.texts.length ? h("h4", {}, "Trace artifacts") : null,
      h("div", { class: "files" }, facts.texts.map((/** @type {string} */ name, /** @type {number} */ i) => button(name, "", () => { this.file = this.file === i ? null : i; this.draw(); }, { "aria-pressed": String(this.file === i) }))),
    );
    if (this.file !== null) this.#text(this.frame.part(`file|${id}|${this.file}`));
    this.frame.say(row ? [h("b", {}, `${row.name} entry ${id.split("/").pop()}`), `: ${row.outcome}${row.inputs ? ", for " + row.inputs : ""}. `, muted(`${plural(row.graphs, "graph")}, ${row.breaks ? `break at ${row.breaks}, ` : ""}${plural(row.kernels, this.kind)}${row.time ? ", " + row.time : ""}`)] : "");
  }

  /** @param {any} file */
  #text(file) {
    if (!file) return this.side.append(mutedLine("Loading …"));
    this.lines = file.text.split("\n");
    const longest = this.lines.reduce((/** @type {number} */ n, /** @type {string} */ l) => Math.max(n, l.length), 0);
    this.side.append(h("div", { class: "file" }, this.rows.el));
    if (file.cut) this.side.append(mutedLine(`${plural(file.cut, "more line")} not shown.`));
    this.rows.reset(this.lines.length, `calc(${Math.min(longest, 4000)}ch + 8ch)`);
  }
}

VIEWS.set("compilations", CompilationsView);
