// Search in the index of names and in listings. No DOM here.

/**
 * Rows that contain every word, best first: names equal to the words, names that begin with them, names that contain them, then the rest in order.
 * @param {string[][]} rows [kind, name, detail, ...]
 * @param {string} typed
 * @param {number} most
 * @returns {{found: number[], count: number}} numbers of rows, and how many there are in all
 */
export function foundIn(rows, typed, most) {
  const wanted = typed.trim().toLowerCase(), words = wanted.split(/\s+/).filter(Boolean);
  if (!words.length) return { found: rows.slice(0, most).map((_, i) => i), count: rows.length };
  /** @type {number[][]} */
  const ranked = [[], [], [], []];
  rows.forEach(([kind, name, detail], i) => {
    const label = name.toLowerCase(), all = `${kind} ${label} ${detail.toLowerCase()}`;
    if (!words.every((word) => all.includes(word))) return;
    ranked[label === wanted ? 0 : label.startsWith(wanted) ? 1 : label.includes(wanted) ? 2 : 3].push(i);
  });
  const found = ranked.flat();
  return { found: found.slice(0, most), count: found.length };
}

/**
 * Lines of listings that contain every word; a word may also be the listing's name ("ptx fma").
 * @param {{title: string, lines: string[]}[]} listings
 * @param {string} typed
 * @param {number} most
 * @returns {{found: [number, number][], count: number}} listing and row of each, and how many there are in all
 */
export function linesIn(listings, typed, most) {
  const words = typed.trim().toLowerCase().split(/\s+/).filter(Boolean);
  /** @type {[number, number][]} */
  const found = [];
  let count = 0;
  if (words.join("").length < 2) return { found, count };
  listings.forEach(({ title, lines }, listing) => {
    const name = title.toLowerCase(), wanted = words.filter((word) => !name.includes(word));
    if (!wanted.length) return;
    lines.forEach((line, row) => {
      const text = line.toLowerCase();
      if (!wanted.every((word) => text.includes(word))) return;
      count++;
      if (found.length < most) found.push([listing, row]);
    });
  });
  return { found, count };
}
