"""The widget's module, its messages, and how it follows a session."""

from __future__ import annotations

import gc
import io
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
import types
import weakref
from collections import Counter
from typing import Any

import pytest
import torch

import engine
from notebook_ext.widgets import explorer
from notebook_ext.widgets.bundle_assets import (
    INITIAL_MODULES,
    LAZY_VIEW_MODULES,
    MODULES,
    STATIC,
    STYLE_SHEETS,
    exported_names,
    full_module_text,
    imported_names,
    initial_module_text,
    lazy_view_text,
    style_text,
)
from notebook_ext.widgets.explorer import Explorer, last_view_of
from notebook_ext.widgets.standalone_page import write_page
from tests.notebook_ext.sample_sessions import head_compilation, head_session, hostile_session, verified_session

JS = pathlib.Path(__file__).parents[1] / "js"


class Recorded(Explorer):
    """An explorer that keeps what it sends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.out: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def send(self, content: dict[str, Any], buffers: Any = None) -> None:
        """Keep a message instead of sending it."""
        self.out.append(content)


def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_all_modules_are_joined_into_one_that_imports_nothing() -> None:
    """All front end files are joined into one module without imports or comments.

    Files of a separate widget are left out. The order works, and one default export is left.
    """
    assert {p.relative_to(STATIC).as_posix() for p in STATIC.rglob("*.js")} == {
        *MODULES,
        "question.js",
        "site/search.js",
        "site/site.js",
    }
    assert {p.relative_to(STATIC).as_posix() for p in STATIC.rglob("*.css")} == {
        *STYLE_SHEETS,
        "question.css",
        "site/site.css",
    }
    text = full_module_text()
    assert not re.search(r"^\s*import\b", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == ["export default { render };"]
    assert "@param" not in text


def test_modules_of_one_page_declare_no_name_twice() -> None:
    """They share one scope: a name that is declared twice is a syntax error of the page."""
    declaration = re.compile(r"^(?:export )?(?:const|let|class|(?:async )?function) (\w+)", re.MULTILINE)
    declared = [name for file in MODULES for name in declaration.findall((STATIC / file).read_text(encoding="utf-8"))]
    assert len(declared) > 100
    assert [name for name, count in Counter(declared).items() if count > 1] == []


def test_a_widget_starts_with_what_the_first_look_needs() -> None:
    """The initial module of a widget stays small, and other views load when opened.

    Saved notebooks hold the module once per cell.
    """
    assert len(initial_module_text()) + len(style_text()) < 110_000
    assert "class LinkedView" in initial_module_text()
    assert "class GraphView" not in initial_module_text()
    assert {view for view in LAZY_VIEW_MODULES if f'VIEWS.set("{view}"' in lazy_view_text(view)} == set(
        LAZY_VIEW_MODULES
    )
    assert len(full_module_text()) + len(style_text()) < 312_000


def test_later_views_use_only_what_the_first_module_shares() -> None:
    """Every name that a view imports comes from an earlier module or its own modules."""
    for files in LAZY_VIEW_MODULES.values():
        known = {*exported_names(INITIAL_MODULES), *exported_names(files)}
        assert {name for file in files for name in imported_names(file)} <= known


def test_the_code_of_a_view_is_sent_when_asked_for() -> None:
    """The reply holds a module; a view that does not exist is not answered."""
    widget = Recorded(head_session())
    widget.handle_message({"type": "code", "view": "graph"})
    widget.handle_message({"type": "code", "view": "../secrets"})
    assert [(m["type"], m["view"]) for m in widget.out] == [("code", "graph")]
    assert widget.out[0]["text"].startswith("export default ({ ")


def test_modules_come_after_what_they_import() -> None:
    """A class must exist before one that is made when the module loads."""
    for i, name in enumerate(MODULES):
        text = (STATIC / name).read_text(encoding="utf-8")
        for path in re.findall(r'^import .* from "(.*)";', text, re.MULTILINE):
            found = (STATIC / name).parent.joinpath(path).resolve().relative_to(STATIC.resolve()).as_posix()
            assert MODULES.index(found) < i


def test_no_two_modules_define_the_same_name() -> None:
    """Joined, they share one scope."""
    text = "".join((STATIC / name).read_text(encoding="utf-8") for name in MODULES)
    names = re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not here")
@pytest.mark.thorough
def test_the_joined_modules_are_valid(tmp_path: pathlib.Path) -> None:
    """Node parses the one of a page, the one of a widget and each that is sent later."""
    for text in (full_module_text(), initial_module_text(), *map(lazy_view_text, LAZY_VIEW_MODULES)):
        path = tmp_path / "explorer.mjs"
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_the_front_end_type_checks() -> None:
    """TypeScript finds nothing wrong with the JSDoc types."""
    found = shutil.which("tsc", path=str(JS / "node_modules" / ".bin")) or shutil.which("tsc")
    if found is None:
        pytest.skip("TypeScript is not here: npm ci in tests/js installs it")
    done = subprocess.run([found, "-p", str(JS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_code_makes_html_from_text() -> None:
    """No way from a string to elements exists in the front end."""
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
    ):
        assert word not in full_module_text()


def test_the_first_look_needs_no_message() -> None:
    """Overview and the view that opens are there from the start."""
    widget = Recorded(head_session())
    assert widget.overview["start"] == "0/0"
    assert set(widget.parts) == {"home"}
    assert set(Recorded(head_session(), view="linked|0/0|line=2").parts) == {"home", "linked|0/0|"}


def test_the_linked_view_follows_home_as_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes once, from another thread, so that it also arrives while the kernel is busy."""
    monkeypatch.setattr(explorer, "DEBOUNCE_SECONDS", 0.01)
    widget = Recorded(head_session())
    sent: list[Any] = []
    widget.observe(sent.append, "parts")
    until(lambda: "linked|0/0|" in widget.parts)
    assert widget.parts["linked|0/0|"] == Recorded(head_session(), view="linked").parts["linked|0/0|"]
    assert (len(sent), widget.out) == (1, [])


def test_the_linked_view_comes_with_the_first_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A widget of an empty session gets it when there is something to show."""
    monkeypatch.setattr(explorer, "DEBOUNCE_SECONDS", 0.01)
    session = engine.Session()
    widget = Recorded(session)
    until(lambda: widget._timer is None)
    assert set(widget.parts) == {"home"}
    session.put_compilation(head_compilation(0, "64", "first call"))
    until(lambda: "linked|0/0|" in widget.parts)


def test_a_part_is_sent_when_asked_for() -> None:
    """The reply carries its key; a part that does not exist is not answered."""
    widget = Recorded(head_session())
    widget.handle_message({"type": "part", "key": "guards|0/0"})
    widget.handle_message({"type": "part", "key": "guards|no/such"})
    widget.handle_message({"type": "part"})
    assert [(m["type"], m["key"]) for m in widget.out] == [("part", "guards|0/0")]


def test_only_parts_that_changed_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """PTX from another thread resends the linked view of its entry, but not the guards.

    Several changes are sent together.
    """
    monkeypatch.setattr(explorer, "DEBOUNCE_SECONDS", 0.05)
    session = head_session()
    widget = Recorded(session)
    for key in ("linked|0/1|", "guards|0/1"):
        widget.handle_message({"type": "part", "key": key})
    widget.out.clear()
    threads = [
        threading.Thread(target=session.put_compilation, args=(head_compilation(1, "s0", "again"),)) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    until(lambda: widget.out)
    time.sleep(0.2)
    assert [m["key"] for m in widget.out] == ["linked|0/1|"]
    assert widget.out[0]["data"]["texts"]["ptx"]


def test_kernels_that_arrive_while_the_widget_is_made_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change between the first look and the listener is sent, as state: no view listens yet."""
    monkeypatch.setattr(explorer, "DEBOUNCE_SECONDS", 0.01)
    session = head_session()
    session.put_compilation(head_compilation(0, "64", "first call", compiled=False))
    made = explorer.initial_parts

    def arrive(shown: Any, view: str) -> dict[str, Any]:
        parts = made(shown, view)
        session.put_compilation(head_compilation(0, "64", "first call"))
        return parts

    monkeypatch.setattr(explorer, "initial_parts", arrive)
    widget = Recorded(session, view="linked")
    assert "ptx" not in widget.parts["linked|0/0|"]["texts"] or not widget.parts["linked|0/0|"]["texts"]["ptx"]
    until(lambda: widget.parts["linked|0/0|"]["texts"].get("ptx"))


def test_verify_calls_back_and_tells_a_failure() -> None:
    """The button runs the callback; without one, or when it fails, a sentence says so."""
    called = []
    widget = Recorded(head_session(), on_verify=lambda: called.append(1))
    widget.handle_message({"type": "verify"})
    until(lambda: called == [1])
    loaded = Recorded(head_session())
    loaded.handle_message({"type": "verify"})
    assert "cannot be checked here" in loaded.out[-1]["text"]

    def fail() -> None:
        raise ValueError("no worker")

    failing = Recorded(head_session(), on_verify=fail)
    failing.handle_message({"type": "verify"})
    until(lambda: failing.out and failing.out[-1]["text"] == "The check failed: ValueError: no worker")


def test_what_if_is_answered_while_a_check_runs() -> None:
    """A check has a thread of its own; a second one is not started beside it."""
    compiled = engine.compile(lambda x: x + 1, backend="eager")
    with engine.record() as session:
        compiled(torch.ones(3))
    finish, checks = threading.Event(), []

    def check() -> None:
        checks.append(1)
        finish.wait(60)

    widget = Recorded(session, on_verify=check)
    widget.handle_message({"type": "verify"})
    widget.handle_message({"type": "what-if", "entry": session.compilations[0].id, "edits": {"x": {"shape": "4"}}})
    assert widget.out[-1]["data"]["told"]["hit"] == ""
    widget.handle_message({"type": "verify"})
    assert "already running" in widget.out[-1]["text"]
    finish.set()
    until(lambda: not widget._verify_lock.locked())
    assert checks == [1]


def test_questions_that_only_a_live_session_answers() -> None:
    """A loaded session answers what-if, measure and fix requests with a sentence.

    No kernel is behind such a session.
    """
    widget = Recorded(head_session())
    widget.handle_message({"type": "what-if", "entry": "0/0", "edits": {"x": {"shape": "1"}}})
    assert "loaded" in widget.out[-1]["data"]["problem"]
    widget.handle_message({"type": "what-if", "entry": "nowhere", "edits": "nothing"})
    assert widget.out[-1]["data"]["problem"]
    widget.handle_message({"type": "measure"})
    assert widget.out[-1]["text"].startswith("Nothing could be measured")
    widget.handle_message({"type": "measure-kernels"})
    assert widget.out[-1]["text"].startswith("Nothing could be measured: the session was loaded")
    widget.handle_message({"type": "try"})
    assert widget.out[-1]["text"].startswith("No fix could be verified")


def test_contents_are_noted_when_asked_for() -> None:
    """After a replay, the AOT wrappers of a plain run are sent again with values.

    A sentence says which inputs were used. A loaded session gives the reason why it cannot replay.
    """
    x = torch.ones(3, requires_grad=True)
    with engine.record() as session:
        engine.compile(lambda x: (x * 2).sum(), backend="aot_eager")(x)
    entry = session.compilations[0].id
    widget = Recorded(session)
    widget.handle_message({"type": "part", "key": f"aot|{entry}"})
    assert widget.out[-1]["data"]["passages"] == []
    widget.handle_message({"type": "replay", "entry": entry})
    assert widget.out[-1] == {
        "type": "say",
        "text": "The call was replayed on copies of its arguments in their present state.",
    }
    widget.refresh()
    (passage,) = widget.out[-1]["data"]["passages"]
    assert passage["moments"][-1]["ring"] == "Backward"
    assert passage["moments"][-1]["values"] == [["gradient of x", "[2, 2, 2]"]]
    loaded = Recorded(head_session())
    loaded.handle_message({"type": "replay", "entry": "0/0"})
    assert "loaded" in loaded.out[-1]["text"]


def test_a_request_of_the_edit_view_that_fails_is_answered() -> None:
    """The view waits for no answer then; a message that prepares a trial gets none."""
    widget = Recorded(engine.Session())
    widget.handle_message({"type": "edit", "action": "open"})
    assert [m["data"]["problem"].partition(":")[0] for m in widget.out] == ["The edit failed"]
    widget.handle_message({"type": "edit", "action": "prepare", "entry": "0/0", "text": "graph"})
    assert len(widget.out) == 1


def test_panes_open_as_in_the_last_explorer() -> None:
    """The next widget of the kernel opens with the last pane layout.

    The last open view is stored per session.
    """
    session = head_session()
    widget = Recorded(session)
    widget.pane_layout = {"A": "source", "B": "fx", "C": "ptx", "D": "sass"}
    widget.view = "guards|0/1|guard=3"
    assert Recorded(head_session()).pane_layout["D"] == "sass"
    assert (last_view_of(session), last_view_of(head_session())) == ("guards", "")
    widget.pane_layout = {}


def test_what_if_on_a_live_session() -> None:
    """A what-if with a changed shape names the entry that it would hit.

    The answer also has the fields to start from.
    """
    compiled = engine.compile(lambda x: x + 1, backend="eager")
    with engine.record() as session:
        compiled(torch.ones(3))
    entry = session.compilations[0].id
    widget = Recorded(session)
    widget.handle_message({"type": "what-if", "entry": entry, "edits": {}})
    assert widget.out[-1]["data"]["inputs"]["x"]["shape"] == "3"
    assert widget.out[-1]["data"]["told"]["hit"] == entry
    widget.handle_message({"type": "what-if", "entry": entry, "edits": {"x": {"shape": "4"}}})
    assert widget.out[-1]["data"]["told"]["case"]["failed"] >= 0
    widget.handle_message({"type": "what-if", "entry": entry, "edits": {"x": {"shape": "4, 5"}}})
    data = widget.out[-1]["data"]
    assert (data["inputs"]["x"]["stride"], data["asked"]["x"]["stride"]) == ("1", "5, 1")


def test_a_closed_widget_stops_following() -> None:
    """After close the session keeps nothing of it."""
    session = head_session()
    widget = Recorded(session)
    widget.close()
    session.add_note("added after close")
    assert "added after close" not in str(widget.overview)
    assert session._listeners == []


def test_a_closed_widget_is_freed() -> None:
    """Neither the session nor a timer keeps it."""
    session = head_session()
    widget = Recorded(session)
    alive = weakref.ref(widget)
    widget.close()
    del widget
    gc.collect()
    assert alive() is None


def test_the_page_is_one_file_that_loads_nothing() -> None:
    """The page loads nothing, forbids other scripts and escapes user text.

    It has no address and only scripts of its own. User text cannot end the data.
    """
    page = io.BytesIO()
    write_page(hostile_session(), page, "a <b> & </title>")
    text = page.getvalue().decode()
    ours = re.sub(r"<script type=.(?:application/json|text/plain).*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/)""", ours)
    assert "default-src 'none'" in text
    assert text.count("<script") == text.count("</script>") == text.count('<script type="text/plain"') + 3
    assert "<title>a &lt;b&gt; &amp; &lt;/title&gt;</title>" in text


def test_another_session_is_set_beside_the_one_shown() -> None:
    """A second session's entries are in the overview, and its parts have its number.

    The difference of the two sessions is listed by function.
    """
    widget = Recorded(head_session(), others={"the run before": verified_session()}, name="this run")
    assert [o["name"] for o in widget.overview["others"]] == ["the run before"]
    for key in ("other|0|brief|0/0", "difference|0|", "other|1|brief|0/0", "difference|x|"):
        widget.handle_message({"type": "part", "key": key})
    assert [m["key"] for m in widget.out] == ["other|0|brief|0/0", "difference|0|"]
    told = widget.out[1]["data"]
    assert told["headline"].startswith("the run before and this run: no difference")
    assert [f["name"] for f in told["frames"]] == ["Head.forward", "loss", "loss, resumed after line 19"]


def test_an_entry_in_short_names_its_facts_guards_and_kernels() -> None:
    """What comparing needs besides the texts of the panes."""
    widget = Recorded(head_session())
    widget.handle_message({"type": "part", "key": "brief|0/0"})
    told = widget.out[0]["data"]
    facts = {name: text for name, text, _ in told["facts"]}
    assert facts["Compiled because"] == "first call"
    assert int(facts["Guards"]) == len(told["guards"]) > 0
    assert any("registers" in line for line in told["kernels"]["cuda:90"])
    kernels = next(text for name, text, _ in told["programs"]["cuda:90"] if name == "Kernels")
    assert int(kernels) == len(told["kernels"]["cuda:90"])


AT_THE_END = """
import atexit, threading, time
from notebook_ext.widgets import explorer
from tests.notebook_ext.sample_sessions import head_session, verified_session
explorer.DEBOUNCE_SECONDS = 0.01
session = head_session()
widget = explorer.Explorer(session)
widget.observe(lambda _: print("sent"), "overview")

def change():
    for compilation in verified_session().compilations:
        session.put_compilation(compilation)
    time.sleep(0.3)

atexit.register(change)
if {early}:
    change()
"""


@pytest.mark.parametrize(("early", "wanted"), [(True, {"sent"}), (False, set())])
def test_nothing_is_sent_while_the_interpreter_ends(early: bool, wanted: set[str]) -> None:
    """Changes to the session at interpreter exit send no message.

    Workers that are closed at exit still change the session, but the sockets are closed already.
    """
    ran = subprocess.run(
        [sys.executable, "-c", AT_THE_END.replace("{early}", str(early))],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (set(ran.stdout.split()), ran.stderr) == (wanted, "")  # A slow machine collects changes in two updates.


def test_names_of_all_modules_are_told_apart() -> None:
    """The modules are joined into one scope: no name stands at the top level of two."""
    names = [
        n
        for file in MODULES
        for n in re.findall(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)",
            (STATIC / file).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert sorted(n for n, count in Counter(names).items() if count > 1) == []


def test_colab_is_asked_for_its_manager_of_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer enables Colab's custom widget manager and names its address.

    Colab shows third-party widgets only after that.
    """
    asked: list[bool] = []
    output = types.ModuleType("google.colab.output")
    output.__dict__["enable_custom_widget_manager"] = lambda: asked.append(True)
    output.__dict__["_widgets"] = types.SimpleNamespace(_installed_url="the manager")
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    bundle = Explorer(head_session())._repr_mimebundle_()
    assert asked == [True]
    assert "the manager" in str(bundle)
