// Compare: two cache entries of one session or of two, side by side: a summary, then the text of each stage line by line.

import { changeStarts, changedColumns, folded, isEqual, sideBySide } from "./diff.js";
import { button, choice, entryName, h, muted, mutedLine, plural, put } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { Rows } from "./shared/rows.js";
import { marked, tokens } from "./shared/tokens.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */
/** @typedef {import("./diff.js").Row} Row */

const SUMMARY = "summary";
const MARKS = { same: [" ", " "], renamed: [" ", " "], changed: ["~", "~"], left: ["−", ""], right: ["", "+"] };
/** A line whose first change is beyond this column is shown from shortly before the change. */
const FAR = 56;

class CompareView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    /** Left and right side: [session, entry, target]; session "" is the displayed one. */
    this.sides = [["", "", ""], ["", "", ""]];
    this.what = SUMMARY;
    this.kernel = "";
    this.isWhole = false;
    this.at = 0;
    /** Index of the selected function in a comparison of two sessions. */
    this.row = 0;
    /** @type {(Row | number)[]} */
    this.shown = [];
    /** @type {string[][]} */
    this.texts = [[], []];
    this.language = "";
    this.made = "";
    this.context = h("div", { class: "ctx wrap" });
    this.heads = h("div", { class: "dhead" });
    this.rows = new Rows((i) => this.#row(i), { role: "list", "aria-label": "Lines of both, side by side", tabindex: "0" });
    this.summary = h("div", { class: "scr pad tall", tabindex: "0", role: "group", "aria-label": "Summary of the differences" });
    this.lines = h("div", { class: "dbox" }, this.heads, this.rows.el);
    this.el = h("div", { class: "compare" }, this.context, this.lines, this.summary);
    this.keys = [
      key("j k", "next or previous change", (k) => this.go(k === "j" ? 1 : -1)),
      key("ArrowDown ArrowUp", "next or previous change; in the summary, next or previous function", (k) => this.go(k === "ArrowDown" ? 1 : -1)),
      key("] [", "next or previous text: summary, guards, graphs, kernels …", (k) => this.turn(k === "]" ? 1 : -1)),
      key("a", "all lines, or only changes", () => this.toggle()),
      key("x", "swap left and right", () => { this.sides.reverse(); this.draw(); }),
      key("Enter", "compare the selected function, or show its line in the linked view", () => this.link()),
    ];
  }

  /** @param {string} [left] "SESSION~ENTRY~TARGET" @param {string} [right] @param {string} [what] a text's name @param {string} [kernel] */
  open(left, right, what, kernel) {
    if (left && right) this.sides = [left, right].map((side) => [...side.split("~"), "", ""].slice(0, 3));
    if (left && right) this.what = what || SUMMARY;
    if (left && right) this.kernel = kernel || "";
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.sides[0][1] ? [...this.sides.map((side) => side.join("~")), this.what, ...(this.kernel ? [this.kernel] : [])] : [];
  }

  /** The lines of both sides as a patch, or the summary as text. */
  text() {
    if (this.what === SUMMARY) return "";
    const line = (/** @type {string} */ sign, /** @type {number} */ side, /** @type {number} */ i) => (i < 0 ? [] : [sign + this.texts[side][i]]);
    return this.shown.flatMap((row) => (typeof row === "number" ? [`@ ${plural(row, "equal line")}`] : isEqual(row) ? line("  ", 1, row.b) : [...line("- ", 0, row.a), ...line("+ ", 1, row.b)])).join("\n");
  }

  /** The sessions that can be chosen from. @returns {{id: string, name: string, entries: any[]}[]} */
  get sessions() {
    const { overview } = this.frame;
    return [{ id: "", name: overview.name || "this session", entries: overview.entries }, ...(overview.others || []).map((/** @type {any} */ o, /** @type {number} */ i) => ({ id: String(i), ...o }))];
  }

  /** @param {string[]} side @param {string} key */
  part([session], key) {
    return this.frame.part(session ? `other|${session}|${key}` : key);
  }

  /** The target of a side as parts name it: empty for an entry's first. @param {string[]} side */
  targetKey([session, id, target]) {
    const entry = this.sessions.flatMap((s) => (s.id === session ? s.entries : [])).find((e) => e.id === id);
    return entry && entry.targets[0] === target ? "" : target;
  }

  /** All choices for one side, with their names. @returns {[string, string][]} */
  choices() {
    const { sessions } = this;
    return sessions.flatMap((s) => s.entries.flatMap((e) => (e.targets.length > 1 ? e.targets : [""]).map((/** @type {string} */ t) => /** @type {[string, string]} */ ([[s.id, e.id, t].join("~"), [sessions.length > 1 ? s.name : "", entryName(e, t === "cpu" ? "this CPU" : t)].filter(Boolean).join(" · ")]))));
  }

  /** One side: the wanted target if the entry has it, else its first. @param {string} session @param {any} entry @param {string} [target] @returns {string[]} */
  side(session, entry, target = "") {
    const { targets } = entry;
    return [session, entry.id, targets.length < 2 ? "" : targets.includes(target) ? target : targets[0]];
  }

  /** A side that exists, of a session by its id or name; null if there is none. @param {string[]} side */
  valid([session, id, target]) {
    const of = this.sessions.find((s) => s.id === session || s.name === session), entry = of?.entries.find((e) => e.id === id);
    return of && entry ? this.side(of.id, entry, target) : null;
  }

  /** Choose valid sides. Default: two runs of one function, two entries of it, or two targets. */
  settle() {
    const [left, right] = this.sides.map((s) => this.valid(s)), { sessions } = this, [{ entries }] = sessions;
    if (left && right && left.join() !== right.join()) {
      this.sides = [left, right];
      return true;
    }
    if (sessions.length > 1) {
      const other = sessions[1].entries;
      const [before, after] = entries.flatMap((e) => other.filter((/** @type {any} */ o) => o.name === e.name).map((/** @type {any} */ o) => [o, e]))[0] || [other[0], entries[0]];
      if (!before || !after) return false;
      this.sides = [this.side(sessions[1].id, before), this.side("", after)];
      return true;
    }
    const two = entries.map((e) => entries.filter((o) => o.frame === e.frame)).find((list) => list.length > 1);
    const wide = entries.find((e) => e.targets.length > 1);
    if (!two && !wide && entries.length < 2) return false;
    this.sides = !two && wide ? wide.targets.slice(0, 2).map((/** @type {string} */ t) => ["", wide.id, t]) : (two || entries).slice(0, 2).map((e) => this.side("", e));
    return true;
  }

  draw() {
    if (!this.settle()) {
      put(this.context);
      this.lines.hidden = true;
      this.summary.hidden = false;
      put(this.summary, h("p", {}, "There is only one cache entry, so nothing to compare it with."), mutedLine("Run the cell again to compare with this run, use %%compile --compare for stock torch.compile, or %explore A B for two sessions."));
      return this.frame.say("Nothing to compare yet.");
    }
    const [left, right] = this.sides;
    const briefs = this.sides.map((side) => this.part(side, `brief|${side[1]}`));
    const linked = this.sides.map((side) => this.part(side, `linked|${side[1]}|${this.targetKey(side)}`));
    const isReady = briefs.every(Boolean) && linked.every(Boolean);
    const options = isReady ? this.options(linked) : /** @type {[string, string][]} */ ([[this.what, "…"]]);
    if (isReady && !options.some(([id]) => id === this.what)) this.what = SUMMARY;
    const pick = (/** @type {number} */ i) => choice(i ? "Right" : "Left", this.choices(), this.sides[i].join("~"), (v) => { this.sides[i] = v.split("~"); this.frame.focus(); this.draw(); });
    const kernels = isReady && this.hasKernels(linked) ? [...new Set(linked.flatMap((l) => l.kernels.map((/** @type {any} */ k) => k.id)))] : [];
    put(
      this.context,
      pick(0), button("⇄", "x", () => { this.sides.reverse(); this.draw(); }, { "aria-label": "Swap left and right" }), pick(1),
      choice("Text", options, this.what, (v) => { this.what = v; this.frame.focus(); this.draw(); }),
      kernels.length > 1 ? choice("Kernel", [["", "all kernels"], ...kernels.map((/** @type {string} */ k) => /** @type {[string, string]} */ ([k, k]))], this.kernel, (v) => { this.kernel = v; this.frame.focus(); this.draw(); }) : null,
      h("span", { class: "sp" }),
      button("◂ change", "k", () => this.go(-1)), button("change ▸", "j", () => this.go(1)),
      this.what === SUMMARY ? null : button("All lines", "a", () => this.toggle(), { "aria-pressed": String(this.isWhole) }),
    );
    this.lines.hidden = !isReady || this.what === SUMMARY;
    this.summary.hidden = isReady && this.what !== SUMMARY;
    if (!isReady) return put(this.summary, mutedLine("Loading …"));
    if (this.what === SUMMARY) return this.drawSummary(briefs);
    const texts = this.sides.map((side, i) => this.linesOf(side, linked[i], briefs[i]));
    if (!texts.every(Boolean)) {
      this.rows.reset(0);
      return this.frame.say("Loading …");
    }
    this.texts = /** @type {string[][]} */ (texts);
    const pane = linked.flatMap((l) => l.panes).find((/** @type {any} */ p) => p.id === this.what);
    this.language = pane ? pane.language : "";
    const made = [left, right, this.what, this.kernel, this.isWhole].join("|") + this.texts.map((t) => t.length);
    if (made !== this.made) {
      const rows = sideBySide(this.texts[0], this.texts[1]);
      this.shown = this.isWhole ? rows : folded(rows);
      this.at = 0;
      this.made = made;
      this.counts = ["changed", "left", "right", "renamed"].map((kind) => rows.filter((r) => r.kind === kind).length);
    }
    const names = new Map(this.choices());
    put(this.heads, this.sides.map((side, i) => h("b", { title: names.get(side.join("~")) || null }, names.get(side.join("~")), muted("  " + plural(this.texts[i].length, "line")))));
    this.rows.reset(this.shown.length);
    this.tell();
  }

  /** The texts that at least one side has, by name. @param {any[]} linked @returns {[string, string][]} */
  options(linked) {
    /** @type {Map<string, string>} */
    const panes = new Map();
    for (const { id, title } of linked.flatMap((l) => l.panes.filter((/** @type {any} */ p) => p.rows))) {
      const other = panes.get(id);
      panes.set(id, other && other !== title ? `${other} / ${title}` : title); // A kernel's text is Triton on one side, LLVM IR on the other.
    }
    return [[SUMMARY, "Summary"], ["guards", "Guards"], ["resources", "Kernel resources"], ...panes];
  }

  /** @param {any[]} linked */
  hasKernels(linked) {
    return linked.some((l) => l.panes.some((/** @type {any} */ p) => p.id === this.what && p.segments.length > 1));
  }

  /** The lines of one side; null until they arrive. @param {string[]} side @param {any} linked @param {any} brief @returns {string[] | null} */
  linesOf(side, linked, brief) {
    if (this.what === "guards") return brief.guards;
    if (this.what === "resources") return brief.kernels[linked.target] || brief.kernels[""] || [];
    const pane = linked.panes.find((/** @type {any} */ p) => p.id === this.what);
    if (!pane || !pane.rows) return [];
    const lines = linked.texts[pane.id] || this.part(side, `text|${side[1]}|${this.targetKey(side)}|${pane.id}`);
    const segment = pane.segments.find((/** @type {any[]} */ s) => s[0] === this.kernel);
    return lines && this.kernel && pane.segments.length ? (segment ? lines.slice(segment[1], segment[2]) : []) : lines;
  }

  /** @param {any[]} briefs */
  drawSummary(briefs) {
    const names = new Map(this.choices());
    const [left, right] = briefs.map((brief, i) => new Map([...brief.facts, ...(brief.programs[this.sides[i][2]] || Object.values(brief.programs)[0])].map(([name, ...fact]) => [name, fact])));
    const table = [...new Set([...left.keys(), ...right.keys()])].map((name) => [name, ...[left, right].map((facts) => facts.get(name) || ["", ""])]);
    this.differing = table.filter(([, a, b]) => a.join() !== b.join());
    put(
      this.summary,
      this.#functions(),
      h("table", { class: "t facts" },
        h("thead", {}, h("tr", {}, h("th", {}, "Entry"), this.sides.map((side) => h("th", {}, names.get(side.join("~")))))),
        h("tbody", {}, table.map(([name, a, b]) => h("tr", { class: a.join() === b.join() ? "eq" : "" }, h("td", { class: "mut" }, name), h("td", {}, a[0] || "–"), h("td", { class: a.join() === b.join() ? "" : "new" }, a.join() === b.join() ? "=" : a[0] === b[0] ? `${b[0]} ≠` : b[0] || "–"))))),
    );
    this.tellSummary();
  }

  /** The changes of each function, if the sides belong to two sessions. */
  #functions() {
    const found = this.difference();
    if (found === null) return null;
    if (!found) return mutedLine("Loading …");
    this.row = Math.max(0, Math.min(found.frames.length - 1, this.row));
    const whats = found.whole.map((/** @type {any} */ c) => c.what), row = found.frames[this.row];
    const cell = (/** @type {any} */ c) => (c.first === c.second ? h("td", { class: c.is_same ? "mut" : "new" }, c.is_same ? c.first || "–" : `${c.first} ≠`) : h("td", { class: "new" }, `${c.first} → ${c.second}`));
    return [
      h("p", {}, h("b", {}, found.headline)),
      h("table", { class: "t", role: "grid", "aria-label": "Functions" },
        h("thead", {}, h("tr", {}, ["Function", ...whats].map((t) => h("th", {}, t)))),
        h("tbody", {}, found.frames.map((/** @type {any} */ f, /** @type {number} */ i) => h("tr", { class: i === this.row ? "sel" : "", "aria-selected": String(i === this.row), onclick: () => { this.row = i; this.draw(); this.frame.focus(); } },
          h("td", {}, h("b", {}, f.name), muted(` ${f.place} · ${f.verdict}`)), f.only ? h("td", { class: "new", colspan: whats.length }, `only in ${f.only}`) : f.changes.map(cell))))),
      row ? this.#changes(row) : null,
    ];
  }

  /** @param {any} row */
  #changes(row) {
    const lines = row.changes.filter((/** @type {any} */ c) => c.only_first.length || c.only_second.length);
    return h("div", { class: "changes" },
      lines.map((/** @type {any} */ c) => [h("h4", {}, `${c.what} of ${row.name}`), h("ul", { class: "patch" }, c.only_first.map((/** @type {string} */ t) => h("li", { class: "bad" }, "− ", h("code", {}, t))), c.only_second.map((/** @type {string} */ t) => h("li", { class: "ok" }, "+ ", h("code", {}, t))))]),
      row.first.length && row.second.length ? button("Compare its entries", "Enter", () => this.pair(row)) : null);
  }

  /** The comparison of the two sessions; null if both sides belong to one, undefined until it arrives. */
  difference() {
    const [[left], [right]] = this.sides;
    if (left === right) return null;
    return this.frame.part(`difference|${left}|${right}`) || undefined;
  }

  /** Put a function's first entries side by side. @param {any} row */
  pair(row) {
    this.sides = this.sides.map(([session, , target], i) => [session, (i ? row.second : row.first)[0], target]);
    this.what = row.changes.some((/** @type {any} */ c) => c.what === "graphs" && !c.is_same) ? "fx" : "guards";
    this.draw();
  }

  /** @param {number} step */
  go(step) {
    if (this.what === SUMMARY) {
      this.row += step;
      return this.draw();
    }
    const starts = changeStarts(this.shown);
    const next = step > 0 ? starts.find((i) => i > this.at) : starts.findLast((i) => i < this.at);
    if (next === undefined) return this.frame.say(starts.length ? (step > 0 ? "That was the last change." : "That was the first change.") : "The two are equal here.");
    this.at = next;
    this.rows.redraw();
    this.tell();
  }

  /** @param {number} step */
  turn(step) {
    const select = /** @type {HTMLSelectElement | null} */ (this.context.querySelector('select[aria-label="Text"]'));
    if (!select) return;
    this.what = select.options[(select.selectedIndex + step + select.options.length) % select.options.length].value;
    this.draw();
  }

  toggle() {
    this.isWhole = !this.isWhole;
    this.draw();
  }

  link() {
    const found = this.what === SUMMARY && this.difference();
    if (found && found.frames[this.row]?.first.length && found.frames[this.row]?.second.length) return this.pair(found.frames[this.row]);
    const side = this.sides.find(([session]) => !session);
    if (side) this.frame.open("linked", side[1]);
    else this.frame.say("Neither side belongs to this session.");
  }

  /** @param {number} i */
  #row(i) {
    const row = this.shown[i];
    if (typeof row === "number") return h("div", { class: "dr fold", role: "listitem" }, `⋯ ${plural(row, "equal line")}`);
    const lines = [row.a < 0 ? "" : this.texts[0][row.a], row.b < 0 ? "" : this.texts[1][row.b]];
    const [from, ...ends] = row.kind === "changed" ? changedColumns(lines[0], lines[1]) : [0, 0, 0];
    const cut = from > FAR ? from - 24 : 0;
    const half = (/** @type {number} */ side) => {
      const number = side ? row.b : row.a, text = lines[side].slice(cut);
      const runs = marked(tokens(text, this.language), from - cut, ends[side] - cut);
      return h("span", { class: "dh" + (number < 0 ? " none" : isEqual(row) ? "" : side ? " in" : " out"), title: text.length > 60 ? lines[side].slice(0, 600) : null },
        h("i", {}, number < 0 ? "" : number + 1), h("i", { class: "sg" }, MARKS[row.kind][side]),
        h("span", {}, cut ? "… " : "", runs.map(([kind, t, on]) => (on ? h("mark", { class: kind }, t) : kind ? h("span", { class: kind }, t) : t))));
    };
    return h("div", { class: "dr" + (i === this.at && !isEqual(row) ? " at" : ""), role: "listitem", onclick: () => { this.at = i; this.rows.redraw(); this.tell(); this.frame.focus(); } }, half(0), half(1));
  }

  tell() {
    const starts = changeStarts(this.shown), [changed, left, right, renamed] = this.counts || [0, 0, 0, 0];
    if (!starts.length) return this.frame.say(h("b", {}, "Equal: "), this.texts[0].length ? `${plural(this.texts[0].length, "line")}, the same on both sides${renamed ? `, but for the numbers of names in ${renamed}` : ""}.` : "neither side has this text.");
    if (this.at < starts[0]) this.at = starts[0];
    const row = this.shown[this.at], number = starts.filter((i) => i <= this.at).length;
    this.rows.show(this.at, 100);
    this.rows.redraw();
    const told = typeof row === "object" ? [row.a >= 0 ? ["left line ", String(row.a + 1), " ", h("code", {}, this.texts[0][row.a].trim().slice(0, 200))] : null, row.a >= 0 && row.b >= 0 ? " became " : null, row.b >= 0 ? ["right line ", String(row.b + 1), " ", h("code", {}, this.texts[1][row.b].trim().slice(0, 200))] : null] : [];
    this.frame.say(`Change ${number} of ${starts.length}: `, told, ". ", muted(`In all: ${plural(changed, "line")} changed, ${left} only left, ${right} only right${renamed ? `; ${renamed} differ only in the numbers of names` : ""}.`));
  }

  tellSummary() {
    const found = this.difference();
    if (found) {
      const row = found.frames[this.row];
      return this.frame.say(found.headline, " ", row ? muted(`Selected: ${row.name}${row.only ? `, only in ${row.only}` : row.changes.some((/** @type {any} */ c) => !c.is_same) ? ", differs in " + row.changes.filter((/** @type {any} */ c) => !c.is_same).map((/** @type {any} */ c) => c.what).join(", ") : ", equal"}.`) : null);
    }
    // Times differ between any two runs, and the cause has a row of its own.
    const names = (this.differing || []).map(([name]) => (/^[A-Z]{2}/.test(name) ? name : name.toLowerCase())).filter((name) => !name.startsWith("time: ") && name !== "compile time" && name !== "compiled because");
    this.frame.say(names.length ? `The two entries differ in ${names.join(", ")}. ` : "The two entries do not differ here. ", muted("Key ]: guards, graphs and kernels line by line."));
  }
}

VIEWS.set("compare", CompareView);
