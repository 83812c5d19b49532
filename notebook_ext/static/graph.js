// Graphs: nodes in ranks by depth, long edges cut into paired pins; only what is in view is drawn.

import { badge, button, choice, h, hue, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { sourceLine } from "./guards.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const MARGIN = 12;

/**
 * A curve from the bottom of one box to the top of another.
 * @param {{x: number, y: number}} a @param {{x: number, y: number}} b @param {number[]} box width and height
 */
export function edgePath(a, b, [width, height]) {
  const x1 = a.x + width / 2, y1 = a.y + height, x2 = b.x + width / 2, y2 = b.y;
  if (y2 <= y1) return `M${a.x + width} ${a.y + height / 2}L${b.x} ${b.y + height / 2}`;
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

export class GraphView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "graph";
    this.entry = "";
    this.stage = "";
    this.at = -1;
    this.zoom = 1;
    this.context = h("div", { class: "ctx" });
    this.svg = h("svg", { role: "group", "aria-label": "Graph" });
    this.box = h("div", { class: "gbox", onscroll: () => this.paint() }, this.svg);
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "The node in hand" });
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search nodes  /", "aria-label": "Search nodes", onkeydown: (/** @type {KeyboardEvent} */ e) => e.key === "Enter" && this.find() }));
    this.el = h("div", { class: "graph" }, this.context, h("div", { class: "two" }, this.box, this.side));
    this.keys = [
      key("ArrowDown ArrowUp", "to a reader or an input of the node", (k) => this.follow(k === "ArrowDown" ? 1 : -1)),
      key("ArrowRight ArrowLeft", "next or previous node", (k) => this.choose(this.at + (k === "ArrowRight" ? 1 : -1))),
      key("+ -", "closer or further", (k) => this.scale(k === "+" ? 1.25 : 0.8)),
      key("0", "fit the width", () => this.fit()),
      key("Enter", "show its line in the linked view", () => this.link()),
      key("/", "search nodes", () => this.search.focus()),
    ];
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  /** @param {string} [entry] */
  open(entry) {
    if (entry) this.entry = entry;
  }

  draw() {
    if (!this.frame.entry(this.entry)) this.entry = this.frame.overview.start;
    const part = this.entry ? this.frame.part(`graph|${this.entry}|${this.stage}`) : null;
    if (part && part !== this.part) {
      /** @type {any} */
      this.part = part;
      this.at = part.nodes.length ? Math.max(0, part.nodes.findIndex((/** @type {any} */ n) => n.ordinal === 1 && n.op !== "placeholder")) : -1;
      this.reads = part.nodes.map(() => /** @type {number[]} */ ([]));
      this.readers = part.nodes.map(() => /** @type {number[]} */ ([]));
      for (const [a, b] of [...part.edges, ...part.pins]) {
        this.reads[b].push(a);
        this.readers[a].push(b);
      }
    }
    if (!part) {
      put(this.context);
      this.svg.replaceChildren();
      put(this.side, h("p", { class: "mut" }, this.entry ? "Loading …" : "Nothing was compiled, so there is no graph."));
      return;
    }
    put(
      this.context,
      choice("Function and cache entry", this.frame.overview.entries.map((/** @type {any} */ e) => [e.id, `${e.name} entry ${e.entry}`]), this.entry, (v) => { this.entry = v; this.draw(); }),
      part.stages.length > 1 ? choice("Stage", part.stages.map((/** @type {string} */ s) => [s, s]), part.stage, (v) => { this.stage = v; this.draw(); }) : null,
      h("span", { class: "mut" }, `${plural(part.nodes.length, "node")}, ${plural(part.pins.length, "long edge")} cut into pins`),
      h("span", { class: "sp" }), this.search, button("−", "-", () => this.scale(0.8), { "aria-label": "Further" }), button("Fit", "0", () => this.fit()), button("+", "+", () => this.scale(1.25), { "aria-label": "Closer" }),
    );
    this.paint();
    this.tell();
  }

  /** @param {number} by */
  scale(by) {
    if (!this.part) return;
    this.zoom = Math.max(0.15, Math.min(3, this.zoom * by));
    this.paint();
  }

  fit() {
    if (!this.part) return;
    this.zoom = Math.max(0.15, Math.min(1.5, this.box.clientWidth / (this.part.width + 2 * MARGIN)));
    this.paint();
  }

  /** Draw nodes and edges in view. */
  paint() {
    const { part, zoom } = this;
    if (!part || !this.box.clientWidth) return;
    const width = part.width + 2 * MARGIN, height = part.height + 2 * MARGIN;
    for (const [name, value] of Object.entries({ viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, width: width * zoom, height: height * zoom })) this.svg.setAttribute(name, String(value));
    const top = this.box.scrollTop / zoom - 200, bottom = top + this.box.clientHeight / zoom + 400;
    const seen = (/** @type {number} */ i) => part.nodes[i].y >= top && part.nodes[i].y <= bottom;
    const hot = (/** @type {number[]} */ e) => (e.includes(this.at) ? " hot" : "");
    const pinned = part.pins.flatMap((/** @type {number[]} */ e, /** @type {number} */ i) => [this.#pin(e[0], e[1], i, true, seen), this.#pin(e[1], e[0], i, false, seen)]);
    put(
      this.svg,
      part.edges.filter((/** @type {number[]} */ e) => e.some(seen)).map((/** @type {number[]} */ e) => h("path", { class: "edge" + hot(e), d: edgePath(part.nodes[e[0]], part.nodes[e[1]], part.box) })),
      part.nodes.map((/** @type {any} */ n, /** @type {number} */ i) => (seen(i) ? this.#node(n, i) : null)),
      pinned,
    );
    if (part.empty) put(this.side, h("p", { class: "mut" }, part.empty));
  }

  /** @param {number} own @param {number} other @param {number} i @param {boolean} isStart @param {(i: number) => boolean} seen */
  #pin(own, other, i, isStart, seen) {
    if (!seen(own)) return null;
    const n = this.part.nodes[own], [width, height] = this.part.box;
    const x = n.x + width - 34 - 34 * (i % 3), y = isStart ? n.y + height : n.y - 13;
    return h("g", { class: "pin" + ([own, other].includes(this.at) ? " hot" : ""), onclick: () => { this.choose(other); this.frame.focus(); } }, h("rect", { x, y, width: 30, height: 13, rx: 6 }), h("text", { x: x + 15, y: y + 10, "text-anchor": "middle" }, "P" + (i + 1)));
  }

  /** @param {any} n @param {number} i */
  #node(n, i) {
    const [width, height] = this.part.box, left = n.ordinal ? 26 : 7;
    return h(
      "g",
      { class: "nd " + hue(n.ordinal) + (i === this.at ? " sel" : "") + (n.op === "call_function" || n.op === "call_method" || n.op === "call_module" ? "" : " ph"), transform: `translate(${n.x} ${n.y})`, onclick: () => { this.choose(i); this.frame.focus(); }, role: "img", "aria-label": `${n.name} ${n.type}` },
      h("rect", { class: "bx", width, height, rx: 2 }),
      n.ordinal ? [h("rect", { class: "bg", x: 5, y: 4, width: 16, height: 13, rx: 2 }), h("text", { class: "bn", x: 13, y: 14, "text-anchor": "middle" }, String(n.ordinal))] : null,
      h("text", { class: "nm", x: left, y: 14 }, n.name.length > 20 ? n.name.slice(0, 19) + "…" : n.name),
      h("text", { class: "ty", x: 7, y: 28 }, n.type.length > 20 ? n.type.slice(0, 19) + "…" : n.type),
      n.kernel ? h("text", { class: "ty", x: width - 6, y: 28, "text-anchor": "end" }, n.kernel) : null,
    );
  }

  /** @param {number} i */
  choose(i) {
    if (!this.part) return;
    if (!this.part.nodes.length) return;
    this.at = Math.max(0, Math.min(this.part.nodes.length - 1, i));
    const n = this.part.nodes[this.at], y = (n.y + MARGIN) * this.zoom, x = (n.x + MARGIN) * this.zoom;
    if (y < this.box.scrollTop || y + 60 > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = y - 80;
    if (x < this.box.scrollLeft || x + this.part.box[0] * this.zoom > this.box.scrollLeft + this.box.clientWidth) this.box.scrollLeft = x - 40;
    this.paint();
    this.tell();
  }

  /** @param {1 | -1} step */
  follow(step) {
    if (!this.part) return;
    const next = (step > 0 ? this.readers : this.reads)?.[this.at]?.[0];
    if (next === undefined) return this.frame.say(step > 0 ? "Nothing reads this node." : "This node reads nothing.");
    this.choose(next);
  }

  find() {
    const wanted = this.search.value.toLowerCase(), { nodes } = this.part;
    for (let i = 1; wanted && i <= nodes.length; i++) {
      const j = (this.at + i) % nodes.length;
      if (`${nodes[j].name} ${nodes[j].text} ${nodes[j].module}`.toLowerCase().includes(wanted)) return this.choose(j);
    }
    this.frame.say("No match for ", h("code", {}, this.search.value), ".");
  }

  link() {
    if (!this.part) return;
    const n = this.part.nodes[this.at];
    if (n && n.line) this.frame.open("linked", this.entry, "line=" + n.line);
    else this.frame.say("No line is known for this node.");
  }

  tell() {
    const n = this.part.nodes[this.at];
    if (!n) return this.frame.say(this.part.empty || "Choose a node.");
    const names = (/** @type {number[]} */ list) => list.map((j) => this.part.nodes[j].name).join(", ") || "–";
    const facts = [["value", n.type], ["bytes", n.bytes], ["module", n.module], ["kernel", n.kernel], ["reads", names(this.reads?.[this.at] || [])], ["read by", names(this.readers?.[this.at] || [])]];
    put(
      this.side,
      h("h4", {}, "Node"), h("pre", { class: "code" }, n.text),
      h("dl", { class: "kv" }, facts.filter(([, v]) => v).map(([k, v]) => [h("dt", {}, k), h("dd", {}, h("code", {}, v))])),
      n.line ? [h("h4", {}, badge(n.ordinal), " Line " + n.line), sourceLine(n.source), button("Show in linked view", "Enter", () => this.link())] : null,
      this.part.pins.length ? [h("h4", {}, "Pins"), h("p", { class: "mut" }, "An edge that skips more than three ranks is cut into two pins with one name. Click a pin to go to its partner.")] : null,
    );
    this.frame.say(badge(n.ordinal), " ", h("b", {}, n.name), n.type ? ` ${n.type}` : "", n.bytes ? `, ${n.bytes}` : "", n.module ? ` in ${n.module}` : "", n.kernel ? `, in kernel ${n.kernel}` : "", ".");
  }
}

VIEWS.set("graph", GraphView);
