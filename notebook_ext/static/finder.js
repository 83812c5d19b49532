// Find: functions, lines, breaks, guards, nodes and kernels of the session, lines of code at every stage, views, and keys of this view.

import { foundIn, linesIn } from "./search.js";
import { h, muted, plural, put } from "./shared/dom.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const FOUND_SHOWN = 60;

export class Finder {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    /** @type {any[][]} */
    this.rows = [];
    /** @type {number[]} */
    this.found = [];
    const id = frame.id + "-find";
    this.field = /** @type {HTMLInputElement} */ (h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": id, "aria-label": "Find anything in this session", placeholder: "A name, a line of any stage, a guard, a node, a kernel, a view …", autocomplete: "off", spellcheck: "false", oninput: () => { this.at = 0; this.draw(); }, onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e) }));
    this.list = h("div", { id, role: "listbox", "aria-label": "Found" });
    this.count = h("p", { class: "mut", role: "status" });
    this.el = h("div", { class: "find", role: "dialog", "aria-label": "Find anything", hidden: true }, this.field, this.list, this.count);
  }

  /** @param {boolean} [isShown] */
  toggle(isShown = this.el.hidden) {
    this.el.hidden = !isShown;
    if (!isShown) return this.frame.focus();
    this.at = 0;
    this.draw();
    this.field.focus({ preventScroll: true });
    this.field.select();
  }

  /** All search rows: those of the session first, then views and keys. */
  gather() {
    const { frame } = this, index = frame.part("index");
    const views = frame.views.map(([id, name]) => ["view", name, "", id]);
    const keys = frame.view.keys.filter((/** @type {any} */ k) => k.keys.length === 1).map((/** @type {any} */ k) => ["key " + k.shown, k.text, "in this view", () => k.run(k.keys[0])]);
    this.rows = [...(index ? index.rows : []), ...views, ...keys];
    return index;
  }

  /** Stage texts of the entry in the linked view; requests missing ones. */
  listings() {
    const linked = this.frame.made.get("linked"), part = linked?.part;
    if (!part) return [];
    return part.panes.filter((/** @type {any} */ p) => p.id !== "source" && p.rows).map((/** @type {any} */ p) => ({ id: p.id, title: p.title, numbers: p.numbers, lines: linked.linesOf(p) || [], entry: linked.entry }));
  }

  /** Rows for lines of code; they follow all named rows. @param {number} most */
  lines(most) {
    const listings = this.field.value.trim().length > 1 ? this.listings() : [], { found, count } = linesIn(listings, this.field.value, most);
    const rows = found.map(([i, row]) => { const { id, title, numbers, lines, entry } = listings[i]; return [title, lines[row].trim().slice(0, 200), `line ${numbers ? numbers[row] : row + 1}, entry ${entry}`, `linked|${entry}|at=${id}:${row}`]; });
    return { rows, count };
  }

  draw() {
    if (this.el.hidden) return;
    const index = this.gather(), named = foundIn(/** @type {any} */ (this.rows), this.field.value, FOUND_SHOWN);
    const lines = this.lines(FOUND_SHOWN), count = named.count + lines.count;
    // Reserve rows for lines, even if many names match.
    const kept = named.found.slice(0, Math.max(FOUND_SHOWN - lines.rows.length, FOUND_SHOWN / 2)), more = lines.rows.slice(0, FOUND_SHOWN - kept.length);
    this.found = [...kept, ...more.map((_, i) => this.rows.length + i)];
    this.rows = [...this.rows, ...more];
    const { found } = this;
    this.at = Math.max(0, Math.min(found.length - 1, this.at));
    put(this.list, found.map((row, i) => this.#row(this.rows[row], i)));
    this.field.setAttribute("aria-activedescendant", found.length ? `${this.list.id}-${this.at}` : "");
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
    this.count.textContent = !index ? "Loading the session's names …" : !count ? "No match." : (count > found.length ? found.length + " of " : "") + plural(count, "result") + "." + (index.limit ? ` Only the first ${index.limit.toLocaleString("en")} names of this session can be found.` : "");
  }

  /** @param {any[]} row @param {number} i */
  #row([kind, name, detail], i) {
    return h("div", { role: "option", id: `${this.list.id}-${i}`, "aria-selected": String(i === this.at), onclick: () => this.take(i) }, h("span", { class: "mut kind" }, kind), h("code", {}, name), muted(detail));
  }

  /** @param {number} i */
  take(i) {
    const row = this.rows[this.found[i]];
    if (!row) return;
    this.toggle(false);
    if (typeof row[3] === "function") row[3]();
    else this.frame.goTo(row[3]);
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[e.key];
    if (by) {
      this.at += by;
      this.draw();
    } else if (e.key === "Enter") this.take(this.at);
    else if (e.key === "Escape") this.toggle(false);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }
}
