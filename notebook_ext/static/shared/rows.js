// A list that draws only the visible rows if it is long.

import { h } from "./dom.js";
import { ALL_ROWS, ROW, scrollFor, visibleRows } from "./layout.js";

export class Rows {
  /**
   * @param {(index: number) => HTMLElement} draw makes a row
   * @param {Record<string, any>} props of the scrolling element
   * @param {number} [height] of a row
   * @param {number} [all] maximum length of a list that is drawn completely
   */
  constructor(draw, props, height = ROW, all = ALL_ROWS) {
    this.all = all;
    this.draw = draw;
    this.height = height;
    this.count = 0;
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.inner = h("div", { class: "rows-in", role: "presentation" });
    // Cached: reading them from the element between writes would force a layout each time.
    this.top = 0;
    this.view = 0;
    this.el = h("div", { tabindex: "0", ...props, class: "rows " + (props.class || ""), onscroll: () => { this.top = this.el.scrollTop; this.#fill(); } }, this.inner);
    // A list that was scrolled while hidden is at its top when it appears.
    this.observer = new ResizeObserver(() => {
      this.view = this.el.clientHeight;
      if (this.view && this.el.scrollTop !== this.top) { this.el.scrollTop = this.top; this.top = this.el.scrollTop; }
      this.#fill();
    });
    this.observer.observe(this.el);
  }

  /**
   * Show `count` rows and redraw all.
   * @param {number} count
   * @param {string} [width] of the longest row, as CSS
   */
  reset(count, width) {
    this.count = count;
    this.inner.style.height = count * this.height + "px";
    this.inner.style.minWidth = width || "";
    this.redraw();
  }

  /** Change the number of rows without redrawing the remaining ones. @param {number} count */
  resize(count) {
    this.count = count;
    this.inner.style.height = count * this.height + "px";
    this.#fill();
  }

  /** Redraw the visible rows. */
  redraw() {
    this.drawn.clear();
    this.inner.replaceChildren();
    this.#fill();
  }

  /**
   * Redraw only the rows for which `isStale` returns true.
   * @param {(index: number, row: HTMLElement) => boolean} isStale
   */
  refresh(isStale) {
    for (const [i, row] of this.drawn) {
      if (!isStale(i, row)) continue;
      const fresh = this.#place(i);
      row.replaceWith(fresh);
      this.drawn.set(i, fresh);
    }
  }

  /** @param {number} i */
  #place(i) {
    const row = this.draw(i);
    row.style.top = i * this.height + "px";
    return row;
  }

  #fill() {
    const [first, end] = visibleRows(this.count, this.top, this.view || 600, this.height, this.all);
    for (const [i, row] of this.drawn) {
      if (i >= first && i < end) continue;
      row.remove();
      this.drawn.delete(i);
    }
    const fresh = document.createDocumentFragment();
    for (let i = first; i < end; i++) {
      if (this.drawn.has(i)) continue;
      const row = this.#place(i);
      this.drawn.set(i, row);
      fresh.append(row);
    }
    this.inner.append(fresh);
  }

  /** Bring a row into view. @param {number} index @param {number} lead pixels above it */
  show(index, lead) {
    if (index < 0) return;
    if (!this.view) this.view = this.el.clientHeight;
    if (!this.view) return;
    // Clamp like the browser does, so that the cached position stays correct.
    const top = Math.min(scrollFor(index, this.top, this.view, lead, this.height), Math.max(0, this.count * this.height - this.view));
    if (top === this.top) return;
    this.el.scrollTop = this.top = top;
    this.#fill();
  }
}
