// Kernels: what was fused into each, what it needs, whether it was checked; and what went to ATen.

import { badge, h, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

export class KernelsView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "kernels";
    this.at = 0;
    this.context = h("div", { class: "ctx" });
    this.body = h("div", { class: "scr tall" });
    this.el = h("div", { class: "kernels" }, this.context, this.body);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous kernel", (k) => { this.at += k === "ArrowDown" ? 1 : -1; this.draw(); }),
      key("Enter", "open it in the linked view", () => this.link()),
    ];
  }

  open() {}

  link() {
    const row = this.part && this.part.rows[this.at];
    if (row) this.frame.open("linked", row.compilation, "kernel=" + row.kernel);
  }

  draw() {
    const part = this.frame.part("kernels");
    /** @type {any} */
    this.part = part;
    if (!part) return put(this.body, h("p", { class: "mut pad" }, "Loading …"));
    this.at = Math.max(0, Math.min(part.rows.length - 1, this.at));
    put(this.context, h("b", {}, plural(part.rows.length, "kernel")), h("span", { class: "mut" }, `target ${part.target || "unknown"}`), part.is_run ? null : h("span", { class: "mut" }, h("b", {}, "Not run here"), ": no GPU. Registers, spills and shared memory are exact, from the compiled binary; bytes are counted from the loops."));
    const heads = [["Kernel", ""], ["Lines and fused nodes", ""], ["Grid", "num"], ["Warps", "num"], ["Bytes", "num"], ["Regs", "num"], ["Spills", "num"], ["Shared", "num"], ["Occup.", "num"], ["Check", ""]];
    put(
      this.body,
      part.rows.length
        ? h("table", { class: "t", role: "grid", "aria-label": "Kernels" }, h("thead", {}, h("tr", {}, heads.map(([t, c]) => h("th", { class: c }, t)))), h("tbody", {}, part.rows.map((/** @type {any} */ r, /** @type {number} */ i) => this.#row(r, i))))
        : h("p", { class: "pad" }, "No kernels: the linked view says why for each compilation."),
      h("div", { class: "pad" }, this.#rest(part)),
    );
    const r = part.rows[this.at];
    if (!r) return this.frame.say("No kernels.");
    this.frame.say(h("b", {}, `${r.kernel} `), h("code", {}, r.name), ` of ${r.frame} entry ${r.compilation.split("/").pop()}: ${plural(r.nodes.length, "ATen node")} fused`, r.bytes ? `, ${r.bytes} moved` : "", r.registers == null ? (r.error ? ". " + r.error : ", not compiled yet") : `, ${plural(r.registers, "register")}, ${plural(r.spills || 0, "spill")}`, ". ", h("span", { class: "mut" }, r.check === "not checked" ? "Not checked against ATen." : `Checked: ${r.check}. ${r.check_note}`));
  }

  /** @param {any} r @param {number} i */
  #row(r, i) {
    const text = (/** @type {any} */ v) => (v == null || v === "" ? "–" : String(v));
    const good = ["equal", "close"].includes(r.check);
    return h(
      "tr",
      { class: i === this.at ? "sel" : "", "aria-selected": String(i === this.at), onclick: () => { this.at = i; this.draw(); this.frame.focus(); }, ondblclick: () => this.link() },
      h("td", {}, h("b", {}, `${r.compilation} ${r.kernel}`), " ", h("code", {}, r.name), r.launches > 1 ? h("span", { class: "mut" }, ` ×${r.launches}`) : null),
      h("td", {}, r.ordinals.map((/** @type {number} */ o) => [badge(o), " "]), r.nodes.slice(0, 8).join(", "), r.nodes.length > 8 ? ` and ${r.nodes.length - 8} more` : null, r.error ? h("div", { class: "bad" }, r.error) : null),
      [r.grid, r.warps, r.bytes, r.registers, r.spills, r.shared, r.occupancy == null ? "" : Math.round(r.occupancy * 100) + " %"].map((v) => h("td", { class: "num" }, text(v))),
      h("td", { class: "nw " + (good ? "ok" : r.check === "different" ? "bad" : "mut"), title: r.check_note }, (good ? "✓ " : r.check === "different" ? "✗ " : "") + r.check),
    );
  }

  /** @param {any} part */
  #rest(part) {
    const { externs, decisions } = part;
    const names = (/** @type {string[]} */ n) => n.slice(0, 4).join(", ") + (n.length > 4 ? " …" : "");
    return [
      externs.length ? [h("h4", {}, `${plural(externs.length, "operation")} went to ATen`), externs.map((/** @type {any} */ e) => h("p", {}, h("code", {}, e.op), e.is_library ? h("span", { class: "mut" }, "  library: ") : h("span", { class: "bad" }, "  not lowered: "), e.reason))] : null,
      decisions.length ? [h("h4", {}, "Fusion decisions"), decisions.map((/** @type {any} */ d) => h("p", {}, h("b", {}, d.fused ? "✓ Fused: " : "– Not fused: "), h("code", {}, names(d.first)), " with ", h("code", {}, names(d.second)), `. ${d.reason}`, d.saved ? h("span", { class: "mut" }, ` Saves ${d.saved}.`) : null))] : null,
    ];
  }
}

VIEWS.set("kernels", KernelsView);
