import { findSections } from "./search.js";

const SHOWN = 60;
const root = document.documentElement;

/** The theme that the reader chose, else the system's. */
function startTheme() {
  let kept = null;
  try {
    kept = localStorage.getItem("theme");
  } catch {
    // A page from disk may have no storage.
  }
  return kept ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** @param {string} theme */
function setTheme(theme) {
  root.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
}

/** @param {string} theme */
function chooseTheme(theme) {
  setTheme(theme);
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // The choice then holds for this page.
  }
  for (const fold of document.querySelectorAll("details.explorer[open]")) showExplorer(/** @type {HTMLDetailsElement} */ (fold));
}

/** Show the explorer of an open fold, in the page's theme. @param {HTMLDetailsElement} fold */
function showExplorer(fold) {
  fold.querySelector("iframe")?.remove();
  if (!fold.open) return;
  const frame = document.createElement("iframe");
  frame.title = fold.dataset.title ?? "Explorer";
  frame.src = `${fold.dataset.explorer}#${root.dataset.theme}`;
  fold.append(frame);
}

/** @param {import("./search.js").Hit} hit */
function hitItem(hit) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  link.href = hit.address;
  link.textContent = hit.title;
  const page = document.createElement("span");
  page.className = "page";
  page.textContent = hit.page === hit.title ? "" : hit.page;
  const text = document.createElement("p");
  for (const [part, isMatch] of hit.parts) {
    const piece = document.createElement(isMatch ? "mark" : "span");
    piece.textContent = part;
    text.append(piece);
  }
  item.append(link, page, text);
  return item;
}

/** Search as the reader types. @param {HTMLInputElement} input @param {string} text */
function startSearch(input, text) {
  const index = JSON.parse(text);
  const list = /** @type {HTMLElement} */ (document.getElementById("hits"));
  const said = /** @type {HTMLElement} */ (document.getElementById("said"));
  const show = () => {
    const query = input.value.trim();
    const hits = findSections(index, query);
    list.replaceChildren(...hits.slice(0, SHOWN).map(hitItem));
    const more = hits.length > SHOWN ? `, of which the best ${SHOWN} are shown` : "";
    said.textContent = !query ? "Type a word: a function, an option, a message, a term." : hits.length ? `${hits.length} section${hits.length === 1 ? "" : "s"} for “${query}”${more}.` : `No section has all words of “${query}”. Try fewer words.`;
  };
  input.value = new URLSearchParams(location.search).get("q") ?? "";
  input.addEventListener("input", () => {
    show();
    try {
      history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`);
    } catch {
      // Some browsers keep the address of a page from disk as it is.
    }
  });
  input.form?.addEventListener("submit", (event) => event.preventDefault());
  show();
  input.focus();
}

/** Arrow keys go from the search field through the results. @param {KeyboardEvent} event @param {HTMLInputElement} input */
function moveThroughHits(event, input) {
  const stops = [input, .../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#hits a"))];
  const at = stops.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const to = at + (event.key === "ArrowDown" ? 1 : -1);
  if (at < 0 || to < 0 || to >= stops.length) return;
  event.preventDefault();
  stops[to].focus();
}

function start() {
  setTheme(root.dataset.theme ?? "light");
  const button = /** @type {HTMLButtonElement} */ (document.getElementById("theme"));
  button.hidden = false;
  button.addEventListener("click", () => chooseTheme(root.dataset.theme === "dark" ? "light" : "dark"));
  const input = /** @type {HTMLInputElement} */ (document.querySelector("form[role=search] input"));
  const index = document.getElementById("index");
  if (index) startSearch(input, index.textContent ?? "");
  for (const fold of /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll("details.explorer"))) {
    if (fold.open) showExplorer(fold);
    fold.addEventListener("toggle", () => {
      if (fold.open !== Boolean(fold.querySelector("iframe"))) showExplorer(fold);
    });
  }
  for (const box of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".output pre"))) box.tabIndex = 0;
  const menu = /** @type {HTMLDetailsElement | null} */ (document.querySelector("details.menu"));
  if (menu && matchMedia("(max-width: 60rem)").matches) menu.open = false;
  addEventListener("keydown", (event) => {
    const isTyping = /** @type {HTMLElement} */ (event.target).matches?.("input, textarea, select");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      input.focus();
      input.select();
    } else if (index && (event.key === "ArrowDown" || event.key === "ArrowUp")) moveThroughHits(event, input);
  });
}

setTheme(startTheme());
addEventListener("DOMContentLoaded", start);
addEventListener("beforeprint", () => setTheme("light"));
addEventListener("afterprint", () => setTheme(startTheme()));
