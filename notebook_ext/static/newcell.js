// Adds a cell to a notebook through its own controls: Jupyter gives a widget no interface for that.

const PLUS = '[data-jp-item-name="insert"] jp-button, [data-jp-item-name="insert"] button, [data-command="notebook:insert-cell-below"]';
const WAIT_MS = 1500;

/** The notebook around an element: its panel and the cell. @param {HTMLElement} el */
function around(el) {
  const cell = /** @type {HTMLElement | null} */ (el.closest(".jp-Cell")), panel = el.closest(".jp-NotebookPanel, .jp-Document, body");
  const plus = /** @type {HTMLElement | null} */ (panel?.querySelector(PLUS) ?? null);
  return cell && plus ? { cell, plus } : null;
}

/** True if the notebook around an element can be given a cell. @param {HTMLElement} el */
export function canAddCell(el) {
  return around(el) !== null;
}

/**
 * Add a cell with this text below the cell of an element; return false if that did not work.
 * @param {HTMLElement} el
 * @param {string} text
 */
export async function addCellBelow(el, text) {
  const found = around(el);
  if (!found) return false;
  const { cell, plus } = found, parent = cell.parentElement;
  const before = new Set(parent?.querySelectorAll(".jp-Cell"));
  // The button acts on the active cell; buttons of a toolbar act when the mouse goes down.
  for (const type of ["mousedown", "mouseup"]) mouse(cell.querySelector(".jp-InputArea-prompt") ?? cell, type);
  for (const type of ["mousedown", "mouseup", "click"]) mouse(plus, type);
  const made = await appeared(() => [...(parent?.querySelectorAll(".jp-Cell") ?? [])].find((c) => !before.has(c) && c.querySelector(".cm-content")));
  const content = /** @type {HTMLElement | null | undefined} */ (made?.querySelector(".cm-content"));
  if (!content) return false;
  content.focus();
  const data = new DataTransfer();
  data.setData("text/plain", text.replace(/\n$/, ""));
  content.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  return Boolean(await appeared(() => content.textContent?.trim()));
}

/** @param {Element} el @param {string} type */
function mouse(el, type) {
  el.dispatchEvent(new MouseEvent(type, { bubbles: true, cancelable: true, composed: true, button: 0 }));
}

/** Wait until a value is there; undefined after a while. @template T @param {() => T} find */
async function appeared(find) {
  for (let waited = 0; waited < WAIT_MS; waited += 50) {
    const found = find();
    if (found) return found;
    await new Promise((go) => setTimeout(go, 50));
  }
  return undefined;
}
