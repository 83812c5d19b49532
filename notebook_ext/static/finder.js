// Find anything: functions, lines, breaks, guards, nodes and kernels of the session, views, and what the keys of this view do.

import { foundIn } from "./search.js";
import { h, plural, put } from "./shared/dom.js";

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
    this.field = /** @type {HTMLInputElement} */ (h("input", { type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": id, "aria-label": "Find anything in this session", placeholder: "A name, a line, a guard, a node, a kernel, a view …", autocomplete: "off", spellcheck: "false", oninput: () => { this.at = 0; this.draw(); }, onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e) }));
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

  /** Everything that can be found: the session's own first, then views and keys. */
  gather() {
    const { frame } = this, index = frame.part("index");
    const views = frame.views.map(([id, name]) => ["view", name, "", id]);
    const keys = frame.view.keys.filter((/** @type {any} */ k) => k.keys.length === 1).map((/** @type {any} */ k) => ["key " + k.shown, k.text, "in this view", () => k.run(k.keys[0])]);
    this.rows = [...(index ? index.rows : []), ...views, ...keys];
    return index;
  }

  draw() {
    if (this.el.hidden) return;
    const index = this.gather(), { found, count } = foundIn(/** @type {any} */ (this.rows), this.field.value, FOUND_SHOWN);
    this.found = found;
    this.at = Math.max(0, Math.min(found.length - 1, this.at));
    put(this.list, found.map((row, i) => this.#row(this.rows[row], i)));
    this.field.setAttribute("aria-activedescendant", found.length ? `${this.list.id}-${this.at}` : "");
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
    this.count.textContent = !index ? "The session's own names are on their way …" : !count ? "No match." : (count > found.length ? `${found.length} of ${plural(count, "match")}: type more.` : plural(count, "match")) + (index.cut ? ` ${plural(index.cut, "further item")} of this session cannot be found here.` : "");
  }

  /** @param {any[]} row @param {number} i */
  #row([kind, name, detail], i) {
    return h("div", { role: "option", id: `${this.list.id}-${i}`, "aria-selected": String(i === this.at), onclick: () => this.take(i) }, h("span", { class: "mut kind" }, kind), h("code", {}, name), h("span", { class: "mut" }, detail));
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
