// A list that draws only the visible rows if it is long.

import { h } from "./dom.js";
import { ALL_ROWS, ROW, rowOfLine, scrollFor, visibleRows } from "./layout.js";

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
    /** Lines above each row if rows have several, see `lineTops`. @type {number[] | null} */
    this.tops = null;
    /** Called when the size of the list changes. */
    this.resized = () => {};
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
      this.resized();
    });
    this.observer.observe(this.el);
  }

  /**
   * Show `count` rows and redraw all.
   * @param {number} count
   * @param {string} [width] of the longest row, as CSS
   * @param {number[] | null} [tops] lines above each row, if rows have several
   */
  reset(count, width, tops = null) {
    this.count = count;
    this.tops = tops;
    this.inner.style.height = this.#lines(count) * this.height + "px";
    this.inner.style.minWidth = width || "";
    this.redraw();
  }

  /** Number of lines above a row. @param {number} i */
  #lines(i) {
    return this.tops ? this.tops[i] : i;
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
    row.style.top = this.#lines(i) * this.height + "px";
    if (this.tops) row.style.height = (this.tops[i + 1] - this.tops[i]) * this.height + "px";
    return row;
  }

  #fill() {
    let [first, end] = visibleRows(this.#lines(this.count), this.top, this.view || 600, this.height, this.all);
    if (this.tops && end) [first, end] = [rowOfLine(this.tops, first), rowOfLine(this.tops, end - 1) + 1];
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

  /** Bring a row into view. @param {number} index @param {number} lead pixels above it @param {boolean} [isLater] `scroll` is called afterwards */
  show(index, lead, isLater) {
    if (index < 0) return;
    if (!this.view) this.view = this.el.clientHeight;
    if (!this.view) return;
    // Clamp like the browser does, so that the cached position stays correct.
    const top = Math.min(scrollFor(this.#lines(index), this.top, this.view, lead, this.height), Math.max(0, this.#lines(this.count) * this.height - this.view));
    if (top === this.top) return;
    this.top = top;
    this.#fill();
    if (!isLater) this.scroll();
  }

  /** Scroll to where `show` has drawn rows. This forces a layout if the page has changed, so several lists do it last. */
  scroll() {
    if (this.view) this.el.scrollTop = this.top;
  }
}
