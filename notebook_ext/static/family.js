// Linked rows of several panes; each row knows its origins in the previous pane.

/**
 * All rows that a row comes from, and all rows that come from it.
 * @param {any[]} panes @param {number} pane @param {number} row @returns {Set<number>[]}
 */
export function family(panes, pane, row) {
  const lit = panes.map(() => /** @type {Set<number>} */ (new Set()));
  lit[pane].add(row);
  for (let p = pane; p > 0; p--) for (const r of lit[p]) for (const up of panes[p].rows[r][2]) lit[p - 1].add(up);
  for (let p = pane + 1; p < panes.length; p++) panes[p].rows.forEach((/** @type {any} */ r, /** @type {number} */ n) => { if (r[2].some((/** @type {number} */ up) => lit[p - 1].has(up))) lit[p].add(n); });
  return lit;
}
