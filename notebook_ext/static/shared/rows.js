// A list that draws only the rows in view once it is long.

import { h } from "./dom.js";
import { ROW, scrollFor, visibleRows } from "./layout.js";

export class Rows {
  /**
   * @param {(index: number) => HTMLElement} draw makes a row
   * @param {Record<string, any>} props of the scrolling element
   * @param {number} [height] of a row
   */
  constructor(draw, props, height = ROW) {
    this.draw = draw;
    this.height = height;
    this.count = 0;
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.inner = h("div", { class: "rows-in", role: "presentation" });
    this.el = h("div", { ...props, class: "rows " + (props.class || ""), onscroll: () => this.#fill() }, this.inner);
    this.observer = new ResizeObserver(() => this.#fill());
    this.observer.observe(this.el);
  }

  /**
   * Show `count` rows, all drawn anew.
   * @param {number} count
   * @param {string} [width] of the longest row, as CSS
   */
  reset(count, width) {
    this.count = count;
    this.inner.style.height = count * this.height + "px";
    this.inner.style.minWidth = width || "";
    this.redraw();
  }

  /** Draw the rows in view again: what they show has changed. */
  redraw() {
    this.drawn.clear();
    this.inner.replaceChildren();
    this.#fill();
  }

  #fill() {
    const [first, end] = visibleRows(this.count, this.el.scrollTop, this.el.clientHeight || 600, this.height);
    for (const [i, row] of this.drawn) {
      if (i >= first && i < end) continue;
      row.remove();
      this.drawn.delete(i);
    }
    const fresh = document.createDocumentFragment();
    for (let i = first; i < end; i++) {
      if (this.drawn.has(i)) continue;
      const row = this.draw(i);
      row.style.top = i * this.height + "px";
      this.drawn.set(i, row);
      fresh.append(row);
    }
    this.inner.append(fresh);
  }

  /** Bring a row into view. @param {number} index @param {number} lead pixels above it */
  show(index, lead) {
    if (index < 0) return;
    const height = this.el.clientHeight;
    if (!height) return;
    const top = scrollFor(index, this.el.scrollTop, height, lead, this.height);
    if (top !== this.el.scrollTop) this.el.scrollTop = top;
    this.#fill();
  }
}
