// AOT wrappers: the runtime wrappers around the functional graph, and the path of one call through them.

import { badge, button, choice, entryName, h, muted, mutedLine, plural, put, sentence, wordBreaks } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const STEP_MS = 1200;
/** Maximum number of value chips; the rest is counted. */
const MAX_CHIPS = 10;
const PARTITION_COLORS = ["o1", "o3", "o0"];

class AotWrappersView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.entry = "";
    this.at = 0;
    /** @type {any} */
    this.part = null;
    this.timer = 0;
    /** Index of the recorded call whose values are shown. */
    this.passage = 0;
    /** The call whose input shapes are shown; -1 for the inputs of the compilation. */
    this.call = -1;
    /** Number of recorded calls at the time of the last replay request. @type {number | undefined} */
    this.noted = undefined;
    this.context = h("div", { class: "ctx" });
    this.counter = h("code");
    this.play = button("▶ Play", "p", () => this.toggle());
    this.body = h("div", { class: "scr pad", tabindex: "0", role: "group", "aria-label": "Runtime wrappers around the graph" });
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "Values at this step" });
    this.el = h("div", { class: "aot" }, this.context, h("div", { class: "two" }, this.body, this.side));
    this.keys = [
      key("ArrowRight ArrowLeft", "next or previous step of the call", (k) => { this.stop(); this.go(this.at + (k === "ArrowRight" ? 1 : -1)); }),
      key("p", "play the steps, or stop", () => this.toggle()),
      key("Home End", "first or last step", (k) => { this.stop(); this.go(k === "Home" ? 0 : Infinity); }),
      key("c", "values at each wrapper: replay the call on copies", () => this.note()),
      key("Enter", "open the graph", () => this.graph()),
    ];
  }

  /** The current selection, as arguments of `open`. */
  where() {
    return this.part ? [this.entry, "step=" + (this.at + 1)] : [this.entry];
  }

  /** @param {string} [entry] @param {string} [what] "step=3" */
  open(entry, what) {
    if (entry && entry !== this.entry) {
      this.entry = entry;
      this.at = 0;
      this.call = -1;
    }
    if (what && what.startsWith("step=")) this.at = +what.slice(5) - 1;
  }

  draw() {
    const { entries, start } = this.frame.overview;
    if (!this.frame.entry(this.entry)) this.entry = start;
    const part = this.entry ? this.frame.part("aot|" + this.entry) : null;
    this.part = part && !part.empty ? part : null;
    if (this.part && this.call >= part.calls.length) this.call = -1;
    // Show the call that was just replayed.
    if (this.part && this.noted !== undefined && part.passages.length > this.noted) {
      this.passage = part.passages.length - 1;
      this.noted = undefined;
    }
    put(
      this.context,
      entries.length ? choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, entryName(e)]), this.entry, (v) => { this.stop(); this.entry = v; this.at = 0; this.call = -1; this.frame.focus(); this.draw(); }) : null,
      this.part && part.calls.length ? choice("Call", [["-1", "as compiled"], ...part.calls.map((/** @type {any} */ c, /** @type {number} */ i) => /** @type {[string, string]} */ ([String(i), c.text]))], String(this.call), (v) => { this.call = +v; this.frame.focus(); this.update(); }) : null,
      this.part ? [muted(part.mode), h("span", { class: "sp" }), button("◂ step", "←", () => this.go(this.at - 1)), this.counter, button("step ▸", "→", () => this.go(this.at + 1)), this.play] : null,
    );
    if (!this.part) {
      const why = part ? part.empty : this.entry ? "Loading …" : "Nothing was compiled, so there are no wrappers.";
      put(this.body, h("p", {}, why));
      this.side.hidden = true;
      return this.frame.say(why);
    }
    this.update();
  }

  /** @param {number} at */
  go(at) {
    if (!this.part) return;
    this.at = Math.max(0, Math.min(this.part.steps.length - 1, at));
    this.update();
  }

  toggle() {
    if (this.timer) return this.stop();
    if (!this.part) return;
    if (this.at >= this.part.steps.length - 1) this.at = 0;
    this.timer = setInterval(() => {
      if (!this.el.isConnected || !this.part || this.at >= this.part.steps.length - 1) this.stop();
      else this.go(this.at + 1);
    }, STEP_MS);
    this.play.textContent = "■ Stop";
    this.update();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "▶ Play";
  }

  /** Ask the kernel to replay the call and record the values at the wrappers. */
  note() {
    if (!this.part) return;
    if (!this.part.can_note) return this.frame.say(this.part.bare);
    this.noted = this.part.passages.length;
    this.frame.say("Replaying the call on copies, through ATen …");
    this.frame.send({ type: "replay", entry: this.entry });
  }

  graph() {
    if (this.part && this.part.graph.stage) this.frame.open("graph", this.entry, this.part.graph.stage);
  }

  update() {
    const { part } = this;
    this.at = Math.min(this.at, part.steps.length - 1);
    this.counter.textContent = `${this.at + 1}/${part.steps.length}`;
    put(
      this.body,
      part.note ? h("p", { class: "note" }, sentence(part.note)) : null,
      this.#ring(-1),
      part.backward ? this.#backward() : null,
      part.idle.length ? h("p", { class: "idle" }, h("b", {}, "Wrappers that had nothing to do: "), muted(part.idle.join(" · "))) : null,
      part.rings.length || part.idle.length ? null : mutedLine(part.bare),
      part.passages.length ? null : this.#valuesAtStep(),
      part.partition ? this.#partition() : null,
      this.#facts(),
    );
    this.side.hidden = !part.passages.length;
    if (part.passages.length) put(this.side, this.#valuesAtStep());
    this.tell();
  }

  /** A wrapper with everything inside it. @param {number} i @returns {HTMLElement} */
  #ring(i) {
    const { part } = this, [ring] = part.steps[this.at], isHere = ring === i;
    const className = `ring${isHere ? " sel" : ""}`, current = isHere ? "step" : null;
    const passed = this.call >= 0 ? part.calls[this.call].inputs : {};
    const chip = (/** @type {any} */ v) => this.#chip(passed[v.name] ? `${v.name} ${passed[v.name]}` : v.type ? `${v.name} ${v.type}` : v.name, Boolean(passed[v.name]) && passed[v.name] !== v.type, v.facts.join(", "));
    if (i === part.rings.length) {
      return h("section", { class: className + " core", "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Functional graph "), muted(`${part.graph.text}${part.graph.stage ? ", no mutation" : ""}`)),
        h("div", { class: "middle" }, h("div", { class: "ports", tabindex: "0", role: "group", "aria-label": "Inputs of the graph" }, part.inputs.length > MAX_CHIPS ? muted(`the same ${part.inputs.length} inputs`) : part.inputs.map(chip)),
          h("div", { class: "heart" }, h("p", {}, part.graph.ordinals.slice(0, 12).map((/** @type {number} */ o) => [badge(o), " "]), part.graph.ordinals.length > 12 ? `and ${plural(part.graph.ordinals.length - 12, "more line")}` : null), part.graph.stage ? button("Open graph", "Enter", () => this.graph()) : null),
          h("div", { class: "ports", tabindex: "0", role: "group", "aria-label": "Outputs of the graph" }, this.#few(part.graph.outputs, (v) => this.#chip(`${v.name} ${v.type}`, false)))));
    }
    if (i < 0) {
      return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Your call "), muted(part.name + (part.checks ? `, ${plural(part.checks, "run-time check")}` : ""))), this.#ports(this.#few(part.inputs, chip), this.#few(part.outputs, chip)), this.#ring(i + 1));
    }
    const { name, actions } = part.rings[i];
    const chips = (/** @type {string} */ direction) => actions.map((/** @type {any} */ a, /** @type {number} */ j) => (a.direction === direction ? this.#chip(`${a.argument} ${a.action}`, isHere && part.steps[this.at][2] === j, a.all.length > 1 ? `${a.all.join(", ")}: ${a.why}` : a.why, "did") : null)).filter(Boolean);
    return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
      h("p", {}, muted(`${i + 1} `), h("b", {}, name + " "), muted(plural(actions.length, "action"))), this.#ports(chips("in"), chips("out")), this.#ring(i + 1));
  }

  /** The backward graph with its inputs and outputs. */
  #backward() {
    const { part } = this, at = part.rings.length + 1, { text, inputs, outputs } = part.backward, isHere = part.steps[this.at][0] === at;
    const chip = (/** @type {any} */ v) => this.#chip(v.type ? `${v.name} ${v.type}` : v.name, false, v.facts.join(", "));
    return h("section", { class: `ring${isHere ? " sel" : ""}`, "aria-current": isHere ? "step" : null, onclick: (/** @type {Event} */ e) => this.#toRing(at, e) },
      h("p", {}, h("b", {}, "Backward "), muted(`${text}, runs when a gradient is requested`), muted(" "), button("Open graph", "", () => this.frame.open("graph", this.entry, "backward"))),
      this.#ports(this.#few(inputs, chip), this.#few(outputs, chip)));
  }

  /** @param {any[]} into @param {any[]} out */
  #ports(into, out) {
    return [into.length ? h("div", { class: "way" }, h("b", { class: "mut" }, "in"), into) : null, out.length ? h("div", { class: "way back" }, out, h("b", { class: "mut" }, "out")) : null];
  }

  /** The first values as chips, then the number of remaining ones. @param {any[]} values @param {(v: any) => any} chip */
  #few(values, chip) {
    const more = values.slice(MAX_CHIPS);
    return [...values.slice(0, MAX_CHIPS).map(chip), more.length ? this.#chip(`and ${more.length} more`, false, more.map((v) => v.name).join(", ")) : null].filter(Boolean);
  }

  /** @param {string} text @param {boolean} isHere @param {string} [why] @param {string} [kind] */
  #chip(text, isHere, why, kind) {
    return h("code", { class: `vc ${kind || ""}${isHere ? " sel" : ""}`, title: why || null }, text);
  }

  /** @param {number} ring @param {Event} e */
  #toRing(ring, e) {
    e.stopPropagation();
    if (/** @type {Element} */ (e.target).closest("button")) return;
    const found = this.part.steps.findIndex((/** @type {any[]} */ s) => s[0] === ring);
    if (found >= 0) { this.stop(); this.go(found); this.frame.focus(); }
  }

  /** Index of the values recorded last before the current step. @param {any[]} moments */
  #moment(moments) {
    const { part } = this, [ring, direction] = part.steps[this.at], count = part.rings.length;
    // Order along the call: inputs, each wrapper inwards, the graph, each wrapper outwards, results.
    const order = (/** @type {string} */ name, /** @type {string} */ way) => {
      if (name === "Backward") return 2 * count + (way === "in" ? 3 : 4);
      const i = name === "Call" ? -1 : name === "Graph" ? count : part.rings.findIndex((/** @type {any} */ r) => r.name === name);
      return name === "Call" && way === "out" ? 2 * count + 2 : way === "in" ? i : way === "back" ? 2 * count - i - 0.5 : 2 * count - i;
    };
    const here = ring > count ? 2 * count + (direction === "in" ? 3 : 4) : ring < 0 ? (direction === "in" ? -1 : 2 * count + 2) : ring === count ? count : direction === "in" ? ring : 2 * count - ring;
    return moments.findLastIndex((m) => (m.ring === "Call" || m.ring === "Backward" || m.ring === "Graph" || part.rings.some((/** @type {any} */ r) => r.name === m.ring)) && order(m.ring, m.direction) <= here);
  }

  /** Table of the values at this step, beside their previous values. */
  #valuesAtStep() {
    const { part } = this, { passages } = part;
    const again = part.can_note ? button("Replay the call", "c", () => { this.note(); this.frame.focus(); }) : null;
    if (!passages.length && !again) return null;
    if (!passages.length) return [h("h4", {}, "Values"), mutedLine("Tensor values at the wrappers were not recorded. ", again, " records them on copies, without running your code; %%compile --steps records them for the first calls.")];
    this.passage = Math.min(this.passage || 0, passages.length - 1);
    const { moments, how } = passages[this.passage], at = Math.max(0, this.#moment(moments)), now = moments[at];
    /** @type {Map<string, string>} */
    const before = new Map();
    for (const m of moments.slice(0, at)) for (const [name, text] of m.values) before.set(name, text);
    const isNew = (/** @type {string[]} */ [name, text]) => before.has(name) && before.get(name) !== text;
    // No column for previous values until one of them changes.
    const hasChanged = now.values.some(isNew);
    const where = now.ring === "Call" ? (now.direction === "in" ? "inputs of the call" : "after the call") : now.ring === "Graph" ? "outputs of the graph" : now.ring === "Backward" ? (now.direction === "in" ? "inputs of the backward" : "outputs of the backward") : `after wrapper ${now.ring.toLowerCase()}, ${now.direction === "in" ? "before" : "after"} the graph`;
    return [
      h("h4", {}, "Values", muted(` ${where} `), passages.length > 1 ? choice("Recorded call", passages.map((/** @type {any} */ p, /** @type {number} */ i) => [String(i), p.how ? `replayed, ${i + 1}` : `call ${i + 1} of this entry`]), String(this.passage), (v) => { this.passage = +v; this.frame.focus(); this.update(); }) : null),
      how ? mutedLine(`Replayed on ${how}${part.backward ? "; the output gradients are ones" : ""}.`) : null,
      h("table", { class: "t held" + (hasChanged ? " three" : "") }, h("thead", {}, h("tr", {}, ["Value", ...(hasChanged ? ["Before"] : []), "Now"].map((t) => h("th", {}, t)))), h("tbody", {}, now.values.map((/** @type {string[]} */ [name, text]) => {
        const was = before.get(name);
        return h("tr", {}, h("td", {}, h("code", {}, wordBreaks(name).map((part, i) => [i ? h("wbr") : null, part]))), hasChanged ? h("td", { class: "mut" }, h("code", {}, was === undefined ? "–" : was === text ? "=" : was)) : null, h("td", { class: isNew([name, text]) ? "new" : "" }, h("code", {}, text)));
      }))),
      now.cut ? mutedLine(`${plural(now.cut, "more value")} not recorded.`) : null,
      h("p", {}, again),
    ];
  }

  #facts() {
    const { inputs, outputs } = this.part, all = [...inputs, ...outputs], rows = all.length > MAX_CHIPS ? all.filter((v) => v.facts.length || v.role === "output") : all;
    const plain = all.length - rows.length;
    return [h("h4", {}, "Inputs and outputs, as analyzed"), plain ? mutedLine(`${plural(plain, "plain input")}, only read.`) : null, !rows.length ? null : h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Value", "Role", "Type", "Properties"].map((t) => h("th", {}, t)))),
      h("tbody", {}, rows.map((v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", {}, v.role), h("td", {}, h("code", {}, v.type)), h("td", { class: v.facts.length ? "" : "mut" }, v.facts.join(", ") || "plain")))))];
  }

  #partition() {
    const { text, rows, sums, sizes } = this.part.partition, most = Math.max(1, ...rows.map((/** @type {any} */ v) => v.count));
    const whole = Math.max(1, sums.reduce((/** @type {number} */ n, /** @type {any} */ s) => n + s[1], 0));
    const fate = (/** @type {any} */ v) => (v.action === "saved" ? (v.count ? "o1" : "o0") : "o3");
    return [
      h("h4", {}, "Saved for backward"), h("p", { class: "note" }, text),
      h("div", { class: "parts", role: "img", "aria-label": text }, sums.map((/** @type {any} */ s, /** @type {number} */ i) => (s[1] ? h("i", { class: PARTITION_COLORS[i], style: `width:${(s[1] / whole) * 100}%` }) : null))),
      h("p", { class: "legend" }, sums.map((/** @type {any} */ s, /** @type {number} */ i) => [h("i", { class: "dot " + PARTITION_COLORS[i] }), ` ${s[0]} ${sizes[i]}   `])),
      h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Value", "Saved or recomputed", "Bytes", "", "Reason"].map((t) => h(t ? "th" : "td", {}, t)))),
        h("tbody", {}, rows.map((/** @type {any} */ v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", { class: v.action === "saved" ? "" : "ok" }, v.action), h("td", { class: "num" }, v.bytes), h("td", { class: "meter" }, v.count ? h("i", { class: fate(v), style: `width:${(v.count / most) * 100}%` }) : null), h("td", { class: "mut" }, v.reason))))),
    ];
  }

  tell() {
    const { part } = this, [ring, direction, action] = part.steps[this.at];
    const names = (/** @type {any[]} */ values) => values.slice(0, 6).map((v) => v.name).join(", ") + (values.length > 6 ? ` and ${values.length - 6} more` : "") || "nothing";
    if (ring < 0) return this.frame.say(h("b", {}, direction === "in" ? "In: inputs of the call. " : "Out: results of the call. "), direction === "in" ? `${part.name} is called; the inputs of the graph are ${names(part.inputs)}.` : `${names(part.outputs)} ${part.outputs.length === 1 ? "is" : "are"} returned.`, part.note ? muted(" " + sentence(part.note)) : null);
    if (ring > part.rings.length) return this.frame.say(h("b", {}, direction === "in" ? "Backward, in: " : "Backward, out: "), direction === "in" ? `${names(part.backward.inputs)}: values saved by the forward, and the tangents.` : `${names(part.backward.outputs)} ${part.backward.outputs.length === 1 ? "is" : "are"} returned to autograd.`);
    if (ring === part.rings.length) return this.frame.say(h("b", {}, "Functional graph. "), `${part.graph.text}. `, muted(part.graph.stage && part.rings.length ? "It contains no mutation: the wrappers around it restore mutations and views." : part.note ? sentence(part.note) : ""));
    const { name, actions } = part.rings[ring], a = actions[action];
    this.frame.say(h("b", {}, `${direction === "in" ? "In" : "Out"}: ${name}. `), `${a.argument} ${a.action}. `, muted(sentence(a.why)));
  }
}

VIEWS.set("aot", AotWrappersView);
