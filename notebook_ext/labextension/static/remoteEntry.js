// Extension of JupyterLab: marks beside the code of cells. An explorer in the page says what to mark, by an event.

(() => {
  const NAME = "compile-explorer";
  const EVENT = "compile-explorer-margin";
  /** Lines of a magic and of comments that may precede the compiled text in an editor. */
  const MOST_LINES_BEFORE = 20;
  const STYLE = `
.ce-margin{min-width:24px;cursor:pointer;--ce1:#0b63a5;--ce2:#b04500;--ce3:#00705a;--ce4:#8f3f78;--ce5:#735700;--ce6:#4b5966;--ce-bad:#b3261e}
[data-jp-theme-light=false] .ce-margin{--ce1:#6cb4ee;--ce2:#ff9f5c;--ce3:#4fd1a8;--ce4:#e6a3d0;--ce5:#e0c04f;--ce6:#b3c1cc;--ce-bad:#ffa8a0}
.ce-mark{display:flex;justify-content:flex-end;align-items:center;gap:2px;height:100%;font:11px/1 var(--jp-ui-font-family,sans-serif);color:var(--jp-ui-font-color1,inherit)}
.ce-mark b{color:var(--ce-bad)}.ce-mark i{align-self:stretch;background:var(--ce)}`;

  /** Modules that JupyterLab shares, by name and version. @type {Record<string, Record<string, {get: () => Promise<() => any>, loaded?: unknown}>>} */
  let scope = {};

  /** @param {string} name */
  async function shared(name) {
    const versions = Object.values(scope[name]);
    return (await (versions.find((v) => v.loaded) ?? versions[0]).get())();
  }

  /** Lines of an editor before the compiled text; -1 if the editor has another text. @param {any} doc @param {any[]} marks */
  function linesBefore(doc, marks) {
    for (let before = 0; before <= MOST_LINES_BEFORE; before++)
      if (marks.every((m) => m.line + before <= doc.lines && doc.line(m.line + before).text.trim() === m.code)) return before;
    return -1;
  }

  /** @param {any} mark */
  function markElement(mark) {
    const el = document.createElement("div");
    el.className = "ce-mark";
    el.title = mark.text;
    // Reached by Tab in command mode; JupyterLab's own keys do not act on it.
    el.tabIndex = 0;
    el.setAttribute("role", "button");
    el.setAttribute("aria-label", mark.text);
    el.dataset.lmSuppressShortcuts = "true";
    for (const [tag, text] of [["b", mark.sign.includes("✗") ? "✗" : ""], ["span", mark.sign.replace("✗", "")]]) {
      if (text) el.append(Object.assign(document.createElement(tag), { textContent: text }));
    }
    if (mark.number) {
      const bar = document.createElement("i");
      bar.style.cssText = `--ce:var(--ce${((mark.number - 1) % 6) + 1});width:${Math.round(3 + 9 * mark.heat)}px`;
      el.append(bar);
    }
    return el;
  }

  /** The margin as an extension of CodeMirror, and the effect that sets its marks. @param {any} view @param {any} state */
  function makeMargin(view, state) {
    const set = state.StateEffect.define();
    class Mark extends view.GutterMarker {
      /** @param {any} mark @param {(target: string) => void} open */
      constructor(mark, open) {
        super();
        this.mark = mark;
        this.open = open;
      }

      toDOM() {
        return markElement(this.mark);
      }
    }
    const field = state.StateField.define({
      create: () => state.RangeSet.empty,
      update(/** @type {any} */ marks, /** @type {any} */ transaction) {
        for (const effect of transaction.effects) if (effect.is(set)) return effect.value;
        if (!transaction.docChanged) return marks;
        // A line that is edited is not the compiled one.
        const { doc } = transaction.startState, { changes } = transaction;
        return marks.update({ filter: (/** @type {number} */ from) => !changes.touchesRange(from, doc.lineAt(from).to) }).map(changes);
      },
    });
    /** @param {any} editor @param {any} line */
    const openLine = (editor, line) => {
      editor.state.field(field).between(line.from, line.from, (/** @type {number} */ _from, /** @type {number} */ _to, /** @type {Mark} */ mark) => mark.open(mark.mark.target));
      return true;
    };
    const gutter = view.gutter({
      class: "ce-margin",
      markers: (/** @type {any} */ editor) => editor.state.field(field),
      domEventHandlers: {
        click: openLine,
        keydown: (/** @type {any} */ editor, /** @type {any} */ line, /** @type {KeyboardEvent} */ event) => [" ", "Enter"].includes(event.key) && openLine(editor, line),
      },
    });
    const ranges = (/** @type {any} */ doc, /** @type {any[]} */ marks, /** @type {number} */ before, /** @type {(target: string) => void} */ open) =>
      state.RangeSet.of(marks.map((m) => new Mark(m, open).range(doc.line(m.line + before).from)), true);
    return { install: [field, gutter], append: state.StateEffect.appendConfig, set, ranges, empty: state.RangeSet.empty, field };
  }

  /** @param {any} app */
  async function activate(app) {
    const margin = makeMargin(await shared("@codemirror/view"), await shared("@codemirror/state"));
    document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
    /** Element of the explorer that made the marks of an editor. @type {Map<any, Element>} */
    const owners = new Map();
    const show = (/** @type {any} */ editor, /** @type {any} */ value) => {
      if (!editor.state.field(margin.field, false)) editor.dispatch({ effects: margin.append.of(margin.install) });
      editor.dispatch({ effects: margin.set.of(value) });
      // CodeMirror hides gutters from screen readers; this one has buttons.
      editor.dom.querySelector(".cm-gutters")?.removeAttribute("aria-hidden");
    };
    document.addEventListener(EVENT, (event) => {
      const { root, files, open } = /** @type {CustomEvent} */ (event).detail;
      const cells = [...app.shell.widgets("main")].map((w) => (w.content?.layout ? (w.content.widgets ?? []) : [])).find((all) => all.some((/** @type {any} */ c) => c.node.contains(root))) ?? [];
      const own = cells.filter((/** @type {any} */ c) => c.node.contains(root));
      const editors = [...own, ...cells].map((/** @type {any} */ c) => c.editor?.editor).filter(Boolean);
      const old = new Set([...owners].filter(([, owner]) => owner === root).map(([editor]) => editor));
      for (const { marks } of files) {
        const editor = editors.find((e) => linesBefore(e.state.doc, marks) >= 0);
        if (!editor) continue;
        show(editor, margin.ranges(editor.state.doc, marks, linesBefore(editor.state.doc, marks), open));
        owners.set(editor, root);
        old.delete(editor);
      }
      for (const editor of old) {
        show(editor, margin.empty);
        owners.delete(editor);
      }
    });
  }

  const plugin = { id: NAME + ":margin", description: "Marks beside the code of cells.", autoStart: true, activate };
  const page = /** @type {any} */ (window);
  page._JUPYTERLAB = page._JUPYTERLAB ?? {};
  page._JUPYTERLAB[NAME] = {
    init: (/** @type {typeof scope} */ found) => { scope = found; },
    get: async () => () => ({ __esModule: true, default: plugin }),
  };
})();
