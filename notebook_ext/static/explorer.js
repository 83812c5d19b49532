// The frame around the views: summary line, tabs, keys, status sentence, and messages to and from the kernel.

import { copyText, shownText } from "./copy.js";
import { Finder } from "./finder.js";
import { moveFirstLine, resizable } from "./resize.js";
import { button, h, muted, mutedLine, plural, put } from "./shared/dom.js";
import { press } from "./shared/keys.js";
import { SHARED, VIEWS } from "./shared/views.js";
import { Trail } from "./trail.js";

/**
 * Interface of the model: anywidget's, or the one of a page without a kernel.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(event: string, callback: (...args: any[]) => void) => void} on
 * @property {(event: string, callback: (...args: any[]) => void) => void} off
 * @property {(message: any) => void} send
 * @property {(name: string, value: any) => void} [set]
 * @property {() => void} [save_changes]
 * @property {boolean} [hasKernel] false for a page without a kernel
 * @property {(target: string) => string} [link] URL of a selection, if the page has one that others can open
 */

/** View ids and tab labels, in order; h opens the first, the digit keys the next ten. */
const TABS = [
  ["home", "Home"], ["linked", "Linked view"], ["guards", "Guards"], ["recompiles", "Recompiles"], ["breaks", "Breaks"], ["graph", "Graph"], ["kernels", "Kernels"],
  ["timings", "Timeline"], ["tracer", "Tracer"], ["aot", "AOT"], ["compare", "Compare"], ["compilations", "Compilations"], ["memory", "Memory"], ["backward", "Backward"], ["devices", "Devices"], ["edit", "Edit"],
];

/** Tab labels with a short form: optional start, short label, optional end. @type {Record<string, string[]>} */
const TWO_LENGTHS = { linked: ["", "Linked", " view"], timings: ["", "Time", "line"] };

/** Placeholder for a view whose code is still loading. */
class LoadingView {
  constructor() {
    this.keys = [];
    this.el = h("p", { class: "mut pad" }, "Loading …");
    /** @type {string[]} */
    this.wanted = [];
  }

  /** @param {...string} where */
  open(...where) {
    if (where.length) this.wanted = where;
  }

  where() {
    return this.wanted;
  }

  draw() {}
}

/** After this time without an answer, a message says that the kernel may be gone. */
const ANSWER_TIMEOUT_MS = 8000;
/** The current selection is saved in the model after this time without a change. */
const SAVE_DELAY_MS = 400;
/** Show the whole of a text that is cut while the pointer is on it. @param {PointerEvent} e */
function nameIfCut({ target }) {
  const cut = /** @type {HTMLElement} */ (target);
  if (cut.scrollWidth > cut.clientWidth && !cut.closest("[title]") && getComputedStyle(cut).textOverflow === "ellipsis") cut.title = cut.textContent ?? "";
}

/** Pixels by which a key moves the line between two columns. */
const COLUMN_STEP = 40;
let frames = 0;

/** True while this page sets the model's `view`: other explorers of the same model do not follow. */
let isSettingView = false;

export class Frame {
  /** @param {Model} model @param {HTMLElement} el */
  constructor(model, el) {
    this.model = model;
    this.id = "lm" + frames++;
    this.overview = model.get("overview");
    /** @type {Map<string, any>} */
    this.parts = new Map(Object.entries(model.get("parts") || {}));
    /** @type {Set<string>} */
    this.asked = new Set();
    /** Opened views by id. @type {Map<string, any>} */
    this.made = new Map();
    this.views = TABS;
    this.trail = new Trail();
    /** True while going through the history: selections are not recorded. */
    this.isWalking = false;
    /** True while the sentence is a message, which views that are drawn again leave until the next action. */
    this.isTold = false;
    this.resting = 0;
    /** @type {any} */
    this.view = this.viewOf(TABS[0][0]);
    this.summary = h("div", { class: "sum", role: "group", "aria-label": "Summary" });
    this.sentence = h("div", { class: "say", role: "status", "aria-live": "polite" });
    this.panel = h("div", { role: "tabpanel", id: this.id + "-panel", class: "panel" });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, TABS.map(([id, name]) => h("button", { type: "button", role: "tab", id: `${this.id}-${id}`, "aria-controls": this.panel.id, "data-view": id, onclick: () => this.open(id) }, TWO_LENGTHS[id] ? [h("span", { class: "more" }, TWO_LENGTHS[id][0]), TWO_LENGTHS[id][1], h("span", { class: "more" }, TWO_LENGTHS[id][2])] : name)));
    this.others = h("div", { class: "others", role: "group", "aria-label": "Empty views, and what would fill them", hidden: true });
    this.othersButton = button("More", "m", () => this.toggleOthers(), { "aria-expanded": "false", title: "Views that are empty here, and what would fill them. Key: m" });
    this.help = h("div", { class: "keys", role: "dialog", "aria-label": "Keys", hidden: true });
    this.finder = new Finder(this);
    const tools = h("div", { class: "tools" },
      button("‹", ",", () => this.walk(-1), { "aria-label": "Back", title: "Back to the previous selection. Key: ," }), button("›", ".", () => this.walk(1), { "aria-label": "Forward", title: "Forward again. Key: ." }),
      button("Find", ":", () => this.finder.toggle(), { title: "Find anything in this session. Key: : or Ctrl K" }), button("Copy", "y", () => this.copy(), { title: "Copy this view as text. Key: y" }),
      model.link ? button("Link", "Y", () => this.copyLink(), { title: "Copy a link to the selection. Key: Y" }) : null, button("?", "?", () => this.toggleHelp(), { "aria-label": "Keys" }));
    const widget = h("div", { class: "wid" }, h("div", { class: "top" }, this.tabs, this.othersButton, tools), this.others, this.help, this.finder.el, h("div", { class: "low" }, this.panel, this.sentence));
    this.root = h("div", { class: "lm", tabindex: "0", role: "region", "aria-label": "Compilation explorer", "data-lm-suppress-shortcuts": "true", onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e), onpointerdown: () => { this.isWalking = this.isTold = false; }, onpointerover: nameIfCut }, this.summary, widget);
    resizable(this.root);
    el.append(this.root);
    /** Hides the static summary and snapshot of the cell, however often the notebook draws them again. */
    this.hiding = h("style", {}, `[data-explorer-summary="${model.get("summary_id")}"]{display:none}`);
    this.root.append(this.hiding);
    this.onOverview = () => this.renew();
    this.onParts = () => this.takeParts();
    this.onMessage = (/** @type {any} */ message) => this.receive(message);
    this.onView = () => isSettingView || this.goTo(model.get("view"));
    model.on("change:overview", this.onOverview);
    model.on("change:parts", this.onParts);
    model.on("change:view", this.onView);
    model.on("msg:custom", this.onMessage);
    this.drawSummary();
    this.goTo(model.get("view") || this.shownTabs()[0]);
    // A view that is drawn before its element is on the page has no height and cannot scroll.
    requestAnimationFrame(() => { this.view.draw(); this.sendMargin(this.overview.margin); });
  }

  /** Tell JupyterLab's extension what to mark beside the cells' code. @param {any[]} [files] */
  sendMargin(files = []) {
    const open = (/** @type {string} */ target) => { this.goTo(target); this.root.scrollIntoView({ block: "nearest" }); this.focus(); };
    document.dispatchEvent(new CustomEvent("compile-explorer-margin", { detail: { root: this.root, files, open } }));
  }

  /** Stop listening. */
  close() {
    this.sendMargin();
    clearTimeout(this.resting);
    this.hiding.remove();
    this.model.off("change:parts", this.onParts);
    this.model.off("change:overview", this.onOverview);
    this.model.off("change:view", this.onView);
    this.model.off("msg:custom", this.onMessage);
  }

  /** The view with this id, created on first use. Requests its code if it is not loaded. @param {string} id */
  viewOf(id) {
    const View = VIEWS.get(id), made = this.made.get(id);
    if (made && !(made instanceof LoadingView && View)) return made;
    if (!View) this.ask({ type: "code", view: id }, () => !VIEWS.has(id));
    const view = Object.assign(View ? new View(this) : new LoadingView(), { id });
    this.made.set(id, view);
    return view;
  }

  /** Load the code of a view; open the view if it is waited for. @param {string} id @param {string} text */
  async take(id, text) {
    const waiting = this.made.get(id), url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    try {
      if (!VIEWS.has(id)) (await import(url)).default(SHARED);
      if (this.view === waiting && waiting instanceof LoadingView) this.open(id, ...waiting.wanted);
    } catch (error) {
      this.say(`This view could not be loaded: ${error}`);
    } finally {
      URL.revokeObjectURL(url);
    }
  }

  /** One part; null until it arrives. @param {string} key */
  part(key) {
    if (this.parts.has(key)) return this.parts.get(key);
    if (!this.asked.has(key)) {
      this.asked.add(key);
      this.ask({ type: "part", key }, () => this.asked.has(key));
    }
    return this.parts.get(key) ?? null;
  }

  /** Send a message; if no answer comes, say so. @param {any} message @param {() => boolean} isWaiting */
  ask(message, isWaiting) {
    if (this.send(message)) setTimeout(() => isWaiting() && this.say("The kernel has not answered yet: it is busy, or was restarted or stopped. What is on screen stays."), ANSWER_TIMEOUT_MS);
  }

  /** Send a message. If the kernel of this widget is gone, say so and return false. @param {any} message */
  send(message) {
    try {
      this.model.send(message);
      return true;
    } catch {
      // After the caller has set its own sentence.
      this.hiding.remove();
      setTimeout(() => this.say("The kernel was restarted or stopped: run the cell again for more. What is on screen stays; the static snapshot above needs no kernel."));
      return false;
    }
  }

  /** @param {any} message */
  receive(message) {
    if (message.type === "part") {
      this.asked.delete(message.key);
      this.parts.set(message.key, message.data);
      if (this.isReady && message.key !== "index") this.view.draw();
      if (message.key === "recipes" && !this.help.hidden) this.toggleHelp(true);
      this.finder.draw();
    } else this.isTold = false;
    if (message.type === "say") {
      this.say(message.text);
      this.isTold = true;
    } else if (message.type === "what-if") this.made.get("guards")?.told(message.entry, message.data);
    else if (message.type === "edit") this.made.get("edit")?.take(message.data);
    else if (message.type === "tune") this.made.get("kernels")?.takeTuning(message.data);
    else if (message.type === "script") this.takeScript(message.data);
    else if (message.type === "code") this.take(message.view, message.text);
  }

  /** Home and the linked view arrive as state, because a message is lost while no view listens. */
  takeParts() {
    for (const [key, part] of Object.entries(this.model.get("parts"))) {
      this.parts.set(key, part);
      this.asked.delete(key);
    }
    this.view.draw();
  }

  /** The session changed: show the new summary. Changed parts are sent again. */
  renew() {
    this.overview = this.model.get("overview");
    this.sendMargin(this.overview.margin);
    this.drawSummary();
    this.drawTabs();
    this.view.draw();
  }

  /** Ids of the views that hold something, and of the open one. */
  shownTabs() {
    const { empty } = this.overview, ids = TABS.map(([id]) => id);
    return ids.filter((id) => !(id in empty) || (id === this.view.id && this.isReady));
  }

  /** Show the tabs of views that hold something; the others are behind "More". */
  drawTabs() {
    const { empty } = this.overview, rest = TABS.filter(([id]) => id in empty && id !== this.view.id);
    for (const tab of this.tabs.children) {
      const { view = "" } = /** @type {HTMLElement} */ (tab).dataset;
      /** @type {HTMLElement} */ (tab).hidden = view in empty && view !== this.view.id;
    }
    this.othersButton.hidden = !rest.length;
    put(this.others, h("dl", {}, rest.map(([id, name]) => [h("dt", {}, h("button", { type: "button", class: "lnk", "data-view": id, onclick: () => { this.open(id); this.focus(); } }, name)), h("dd", {}, empty[id])])));
  }

  /** @param {boolean} [isShown] */
  toggleOthers(isShown = this.others.hidden) {
    this.others.hidden = !isShown || this.othersButton.hidden;
    this.othersButton.setAttribute("aria-expanded", String(!this.others.hidden));
    if (isShown) /** @type {HTMLElement | null} */ (this.others.querySelector("button"))?.focus();
  }

  /** @param {string} id */
  entry(id) {
    return this.overview.entries.find((/** @type {any} */ e) => e.id === id);
  }

  /** Open a view, optionally at an entry and a detail. @param {string} id @param {...string} where */
  open(id, ...where) {
    this.isReady = this.isTold = false;
    if (id !== this.view?.id) put(this.sentence);
    this.view = this.viewOf(TABS.some((tab) => tab[0] === id) ? id : TABS[0][0]);
    this.drawTabs();
    for (const tab of this.tabs.children) {
      const isOn = /** @type {HTMLElement} */ (tab).dataset.view === this.view.id;
      tab.setAttribute("aria-selected", String(isOn));
      /** @type {HTMLElement} */ (tab).tabIndex = isOn ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `${this.id}-${this.view.id}`);
    this.view.open(...where);
    // Removing and re-adding the element would lose its scroll position.
    if (this.view.el.parentElement !== this.panel) this.panel.replaceChildren(this.view.el);
    this.toggleHelp(false);
    this.toggleOthers(false);
    this.view.draw();
    this.isReady = true;
    this.note();
  }

  /** Open a selection in the form of `place`. @param {string} target */
  goTo(target) {
    const [view, ...where] = target.split("|");
    this.open(view, ...where);
  }

  /** The current selection as a string: "guards|0/1|guard=3". */
  get place() {
    return [this.view.id, ...(this.view.where?.() ?? [])].join("|");
  }

  /** Show a sentence below the view. This also records a new selection in the history. @param {...any} words */
  say(...words) {
    if (!this.isTold) put(this.sentence, ...words);
    this.note();
  }

  note() {
    if (!this.isReady || this.isWalking || this.place === this.trail.here) return;
    this.trail.add(this.place);
    this.keep();
  }

  /** Save the selection in the model so that it opens there again. Delayed, because each message takes kernel time. */
  keep() {
    clearTimeout(this.resting);
    this.resting = window.setTimeout(() => {
      isSettingView = true;
      try {
        this.model.set?.("view", this.place);
        this.model.save_changes?.();
      } catch {
        // The kernel is gone: the selection cannot be saved.
      } finally {
        isSettingView = false;
      }
    }, SAVE_DELAY_MS);
  }

  /** @param {1 | -1} step */
  walk(step) {
    const place = this.trail.go(step);
    if (place === undefined) return this.say(step < 0 ? "This is the oldest selection." : "This is the newest selection.");
    this.isWalking = true;
    this.goTo(place);
    this.keep();
  }

  /** Copy what this view shows, as text. */
  async copy() {
    const text = this.view.text?.() || shownText(this.view.el);
    const isDone = await copyText(text + "\n", this.root);
    this.say(isDone ? `Copied ${plural(text.split("\n").length, "line")} as text.` : "This page may not copy: select the text by hand.");
  }

  /** A button that copies a script which shows a graph, kernel or event again. @param {string} entry @param {string} what */
  scriptButton(entry, what) {
    if (this.model.hasKernel === false) return null;
    return button("Copy as script", "", () => {
      this.say("Running the script in a process of its own, to see that it shows the same …");
      this.send({ type: "script", entry, what });
    }, { title: "Copy one file that shows this again; it is run first, in a process of its own" });
  }

  /** @param {any} data the script with what it shows, or why there is none */
  async takeScript(data) {
    if (data.problem) return this.say(data.problem);
    const told = (/** @type {boolean} */ isDone) => this.say(h("b", {}, isDone ? "Copied the script. " : "The script is ready. "), data.symptom + " ", isDone ? null : button("Copy it", "", async () => told(await copyText(data.text, this.root))));
    told(await copyText(data.text, this.root));
  }

  async copyLink() {
    const link = this.model.link?.(this.place);
    if (!link) return this.say("Only an exported page has links: %%compile --save page.html makes one.");
    this.say((await copyText(link, this.root)) ? h("span", {}, "Copied the link ", h("code", {}, link)) : h("span", {}, "The link is ", h("code", {}, link)));
  }

  /** Focus the explorer without scrolling the page. */
  focus() {
    this.root.focus({ preventScroll: true });
  }

  drawSummary() {
    const { summary } = this.overview;
    const item = (/** @type {any} */ i) => {
      if (i.kind === "action") return button(i.text, "", () => this.act(i.target));
      if (!i.target) return h("span", { class: i.text.length < 14 && /\w/.test(i.text) ? "nw" : null }, i.text);
      const [view, ...where] = i.target.split("|");
      const link = h("button", { type: "button", class: "lnk", "data-target": i.target, onclick: () => { this.open(view, ...where); this.focus(); } }, i.text);
      return i.kind === "name" ? h("b", {}, link) : link;
    };
    /** @type {any[]} */
    const line = [];
    for (const i of summary.items) {
      const comma = /^[),.]+/.exec(i.text), last = line[line.length - 1];
      // A comma stays with the button before it, a parenthesis with the one that it opens for.
      if (comma && !i.target && last?.matches("button, .nw")) line.splice(-1, 1, h("span", { class: "nw" }, last, comma[0]), item({ ...i, text: i.text.slice(comma[0].length) }));
      else if (i.target && last?.textContent.endsWith("(")) {
        last.textContent = last.textContent.slice(0, -1);
        line.push(h("span", { class: "nw" }, "(", item(i)));
      } else line.push(item(i));
    }
    put(
      this.summary,
      h("p", {}, line, summary.progress ? muted(` · running: ${summary.progress} …`) : null),
      summary.notes.map((/** @type {string} */ t) => mutedLine(t)),
    );
  }

  /** @param {string} action */
  act(action) {
    const words = { verify: "Checking: kernels of this CPU run again here, those for a GPU in Triton's interpreter in a separate process; the results are compared with ATen …", try: "Trying: a separate process runs the recompiled calls again with each fix …", measure: "Measuring each guard separately …", "measure-kernels": "Timing each kernel where it runs …", cancel: "Cancelling: finished kernels are not lost." };
    this.say(words[/** @type {keyof typeof words} */ (action)] || action);
    this.send({ type: action });
  }

  /** @param {boolean} [isShown] */
  toggleHelp(isShown = this.help.hidden) {
    this.help.hidden = !isShown;
    const general = [["?", "show or hide this list"], ["h", "open Home: what happened, and what to do"], ["1 … 9 0", "open a view, from the linked view on"], ["m", "empty views, and what would fill them"], [":", "find anything in this session; Ctrl K too"], [", .", "back and forward through the selections of all views"], ["< >", "narrower or wider first column; dragging its edge does it too, a double click restores it"], ["y", "copy this view as text"], ["Esc", "return the keyboard to the notebook"], ["Tab", "next control, as everywhere"]];
    const rows = [...this.view.keys.map((/** @type {any} */ k) => [k.shown, k.text]), ...general];
    put(this.help, h("dl", {}, rows.map(([keys, text]) => [h("dt", {}, keys.split(" ").map((/** @type {string} */ k) => [h("kbd", {}, k), " "])), h("dd", {}, text)])), this.recipeList(), this.wordList());
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    this.isTold = false;
    const isFind = (e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "k";
    if ((e.ctrlKey || e.metaKey || e.altKey) && !isFind) return;
    if (e.key !== "," && e.key !== ".") this.isWalking = false;
    const target = /** @type {HTMLElement} */ (e.target);
    const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
    if (isFind) this.finder.toggle(true);
    else if (e.key === "Escape") this.escape(isField);
    else if (isField || ((target.tagName === "BUTTON" || target.tagName === "SUMMARY") && /^(Enter| )$/.test(e.key))) return;
    else if (e.key === "?") this.toggleHelp();
    else if (e.key === "m") this.toggleOthers();
    else if (e.key === ":") this.finder.toggle(true);
    else if (e.key === "," || e.key === ".") this.walk(e.key === "," ? -1 : 1);
    else if (e.key === "y") this.copy();
    else if (e.key === "Y") this.copyLink();
    else if (e.key === "h") this.open(TABS[0][0]);
    else if (e.key === "<" || e.key === ">") moveFirstLine(this.panel, e.key === "<" ? -COLUMN_STEP : COLUMN_STEP);
    else if (/^[0-9]$/.test(e.key)) this.open(TABS[1 + ((+e.key + 9) % 10)][0]);
    else if (target.parentElement === this.tabs && /^Arrow(Left|Right)$/.test(e.key)) this.nextTab(e.key === "ArrowRight" ? 1 : -1);
    else if (!press(this.view.keys, e.key)) return;
    e.preventDefault();
    e.stopPropagation();
    if (!target.isConnected) this.focus();
  }

  /** Recipes that go on from this view. */
  recipeList() {
    const { titles, programs } = this.part("recipes") ?? {}, found = titles?.[this.view.id] ?? [];
    return found.length ? [h("p", {}, "Recipes to paste into a cell:"), found.map((/** @type {string} */ t) => h("details", {}, h("summary", {}, t), h("pre", { class: "code", tabindex: "0" }, programs[t]), button("Copy", "", () => this.copyProgram(programs[t]), { "aria-label": "Copy: " + t })))] : null;
  }

  /** @param {string} text */
  async copyProgram(text) {
    this.say((await copyText(text, this.root)) ? "Copied: paste it into a new cell." : "This page may not copy: select the text by hand.");
  }

  /** Glossary terms of this view. */
  wordList() {
    /** @type {[string, string][]} */
    const words = this.model.get("overview").words?.[this.view.id] ?? [];
    return words.length ? h("dl", { "aria-label": "Words" }, words.map(([word, text]) => [h("dt", {}, word), h("dd", {}, text)])) : null;
  }

  /** Close the list of keys, else leave the field, else return the keyboard to the notebook. @param {boolean} isField */
  escape(isField) {
    if (!this.help.hidden) return this.toggleHelp(false);
    if (!this.others.hidden) {
      this.toggleOthers(false);
      return this.othersButton.focus();
    }
    if (!this.finder.el.hidden) return this.finder.toggle(false);
    if (isField) return this.focus();
    const active = /** @type {HTMLElement | null} */ (document.activeElement), cell = /** @type {HTMLElement | null} */ (this.root.closest(".jp-Cell[tabindex], .jp-Notebook"));
    if (active) active.blur();
    if (cell) cell.focus({ preventScroll: true });
    this.say("The notebook has the keyboard again. Click or Tab here to use the explorer's keys.");
  }

  /** @param {number} step */
  nextTab(step) {
    const shown = this.shownTabs(), id = shown[(shown.indexOf(this.view.id) + step + shown.length) % shown.length];
    this.open(id);
    /** @type {HTMLElement} */ (this.tabs.children[TABS.findIndex((tab) => tab[0] === id)]).focus();
  }
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const frame = new Frame(model, el);
  return () => frame.close();
}

export default { render };
