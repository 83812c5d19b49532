// Backward: autograd's graph as in eager, the captured graph and the compiled graph; the reason for each capture.

import { button, choice, h, muted, mutedLine, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { family } from "./family.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const BECAME = { captured: ["◆", "new"], hit: ["●", "ok"], eager: ["✗", "bad"] };

class BackwardView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.capture = "";
    this.pane = 0;
    this.row = 0;
    /** @type {any} */
    this.part = null;
    this.context = h("div", { class: "ctx" });
    this.about = h("div", { class: "pad" });
    this.panes = h("div", { class: "three" });
    this.calls = h("div", { class: "pad" });
    this.el = h("div", { class: "backward" }, this.context, this.about, this.panes, this.calls);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous row", (k) => this.go(this.pane, this.row + (k === "ArrowDown" ? 1 : -1))),
      key("ArrowRight ArrowLeft", "next or previous pane, at the linked row", (k) => this.across(k === "ArrowRight" ? 1 : -1)),
      key("[ ]", "previous or next pane, at its first row", (k) => this.turn(k === "]" ? 1 : -1)),
      key("j k", "next or previous capture", (k) => this.other(k === "j" ? 1 : -1)),
      key("Enter", "open the compilation in the linked view", () => this.link()),
    ];
  }

  /** @param {string} [capture] @param {string} [what] "at=1:4", a pane and a row */
  open(capture, what) {
    if (capture) this.capture = capture;
    if (what && what.startsWith("at=")) [this.pane, this.row] = what.slice(3).split(":").map(Number);
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.part && !this.part.empty && this.shown ? [this.capture, `at=${this.pane}:${this.row}`] : [];
  }

  get shown() {
    return this.part.captures.find((/** @type {any} */ c) => c.id === this.capture);
  }

  draw() {
    const part = this.frame.part("backward");
    this.part = part;
    if (!part) return put(this.about, mutedLine("Loading …"));
    if (part.empty) {
      put(this.about, h("p", {}, part.empty));
      return this.frame.say(part.empty);
    }
    if (part.captures.length && !this.shown) this.capture = part.captures[0].id;
    const found = this.shown;
    put(
      this.context,
      part.captures.length ? choice("Capture", part.captures.map((/** @type {any} */ c) => [c.id, `${c.id} · ${c.backend}`]), this.capture, (v) => this.to(v)) : null,
      muted(part.text), h("span", { class: "sp" }),
      button("◂ capture", "k", () => this.other(-1)), button("capture ▸", "j", () => this.other(1)),
      found && found.entry ? button("Show in linked view", "Enter", () => this.link()) : null,
    );
    put(
      this.about,
      found ? [
        h("p", {}, h("b", {}, `${found.id}: `), found.facts),
        h("p", {}, h("b", {}, "Reason for the capture: "), sentence(found.cause)),
        found.details.length ? h("ul", { class: "fixes" }, found.details.map((/** @type {string} */ d) => h("li", {}, d))) : null,
        found.notes.length ? h("details", {}, h("summary", {}, plural(found.notes.length, "note")), found.notes.map((/** @type {string} */ n) => h("p", {}, sentence(n)))) : null,
      ] : h("p", {}, "No backward was captured."),
    );
    put(this.panes, found ? found.panes.map((/** @type {any} */ p, /** @type {number} */ n) => this.#pane(p, n)) : null);
    put(
      this.calls,
      h("h4", {}, "Backward runs"), part.dropped ? mutedLine(`${part.dropped} earlier ones are not listed.`) : null,
      h("ol", { class: "runs", start: part.dropped + 1 }, part.calls.map((/** @type {any} */ c) => this.#call(c))),
    );
    if (found) this.go(this.pane, this.row);
  }

  /** @param {any} pane @param {number} n */
  #pane(pane, n) {
    const rows = pane.rows.map((/** @type {any} */ r, /** @type {number} */ i) => h("li", { role: "option", "data-row": String(i), onclick: () => { this.frame.focus(); this.go(n, i); } }, h("code", {}, r[0]), r[1] ? muted("  " + r[1]) : null));
    return h("section", {}, h("h4", {}, pane.title), pane.empty ? mutedLine(pane.empty) : h("ul", { class: "lines", role: "listbox", tabindex: "0", "aria-label": pane.title, onfocus: () => this.pane !== n && this.go(n, 0) }, rows), pane.cut ? mutedLine(`${plural(pane.cut, "more row")} not shown.`) : null);
  }

  /** @param {any} call */
  #call(call) {
    const [sign, kind] = BECAME[/** @type {keyof typeof BECAME} */ (call.outcome)] || ["·", "mut"];
    const name = call.capture ? h("button", { type: "button", class: "lnk", onclick: () => this.to(call.capture) }, call.capture) : null;
    return h("li", {}, h("span", { class: kind }, sign), ` ${call.outcome} `, name, call.reason ? muted(sentence(call.reason)) : null);
  }

  /** @param {string} capture */
  to(capture) {
    this.capture = capture;
    this.pane = this.row = 0;
    this.frame.focus();
    this.draw();
  }

  /** @param {number} step */
  other(step) {
    if (!this.part || !this.part.captures.length) return;
    const ids = this.part.captures.map((/** @type {any} */ c) => c.id);
    this.to(ids[(ids.indexOf(this.capture) + step + ids.length) % ids.length]);
  }

  link() {
    const found = this.part && this.shown;
    if (found && found.entry) this.frame.open("linked", found.entry);
    else this.frame.say("This backward was not compiled.");
  }

  /** @param {number} step */
  across(step) {
    const found = this.part && this.shown, next = this.pane + step;
    if (!found || !found.panes[next] || !found.panes[next].rows.length) return;
    const [first] = [...family(found.panes, this.pane, this.row)[next]].sort((a, b) => a - b);
    if (first === undefined) return this.frame.say(step > 0 ? "No row comes from this one." : "No origin: generated by the compiler.");
    this.go(next, first);
  }

  /** Go to the next pane that has rows, linked or not. @param {number} step */
  turn(step) {
    const panes = this.part && this.shown ? this.shown.panes : [];
    for (let next = this.pane + step; panes[next]; next += step) if (panes[next].rows.length) return this.go(next, 0);
  }

  /** @param {number} pane @param {number} row */
  go(pane, row) {
    const found = this.part && this.shown;
    if (!found || !found.panes[pane]?.rows.length) return;
    this.pane = pane;
    this.row = Math.max(0, Math.min(found.panes[pane].rows.length - 1, row));
    const lit = family(found.panes, this.pane, this.row);
    [...this.panes.children].forEach((section, p) => {
      const lines = [...section.querySelectorAll("li")];
      lines.forEach((line, r) => {
        line.classList.toggle("lit", lit[p].has(r));
        line.setAttribute("aria-selected", String(p === this.pane && r === this.row));
      });
      const first = p === this.pane ? lines[this.row] : lines[Math.min(...lit[p])];
      const box = section.querySelector("ul");
      if (first && box && (first.offsetTop < box.scrollTop || first.offsetTop > box.scrollTop + box.clientHeight - 24)) box.scrollTop = first.offsetTop - box.clientHeight / 3;
    });
    const [text, note] = found.panes[this.pane].rows[this.row];
    const [a, b, c] = lit.map((s) => s.size);
    this.frame.say(h("b", {}, text), note ? ` ${note}. ` : ". ", muted(`Linked: ${plural(a, "autograd node")}, ${plural(b, "captured node")}, ${plural(c, "compiled node")}.`));
  }
}

VIEWS.set("backward", BackwardView);
