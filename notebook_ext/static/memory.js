// Memory: live bytes over the steps of a compilation's programs, and what is live at the selected step.

import { KINDS, bytesByKind, bytesText, stairs } from "./livebytes.js";
import { badge, button, choice, entryName, h, muted, mutedLine, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

class MemoryView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.entry = "";
    this.at = -1;
    this.context = h("div", { class: "ctx" });
    this.chart = h("div", { class: "mchart" });
    this.body = h("div", { class: "scr tall pad mlive", tabindex: "0", role: "region", "aria-label": "Tensors that are live at the selected step" });
    this.el = h("div", { class: "memory" }, this.context, this.chart, this.body);
    this.keys = [
      key("ArrowLeft ArrowRight", "previous or next step", (k) => this.go(this.at + (k === "ArrowRight" ? 1 : -1))),
      key("Home End", "first or last step", (k) => this.go(k === "Home" ? 0 : Infinity)),
      key("p", "the step with the most live bytes", () => this.part && this.go(this.part.peak)),
      key("Enter", "show its line in the linked view", () => this.link()),
      key("c", "compile the call again under activation checkpoints", () => this.try()),
    ];
  }

  /** @param {string} [entry] @param {string} [step] counted from 1 */
  open(entry, step) {
    if (!entry) return;
    if (entry !== this.entry) this.at = -1;
    this.entry = entry;
    if (step) this.at = Number(step) - 1;
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.part ? [this.entry, String(this.at + 1)] : [];
  }

  /** @param {number} at */
  go(at) {
    if (!this.part?.steps.length) return;
    this.at = Math.max(0, Math.min(this.part.steps.length - 1, at));
    this.draw();
  }

  /** Compile the call again under activation checkpoints. */
  try() {
    if (!this.part?.recompute) return this.frame.say("This entry has no backward: a checkpoint would change nothing.");
    this.frame.say("Compiling the call under activation checkpoints, in another process …");
    this.frame.send({ type: "checkpoints", entry: this.entry });
  }

  /** The memory of the call under each checkpoint policy. @param {any} part */
  #checkpoints({ checkpoints }) {
    const heads = ["Checkpoint", "Saved", "Forward peak", "Backward peak", "Results, gradients"];
    return checkpoints.length ? [
      h("table", { class: "t" },
        h("thead", {}, h("tr", {}, heads.map((t, i) => h("th", { class: i && i < 4 ? "num" : "" }, t)))),
        h("tbody", {}, checkpoints.map((/** @type {any} */ c) => h("tr", {}, h("td", {}, c.code ? h("details", {}, h("summary", {}, c.policy), h("pre", { class: "code" }, c.code)) : c.policy), h("td", { class: "num" }, c.saved, c.largest ? h("div", { class: "mut" }, c.largest) : null), ...[c.forward, c.backward].map((t) => h("td", { class: "num" }, t)), h("td", {}, c.verdict))))),
    ] : null;
  }

  /** Open the linked view at the first source line of the selected step. */
  link() {
    const line = this.part?.source[this.part.steps[this.at]?.lines[0]];
    if (line) this.frame.open("linked", this.entry, ...(line[0] ? ["line=" + line[0]] : []));
    else this.frame.say("This step has no source line: the compiler generated it.");
  }

  draw() {
    const entries = this.frame.overview.entries.filter((/** @type {any} */ e) => e.has_graph);
    if (!entries.some((/** @type {any} */ e) => e.id === this.entry)) this.entry = (entries.find((/** @type {any} */ e) => e.id === this.frame.overview.start) || entries[0])?.id || "";
    const part = this.entry ? this.frame.part("memory|" + this.entry) : null;
    /** @type {any} */
    this.part = part;
    if (!part) return put(this.body, mutedLine(this.entry ? "Loading …" : "No graph was compiled."));
    if (this.at < 0 || this.at >= part.steps.length) this.at = part.peak;
    put(
      this.context,
      choice("Cache entry", entries.map((/** @type {any} */ e) => [e.id, entryName(e)]), this.entry, (v) => { this.open(v); this.frame.focus(); this.draw(); }),
      muted(`${plural(part.steps.length, "step")} of the program for ${part.target}`),
      h("span", { class: "sp" }),
      button("◂ step", "←", () => this.go(this.at - 1)), h("span", { class: "nw" }, `${this.at + 1}/${part.steps.length}`), button("step ▸", "→", () => this.go(this.at + 1)), button("Peak", "p", () => this.go(part.peak)),
    );
    this.#chart(part);
    this.#live(part);
  }

  /** @param {any} part */
  #chart(part) {
    const { steps, blocks, programs } = part, n = steps.length;
    if (!n) return put(this.chart);
    const top = steps[part.peak].bytes || 1, rows = bytesByKind(blocks, n);
    let low = new Array(n).fill(0);
    const areas = rows.map((row, k) => {
      const high = row.map((/** @type {number} */ v, /** @type {number} */ i) => v + low[i]), path = row.some(Boolean) ? h("path", { class: KINDS[k][2], d: stairs(low, high, top * 1.2) }) : null;
      low = high;
      return path;
    });
    const left = (/** @type {number} */ i) => (i / n) * 100;
    put(
      this.chart,
      h("div", { class: "mplot", role: "img", "aria-label": part.outcome, onclick: (/** @type {MouseEvent} */ e) => { const box = /** @type {HTMLElement} */ (e.currentTarget).getBoundingClientRect(); this.go(Math.floor(((e.clientX - box.left) / box.width) * n)); this.frame.focus(); } },
        h("svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", "aria-hidden": "true" }, areas),
        programs.filter((/** @type {any} */ p) => p.count).map((/** @type {any} */ p) => h("span", { class: "mprog", style: `left:${left(p.first)}%;width:${left(p.count)}%` }, `${p.name}, peak ${p.peak}`)),
        h("i", { class: "mpeak", style: `left:${left(part.peak)}%;width:max(3px,${100 / n}%)`, title: "Peak" }),
        h("i", { class: "mcursor", style: `left:${left(this.at)}%;width:max(3px,${100 / n}%)` })),
      h("div", { class: "mkinds" }, KINDS.map(([, label, color], k) => (rows[k].some(Boolean) ? h("span", { class: "nw" }, h("i", { class: "dot " + color }), ` ${label} `, rows[k][this.at] ? h("b", {}, bytesText(rows[k][this.at])) : null) : null))),
    );
  }

  /** @param {any} part */
  #live(part) {
    const step = part.steps[this.at];
    if (!step) return put(this.body, h("p", {}, part.outcome));
    const live = part.blocks.filter((/** @type {any} */ b) => b.first <= this.at && this.at <= b.last).sort((/** @type {any} */ a, /** @type {any} */ b) => b.bytes - a.bytes);
    const lines = (/** @type {number[]} */ numbers) => numbers.map((o) => [badge(o), " "]);
    put(
      this.body,
      h("table", { class: "t blocks" },
        h("thead", {}, h("tr", {}, ["Tensor", "Bytes", "", "Live because", "Lines"].map((t, i) => h(t ? "th" : "td", { class: i === 1 ? "num" : "" }, t)))),
        h("tbody", {}, live.map((/** @type {any} */ b) => h("tr", {}, h("td", {}, h("code", {}, b.name), b.first === this.at ? h("span", { class: "new" }, " allocated here") : null), h("td", { class: "num" }, b.text), h("td", { class: "meter" }, h("i", { class: KINDS.find(([k]) => k === b.kind)?.[2], style: `width:${(b.bytes / Math.max(1, step.bytes)) * 100}%` })), h("td", { class: "mut" }, b.why), h("td", {}, lines(b.lines)))))),
      h("h4", {}, "Programs"),
      h("ul", {}, part.programs.map((/** @type {any} */ p) => h("li", {}, h("b", {}, p.name), `: ${plural(p.count, "step")}, peak ${p.peak}. Its caller holds ${p.held} of inputs, which do not count.`))),
      part.recompute ? [h("p", {}, part.recompute + " ", this.frame.model.hasKernel === false || part.checkpoints.length ? null : button("Try checkpoints", "c", () => this.try(), { title: "Compile the call again under activation checkpoints, and compare memory and gradients. Key: c" })), this.#checkpoints(part)] : null,
      mutedLine("Sizes are those of the compiled call. Temporary memory inside ATen calls is unknown."),
    );
    const first = part.source[step.lines[0]];
    this.frame.say(h("b", {}, `Step ${this.at + 1} of ${part.steps.length} `), h("code", {}, step.name), `: ${bytesText(step.bytes)} live in ${plural(live.length, "tensor")}. `, first ? [badge(step.lines[0]), ` ${first[1]}`, first[2] ? [" ", h("code", {}, first[2])] : null, ". "] : null, muted(part.outcome));
  }
}

VIEWS.set("memory", MemoryView);
