// One table of keys for each view: the handler and the list that ? shows come from the same rows.

/**
 * @typedef {object} Key
 * @property {string[]} keys values of KeyboardEvent.key
 * @property {string} shown what the list shows, keys separated by blanks
 * @property {string} text what they do
 * @property {(key: string) => void} run
 */

/**
 * @param {string} keys values of KeyboardEvent.key, separated by blanks
 * @param {string} text
 * @param {(key: string) => void} run
 * @returns {Key}
 */
export function key(keys, text, run) {
  const names = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→" };
  const shown = keys.replace(/Arrow\w+/g, (k) => names[/** @type {keyof typeof names} */ (k)]);
  return { keys: keys.split(" "), shown, text, run };
}

/**
 * Run the action of a key; return false if there is none.
 * @param {Key[]} table
 * @param {string} pressed
 */
export function press(table, pressed) {
  const row = table.find((k) => k.keys.includes(pressed));
  if (row) row.run(pressed);
  return Boolean(row);
}
