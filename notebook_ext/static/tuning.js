// Tuning of one kernel by hand: its settings, and a heat map of two of them.

import { controlName, fastest, heatMap, same, settingsText, usual, valuesOf, valueText } from "./heatmap.js";
import { button, choice, h, ms, muted, mutedLine, plural } from "./shared/dom.js";

/** @typedef {import("./heatmap.js").Tuning} Tuning */
/** @typedef {import("./heatmap.js").Point} Point */

/** The panel of the kernel view. */
export class TuningPanel {
  /** @param {(action: string, values?: Record<string, number[]>) => void} request @param {() => void} redraw */
  constructor(request, redraw) {
    this.request = request;
    this.redraw = redraw;
    this.down = this.across = "";
    /** Values of the controls that are no axis. @type {Record<string, number>} */
    this.others = {};
    /** @type {Record<string, number> | null} */
    this.selected = null;
  }

  /** Take up another kernel: its first two controls are the axes. @param {Tuning} tuning */
  #fit(tuning) {
    const names = tuning.controls.map((c) => c.name);
    if (names.includes(this.down) && (this.across ? names.includes(this.across) : names.length < 2)) return;
    [this.down, this.across] = [names[0], names[1] || ""];
    this.others = {};
    this.selected = null;
  }

  /** Try all settings of the map. @param {Tuning} tuning */
  run(tuning) {
    this.#fit(tuning);
    const values = Object.fromEntries(Object.entries({ ...usual(tuning), ...this.others }).map(([name, value]) => [name, name === this.down || name === this.across ? valuesOf(tuning, name) : [value]]));
    this.request("run", values);
  }

  /** @param {Tuning | null} tuning @param {string} title @param {string} said why there is none yet @param {boolean} isLive false on a page without a kernel */
  section(tuning, title, said, isLive) {
    if (!tuning || !tuning.controls.length) return h("section", { tabindex: "0", "aria-label": title }, h("h4", {}, title), mutedLine(said));
    this.#fit(tuning);
    const rows = heatMap(tuning, this.down, this.across, this.others), best = fastest(tuning), usualValues = usual(tuning);
    const selected = this.selected || best?.values || usualValues;
    const point = tuning.points.find((p) => same(p.values, selected));
    return h(
      "section", { tabindex: "0", class: "tune", "aria-label": title },
      h("h4", {}, title, muted(tuning.device ? ` · times on ${tuning.device}, random inputs` : " · not timed: no GPU here. Registers, spills, occupancy.")),
      h("div", { class: "ctl" },
        this.#axis(tuning, "Down", this.down, (v) => this.#turn(v, this.across)),
        this.across ? this.#axis(tuning, "Across", this.across, (v) => this.#turn(this.down, v)) : null,
        tuning.controls.filter((c) => c.name !== this.down && c.name !== this.across).map((c) => h("label", {}, `${controlName(c.name)} `, choice(controlName(c.name), valuesOf(tuning, c.name).map((v) => /** @type {[string, string]} */ ([String(v), valueText(c.name, v)])), String(this.others[c.name] ?? c.default), (v) => { this.others[c.name] = Number(v); this.redraw(); }))),
        isLive ? button(`Try all ${rows.flat().length}`, "r", () => this.run(tuning)) : null),
      h("table", { class: "heat", "aria-label": "Heat map" },
        this.across ? h("thead", {}, h("tr", {}, h("td", {}), valuesOf(tuning, this.across).map((v) => h("th", { scope: "col" }, valueText(this.across, v))))) : null,
        h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, valueText(this.down, row[0].values[this.down])), row.map((cell) => this.#cell(cell, tuning, best, selected)))))),
      h("p", { class: "pick" }, h("b", {}, settingsText(selected)), ": ", point ? facts(point) : "not tried yet.", same(tuning.chosen, selected) ? " Later compiles use it." : "",
        isLive && point && !point.problem && !same(tuning.chosen, selected) ? button("Keep", "", () => {
          this.selected = selected;  // else the fastest, which may be another one once the default is timed again
          this.request("keep", Object.fromEntries(Object.entries(selected).map(([n, v]) => [n, [v]])));
        }) : null,
        isLive && tuning.chosen ? button("Forget", "", () => this.request("forget")) : null),
    );
  }

  /** @param {string} down @param {string} across */
  #turn(down, across) {
    [this.down, this.across] = down === across ? [this.across, this.down] : [down, across];
    this.redraw();
  }

  /** @param {Tuning} tuning @param {string} label @param {string} name @param {(v: string) => void} changed */
  #axis(tuning, label, name, changed) {
    return h("label", {}, `${label} `, choice(label, tuning.controls.map((c) => /** @type {[string, string]} */ ([c.name, controlName(c.name)])), name, changed));
  }

  /** @param {ReturnType<typeof heatMap>[0][0]} cell @param {Tuning} tuning @param {Point | null} best @param {Record<string, number>} selected */
  #cell(cell, tuning, best, selected) {
    const { point, values } = cell, isUsual = same(usual(tuning), values), isBest = same(best && best.values, values);
    const marks = [isBest ? "fastest" : "", isUsual ? "default" : "", same(tuning.chosen, values) ? "kept" : ""].filter(Boolean).join(", ");
    return h("td", {}, h("button", { type: "button", class: "hc" + (same(selected, values) ? " sel" : "") + (isUsual ? " def" : ""), "aria-pressed": String(same(selected, values)), title: `${settingsText(values)}: ${point ? facts(point) : "not tried yet."}`, style: `background:color-mix(in srgb,var(--brand) ${cell.shade}%,var(--bg))`, onclick: () => { this.selected = values; this.redraw(); } }, point ? short(point) : "–", marks ? h("small", {}, marks) : null));
  }
}

/** @param {Point} p */
const short = (p) => (p.problem ? "✗" : p.seconds != null ? ms(p.seconds) : [p.registers, p.spills, p.occupancy == null ? null : Math.round(p.occupancy * 100) + " %"].map((v) => v ?? "–").join(" · "));

/** @param {Point} p */
function facts(p) {
  if (p.problem) return p.problem + ".";
  if (p.seconds != null) return ms(p.seconds) + ".";
  return `${plural(p.registers ?? 0, "register")}, ${plural(p.spills ?? 0, "spill")}${p.occupancy == null ? "" : `, occupancy ${Math.round(p.occupancy * 100)} %`}.`;
}
