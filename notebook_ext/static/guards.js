// Guards: the guards of one cache entry as a tree, in check order.

import { badge, button, choice, entryName, h, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { openRows } from "./shared/layout.js";
import { failureHint, fixList, sourceLine } from "./shared/reasons.js";
import { Rows } from "./shared/rows.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const SIGNS = { pass: "✓", fail: "✗", "not reached": "·", "would pass": "(✓)", "would fail": "(✗)" };
const COLORS = { pass: "ok", fail: "bad", "not reached": "mut", "would pass": "hyp", "would fail": "hyp" };
const TREE_ROW = 22;

/** @param {string} verdict */
function verdictMark(verdict) {
  const v = /** @type {keyof typeof SIGNS} */ (verdict);
  return h("span", { class: COLORS[v] || "mut" }, `${SIGNS[v] || ""} ${verdict}`);
}

/** One symbol: its sources, its value range and the lines that made assumptions about it. @param {any} s */
function symbolHistory(s) {
  const line = (/** @type {any} */ r) => h("li", {}, h("code", {}, r.text), r.line ? [" because of ", r.ordinal ? badge(r.ordinal) : null, " " + r.place, sourceLine(r.source)] : null);
  return h(
    "div",
    { class: "sym" },
    h("p", {}, h("b", {}, s.name), " is ", s.places.map((/** @type {string} */ p, /** @type {number} */ i) => [i ? " and " : "", h("code", {}, p)]), `: ${s.hint} when it was traced; valid for `, h("b", {}, s.range), "."),
    mutedLine(sentence(s.why)),
    s.specialized_by ? h("ul", {}, line({ ...s.specialized_by, text: `specialized to ${s.became}` })) : null,
    s.relations.length && !s.became ? h("ul", {}, s.relations.map(line)) : null,
  );
}

/** Fields for each input of the last call. A change asks the cache which entry the call would hit. */
class WhatIf {
  /** @param {Frame} frame @param {() => string} entry @param {(found: any) => void} show */
  constructor(frame, entry, show) {
    this.frame = frame;
    this.entry = entry;
    this.show = show;
    /** @type {Record<string, Record<string, string>>} */
    this.edits = {};
    this.isWaiting = false;
    this.inputs = h("div", { class: "wi-in" });
    this.answer = h("div", { class: "wi-out", "aria-live": "polite" });
    this.el = h("div", { class: "whatif", role: "group", "aria-label": "What if", hidden: true }, this.inputs, this.answer);
  }

  toggle() {
    this.el.hidden = !this.el.hidden;
    if (this.el.hidden) return this.show(null);
    this.ask();
  }

  /** Forget the edits, for example because another entry is shown. */
  reset() {
    this.edits = {};
    put(this.inputs);
    if (!this.el.hidden) this.ask();
  }

  ask() {
    const { progress } = this.frame.overview.summary;
    this.isWaiting = true;
    put(this.answer, muted(progress ? `Asking the kernel, which is busy: ${progress} …` : "Asking the kernel …"));
    this.frame.ask({ type: "what-if", entry: this.entry(), edits: this.edits }, () => this.isWaiting);
  }

  /** @param {any} data */
  told(data) {
    this.isWaiting = false;
    if (!this.inputs.childElementCount) put(this.inputs, Object.entries(data.inputs).map(([path, fields]) => this.row(path, fields)));
    // The fields show the call that the answer is about; text that is being typed stays.
    for (const field of this.inputs.querySelectorAll("input")) {
      const { path = "", name = "" } = field.dataset, text = data.asked[path]?.[name];
      if (text !== undefined && field !== document.activeElement) field.value = text;
    }
    const changed = Object.keys(this.edits).length > 0;
    if (data.problem || !data.told) {
      put(this.answer, h("span", { class: "bad" }, data.problem || "No answer."));
      this.show(null);
      return this.frame.say(h("b", {}, "What if: "), data.problem);
    }
    const { told } = data;
    put(
      this.answer,
      h("p", {}, h("span", { class: told.hit ? "ok" : "new" }, (told.hit ? "● " : "◆ ") + told.text), changed ? null : muted(" These are the inputs of the last recorded call: change a field. No tensor is created.")),
      told.rejections.map((/** @type {any} */ r) => h("p", { class: r.is_reached ? null : "hyp" }, h("b", {}, "e" + r.entry), r.is_reached ? h("span", { class: "bad" }, " ✗ ") : " (✗) not reached: look-up stops at the hit. It would fail: ", r.sentence)),
      changed ? button("Reset", "", () => this.reset()) : null,
    );
    this.show(changed ? told.case && { ...told.case, call: 0 } : null);
    this.frame.say(h("b", {}, "What if: "), told.text);
  }

  /** @param {string} path @param {any} fields */
  row(path, fields) {
    const edit = (/** @type {string} */ name, /** @type {string} */ value) => {
      if (value === (this.edits[path]?.[name] ?? fields[name])) return;
      const of = (this.edits[path] = this.edits[path] || {});
      if (value === fields[name]) delete of[name];
      else of[name] = value;
      if (name === "shape") delete of.stride;
      if (!Object.keys(of).length) delete this.edits[path];
      this.ask();
    };
    const label = (/** @type {string} */ name) => `${name} of ${path}`;
    const text = (/** @type {string} */ name, /** @type {number} */ size) => h("input", { type: "text", value: fields[name], size, "data-path": path, "data-name": name, "aria-label": label(name), spellcheck: "false", onchange: (/** @type {Event} */ e) => edit(name, /** @type {HTMLInputElement} */ (e.target).value), onkeydown: (/** @type {KeyboardEvent} */ e) => e.key === "Enter" && edit(name, /** @type {HTMLInputElement} */ (e.target).value) });
    const pick = (/** @type {string} */ name, /** @type {string[]} */ from) => choice(label(name), [...new Set([fields[name], ...from])].map((v) => [v, name === "requires_grad" ? `requires_grad ${v}` : v]), fields[name], (v) => edit(name, v));
    if ("value" in fields) return h("div", { class: "wi" }, h("code", {}, path), text("value", 10));
    return h("div", { class: "wi" }, h("code", {}, path), "[", text("shape", 10), "]", pick("dtype", DTYPES), pick("device", ["cpu", "cuda:0"]), pick("requires_grad", ["False", "True"]), h("label", {}, muted("strides "), text("stride", 10)));
  }
}

const DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "bool", "complex64"];

class GuardsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.entry = "";
    /** @type {any} */
    this.part = null;
    this.case = -1;
    /** The case that was shown before the hypothetical one. */
    this.before = -1;
    this.at = -1;
    this.isOpenEnded = false;
    this.closed = new Set();
    this.filter = "";
    /** @type {number[]} */
    this.shown = [];
    this.context = h("div", { class: "ctx" });
    this.whatIf = new WhatIf(frame, () => this.entry, (found) => this.suppose(found));
    this.rows = new Rows((i) => this.#row(i), { role: "rowgroup", class: "tree", "aria-label": "Guards" }, TREE_ROW);
    this.head = h("div", { class: "tr th", role: "row" }, ["#", "Value and guard", "Expected", "Verdict", "Cost", "Line"].map((t) => h("span", { role: "columnheader" }, t)));
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "Selected guard" });
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search  /", "aria-label": "Search guards", oninput: () => { this.filter = this.search.value.toLowerCase(); this.reset(); } }));
    this.el = h("div", { class: "guards" }, this.context, this.whatIf.el, h("div", { class: "two" }, (this.box = h("div", { class: "treebox", role: "treegrid", "aria-label": "Guards by value" }, this.head, this.rows.el)), this.side));
    this.keys = [
      key("n p", "next or previous guard in the order in which they are checked", (k) => this.step(k === "n" ? 1 : -1)),
      key("F", "first failure", () => this.failure()),
      key("e", "evaluate the guards after the failure (hypothetical), or not", () => this.toggleRest()),
      key("ArrowDown ArrowUp", "next or previous row of the tree", (k) => this.move(k === "ArrowDown" ? 1 : -1)),
      key("ArrowLeft ArrowRight", "close the value around the guard, again for the one around that; or open it", (k) => this.fold(k === "ArrowLeft")),
      key("Enter", "show the line in the linked view", () => this.link()),
      key("w", "what-if: change the inputs of the call", () => this.toggleWhatIf()),
      key("c", "measure what each guard costs", () => this.frame.act("measure")),
      key("s", "history of each symbol", () => this.symbolHistories()),
      key("/", "search", () => this.search.focus()),
    ];
  }

  toggleWhatIf() {
    if (!this.part) return;
    this.whatIf.toggle();
    this.drawContext();
  }

  /** The kernel's answer to a what-if question. @param {string} entry @param {any} data */
  told(entry, data) {
    if (entry === this.entry) this.whatIf.told(data);
  }

  /** Show the verdicts for a hypothetical call. @param {any} found a case, or null if the call hits this entry */
  suppose(found) {
    if (!this.part) return;
    const isSupposed = this.chosen && !this.chosen.call;
    if (!found && !isSupposed) return;
    if (!isSupposed) this.before = this.case;
    this.part.cases = this.part.cases.filter((/** @type {any} */ c) => c.call);
    if (found) this.part.cases.push(found);
    this.case = found ? this.part.cases.length - 1 : this.before;
    if (this.chosen) this.at = this.chosen.failed;
    this.drawContext();
    this.reset();
  }

  /** Show the history of each symbol beside the tree. */
  symbolHistories() {
    if (!this.part) return;
    if (!this.part.symbols.length) return this.frame.say("This entry has no symbols: it is specialized to the sizes and numbers of its first call.");
    this.at = -1;
    this.rows.redraw();
    put(this.side, h("h4", {}, plural(this.part.symbols.length, "symbol")), this.part.symbols.map(symbolHistory));
    this.frame.say("Symbols: ", this.part.symbols.map((/** @type {any} */ s) => `${s.name} is ${s.places[0]}, ${s.range}. `));
  }

  /** The current selection, as arguments of `open`. */
  where() {
    if (!this.part || this.at < 0) return [this.entry];
    return [this.entry, ...(this.chosen && this.chosen.call ? ["call=" + this.chosen.call] : []), "guard=" + (this.at + 1)];
  }

  /** All guards in check order, as text. */
  text() {
    return this.part ? this.part.guards.map((/** @type {any} */ g, /** @type {number} */ i) => [`${i + 1}. ${g.origin} ${g.kind}: ${g.expected}`, ...this.verdict(i).filter(Boolean), g.line ? g.place : ""].filter(Boolean).join("  ")).join("\n") : "";
  }

  /** @param {string} [entry] @param {...string} what "call=3", "guard=17" */
  open(entry, ...what) {
    if (entry && entry !== this.entry) {
      this.part = null;
      this.entry = entry;
    }
    for (const one of what) {
      if (one.startsWith("call=")) this.wantedCall = +one.slice(5);
      if (one.startsWith("guard=")) this.wantedGuard = +one.slice(6) - 1;
      this.part = null;
    }
  }

  draw() {
    const entries = this.frame.overview.entries;
    if (!this.frame.entry(this.entry)) this.entry = (entries.find((/** @type {any} */ e) => e.rejected) || entries[0] || { id: "" }).id;
    const part = this.entry ? this.frame.part("guards|" + this.entry) : null;
    if (!part) {
      put(this.context);
      put(this.side, mutedLine(this.entry ? "Loading …" : "Nothing was compiled, so there are no guards."));
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
        this.at = this.wantedGuard ?? this.#first();
        this.at = Math.min(this.at, part.guards.length - 1);
        this.wantedCall = this.wantedGuard = undefined;
      }
    }
    this.drawContext();
    this.reset();
  }

  /** Index of the guard to select first: the failing one, else 0; -1 if a call missed and the failing guard is unknown. */
  #first() {
    const found = this.chosen;
    return !found || found.passes ? 0 : found.failed;
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
      choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, entryName(e)]), this.entry, (v) => { this.part = null; this.entry = v; this.whatIf.reset(); this.draw(); }),
      this.part.cases.length
        ? choice("Call", this.part.cases.map((/** @type {any} */ c, /** @type {number} */ i) => [String(i), c.call ? `against ${c.title}` : "against the what-if call"]), String(this.case), (v) => { this.case = +v; this.at = this.#first(); this.draw(); })
        : muted("no guard of this entry failed for any call"),
      failed >= 0 ? h("span", { class: "bad" }, `✗ fails at ${failed + 1} of ${this.part.guards.length}`) : found && found.passes ? h("span", { class: "ok" }, "✓ all pass: cache hit") : null,
      h("span", { class: "sp" }),
      button("◂ p", "p", () => this.step(-1)),
      button("n ▸", "n", () => this.step(1)),
      button("First failure", "F", () => this.failure(), { disabled: failed < 0 }),
      button("What if", "w", () => this.toggleWhatIf(), { "aria-pressed": String(!this.whatIf.el.hidden) }),
      this.part.symbols.length ? button(plural(this.part.symbols.length, "symbol"), "s", () => this.symbolHistories()) : null,
      this.part.guards.some((/** @type {any} */ g) => g.cost != null) ? null : button("Measure", "c", () => this.frame.act("measure")),
      button("Evaluate the rest", "e", () => this.toggleRest(), { "aria-pressed": String(this.isOpenEnded), disabled: failed < 0 }),
      this.search,
    );
  }

  reset() {
    const tree = this.part.tree;
    this.box.classList.toggle("nocost", this.part.guards.every((/** @type {any} */ g) => g.cost == null));
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
        cell(isClosed ? "▸" : "▾", "mut"), cell([h("code", {}, row.label), muted("  " + row.count)], "wide", indent), cell(failures ? plural(failures, "failure") : "", "bad"), cell(""), cell(""),
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

  /** Go to the next or previous guard in check order; stop at the failure unless the rest is evaluated. @param {number} by */
  step(by) {
    if (!this.part) return;
    const failed = this.chosen ? this.chosen.failed : -1;
    if (by > 0 && failed >= 0 && this.at >= failed && !this.isOpenEnded) return this.frame.say(`The check stops at guard ${failed + 1}. Press e to evaluate the remaining guards (hypothetical).`);
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
    const row = this.part.tree.findIndex((/** @type {any} */ r) => r.guard === this.at), here = this.shown.indexOf(this.#ancestors(row).findLast((i) => this.closed.has(i)) ?? row);
    for (let i = here + by; i >= 0 && i < this.shown.length; i += by) if (this.part.tree[this.shown[i]].guard >= 0) return this.go(this.part.tree[this.shown[i]].guard);
  }

  /** @param {boolean} isClosing */
  fold(isClosing) {
    if (!this.part) return;
    const above = this.#ancestors(this.part.tree.findIndex((/** @type {any} */ r) => r.guard === this.at)), outermost = above.findLast((i) => this.closed.has(i));
    const wanted = !isClosing ? outermost : outermost === undefined ? above[0] : this.part.tree[outermost].parent;
    if (wanted !== undefined && wanted >= 0) this.toggle(wanted);
  }

  /** Rows above a row of the tree, nearest first. @param {number} row */
  #ancestors(row) {
    const found = [];
    for (let i = row < 0 ? -1 : this.part.tree[row].parent; i >= 0; i = this.part.tree[i].parent) found.push(i);
    return found;
  }

  link() {
    const g = this.part && this.part.guards[this.at];
    if (g && g.line) this.frame.open("linked", this.entry, "line=" + g.line);
    else this.frame.say("No line is known for this guard.");
  }

  update() {
    this.rows.redraw();
    this.rows.show(this.shown.findIndex((i) => this.part.tree[i].guard === this.at), 88);
    const g = this.part.guards[this.at];
    if (!g) {
      const refused = this.chosen && this.chosen.failed < 0 ? this.chosen.sentence : "";
      put(this.side, refused ? [h("h4", {}, "Why the call missed"), h("p", {}, refused), mutedLine("The failing guard was not recorded.")] : mutedLine(this.part.empty || "Choose a guard."));
      return this.frame.say(refused || this.part.empty || "Choose a guard.");
    }
    const [verdict, actual] = this.verdict(this.at), found = this.chosen, failed = found && found.failed === this.at;
    const other = verdict === "fail" ? "bad" : verdict === "would fail" ? "hyp" : "";
    put(
      this.side,
      h("h4", {}, `Step ${this.at + 1} of ${this.part.guards.length}`),
      h("p", {}, h("code", {}, g.origin), " · ", g.kind, " ", verdict ? verdictMark(verdict) : null),
      g.path.length > 1 ? mutedLine("reached through ", h("code", {}, g.path.join(" "))) : null,
      h("dl", { class: "kv" }, h("dt", {}, "expected"), h("dd", {}, h("code", {}, g.expected)), actual || verdict.endsWith("fail") ? [h("dt", {}, "actual"), h("dd", {}, h("code", { class: other }, actual || "not recorded"))] : null, g.code ? [h("dt", {}, "check"), h("dd", {}, h("code", {}, g.code))] : null),
      g.line ? [h("h4", {}, "Because of ", g.ordinal ? badge(g.ordinal) : null, " " + g.place), sourceLine(g.source), g.callers.length ? mutedLine("called from " + g.callers.join(", from ")) : null, button("Show in linked view", "Enter", () => this.link())] : null,
      g.why ? [h("h4", {}, "Why it exists"), h("p", {}, sentence(g.why))] : null,
      g.cost != null ? mutedLine(`${Math.round(g.cost)} ns measured separately, including the read of the value`) : null,
      failed ? [h("h4", {}, "Fixes, best first"), fixList(found.fixes, this.frame.overview.is_observed), failureHint(found.lesson), !this.frame.overview.is_observed && found.call && found.fixes.some((/** @type {any} */ f) => f.code && !f.verified && !f.unverified_reason) ? button("Try the fixes", "", () => this.frame.act("try")) : null] : null,
    );
    const told = verdict === "fail" ? `fails: expected ${g.expected}, got ${actual || "another value"}.` : verdict === "pass" ? `passes: ${g.expected}.` : verdict ? `${verdict}: expected ${g.expected}.` : `expects ${g.expected}.`;
    this.frame.say(`Guard ${this.at + 1}: `, h("code", {}, g.origin), ` ${g.kind} ${told} `, failed && found.sentence ? muted(found.sentence) : null, verdict.startsWith("would") ? h("span", { class: "hyp" }, "Hypothetical: the check stops at an earlier guard.") : null);
  }
}

VIEWS.set("guards", GuardsView);
