// Modules under test, loaded from the tree: they are plain ES modules in a folder without a package.json, so they go in as text.
import { readFileSync } from "node:fs";

const STATIC = new URL("../../notebook_ext/static/", import.meta.url);

/** Import one module, with the text of the modules that it imports before its own. */
export async function load(name, ...imported) {
  const text = [...imported, name].map((file) => readFileSync(new URL(file, STATIC), "utf8").replace(/^import .*;\n/gm, "")).join("\n");
  return import("data:text/javascript," + encodeURIComponent(text));
}
