// Other pictures of a graph: its minimap, and SVG and DOT files.

import { boxOf } from "./layered.js";
import { h } from "./shared/dom.js";

/** @typedef {import("./layered.js").Picture} Picture */
/** @typedef {import("./layered.js").Group} Group */

/** Largest and smallest sides of the minimap, and its largest height for a graph that is much taller than wide. */
const MAP = { width: 128, height: 96, least: 44, tall: 240 };

/** Minimap of the graph with a frame around the visible part; a click or drag moves there. */
export class Minimap {
  /** @param {(x: number, y: number) => void} go */
  constructor(go) {
    this.go = go;
    /** Pixels of the map per unit of the graph. */
    this.scale = { x: 1, y: 1 };
    /** @type {HTMLCanvasElement} */
    this.canvas = /** @type {any} */ (h("canvas", {}));
    this.view = h("i", {});
    this.mark = h("i", { class: "here" });
    this.el = h("div", { class: "gmap", "aria-hidden": "true", onpointerdown: (/** @type {PointerEvent} */ e) => this.point(e), onpointermove: (/** @type {PointerEvent} */ e) => e.buttons && this.point(e) }, this.canvas, this.view, this.mark);
  }

  /** Draw all boxes. @param {Picture} picture @param {number} count of nodes @param {Set<number>} closed */
  take(picture, count, closed) {
    const wide = Math.max(1, picture.width), tall = Math.max(1, picture.height), scale = Math.min(MAP.width / wide, (tall > 3 * wide ? MAP.tall : MAP.height) / tall);
    // A long graph would be a line: the shorter side is stretched until it can be pointed at.
    const width = Math.max(MAP.least, Math.ceil(wide * scale)), height = Math.max(MAP.least, Math.ceil(tall * scale));
    this.scale = { x: width / wide, y: height / tall };
    Object.assign(this.canvas, { width, height });
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    pen.fillStyle = "#8a8a8a";
    const draw = (/** @type {any} */ b) => b && pen.fillRect(b.x * this.scale.x, b.y * this.scale.y, Math.max(1, b.width * this.scale.x), Math.max(0.6, b.height * this.scale.y));
    for (let i = 0; i < count; i++) draw(picture.nodes[i]);
    for (const g of closed) draw(picture.groups[g]);
  }

  /** Frame the visible part and mark the selected box; hide the minimap if all of the graph is visible. @param {HTMLElement} box @param {number} zoom @param {number} margin @param {any} selected */
  frame(box, zoom, margin, selected) {
    const isWhole = box.scrollWidth <= box.clientWidth + 1 && box.scrollHeight <= box.clientHeight + 1;
    this.el.classList.toggle("whole", isWhole);
    const { x, y } = this.scale, { width, height } = this.canvas;
    const left = Math.max(0, (box.scrollLeft / zoom - margin) * x), top = Math.max(0, (box.scrollTop / zoom - margin) * y);
    this.view.style.cssText = `left:${left}px;top:${top}px;width:${Math.min(width - left, (box.clientWidth / zoom) * x)}px;height:${Math.max(3, Math.min(height - top, (box.clientHeight / zoom) * y))}px`;
    this.mark.style.cssText = selected ? `left:${selected.x * x}px;top:${selected.y * y}px;width:${Math.max(3, selected.width * x)}px;height:${Math.max(3, selected.height * y)}px` : "display:none";
  }

  /** @param {PointerEvent} e */
  point(e) {
    const place = this.canvas.getBoundingClientRect();
    this.go((e.clientX - place.left) / this.scale.x, (e.clientY - place.top) / this.scale.y);
    e.stopPropagation();
  }
}

/** Text for XML. @param {string} text */
const xml = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "\ufffd");
/** Text for DOT. @param {string} text */
const quoted = (text) => `"${text.replace(/\\/g, "\\\\").replace(/"/g, '\\"').replace(/[\u0000-\u001f]/g, " ")}"`;

/**
 * The current picture as SVG on a white background; all text stays text.
 * @param {Picture} picture @param {any[]} nodes @param {Group[]} groups @param {Set<number>} closed
 * @param {{edges: [number, number][], pins: [number, number][]}} drawn @param {(edge: [number, number]) => string} path of an edge
 */
export function svgText(picture, nodes, groups, closed, drawn, path) {
  const width = Math.ceil(picture.width) + 24, height = Math.ceil(picture.height) + 24;
  const out = [`<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="11">`, `<rect x="-12" y="-12" width="${width}" height="${height}" fill="#fff"/>`];
  const text = (/** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ words, more = "") => `<text x="${x}" y="${y}" fill="#212121"${more}>${xml(words)}</text>`;
  const rect = (/** @type {any} */ b, /** @type {string} */ fill) => `<rect x="${b.x}" y="${b.y}" width="${b.width}" height="${b.height}" rx="2" fill="${fill}" stroke="#9e9e9e"/>`;
  groups.forEach((g, i) => {
    const b = picture.groups[i];
    if (b) out.push(rect(b, closed.has(i) ? "#e8eef5" : "#f7f7f7"), text(b.x + 8, b.y + 15, g.label, ' font-weight="bold"'), closed.has(i) ? text(b.x + 8, b.y + 28, `${g.nodes.length} nodes`, ' font-size="10"') : "");
  });
  for (const edge of drawn.edges) out.push(`<path d="${path(edge)}" fill="none" stroke="#757575"/>`);
  nodes.forEach((n, i) => {
    const b = picture.nodes[i];
    if (b) out.push(rect(b, n.isInput ? "#f3f3f3" : "#ffffff"), text(b.x + 7, b.y + 14, n.name, ' font-weight="bold"'), text(b.x + 7, b.y + 28, n.type, ' font-family="monospace" font-size="10"'));
  });
  drawn.pins.forEach(([a, b], i) => {
    for (const [id, isStart] of /** @type {[number, boolean][]} */ ([[a, true], [b, false]])) {
      const p = /** @type {any} */ (boxOf(picture, id)), x = p.x + p.width - 34 - 34 * (i % 3), y = isStart ? p.y + p.height : p.y - 13;
      out.push(`<rect x="${x}" y="${y}" width="30" height="13" rx="6" fill="#fff" stroke="#757575"/>`, text(x + 15, y + 10, `P${i + 1}`, ' font-size="9" text-anchor="middle"'));
    }
  });
  return [...out, "</svg>"].join("\n");
}

/**
 * The graph in the language of Graphviz, calls as clusters.
 * @param {any[]} nodes @param {[number, number][]} edges @param {Group[]} groups @param {Int32Array} groupOf
 */
export function dotText(nodes, edges, groups, groupOf) {
  /** @type {number[][]} */
  const own = groups.map(() => []);
  groupOf.forEach((g, i) => { if (g >= 0) own[g].push(i); });
  const node = (/** @type {number} */ i) => `n${i} [label=${quoted(nodes[i].name + (nodes[i].type ? "\n" + nodes[i].type : "")).replace(/ (?=[a-z]+\d*\[)/, "\\n")}${nodes[i].isInput ? ', style=filled, fillcolor="#f3f3f3"' : ""}];`;
  /** @type {(g: number) => string[]} */
  const cluster = (g) => [`subgraph cluster_${g} {`, `label=${quoted(groups[g].label)};`, ...own[g].map(node), ...groups[g].groups.flatMap(cluster), "}"];
  const top = nodes.flatMap((_, i) => (groupOf[i] < 0 ? [node(i)] : []));
  return ["digraph {", 'node [shape=box, fontname="sans-serif", fontsize=11];', ...top, ...groups.flatMap((g, i) => (g.parent < 0 ? cluster(i) : [])), ...edges.map(([a, b]) => `n${a} -> n${b};`), "}", ""].join("\n");
}
