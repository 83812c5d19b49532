// Radio buttons for one question. Text reaches the page as text only.

let count = 0;

/**
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: number) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, callback: () => void) => void} on
 * @property {(event: string, callback: () => void) => void} off
 */

/** @param {{model: Model, el: HTMLElement}} context */
function render({ model, el }) {
  const group = `lm-question-${++count}`;
  const box = document.createElement("fieldset");
  box.className = "lm-question";
  // Arrow keys move between choices; the notebook must not take them for its own.
  box.dataset.lmSuppressShortcuts = "true";
  const legend = document.createElement("legend");
  legend.textContent = model.get("question");
  box.append(legend);
  const said = document.createElement("div");
  said.setAttribute("aria-live", "polite");

  const rows = /** @type {string[]} */ (model.get("choices")).map((text, index) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "radio";
    input.name = group;
    input.addEventListener("change", () => {
      model.set("chosen", index);
      model.save_changes();
    });
    const words = document.createElement("span");
    words.textContent = text;
    label.append(input, words);
    box.append(label);
    return { label, input, words, text };
  });
  box.append(said);

  function update() {
    const chosen = model.get("chosen");
    const answer = model.get("answer");
    rows.forEach((row, index) => {
      row.input.checked = index === chosen;
      row.input.disabled = answer >= 0;
      row.label.classList.toggle("is-answer", index === answer);
      row.words.textContent = index === answer ? `${row.text} ✓ the answer` : row.text;
    });
    if (answer >= 0) said.textContent = "Answered: see below.";
    else if (chosen >= 0) said.textContent = "Recorded. Run the next cell.";
    else said.textContent = "";
  }

  model.on("change:chosen", update);
  model.on("change:answer", update);
  update();
  el.append(box);
  return () => {
    model.off("change:chosen", update);
    model.off("change:answer", update);
  };
}

export default { render };
