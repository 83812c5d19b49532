// The frame around the views: summary line, tabs, keys, the sentence below, and the talk with the kernel.

import { copyText, shownText } from "./copy.js";
import { Finder } from "./finder.js";
import { button, h, plural, put } from "./shared/dom.js";
import { press } from "./shared/keys.js";
import { SHARED, VIEWS } from "./shared/views.js";
import { Trail } from "./trail.js";

/**
 * What the explorer needs of a model: anywidget's, or the one of a page without a kernel.
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(event: string, callback: (...args: any[]) => void) => void} on
 * @property {(event: string, callback: (...args: any[]) => void) => void} off
 * @property {(message: any) => void} send
 * @property {(name: string, value: any) => void} [set]
 * @property {() => void} [save_changes]
 * @property {(target: string) => string} [link] the address of a place, where there is one that others can open
 */

/** Every view with the name of its tab, in order; the digit keys open the first ten. */
const TABS = [
  ["linked", "Linked view"], ["guards", "Guards"], ["recompiles", "Recompiles"], ["breaks", "Breaks"], ["graph", "Graph"], ["kernels", "Kernels"],
  ["timings", "Timeline"], ["tracer", "Tracer"], ["onion", "AOT onion"], ["compare", "Compare"], ["contents", "Contents"], ["backward", "Backward"],
];

/** Names that are shorter where there is little room: what is left out before, what stays, what is left out after. @type {Record<string, string[]>} */
const TWO_LENGTHS = { linked: ["", "Linked", " view"], onion: ["", "AOT", " onion"] };

/** Stands in for a view whose code is on its way. */
class Coming {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
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

/** After this long without an answer a person is told that the kernel may be gone. */
const PATIENCE_MS = 8000;
const STAYS = "What is on screen stays; the static copy above needs no kernel.";
/** The place in hand is kept with the widget once it has rested for this long. */
const REST_MS = 400;
let frames = 0;
/** Whether the model's `view` is being set from here: other explorers of the same model stay where they are. */
let isOwn = false;

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
    /** Views that were opened, by id. @type {Map<string, any>} */
    this.made = new Map();
    this.views = TABS;
    this.trail = new Trail();
    /** While one walks back and forth, what is shown is not noted anew. */
    this.isWalking = false;
    this.resting = 0;
    /** @type {any} */
    this.view = this.viewOf(TABS[0][0]);
    this.summary = h("div", { class: "sum", role: "group", "aria-label": "Summary" });
    this.sentence = h("div", { class: "say", role: "status", "aria-live": "polite" });
    this.panel = h("div", { role: "tabpanel", id: this.id + "-panel", class: "panel" });
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" }, TABS.map(([id, name]) => h("button", { type: "button", role: "tab", id: `${this.id}-${id}`, "aria-controls": this.panel.id, "data-view": id, onclick: () => this.open(id) }, TWO_LENGTHS[id] ? [h("span", { class: "more" }, TWO_LENGTHS[id][0]), TWO_LENGTHS[id][1], h("span", { class: "more" }, TWO_LENGTHS[id][2])] : name)));
    this.help = h("div", { class: "keys", role: "dialog", "aria-label": "Keys", hidden: true });
    this.finder = new Finder(this);
    const tools = h("div", { class: "tools" },
      button("‹", ",", () => this.walk(-1), { "aria-label": "Back", title: "Back to what was selected before. Key: ," }), button("›", ".", () => this.walk(1), { "aria-label": "Forth", title: "Forth again. Key: ." }),
      button("Find", ":", () => this.finder.toggle(), { class: "b long", "data-short": ":", "aria-label": "Find", title: "Find anything in this session. Key: : or Ctrl K" }), button("Copy", "y", () => this.copy(), { class: "b long", "data-short": "y", "aria-label": "Copy", title: "Copy this view as text. Key: y" }),
      model.link ? button("Link", "Y", () => this.copyLink(), { class: "b long", "data-short": "Y", "aria-label": "Link", title: "Copy a link to what is selected. Key: Y" }) : null, button("?", "?", () => this.toggleHelp(), { "aria-label": "Keys" }));
    const widget = h("div", { class: "wid" }, h("div", { class: "top" }, this.tabs, tools), this.help, this.finder.el, this.panel, this.sentence);
    this.root = h("div", { class: "lm", tabindex: "0", role: "region", "aria-label": "Compilation explorer", "data-lm-suppress-shortcuts": "true", onkeydown: (/** @type {KeyboardEvent} */ e) => this.key(e), onpointerdown: () => { this.isWalking = false; } }, this.summary, widget);
    el.append(this.root);
    this.onOverview = () => this.renew();
    this.onMessage = (/** @type {any} */ message) => this.receive(message);
    this.onView = () => isOwn || this.goTo(model.get("view"));
    model.on("change:overview", this.onOverview);
    model.on("change:view", this.onView);
    model.on("msg:custom", this.onMessage);
    this.drawSummary();
    this.goTo(model.get("view") || TABS[0][0]);
    // A view drawn before its element is on the page has no height to scroll in.
    requestAnimationFrame(() => this.view.draw());
  }

  /** Stop listening. */
  close() {
    clearTimeout(this.resting);
    this.model.off("change:overview", this.onOverview);
    this.model.off("change:view", this.onView);
    this.model.off("msg:custom", this.onMessage);
  }

  /** The view with this id: made when first opened; its code is asked for where it is not here. @param {string} id */
  viewOf(id) {
    const View = VIEWS.get(id), made = this.made.get(id);
    if (made && !(made instanceof Coming && View)) return made;
    if (!View) this.ask({ type: "code", view: id }, () => !VIEWS.has(id));
    const view = View ? new View(this) : new Coming(id);
    this.made.set(id, view);
    return view;
  }

  /** Take in the code of a view, and show it if it is waited for. @param {string} id @param {string} text */
  async take(id, text) {
    const waiting = this.made.get(id), url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    try {
      if (!VIEWS.has(id)) (await import(url)).default(SHARED);
      if (this.view === waiting && waiting instanceof Coming) this.open(id, ...waiting.wanted);
    } catch (error) {
      this.say(`This view could not be loaded: ${error}`);
    } finally {
      URL.revokeObjectURL(url);
    }
  }

  /** One part; null while it is on its way. @param {string} key */
  part(key) {
    if (this.parts.has(key)) return this.parts.get(key);
    if (!this.asked.has(key)) {
      this.asked.add(key);
      this.ask({ type: "part", key }, () => this.asked.has(key));
    }
    return this.parts.get(key) ?? null;
  }

  /** Send a message, and tell when no answer comes. @param {any} message @param {() => boolean} isWaiting */
  ask(message, isWaiting) {
    if (this.send(message)) setTimeout(() => isWaiting() && this.say(`The kernel has not answered yet: it is busy, or was restarted or stopped. ${STAYS}`), PATIENCE_MS);
  }

  /** Send a message; false where the kernel that made this widget is gone, which is said. @param {any} message */
  send(message) {
    try {
      this.model.send(message);
      return true;
    } catch {
      // Once what asked has said what it has to say.
      setTimeout(() => this.say(`The kernel was restarted or stopped: run the cell again for more. ${STAYS}`));
      return false;
    }
  }

  /** @param {any} message */
  receive(message) {
    if (message.type === "part") {
      this.asked.delete(message.key);
      this.parts.set(message.key, message.data);
      if (this.isReady && message.key !== "index") this.view.draw();
      this.finder.draw();
    } else if (message.type === "say") this.say(message.text);
    else if (message.type === "what-if") this.made.get("guards")?.told(message.entry, message.data);
    else if (message.type === "code") this.take(message.view, message.text);
  }

  /** The session changed: show the new summary. Parts that were sent and have changed are sent again. */
  renew() {
    this.overview = this.model.get("overview");
    this.drawSummary();
    this.view.draw();
  }

  /** @param {string} id */
  entry(id) {
    return this.overview.entries.find((/** @type {any} */ e) => e.id === id);
  }

  /** Open a view, at an entry and a detail where given. @param {string} id @param {...string} where */
  open(id, ...where) {
    this.isReady = false;
    this.view = this.viewOf(TABS.some((tab) => tab[0] === id) ? id : TABS[0][0]);
    for (const tab of this.tabs.children) {
      const isOn = /** @type {HTMLElement} */ (tab).dataset.view === this.view.id;
      tab.setAttribute("aria-selected", String(isOn));
      /** @type {HTMLElement} */ (tab).tabIndex = isOn ? 0 : -1;
    }
    this.panel.setAttribute("aria-labelledby", `${this.id}-${this.view.id}`);
    this.view.open(...where);
    // Taken out and put back it would lose where it was scrolled to.
    if (this.view.el.parentElement !== this.panel) this.panel.replaceChildren(this.view.el);
    this.toggleHelp(false);
    this.view.draw();
    this.isReady = true;
    this.note();
  }

  /** Open a place as `place` names it. @param {string} target */
  goTo(target) {
    const [view, ...where] = target.split("|");
    this.open(view, ...where);
  }

  /** What is in hand, as the views' `open` takes it: "guards|0/1|guard=3". */
  get place() {
    return [this.view.id, ...(this.view.where?.() ?? [])].join("|");
  }

  /** Say what just happened, in words: the moment at which a new place is noted. @param {...any} words */
  say(...words) {
    put(this.sentence, ...words);
    this.note();
  }

  note() {
    if (!this.isReady || this.isWalking || this.place === this.trail.here) return;
    this.trail.add(this.place);
    this.keep();
  }

  /** Keep the place with the widget, so that it opens there again: once it rests, for each message takes the kernel's time. */
  keep() {
    clearTimeout(this.resting);
    this.resting = window.setTimeout(() => {
      isOwn = true;
      try {
        this.model.set?.("view", this.place);
        this.model.save_changes?.();
      } catch {
        // A kernel that is gone keeps nothing.
      } finally {
        isOwn = false;
      }
    }, REST_MS);
  }

  /** @param {1 | -1} step */
  walk(step) {
    const place = this.trail.go(step);
    if (place === undefined) return this.say(step < 0 ? "This is where the history begins." : "This is the newest selection.");
    this.isWalking = true;
    this.goTo(place);
    this.keep();
  }

  /** Copy what this view shows, as text. */
  async copy() {
    const text = this.view.text?.() || shownText(this.view.el);
    const isDone = await copyText(text + "\n", this.root);
    this.say(isDone ? `Copied ${plural(text.split("\n").length, "line")} as text.` : "The browser does not let this page copy: select the text by hand.");
  }

  async copyLink() {
    const link = this.model.link?.(this.place);
    if (!link) return this.say("Only an exported page has links: %%compile --save page.html makes one.");
    this.say((await copyText(link, this.root)) ? h("span", {}, "Copied the link ", h("code", {}, link)) : h("span", {}, "The link is ", h("code", {}, link)));
  }

  /** Take the keyboard, without scrolling the page. */
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
      // A comma stays with the button before it.
      if (comma && !i.target && last?.tagName === "BUTTON") line.splice(-1, 1, h("span", { class: "nw" }, last, comma[0]), item({ ...i, text: i.text.slice(comma[0].length) }));
      else line.push(item(i));
    }
    put(
      this.summary,
      h("p", {}, line, summary.progress ? h("span", { class: "mut" }, ` · at work: ${summary.progress} …`) : null),
      [...summary.remedies, ...summary.notes].map((/** @type {string} */ t) => h("p", { class: "mut" }, t)),
    );
  }

  /** @param {string} action */
  act(action) {
    const words = { verify: "Checking: the same kernels run in Triton's interpreter, in a process of their own, and are compared with ATen …", try: "Trying: the calls at issue run again, with each fix, in a process of their own …", measure: "Measuring each guard by itself …", "measure-kernels": "Timing each kernel on the GPU …", cancel: "Stopping: kernels that are finished stay." };
    this.say(words[/** @type {keyof typeof words} */ (action)] || action);
    this.send({ type: action });
  }

  /** @param {boolean} [isShown] */
  toggleHelp(isShown = this.help.hidden) {
    this.help.hidden = !isShown;
    const general = [["?", "show or hide this list"], ["1 … 9 0", "open a view"], [":", "find anything in this session; Ctrl K too"], [", .", "back and forth through what was selected, over all views"], ["y", "copy this view as text"], ["Esc", "give the keys back to the notebook"], ["Tab", "next control, as everywhere"]];
    const rows = [...this.view.keys.map((/** @type {any} */ k) => [k.shown, k.text]), ...general];
    put(this.help, h("dl", {}, rows.map(([keys, text]) => [h("dt", {}, keys.split(" ").map((/** @type {string} */ k) => [h("kbd", {}, k), " "])), h("dd", {}, text)])), this.wordList());
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const isFind = (e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === "k";
    if ((e.ctrlKey || e.metaKey || e.altKey) && !isFind) return;
    if (e.key !== "," && e.key !== ".") this.isWalking = false;
    const target = /** @type {HTMLElement} */ (e.target);
    const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
    if (isFind) this.finder.toggle(true);
    else if (e.key === "Escape") this.escape(isField);
    else if (isField || ((target.tagName === "BUTTON" || target.tagName === "SUMMARY") && /^(Enter| )$/.test(e.key))) return;
    else if (e.key === "?") this.toggleHelp();
    else if (e.key === ":") this.finder.toggle(true);
    else if (e.key === "," || e.key === ".") this.walk(e.key === "," ? -1 : 1);
    else if (e.key === "y") this.copy();
    else if (e.key === "Y") this.copyLink();
    else if (/^[0-9]$/.test(e.key)) this.open(TABS[(+e.key + 9) % 10][0]);
    else if (target.parentElement === this.tabs && /^Arrow(Left|Right)$/.test(e.key)) this.nextTab(e.key === "ArrowRight" ? 1 : -1);
    else if (!press(this.view.keys, e.key)) return;
    e.preventDefault();
    e.stopPropagation();
    if (!target.isConnected) this.focus();
  }

  /** What the field calls things in this view: the glossary's words for it. */
  wordList() {
    /** @type {[string, string][]} */
    const words = this.model.get("overview").words?.[this.view.id] ?? [];
    return words.length ? h("dl", { "aria-label": "Words" }, words.map(([word, text]) => [h("dt", {}, word), h("dd", {}, text)])) : null;
  }

  /** Close the list of keys, else leave the field, else give the keys back. @param {boolean} isField */
  escape(isField) {
    if (!this.help.hidden) return this.toggleHelp(false);
    if (!this.finder.el.hidden) return this.finder.toggle(false);
    if (isField) return this.focus();
    const active = /** @type {HTMLElement | null} */ (document.activeElement), cell = /** @type {HTMLElement | null} */ (this.root.closest(".jp-Cell[tabindex], .jp-Notebook"));
    if (active) active.blur();
    if (cell) cell.focus({ preventScroll: true });
    this.say("The keys are back with the notebook. Click or Tab here to take them again.");
  }

  /** @param {number} step */
  nextTab(step) {
    const at = (TABS.findIndex((tab) => tab[0] === this.view.id) + step + TABS.length) % TABS.length;
    this.open(TABS[at][0]);
    /** @type {HTMLElement} */ (this.tabs.children[at]).focus();
  }
}

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const frame = new Frame(model, el);
  return () => frame.close();
}

export default { render };
