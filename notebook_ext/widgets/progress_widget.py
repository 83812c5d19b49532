"""Progress widget of a cell: a line of text, with a button that cancels the compilation."""

from __future__ import annotations

import anywidget
import traitlets

_MODULE = """\
export default { render({ model, el }) {
  const text = document.createElement("span"), update = () => { text.textContent = model.get("text") + " "; };
  model.on("change:text", update);
  update();
  el.append(text);
  if (!model.get("can_cancel")) return;
  const button = document.createElement("button");
  button.className = "jupyter-button";
  button.textContent = "Cancel";
  button.title = "Stop compiling: the cell continues as plain Python. Click again to interrupt the cell";
  button.addEventListener("click", () => model.send({}));
  el.append(button);
} };
"""


class ProgressWidget(anywidget.AnyWidget):
    """A line whose text changes; its message is a click on Cancel.

    One view without children: a box that is removed before the views of its children are made raises an error in the
    page, as after a short compilation on a busy machine.
    """

    _esm = _MODULE
    text = traitlets.Unicode().tag(sync=True)
    can_cancel = traitlets.Bool(False).tag(sync=True)

    def __repr__(self) -> str:
        """Return the text: a front end without widgets shows it."""
        return self.text
