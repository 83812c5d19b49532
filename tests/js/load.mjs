// Modules under test, loaded from the tree: they are plain ES modules in a folder without a package.json, so they go in as text.
import { readFileSync } from "node:fs";

const STATIC = new URL("../../notebook_ext/static/", import.meta.url);

/** Import one module that imports nothing itself. */
export async function load(name) {
  const text = readFileSync(new URL(name, STATIC), "utf8");
  return import("data:text/javascript," + encodeURIComponent(text));
}
