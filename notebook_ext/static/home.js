// Home: what happened, and what to do. Findings are ranked by what their fixes save; edits of the cell are verified by a replay.

import { copyText } from "./copy.js";
import { button, h, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { canAddCell, addCellBelow } from "./newcell.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

/** Signs of diff lines and their classes. @type {Record<string, string>} */
const DIFF = { "+": "add", "-": "del", "…": "gap" };

class HomeView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
    /** Ids of the edits that are replayed now. @type {Set<string>} */
    this.waiting = new Set();
    this.el = h("div", { class: "home tall", tabindex: "0", role: "document", "aria-label": "What happened, and what to do" });
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous finding", (k) => this.go(this.at + (k === "ArrowDown" ? 1 : -1))),
      key("Enter", "show the line of the finding", () => this.show()),
      key("w", "show why: the view with the details", () => this.why()),
      key("v", "verify the edit by a replay of the cell", () => this.verify(this.edit())),
      key("c", "copy the fixed cell", () => this.copyCell(this.edit())),
      key("n", "put the fixed cell below this one", () => this.newCell(this.edit())),
    ];
  }

  /** @param {string} [what] "finding=2" */
  open(what) {
    if (what && what.startsWith("finding=")) this.at = +what.slice(8) - 1;
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.at > 0 ? ["finding=" + (this.at + 1)] : [];
  }

  /** @param {number} at */
  go(at) {
    if (!this.part?.findings.length) return;
    this.at = Math.max(0, Math.min(this.part.findings.length - 1, at));
    this.draw();
    this.el.querySelector(".find1.sel")?.scrollIntoView({ block: "nearest" });
  }

  selected() {
    return this.part?.findings[this.at];
  }

  edit() {
    return this.selected()?.edit;
  }

  show() {
    const found = this.selected();
    if (found?.line) this.frame.goTo(found.line);
    else this.why();
  }

  why() {
    const found = this.selected();
    if (found?.target) this.frame.goTo(found.target);
  }

  /** @param {any} edit */
  verify(edit) {
    if (!edit) return this.frame.say("This finding has no edit of the cell: its fix is in the text.");
    if (this.waiting.has(edit.id)) return;
    if (!edit.can_replay) return this.frame.say("Edits are not replayed with stock torch.compile: copy the fixed cell and run it.");
    if (this.frame.model.hasKernel === false) return this.frame.say("This page has no kernel: run the notebook to verify the edit.");
    this.frame.say("Replaying the cell without and with the edit, in a separate process …");
    if (!this.frame.send({ type: "replay-edit", edit: edit.id })) return;
    this.waiting.add(edit.id);
    this.draw(true);
  }

  /** @param {any} edit */
  async copyCell(edit) {
    if (!edit) return this.frame.say("This finding has no edit of the cell to copy.");
    const isDone = await copyText(edit.source, this.frame.root);
    this.frame.say(isDone ? "Copied the fixed cell: paste it into a new cell." : "The browser does not allow this page to copy: select the text by hand.");
  }

  /** @param {any} edit */
  async newCell(edit) {
    if (!edit) return this.frame.say("This finding has no edit of the cell.");
    if (canAddCell(this.frame.root) && (await addCellBelow(this.frame.root, edit.source))) return this.frame.say("The fixed cell is below this one. It has not run yet.");
    return this.copyCell(edit);
  }

  /** @param {boolean} [isQuiet] keep the sentence */
  draw(isQuiet) {
    const part = this.frame.part("home");
    if (!part) return put(this.el, h("p", { class: "mut pad" }, "Loading …"));
    if (part !== this.part) this.waiting.clear();
    /** @type {any} */
    this.part = part;
    this.at = Math.max(0, Math.min(part.findings.length - 1, this.at));
    const top = this.el.scrollTop;
    put(
      this.el,
      h("p", { class: "out", "data-tone": part.tone }, part.outcome),
      h("div", { class: "figs" }, part.figures.map((/** @type {any} */ f) => h("button", { type: "button", "data-target": f.target, onclick: () => { this.frame.goTo(f.target); this.frame.focus(); } }, h("b", {}, f.value), h("span", {}, f.name)))),
      part.findings.length ? h("ol", { class: "finds" }, part.findings.map((/** @type {any} */ f, /** @type {number} */ i) => this.#finding(f, i))) : null,
      part.more ? h("p", { class: "mut pad" }, `${plural(part.more, "more finding")}: fix these first, then run the cell again.`) : null,
      part.together ? h("div", { class: "finds" }, h("div", { class: "find1" }, h("span", { class: "n" }, "Σ"), h("div", {}, h("div", { class: "top1" }, h("b", {}, part.together.text)), this.#edit(part.together)))) : null,
      part.compiled.length ? [h("h4", {}, part.compiled_title), this.#compiled(part)] : null,
    );
    this.el.scrollTop = top;
    const found = this.selected();
    if (isQuiet) return;
    if (found) this.frame.say(`Finding ${this.at + 1} of ${part.findings.length}: ${found.title}.`);
    else this.frame.say(part.outcome);
  }

  /** @param {any} part */
  #compiled(part) {
    const rows = /** @type {any[]} */ (part.compiled), hasCalls = rows.some((r) => r.aten), titles = ["Calls", "Graphs", "Breaks", part.compiles_title, part.kernel_title, ...(hasCalls ? ["ATen calls"] : []), "Compile time"];
    const number = (/** @type {any} */ n) => h("td", { class: "num" }, n === 0 ? "0" : n || "");
    return h("div", { class: "made", tabindex: "0", role: "group", "aria-label": part.compiled_title }, h("table", { class: "t" },
      h("thead", {}, h("tr", {}, ["Function", "Inputs"].map((t) => h("th", { scope: "col" }, t)), titles.map((t) => h("th", { scope: "col", class: "num" }, t)))),
      h("tbody", {}, rows.map((r) => h("tr", {}, h("td", {}, h("button", { type: "button", class: "lnk", onclick: () => { this.frame.goTo(r.target); this.frame.focus(); } }, r.name), r.called ? h("div", { class: "mut" }, r.called) : null), h("td", {}, h("code", {}, r.inputs)), [r.calls, r.graphs, r.breaks, r.compiles, r.kernels, ...(hasCalls ? [r.aten] : []), r.time].map(number))))));
  }

  /** @param {any} f @param {number} i */
  #finding(f, i) {
    const choose = (/** @type {Event} */ e) => { if (!/** @type {Element} */ (e.target).closest("button,summary,pre,.dif")) { this.at = i; this.draw(); this.frame.focus(); } };
    const [first, ...others] = f.fixes;
    return h(
      "li",
      { class: "find1" + (i === this.at ? " sel" : ""), "data-sign": f.sign, "aria-current": i === this.at ? "true" : null, onclick: choose },
      h("span", { class: "n" }, f.sign === "!" ? String(i + 1) : f.sign),
      h("div", {},
        h("div", { class: "top1" }, h("b", {}, f.title), f.saves ? h("span", { class: "sav" }, (f.sign !== "i" && /^(\d(?!.*would)|the )/.test(f.saves) ? "a fix saves " : "") + f.saves) : null),
        h("p", {}, f.cause, " ", f.target ? h("button", { type: "button", class: "lnk", onclick: () => { this.at = i; this.why(); this.frame.focus(); } }, "Details") : null),
        f.place ? h("div", { class: "at" }, f.line ? h("button", { type: "button", class: "lnk", title: "Show this line in the linked view", onclick: () => { this.at = i; this.show(); this.frame.focus(); } }, f.place) : muted(f.place), f.pointed ? h("pre", {}, f.pointed) : null) : null,
        f.edit ? h("p", {}, h("b", {}, "Fix: "), sentence(f.edit.text)) : first ? h("p", {}, h("b", {}, "Fix: "), sentence(first.text), first.code ? [" ", h("code", {}, first.code)] : null) : null,
        f.edit ? this.#edit(f.edit) : null,
        this.#others(f, f.edit ? f.fixes.filter((/** @type {any} */ x) => sentence(x.text) !== sentence(f.edit.text)) : others),
        f.tried.map((/** @type {any} */ t) => mutedLine(`${sentence(t.text)} ${sentence(t.result)}`)),
      ),
    );
  }

  /** @param {any} f @param {any[]} fixes */
  #others(f, fixes) {
    if (!fixes.length) return null;
    return h("ul", { class: "fixes mut" }, fixes.map((x) => h("li", {}, "Or: ", sentence(x.text), x.code ? [" ", h("code", { class: "lines" }, x.code)] : null)));
  }

  /** The diff of the cell, and what can be done with it. @param {any} edit */
  #edit(edit) {
    const isWaiting = this.waiting.has(edit.id), { frame } = this;
    return h(
      "div",
      {},
      h("div", { class: "dif", role: "group", tabindex: "0", "aria-label": "Change of the cell" }, edit.diff.map((/** @type {string[]} */ [sign, text]) => h("div", { class: DIFF[sign] || null }, sign === "…" ? "…" : `${sign} ${text}`))),
      h("div", { class: "acts" },
        frame.model.hasKernel === false || !edit.can_replay ? null : button(isWaiting ? "Replaying …" : edit.result ? "Verify again" : "Verify", "v", () => this.verify(edit), { disabled: isWaiting || null, title: "Replay the cell without and with the edit, in a separate process. Key: v" }),
        canAddCell(frame.root) ? button("New cell below", "n", () => this.newCell(edit), { title: "Put the fixed cell into a new cell below; it does not run yet. Key: n" }) : null,
        button("Copy fixed cell", "c", () => this.copyCell(edit)),
        edit.result ? h("span", { class: edit.helps ? "ok" : "bad", "data-result": "" }, (edit.helps ? "✓ " : "✗ ") + edit.result) : null),
    );
  }
}

VIEWS.set("home", HomeView);
