// Columns of a view that are resized: drag the line between two columns, or press < or >; a double click restores them.

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

const GRIDS = ".two, .panes, .tgrid, .two2";

/** Widths of a grid's columns in pixels. @param {HTMLElement} grid */
const widthsOf = (grid) => getComputedStyle(grid).gridTemplateColumns.split(" ").map(parseFloat).filter(Number.isFinite);

/** Set the widths of a grid's columns. @param {HTMLElement} grid @param {number[]} widths */
function setWidths(grid, widths) {
  grid.style.gridTemplateColumns = widths.map((w) => `minmax(0,${w}fr)`).join(" ");
}

/** The columns around a pointer and the line that it is on, or null. @param {PointerEvent | MouseEvent} e */
function lineAt(e) {
  const grid = /** @type {HTMLElement | null} */ (/** @type {Element} */ (e.target).closest(GRIDS));
  if (!grid) return null;
  const widths = widthsOf(grid);
  let x = grid.getBoundingClientRect().left;
  for (let at = 0; at < widths.length - 1; at++) {
    x += widths[at];
    if (Math.abs(e.clientX - x) <= REACH) return { grid, widths, at };
  }
  return null;
}

/**
 * Move the line after the first column of the shown view; false if the view has one column.
 * @param {HTMLElement} root @param {number} by
 */
export function moveFirstLine(root, by) {
  const shown = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(GRIDS)]).filter((g) => g.offsetWidth);
  const grid = shown.find((g) => widthsOf(g).length > 1);
  if (grid) setWidths(grid, moved(widthsOf(grid), 0, by));
  return Boolean(grid);
}

/** Let the columns of all views inside an element be resized. @param {HTMLElement} root */
export function resizable(root) {
  root.addEventListener("pointerdown", (e) => {
    const found = e.button ? null : lineAt(e);
    if (!found) return;
    const { grid, widths, at } = found, from = e.clientX;
    e.preventDefault();
    e.stopPropagation();
    const dragging = new AbortController(), { signal } = dragging;
    addEventListener("pointermove", (m) => setWidths(grid, moved(widths, at, m.clientX - from)), { signal });
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => dragging.abort(), { signal });
  }, true);
  root.addEventListener("pointermove", (e) => { root.classList.toggle("on-line", Boolean(lineAt(e))); });
  root.addEventListener("dblclick", (e) => { const found = lineAt(e); if (found) found.grid.style.gridTemplateColumns = ""; });
}
