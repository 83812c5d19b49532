// Tracer: every traced instruction, to step through in both directions.

import { badge, button, choice, entryName, h, hue, muted, mutedLine, plural, put, valueMap } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { ROW } from "./shared/layout.js";
import { Rows } from "./shared/rows.js";
import { marked, tokens } from "./shared/tokens.js";
import { EVENT, Timeline, countUpTo, tickPlaces } from "./steps.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

/** Maximum length of a list that is drawn completely: lists are redrawn at each step. */
const DRAWN = 30;
const TICKS = 400;
/** With more ticks of one kind than this, each kind gets its own band so that ticks do not overlap. */
const CROWD = 80;
/** Kinds of ticks: class, words. */
const TICK_KINDS = [["tk-op", "graph op"], ["tk-guard", "guard"], ["tk-call", "inlined call, in or out"], ["tk-break", "break"]];

class TracerView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.entry = "";
    /** @type {any} */
    this.part = null;
    /** @type {any} */
    this.time = null;
    this.at = 0;
    /** The step whose line the source pane shows: the current one, or the call that left the recorded source. */
    this.sourceStep = 0;
    /** Source rows with a breakpoint. @type {Set<number>} */
    this.stops = new Set();
    /** Instructions of the code in view, in order. @type {number[]} */
    this.listing = [];
    this.code = -1;
    this.context = h("div", { class: "ctx" });
    this.slider = /** @type {HTMLInputElement} */ (h("input", { type: "range", min: "0", value: "0", "aria-label": "Step", oninput: () => this.go(+this.slider.value), onkeydown: (/** @type {KeyboardEvent} */ e) => this.sliderKey(e) }));
    this.ticks = h("div", { class: "ticks", "aria-hidden": "true" });
    this.counter = h("code", { class: "nw" });
    const move = h("div", { class: "ctx moves" },
      button("|◂", "Home", () => this.go(0), { "aria-label": "First step" }), button("◂", "←", () => this.go(this.at - 1), { "aria-label": "Step back" }), button("▸", "→", () => this.go(this.at + 1), { "aria-label": "Step on" }), button("▸|", "End", () => this.go(Infinity), { "aria-label": "Last step" }),
      h("div", { class: "track-of-steps" }, this.ticks, this.slider), this.counter,
      button("◂ line", "↑", () => this.line(-1)), button("line ▸", "↓", () => this.line(1)), button("op ▸", "g", () => this.jump("op", 1)), button("into ▸", "i", () => this.into()), button("out ▸", "o", () => this.out()), button("break ▸", "x", () => this.jump("break", 1)), button("breakpoint", "b", () => this.toggleStop()), button("to breakpoint ▸", "B", () => this.toStop(1)));
    this.source = this.#pane("Source", new Rows((i) => this.#sourceRow(i), { role: "list", "aria-label": "Source lines" }, ROW, DRAWN));
    this.graph = this.#pane("Graph so far", new Rows((i) => this.#nodeRow(i), { role: "list", "aria-label": "Graph so far" }, ROW, DRAWN));
    this.effects = this.#pane("Pending side effects", new Rows((i) => this.#factRow("effects", i), { role: "list", "aria-label": "Pending side effects" }, ROW, DRAWN));
    this.bytecode = this.#pane("Bytecode", new Rows((i) => this.#opRow(i), { role: "list", "aria-label": "Bytecode" }, ROW, DRAWN));
    this.guards = this.#pane("Guards so far", new Rows((i) => this.#factRow("guards", i), { role: "list", "aria-label": "Guards so far" }, ROW, DRAWN));
    this.stack = this.#pane("Stack");
    this.locals = this.#pane("Locals");
    this.frames = this.#pane("Frames");
    const column = (/** @type {any[]} */ ...panes) => h("div", { class: "tcol" }, panes.map((p) => p.el));
    this.panes = h("div", { class: "tgrid" }, column(this.source, this.graph, this.effects), column(this.bytecode, this.guards), column(this.stack, this.locals, this.frames));
    this.none = h("p", { class: "pad" });
    this.body = h("div", {}, move, this.panes);
    this.el = h("div", { class: "tracer" }, this.context, this.none, this.body);
    this.keys = [
      key("ArrowRight ArrowLeft", "next or previous instruction", (k) => this.go(this.at + (k === "ArrowRight" ? 1 : -1))),
      key("ArrowDown ArrowUp", "next or previous source line", (k) => this.line(k === "ArrowDown" ? 1 : -1)),
      key("i o", "into the next inlined call, out of this one", (k) => (k === "i" ? this.into() : this.out())),
      key("g G", "next or previous graph op", (k) => this.jump("op", k === "g" ? 1 : -1)),
      key("x", "next break", () => this.jump("break", 1)),
      key("b", "set or clear a breakpoint on this line", () => this.toggleStop()),
      key("B", "continue to the next breakpoint", () => this.toStop(1)),
      key("Home End", "first or last step", (k) => this.go(k === "Home" ? 0 : Infinity)),
      key("Enter", "show the line in the linked view", () => this.link()),
    ];
  }

  /** @param {string} title @param {Rows} [rows] */
  #pane(title, rows) {
    const count = h("span", { class: "sp mut" }), empty = h("div", { class: "empty", hidden: true }), body = rows ? rows.el : h("div", { class: "scr vals" });
    return { rows, count, empty, body, el: h("section", { class: "tp", "aria-label": title }, h("div", { class: "hd" }, h("b", {}, title), count), body, empty) };
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.part ? [this.entry, "step=" + this.at] : [this.entry];
  }

  /** @param {string} [entry] @param {string} [what] "step=12", counted from 0 */
  open(entry, what) {
    if (entry) this.entry = entry;
    if (what && what.startsWith("step=")) this.wanted = +what.slice(5);
  }

  draw() {
    const { entries } = this.frame.overview;
    if (!this.frame.entry(this.entry)) this.entry = (entries.find((/** @type {any} */ e) => e.steps) || this.frame.entry(this.frame.overview.start) || { id: "" }).id;
    const part = this.entry ? this.frame.part("tracer|" + this.entry) : null;
    this.body.hidden = !part || Boolean(part.empty);
    this.none.hidden = !this.body.hidden;
    this.drawContext(entries, part);
    if (!part || part.empty) {
      this.time = this.part = null;
      const why = part ? part.empty : this.entry ? "Loading …" : "Nothing was compiled, so nothing was traced. %%compile --steps records steps.";
      this.none.textContent = why;
      return this.frame.say(why);
    }
    if (part !== this.part) this.load(part);
    if (this.wanted !== undefined) this.at = Math.max(0, Math.min(part.count - 1, this.wanted));
    this.wanted = undefined;
    this.update();
  }

  /** @param {any[]} entries @param {any} part */
  drawContext(entries, part) {
    const kinds = TICK_KINDS.map(([kind, words], i) => {
      const n = part && !part.empty && this.time ? this.tickSteps()[i].length : -1;
      return muted(h("i", { class: "tkey " + kind }), n === 0 && kind === "tk-break" ? "no break" : words);
    });
    put(
      this.context,
      entries.length ? choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, `${entryName(e)}${e.steps ? "" : " (no steps)"}`]), this.entry, (v) => { this.entry = v; this.at = 0; this.frame.focus(); this.draw(); }) : null,
      part && !part.empty ? [kinds, h("span", { class: "sp mut" }, `${plural(part.count, "step")}${part.is_cut ? ", truncated" : ""}`)] : null,
    );
  }

  tickSteps() {
    const t = this.time;
    return [t.opSteps, t.guardSteps, [...t.inSteps, ...t.outSteps], t.breakSteps];
  }

  /** @param {any} part */
  load(part) {
    this.part = part;
    this.time = new Timeline(part);
    this.at = Math.min(this.at || part.first, part.count - 1);
    this.stops = new Set();
    this.code = -1;
    this.sourceStep = this.at;
    for (const pane of [this.graph, this.guards, this.effects]) pane.rows?.reset(0);
    this.slider.max = String(part.count - 1);
    this.ticks.className = "ticks" + (this.tickSteps().some((steps) => steps.length > CROWD) ? " dense" : "");
    put(this.ticks, this.tickSteps().map((steps, i) => tickPlaces(steps, part.count, TICKS).map((x) => h("i", { class: TICK_KINDS[i][0], style: `left:${x * 100}%` }))));
    this.source.rows?.reset(part.source.length, `calc(${Math.min(400, Math.max(0, ...part.source.map((/** @type {string} */ t) => t.length)))}ch + 76px)`);
    this.drawContext(this.frame.overview.entries, part);
  }

  /** @param {number} k */
  go(k) {
    if (!this.time) return;
    this.at = Math.max(0, Math.min(this.part.count - 1, k));
    this.update();
  }

  /** Go to the found step, or say that there is none. @param {number} k @param {string} none */
  found(k, none) {
    if (k >= 0) this.go(k);
    else this.frame.say(none);
  }

  /** @param {string} kind @param {number} direction */
  jump(kind, direction) {
    if (!this.time) return;
    const steps = kind === "op" ? this.time.opSteps : this.time.breakSteps;
    const where = direction > 0 ? "after" : "before";
    this.found(this.time.next(steps, this.at, direction), kind === "op" ? `No graph op ${where} this step.` : steps.length ? "No break after this step." : "No break: the trace ends with the function.");
  }

  /** @param {number} direction */
  line(direction) {
    if (this.time) this.found(this.time.line(this.at, direction), direction > 0 ? "This is the last source line." : "This is the first source line.");
  }

  into() {
    if (this.time) this.found(this.time.into(this.at), "No inlined call after this step.");
  }

  out() {
    if (this.time) this.found(this.time.out(this.at), this.part.depth[this.at] ? "The trace ends inside this call." : "This is the outermost function.");
  }

  toggleStop() {
    if (!this.time) return;
    const row = this.time.op(this.at)[4];
    if (row < 0) return this.frame.say("This step has no source line, so no breakpoint can be set.");
    if (!this.stops.delete(row)) this.stops.add(row);
    this.source.rows?.redraw();
    this.frame.say(this.stops.has(row) ? `Breakpoint on line ${this.part.lines[row]}. B continues to the next one.` : `No breakpoint on line ${this.part.lines[row]}.`);
  }

  /** @param {number} direction */
  toStop(direction) {
    if (this.time) this.found(this.time.stop(this.at, this.stops, direction), this.stops.size ? "No breakpoint is reached after this step." : "No breakpoint is set: b sets one on the current line.");
  }

  link() {
    const line = this.time && this.time.op(this.at)[4] >= 0 ? this.time.op(this.at)[5] : 0;
    if (line) this.frame.open("linked", this.entry, "line=" + line);
  }

  /** Let the slider handle only keys that mean the same in this view. @param {KeyboardEvent} e */
  sliderKey(e) {
    const row = this.keys.find((k) => k.keys.includes(e.key));
    if (!row || e.ctrlKey || e.metaKey || e.altKey) return;
    row.run(e.key);
    e.preventDefault();
    e.stopPropagation();
  }

  update() {
    const { time, part, at } = this;
    this.slider.value = String(at);
    this.slider.setAttribute("aria-valuetext", `step ${at + 1} of ${part.count}: ${time.words(at)}`);
    this.counter.textContent = `step ${at + 1}/${part.count}`;
    this.drawCode();
    this.drawLists();
    this.drawStack();
    this.drawLocals();
    this.drawFrames();
    this.tell();
  }

  drawCode() {
    const { time, part, at } = this;
    const [code, , , , , line] = time.op(at), next = time.op(Math.min(at + 1, part.count - 1));
    const frames = time.frames(Math.max(0, at - 1)), from = at > 0 && part.depth[at] ? frames[1] : null;
    const own = time.op(at)[4], caller = own >= 0 || at === 0 ? undefined : frames.slice(1).find((/** @type {any} */ f) => time.op(f.step)[4] >= 0);
    this.sourceStep = caller ? caller.step : at;
    const row = time.op(this.sourceStep)[4];
    this.source.count.textContent = caller ? `${part.codes[code]} was not recorded: its caller` : `in ${part.codes[code]}` + (from ? `, inlined from line ${from.line}` : "");
    this.source.empty.hidden = row >= 0;
    this.source.empty.textContent = `${part.codes[code]} is outside your code${line ? ` (line ${line} of its file)` : ""}: its source was not recorded.`;
    this.source.body.hidden = row < 0;
    if (code !== this.code) {
      this.code = code;
      this.listing = part.ops.map((/** @type {number[]} */ o, /** @type {number} */ i) => (o[0] === code ? i : -1)).filter((/** @type {number} */ i) => i >= 0).sort((/** @type {number} */ a, /** @type {number} */ b) => part.ops[a][1] - part.ops[b][1]);
      this.bytecode.rows?.reset(this.listing.length);
    }
    const elsewhere = next[0] !== code;
    this.bytecode.count.textContent = `● just executed  ○ next${elsewhere ? ` in ${part.codes[next[0]]}` : ""}`;
    this.source.rows?.refresh((_, e) => e.dataset.row === String(row) || e.classList.contains("cur"));
    this.bytecode.rows?.refresh((_, e) => e.classList.contains("cur") || e.classList.contains("nxt") || e.dataset.op === String(part.op[at]) || e.dataset.op === String(part.op[Math.min(at + 1, part.count - 1)]));
    if (row >= 0) this.source.rows?.show(row, 54);
    this.bytecode.rows?.show(this.listing.indexOf(part.op[at]), 54);
  }

  drawLists() {
    const { time, at } = this;
    for (const [pane, steps, none] of /** @type {[any, number[], string][]} */ ([[this.graph, time.nodeSteps, "Empty so far."], [this.guards, time.guardSteps, "None so far."], [this.effects, time.effectSteps, "None so far."]])) {
      const count = countUpTo(steps, at);
      pane.count.textContent = String(count);
      pane.empty.hidden = count > 0;
      pane.empty.textContent = none;
      pane.body.hidden = !count;
      if (pane.rows.count !== count) pane.rows.resize(count);
      pane.rows.refresh((/** @type {number} */ i, /** @type {HTMLElement} */ e) => (steps[i] === at) !== e.classList.contains("fresh"));
      pane.rows.show(count - 1, 90);
    }
  }

  drawStack() {
    const { time, at } = this, values = time.stack(at);
    this.stack.count.textContent = `top first · ${time.frames(at)[0].name}`;
    put(this.stack.body, values.length ? values.map((/** @type {any} */ v, /** @type {number} */ i) => this.#value(v, v.isNew ? "+" : String(i + 1), () => this.maker(v.node, () => time.pushedBy(at, i)))).reverse() : mutedLine("Empty."));
  }

  drawLocals() {
    const found = [...this.time.locals(this.at)];
    this.locals.count.textContent = String(found.length);
    put(this.locals.body, found.length ? found.map(([name, v]) => this.#value(v, v.isNew ? "+" : "", () => this.maker(v.node, () => v.step), name)) : mutedLine("None."));
  }

  drawFrames() {
    const found = this.time.frames(this.at);
    this.frames.count.textContent = String(found.length);
    put(this.frames.body, found.map((/** @type {any} */ f) => h("div", { class: "val fr" }, h("span", { class: "sg" }), h("button", { type: "button", class: "v", title: f.name, onclick: () => this.go(f.step) }, f.name), muted(f.line ? "line " + f.line : ""))));
  }

  /** Go to the step that created a value, or the node of the value. @param {string} node @param {() => number} otherwise */
  maker(node, otherwise) {
    this.go(this.time.makers.get(node) ?? otherwise());
    this.frame.focus();
  }

  /** @param {any} v @param {string} sign @param {() => void} act @param {string} [name] */
  #value(v, sign, act, name) {
    return h("div", { class: "val" + (v.isNew ? " fresh" : "") }, h("span", { class: "sg", title: sign === "+" ? "new" : null }, sign), name ? h("span", { class: "nm" }, name) : null, h("button", { type: "button", class: "v", title: "Go to the step that created it", onclick: act }, v.node || v.text), v.node ? muted(v.text) : null);
  }

  tell() {
    const { time, part, at } = this, event = part.event[at];
    const line = time.op(at)[5], made = (/** @type {[number, number][]} */ list) => list.filter(([k]) => k === at).map(([, t]) => part.strings[t]);
    const nodes = made(part.nodes), guards = made(part.guards), effects = made(part.effects), stack = time.stack(at), top = stack[stack.length - 1];
    const next = Math.min(at + 1, part.count - 1), isIn = part.depth[next] > part.depth[at], isOut = part.depth[next] < part.depth[at];
    this.frame.say(
      h("b", {}, `Step ${at + 1}: `), h("code", {}, time.words(at)), `${line ? ` at line ${line}` : ""} of ${time.codeName(at)}. `,
      event === EVENT.break && at === part.count - 1 ? h("span", { class: "bad" }, `The graph breaks here${part.stop ? ": " + part.stop : ""}. `) : null,
      isIn ? `Goes into ${time.codeName(next)}. ` : isOut ? `Back to ${time.codeName(next)}${time.op(next)[5] ? `, line ${time.op(next)[5]}` : ""}. ` : event === EVENT.return && at === part.count - 1 ? "The function returns. " : null,
      event === EVENT.raise ? "Raises. " : null,
      nodes.length ? `Adds ${nodes.join(", ")} to the graph. ` : null, guards.length ? `Adds ${plural(guards.length, "guard")}. ` : null, effects.length ? `Replayed after the graph: ${effects.join("; ")}. ` : null,
      muted(top ? `Top of stack: ${top.node ? top.node + ", " : ""}${top.text}.` : "The stack is empty."),
    );
  }

  /** @param {number} i */
  #sourceRow(i) {
    const { part, time } = this, [, , , , row, , from, to] = time.op(this.sourceStep), isNow = row === i;
    const ordinal = part.ordinals[i] || 0, runs = tokens(part.source[i], part.lines[i] ? "python" : "");
    const cut = isNow && from >= 0 ? marked(runs, from, to) : runs.map(([c, t]) => /** @type {[string, string, boolean]} */ ([c, t, false]));
    const stop = this.stops.has(i);
    return h(
      "div",
      { class: `r ${hue(ordinal)}${ordinal ? " own" : ""}${part.lines[i] ? "" : " head"}${isNow ? " cur" : ""}`, role: "listitem", "data-row": i, "aria-current": isNow ? "true" : null, onclick: () => this.#toLine(i) },
      h("span", { class: "g" }, stop ? h("span", { class: "stop", title: "Breakpoint" }, "◆") : ordinal ? badge(ordinal) : null),
      h("span", { class: "n" }, part.lines[i] || ""),
      h("span", { class: "x" }, cut.map(([kind, t, on]) => (on ? h("mark", { class: kind }, t) : kind ? h("span", { class: kind }, t) : t))),
    );
  }

  /** Go to the next step on a line, wrapping around. @param {number} row */
  #toLine(row) {
    const rows = new Set([row]), { time } = this, found = time.stop(this.at, rows, 1);
    const first = found >= 0 ? found : time.op(0)[4] === row ? 0 : time.stop(0, rows, 1);
    this.found(first, `No step of this trace is on line ${this.part.lines[row]}.`);
    this.frame.focus();
  }

  /** @param {number} i */
  #opRow(i) {
    const { part, at } = this, id = this.listing[i], [, offset, name, argument, row] = part.ops[id];
    const isNow = id === part.op[at], isNext = at + 1 < part.count && id === part.op[at + 1] && !isNow, ordinal = part.ordinals[row] || 0;
    return h("div", { class: `r ${hue(ordinal)}${ordinal ? " own" : ""}${isNow ? " cur" : ""}${isNext ? " nxt" : ""}`, role: "listitem", "data-op": id, "aria-current": isNow ? "true" : null, onclick: () => this.#toOp(id) },
      h("span", { class: "g" }, isNow ? "●" : isNext ? "○" : ""), h("span", { class: "n" }, offset), h("span", { class: "x" }, part.strings[name].padEnd(16) + " ", h("span", { class: "d" }, part.strings[argument])));
  }

  /** Go to the next execution of an instruction, wrapping around. @param {number} id */
  #toOp(id) {
    const { op } = this.part, after = op.indexOf(id, this.at + 1);
    this.found(after >= 0 ? after : op.indexOf(id), "This instruction was not executed.");
    this.frame.focus();
  }

  /** @param {number} i */
  #nodeRow(i) {
    const { part } = this, [step, text] = part.nodes[i], name = part.strings[text], [words, type, ordinal, values] = part.described[name] || ["removed by dead code elimination", "", 0];
    return h("div", { class: `r ${hue(ordinal)}${ordinal ? " own" : ""}${step === this.at ? " fresh" : ""}`, role: "listitem", title: `${name} = ${words}${values ? "\n" + values.text : ""}`, onclick: () => { this.go(step); this.frame.focus(); } },
      h("span", { class: "g" }, ordinal ? badge(ordinal) : null), h("span", { class: "nn" }, name), h("span", { class: "x" }, words), h("span", { class: "ty" }, values?.bad ? h("b", { class: "bad" }, values.bad + " ") : null, valueMap(values?.heat_map ?? []), " ", type));
  }

  /** @param {"guards" | "effects"} kind @param {number} i */
  #factRow(kind, i) {
    const [step, text] = this.part[kind][i];
    return h("div", { class: "r fact" + (step === this.at ? " fresh" : ""), role: "listitem", title: this.part.strings[text], onclick: () => { this.go(step); this.frame.focus(); } }, h("span", { class: "sg" }, step === this.at ? "+" : ""), h("span", { class: "x" }, this.part.strings[text]));
  }
}

VIEWS.set("tracer", TracerView);
