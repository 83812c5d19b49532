// AOT onion: the layers between the call and the functional graph, and the way of one call through them.

import { badge, button, choice, h, plural, put, sentence } from "./shared/dom.js";
import { key } from "./shared/keys.js";
import { VIEWS } from "./shared/views.js";

/** @typedef {import("./explorer.js").Frame} Frame */

const STEP_MS = 1200;

export class OnionView {
  /** @param {Frame} frame */
  constructor(frame) {
    this.frame = frame;
    this.id = "onion";
    this.entry = "";
    this.at = 0;
    /** @type {any} */
    this.part = null;
    this.timer = 0;
    this.context = h("div", { class: "ctx" });
    this.counter = h("code");
    this.play = button("▶ Play", "p", () => this.toggle());
    this.body = h("div", { class: "scr tall pad" });
    this.el = h("div", { class: "onion" }, this.context, this.body);
    this.keys = [
      key("ArrowRight ArrowLeft", "next or previous step of the call", (k) => { this.stop(); this.go(this.at + (k === "ArrowRight" ? 1 : -1)); }),
      key("p", "play the call, or stop", () => this.toggle()),
      key("Home End", "the call, or its results", (k) => { this.stop(); this.go(k === "Home" ? 0 : Infinity); }),
      key("Enter", "open the graph", () => this.graph()),
    ];
  }

  /** @param {string} [entry] */
  open(entry) {
    if (entry && entry !== this.entry) {
      this.entry = entry;
      this.at = 0;
    }
  }

  draw() {
    const { entries, start } = this.frame.overview;
    if (!this.frame.entry(this.entry)) this.entry = start;
    const part = this.entry ? this.frame.part("onion|" + this.entry) : null;
    this.part = part && !part.empty ? part : null;
    put(
      this.context,
      entries.length ? choice("Function and cache entry", entries.map((/** @type {any} */ e) => [e.id, `${e.name} · entry ${e.entry}`]), this.entry, (v) => { this.stop(); this.entry = v; this.at = 0; this.frame.focus(); this.draw(); }) : null,
      this.part ? [h("span", { class: "mut" }, part.mode), h("span", { class: "sp" }), button("◂ step", "←", () => this.go(this.at - 1)), this.counter, button("step ▸", "→", () => this.go(this.at + 1)), this.play] : null,
    );
    if (!this.part) {
      const why = part ? part.empty : this.entry ? "Loading …" : "Nothing was compiled, so there are no layers.";
      put(this.body, h("p", {}, why));
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
      part.idle.length ? h("p", { class: "idle" }, h("b", {}, "Had nothing to do: "), h("span", { class: "mut" }, part.idle.join(" · "))) : null,
      part.rings.length || part.idle.length ? null : h("p", { class: "mut" }, part.mode === "inference" ? "No layer was needed." : "No layer was put around this graph."),
      this.#facts(),
      part.partition ? this.#partition() : null,
    );
    this.tell();
  }

  /** One ring with all that lies inside it. @param {number} i @returns {HTMLElement} */
  #ring(i) {
    const { part } = this, [ring] = part.steps[this.at], isHere = ring === i;
    const className = `ring${isHere ? " sel" : ""}`, current = isHere ? "step" : null;
    const chip = (/** @type {any} */ v) => this.#chip(v.type ? `${v.name} ${v.type}` : v.name, false, v.facts.join(", "));
    if (i === part.rings.length) {
      return h("section", { class: className + " core", "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Functional graph "), h("span", { class: "mut" }, `${part.graph.text}${part.graph.stage ? ", nothing written in place" : ""}`)),
        h("div", { class: "middle" }, h("div", { class: "ports" }, part.inputs.map(chip)),
          h("div", { class: "heart" }, h("p", {}, part.graph.ordinals.slice(0, 12).map((/** @type {number} */ o) => [badge(o), " "]), part.graph.ordinals.length > 12 ? `and ${part.graph.ordinals.length - 12} more lines` : null), part.graph.stage ? button("Open graph", "Enter", () => this.graph()) : null),
          h("div", { class: "ports" }, part.graph.outputs.map((/** @type {any} */ v) => this.#chip(`${v.name} ${v.type}`, false)))));
    }
    if (i < 0) {
      return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
        h("p", {}, h("b", {}, "Your call "), h("span", { class: "mut" }, part.name)), this.#ports(part.inputs.map(chip), part.outputs.map(chip)), this.#ring(i + 1));
    }
    const { name, actions } = part.rings[i];
    const chips = (/** @type {string} */ direction) => actions.map((/** @type {any} */ a, /** @type {number} */ j) => (a.direction === direction ? this.#chip(`${a.argument} ${a.action}`, isHere && part.steps[this.at][2] === j, a.why, "did") : null)).filter(Boolean);
    return h("section", { class: className, "aria-current": current, onclick: (/** @type {Event} */ e) => this.#toRing(i, e) },
      h("p", {}, h("span", { class: "mut" }, `${i + 1} `), h("b", {}, name + " "), h("span", { class: "mut" }, plural(actions.length, "action"))), this.#ports(chips("in"), chips("out")), this.#ring(i + 1));
  }

  /** @param {any[]} into @param {any[]} out */
  #ports(into, out) {
    return h("div", { class: "way" }, into.length ? [h("b", { class: "mut" }, "in"), into] : null, h("span", { class: "sp" }), out.length ? [out, h("b", { class: "mut" }, "out")] : null);
  }

  /** @param {string} text @param {boolean} isHere @param {string} [why] @param {string} [kind] */
  #chip(text, isHere, why, kind) {
    return h("code", { class: `vc ${kind || ""}${isHere ? " sel" : ""}`, title: why || null }, text);
  }

  /** @param {number} ring @param {Event} e */
  #toRing(ring, e) {
    e.stopPropagation();
    const found = this.part.steps.findIndex((/** @type {any[]} */ s) => s[0] === ring);
    if (found >= 0) { this.stop(); this.go(found); this.frame.focus(); }
  }

  #facts() {
    const { inputs, outputs } = this.part, rows = [...inputs, ...outputs];
    return h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Value", "Role", "Type", "What the analysis found"].map((t) => h("th", {}, t)))),
      h("tbody", {}, rows.map((v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", {}, v.role), h("td", {}, h("code", {}, v.type)), h("td", { class: v.facts.length ? "" : "mut" }, v.facts.join(", ") || "nothing special")))));
  }

  #partition() {
    const { text, rows } = this.part.partition;
    return [h("p", { class: "note" }, text), h("table", { class: "t" }, h("thead", {}, h("tr", {}, ["Between forward and backward", "Fate", "Bytes", "Why"].map((t) => h("th", {}, t)))),
      h("tbody", {}, rows.map((/** @type {any} */ v) => h("tr", {}, h("td", {}, h("code", {}, v.name)), h("td", {}, v.action), h("td", {}, v.bytes), h("td", { class: "mut" }, v.reason)))))];
  }

  tell() {
    const { part } = this, [ring, direction, action] = part.steps[this.at];
    const names = (/** @type {any[]} */ values) => values.map((v) => v.name).join(", ") || "nothing";
    if (ring < 0) return this.frame.say(h("b", {}, direction === "in" ? "In: your call. " : "Out: your results. "), direction === "in" ? `${part.name} is called; the graph takes ${names(part.inputs)}.` : `${names(part.outputs)} ${part.outputs.length === 1 ? "goes" : "go"} back to you.`, part.note ? h("span", { class: "mut" }, " " + sentence(part.note)) : null);
    if (ring === part.rings.length) return this.frame.say(h("b", {}, "Functional graph. "), `${part.graph.text}. `, h("span", { class: "mut" }, part.graph.stage && part.rings.length ? "It writes nothing in place: what the code changes or returns as a view, the layers around it see to." : part.note ? sentence(part.note) : ""));
    const { name, actions } = part.rings[ring], a = actions[action];
    this.frame.say(h("b", {}, `${direction === "in" ? "In" : "Out"}: ${name}. `), `${a.argument} ${a.action}. `, h("span", { class: "mut" }, sentence(a.why)));
  }
}

VIEWS.set("onion", OnionView);
