// AOT onion: the layers between the call and the functional graph, and the way of one call through them.

import { badge, button, choice, h, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const STEP_MS = 1200;
/** Values shown one by one; the rest is counted. */
const FEW = 10;
const FATES = ["o1", "o3", "o0"];

class OnionView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "onion";
    this.entry = "";
    this.at = 0;
    /** @type {any} */
    this.part = null;
    this.timer = 0;
    /** The call whose contents are shown, among those that were noted. */
    this.passage = 0;
    /** The call whose values are shown; -1 for what the entry was made for. */
    this.call = -1;
    /** How many calls were noted when another one was asked for. @type {number | undefined} */
    this.noted = undefined;
    this.context = h("div", { class: "ctx" });
    this.counter = h("code");
    this.play = button("▶ Play", "p", () => this.toggle());
    this.body = h("div", { class: "scr pad", tabindex: "0" });
    this.side = h("div", { class: "side", tabindex: "0", "aria-label": "Contents at this step" });
    this.el = h("div", { class: "onion" }, this.context, h("div", { class: "two" }, this.body, this.side));
    this.keys = [
      key("ArrowRight ArrowLeft", "next or previous step of the call", (k) => { this.stop(); this.go(this.at + (k === "ArrowRight" ? 1 : -1)); }),
      key("p", "play the call, or stop", () => this.toggle()),
      key("Home End", "the call, or its results", (k) => { this.stop(); this.go(k === "Home" ? 0 : Infinity); }),
      key("c", "what the tensors hold on the way: the call is made again on copies", () => this.note()),
      key("Enter", "open the graph", () => this.graph()),
    ];
  }

  /** What is in hand, as `open` takes it. */
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
    const part = this.entry ? this.frame.part("onion|" + this.entry) : null;
    this.part = part && !part.empty ? part : null;
    if (this.part && this.call >= part.calls.length) this.call = -1;
    // What was asked for is what one wants to see.
    if (this.part && this.noted !== undefined && part.passages.length > this.noted) {
      this.passage = part.passages.length - 1;
      this.noted = undefined;
    }
    put(
      this.context,
      entries.length ? choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, `${e.name} · entry ${e.entry}`]), this.entry, (v) => { this.stop(); this.entry = v; this.at = 0; this.call = -1; this.frame.focus(); this.draw(); }) : null,
      this.part && part.calls.length ? choice("Call", [["-1", "as compiled"], ...part.calls.map((/** @type {any} */ c, /** @type {number} */ i) => /** @type {[string, string]} */ ([String(i), c.text]))], String(this.call), (v) => { this.call = +v; this.frame.focus(); this.update(); }) : null,
      this.part ? [h("span", { class: "mut" }, part.mode), h("span", { class: "sp" }), button("◂ step", "←", () => this.go(this.at - 1)), this.counter, button("step ▸", "→", () => this.go(this.at + 1)), this.play] : null,
    );
    if (!this.part) {
      const why = part ? part.empty : this.entry ? "Loading …" : "Nothing was compiled, so there are no layers.";
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

  /** Have the call made again, with its contents noted. */
  note() {
    if (!this.part) return;
    if (!this.part.can_note) return this.frame.say("There are no layers around this graph, so nothing passes through any.");
    this.noted = this.part.passages.length;
    this.frame.say("Making the call again on copies, through ATen …");
    this.frame.send({ type: "contents", entry: this.entry });
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
      part.idle.length ? h("p", { class: "idle" }, h("b", {}, "Had nothing to do: "), h("span", { class: "mut" }, part.idle.join(" · "))) : null,
      part.rings.length || part.idle.length ? null : h("p", { class: "mut" }, part.mode === "inference" ? "No layer was needed." : "No layer was put around this graph."),
      part.passages.length ? null : this.#contents(),
      part.partition ? this.#partition() : null,
      this.#facts(),
    );
    this.side.hidden = !part.passages.length;
    if (part.passages.length) put(this.side, this.#contents());
    this.tell();
  }

  /** One ring with all that lies inside it. @param {number} i @returns {HTMLElement} */
  #ring(i) {
    const { part } = this, [ring] = part.steps[this.at], isHere = ring === i;
    const className = `ring${isHere ? " sel" : ""}`, current = isHere ? "step" : null;
    const passed = this.call >= 0 ? part.calls[this.call].inputs : {};
    const chip = (/** @type {any} */ v) => this.#chip(passed[v.name] ? `${v.name} ${passed[v.name]}` : v.type ? `${v.name} ${v.type}` : v.name, Boolean(passed[v.name]) && passed[v.name] !== v.type, v.facts.join(", "));
    if (i === part.rings.length) {
      return h("section", { class: className + " core", "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Functional graph "), h("span", { class: "mut" }, `${part.graph.text}${part.graph.stage ? ", nothing written in place" : ""}`)),
        h("div", { class: "middle" }, h("div", { class: "ports" }, this.#few(part.inputs, chip)),
          h("div", { class: "heart" }, h("p", {}, part.graph.ordinals.slice(0, 12).map((/** @type {number} */ o) => [badge(o), " "]), part.graph.ordinals.length > 12 ? `and ${plural(part.graph.ordinals.length - 12, "more line")}` : null), part.graph.stage ? button("Open graph", "Enter", () => this.graph()) : null),
          h("div", { class: "ports" }, this.#few(part.graph.outputs, (v) => this.#chip(`${v.name} ${v.type}`, false)))));
    }
    if (i < 0) {
      return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Your call "), h("span", { class: "mut" }, part.name)), this.#ports(this.#few(part.inputs, chip), this.#few(part.outputs, chip)), this.#ring(i + 1));
    }
    const { name, actions } = part.rings[i];
    const chips = (/** @type {string} */ direction) => actions.map((/** @type {any} */ a, /** @type {number} */ j) => (a.direction === direction ? this.#chip(`${a.argument} ${a.action}`, isHere && part.steps[this.at][2] === j, a.all.length > 1 ? `${a.all.join(", ")}: ${a.why}` : a.why, "did") : null)).filter(Boolean);
    return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
      h("p", {}, h("span", { class: "mut" }, `${i + 1} `), h("b", {}, name + " "), h("span", { class: "mut" }, plural(actions.length, "action"))), this.#ports(chips("in"), chips("out")), this.#ring(i + 1));
  }

  /** The backward half: what it is given once a gradient is asked for, and what it returns. */
  #backward() {
    const { part } = this, at = part.rings.length + 1, { text, inputs, outputs } = part.backward, isHere = part.steps[this.at][0] === at;
    const chip = (/** @type {any} */ v) => this.#chip(v.type ? `${v.name} ${v.type}` : v.name, false, v.facts.join(", "));
    return h("section", { class: `ring${isHere ? " sel" : ""}`, "aria-current": isHere ? "step" : null, onclick: (/** @type {Event} */ e) => this.#toRing(at, e) },
      h("p", {}, h("b", {}, "Backward "), h("span", { class: "mut" }, `${text}, when a gradient is asked for`), h("span", { class: "mut" }, " "), button("Open graph", "", () => this.frame.open("graph", this.entry, "backward"))),
      this.#ports(this.#few(inputs, chip), this.#few(outputs, chip)));
  }

  /** @param {any[]} into @param {any[]} out */
  #ports(into, out) {
    return [into.length ? h("div", { class: "way" }, h("b", { class: "mut" }, "in"), into) : null, out.length ? h("div", { class: "way back" }, out, h("b", { class: "mut" }, "out")) : null];
  }

  /** The first values, and how many more there are. @param {any[]} values @param {(v: any) => any} chip */
  #few(values, chip) {
    const more = values.slice(FEW);
    return [...values.slice(0, FEW).map(chip), more.length ? this.#chip(`and ${more.length} more`, false, more.map((v) => v.name).join(", ")) : null].filter(Boolean);
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

  /** The moment of a passage that a step stands at: the last one that has come by then. @param {any[]} moments */
  #moment(moments) {
    const { part } = this, [ring, direction] = part.steps[this.at], count = part.rings.length;
    // In the order of the way: the call, each ring inwards, the graph, each ring outwards, the results.
    const order = (/** @type {string} */ name, /** @type {string} */ way) => {
      if (name === "Backward") return 2 * count + (way === "in" ? 3 : 4);
      const i = name === "Call" ? -1 : name === "Graph" ? count : part.rings.findIndex((/** @type {any} */ r) => r.name === name);
      return name === "Call" && way === "out" ? 2 * count + 2 : way === "in" ? i : way === "back" ? 2 * count - i - 0.5 : 2 * count - i;
    };
    const here = ring > count ? 2 * count + (direction === "in" ? 3 : 4) : ring < 0 ? (direction === "in" ? -1 : 2 * count + 2) : ring === count ? count : direction === "in" ? ring : 2 * count - ring;
    return moments.findLastIndex((m) => (m.ring === "Call" || m.ring === "Backward" || m.ring === "Graph" || part.rings.some((/** @type {any} */ r) => r.name === m.ring)) && order(m.ring, m.direction) <= here);
  }

  /** What the values hold at this step, beside what they held before. */
  #contents() {
    const { part } = this, { passages } = part;
    const again = part.can_note ? button("Make the call again", "c", () => { this.note(); this.frame.focus(); }) : null;
    if (!passages.length && !again) return null;
    if (!passages.length) return [h("h4", {}, "Contents"), h("p", { class: "mut" }, "What the tensors held on the way was not kept. ", again, " notes it, on copies and without your code; %%compile --steps notes it for the first calls.")];
    this.passage = Math.min(this.passage || 0, passages.length - 1);
    const { moments, how } = passages[this.passage], at = Math.max(0, this.#moment(moments)), now = moments[at];
    /** @type {Map<string, string>} */
    const before = new Map();
    for (const m of moments.slice(0, at)) for (const [name, text] of m.values) before.set(name, text);
    const isNew = (/** @type {string[]} */ [name, text]) => before.has(name) && before.get(name) !== text;
    // As long as nothing has become another, what was before needs no room.
    const hasChanged = now.values.some(isNew);
    const where = now.ring === "Call" ? (now.direction === "in" ? "as the call was given it" : "as the call leaves it") : now.ring === "Graph" ? "as the graph returns it" : now.ring === "Backward" ? (now.direction === "in" ? "as the backward is given it" : "as the backward returns it") : `after ${now.ring.toLowerCase()}, on the way ${now.direction === "in" ? "in" : "out"}`;
    return [
      h("h4", {}, "Contents", h("span", { class: "mut" }, ` ${where} `), passages.length > 1 ? choice("Noted call", passages.map((/** @type {any} */ p, /** @type {number} */ i) => [String(i), p.how ? `made again, ${i + 1}` : `call ${i + 1} of this entry`]), String(this.passage), (v) => { this.passage = +v; this.frame.focus(); this.update(); }) : null),
      how ? h("p", { class: "mut" }, `Made again on ${how}${part.backward ? "; gradients flow from ones" : ""}.`) : null,
      h("table", { class: "t held" + (hasChanged ? " three" : "") }, h("thead", {}, h("tr", {}, ["Value", ...(hasChanged ? ["Before"] : []), "Now"].map((t) => h("th", {}, t)))), h("tbody", {}, now.values.map((/** @type {string[]} */ [name, text]) => {
        const was = before.get(name);
        return h("tr", {}, h("td", {}, h("code", {}, name)), hasChanged ? h("td", { class: "mut" }, h("code", {}, was === undefined ? "–" : was === text ? "=" : was)) : null, h("td", { class: isNew([name, text]) ? "new" : "" }, h("code", {}, text)));
      }))),
      now.cut ? h("p", { class: "mut" }, `${plural(now.cut, "more value")} not kept.`) : null,
      h("p", {}, again),
    ];
  }

  #facts() {
    const { inputs, outputs } = this.part, all = [...inputs, ...outputs], rows = all.length > FEW ? all.filter((v) => v.facts.length || v.role === "output") : all;
    const plain = all.length - rows.length;
    return [h("h4", {}, "What the analysis found"), plain ? h("p", { class: "mut" }, `Nothing special about ${plural(plain, "value")}: read, and left as they are.`) : null, !rows.length ? null : h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Value", "Role", "Type", "What the analysis found"].map((t) => h("th", {}, t)))),
      h("tbody", {}, rows.map((v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", {}, v.role), h("td", {}, h("code", {}, v.type)), h("td", { class: v.facts.length ? "" : "mut" }, v.facts.join(", ") || "nothing special")))))];
  }

  #partition() {
    const { text, rows, sums, sizes } = this.part.partition, most = Math.max(1, ...rows.map((/** @type {any} */ v) => v.count));
    const whole = Math.max(1, sums.reduce((/** @type {number} */ n, /** @type {any} */ s) => n + s[1], 0));
    const fate = (/** @type {any} */ v) => (v.action === "saved" ? (v.count ? "o1" : "o0") : "o3");
    return [
      h("h4", {}, "Between forward and backward"), h("p", { class: "note" }, text),
      h("div", { class: "parts", role: "img", "aria-label": text }, sums.map((/** @type {any} */ s, /** @type {number} */ i) => (s[1] ? h("i", { class: FATES[i], style: `width:${(s[1] / whole) * 100}%` }) : null))),
      h("p", { class: "legend" }, sums.map((/** @type {any} */ s, /** @type {number} */ i) => [h("i", { class: "dot " + FATES[i] }), ` ${s[0]} ${sizes[i]}   `])),
      h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Value", "Fate", "Bytes", "", "Why"].map((t) => h("th", {}, t)))),
        h("tbody", {}, rows.map((/** @type {any} */ v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", { class: v.action === "saved" ? "" : "ok" }, v.action), h("td", { class: "num" }, v.bytes), h("td", { class: "meter" }, v.count ? h("i", { class: fate(v), style: `width:${(v.count / most) * 100}%` }) : null), h("td", { class: "mut" }, v.reason))))),
    ];
  }

  tell() {
    const { part } = this, [ring, direction, action] = part.steps[this.at];
    const names = (/** @type {any[]} */ values) => values.slice(0, 6).map((v) => v.name).join(", ") + (values.length > 6 ? ` and ${values.length - 6} more` : "") || "nothing";
    if (ring < 0) return this.frame.say(h("b", {}, direction === "in" ? "In: your call. " : "Out: your results. "), direction === "in" ? `${part.name} is called; the graph takes ${names(part.inputs)}.` : `${names(part.outputs)} ${part.outputs.length === 1 ? "goes" : "go"} back to you.`, part.note ? h("span", { class: "mut" }, " " + sentence(part.note)) : null);
    if (ring > part.rings.length) return this.frame.say(h("b", {}, direction === "in" ? "Backward, in: " : "Backward, out: "), direction === "in" ? `${names(part.backward.inputs)}: what the forward saved, and the gradients of your results.` : `${names(part.backward.outputs)} ${part.backward.outputs.length === 1 ? "goes" : "go"} on to autograd.`);
    if (ring === part.rings.length) return this.frame.say(h("b", {}, "Functional graph. "), `${part.graph.text}. `, h("span", { class: "mut" }, part.graph.stage && part.rings.length ? "It writes nothing in place: what the code changes or returns as a view, the layers around it see to." : part.note ? sentence(part.note) : ""));
    const { name, actions } = part.rings[ring], a = actions[action];
    this.frame.say(h("b", {}, `${direction === "in" ? "In" : "Out"}: ${name}. `), `${a.argument} ${a.action}. `, h("span", { class: "mut" }, sentence(a.why)));
  }
}

VIEWS.set("onion", OnionView);
