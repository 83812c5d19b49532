// Heat map of the settings of a kernel that were tried by hand.

/** @typedef {{name: string, values: number[], default: number}} Control */
/** @typedef {{values: Record<string, number>, seconds: number | null, registers: number | null, spills: number | null, occupancy: number | null, problem: string}} Point */
/** @typedef {{device: string, controls: Control[], points: Point[], chosen: Record<string, number> | null}} Tuning */

/** Most color of a cell, in percent: text on it stays readable. */
const MAX_SHADE = 38;
/** A cell with spills has less color. */
const SPILL_SHADE = 0.4;

/** True if the settings in `a` have the values of `b`. @param {Record<string, number> | null} a @param {Record<string, number>} b */
export const same = (a, b) => Boolean(a) && Object.keys(b).every((name) => /** @type {Record<string, number>} */ (a)[name] === b[name]);

/** What a control is called here, if its parameter's name is not plain. @type {Record<string, string>} */
const CONTROL_NAMES = { vector_bits: "bits of a vector", vectors: "vectors at a time" };

/** @param {string} name */
export const controlName = (name) => CONTROL_NAMES[name] || name;

/** @param {string} name @param {number} value */
export const valueText = (name, value) => (value || name !== "vector_bits" ? String(value) : "no vectors");

/** Settings as text. @param {Record<string, number>} values */
export const settingsText = (values) => Object.entries(values).map(([name, value]) => (value || name !== "vector_bits" ? `${controlName(name)} ${value}` : valueText(name, value))).join(", ");

/** The default of each control. @param {Tuning} tuning @returns {Record<string, number>} */
export const usual = (tuning) => Object.fromEntries(tuning.controls.map((c) => [c.name, c.default]));

/** The fastest point, or null if none has a time. @param {Tuning} tuning @returns {Point | null} */
export function fastest(tuning) {
  const timed = tuning.points.filter((p) => p.seconds != null);
  return timed.length ? timed.reduce((a, b) => (/** @type {number} */ (b.seconds) < /** @type {number} */ (a.seconds) ? b : a)) : null;
}

/** Values of a control, with those that a script tried besides. @param {Tuning} tuning @param {string} name */
export function valuesOf(tuning, name) {
  const control = tuning.controls.find((c) => c.name === name);
  return [...new Set([...(control ? control.values : []), ...tuning.points.map((p) => p.values[name])])].sort((a, b) => a - b);
}

/**
 * Rows of cells of the map: the settings of each, its point, and how much color it has.
 * @param {Tuning} tuning @param {string} down @param {string} across empty for one column @param {Record<string, number>} others values of the other controls
 */
export function heatMap(tuning, down, across, others) {
  const best = fastest(tuning);
  return valuesOf(tuning, down).map((row) => (across ? valuesOf(tuning, across) : [0]).map((column) => {
    const values = { ...usual(tuning), ...others, [down]: row, ...(across ? { [across]: column } : {}) };
    const point = tuning.points.find((p) => same(p.values, values)) || null;
    return { values, point, shade: point ? shade(point, best) : 0 };
  }));
}

/** @param {Point} point @param {Point | null} best */
function shade(point, best) {
  if (point.seconds != null && best && best.seconds != null) return Math.round((MAX_SHADE * best.seconds) / point.seconds);
  return point.occupancy == null ? 0 : Math.round(MAX_SHADE * point.occupancy * (point.spills ? SPILL_SHADE : 1));
}
