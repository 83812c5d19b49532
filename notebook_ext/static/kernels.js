// Kernels: fused nodes and reasons, resource use on each target, roofline, and the number of lines at each stage.

import { LADDER, byOrdinal, gathered, rooflinePlaces } from "./ladder.js";
import { Links } from "./links.js";
import { badge, button, choice, h, hue, ms, muted, mutedLine, plural, put, twoDigits } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";
import { TuningPanel } from "./tuning.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const ROOF = { width: 340, height: 216, left: 46, right: 12, top: 20, bottom: 34 };
const HEADS = [["Kernel", ""], ["Lines and fused nodes", ""], ["Grid × warps", "num"], ["Time", "num"], ["Bytes", "num"], ["GB/s", "num"], ["Regs", "num"], ["Spills", "num"], ["Shared", "num"], ["Occup.", "num"], ["Check", ""]];
const CPU_HEADS = [["Kernel", ""], ["Lines and fused nodes", ""], ["Iterations", "num"], ["Time", "num"], ["Bytes", "num"], ["GB/s", "num"], ["Of copy", "num"], ["Vector", "num"], ["Spills", "num"], ["Instr.", "num"], ["Check", ""]];
/** Target of the kernels that ran on the CPU. */
const CPU = "cpu";
const BOUND = { launch: "launch-bound at this size", memory: "memory-bound", arithmetic: "compute-bound" };

/** @param {any} v */
const text = (v) => (v == null || v === "" ? "–" : String(v));
/** A large number with a metric prefix. @param {number} v */
const metric = (v) => { const k = Math.max(0, Math.min(4, Math.floor(Math.log10(Math.max(v, 1)) / 3))); return Number((v / 1000 ** k).toPrecision(3)) + " " + ["", "k", "M", "G", "T"][k]; };

/** Gigabytes per second. @param {number | null} rate */
const perSecond = (rate) => (!rate ? "" : rate < 1e10 ? String(Number((rate / 1e9).toPrecision(2))) : Math.round(rate / 1e9).toLocaleString("en"));

/** The measured time and its ratio to the estimate. @param {any} m @param {any} e */
function measured(m, e) {
  if (!m) return "";
  const share = m.share ? ` (${Math.round(m.share * 100)} % of its copy bandwidth)` : "";
  const off = e ? ` ${(m.seconds / e.seconds).toFixed(2)} of the estimate.` : "";
  return `Measured ${ms(m.seconds)} on ${m.device}${m.rate ? `: ${perSecond(m.rate)} GB/s${share}` : ""}.${off} `;
}

/** @param {string} target */
export const targetName = (target) => (target === CPU ? "this CPU" : target);

/** The measured time of a CPU kernel, beside the speed of a copy. @param {any} m */
function measuredOnCpu(m) {
  if (!m) return "Not measured yet. ";
  const share = m.share ? (m.share > 1.1 ? ", more than a copy of memory: its data stays in the cache" : `, ${Math.round(m.share * 100)} % of a copy`) : "";
  return `Measured ${ms(m.seconds)} on ${m.device}${m.rate ? `: ${perSecond(m.rate)} GB/s${share}` : ""}. `;
}

class KernelsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    this.target = "";
    /** @type {any} */
    this.part = null;
    /** Links of the selected compilation, built once. @type {{part: any, links: Links} | null} */
    this.linked = null;
    this.isTuning = false;
    /** The last answer about tuning, and the kernel that it is about. */
    this.tuningNote = this.tuned = "";
    this.panel = new TuningPanel((action, values) => this.requestTuning(action, values), () => this.update());
    this.context = h("div", { class: "ctx" });
    this.body = h("div", { class: "scr ktable", tabindex: "0", role: "group", "aria-label": "Kernels" });
    this.detail = h("div", { class: "kdetail" });
    this.el = h("div", { class: "kernels" }, this.context, this.body, this.detail);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous kernel", (k) => this.go(this.at + (k === "ArrowDown" ? 1 : -1))),
      key("Enter", "open it in the linked view", () => this.link()),
      key("t", "next target", () => this.turn()),
      key("e", "edit the text of the kernel", () => this.edit()),
      key("u", "tune the kernel by hand, or close the tuning", () => this.tune()),
      key("r", "try all settings of the heat map", () => this.isTuning && this.row?.tuning && this.frame.model.hasKernel !== false && this.panel.run(this.row.tuning)),
      key("d", "compare two targets, or with the previous version", () => this.compare()),
    ];
  }

  /** @param {string} [entry] @param {string} [kernel] */
  open(entry, kernel) {
    if (entry) this.wanted = [entry, kernel];
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.row ? [this.row.compilation, this.row.kernel] : [];
  }

  get row() {
    return this.part && this.rows[this.at];
  }

  /** True if the text of the kernel can be edited. */
  get canEdit() {
    return Boolean(this.row) && !this.part.is_observed && !("edit" in this.frame.overview.empty);
  }

  /** Open the text of the kernel in the Edit view. */
  edit() {
    if (!this.canEdit) return this.frame.say("This kernel cannot be edited here.");
    this.frame.open("edit", this.row.compilation, this.row.kernel);
    this.frame.focus();
  }

  /** Open or close the tuning. */
  tune() {
    this.isTuning = this.canTune && !this.isTuning;
    this.update();
    this.frame.focus();
  }

  /** True if the kernel has a heat map, or can get one. */
  get canTune() {
    return Boolean(this.row) && !this.part.is_observed && (this.frame.model.hasKernel !== false || Boolean(this.row.tuning));
  }

  /** @param {string} action "open", "run", "keep" or "forget" @param {Record<string, number[]>} [values] */
  requestTuning(action, values = {}) {
    const { compilation, kernel } = this.row;
    this.tuningNote = action === "run" ? "Trying the settings of the map …" : "Measuring the default settings …";
    this.frame.say(this.tuningNote);
    this.frame.send({ type: "tune", action, entry: compilation, kernel, values });
  }

  /** An answer of the kernel about tuning. @param {{said: string}} data */
  takeTuning(data) {
    this.tuningNote = data.said;
    this.update();
    this.frame.say(data.said);
  }

  /** The kernels for the target: those for the CPU are others than those for a GPU. @returns {any[]} */
  get rows() {
    return this.part.rows.filter((/** @type {any} */ r) => Boolean(r.is_cpu) === this.isCpu);
  }

  get isCpu() {
    return this.target === CPU;
  }

  /** @param {number} at */
  go(at) {
    if (!this.part || !this.rows.length) return;
    this.at = Math.max(0, Math.min(this.rows.length - 1, at));
    this.update();
  }

  link() {
    if (this.row) this.frame.open("linked", this.row.compilation, "kernel=" + this.row.kernel, this.targetKey(this.row));
  }

  turn() {
    if (!this.part) return;
    const { targets } = this.part;
    if (targets.length < 2) return this.frame.say("The kernels were compiled for one target only.");
    this.at = 0;
    this.target = targets[(targets.indexOf(this.target) + 1) % targets.length];
    this.draw();
  }

  /** Compare two targets of this kernel, else this version with that of another session. */
  compare() {
    const { row } = this;
    if (!row) return;
    const targets = Object.keys(row.targets), { others } = this.frame.overview;
    const stage = this.target.startsWith("hip") ? "amdgcn" : "ptx";
    if (targets.length > 1) {
      const other = targets.find((t) => t !== this.target) || targets[0];
      return this.frame.open("compare", ["", row.compilation, this.target].join("~"), ["", row.compilation, other].join("~"), other.startsWith("hip") === this.target.startsWith("hip") ? stage : "ttgir", row.kernel);
    }
    const frame = this.frame.entry(row.compilation);
    const number = (others || []).findIndex((/** @type {any} */ o) => o.entries.some((/** @type {any} */ e) => e.name === frame.name));
    if (number < 0) return this.frame.say("There is one target and one version of this kernel: compile for another target, or run the cell again.");
    const before = others[number].entries.find((/** @type {any} */ e) => e.name === frame.name && e.entry === frame.entry) || others[number].entries.find((/** @type {any} */ e) => e.name === frame.name);
    if (this.isCpu && !before.targets.includes(CPU)) return this.frame.say("The other version has no kernels for a CPU.");
    this.frame.open("compare", [number, before.id, this.isCpu ? CPU : before.targets.length > 1 ? before.targets[0] : ""].join("~"), ["", row.compilation, this.isCpu ? CPU : ""].join("~"), "triton");
  }

  /** @param {string} target */
  further(target) {
    this.frame.say(`Compiling all kernels for ${target}, in the background: each appears here when it is finished …`);
    this.frame.send({ type: "target", target });
  }

  draw() {
    const part = this.frame.part("kernels");
    this.part = part;
    if (!part) {
      put(this.context);
      return put(this.body, h("p", { class: "mut pad" }, "Loading …"));
    }
    if (this.wanted) {
      const [entry, kernel] = this.wanted;
      const row = part.rows.find((/** @type {any} */ r) => (r.compilation === entry || entry === CPU) && (kernel ? r.kernel === kernel : Boolean(r.is_cpu) === (entry === CPU)));
      if (row) this.target = row.is_cpu ? CPU : this.isCpu ? "" : this.target;
      this.at = Math.max(0, this.rows.indexOf(row));
      this.wanted = undefined;
    }
    if (!part.targets.includes(this.target)) this.target = part.targets.includes(part.target) ? part.target : part.targets[0] || part.target;
    const { rows, isCpu } = this, cpu = rows.map((/** @type {any} */ r) => r.targets[CPU]?.cpu).find(Boolean);
    this.at = Math.max(0, Math.min(rows.length - 1, this.at));
    const waiting = part.is_observed ? 0 : rows.filter((/** @type {any} */ r) => !r.targets[this.target]).length;
    put(
      this.context,
      h("b", {}, plural(rows.length, "kernel")),
      part.is_observed ? null : part.targets.length > 1 ? choice("Target", part.targets.map((/** @type {string} */ t) => [t, targetName(t)]), this.target, (v) => { this.target = v; this.at = 0; this.frame.focus(); this.draw(); }) : h("span", { class: "nw" }, `target ${targetName(this.target) || "unknown"}`),
      isCpu ? muted(h("b", {}, "Ran on this CPU"), cpu ? `: ${cpu}` : "") : part.is_observed ? muted("From Inductor, as recorded in torch's trace.") : part.is_run || !rows.length ? null : h("b", { class: "mut", title: "No GPU here. Registers, spills and shared memory are exact, from the compiled binary." }, "Estimated, not measured"),
      !isCpu && part.aten_reason ? muted(`${part.rows.some((/** @type {any} */ r) => r.is_cpu) ? "Some results" : "Results"} from ATen: ${part.aten_reason}`) : null,
      !isCpu && part.rows.some((/** @type {any} */ r) => r.is_cpu) ? button("Kernels that ran here", "", () => { this.target = CPU; this.at = 0; this.draw(); }, { title: "Show the kernels that ran on this CPU" }) : null,
      h("span", { class: "sp" }),
      (part.is_run || isCpu) && rows.length && !rows.some((/** @type {any} */ r) => r.measured) ? button("Measure", "", () => this.frame.act("measure-kernels"), { title: `Time each kernel on this ${isCpu ? "CPU" : "GPU"}` }) : null,
      waiting && this.frame.model.hasKernel === false ? h("span", { class: "new" }, `${waiting} not compiled when this was saved`) : waiting ? [h("span", { class: "new" }, `${waiting} still compiling`), button("Cancel", "", () => this.frame.act("cancel"), { title: "Stop compiling kernels; finished ones stay" })] : null,
      rows.length && !isCpu && part.further.length ? choice("Compile for another target", [["", "another target …"], ...part.further.map((/** @type {string} */ t) => /** @type {[string, string]} */ ([t, t]))], "", (v) => v && this.further(v)) : null,
      this.canEdit ? button("Edit", "e", () => this.edit(), { title: "Change this kernel's text, and see what comes of it. Key: e" }) : null,
      this.canTune ? button("Tune", "u", () => this.tune()) : null,
      rows.length && !part.is_observed ? this.frame.scriptButton(this.row.compilation, this.row.kernel) : null,
      rows.length ? button("Compare", "d", () => this.compare()) : null,
    );
    this.update();
  }

  update() {
    const { part, rows, isCpu } = this;
    this.body.classList.toggle("cpu", isCpu);
    put(
      this.body,
      rows.length
        ? h("table", { class: "t", role: "grid", "aria-label": "Kernels" }, h("thead", {}, h("tr", {}, (part.is_observed ? HEADS.slice(0, 2) : isCpu ? CPU_HEADS : HEADS).map(([t, c]) => h("th", { class: c }, t)))), h("tbody", {}, rows.map((/** @type {any} */ r, /** @type {number} */ i) => this.#row(r, i))))
        : h("p", { class: "pad" }, "No kernels: the linked view gives the reason for each compilation."),
    );
    const chosen = /** @type {HTMLElement | null} */ (this.body.querySelector("tr.sel"));
    if (chosen && (chosen.offsetTop < this.body.scrollTop + 26 || chosen.offsetTop + chosen.offsetHeight > this.body.scrollTop + this.body.clientHeight)) this.body.scrollTop = chosen.offsetTop - 80;
    const r = this.row;
    const isTuning = this.isTuning && this.canTune, tuned = `${r?.compilation} ${r?.kernel}`;
    if (isTuning && tuned !== this.tuned) {
      [this.tuned, this.tuningNote] = [tuned, ""];
      if (!r.tuning) this.requestTuning("open");
    }
    this.detail.classList.toggle("two", isTuning);
    put(this.detail, r && isTuning ? [this.panel.section(r.tuning, `Tune ${r.name}`, this.tuningNote, this.frame.model.hasKernel !== false), this.#reasons(r)] : r ? [part.is_observed ? null : isCpu ? this.#instructions(r) : this.#roofline(r), this.#ladder(r), this.#reasons(r), this.#launches(r)] : part.externs.length ? h("section", { tabindex: "0", "aria-label": "ATen calls" }, this.#externs(part.externs)) : null);
    this.detail.classList.toggle("one", !r);
    if (isTuning && this.tuningNote) this.frame.say(this.tuningNote);
    else this.tell(r);
  }

  /** @param {any} r */
  tell(r) {
    if (!r) return this.frame.say("No kernels.");
    if (this.part.is_observed) {
      const nodes = r.nodes.length ? `${plural(r.nodes.length, "node")} fused.` : r.origins;
      return this.frame.say(h("code", {}, r.name), ` (${r.kernel}) of ${r.frame} entry ${r.compilation.split("/").pop()}: ${nodes}`);
    }
    const made = r.targets[this.target], e = r.estimates[this.target];
    if (this.isCpu) return this.#tellCpu(r, made);
    const told = !made ? "not compiled yet" : made.error ? made.error : made.registers == null ? "compiled" : `${plural(made.registers, "register")}, ${plural(made.spills || 0, "spill")}`;
    this.frame.say(
      h("code", {}, r.name), ` (${r.kernel}) of ${r.frame} entry ${r.compilation.split("/").pop()}: ${plural(r.nodes.length, "ATen node")} fused; ${told}. `,
      measured(r.measured, e),
      e ? `Estimated ${ms(e.seconds)} = ${ms(Math.max(e.memory, e.arithmetic))} of ${e.memory >= e.arithmetic ? "memory traffic" : "arithmetic"} + ${ms(e.launch)} for the launch (assumed): ${BOUND[/** @type {keyof typeof BOUND} */ (e.bound)]}. ` : r.bytes ? "" : "Nothing is estimated: a size is not known before the call. ",
      r.counts && r.counts + " ",
      made && made.limit ? `Occupancy ${Math.round(made.occupancy * 100)} %: limited by ${made.limit} per multiprocessor. ` : "",
      made && made.fill ? made.fill + " " : "",
      muted(r.check === "not checked" ? "Not checked against ATen." : `Checked: ${r.check}. ${r.check_note}`),
    );
  }

  /** @param {any} r @param {number} i */
  #row(r, i) {
    const made = r.targets[this.target] || {}, e = r.estimates[this.target], m = r.measured;
    return h(
      "tr",
      { class: i === this.at ? "sel" : "", "aria-selected": String(i === this.at), onclick: () => { this.go(i); this.frame.focus(); }, ondblclick: () => this.link() },
      h("td", { title: `${r.name} of ${r.frame} entry ${r.compilation.split("/").pop()}` }, h("div", { class: "kt" }, h("code", {}, r.name), muted(r.launches > 1 ? `×${r.launches} ` : "", `${r.kernel} of ${r.compilation}`))),
      h("td", { title: r.nodes.join(", ") }, r.ordinals.map((/** @type {number} */ o) => [badge(o), " "]), r.nodes.slice(0, 5).join(", "), r.nodes.length > 5 ? ` and ${r.nodes.length - 5} more` : null, made.error ? h("div", { class: "bad" }, made.error) : null, made.configuration ? h("div", { class: "mut" }, made.configuration) : null),
      this.isCpu ? this.#cpuCells(r, made) : this.part.is_observed ? null : [[r.grid ? `${r.grid.replace(/^\((.*)\)$/, "$1")} × ${r.warps || "?"}` : "", m ? ms(m.seconds) : e ? "≈ " + ms(e.seconds) : "", r.bytes, m ? perSecond(m.rate) : e ? "≈ " + perSecond(e.rate) : "", made.registers, made.spills, made.shared].map((v) => h("td", { class: "num" }, text(v))),
        h("td", { class: "num", title: made.limit ? `limited by ${made.limit} per multiprocessor` : null }, made.occupancy == null ? "" : Math.round(made.occupancy * 100) + " %"),
        this.#check(r),
      ],
    );
  }

  /** @param {any} r */
  #check(r) {
    const good = ["equal", "close"].includes(r.check);
    return h("td", { class: "nw " + (good ? "ok" : r.check === "different" ? "bad" : "mut"), title: r.check_note }, (good ? "✓ " : r.check === "different" ? "✗ " : "") + r.check);
  }

  /** @param {any} r @param {any} made */
  #cpuCells(r, made) {
    const m = r.measured;
    const numbers = [r.grid.replace(/[(),]/g, ""), m ? ms(m.seconds) : "", r.bytes, m ? perSecond(m.rate) : "", m && m.share ? Math.round(m.share * 100) + " %" : "", made.vector, made.spills, made.instructions?.asm];
    return [numbers.map((v) => h("td", { class: "num" }, text(v))), this.#check(r)];
  }

  /** @param {any} r @param {any} made */
  #tellCpu(r, made) {
    const code = !made ? "not compiled yet. " : made.error ? made.error + " " : `${plural(made.instructions.asm, "instruction")}, ${made.vector}, ${plural(made.spills, "spill")} to the stack and ${plural(made.reloads, "reload")}. `;
    this.frame.say(
      h("code", {}, r.name), ` (${r.kernel}) of ${r.frame} entry ${r.compilation.split("/").pop()} ran on this CPU: ${plural(r.nodes.length, "ATen node")} fused; `, code, measuredOnCpu(r.measured), r.counts && r.counts + " ",
      muted(r.check === "not checked" ? "Not checked against ATen." : `Checked against ATen on this CPU: ${r.check}. ${r.check_note}`),
    );
  }

  /** How many instructions of each kind a CPU kernel has. @param {any} r */
  #instructions(r) {
    const made = r.targets[CPU], m = r.measured;
    const kinds = Object.entries(made?.mix || {}), most = Math.max(1, ...kinds.map(([, n]) => n));
    return h(
      "section", { tabindex: "0", "aria-label": "Instructions" },
      h("h4", {}, "Instructions"),
      kinds.length ? kinds.map(([kind, n]) => h("div", { class: "lad wide" }, h("span", {}, kind), h("span", { class: "bar" }, h("i", { class: "o1", style: `width:${(n / most) * 100}%` })), h("span", { class: "num" }, n))) : mutedLine(made?.error || "Not compiled yet."),
      made?.vector ? h("p", {}, `Each vector instruction computes ${made.vector.replace(/, (.*)/, " in $1 registers")}. ${made.spills ? `Registers are spilled: ${plural(made.spills, "store")} to the stack, ${plural(made.reloads, "load")} back.` : "No register is spilled to the stack."}`) : null,
      m ? [h("h4", {}, "Measured"), h("p", {}, measuredOnCpu(m), m.copy ? muted(`A copy of memory runs at ${perSecond(m.copy)} GB/s, reads and writes together.`) : null)] : null,
    );
  }

  /** The roofline of the target with all kernels; the selected one is filled. @param {any} r */
  #roofline(r) {
    const roof = this.part.peaks[this.target];
    if (!roof) return h("section", {}, h("h4", {}, "Roofline"), mutedLine(`No GPU with target ${this.target || "unknown"} is known.`));
    const rows = this.rows.filter((/** @type {any} */ x) => x.estimates[this.target]);
    const points = rows.map((/** @type {any} */ x) => (x.measured && x.flops ? { intensity: x.estimates[this.target].intensity, flops: x.flops / x.measured.seconds, isMeasured: true } : x.estimates[this.target]));
    const measuredCount = points.filter((/** @type {any} */ p) => p.isMeasured).length;
    const { x, y, path, ticks } = rooflinePlaces(roof, points, ROOF);
    const own = rows.indexOf(r);
    const dot = (/** @type {any} */ e, /** @type {number} */ i) => h("circle", { class: "kd" + (i === own ? " sel" : "") + (e.isMeasured ? " run" : ""), cx: x(e.intensity), cy: y(e.flops), r: i === own ? 6 : 4, onclick: () => { this.go(this.rows.indexOf(rows[i])); this.frame.focus(); } });
    const mine = own >= 0 ? points[own] : null;
    return h(
      "section", { tabindex: "0", "aria-label": "Roofline" },
      h("h4", {}, `Roofline, ${roof.card}, f32`, muted(measuredCount ? ` · ${measuredCount} measured, ${points.length - measuredCount} estimated` : " · ≈ estimated")),
      h("svg", { viewBox: `0 0 ${ROOF.width} ${ROOF.height}`, width: "100%", role: "img", "aria-label": mine ? `${r.kernel}: ${twoDigits(mine.intensity)} FLOP/byte, about ${metric(mine.flops)}FLOP/s` : "Roofline" },
        ticks.x.map((v) => [h("path", { class: "grid", d: `M${x(v)} ${ROOF.top}V${ROOF.height - ROOF.bottom}` }), h("text", { x: x(v), y: ROOF.height - 20, "text-anchor": "middle" }, v)]),
        ticks.y.map((v) => [h("path", { class: "grid", d: `M${ROOF.left} ${y(v)}H${ROOF.width - ROOF.right}` }), h("text", { x: ROOF.left - 5, y: y(v) + 4, "text-anchor": "end" }, metric(v))]),
        h("text", { x: ROOF.left, y: 11, "text-anchor": "start" }, "FLOP/s"), h("text", { x: (ROOF.left + ROOF.width) / 2, y: ROOF.height - 5, "text-anchor": "middle" }, "FLOP/byte"),
        h("path", { class: "roof", d: path }), h("text", { x: ROOF.width - ROOF.right, y: y(roof.flops) - 5, "text-anchor": "end" }, metric(roof.flops) + "FLOP/s"), h("text", { x: x(ticks.x[0]) + 6, y: y(ticks.x[0] * 10 ** 0.9 * roof.bandwidth) - 12 }, metric(roof.bandwidth) + "B/s"),
        mine ? h("path", { class: "drop", d: `M${x(mine.intensity)} ${y(mine.flops)}V${y(Math.min(roof.flops, Math.max(mine.intensity, ticks.x[0]) * roof.bandwidth))}` }) : null,
        points.map((/** @type {any} */ e, /** @type {number} */ i) => (i === own ? null : dot(e, i))), mine ? [dot(mine, own), h("text", { class: "kn", x: x(mine.intensity) + (x(mine.intensity) > ROOF.width - 60 ? -10 : 10), y: y(mine.flops) + 4, "text-anchor": x(mine.intensity) > ROOF.width - 60 ? "end" : "start" }, r.kernel)] : null),
    );
  }

  /** How many rows the kernel has at each stage, colored by source line. @param {any} r */
  #ladder(r) {
    const part = this.frame.part(`linked|${r.compilation}|${this.targetKey(r)}`), made = r.targets[this.target];
    if (part && (!this.linked || this.linked.part !== part)) this.linked = { part, links: new Links(part) };
    const steps = part && this.linked ? byOrdinal(this.linked.links, r.kernel) : [];
    const longest = Math.max(1, ...steps.map((s) => s.count));
    const step = (/** @type {any} */ s) => h("div", { class: this.isCpu ? "lad wide" : "lad" },
      h("button", { type: "button", class: "lnk", onclick: () => { this.frame.open("linked", r.compilation, "kernel=" + r.kernel, this.targetKey(r)); this.frame.view.show?.(s.pane); this.frame.focus(); } }, s.title),
      h("span", { class: "bar", role: "img", "aria-label": s.parts.map((/** @type {number[]} */ p) => `${p[0] > 0 ? "line " + p[0] : "generated"}: ${p[1]}`).join(", ") }, s.parts.map((/** @type {number[]} */ p) => h("i", { class: hue(p[0]), style: `width:${(p[1] / longest) * 100}%`, title: `${p[0] > 0 ? "source line " + p[0] : "generated"}: ${plural(p[1], "row")}` }))),
      h("span", { class: "num" }, s.count));
    const missing = LADDER.filter(([id]) => part && part.panes.some((/** @type {any} */ p) => p.id === id) && !steps.some((s) => s.pane === id)).map(([, title]) => title);
    const facts = this.isCpu ? [] : Object.entries(r.targets).map(([t, m]) => [t, m.registers, m.spills, m.shared, m.occupancy == null ? "" : Math.round(m.occupancy * 100) + " %", m.limit, ms(m.seconds)]);
    return h(
      "section", { tabindex: "0", "aria-label": "Rows in each IR" },
      h("h4", {}, this.part.is_observed ? "Rows of text" : "IR ladder, rows", muted(this.part.is_observed ? "" : ` · ${targetName(this.target)}`)),
      part ? steps.map(step) : mutedLine("Loading …"),
      missing.length ? mutedLine(`No ${missing.join(", ")}: ${made ? made.error || "not compiled yet, or not available for this target" : "not compiled yet"}.`) : mutedLine("Color: source line. Gray: generated."),
      facts.length > 1 ? h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Target", "Regs", "Spills", "Shared", "Occup.", "Limited by", "Compile time"].map((t) => h("th", { class: t === "Target" ? "" : "num" }, t)))), h("tbody", {}, facts.map((f) => h("tr", { class: f[0] === this.target ? "sel" : "" }, f.map((v, i) => h("td", { class: i ? "num" : "" }, text(v))))))) : null,
      this.part.is_observed || this.isCpu ? null : mutedLine(h("b", {}, "Launch "), Object.entries(r.launch).map(([k, v]) => `${k} ${v}`).join(", ")),
    );
  }

  /** The recorded launches of the kernel: what is equal in all of them, then a row for each group. @param {any} r */
  #launches(r) {
    const found = r.launched;
    if (!found) return null;
    const heads = [...found.varying, "Launches", "Fastest", "Total"], time = (/** @type {number | null} */ s) => (s == null ? "–" : ms(s));
    return h(
      "section", { class: "launches", tabindex: "0", "aria-label": "Launches" },
      h("h4", {}, `Launches: ${found.total.toLocaleString("en")}`),
      h("p", {}, found.equal.map((/** @type {string[]} */ [name, value], /** @type {number} */ i) => [i ? ", " : "", muted(`${name} `), value])),
      h("table", { class: "t" }, h("thead", {}, h("tr", {}, heads.map((t, i) => h("th", { class: i < found.varying.length ? "" : "num" }, t)))), h("tbody", {}, found.rows.map((/** @type {any} */ w) => h("tr", {}, w.values.map((/** @type {string} */ v) => h("td", {}, v)), [w.count, time(w.fastest), time(w.seconds)].map((v) => h("td", { class: "num" }, v)))))),
      found.more ? mutedLine(`${plural(found.more, "further group")} took less time.`) : null,
    );
  }

  /** The target as it appears in keys of the linked view: empty for the first one. @param {any} r */
  targetKey(r) {
    if (r.is_cpu) return CPU;
    const all = Object.keys(r.targets), entry = this.frame.entry(r.compilation);
    return all.length < 2 || !entry || this.target === (all.includes(this.part.target) ? this.part.target : all[0]) ? "" : this.target;
  }

  /** Fusion decisions about the kernel with their reasons. @param {any} r */
  #reasons(r) {
    const found = gathered(this.part.decisions.filter((/** @type {any} */ d) => d.compilation === r.compilation && d.kernels.includes(r.kernel)));
    return h(
      "section", { tabindex: "0", "aria-label": "Decisions" },
      r.choices?.length ? [h("h4", {}, "Autotuning"), r.choices.map((/** @type {any} */ c) => h("p", {}, h("b", {}, "Chosen: "), h("code", {}, c.taken), `. ${c.reason}`, c.ways.length > 1 ? h("details", {}, h("summary", {}, `${plural(c.ways.length, "candidate")}, fastest first`), h("ul", {}, c.ways.map((/** @type {string} */ w) => h("li", {}, w)))) : null))] : null,
      h("h4", {}, "Fusion decisions"),
      found.length ? found.map((d) => h("p", {}, h("b", { class: d.fused ? "ok" : "" }, d.fused ? "✓ Fused: " : "– Not fused: "), h("code", {}, d.first), d.second ? [" with ", h("code", {}, d.second)] : null, `. ${d.reason}`, d.saved ? muted(` Saves ${d.saved}.`) : null)) : mutedLine(this.part.is_observed ? r.origins || "Inductor's trace records no reasons." : r.nodes.length > 1 ? "Its nodes were fused during lowering, without a scheduler decision." : "It has one node; the scheduler considered no fusion."),
      this.#externs(this.part.externs.filter((/** @type {any} */ e) => e.compilation === r.compilation && Boolean(e.is_cpu) === this.isCpu)),
      this.part.later_calls ? mutedLine(this.part.later_calls) : null,
    );
  }

  /** @param {any[]} externs */
  #externs(externs) {
    if (!externs.length) return null;
    const by = new Map();
    for (const e of externs) by.set(`${e.op}|${e.reason}`, { ...e, count: (by.get(`${e.op}|${e.reason}`)?.count || 0) + 1 });
    const beside = this.part.is_observed || this.isCpu || this.part.is_run ? "" : ` in the program for ${targetName(this.target)}`;
    return [h("h4", {}, `${plural(externs.length, "ATen call")}${beside}`), [...by.values()].map((e) => h("p", {}, h("code", {}, e.op), e.count > 1 ? ` ×${e.count}` : "", e.is_library ? muted(" library: ") : h("span", { class: "bad" }, " not lowered: "), e.reason, e.hint ? muted(` ${e.hint}`) : null, e.text ? h("details", {}, h("summary", {}, "Its Triton kernel"), h("pre", {}, e.text)) : null))];
  }
}

VIEWS.set("kernels", KernelsView);
