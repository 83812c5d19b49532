// Graph: nodes nested in collapsible calls, long edges cut into paired pins; only the visible part is drawn.

import { sourceLine } from "./shared/reasons.js";
import { LONG, NODE, boxOf, closedAtFirst, drawnEdges, framed, hiddenIn, nesting, places, rewrites } from "./layered.js";
import { save } from "./copy.js";
import { Minimap, dotText, svgText } from "./picture.js";
import { badge, button, choice, entryName, h, hue, muted, mutedLine, plural, put, valueMap } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { Rows } from "./shared/rows.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const MARGIN = 12;
const TEXTS = ["op", "target", "type", "bytes", "path", "kernel", "source", "note", "placed"];
const PLAY_MS = 900;
/** Text is not readable at a smaller zoom. */
const LEGIBLE = 0.3;

/**
 * Nodes from a part's columns.
 * @param {any} part
 * @returns {any[]}
 */
function nodesOf(part) {
  const columns = Object.entries(part.nodes);
  return Array.from({ length: part.count }, (_, i) => {
    /** @type {any} */
    const node = {};
    for (const [name, column] of columns) node[name] = TEXTS.includes(name) ? part.strings[/** @type {any} */ (column)[i]] : /** @type {any} */ (column)[i];
    node.isInput = node.op === "placeholder" || node.op === "get_attr";
    node.module = node.path;
    node.path = node.path ? node.path.split(".") : [];
    return node;
  });
}

/**
 * A curve from the bottom of one box to the top of another.
 * @param {any} a @param {any} b
 */
function edgePath(a, b) {
  const x1 = a.x + a.width / 2, y1 = a.y + a.height, x2 = b.x + b.width / 2, y2 = b.y;
  if (y2 <= y1) return `M${a.x + a.width} ${a.y + a.height / 2}L${b.x} ${b.y + b.height / 2}`;
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

export class GraphView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.entry = "";
    this.stage = "";
    /** @type {any} */
    this.part = null;
    /** The selected box: a node, or `nodes.length` plus the number of a closed group. */
    this.at = -1;
    this.zoom = 1;
    this.isTable = false;
    /** Use Graphviz's layout if there is one. */
    this.isByGraphviz = true;
    /** Graphviz's edge paths by both ends; empty while the built-in layout is shown. @type {Map<string, string>} */
    this.routes = new Map();
    /** The current rewrite; -1 if none is played. */
    this.step = -1;
    this.timer = 0;
    /** The pass that is shown; -1 for none. */
    this.pass = -1;
    /** @type {any[]} */
    this.nodes = [];
    /** @type {import("./layered.js").Group[]} */
    this.groups = [];
    /** @type {Int32Array} */
    this.groupOf = new Int32Array(0);
    /** @type {Set<number>} */
    this.closed = new Set();
    /** The closed group around each node, -1 for none. @type {Int32Array} */
    this.hidden = new Int32Array(0);
    /** @type {import("./layered.js").Picture} */
    this.picture = { nodes: [], groups: [], width: 0, height: 0 };
    /** @type {{edges: [number, number][], pins: [number, number][]}} */
    this.drawn = { edges: [], pins: [] };
    /** Boxes in the order of the graph. @type {number[]} */
    this.order = [];
    /** @type {number[][]} */
    this.reads = [];
    /** @type {number[][]} */
    this.readers = [];
    /** @type {{before: number, after: number[]}[]} */
    this.steps = [];
    /** The step that makes each node. @type {number[]} */
    this.madeAt = [];
    this.frameAsked = 0;
    this.context = h("div", { class: "ctx wrap" });
    this.strip = h("div", { class: "ctx strip", hidden: true });
    this.svg = h("svg", { role: "group", "aria-label": "Graph" });
    this.box = h("div", { class: "gbox", tabindex: "0", role: "group", "aria-label": "Picture of the graph", onscroll: () => this.soon(), onpointerdown: (/** @type {PointerEvent} */ e) => this.drag(e), onwheel: (/** @type {WheelEvent} */ e) => this.wheel(e) }, this.svg);
    this.map = new Minimap((x, y) => this.center(x, y));
    this.table = new Rows((i) => this.#tableRow(i), { role: "rowgroup", "aria-label": "Nodes" }, 22);
    this.head = h("div", { class: "gt th", role: "row" }, ["#", "Node", "Operation", "Value", "Bytes", "Kernel", "Module", "Line"].map((t) => h("span", { role: "columnheader" }, t)));
    this.list = h("div", { class: "gtable", role: "grid", "aria-label": "Nodes as a table", hidden: true }, this.head, this.table.el);
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "Selected node" });
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search nodes  /", "aria-label": "Search nodes", onkeydown: (/** @type {KeyboardEvent} */ e) => e.key === "Enter" && this.find() }));
    this.el = h("div", { class: "graph" }, this.context, this.strip, h("div", { class: "two" }, h("div", { class: "gwrap" }, this.box, this.list), h("div", { class: "gside" }, this.side, this.map.el)));
    this.keys = [
      key("ArrowDown ArrowUp", "to a user or an input of the node", (k) => this.follow(k === "ArrowDown" ? 1 : -1)),
      key("ArrowRight ArrowLeft", "next or previous box", (k) => this.next(k === "ArrowRight" ? 1 : -1)),
      key("o", "open the selected closed call, or close the call around the node", () => this.toggle()),
      key("c", "close the call around the selected box", () => this.closeAround()),
      key("O C", "open or close all calls", (k) => this.all(k === "O")),
      key("r", "play the rewrites from the previous stage one by one; again to stop", () => this.toggleRewrites()),
      key("j k", "next or previous rewrite", (k) => this.rewrite(this.step + (k === "j" ? 1 : -1))),
      key("v", "use Graphviz's layout, or the built-in one", () => this.toggleGraphviz()),
      key("p", "changes of each graph pass, one pass after the other", () => this.nextPass()),
      key("t", "nodes as a table, or as a picture", () => this.toggleTable()),
      key("+ -", "zoom in or out", (k) => this.scale(k === "+" ? 1.25 : 0.8)),
      key("w", "fit the whole graph; again to fit its width", () => this.fit()),
      key("Enter", "show its line in the linked view", () => this.link()),
      key("e", "edit the text of the graph", () => this.edit()),
      key("/", "search nodes", () => this.search.focus()),
    ];
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  /** The current selection, as arguments of `open`. */
  where() {
    if (!this.part || this.at < 0) return [this.entry];
    const stage = this.part.stage === this.part.stages[0] ? "" : this.part.stage, group = this.groups[this.at - this.nodes.length];
    return [this.entry, stage, group ? "call=" + group.path : "node=" + this.nodes[this.at].name];
  }

  /** The graph as text, one node per line. */
  text() {
    return this.nodes.map((n) => (n.type && n.op !== "output" ? `${n.text}  # ${n.type}` : n.text)).join("\n");
  }

  /** @param {string} [entry] @param {string} [stage] @param {string} [what] "node=add_1" or "call=blocks.0" */
  open(entry, stage, what) {
    if (entry) this.entry = entry;
    if (stage !== undefined) this.stage = stage;
    this.wanted = what;
  }

  /** Select the requested node or closed call. @param {string} what */
  to(what) {
    const name = what.slice(5), group = what.startsWith("call=") ? this.groups.findIndex((g) => g.path === name) : -1;
    if (group >= 0 && this.closed.has(group)) this.at = this.nodes.length + group;
    const node = what.startsWith("node=") ? this.nodes.findIndex((n) => n.name === name) : -1;
    if (node < 0) return;
    for (let g = this.groupOf[node]; g >= 0; g = this.groups[g].parent) this.closed.delete(g);
    this.at = node;
  }

  draw() {
    if (!this.frame.entry(this.entry)) this.entry = this.frame.overview.start;
    const part = this.entry ? this.frame.part(`graph|${this.entry}|${this.stage}`) : null;
    if (part && part !== this.part) this.take(part);
    if (part && this.wanted) this.to(this.wanted);
    if (part) this.wanted = undefined;
    if (part && this.isPlayedAtOnce) requestAnimationFrame(() => this.step < 0 && this.steps.length && this.toggleRewrites());
    if (part) this.isPlayedAtOnce = false;
    if (!part) {
      put(this.context);
      this.svg.replaceChildren();
      return put(this.side, mutedLine(this.entry ? "Loading …" : "Nothing was compiled, so there is no graph."));
    }
    const isSearching = document.activeElement === this.search;
    put(
      this.context,
      choice("Function and cache entry", this.frame.overview.entries.map((/** @type {any} */ e) => [e.id, entryName(e)]), this.entry, (v) => { this.entry = v; this.frame.focus(); this.draw(); }),
      part.stages.length > 1 ? choice("Stage", this.#stages(part), part.stage, (v) => { this.stage = v === part.stages[0] ? "" : v; this.frame.focus(); this.draw(); }) : null,
      muted(this.counted()),
      h("span", { class: "sp" }),
      this.groups.length ? [button("Open all", "O", () => this.all(true)), button("Close all", "C", () => this.all(false))] : null,
      part.before ? button("Rewrites", "r", () => this.toggleRewrites(), { "aria-pressed": String(this.step >= 0) }) : null,
      part.is_small ? button("Graphviz", "v", () => this.toggleGraphviz(), { "aria-pressed": String(this.isByGraphviz && Boolean(this.placed())) }) : null,
      part.passes.length ? button("Passes", "p", () => this.nextPass(), { "aria-pressed": String(this.pass >= 0) }) : null,
      button("Table", "t", () => this.toggleTable(), { "aria-pressed": String(this.isTable) }),
      this.canEdit ? button("Edit", "e", () => this.edit(), { title: "Change this graph's text, and see what comes of it. Key: e" }) : null, part.stages.includes(part.stage) ? this.frame.scriptButton(this.entry, part.stage) : null,
      button("SVG", "", () => this.export("svg"), { title: "Save the picture as shown" }), button("DOT", "", () => this.export("dot"), { title: "Save the graph for Graphviz" }),
      this.search, h("span", { class: "nw" }, button("−", "-", () => this.scale(0.8), { "aria-label": "Zoom out" }), " ", button("Fit", "w", () => this.fit()), " ", button("+", "+", () => this.scale(1.25), { "aria-label": "Zoom in" })),
    );
    if (isSearching) this.search.focus();
    this.list.hidden = !this.isTable;
    this.box.hidden = this.map.el.hidden = this.isTable;
    this.arrange();
  }

  /** The stages, each followed by its graph between the passes over it. @param {any} part @returns {[string, string][]} */
  #stages({ stages, snapshots }) {
    const of = (/** @type {string} */ stage) => snapshots.filter((/** @type {string[]} */ s) => s[0].startsWith(stage + "@")).map((/** @type {string[]} */ s) => [s[0], s[1]]);
    return stages.flatMap((/** @type {string} */ s) => [[s, s], ...of(s)]);
  }

  /** Show the graph between two passes and play the rewrites of the earlier pass. @param {string} stage */
  between(stage) {
    this.stage = stage;
    this.isPlayedAtOnce = true;
    this.draw();
    this.frame.focus();
  }

  counted() {
    const calls = this.groups.length ? `, ${plural(this.groups.length, "call")}${this.closed.size ? `, ${this.closed.size} closed` : ""}` : "";
    return plural(this.part.count, "node") + calls;
  }

  /** Use another graph. @param {any} part */
  take(part) {
    this.part = part;
    this.nodes = nodesOf(part);
    const { groups, groupOf } = nesting(this.nodes, part.edges);
    this.groups = groups;
    this.groupOf = groupOf;
    this.closed = closedAtFirst(groups, part.count, groupOf);
    this.steps = part.before ? rewrites(part.before.is_input, part.origins, (a, b) => part.before.texts[a].split("  # ")[0] === this.nodes[b].text) : [];
    this.stop();
    this.step = this.pass = -1;
    this.reads = this.nodes.map(() => /** @type {number[]} */ ([]));
    this.readers = this.nodes.map(() => /** @type {number[]} */ ([]));
    for (const [a, b] of part.edges) {
      this.reads[b].push(a);
      this.readers[a].push(b);
    }
    // The first operation of a line whose value is used; an unused one has no edges to the rest.
    const own = this.nodes.findIndex((n, i) => n.ordinal > 0 && !n.isInput && this.readers[i].length);
    this.at = !part.count ? -1 : own >= 0 ? own : Math.max(0, this.nodes.findIndex((n) => n.ordinal > 0 && !n.isInput));
  }

  /** Lay out the graph for the calls that are open now. */
  arrange() {
    const { part } = this;
    this.hidden = hiddenIn(this.groups, this.groupOf, this.closed);
    const placed = this.isByGraphviz ? this.placed() : null;
    this.picture = placed ? framed(placed, this.groups, this.groupOf) : places(this.nodes, part.edges, this.groups, this.groupOf, this.closed);
    this.drawn = placed ? { edges: placed.edges.map((/** @type {any} */ e) => [e[0], e[1]]), pins: [] } : drawnEdges(this.picture, part.edges, this.hidden);
    this.routes = new Map(placed ? placed.edges.map((/** @type {any} */ e) => [`${e[0]} ${e[1]}`, e[2]]) : []);
    this.order = [...new Set(this.nodes.map((_, i) => this.shownAs(i)))];
    if (this.at >= 0 && !boxOf(this.picture, this.at)) this.at = this.at < this.nodes.length ? this.shownAs(this.at) : this.shownAs(this.groups[this.at - this.nodes.length].nodes[0]);
    this.table.reset(this.nodes.length);
    this.map.take(this.picture, this.nodes.length, this.closed);
    this.paint();
    this.show();
    this.tell();
  }

  /** Graphviz's positions if they have arrived and all calls are open, else null. */
  placed() {
    const told = this.part.is_small && !this.closed.size ? this.askPlaces() : null;
    return told && !told.problem ? told : null;
  }

  /** Graphviz's layout of this graph; null until it arrives. */
  askPlaces() {
    return this.frame.part(`places|${this.entry}|${this.part.stage === this.part.stages[0] ? "" : this.part.stage}`);
  }

  toggleGraphviz() {
    if (!this.part) return;
    if (!this.part.is_small) return this.frame.say(`Graphviz lays out small graphs; this one of ${plural(this.part.count, "node")} uses the built-in layout, which takes linear time.`);
    if (this.closed.size) return this.frame.say("Graphviz's layout shows every call open: press O first.");
    const told = this.askPlaces();
    if (!told || told.problem) return this.frame.say(told ? told.problem : "Graphviz is running …");
    this.isByGraphviz = !this.isByGraphviz;
    this.draw();
    this.frame.say(this.isByGraphviz ? "Laid out by Graphviz." : "Built-in layout: ranks by depth, long edges as pins.");
  }

  /** SVG path of the edge between two boxes. @param {[number, number]} edge */
  route([a, b]) {
    return this.routes.get(`${a} ${b}`) ?? edgePath(boxOf(this.picture, a), boxOf(this.picture, b));
  }

  /** The box of a node. @param {number} i */
  shownAs(i) {
    return this.hidden[i] >= 0 ? this.nodes.length + this.hidden[i] : i;
  }

  toggle() {
    if (!this.part || this.at < 0) return;
    const count = this.nodes.length;
    const group = this.at >= count ? this.at - count : this.groupOf[this.at];
    if (group < 0) return this.frame.say("This node is not inside a call.");
    this.fold(group);
  }

  closeAround() {
    if (!this.part || this.at < 0) return;
    const count = this.nodes.length, group = this.at >= count ? this.groups[this.at - count].parent : this.groupOf[this.at];
    if (group < 0) return this.frame.say("No call is around this box.");
    this.fold(group);
  }

  /** Open or close one group. @param {number} group */
  fold(group) {
    const { closed, groups, nodes } = this;
    if (closed.has(group)) {
      closed.delete(group);
      this.at = groups[group].nodes.find((i) => !nodes[i].isInput) ?? groups[group].nodes[0];
    } else {
      closed.add(group);
      this.at = nodes.length + group;
    }
    this.draw();
  }

  /** @param {boolean} isOpen */
  all(isOpen) {
    if (!this.part) return;
    this.closed = new Set(isOpen ? [] : this.groups.map((_, i) => i));
    this.draw();
  }

  toggleTable() {
    this.isTable = !this.isTable;
    if (this.part) this.draw();
  }

  /** @param {number} by */
  scale(by) {
    if (!this.part) return;
    const { box } = this, x = (box.scrollLeft + box.clientWidth / 2) / this.zoom, y = (box.scrollTop + box.clientHeight / 2) / this.zoom;
    this.zoom = Math.max(0.1, Math.min(3, this.zoom * by));
    this.paint();
    this.center(x, y);
  }

  fit() {
    if (!this.part || !this.picture) return;
    const { box, picture } = this, wide = box.clientWidth / (picture.width + 2 * MARGIN), whole = Math.min(wide, box.clientHeight / (picture.height + 2 * MARGIN));
    // A second press, or a graph that is too tall to be read whole, fits the width.
    const isWhole = whole >= LEGIBLE && Math.abs(this.zoom - Math.min(1.5, whole)) > 1e-6;
    this.zoom = Math.max(0.1, Math.min(1.5, isWhole ? whole : wide));
    this.paint();
    this.show();
    this.frame.say(isWhole ? "The whole graph fits. Press w again to fit its width." : `The width fits.${whole < LEGIBLE ? " The graph is too tall to be read as a whole: close calls (C), or move in the minimap." : ""}`);
  }

  /** @param {WheelEvent} e */
  wheel(e) {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    this.scale(e.deltaY < 0 ? 1.1 : 0.9);
  }

  /** Scroll a point of the graph into the middle. @param {number} x @param {number} y */
  center(x, y) {
    this.box.scrollLeft = x * this.zoom - this.box.clientWidth / 2;
    this.box.scrollTop = y * this.zoom - this.box.clientHeight / 2;
  }

  /** Drag the background. @param {PointerEvent} e */
  drag(e) {
    if (e.button || /** @type {Element} */ (e.target).closest(".nd, .pin, .gh")) return;
    const { box } = this, left = box.scrollLeft + e.clientX, top = box.scrollTop + e.clientY;
    const move = (/** @type {PointerEvent} */ m) => { box.scrollLeft = left - m.clientX; box.scrollTop = top - m.clientY; };
    const up = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", up); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  }

  /** Paint at most once per animation frame. */
  soon() {
    if (this.frameAsked) return;
    this.frameAsked = requestAnimationFrame(() => { this.frameAsked = 0; this.paint(); });
  }

  /** Draw the visible part. */
  paint() {
    const { part, picture, zoom, box } = this;
    if (!part || !picture || !box.clientWidth) return;
    const width = picture.width + 2 * MARGIN, height = picture.height + 2 * MARGIN;
    for (const [name, value] of Object.entries({ viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, width: width * zoom, height: height * zoom })) this.svg.setAttribute(name, String(value));
    const top = box.scrollTop / zoom - MARGIN - 60, bottom = top + box.clientHeight / zoom + 120, left = box.scrollLeft / zoom - MARGIN - 60, right = left + box.clientWidth / zoom + 120;
    const inView = (/** @type {any} */ b) => b && b.y <= bottom && b.y + b.height >= top && b.x <= right && b.x + b.width >= left;
    const crosses = (/** @type {any} */ a, /** @type {any} */ b) => a.y <= bottom && b.y + b.height >= top && Math.min(a.x, b.x) <= right && Math.max(a.x + a.width, b.x + b.width) >= left;
    const at = (/** @type {number} */ id) => /** @type {any} */ (boxOf(picture, id));
    const hot = (/** @type {number[]} */ e) => (e.includes(this.at) ? " hot" : "");
    put(
      this.svg,
      this.groups.map((g, i) => (picture.groups[i] && !this.closed.has(i) && inView(picture.groups[i]) ? this.#group(g, i) : null)),
      this.drawn.edges.map((e) => (crosses(at(e[0]), at(e[1])) ? h("path", { class: "edge" + hot(e) + this.#fate(e[1]), d: this.route(e) }) : null)),
      this.order.map((id) => (inView(at(id)) ? this.#box(id) : null)),
      this.drawn.pins.flatMap((e, i) => [inView(at(e[0])) ? this.#pin(e[0], e[1], i, true) : null, inView(at(e[1])) ? this.#pin(e[1], e[0], i, false) : null]),
    );
    this.map.frame(box, zoom, MARGIN, this.at < 0 ? null : at(this.at));
  }

  /** Class of a box while rewrites are played: done, current or pending. @param {number} id */
  #fate(id) {
    if (this.step < 0) return "";
    const inside = id < this.nodes.length ? [id] : this.groups[id - this.nodes.length].nodes;
    if (this.steps[this.step].after.some((i) => inside.includes(i))) return " now";
    return inside.every((i) => this.madeAt[i] > this.step) ? " later" : "";
  }

  /** An open call: a frame with a heading that closes it. @param {any} g @param {number} i */
  #group(g, i) {
    const b = /** @type {any} */ (this.picture.groups[i]);
    return h("g", { transform: `translate(${b.x} ${b.y})` },
      h("rect", { class: "grp" + (g.depth % 2 ? " odd" : ""), width: b.width, height: b.height, rx: 2 }),
      h("g", { class: "gh", role: "button", onclick: () => { this.fold(i); this.frame.focus(); } }, h("rect", { class: "hit", width: b.width, height: 20 }), h("text", { x: 10, y: 15 }, `▾ ${g.label}`), h("text", { class: "ty", x: b.width - 8, y: 15, "text-anchor": "end" }, plural(g.nodes.length, "node"))));
  }

  /** A node, or a closed call. @param {number} id */
  #box(id) {
    const { width, height, x, y } = /** @type {any} */ (boxOf(this.picture, id)), look = (id === this.at ? " sel" : "") + this.#fate(id);
    const choose = () => { this.choose(id); this.frame.focus(); };
    const cut = (/** @type {string} */ t) => (t.length > 21 ? t.slice(0, 20) + "…" : t);
    if (id >= this.nodes.length) {
      const g = this.groups[id - this.nodes.length], kernels = this.#kernelsOf(g);
      return h("g", { class: "nd shut" + look, transform: `translate(${x} ${y})`, onclick: choose, ondblclick: () => this.fold(id - this.nodes.length), role: "img", "aria-label": `${g.path}, closed, ${plural(g.nodes.length, "node")}` },
        h("rect", { class: "bx back", x: 3, y: 3, width, height, rx: 2 }), h("rect", { class: "bx", width, height, rx: 2 }), h("text", { class: "nm", x: 7, y: 14 }, "▸ " + cut(g.label)), h("text", { class: "ty", x: 7, y: 28 }, cut(`${plural(g.nodes.length, "node")} ${this.#resultType(g)}`)),
        kernels.length ? this.#kernelBadge(kernels.length > 1 ? "×" + kernels.length : kernels[0], width) : null);
    }
    const n = this.nodes[id], start = n.ordinal > 0 ? 26 : 7, bad = this.part.values?.[id]?.bad;
    return h(
      "g",
      { class: "nd " + hue(n.ordinal) + look + (n.isInput || n.op === "output" ? " ph" : ""), transform: `translate(${x} ${y})`, onclick: choose, role: "img", "aria-label": `${n.name} ${n.type}${bad ? `, has ${bad}` : ""}` },
      h("rect", { class: "bx", width, height, rx: 2 }),
      n.ordinal > 0 ? [h("rect", { class: "bg", x: 5, y: 4, width: 16, height: 13, rx: 2 }), h("text", { class: "bn", x: 13, y: 14, "text-anchor": "middle" }, String(n.ordinal))] : null,
      h("text", { class: "nm", x: start, y: 14 }, cut(n.name)),
      h("text", { class: "ty", x: 7, y: 28 }, cut(n.type)),
      n.placed ? h("text", { class: "ty", x: width / 2 + 5, y: height + 11 }, n.placed) : null,
      bad ? h("text", { class: "nan", x: width - 6, y: 14, "text-anchor": "end" }, bad) : null,
      n.kernel ? this.#kernelBadge(n.kernel, width) : n.isInput && n.type.length < 16 ? h("text", { class: "ty", x: width - 6, y: 28, "text-anchor": "end" }, "input") : null,
    );
  }

  /** The kernel of a box, at its lower right. @param {string} kernel @param {number} width */
  #kernelBadge(kernel, width) {
    const wide = 6 * kernel.length + 8;
    return h("g", { class: "kb" }, h("rect", { x: width - wide - 4, y: 19, width: wide, height: 12, rx: 6 }), h("text", { class: "ty", x: width - wide / 2 - 4, y: 28, "text-anchor": "middle" }, kernel));
  }

  /** @param {number} own @param {number} other @param {number} i @param {boolean} isStart */
  #pin(own, other, i, isStart) {
    const b = /** @type {any} */ (boxOf(this.picture, own)), x = b.x + b.width - 34 - 34 * (i % 3), y = isStart ? b.y + b.height : b.y - 13;
    return h("g", { class: "pin" + ([own, other].includes(this.at) ? " hot" : ""), onclick: () => { this.choose(other); this.frame.focus(); } }, h("rect", { x, y, width: 30, height: 13, rx: 6 }), h("text", { x: x + 15, y: y + 10, "text-anchor": "middle" }, "P" + (i + 1)));
  }

  /** @param {number} i */
  #tableRow(i) {
    const n = this.nodes[i], cell = (/** @type {any} */ t, /** @type {string} */ kind = "") => h("span", { role: "gridcell", class: kind, title: typeof t === "string" && t.length > 16 ? t : null }, t);
    return h("div", { class: "gt" + (this.at === i ? " sel" : "") + this.#fate(i), role: "row", "aria-selected": String(this.at === i), onclick: () => { this.choose(i); this.frame.focus(); } },
      cell(i + 1, "num mut"), cell(h("b", {}, n.name)), cell(h("code", {}, n.target || n.op)), cell(h("code", {}, n.type)), cell(n.bytes, "num"), cell(n.kernel), cell(n.module, "mut"), cell(n.line ? [n.ordinal > 0 ? badge(n.ordinal) : null, " " + n.line] : "", "num"));
  }

  /** @param {number} id */
  choose(id) {
    if (!this.part || !this.nodes.length) return;
    this.pass = -1;
    this.at = id;
    if (this.isTable) this.table.redraw();
    this.paint();
    this.show();
    this.tell();
  }

  /** Scroll to the selected box. */
  show() {
    if (this.isTable) return this.table.show(this.at < this.nodes.length ? this.at : -1, 80);
    const b = this.picture && this.at >= 0 && boxOf(this.picture, this.at);
    if (!b) return;
    const y = (b.y + MARGIN) * this.zoom, x = (b.x + MARGIN) * this.zoom, { box } = this;
    if (y < box.scrollTop || y + 60 > box.scrollTop + box.clientHeight) box.scrollTop = y - 120;
    if (x < box.scrollLeft || x + b.width * this.zoom > box.scrollLeft + box.clientWidth) box.scrollLeft = x - 60;
  }

  /** @param {number} step */
  next(step) {
    if (!this.part || !this.order.length) return;
    if (this.isTable) return this.choose(Math.max(0, Math.min(this.nodes.length - 1, this.at + step)));
    const here = this.order.indexOf(this.at);
    this.choose(this.order[Math.max(0, Math.min(this.order.length - 1, here + step))]);
  }

  /** @param {1 | -1} step */
  follow(step) {
    if (!this.part || this.at < 0) return;
    if (this.isTable) return this.next(step);
    const inside = this.at < this.nodes.length ? [this.at] : this.groups[this.at - this.nodes.length].nodes;
    const found = inside.flatMap((i) => (step > 0 ? this.readers : this.reads)[i]).map((i) => this.shownAs(i)).filter((id) => id !== this.at);
    if (!found.length) return this.frame.say(step > 0 ? "This node has no users." : "This node has no inputs.");
    this.choose(found.find((id) => id >= this.nodes.length || !this.nodes[id].isInput) ?? found[0]);
  }

  find() {
    const wanted = this.search.value.toLowerCase(), { nodes } = this, from = Math.max(0, this.at < nodes.length ? this.at : this.groups[this.at - nodes.length].nodes[0]);
    for (let i = 1; wanted && i <= nodes.length; i++) {
      const j = (from + i) % nodes.length, n = nodes[j];
      if (!`${n.name} ${n.text} ${n.module} ${n.type} ${n.kernel}`.toLowerCase().includes(wanted)) continue;
      this.reveal(j);
      return this.choose(j);
    }
    this.frame.say("No match for ", h("code", {}, this.search.value), ".");
  }

  /** Open every call around a node. @param {number} node */
  reveal(node) {
    let isOpened = false;
    for (let g = this.groupOf[node]; g >= 0; g = this.groups[g].parent) isOpened = this.closed.delete(g) || isOpened;
    if (isOpened) {
      this.at = node;
      this.draw();
    }
  }

  // Passes: the lines that each pass removed and added.

  /** True if the text of this graph can be edited. */
  get canEdit() {
    return !("edit" in this.frame.overview.empty) && /^(fx|aten|joint)$/.test(this.part?.stage ?? "");
  }

  /** Open the text of this graph in the Edit view. */
  edit() {
    if (!this.canEdit) return this.frame.say("This graph cannot be edited: choose the traced graph or the ATen graph.");
    this.frame.open("edit", this.entry, this.part.stage);
    this.frame.focus();
  }

  nextPass() {
    if (!this.part) return;
    const { passes } = this.part;
    if (!passes.length) return this.frame.say("No pass over this graph was recorded.");
    this.pass = this.pass + 1 < passes.length ? this.pass + 1 : -1;
    this.draw();
  }

  /** The selected pass as a diff. */
  #tellPass() {
    const p = this.part.passes[this.pass], changed = p.removed.length + p.added.length + p.cut;
    const line = (/** @type {string} */ sign, /** @type {string} */ text) => h("div", { class: sign === "+" ? "ok" : "bad" }, sign + " " + text);
    put(
      this.side,
      h("h4", {}, `Pass ${this.pass + 1} of ${this.part.passes.length}: `, h("code", {}, p.name)), h("p", {}, `${p.by ? "A pass of yours. " : ""}${plural(p.before, "node")} before, ${p.after} after.`),
      p.failure ? h("p", { class: "bad" }, p.failure) : null,
      changed ? h("pre", { class: "code" }, p.removed.map((/** @type {string} */ t) => line("−", t)), p.added.map((/** @type {string} */ t) => line("+", t))) : mutedLine("It changed nothing."),
      p.cut ? mutedLine(`${plural(p.cut, "line")} more not shown.`) : null, button("Next pass", "p", () => this.nextPass()), p.snapshot && changed ? [" ", button("Its rewrites, one by one", "", () => this.between(p.snapshot))] : null,
    );
    this.frame.say(`Pass ${this.pass + 1} of ${this.part.passes.length}, `, h("code", {}, p.name), `: ${plural(p.before, "node")} before, ${p.after} after; ${p.failure || (changed ? `${plural(p.removed.length, "line")} removed, ${p.added.length} added` : "nothing changed")}${p.cut ? `, and ${p.cut} more not shown` : ""}.`);
  }

  // Rewrites: the nodes that each node of the previous stage became.

  toggleRewrites() {
    if (!this.part) return;
    if (!this.steps.length) return this.frame.say(this.part.before ? "No node changed." : "This is the first graph: no earlier stage was recorded.");
    if (this.step >= 0) {
      this.stop();
      this.step = -1;
      return this.draw();
    }
    this.madeAt = this.nodes.map(() => -1);
    this.steps.forEach((s, k) => { for (const i of s.after) if (this.madeAt[i] < 0) this.madeAt[i] = k; });
    this.closed = new Set();
    this.step = 0;
    this.draw();
    this.rewrite(0);
  }

  /** @param {number} step */
  rewrite(step) {
    if (this.step < 0) return this.frame.say("Press r first: it plays the rewrites from the previous stage.");
    this.step = Math.max(0, Math.min(this.steps.length - 1, step));
    const { before, after } = this.steps[this.step];
    if (after.length) this.choose(after[0]);
    else this.paint();
    const old = before >= 0 ? this.part.before.texts[before] : "";
    const [from, to] = [this.part.before.stage, this.part.stage].map((s) => this.part.snapshots.find((/** @type {string[]} */ p) => p[0] === s)?.[1] ?? s);
    put(
      this.strip,
      h("b", {}, `Rewrite ${this.step + 1} of ${this.steps.length}`), muted(`${from} → ${to}`),
      button("◂", "k", () => this.rewrite(this.step - 1), { "aria-label": "Previous rewrite" }), button("▸", "j", () => this.rewrite(this.step + 1), { "aria-label": "Next rewrite" }), button(this.timer ? "■ Stop" : "▶ Play", "", () => (this.timer ? this.stop() : this.play())),
      h("code", { class: "was" }, old || "added by the compiler"), h("span", {}, "→"), h("code", { class: "is" }, after.slice(0, 6).map((i) => this.nodes[i].name).join(", ") + (after.length > 6 ? ` and ${after.length - 6} more` : "") || "removed: unused"),
    );
    this.strip.hidden = false;
    const kind = before < 0 ? "was added by the compiler" : !after.length ? "was removed: unused" : after.length === 1 ? "became one node" : `became ${after.length} nodes`;
    this.frame.say(`Rewrite ${this.step + 1} of ${this.steps.length}, ${from} to ${to}: `, old ? [h("code", {}, old), " "] : "The selected node ", kind, after.length ? [": ", h("code", {}, after.slice(0, 4).map((i) => this.nodes[i].text).join("; ").slice(0, 400))] : "", ".");
  }

  play() {
    this.timer = /** @type {any} */ (setInterval(() => {
      if (this.step >= this.steps.length - 1 || !this.el.isConnected) return this.stop();
      this.rewrite(this.step + 1);
    }, PLAY_MS));
    this.rewrite(this.step);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.strip.hidden = true;
    if (this.part && this.step >= 0 && this.el.isConnected) this.rewrite(this.step);
  }

  /** @param {"svg" | "dot"} kind */
  export(kind) {
    if (!this.part || !this.nodes.length) return;
    const name = `graph-${this.entry.replace("/", "-")}-${this.part.stage.replace(/\W+/g, "-")}.${kind}`;
    const text = kind === "svg" ? svgText(this.picture, this.nodes, this.groups, this.closed, this.drawn, (e) => this.route(e)) : dotText(this.nodes, this.part.edges, this.groups, this.groupOf);
    save(name, text, kind === "svg" ? "image/svg+xml" : "text/vnd.graphviz");
    this.frame.say(`Saved ${name}. It contains names from your model.`);
  }

  link() {
    const n = this.part && this.nodes[this.at];
    if (n && n.line) this.frame.open("linked", this.entry, "line=" + n.line);
    else this.frame.say("No line is known for this.");
  }

  tell() {
    if (this.pass >= 0) return this.#tellPass();
    if (this.at < 0) {
      put(this.side, mutedLine(this.part.empty || "Choose a node."));
      return this.frame.say(this.part.empty || "Choose a node.");
    }
    if (this.at >= this.nodes.length) return this.#tellGroup(this.groups[this.at - this.nodes.length], this.at - this.nodes.length);
    const n = this.nodes[this.at], names = (/** @type {number[]} */ list) => list.slice(0, 12).map((j) => this.nodes[j].name).join(", ") + (list.length > 12 ? ` and ${list.length - 12} more` : "") || "–";
    const facts = [["value", n.type], ["bytes", n.bytes], ["module", n.module], ["kernel", n.kernel], ["reads", names(this.reads[this.at])], ["read by", names(this.readers[this.at])], ["note", n.note], ["placement", n.placed]];
    const came = this.part.before && this.part.origins[this.at] ? this.part.origins[this.at].map((/** @type {number} */ o) => this.part.before.texts[o]) : [];
    put(
      this.side,
      h("h4", {}, "Node"), h("pre", { class: "code" }, n.text),
      h("dl", { class: "kv" }, facts.filter(([, v]) => v).map(([k, v]) => [h("dt", {}, k), h("dd", {}, h("code", {}, v))])),
      this.#values(),
      came.length ? [h("h4", {}, `Origin in ${this.part.before.stage.split("@")[0]}`), came.slice(0, 5).map((/** @type {string} */ t) => h("pre", { class: "code" }, t))] : null,
      n.line ? [h("h4", {}, n.ordinal > 0 ? badge(n.ordinal) : null, " Line " + n.line), sourceLine(n.source), button("Show in linked view", "Enter", () => this.link())] : null,
      this.drawn.pins.length ? [h("h4", {}, "Pins"), mutedLine(`An edge longer than ${LONG / (NODE.height + 16)} rows is cut into two pins with one name. Click a pin to go to its partner.`)] : null,
    );
    if (this.step < 0) this.frame.say(badge(n.ordinal), " ", h("b", {}, n.name), n.type ? ` ${n.type}` : "", n.bytes ? `, ${n.bytes}` : "", n.module ? ` in module ${n.module}` : "", n.kernel ? `, in kernel ${n.kernel}` : "", ".");
  }

  /** The kernels of a call, each once. @param {any} g @returns {string[]} */
  #kernelsOf(g) {
    return [...new Set(g.nodes.map((/** @type {number} */ j) => this.nodes[j].kernel).filter(Boolean))];
  }

  /** Type of the last value that a closed call computes. @param {any} g */
  #resultType(g) {
    const last = g.nodes.findLast((/** @type {number} */ j) => !this.nodes[j].isInput);
    return last === undefined ? "" : this.nodes[last].type;
  }

  /** Recorded values of the selected node: range, flags, histogram. */
  #values() {
    const v = this.part.values?.[this.at];
    if (!v) return null;
    const most = Math.max(1, ...v.histogram), number = (/** @type {number | null} */ x) => (x == null ? "" : Number(x.toPrecision(3)));
    return [
      h("h4", {}, "Values in the first call"), h("p", { class: v.bad ? "bad" : "" }, v.text),
      v.histogram.length > 1 ? h("div", { class: "hist", role: "img", "aria-label": `Histogram from ${number(v.low)} to ${number(v.high)}: ${v.histogram.join(", ")}` }, v.histogram.map((/** @type {number} */ n) => h("i", { style: `height:${(n / most) * 100}%`, title: String(n) }))) : null,
      v.histogram.length > 1 ? h("div", { class: "histends mut" }, h("span", {}, number(v.low)), h("span", {}, number(v.high))) : null,
      valueMap(v.heat_map ?? []),
    ];
  }

  /** @param {any} g @param {number} i */
  #tellGroup(g, i) {
    const ops = new Map();
    for (const j of g.nodes) if (!this.nodes[j].isInput) ops.set(this.nodes[j].target, (ops.get(this.nodes[j].target) || 0) + 1);
    const kernels = this.#kernelsOf(g);
    put(
      this.side,
      h("h4", {}, "Call"), h("p", {}, h("code", {}, g.path)), button("Open", "o", () => this.fold(i)),
      h("h4", {}, plural(g.nodes.length, "node")), h("dl", { class: "kv" }, [...ops].sort((a, b) => b[1] - a[1]).slice(0, 20).map(([op, count]) => [h("dt", {}, "×" + count), h("dd", {}, h("code", {}, op))])),
      kernels.length ? [h("h4", {}, "Kernels"), h("p", {}, kernels.join(", "))] : null,
    );
    if (this.step < 0) this.frame.say(h("b", {}, g.path), `, closed: ${plural(g.nodes.length, "node")}${kernels.length ? ` in ${kernels.length === 1 ? "kernel " + kernels[0] : plural(kernels.length, "kernel")}` : ""}. o opens it.`);
  }
}

VIEWS.set("graph", GraphView);
