// Edit: change the text of a stage; later stages are compiled anew in another process and compared with eager.

import { copyText } from "./copy.js";
import { addCellBelow, canAddCell } from "./newcell.js";
import { button, choice, h, muted, mutedLine, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

/** Signs of diff lines and their classes. @type {Record<string, string>} */
const EDIT_SIGNS = { "+": "add", "-": "del", "…": "gap" };
const CELL_ENTRY = "cell";
const CALL_STAGE = "call";
/** Milliseconds between requests to keep the other process ready: it ends after two minutes without work. */
const PREPARE_MS = 60_000;

class EditView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    /** @type {any} */
    this.data = null;
    /** What the next answer is for: "open", "apply", "undo", "keep"; empty if none is awaited. */
    this.waiting = "";
    /** The text of the last request, and whether Apply was pressed again before its answer. */
    this.sent = "";
    this.isQueued = false;
    /** Time of the last request that keeps the other process ready while somebody types. */
    this.prepared = 0;
    /** Texts that were typed and not applied, by entry and stage. @type {Map<string, string>} */
    this.drafts = new Map();
    this.context = h("div", { class: "ctx" });
    this.gutter = h("div", { class: "gut", "aria-hidden": "true" });
    this.area = /** @type {HTMLTextAreaElement} */ (h("textarea", { spellcheck: "false", autocomplete: "off", wrap: "off", "aria-label": "Text of the stage", onkeydown: (/** @type {KeyboardEvent} */ e) => this.typed(e), oninput: () => this.changed(), onscroll: () => { this.gutter.scrollTop = this.area.scrollTop; } }));
    this.result = h("div", { class: "res", tabindex: "0", role: "group", "aria-label": "Result of the edit" });
    this.el = h("div", { class: "edit" }, this.context, h("div", { class: "split two2" }, h("div", { class: "txt" }, this.gutter, this.area), this.result));
    this.keys = [
      key("e", "go to the text; Esc leaves it", () => this.area.focus()),
      key("a", "apply the edit; Ctrl Enter in the text", () => this.apply()),
      key("u", "undo the last edit", () => this.undo()),
      key("w", "keep the edits: write a Python file", () => this.keep()),
    ];
  }

  /** @param {string} [entry] @param {string} [stage] */
  open(entry, stage) {
    if (entry) this.wanted = [entry, stage ?? ""];
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.data ? [this.data.entry, this.data.stage] : [];
  }

  get draft() {
    return this.where().join("|");
  }

  /** Send a request; `what` is "open", "apply", "undo" or "keep". @param {string} what @param {string} entry @param {string} stage */
  request(what, entry, stage) {
    this.waiting = what;
    this.sent = this.area.value;
    this.prepared = Date.now();
    this.result.setAttribute("aria-busy", "true");
    this.frame.ask({ type: "edit", action: what, entry, stage, text: this.sent }, () => this.waiting === "open");
    this.bar();
  }

  draw() {
    if (this.frame.model.hasKernel === false) return put(this.el, h("p", { class: "mut pad" }, "This page has no kernel. Run the notebook: there a graph can be edited, compiled and compared with eager."));
    const [entry, stage] = this.wanted ?? ["", ""], { data } = this;
    if (data && !this.frame.isReady) this.frame.say(this.standing);
    if (this.waiting || (data && (!this.wanted || (entry === data.entry && (!stage || stage === data.stage))))) return;
    this.wanted = undefined;
    this.request("open", entry || data?.entry || this.frame.overview.start, stage);
  }

  /** An answer of the kernel. @param {any} data */
  take(data) {
    const { waiting } = this;
    this.waiting = "";
    this.result.removeAttribute("aria-busy");
    if (data.problem) return this.fail(data.problem);
    this.data = data;
    // Text that was typed after Apply stays.
    if (waiting === "undo" || (waiting === "apply" && this.area.value === this.sent)) this.drafts.delete(this.draft);
    const text = this.drafts.get(this.draft) ?? data.text;
    if (this.area.value !== text) this.area.value = text;
    this.bar();
    this.numbers();
    this.show();
    this.frame.note();
    this.frame.say(data.said || (data.trial && waiting !== "open" ? data.trial.sentence : this.standing));
    if (this.wanted) this.draw();
    else if (this.isQueued) this.apply();
    this.isQueued = false;
  }

  /** The request has no answer: a result on screen would be that of another text. @param {string} problem */
  fail(problem) {
    this.isQueued = false;
    this.bar();
    put(this.result, h("p", { class: "bad", "data-result": "" }, `✗ ${problem}`));
    this.frame.say(problem);
  }

  /** The stage that is shown, in a sentence. */
  get standing() {
    const { choices, entry, stage, edits } = this.data;
    return `${choices.find((/** @type {any} */ c) => c.entry === entry && c.stage === stage).title}, ${edits.length ? "edited" : "not edited yet"}.`;
  }

  get hint() {
    if (this.data.stage === CALL_STAGE) return "Change a shape, dtype, value or option, then Apply: the function is compiled for this call in another process, and its stages are compared with those recorded.";
    if (/^[kc]\d/.test(this.data.stage)) return "Change the text, then Apply: the kernel is compiled and run in another process, on values of its recorded inputs, and each access is checked.";
    return this.data.entry === CELL_ENTRY
      ? "Change the cell, then Apply: it runs in another process, and its stages are compared. The notebook keeps its values."
      : "Change the text, then Apply: this stage is replaced and later stages are compiled anew, in another process, on new inputs of the recorded shapes.";
  }

  bar() {
    const { data } = this, busy = Boolean(this.waiting) || null;
    if (!data) return put(this.context, muted("Loading …"));
    const isText = data.entry === CELL_ENTRY || data.stage === CALL_STAGE;
    put(
      this.context,
      choice("Stage to edit", data.choices.map((/** @type {any} */ c) => [`${c.entry}|${c.stage}`, c.title]), this.draft, (v) => { const [entry, stage] = v.split("|"); this.request("open", entry, stage); }),
      muted(data.edits.length ? `Edited: ${data.edits.join(", ")}` : "Not edited"),
      h("span", { class: "sp" }),
      button(this.waiting === "apply" ? "Compiling …" : "Apply", "a", () => this.apply(), { "aria-disabled": busy, title: "Compile with this text. Key: a, or Ctrl Enter in the text" }),
      button("Undo", "u", () => this.undo(), { "aria-disabled": busy, disabled: !data.edits.length }),
      isText
        ? [canAddCell(this.frame.root) ? button("New cell below", "", () => this.newCell(), { title: `Put the ${this.noun} below this cell; it does not run yet` }) : null, button(`Copy ${this.noun}`, "", () => this.copyCell())]
        : [button("Keep", "w", () => this.keep(), { "aria-disabled": busy, disabled: !data.edits.length, title: "Write a Python file that applies these edits after a restart. Key: w" }), this.frame.scriptButton(data.entry, data.stage)],
    );
  }

  /** Line numbers; the line at fault is marked. */
  numbers() {
    const { trial, stage } = this.data, count = this.area.value.split("\n").length, line = trial && trial.line && (trial.stage === stage) ? trial.line : 0;
    put(this.gutter, Array.from({ length: count }, (_, i) => h("div", { class: i + 1 === line ? "at" : null }, String(i + 1))));
    this.gutter.scrollTop = this.area.scrollTop;
  }

  show() {
    const { trial, other, entry } = this.data;
    put(
      this.result,
      other ? h("p", {}, "This entry was compiled without your edit. ", other.text ? button("Use the edit here", "", () => { this.request("open", entry, other.stage); this.drafts.set(`${entry}|${other.stage}`, other.text); }, { title: "Put the edited text of the other entry into this one" }) : null) : null,
      !trial ? mutedLine(this.hint) : [
        h("p", { class: trial.ok ? "ok" : "bad", "data-result": "" }, (trial.ok ? "✓ " : "✗ ") + trial.sentence),
        trial.times.length ? h("p", {}, `${trial.timed}: `, h("b", {}, trial.times[0]), " before, ", h("b", {}, trial.times[1]), " with the edit (medians, in turns, one thread).") : null,
        trial.compared.length ? h("p", {}, button("Compare in full", "", () => { this.frame.open("compare", ...trial.compared); this.frame.focus(); }, { title: "Compare this session with that of the edit" })) : null,
        trial.differences.length ? trial.differences.map((/** @type {any} */ d) => this.#stage(d)) : trial.line ? null : mutedLine("No stage differs."),
      ],
    );
  }

  /** @param {any} d */
  #stage(d) {
    const count = d.rows.filter((/** @type {string[]} */ [sign]) => sign === "+" || sign === "-").length;
    return h("details", { open: count <= 24 || null },
      h("summary", {}, d.title, muted(`  ${plural(count, "changed line")}`)),
      h("div", { class: "dif", tabindex: "0", role: "group", "aria-label": `Changes of ${d.title}` }, d.rows.map((/** @type {string[]} */ [sign, text]) => h("div", { class: EDIT_SIGNS[sign] || null }, sign === "…" ? "…" : `${sign} ${text}`))),
      d.cut ? mutedLine(`${plural(d.cut, "line")} more not shown.`) : null);
  }

  changed() {
    this.drafts.set(this.draft, this.area.value);
    this.numbers();
    if (this.isBusy || Date.now() - this.prepared < PREPARE_MS) return;
    this.prepared = Date.now();
    this.frame.send({ type: "edit", action: "prepare", entry: this.data.entry, stage: this.data.stage, text: this.data.text });
  }

  /** @param {KeyboardEvent} e */
  typed(e) {
    if (e.key !== "Enter" || !(e.ctrlKey || e.metaKey || e.shiftKey)) return;
    e.preventDefault();
    e.stopPropagation();
    this.apply();
  }

  /** True until the answer to a request is there. */
  get isBusy() {
    return !this.data || Boolean(this.waiting);
  }

  /** Say why a key does nothing now. */
  wait() {
    this.frame.say(!this.data || this.waiting === "open" ? "The stage is still loading: press the key again when its text is here." : "The last request is still running: press the key again when its result is here.");
  }

  apply() {
    if (this.waiting === "apply") {
      this.isQueued = true;
      return this.frame.say("The text is applied again when this result is here.");
    }
    if (this.isBusy) return this.wait();
    this.frame.say("Compiling in another process …");
    this.request("apply", this.data.entry, this.data.stage);
  }

  undo() {
    if (this.isBusy) return this.wait();
    if (!this.data.edits.length) return this.frame.say("There is no edit to undo.");
    this.request("undo", this.data.entry, this.data.stage);
  }

  keep() {
    if (this.isBusy) return this.wait();
    if (this.data.entry === CELL_ENTRY || this.data.stage === CALL_STAGE) return this.frame.say(`Copy the ${this.noun}, or put it into a new cell below.`);
    this.request("keep", this.data.entry, this.data.stage);
  }

  /** What the buttons copy: the edited cell, or Python that makes the edited call. */
  get noun() {
    return this.data.stage === CALL_STAGE ? "call" : "cell";
  }

  /** The text to copy; that of a call is of the edit that was applied last. */
  get code() {
    return this.data.stage === CALL_STAGE ? this.data.code : this.area.value;
  }

  async copyCell() {
    const isDone = await copyText(this.code, this.frame.root);
    this.frame.say(isDone ? `Copied the ${this.noun}.` : "The browser does not allow this page to copy: select the text by hand.");
  }

  async newCell() {
    const isDone = await addCellBelow(this.frame.root, this.code);
    if (isDone) this.frame.say(`The edited ${this.noun} is below this cell. It has not run yet.`);
    else this.copyCell();
  }

  /** The text of the stage and the result. */
  text() {
    return `${this.area.value}\n\n${this.result.innerText}`;
  }
}

VIEWS.set("edit", EditView);
