// Creates elements from text only: text from user code is never parsed as HTML.

/** @typedef {Node | string | number | null | undefined | false} Kid */
/** @typedef {Kid | Kid[] | (Kid | Kid[])[]} Kids */

const SVG = new Set(["svg", "g", "rect", "path", "text", "circle"]);

/**
 * Make an element; `on...` properties are listeners, all others attributes (null and false leave one out).
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...Kids} kids
 * @returns {HTMLElement}
 */
export function h(tag, props, ...kids) {
  const e = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "style") /** @type {HTMLElement} */ (e).style.cssText = value;
    else e.setAttribute(name, value === true ? "" : String(value));
  }
  add(e, kids);
  return /** @type {HTMLElement} */ (e);
}

/**
 * Append children, strings as text.
 * @param {Element} e
 * @param {any} kids
 */
function add(e, kids) {
  for (const kid of [kids].flat(9)) if (kid != null && kid !== false) e.append(typeof kid === "number" ? String(kid) : kid);
}

const FOCUSABLE = "button,select,input,textarea,summary,[tabindex]";
const nameOf = (/** @type {Element} */ e) => e.getAttribute("aria-label") || e.getAttribute("title") || e.textContent;

/**
 * Replace an element's children. The focus stays: on the same control, else on the explorer.
 * @param {Element} e
 * @param {...Kids} kids
 */
export function put(e, ...kids) {
  const had = e.contains(document.activeElement) && document.activeElement !== e ? document.activeElement : null;
  const places = had ? [...e.querySelectorAll(FOCUSABLE)] : [];
  e.replaceChildren();
  add(e, kids);
  if (had) restoreFocus(e, /** @type {HTMLElement} */ (had), places);
}

/** @param {Element} e @param {HTMLElement} had @param {Element[]} places controls before the change */
function restoreFocus(e, had, places) {
  const now = /** @type {HTMLElement[]} */ ([...e.querySelectorAll(FOCUSABLE)]);
  const isSame = (/** @type {Element} */ other) => other.tagName === had.tagName && nameOf(other) === nameOf(had);
  const number = places.filter(isSame).indexOf(had), at = now[places.indexOf(had)];
  const same = now.filter(isSame)[number] ?? (now.length === places.length && at?.tagName === had.tagName ? at : null);
  for (const next of [had, same, /** @type {HTMLElement | null} */ (e.closest(".lm"))]) {
    if (next?.isConnected && document.activeElement !== next) next.focus({ preventScroll: true });
    if (next && document.activeElement === next) return;
  }
}

/** Text in gray, beside what matters more. @param {...any} kids */
export const muted = (...kids) => h("span", { class: "mut" }, kids);

/** A paragraph in gray. @param {...any} kids */
export const mutedLine = (...kids) => h("p", { class: "mut" }, kids);

/**
 * Badge with the number of a source line on its color; a gray dot for compiler-generated rows.
 * @param {number} ordinal
 */
export function badge(ordinal) {
  return h("span", { class: "bd " + hue(ordinal) }, ordinal > 0 ? String(ordinal) : "·");
}

/**
 * CSS class for the color of an ordinal.
 * @param {number} ordinal
 */
export function hue(ordinal) {
  return "o" + (ordinal > 0 ? ((ordinal - 1) % 6) + 1 : 0);
}

/**
 * "1 line", "2 lines", "1,000 entries".
 * @param {number} count
 * @param {string} word
 */
export function plural(count, word) {
  const many = /[^aeiou]y$/.test(word) ? word.slice(0, -1) + "ies" : word + "s";
  return count.toLocaleString("en") + " " + (count === 1 ? word : many);
}

/**
 * Text as a sentence: a capital first, a full stop last.
 * @param {string} text
 */
export function sentence(text) {
  return text ? text[0].toUpperCase() + text.slice(1) + (/[.!?:]$/.test(text) ? "" : ".") : "";
}

/**
 * A button with a visible border; `key` is shown in its title.
 * @param {string} text
 * @param {string} key
 * @param {() => void} action
 * @param {Record<string, any>} [props]
 */
export function button(text, key, action, props) {
  return h("button", { type: "button", class: "b", title: key ? "Key: " + key : null, onclick: action, ...props }, text);
}

/** A cache entry with its symbolic signature, as every list of entries has it. @param {any} e @param {string} [target] */
export const entryName = (e, target) => `${e.name} entry ${e.entry}${target ? " · " + target : ""}${e.inputs ? ": " + e.inputs : ""}`;

/**
 * A drop-down list.
 * @param {string} label
 * @param {[string, string][]} options values and texts
 * @param {string} value
 * @param {(value: string) => void} changed
 */
export function choice(label, options, value, changed) {
  const e = /** @type {HTMLSelectElement} */ (
    h("select", { "aria-label": label, onchange: () => changed(e.value) }, options.map(([v, text]) => h("option", { value: v, selected: v === value }, text)))
  );
  return e;
}

/** The parts of a name, which a narrow column may put on lines of their own. @param {string} name */
export const wordBreaks = (name) => name.split(/(?<=[_.])(?=[^_.])/);

/** A number with two digits, or all that stand before the decimal point. @param {number} value */
export const twoDigits = (value) => (value >= 99.5 ? value.toFixed(0) : String(Number(value.toPrecision(2))));

/** A duration, short. @param {number} seconds */
export function ms(seconds) {
  const value = seconds * 1000;
  if (value < 1e-4) return twoDigits(value * 1e6) + " ns";
  if (value < 0.1) return twoDigits(value * 1000) + " µs";
  return seconds >= 1 ? twoDigits(seconds) + " s" : twoDigits(value) + " ms";
}

/**
 * Heat map of a tensor's values; null without one.
 * @param {string[]} rows a digit for each cell, or x where an element is not finite
 */
export function valueMap(rows) {
  return rows.length ? h("span", { class: "vmap", role: "img", "aria-label": `Heat map of ${rows.length} × ${rows[0].length} cells: ${rows.join(", ")}`, title: "Values from low (pale) to high; red: not finite" }, rows.map((row) => h("span", {}, [...row].map((c) => h("i", c === "x" ? { class: "x" } : { style: `opacity:${0.1 + +c / 10}` }))))) : null;
}
