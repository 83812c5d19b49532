// The guard tree: what one cache entry takes for granted, walked in the order in which it is checked.

import { badge, button, choice, h, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { openRows } from "./shared/layout.js";
import { Rows } from "./shared/rows.js";
import { tokens } from "./shared/tokens.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const SIGNS = { pass: "✓", fail: "✗", "not reached": "·", "would pass": "(✓)", "would fail": "(✗)" };
const COLOURS = { pass: "ok", fail: "bad", "not reached": "mut", "would pass": "hyp", "would fail": "hyp" };
const TREE_ROW = 22;

/** @param {string} verdict */
export function verdictMark(verdict) {
  const v = /** @type {keyof typeof SIGNS} */ (verdict);
  return h("span", { class: COLOURS[v] || "mut" }, `${SIGNS[v] || ""} ${verdict}`);
}

/** Suggested changes as a list. @param {any[]} fixes */
export function fixList(fixes) {
  if (!fixes.length) return h("p", { class: "mut" }, "No safe change is known: accept another entry, or keep this input as it was.");
  const unverified = fixes.some((f) => !f.verified);
  return h(
    "div",
    {},
    h("ol", { class: "fixes" }, fixes.map((f) => h("li", {}, sentence(f.text), f.code ? h("pre", { class: "code" }, f.code) : null, f.verified ? h("span", { class: "ok" }, "✓ " + f.verified) : null))),
    unverified ? h("p", { class: "mut" }, "Not re-run, so not verified.") : null,
  );
}

/** A line of the user's code. @param {string} source */
export function sourceLine(source) {
  return h("pre", { class: "code" }, tokens(source, "python").map(([kind, text]) => (kind ? h("span", { class: kind }, text) : text)));
}

export class GuardsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "guards";
    this.name = "Guards";
    this.entry = "";
    /** @type {any} */
    this.part = null;
    this.case = -1;
    this.at = -1;
    this.isOpenEnded = false;
    this.closed = new Set();
    this.filter = "";
    /** @type {number[]} */
    this.shown = [];
    this.context = h("div", { class: "ctx" });
    this.rows = new Rows((i) => this.#row(i), { role: "rowgroup", class: "tree" }, TREE_ROW);
    this.head = h("div", { class: "tr th", role: "row" }, ["#", "Value and guard", "Expected", "Verdict", "Cost", "Line"].map((t) => h("span", { role: "columnheader" }, t)));
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "The guard in hand" });
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search  /", "aria-label": "Search guards", oninput: () => { this.filter = this.search.value.toLowerCase(); this.reset(); } }));
    this.el = h("div", { class: "guards" }, this.context, h("div", { class: "two" }, h("div", { class: "treebox", role: "treegrid", "aria-label": "Guards by value" }, this.head, this.rows.el), this.side));
    this.keys = [
      key("n p", "next or previous guard in the order in which they are checked", (k) => this.step(k === "n" ? 1 : -1)),
      key("F", "first failure", () => this.failure()),
      key("e", "evaluate the rest after a failure (hypothetical), or stop there", () => this.toggleRest()),
      key("ArrowDown ArrowUp", "next or previous row of the tree", (k) => this.move(k === "ArrowDown" ? 1 : -1)),
      key("ArrowLeft ArrowRight", "close or open a value", (k) => this.fold(k === "ArrowLeft")),
      key("Enter", "show the line in the linked view", () => this.link()),
      key("/", "search", () => this.search.focus()),
    ];
  }

  /** @param {string} [entry] @param {string} [what] "call=3" */
  open(entry, what) {
    if (entry && entry !== this.entry) {
      this.part = null;
      this.entry = entry;
    }
    if (what && what.startsWith("call=")) this.wantedCall = +what.slice(5);
    if (what) this.part = null;
  }

  draw() {
    const entries = this.frame.overview.entries;
    if (!this.frame.entry(this.entry)) this.entry = (entries.find((/** @type {any} */ e) => e.rejected) || entries[0] || { id: "" }).id;
    const part = this.entry ? this.frame.part("guards|" + this.entry) : null;
    if (!part) {
      put(this.context);
      put(this.side, h("p", { class: "mut" }, this.entry ? "Loading …" : "Nothing was compiled, so there are no guards."));
      this.rows.reset(0);
      return;
    }
    if (part !== this.part) {
      const isNew = !this.part;
      this.part = part;
      if (isNew) {
        const wanted = part.cases.findIndex((/** @type {any} */ c) => c.call === this.wantedCall);
        this.case = wanted >= 0 ? wanted : part.cases.length ? 0 : -1;
        this.closed.clear();
        this.isOpenEnded = false;
        this.at = this.case >= 0 ? part.cases[this.case].failed : part.guards.length ? 0 : -1;
      }
    }
    this.drawContext();
    this.reset();
  }

  get chosen() {
    return this.case >= 0 ? this.part.cases[this.case] : null;
  }

  /** @param {number} guard @returns {[string, string]} verdict and actual value */
  verdict(guard) {
    if (!this.chosen) return ["", ""];
    const [verdict, actual] = this.chosen.verdicts[guard];
    if (!this.isOpenEnded && verdict.startsWith("would")) return ["not reached", ""];
    return [verdict, actual];
  }

  drawContext() {
    const { entries } = this.frame.overview, found = this.chosen;
    const failed = found ? found.failed : -1;
    put(
      this.context,
      choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, `${e.name} entry ${e.entry}${e.inputs ? ": " + e.inputs : ""}`]), this.entry, (v) => { this.part = null; this.entry = v; this.draw(); }),
      this.part.cases.length
        ? choice("Call", this.part.cases.map((/** @type {any} */ c, /** @type {number} */ i) => [String(i), `against ${c.title}`]), String(this.case), (v) => { this.case = +v; this.at = this.chosen.failed; this.draw(); })
        : h("span", { class: "mut" }, "no call was rejected by this entry"),
      failed >= 0 ? h("span", { class: "bad" }, `✗ fails at ${failed + 1} of ${this.part.guards.length}`) : null,
      h("span", { class: "sp" }),
      button("◂ p", "p", () => this.step(-1)),
      button("n ▸", "n", () => this.step(1)),
      button("First failure", "F", () => this.failure(), { disabled: failed < 0 }),
      button("Evaluate the rest", "e", () => this.toggleRest(), { "aria-pressed": String(this.isOpenEnded), disabled: failed < 0 }),
      this.search,
    );
  }

  reset() {
    const tree = this.part.tree;
    const matches = (/** @type {any} */ row) => {
      if (row.guard < 0) return false;
      const g = this.part.guards[row.guard];
      return `${g.origin} ${g.kind} ${g.expected}`.toLowerCase().includes(this.filter);
    };
    this.shown = this.filter ? tree.flatMap((/** @type {any} */ row, /** @type {number} */ i) => (matches(row) ? [i] : [])) : openRows(tree, this.closed);
    this.rows.reset(this.shown.length);
    this.update();
  }

  /** @param {number} i */
  #row(i) {
    const index = this.shown[i], row = this.part.tree[index];
    const indent = `padding-left:${(this.filter ? 0 : row.depth) * 14 + 4}px`;
    const cell = (/** @type {any} */ text, /** @type {string} */ kind = "", /** @type {string} */ style = "") => h("span", { role: "gridcell", class: kind, style }, text);
    if (row.guard < 0) {
      const isClosed = this.closed.has(index);
      const failures = this.failuresBelow(index);
      return h(
        "div",
        { class: "tr grp", role: "row", "aria-level": row.depth + 1, "aria-expanded": String(!isClosed), onclick: () => { this.toggle(index); this.frame.focus(); } },
        cell(isClosed ? "▸" : "▾", "mut"), cell([h("code", {}, row.label), h("span", { class: "mut" }, "  " + row.count)], "wide", indent), cell(failures ? plural(failures, "failure") : "", "bad"), cell(""), cell(""),
      );
    }
    const g = this.part.guards[row.guard], [verdict] = this.verdict(row.guard);
    return h(
      "div",
      { class: "tr" + (this.at === row.guard ? " sel" : ""), role: "row", "aria-level": row.depth + 1, "aria-selected": String(this.at === row.guard), onclick: () => { this.go(row.guard); this.frame.focus(); } },
      cell(row.guard + 1, "mut num"),
      cell([row.label || this.filter ? h("code", {}, (row.label || g.origin) + " ") : null, g.kind], "", indent),
      cell(h("code", { title: g.expected }, g.expected)),
      cell(verdict ? verdictMark(verdict) : ""),
      cell(g.cost == null ? "" : Math.round(g.cost) + " ns", "num mut"),
      cell(g.line ? [g.ordinal ? badge(g.ordinal) : null, " " + g.line] : "", "num"),
    );
  }

  /** @param {number} index of a value in the tree */
  failuresBelow(index) {
    const { tree } = this.part;
    let count = 0;
    for (let i = index + 1; i < tree.length && tree[i].depth > tree[index].depth; i++) if (tree[i].guard >= 0 && this.verdict(tree[i].guard)[0].endsWith("fail")) count++;
    return count;
  }

  /** @param {number} index */
  toggle(index) {
    if (this.closed.has(index)) this.closed.delete(index);
    else this.closed.add(index);
    this.reset();
  }

  /** @param {number} guard */
  go(guard) {
    if (!this.part || !this.part.guards.length) return;
    this.at = Math.max(0, Math.min(this.part.guards.length - 1, guard));
    const { tree } = this.part;
    let opened = false;
    for (let i = tree.findIndex((/** @type {any} */ r) => r.guard === this.at); i >= 0; i = tree[i].parent) opened = this.closed.delete(i) || opened;
    if (opened) this.reset();
    else this.update();
  }

  /** One guard on or back in the order of checking; stops at the failure unless the rest is evaluated. @param {number} by */
  step(by) {
    if (!this.part) return;
    const failed = this.chosen ? this.chosen.failed : -1;
    if (by > 0 && failed >= 0 && this.at >= failed && !this.isOpenEnded) return this.frame.say(`The check stops at guard ${failed + 1}. Press e to evaluate the rest, as a hypothesis.`);
    this.go(this.at + by);
  }

  failure() {
    if (this.part && this.chosen && this.chosen.failed >= 0) this.go(this.chosen.failed);
    else this.frame.say("No guard fails here.");
  }

  toggleRest() {
    if (!this.part) return;
    this.isOpenEnded = !this.isOpenEnded;
    this.drawContext();
    this.reset();
  }

  /** @param {number} by */
  move(by) {
    if (!this.part) return;
    const here = this.shown.findIndex((i) => this.part.tree[i].guard === this.at);
    for (let i = here + by; i >= 0 && i < this.shown.length; i += by) if (this.part.tree[this.shown[i]].guard >= 0) return this.go(this.part.tree[this.shown[i]].guard);
  }

  /** @param {boolean} isClosing */
  fold(isClosing) {
    if (!this.part) return;
    const index = this.part.tree.findIndex((/** @type {any} */ r) => r.guard === this.at);
    const parent = index < 0 ? -1 : this.part.tree[index].parent;
    if (parent >= 0 && this.closed.has(parent) !== isClosing) this.toggle(parent);
  }

  link() {
    const g = this.part && this.part.guards[this.at];
    if (g && g.line) this.frame.open("linked", this.entry, "line=" + g.line);
    else this.frame.say("No line is known for this guard.");
  }

  update() {
    this.rows.redraw();
    this.rows.show(this.shown.findIndex((i) => this.part.tree[i].guard === this.at), 80);
    const g = this.part.guards[this.at];
    if (!g) {
      const refused = this.chosen && this.chosen.failed < 0 ? this.chosen.sentence : "";
      put(this.side, refused ? [h("h4", {}, "Why the call was refused"), h("p", {}, refused), h("p", { class: "mut" }, "Which guard said so was not recorded.")] : h("p", { class: "mut" }, this.part.empty || "Choose a guard."));
      return this.frame.say(refused || this.part.empty || "Choose a guard.");
    }
    const [verdict, actual] = this.verdict(this.at), found = this.chosen, failed = found && found.failed === this.at;
    const other = verdict === "fail" ? "bad" : verdict === "would fail" ? "hyp" : "";
    put(
      this.side,
      h("h4", {}, `Step ${this.at + 1} of ${this.part.guards.length}`),
      h("p", {}, h("code", {}, g.origin), " · ", g.kind, " ", verdict ? verdictMark(verdict) : null),
      g.path.length > 1 ? h("p", { class: "mut" }, "reached through ", h("code", {}, g.path.join(" "))) : null,
      h("dl", { class: "kv" }, h("dt", {}, "expected"), h("dd", {}, h("code", {}, g.expected)), actual || verdict.endsWith("fail") ? [h("dt", {}, "actual"), h("dd", {}, h("code", { class: other }, actual || "not told"))] : null, g.code ? [h("dt", {}, "check"), h("dd", {}, h("code", {}, g.code))] : null),
      g.line ? [h("h4", {}, "Because of ", g.ordinal ? badge(g.ordinal) : null, " " + g.place), sourceLine(g.source), button("Show in linked view", "Enter", () => this.link())] : null,
      g.why ? [h("h4", {}, "Why it exists"), h("p", {}, sentence(g.why))] : null,
      failed ? [h("h4", {}, "What to do, best first"), fixList(found.fixes)] : null,
    );
    const told = verdict === "fail" ? `fails: expected ${g.expected}, got ${actual || "another value"}.` : verdict === "pass" ? `passes: ${g.expected}.` : verdict ? `${verdict}: expected ${g.expected}.` : `expects ${g.expected}.`;
    this.frame.say(`Guard ${this.at + 1}: `, h("code", {}, g.origin), ` ${g.kind} ${told} `, failed && found.sentence ? h("span", { class: "mut" }, found.sentence) : null, verdict.startsWith("would") ? h("span", { class: "hyp" }, "Hypothetical: the check had stopped before.") : null);
  }
}
