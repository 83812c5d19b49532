"""Test the widget's module outside Jupyter, as other anywidget hosts use it.

VS Code and Colab are such hosts.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from notebook_ext.views.explorer_parts import initial_parts, overview, part
from notebook_ext.widgets.bundle_assets import LAZY_VIEW_MODULES, initial_module_text, lazy_view_text, style_text
from tests.browser.test_explorer import CONTRAST, choose_view
from tests.notebook_ext.sample_sessions import verified_session

pytestmark = pytest.mark.browser

HOST = """<!doctype html><meta charset="utf-8"><style>{style}</style><div id="a"></div><div id="b"></div>
<script type="application/json" id="state">{state}</script><script type="application/json" id="answers">{answers}</script>
<script type="application/json" id="code">{code}</script><script>
const read = (id) => JSON.parse(document.getElementById(id).textContent), before = new Set(Object.keys(window));
const state = read("state"), answers = read("answers"), code = read("code");
window.host = {{ listeners: [], sent: [], saved: 0, before, errors: [] }};
addEventListener("unhandledrejection", (e) => host.errors.push(String(e.reason)));
window.model = {{
  get: (name) => state[name],
  set(name, value) {{ state[name] = value; for (const [e, f] of [...host.listeners]) if (e === "change:" + name) f(); }},
  save_changes() {{ host.saved++; }},
  on(event, f) {{ host.listeners.push([event, f]); }},
  off(event, f) {{ host.listeners = host.listeners.filter((l) => !(l[0] === event && (!f || l[1] === f))); }},
  send(message) {{
    host.sent.push(message);
    const told = message.type === "part" ? {{ type: "part", key: message.key, data: answers[message.key] }} : message.type === "code" ? {{ type: "code", view: message.view, text: code[message.view] }} : null;
    if (told) setTimeout(() => {{ for (const [e, f] of [...host.listeners]) if (e === "msg:custom") f(told, []); }});
  }},
}};
window.show = async (id) => {{
  // One module for all views of a model, as anywidget has it.
  host.made ||= await import(URL.createObjectURL(new Blob([code.first], {{ type: "text/javascript" }})));
  const {{ made }} = host;
  host.exports = Object.keys(made);
  return made.default.render({{ model, el: document.getElementById(id), experimental: {{}} }});
}};
</script>"""


@pytest.fixture
def host(tab: Callable[[int], Any], tmp_path: pathlib.Path) -> Any:
    """A page with a model that answers as the kernel does, and no Jupyter."""
    session = verified_session()
    start = {"overview": overview(session), "parts": initial_parts(session, ""), "view": ""}
    keys = [
        "index",
        "kernels",
        "timings",
        "recompiles",
        "breaks",
        "compilations",
        "backward",
        "guards|0/0",
        "graph|0/0|",
    ]
    keys += [
        "tracer|0/0",
        "aot|0/0",
        "brief|0/0",
        "linked|0/0|",
        "guards|0/1",
        "tracer|0/1",
        "aot|0/1",
        "facts|0/0",
        "devices",
    ]
    answers = {key: part(session, key) for key in keys}
    code = {"first": initial_module_text(), **{view: lazy_view_text(view) for view in LAZY_VIEW_MODULES}}
    told = {
        name: json.dumps(value).replace("<", "\\u003c")
        for name, value in (("state", start), ("answers", answers), ("code", code))
    }
    path = tmp_path / "host.html"
    path.write_text(HOST.format(style=style_text(), **told), encoding="utf-8")
    page = tab(1200).page
    page.goto(path.as_uri())
    return page


def test_one_default_export_and_nothing_left_in_the_page(host: Any) -> None:
    """The module exports only a default and adds no global, also with lazily loaded views."""
    host.evaluate("async () => { window.dispose = await show('a'); }")
    for view in LAZY_VIEW_MODULES:
        choose_view(host, view, "#a")
        host.wait_for_selector(f"#a .panel > .{view}")
    assert host.evaluate("host.exports") == ["default"]
    found = host.evaluate("Object.keys(window).filter((name) => !host.before.has(name))")
    assert set(found) <= {"host", "model", "show", "dispose"}
    assert host.evaluate("host.errors") == []


def test_disposing_ends_every_subscription(host: Any) -> None:
    """Disposing a widget removes all its listeners; later model changes raise nothing."""
    host.evaluate("async () => { window.dispose = await show('a'); }")
    assert host.evaluate("host.listeners.length") > 0
    host.evaluate("() => { dispose(); document.getElementById('a').replaceChildren(); }")
    assert host.evaluate("host.listeners.length") == 0
    host.evaluate("() => model.set('overview', model.get('overview'))")
    assert host.evaluate("host.errors") == []


def test_the_place_in_hand_is_saved_with_the_model_and_opens_again(host: Any) -> None:
    """A settled selection is saved with the model and restored when the widget reopens.

    The kernel may also set the selection.
    """
    host.evaluate("async () => { window.dispose = await show('a'); }")
    host.locator('#a .tabs [data-view="guards"]').click()
    host.locator("#a .guards .tr.sel").wait_for()
    host.wait_for_function("() => host.saved > 0 && model.get('view').startsWith('guards|0/')")
    host.evaluate("async () => { await show('b'); }")
    host.locator("#b .guards .tr.sel").wait_for()
    host.evaluate("() => model.set('view', 'timings')")
    host.wait_for_selector("#a .timings")
    host.wait_for_selector("#b .timings")


def test_two_views_of_one_model_do_not_follow_each_other(host: Any) -> None:
    """What a person selects in one stays there."""
    host.evaluate("async () => { await show('a'); await show('b'); }")
    told = host.locator("#b .say").inner_text()
    host.locator('#a .tabs [data-view="recompiles"]').click()
    host.wait_for_function("() => host.saved > 0")
    assert host.locator("#b .say").inner_text() == told


HOSTS = {
    "VS Code, dark": ("document.body.classList.add('vscode-dark')", "--vscode-editor-background:#1f1f1f;--vscode-editor-foreground:#ccc"),
    "VS Code, light": ("document.body.classList.add('vscode-light')", "--vscode-editor-background:#fff;--vscode-editor-foreground:#3b3b3b"),
    "Colab, dark": ("document.documentElement.setAttribute('theme', 'dark')", "--colab-primary-surface-color:#383838;--colab-primary-text-color:#e3e3e3"),
    "no host known": ("0", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTS)
def test_the_colors_of_other_hosts_are_readable(host: Any, name: str) -> None:
    """Text contrast holds under the themes of VS Code and Colab, without Jupyter's colors.

    VS Code names its theme by a class of the body, Colab by an attribute of the page.
    """
    script, colors = HOSTS[name]
    host.evaluate(script)
    host.evaluate(
        "(colors) => { document.body.style.cssText = colors + ';background:var(--vscode-editor-background,var(--colab-primary-surface-color,#fff))'; }",
        colors,
    )
    host.evaluate("async () => { window.dispose = await show('a'); }")
    for view in ("linked", "guards", "kernels", "aot"):
        choose_view(host, view, "#a")
        host.wait_for_selector(f"#a .panel > .{view}")
        assert host.evaluate(CONTRAST.replace(".lm *", "#a .lm *")) == []
    dark = host.evaluate("getComputedStyle(document.querySelector('#a .lm .wid')).backgroundColor")
    assert (sum(map(int, dark[4:-1].split(",")[:3])) < 300) is name.endswith("dark")


def test_a_host_without_a_kernel_is_told_of(host: Any) -> None:
    """A closed model channel leaves the screen as it is and explains why nothing more loads.

    Such a model raises when asked.
    """
    host.evaluate(
        "async () => { model.send = () => { throw new Error('closed'); }; model.save_changes = model.send; await show('a'); }"
    )
    host.locator("#a .lm").focus()
    host.keyboard.press("ArrowDown")
    assert "loss breaks the graph" in host.locator("#a .say").inner_text()
    host.locator('#a .tabs [data-view="recompiles"]').click()
    host.locator("#a .say", has_text="was restarted or stopped").wait_for()
    assert host.evaluate("host.errors") == []
