// Columns of a view that are resized: drag the line between two columns; a double click restores them.

/** Distance from the line within which a press starts a drag, in pixels. */
const REACH = 5;
/** Columns do not get narrower than this, in pixels. */
const LEAST = 120;

/**
 * Widths after the line between two columns moved; both stay at least `LEAST` wide.
 * @param {number[]} widths @param {number} at number of the column left of the line @param {number} by
 */
export function moved(widths, at, by) {
  const [left, right] = [widths[at], widths[at + 1]];
  const step = Math.max(Math.min(0, LEAST - left), Math.min(Math.max(0, right - LEAST), by));
  return widths.map((w, i) => w + (i === at ? step : i === at + 1 ? -step : 0));
}

/** The columns around a pointer and the line that it is on, or null. @param {PointerEvent | MouseEvent} e */
function lineAt(e) {
  const grid = /** @type {HTMLElement | null} */ (/** @type {Element} */ (e.target).closest(".two, .panes, .tgrid, .two2"));
  if (!grid) return null;
  const widths = getComputedStyle(grid).gridTemplateColumns.split(" ").map(parseFloat).filter(Number.isFinite);
  let x = grid.getBoundingClientRect().left;
  for (let at = 0; at < widths.length - 1; at++) {
    x += widths[at];
    if (Math.abs(e.clientX - x) <= REACH) return { grid, widths, at };
  }
  return null;
}

/** Let the columns of all views inside an element be resized. @param {HTMLElement} root */
export function resizable(root) {
  root.addEventListener("pointerdown", (e) => {
    const found = e.button ? null : lineAt(e);
    if (!found) return;
    const { grid, widths, at } = found, from = e.clientX;
    e.preventDefault();
    e.stopPropagation();
    const move = (/** @type {PointerEvent} */ m) => { grid.style.gridTemplateColumns = moved(widths, at, m.clientX - from).map((w) => `minmax(0,${w}fr)`).join(" "); };
    const up = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", up); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  }, true);
  root.addEventListener("pointermove", (e) => { root.classList.toggle("on-line", Boolean(lineAt(e))); });
  root.addEventListener("dblclick", (e) => { const found = lineAt(e); if (found) found.grid.style.gridTemplateColumns = ""; });
}
