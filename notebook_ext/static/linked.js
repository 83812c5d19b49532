// Linked view: selecting a row in one pane highlights the rows that it comes from and that come from it in all others.

import { LINKED, Links, placeOf, rowOf } from "./links.js";
import { ALL, PaneView } from "./pane.js";
import { badge, button, choice, entryName, h, hue, muted, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { nextHit } from "./shared/layout.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./links.js").Pane} Pane */
/** @typedef {import("./explorer.js").Frame} Frame */

const SLOTS = ["A", "B", "C", "D"];
const MACHINE = ["loop", "triton", "ttir", "ttgir", "llir", "ptx", "sass", "amdgcn", "llopt", "asm"];
/** Panes that the sentence does not count; the rail does. */
const UNTOLD = ["bytecode", "ttir", "ttgir", "llir", "llopt"];

/** Put a pane into a slot; a slot that showed this pane gets the replaced one. @param {Record<string, string>} slots @param {string} slot @param {string} id */
export function placed(slots, slot, id) {
  const other = Object.keys(slots).find((s) => slots[s] === id);
  return { ...slots, ...(other ? { [other]: slots[slot] } : {}), [slot]: id };
}

export class LinkedView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    /** @type {any} */
    this.part = null;
    /** @type {Links | null} */
    this.links = null;
    /** @type {Record<string, string>} */
    this.slots = { A: "source", B: "fx", C: "triton", D: "ptx" };
    /** Panes that the user put into slots. They stay for other entries; the model stores them for later runs. @type {Record<string, string>} */
    this.chosen = { ...(frame.model.get("pane_layout") || {}) };
    this.entry = "";
    this.target = "";
    this.kernel = ALL;
    this.library = false;
    this.isWrapped = false;
    this.cursor = { slot: "A", row: -1 };
    this.selected = -1;
    this.ordinal = -1;
    this.isNarrow = false;
    this.isPinned = false;
    this.level = new Uint8Array(0);
    this.wanted = null;
    this.rail = h("div", { class: "rail", role: "tablist", "aria-multiselectable": "true", "aria-label": "Stages, with the number of lines linked to the selection" });
    this.context = h("div", { class: "ctx" });
    this.views = Object.fromEntries(SLOTS.map((slot) => [slot, new PaneView(this, slot)]));
    this.grid = h("div", { class: "panes" }, SLOTS.map((slot) => this.views[slot].el));
    this.search = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "Search pane  /", "aria-label": "Search the current pane", onkeydown: (/** @type {KeyboardEvent} */ e) => e.key === "Enter" && this.find() }));
    this.blank = h("p", { class: "blank", hidden: true });
    this.el = h("div", { class: "linked" }, this.context, this.rail, this.grid, this.blank);
    this.keys = [
      key("ArrowDown ArrowUp", "next or previous line; all panes follow", (k) => this.move(k === "ArrowDown" ? 1 : -1)),
      key("PageDown PageUp", "next or previous page", (k) => this.move(k === "PageDown" ? 12 : -12)),
      key("Home End", "first or last line", (k) => this.move(k === "End" ? 1e9 : -1e9)),
      key("[ ]", "previous or next pane", (k) => this.turn(k === "]" ? 1 : -1)),
      key("ArrowLeft ArrowRight", "previous or next pane", (k) => this.turn(k === "ArrowRight" ? 1 : -1)),
      key("} {", "another stage in this pane", (k) => this.shift(k === "}" ? 1 : -1)),
      key("j k", "next or previous linked line of this pane", (k) => this.cycle(k === "j" ? 1 : -1)),
      key("Enter", "pin or unpin the selection", () => this.pin()),
      key("f", "show or hide library lines", () => this.toggleLibrary()),
      key("w", "wrap long lines, or not", () => this.toggleWrap()),
      key("/", "search this pane", () => this.search.focus()),
    ];
  }

  /** @param {string} id @returns {Pane | undefined} */
  pane(id) {
    return this.part.panes.find((/** @type {Pane} */ p) => p.id === id);
  }

  /** Open an entry, and within it a kernel, a source line or a row of a pane. @param {string} [entry] @param {string} [what] "kernel=k0", "line=12" or "at=triton:7" @param {string} [target] */
  open(entry, what, target) {
    if (target !== undefined) this.target = target;
    this.entry = entry || this.entry || this.frame.overview.start;
    this.wanted = what || null;
    if (what && what.startsWith("kernel=")) this.kernel = what.slice(7);
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.part && this.selected >= 0 ? [this.entry, `at=${this.slots[this.cursor.slot]}:${this.cursor.row}`] : [this.entry];
  }

  /** The current pane as text with line numbers. */
  text() {
    const { pane, texts, from, end } = this.views[this.cursor.slot];
    return this.part ? texts.slice(from, end).map((t, i) => (pane.heads.includes(from + i) ? t : `${String(pane.numbers ? pane.numbers[from + i] : from + i + 1).padStart(5)}  ${t}`)).join("\n") : "";
  }

  /** Put the cursor where "at=PANE:ROW" says; a pane that is not open opens in the right-hand slot. @param {string} at */
  to(at) {
    const [id, row] = at.split(":"), pane = this.pane(id);
    if (!pane || !(+row < pane.rows)) return;
    const slot = SLOTS.find((s) => this.slots[s] === id) || "D";
    this.slots[slot] = id;
    this.kernel = ALL;
    this.isPinned = false;
    this.cursor = { slot, row: +row };
    this.selected = this.rowNumber(slot, +row);
  }

  draw() {
    if (!this.frame.entry(this.entry)) this.entry = this.frame.overview.start;
    const key = `linked|${this.entry}|${this.target}`;
    const part = this.entry ? this.frame.part(key) : null;
    this.blank.hidden = Boolean(part);
    this.grid.hidden = this.rail.hidden = !part;
    if (!part) {
      this.blank.textContent = this.entry ? "Loading …" : "Nothing was compiled, so there is nothing to link. The summary gives the reason.";
      put(this.context);
      return this.frame.say(this.blank.textContent);
    }
    if (part !== this.part) this.take(part);
    else if (this.wanted && this.wanted.startsWith("line=")) {
      this.isPinned = false;
      this.cursor = { slot: "A", row: this.firstRow() };
      this.selected = this.rowNumber("A", this.cursor.row);
    }
    if (this.wanted && this.wanted.startsWith("at=")) this.to(this.wanted.slice(3));
    this.wanted = null;
    this.drawContext();
    for (const slot of SLOTS) this.views[slot].load();
    this.update();
  }

  /** Use new panes and keep the selection. @param {any} part */
  take(part) {
    const same = this.part && this.part.compilation === part.compilation;
    const place = same && this.cursor.row >= 0 ? placeOf(/** @type {Pane} */ (this.pane(this.slots[this.cursor.slot])), this.cursor.row) : null;
    const pinned = same && this.isPinned ? this.placeOfRow(this.selected) : null;
    this.part = part;
    this.links = new Links(part);
    if (!part.kernels.some((/** @type {any} */ k) => k.id === this.kernel)) this.kernel = ALL;
    if (!same) this.isPinned = false;
    const isGone = SLOTS.some((slot) => !this.pane(this.slots[slot]));
    for (const slot of SLOTS) if (!this.pane(this.slots[slot])) this.slots[slot] = "source";
    if (!same || isGone) this.arrange();
    if (place) this.cursor.row = rowOf(part.panes, place);
    else this.cursor = { slot: "A", row: this.firstRow() };
    this.selected = this.rowNumber(this.cursor.slot, this.cursor.row);
    if (pinned) this.selected = /** @type {Pane} */ (this.pane(pinned.pane)).first + rowOf(part.panes, pinned);
  }

  /** Choose the panes for this compilation. */
  arrange() {
    const low = ["asm", "amdgcn", "ptx", "decomposed", "aten"].find((id) => this.part.panes.some((/** @type {Pane} */ p) => p.id === id)) || "aten";
    const lowered = this.part.kernels.length > 0;
    const rest = /** @type {Pane} */ (this.pane("bytecode")).rows ? "bytecode" : "triton";
    this.slots = { A: "source", B: "fx", C: lowered ? "triton" : "aten", D: lowered ? low : rest };
    for (const slot of SLOTS) if (this.chosen[slot] && this.pane(this.chosen[slot])?.rows) this.slots = placed(this.slots, slot, this.chosen[slot]);
  }

  /** @param {number} row global */
  placeOfRow(row) {
    const pane = this.part.panes.find((/** @type {Pane} */ p) => row >= p.first && row < p.first + p.rows);
    return pane ? placeOf(pane, row - pane.first) : null;
  }

  /** First selected source row: the requested line, else that with most rows in the kernels, else the first that broke or raised. */
  firstRow() {
    const source = /** @type {Pane} */ (this.pane("source"));
    const line = this.wanted && this.wanted.startsWith("line=") ? this.wanted.slice(5) : "";
    const found = line ? (source.numbers || []).indexOf(line) : -1;
    if (line && !source.numbers) return +line - 1;
    if (found >= 0) return found;
    const busiest = /** @type {Links} */ (this.links).busiest();
    return busiest >= 0 ? busiest : Number(Object.keys(this.part.breaks)[0] || 0);
  }

  /** @param {string} slot @param {number} row */
  rowNumber(slot, row) {
    const pane = /** @type {Pane} */ (this.pane(this.slots[slot]));
    return row >= 0 && row < pane.rows ? pane.first + row : -1;
  }

  /** Lines of the pane; requests them if they have not arrived yet. @param {Pane} pane @returns {string[] | null} */
  linesOf(pane) {
    return this.part.texts[pane.id] || this.frame.part(`text|${this.entry}|${this.target}|${pane.id}`);
  }

  drawContext() {
    const entries = this.frame.overview.entries;
    const options = entries.map((/** @type {any} */ e) => [e.id, entryName(e)]);
    const kernels = [[ALL, this.part.kernels.length === 1 ? "1 kernel" : `all ${this.part.kernels.length} kernels`], ...this.part.kernels.map((/** @type {any} */ k) => [k.id, `${k.id}  ${k.name}`])];
    const run = this.frame.overview.device.startsWith("cuda") ? "" : ", not run here";
    put(
      this.context,
      choice("Function and cache entry", options, this.entry, (v) => this.frame.open("linked", v)),
      this.part.kernels.length ? choice("Kernel", kernels, this.kernel, (v) => this.useKernel(v)) : null,
      this.part.targets.length > 1 ? choice("Target", this.part.targets.map((/** @type {string} */ t) => [t, t === "cpu" ? "this CPU" : t]), this.part.target, (v) => this.useTarget(v)) : this.part.kernels.length ? muted(this.part.target ? this.part.target + run : "") : null,
      h("span", { class: "sp" }),
      button("◂ hit", "k", () => this.cycle(-1)),
      button("hit ▸", "j", () => this.cycle(1)),
      (this.libraryButton = button("Library lines", "f", () => this.toggleLibrary())),
      button("Wrap", "w", () => { this.toggleWrap(); this.frame.focus(); }, { "aria-pressed": String(this.isWrapped), title: "Wrap long lines. Key: w" }),
      (this.pinButton = button("Pin", "Enter", () => this.pin())),
      this.search,
    );
  }

  /** Show another target: the kernels for a GPU and those for the CPU have their own stages. @param {string} target */
  useTarget(target) {
    const wasCpu = this.part.target === "cpu";
    this.target = target === this.part.targets[0] ? "" : target;
    if (wasCpu !== (target === "cpu")) this.kernel = ALL;
    this.draw();
    this.frame.focus();
  }

  /** @param {string} kernel */
  useKernel(kernel) {
    this.kernel = kernel;
    for (const slot of SLOTS) this.views[slot].load();
    const pane = this.views[this.cursor.slot];
    if (this.cursor.row < pane.from || this.cursor.row >= pane.end) this.cursor.row = pane.from;
    this.update();
  }

  /** Select a row of a slot. @param {string} slot @param {number} row */
  choose(slot, row) {
    const view = this.views[slot];
    this.cursor = { slot, row: Math.max(view.from, Math.min(view.end - 1, row)) };
    if (!this.isPinned) this.selected = this.rowNumber(slot, this.cursor.row);
    this.update();
    this.frame.focus();
  }

  /** @param {number} by rows; headings are skipped */
  move(by) {
    if (!this.part) return;
    const { slot } = this.cursor, pane = this.views[slot].pane;
    const { from, end } = this.views[slot];
    let row = Math.max(from, Math.min(end - 1, this.cursor.row + by));
    const step = by > 0 ? 1 : -1;
    while (pane.heads.includes(row) && row + step >= from && row + step < end) row += step;
    this.choose(slot, row);
  }

  /** Go to the next open pane, onto its first linked row. @param {number} step */
  turn(step) {
    if (!this.part) return;
    const slot = SLOTS[(SLOTS.indexOf(this.cursor.slot) + step + SLOTS.length) % SLOTS.length];
    this.enter(slot);
  }

  /** Make a slot current. The selection stays until the next move. @param {string} slot */
  enter(slot) {
    const hits = this.visibleHits(slot);
    this.cursor = { slot, row: hits.length ? hits[0] : this.views[slot].from };
    this.update();
  }

  /** @param {string} slot */
  visibleHits(slot) {
    const view = this.views[slot];
    return this.hits(view.pane).filter((r) => r >= view.from && r < view.end);
  }

  /** @param {1 | -1} step */
  cycle(step) {
    if (!this.part) return;
    const row = nextHit(this.visibleHits(this.cursor.slot), this.cursor.row, step);
    if (row < 0) return this.frame.say("No match in " + this.views[this.cursor.slot].pane.title + ".");
    this.cursor.row = row;
    this.update();
  }

  pin() {
    if (!this.part) return;
    this.isPinned = !this.isPinned;
    if (!this.isPinned) this.selected = this.rowNumber(this.cursor.slot, this.cursor.row);
    this.update();
  }

  toggleLibrary() {
    this.library = !this.library;
    if (!this.part) return;
    if (this.isWrapped) for (const slot of SLOTS) this.views[slot].load();
    this.update();
  }

  toggleWrap() {
    this.isWrapped = !this.isWrapped;
    this.grid.classList.toggle("wrap", this.isWrapped);
    if (!this.part) return;
    this.drawContext();
    for (const slot of SLOTS) this.views[slot].load();
    this.update();
    this.frame.say(this.isWrapped ? "Long lines are wrapped. w shows each in one line again." : "Each line is in one row.");
  }

  find() {
    const wanted = this.search.value.toLowerCase(), view = this.views[this.cursor.slot];
    const count = view.end - view.from;
    for (let i = 1; wanted && i <= count; i++) {
      const row = view.from + ((this.cursor.row - view.from + i) % count);
      if ((view.texts[row] || "").toLowerCase().includes(wanted)) {
        const field = this.search;
        this.choose(this.cursor.slot, row);
        return field.focus();
      }
    }
    this.frame.say("No match for ", h("code", {}, this.search.value), " in " + view.pane.title + ".");
  }

  /** Go to an open pane, or open the pane in the right-hand slot. @param {string} id */
  show(id) {
    const slot = SLOTS.find((s) => this.slots[s] === id);
    if (slot) this.enter(slot);
    else this.place("D", id);
  }

  /** Show the next or previous stage in the current slot. @param {1 | -1} step */
  shift(step) {
    if (!this.part) return;
    const all = this.part.panes.filter((/** @type {Pane} */ p) => p.rows).map((/** @type {Pane} */ p) => p.id);
    const { slot } = this.cursor, at = all.indexOf(this.slots[slot]);
    this.place(slot, all[(at + step + all.length) % all.length]);
  }

  /** Put a pane into a slot and store the choice for other entries and later runs. @param {string} slot @param {string} id */
  place(slot, id) {
    this.slots = placed(this.slots, slot, id);
    this.chosen = { ...this.slots };
    for (const s of SLOTS) if (this.views[s].shown !== this.slots[s]) this.views[s].load();
    this.enter(slot);
    try {
      this.frame.model.set?.("pane_layout", this.chosen);
      this.frame.model.save_changes?.();
    } catch {
      // The kernel is gone: the choice cannot be stored.
    }
  }

  /** @param {Pane} pane */
  hits(pane) {
    return this.selected < 0 ? [] : /** @type {Links} */ (this.links).hits(pane, this.level);
  }

  /** The reason why a pane has no linked row. @param {Pane} pane */
  whyNone(pane) {
    const links = /** @type {Links} */ (this.links);
    if (this.ordinal < 0) return "";
    const fate = this.fate();
    const below = MACHINE.includes(pane.id);
    if (below && fate) return fate;
    if (this.ordinal === 0 && !below) return this.label() || "generated by the compiler";
    if (pane.empty) return "";
    return links.panes.indexOf(pane) && below ? "not in any kernel" : "not in this pane";
  }

  /** The reason why an ATen node of the selection has no kernel. */
  fate() {
    for (const [row, text] of Object.entries(this.part.fates)) if (this.level[+row] === LINKED) return this.part.strings[/** @type {number} */ (text)];
    return "";
  }

  label() {
    return this.part.strings[this.part.labels[this.selected]] || "";
  }

  /** Highlight the selection in all panes. */
  update() {
    const links = /** @type {Links} */ (this.links);
    const own = this.selected >= 0 ? links.panes[links.paneOf[this.selected]] : null;
    this.level = this.selected >= 0 ? links.select(this.selected) : new Uint8Array(links.count);
    this.ordinal = this.selected >= 0 ? links.ordinal[this.selected] : -1;
    this.isNarrow = Boolean(own && own.id !== "source" && own.id !== "bytecode");
    for (const slot of SLOTS) this.views[slot].update();
    this.drawRail();
    const b = /** @type {HTMLElement} */ (this.pinButton), l = /** @type {HTMLElement} */ (this.libraryButton);
    b.textContent = this.isPinned ? "Unpin" : "Pin";
    b.setAttribute("aria-pressed", String(this.isPinned));
    l.setAttribute("aria-pressed", String(this.library));
    this.frame.say(...this.sentence(own));
    for (const slot of SLOTS) this.views[slot].rows.scroll();
  }

  drawRail() {
    const open = Object.values(this.slots);
    put(
      this.rail,
      this.part.panes.map((/** @type {Pane} */ p) => {
        const hits = this.hits(p).length, on = open.includes(p.id);
        const slot = SLOTS.find((s) => this.slots[s] === p.id);
        return h(
          "button",
          { type: "button", role: "tab", "aria-selected": String(on), "aria-controls": slot ? this.views[slot].el.id : null, "data-pane": p.id, title: p.empty || p.note || null, onclick: () => { this.show(p.id); this.frame.focus(); } },
          p.title,
          h("i", { class: hits ? "hit " + hue(this.ordinal) : "" }, `${hits || "–"} / ${p.rows ? p.lines : "–"}`),
        );
      }),
    );
  }

  /** The chain from source line to machine code as a sentence. @param {Pane | null} own */
  sentence(own) {
    if (!own) return [muted("Click a line, or move with the arrow keys: all panes show the linked lines.")];
    const at = this.selected - own.first, text = (this.linesOf(own) || [])[at] || "";
    const number = own.numbers ? own.numbers[at] : String(at + 1);
    const name = own.id === "source" ? (number ? "Line " + number : "Module") : `${own.title} ${number}`;
    const head = [badge(this.ordinal), " ", h("b", {}, name), " ", h("code", {}, text.trim().slice(0, 120))];
    const broken = own.id === "source" && this.part.breaks[at] ? [` ${this.part.breaks[at]}.`] : [];
    if (this.ordinal < 0) return [...head, muted(own.id === "source" ? ` No operation of this entry comes from this line.${broken.length ? "" : " Lines with a numbered badge have some."}` : " No origin was recorded for this line."), ...broken];
    /** @type {Pane[]} */
    const told = this.part.panes.filter((/** @type {Pane} */ p) => p !== own && !UNTOLD.includes(p.id));
    const steps = told.flatMap((p) => {
      const count = this.hits(p).length;
      return !count ? [] : p.id === "source" ? [this.lineWords()] : [`${count} ${p.title}`];
    });
    const made = this.ordinal === 0 ? [` No user line: ${this.label() || "generated by the compiler"}.`] : [];
    const chain = steps.length ? [" → " + steps.join(" → ")] : [];
    const fate = this.fate();
    const lowest = this.part.panes.findLast((/** @type {Pane} */ p) => p.note && MACHINE.includes(p.id)), aten = this.pane("aten");
    const library = this.part.library[this.selected];
    return [
      ...head, ...chain, chain.length ? "." : "", ...made, ...broken,
      fate ? ` ${fate[0].toUpperCase()}${fate.slice(1)}.` : "",
      library !== undefined ? ` Inlined through ${this.part.strings[library]}.` : "",
      this.isPinned ? " Pinned." : "",
      aten && aten.note ? muted(` ${aten.note[0].toUpperCase()}${aten.note.slice(1)}.`) : null,
      lowest ? muted(` ${lowest.title}: ${lowest.note}.`) : "",
    ];
  }

  /** The linked source lines by number. */
  lineWords() {
    const source = /** @type {Pane} */ (this.pane("source"));
    const lines = this.hits(source).map((r) => (source.numbers ? source.numbers[r] : String(r + 1))), names = (this.linesOf(source) || []).map((t) => t.split("  ")[0]);
    const modules = this.hits(source).filter((r, i) => !lines[i] && !source.heads.includes(r)).map((r) => names[r]);
    if (modules.length) return modules.length > 3 ? plural(modules.length, "module") : (modules.length === 1 ? "module " : "modules ") + modules.join(", ");
    return lines.length > 4 ? plural(lines.length, "line") : (lines.length === 1 ? "line " : "lines ") + lines.join(", ");
  }
}

VIEWS.set("linked", LinkedView);
