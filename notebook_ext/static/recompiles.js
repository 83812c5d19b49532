// Recompiles: a grid of cache entries by calls. It shows which entries were checked, in which order, and which guards failed.

import { button, h, ms, muted, mutedLine, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { failureHint, fixList, sourceLine } from "./shared/reasons.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const CELLS = { hit: ["●", "ok", "hit"], compiled: ["◆", "new", "compiled"], rejected: ["✗", "bad", "guard failed"], python: ["–", "mut", "ran as Python"] };

class RecompilesView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    /** @type {any} */
    this.part = null;
    this.lane = 0;
    this.column = -1;
    this.context = h("div", { class: "ctx" });
    this.lanes = h("div", { class: "lanes" });
    this.detail = h("div", { class: "blk" });
    this.el = h("div", { class: "recompiles" }, this.context, h("div", { class: "split" }, this.lanes, this.detail));
    this.keys = [
      key("ArrowRight ArrowLeft", "next or previous call", (k) => this.go(this.lane, this.column + (k === "ArrowRight" ? 1 : -1))),
      key("ArrowDown ArrowUp", "next or previous function", (k) => this.go(this.lane + (k === "ArrowDown" ? 1 : -1), this.column)),
      key("j k", "next or previous miss", (k) => this.miss(k === "j" ? 1 : -1)),
      key("Enter", "show the guard that failed", () => this.guard()),
      key("d", "compare the entry whose guard failed with the new entry", () => this.diff()),
      key("t", "try the suggested fixes in a separate process", () => this.frame.act("try")),
    ];
  }

  /** The current selection, as arguments of `open`. */
  where() {
    const lane = this.part && this.part.lanes[this.lane], column = lane && lane.columns[this.column];
    return lane ? [lane.frame, ...(column ? ["call=" + column.first] : [])] : [];
  }

  /** @param {string} [frame] @param {string} [what] "call=3" */
  open(frame, what) {
    this.wanted = frame;
    this.wantedCall = what && what.startsWith("call=") ? +what.slice(5) : undefined;
  }

  draw() {
    const part = this.frame.part("recompiles");
    if (!part) return put(this.lanes, h("p", { class: "mut pad" }, "Loading …"));
    this.part = part;
    if (this.wanted) {
      this.lane = Math.max(0, part.lanes.findIndex((/** @type {any} */ l) => l.frame === this.wanted));
      const { columns } = part.lanes[this.lane] || { columns: [] };
      this.column = columns.findIndex((/** @type {any} */ c) => this.wantedCall !== undefined && c.first <= this.wantedCall && c.last >= this.wantedCall);
      this.wanted = undefined;
    } else if (this.column < 0) this.lane = Math.max(0, part.lanes.findIndex((/** @type {any} */ l) => l.columns.some((/** @type {any} */ c) => c.rejections.length)));
    const calls = part.lanes.reduce((/** @type {number} */ n, /** @type {any} */ l) => n + (l.is_root ? l.calls : 0), 0) + part.dropped;
    put(
      this.context,
      h("b", {}, plural(part.lanes.length, "code object")), muted(plural(calls, "top-level call")),
      h("span", {}, Object.values(CELLS).slice(0, part.lanes.some((/** @type {any} */ l) => l.python) ? 4 : 3).flatMap(([sign, kind, text]) => [h("span", { class: kind, style: "margin-left:8px" }, sign), ` ${text}  `]), h("span", { class: "mut", style: "margin-left:8px" }, "·"), " not reached"),
      h("span", { class: "sp" }), button("◂ miss", "k", () => this.miss(-1)), button("miss ▸", "j", () => this.miss(1)),
      !part.is_observed && part.lanes.some((/** @type {any} */ l) => l.columns.some((/** @type {any} */ c) => c.rejections.some((/** @type {any} */ r) => r.fixes.some((/** @type {any} */ f) => f.code && !f.verified && !f.unverified_reason)))) ? button("Try the fixes", "t", () => this.frame.act("try")) : null,
    );
    if (this.column < 0) this.column = this.firstMiss(this.lane);
    this.update();
  }

  /** @param {number} lane */
  firstMiss(lane) {
    const { columns } = this.part.lanes[lane] || { columns: [] };
    const found = columns.findIndex((/** @type {any} */ c) => c.rejections.length);
    return found >= 0 ? found : 0;
  }

  /** @param {number} lane @param {number} column */
  go(lane, column) {
    if (!this.part || !this.part.lanes.length) return;
    const { lanes } = this.part;
    this.lane = Math.max(0, Math.min(lanes.length - 1, lane));
    this.column = Math.max(0, Math.min(lanes[this.lane].columns.length - 1, column));
    this.update();
  }

  /** @param {number} step */
  miss(step) {
    if (!this.part || !this.part.lanes.length) return;
    const places = this.part.lanes.flatMap((/** @type {any} */ l, /** @type {number} */ i) => l.columns.flatMap((/** @type {any} */ c, /** @type {number} */ j) => (c.rejections.length ? [[i, j]] : [])));
    if (!places.length) return this.frame.say("No call missed every entry.");
    const here = places.findIndex((/** @type {number[]} */ p) => p[0] === this.lane && p[1] === this.column);
    const [lane, column] = places[here < 0 ? 0 : (here + step + places.length) % places.length];
    this.go(lane, column);
  }

  guard() {
    if (!this.part || !this.part.lanes.length) return;
    const column = this.part.lanes[this.lane].columns[this.column];
    const refused = column && column.rejections[0];
    if (refused) this.frame.open("guards", this.fullId(refused.entry), "call=" + (column.first));
    else this.frame.say("No guard failed for this call.");
  }

  diff() {
    if (!this.part || !this.part.lanes.length) return;
    const { entries, columns } = this.part.lanes[this.lane], column = columns[this.column];
    const refused = column && column.rejections[0];
    const made = column && entries.find((/** @type {any} */ e) => e.id === column.entry);
    const pair = refused && made ? [this.fullId(refused.entry), made.id] : entries.slice(0, 2).map((/** @type {any} */ e) => e.id);
    if (pair.length < 2) return this.frame.say("There is only one entry, so nothing to compare it with.");
    const target = (/** @type {string} */ id) => { const e = this.frame.entry(id); return e && e.targets.length > 1 ? e.targets[0] : ""; };
    this.frame.open("compare", ...pair.map((/** @type {string} */ id) => ["", id, target(id)].join("~")));
  }

  /** @param {string} entry */
  fullId(entry) {
    return entry.includes("/") ? entry : this.part.lanes[this.lane].frame + "/" + entry;
  }

  update() {
    const { lanes } = this.part;
    put(this.lanes, lanes.length ? lanes.map((/** @type {any} */ l, /** @type {number} */ i) => this.#lane(l, i)) : h("p", { class: "mut pad" }, "Nothing was compiled, so nothing was recompiled."));
    const lane = lanes[this.lane], column = lane && lane.columns[this.column];
    const below = lane ? this.lanes.children[this.lane].getBoundingClientRect().top - this.lanes.getBoundingClientRect().top : 0;
    if (below < 0 || below > this.lanes.clientHeight / 2) this.lanes.scrollTop += below;
    if (!column) {
      put(this.detail);
      return this.frame.say(lane ? "No calls of this function were recorded." : "Nothing was compiled.");
    }
    const calls = column.first === column.last ? `call ${column.first}` : `calls ${column.first} to ${column.last}`;
    const outcome = column.outcome === "hit" ? "hit" : column.outcome === "compiled" ? (column.rejections.length ? "miss, compiled " : "first compiled as ") : "ran as Python (frame skipped)";
    put(
      this.detail,
      h("h4", {}, `${lane.name}, ${calls}${column.inputs ? ": " + column.inputs : ""}`),
      h("p", {}, h("span", { class: column.outcome === "hit" ? "ok" : "new" }, outcome + (column.outcome === "python" ? "" : " " + this.entryName(column.entry))), column.caller ? muted(` · called from ${column.caller}`) : null),
      column.rejections.map((/** @type {any} */ r) => [
        h("div", { class: "rej" }, h("b", {}, this.entryName(r.entry)), h("span", { class: "bad" }, " ✗ guard failed: "), h("code", {}, r.short), h("p", {}, r.sentence)),
        r.place ? [mutedLine("Because of " + r.place), sourceLine(r.source)] : null,
        r.fixes.length ? fixList(r.fixes, this.part.is_observed) : null,
        failureHint(r.lesson),
        h("p", {}, button("Show the guard", "Enter", () => this.frame.open("guards", this.fullId(r.entry), "call=" + column.first)), " ", column.outcome === "compiled" ? [button("Compare the two entries", "d", () => this.diff()), " ", this.frame.scriptButton(this.fullId(column.entry), "recompile")] : null),
      ]),
    );
    const entries = `${plural(lane.entries.length, "entry")} of at most ${lane.limit}`;
    this.frame.say(h("b", {}, `${lane.name}, ${calls}: `), `${outcome}${column.outcome === "python" ? "" : " " + this.entryName(column.entry)}. `, column.rejections.map((/** @type {any} */ r) => `${this.entryName(r.entry)} guard failed: ${r.short}. `), muted(`${this.lookup(column)}${entries}.`));
  }

  /** The entries that a call checked, in look-up order. @param {any} column */
  lookup(column) {
    const names = column.order.filter((/** @type {string} */ id) => column.cells[id] !== "compiled").map((/** @type {string} */ id) => this.entryName(id));
    return names.length ? `Checked ${names.join(", then ")}${names.length > 1 ? ": the entry used last comes first" : ""}; ` : "";
  }

  /** @param {string} entry */
  entryName(entry) {
    return "e" + entry.slice(entry.lastIndexOf("/") + 1);
  }

  /** @param {any} lane @param {number} index */
  #lane(lane, index) {
    const columns = lane.columns;
    const most = Math.max(...this.part.lanes.flatMap((/** @type {any} */ l) => l.entries.map((/** @type {any} */ e) => e.seconds)), 1e-9);
    const at = (/** @type {number} */ c) => (index === this.lane && c === this.column ? " sel" : "");
    const choose = (/** @type {number} */ c) => ({ onclick: () => { this.go(index, c); this.frame.focus(); } });
    const cell = (/** @type {any} */ e, /** @type {any} */ column, /** @type {number} */ c) => {
      const state = column.cells[e.id] || column.cells[e.id.slice(e.id.lastIndexOf("/") + 1)];
      const lookedUp = column.order.filter((/** @type {string} */ id) => column.cells[id] !== "compiled").length;
      const position = column.order.findIndex((/** @type {string} */ id) => this.entryName(id) === e.name) + 1;
      const [sign, kind, text] = CELLS[/** @type {keyof typeof CELLS} */ (state)] || (e.from && e.from <= column.first ? ["·", "mut", "not reached"] : ["", "", "not compiled yet"]);
      return h("span", { class: "cc " + kind + at(c), role: "gridcell", "aria-label": `call ${column.first}, ${e.name}: ${text}${position && lookedUp > 1 && state !== "compiled" ? `, checked as number ${position}` : ""}`, title: text, ...choose(c) }, sign, position && lookedUp > 1 && state !== "compiled" ? h("sub", {}, String(position)) : null);
    };
    const head = columns.map((/** @type {any} */ column, /** @type {number} */ c) => h("button", { type: "button", role: "columnheader", class: "cc" + at(c), "aria-selected": String(Boolean(at(c))), title: column.inputs, ...choose(c) }, column.first === column.last ? column.first : `${column.first}–${column.last}`));
    const differ = columns.some((/** @type {any} */ column) => column.varying.length);
    const made = (/** @type {any} */ column) => column.outcome === "compiled" && lane.entries.find((/** @type {any} */ e) => e.id === column.entry);
    return h(
      "section",
      { class: "lane" },
      h("h4", {}, lane.name, muted(lane.line), h("span", { class: "sp mut" }, `entries ${lane.entries.length} of ${lane.limit} · ${lane.hits === null ? "" : plural(lane.hits, "hit") + ", "}${`${lane.misses} ${lane.misses === 1 ? "miss" : "misses"}`}${lane.python ? `, ${lane.python} as Python` : ""}${lane.guard_seconds ? ` · guards ${ms(lane.guard_seconds)}` : ""} · compiled in ${ms(lane.seconds)}`)),
      h(
        "div",
        { class: "mx", role: "grid", "aria-label": lane.name + ": entries by calls", style: `--columns:${columns.length};--least:${differ ? 88 : 56}px` },
        h("div", { role: "row", class: "mxr" }, h("span", { class: "mut", role: "rowheader" }, lane.cut ? `call, ${plural(lane.cut, "earlier column")} left out` : "call"), head),
        differ ? h("div", { role: "row", class: "mxr" }, h("span", { class: "mut", role: "rowheader" }, "inputs that differ"), columns.map((/** @type {any} */ column, /** @type {number} */ c) => h("span", { class: "cc in" + at(c), role: "gridcell", title: column.inputs, ...choose(c) }, column.varying.map((/** @type {string} */ text) => h("code", {}, text))))) : null,
        h("div", { role: "row", class: "mxr bars" }, h("span", { class: "mut", role: "rowheader" }, "compile time"), columns.map((/** @type {any} */ column, /** @type {number} */ c) => { const e = made(column); return h("span", { class: "cc bar" + at(c), role: "gridcell", ...choose(c) }, e ? [h("small", {}, ms(e.seconds)), h("i", { style: `height:${Math.max(2, (e.seconds / most) * 20)}px` })] : null); })),
        lane.entries.map((/** @type {any} */ e) => h("div", { role: "row", class: "mxr" }, h("span", { class: "chip", role: "rowheader", title: e.cause }, h("b", {}, e.name), " ", h("code", { title: e.inputs }, e.inputs), h("span", { class: "sp mut" }, e.from ? "from call " + e.from : "")), columns.map((/** @type {any} */ column, /** @type {number} */ c) => cell(e, column, c)))),
      ),
    );
  }
}

VIEWS.set("recompiles", RecompilesView);
