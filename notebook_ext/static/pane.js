// One pane of the linked view: its rows with highlights, and a ruler of all hits.

import { LINKED, SAME_LINE } from "./links.js";
import { badge, h, hue, plural, put } from "./shared/dom.js";
import { lineTops, rulerMarks } from "./shared/layout.js";
import { Rows } from "./shared/rows.js";
import { marked, tokens } from "./shared/tokens.js";

/** @typedef {import("./links.js").Links} Links */
/** @typedef {import("./links.js").Pane} Pane */
/** @typedef {import("./linked.js").LinkedView} LinkedView */

/** Choice that shows all kernels. */
export const ALL = "";

export class PaneView {
  /** @param {LinkedView} view @param {string} slot */
  constructor(view, slot) {
    this.view = view;
    this.slot = slot;
    this.title = /** @type {HTMLSelectElement} */ (h("select", { class: "stage", "aria-label": "Stage in this pane", title: "Another stage here. Keys: } {", onchange: () => { view.place(slot, this.title.value); view.frame.focus(); } }));
    this.facts = h("span", { class: "mut" });
    this.count = h("span", { class: "sp mut" });
    this.rows = new Rows((i) => this.#row(i), { role: "list" });
    this.rows.resized = () => { if (view.isWrapped && this.columns !== this.#columns()) this.#fill(); };
    /** Characters in a line of wrapped text. */
    this.columns = 0;
    this.empty = h("div", { class: "empty" });
    this.ruler = h("div", { class: "rul", "aria-hidden": "true" });
    this.el = h("section", { class: "pane " + slot, role: "tabpanel" }, h("div", { class: "hd" }, this.title, this.facts, this.count), this.rows.el, this.empty, this.ruler);
    /** @type {string[]} */
    this.texts = [];
    this.from = 0;
    this.end = 0;
    this.shown = "";
  }

  get pane() {
    return /** @type {Pane} */ (this.view.pane(this.view.slots[this.slot]));
  }

  /** Load the pane's text and the rows of the chosen kernel. */
  load() {
    const { view, pane } = this;
    const texts = view.linesOf(pane);
    const segment = pane.segments.find(([kernel]) => kernel === view.kernel);
    this.texts = texts || [];
    [this.from, this.end] = segment ? [segment[1], segment[2]] : [0, pane.rows];
    if (view.kernel !== ALL && !segment && pane.segments.length) this.end = 0;
    const empty = pane.empty || (texts ? "" : "Loading …");
    this.empty.textContent = empty;
    this.empty.hidden = !empty && this.end > this.from;
    this.rows.el.hidden = !this.empty.hidden;
    put(this.title, view.part.panes.map((/** @type {Pane} */ p) => h("option", { value: p.id, selected: p === pane }, p.title)));
    this.el.id = view.frame.id + "-pane-" + this.slot;
    this.el.dataset.pane = pane.id;
    this.rows.el.setAttribute("aria-label", pane.title + " lines");
    this.el.setAttribute("aria-label", pane.title);
    this.#fill();
    this.shown = pane.id;
  }

  /** Make the rows: as wide as the longest line, or wrapped to the width of the pane. */
  #fill() {
    const texts = Array.from({ length: this.texts.length ? this.end - this.from : 0 }, (_, i) => (this.texts[this.from + i] || "") + this.#note(this.from + i));
    this.columns = this.view.isWrapped ? this.#columns() : 0;
    if (this.columns) return this.rows.reset(texts.length, "", lineTops(texts, this.columns));
    const longest = texts.reduce((most, text) => Math.max(most, text.length), 0);
    this.rows.reset(texts.length, `calc(${Math.min(longest, 4000)}ch + 76px)`);
  }

  /** Number of characters that fit into a line; 0 while the pane is hidden. */
  #columns() {
    const width = this.rows.el.clientWidth;
    if (!width) return 0;
    const probe = h("span", { class: "x" }, "0".repeat(100)), row = h("div", { class: "r probe" }, h("span"), h("span"), probe);
    this.rows.inner.append(row);
    const [left, wide] = [probe.offsetLeft, probe.getBoundingClientRect().width / 100];
    row.remove();
    return Math.max(8, Math.floor((width - left - 12) / wide));
  }

  /** What stands after the text of a row. @param {number} at row of the pane */
  #note(at) {
    const { view, pane } = this, broken = pane.id === "source" && view.part.breaks[at];
    const library = view.library ? view.part.library[pane.first + at] : undefined;
    return (library === undefined ? "" : "   ‹ " + view.part.strings[library]) + (broken ? "   ✗ " + broken : "") + this.#recompiles(at);
  }

  /** Recompiles of the function that starts in a source line, or of what follows its graph break. @param {number} at */
  #recompiles(at) {
    const count = this.pane.id === "source" && this.view.part.costs?.[at]?.[0];
    return count ? "   ↻ " + plural(count, "recompile") : "";
  }

  /** CSS classes of a row; equal strings mean equal looks. @param {number} at row of the pane */
  #look(at) {
    const { view, pane } = this;
    const r = pane.first + at, links = /** @type {Links} */ (view.links);
    const ordinal = links.ordinal[r], level = view.level[r], mark = this.#mark();
    let look = "r " + hue(level && view.ordinal > 0 ? view.ordinal : ordinal);
    if (pane.heads.includes(at)) look += " head";
    if (ordinal >= 0) look += " own";
    if (level >= SAME_LINE) look += " hit";
    if (level === LINKED && view.isNarrow) look += " exact";
    if (view.cursor.slot === this.slot && view.cursor.row === at) look += " at";
    if (view.library) look += " with-library";
    if (mark && mark[0] === at) look += ` marked m${mark[1]}-${mark[2]}`;
    return look;
  }

  /** Source range of the selection: [row, from, to]. */
  #mark() {
    const { view } = this;
    return view.slots[this.slot] === "source" && view.cursor.slot !== this.slot ? view.part.marks[view.selected] : null;
  }

  /** @param {number} i row number within what the pane shows */
  #row(i) {
    const { view, pane } = this;
    const at = this.from + i, r = pane.first + at;
    const { links, part } = /** @type {{links: Links, part: any}} */ (view);
    const look = this.#look(at), me = look.includes(" at"), ordinal = links.ordinal[r];
    const before = at > this.from && !pane.heads.includes(at - 1) ? links.ordinal[r - 1] : -2;
    const text = this.texts[at] || "";
    const library = view.library && part.library[r] !== undefined ? h("span", { class: "lib" }, "   ‹ " + part.strings[part.library[r]]) : null;
    const broken = pane.id === "source" && part.breaks[at] ? h("span", { class: "lib bad" }, "   ✗ " + part.breaks[at]) : null;
    const cost = pane.id === "source" ? part.costs?.[at] : null;
    return h(
      "div",
      { class: look, role: "listitem", "data-row": at, "aria-current": me ? "true" : null, title: text.length > 40 ? text.trim().slice(0, 400) : null, onclick: () => view.choose(this.slot, at) },
      h("span", { class: "g" }, ordinal >= 0 && (ordinal !== before || me) ? badge(ordinal) : null),
      h("span", { class: "n", title: cost?.[2], style: cost?.[1] ? `box-shadow:inset -${1 + Math.round(5 * cost[1])}px 0 var(--h)` : null }, pane.numbers ? pane.numbers[at] : String(at + 1)),
      h("span", { class: "x" }, pane.heads.includes(at) ? text : this.#code(text, at), library, broken, cost?.[0] ? h("span", { class: "lib" }, this.#recompiles(at)) : null),
    );
  }

  /** @param {string} text @param {number} at */
  #code(text, at) {
    const runs = tokens(text, this.pane.language), mark = this.#mark();
    const cut = mark && mark[0] === at ? marked(runs, mark[1], mark[2]) : runs.map(([c, t]) => /** @type {[string, string, boolean]} */ ([c, t, false]));
    return cut.map(([kind, t, on]) => (on ? h("mark", { class: kind }, t) : kind ? h("span", { class: kind }, t) : t));
  }

  /** Show the current selection. */
  update() {
    const { view, pane } = this;
    const hits = view.hits(pane).filter((i) => i >= this.from && i < this.end).map((i) => i - this.from);
    const lines = pane.segments.length && view.kernel !== ALL ? this.end - this.from : pane.lines;
    const kernel = view.part.kernels.find((/** @type {any} */ k) => k.id === view.kernel) || (view.part.kernels.length === 1 ? view.part.kernels[0] : null);
    put(this.facts, pane.id === "triton" && kernel ? kernel.facts : pane.id === "source" ? pane.note : null);
    this.count.className = "sp " + (hits.length || view.ordinal < 1 ? "mut" : "none");
    this.count.textContent = !pane.rows ? "" : hits.length ? `${hits.length} of ${lines}` : view.selected < 0 ? plural(lines, "line") : view.whyNone(pane) || "no match";
    this.el.classList.toggle("cur", view.cursor.slot === this.slot);
    const { tops } = this.rows, [marks, all] = tops ? [hits.map((i) => tops[i]), tops[tops.length - 1]] : [hits, this.end - this.from];
    put(this.ruler, rulerMarks(marks, all).map(([top, height]) => h("i", { class: hue(view.ordinal), style: `top:${top * 100}%;height:${height * 100}%` })));
    this.rows.refresh((i, row) => row.className !== this.#look(this.from + i));
    if (view.cursor.slot === this.slot) this.rows.show(view.cursor.row - this.from, 100, true);
    else this.rows.show(hits.length ? hits[0] : -1, 54, true);
  }
}
