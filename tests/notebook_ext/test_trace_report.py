"""Traces of stock torch.compile shown without a kernel.

Covers the command line, its page, ``%explore FILE`` and ``%explore A B``.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.observe.parse_graph import parse_nodes
from engine.records.graph import GraphRecord
from engine.records.kernels import KernelRecord
from engine.records.lowering import LoweringRecord
from engine.records.runtime import call_numbers
from engine.records.session import CompilationRecord, Session
from notebook_ext.__main__ import main
from notebook_ext.trace_report import write_trace_report
from notebook_ext.views.comparison.session_comparison import comparison_html, comparison_text
from notebook_ext.views.compilations import artifact_text, compilation_facts, compilations
from notebook_ext.views.explorer_parts import all_keys, all_parts, part, parts
from notebook_ext.views.guards import guards
from notebook_ext.views.linked.row_links import linked
from notebook_ext.views.search_index import search_index
from notebook_ext.views.source_lines import WITHHELD
from notebook_ext.widgets import standalone_page
from notebook_ext.widgets.standalone_page import write_page
from tests.engine.observe.sample_traces import session_and_log
from tests.notebook_ext.conftest import Shell
from tests.notebook_ext.sample_sessions import HOSTILE, head_session, hostile_session


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a break, a recompile and a backward."""
    path = tmp_path_factory.mktemp("log") / "trace.log"
    path.write_bytes(session_and_log()[1])
    return path


@pytest.fixture(scope="module")
def session(log: Path) -> Session:
    """The log as loaded."""
    return engine.load_torch_trace(log)


def packed(page: str) -> dict[str, Any]:
    """The parts in a page as a browser reads them: of its first view, and packed."""
    first = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["parts"]
    found = re.search(r'<script type="application/json" id="index">(.*?)</script>', page)
    assert found is not None
    texts = dict(re.findall(r'<script type="text/plain" id="p(\d+)">([^<]*)</script>', page))
    return first | {
        key: json.loads(zlib.decompress(base64.b64decode(texts[str(i)]))) for key, i in json.loads(found[1]).items()
    }


def test_page_holds_every_part(log: Path, session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a log holds every part that a kernel would send and loads nothing.

    Each part equals the one that a kernel would send.
    """
    page = tmp_path / "out" / "page.html"
    assert write_trace_report(log, page) == 0
    assert str(page) in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    found = packed(text)
    assert found == json.loads(json.dumps(all_parts(session)))
    assert set(all_keys(session)) <= set(found)
    assert not re.search(
        r"(?:src|href)=|https?://(?!www\.w3\.org)",
        re.sub(r"<script type=\"text/plain\".*?</script>", "", text).replace("srcdoc=", ""),
    )


def test_command_line_needs_neither_torch_nor_ipython(log: Path, tmp_path: Path) -> None:
    """``python -m notebook_ext LOG -o PAGE`` writes the page without torch or IPython.

    The process never imports either.
    """
    code = (
        "import sys; from notebook_ext.__main__ import main; "
        f"status = main([{str(log)!r}, '-o', {str(tmp_path / 'page.html')!r}]); "
        "sys.exit(status or bool({'torch', 'IPython', 'ipywidgets'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "breaks_in_the_middle" in ran.stdout
    assert (tmp_path / "page.html").stat().st_size > 50_000


def test_no_trace_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file or a file that is no trace ends with a sentence and status 2.

    No page is left.
    """
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("notes.txt", "missing.log"):
        assert write_trace_report(tmp_path / name, tmp_path / "page.html") == 2
        assert capsys.readouterr().err.strip().endswith(".")
    assert not (tmp_path / "page.html").exists()


def test_contents_list_every_compilation(session: Session) -> None:
    """Every compilation has a row with its outcome, and its facts list all its texts.

    The texts hold everything that the trace reports of the compilation.
    """
    rows = compilations(session)["rows"]
    assert [r["id"] for r in rows] == [c.id for c in session.compilations]
    assert {"one graph", "graph break"} <= {r["outcome"] for r in rows}
    symbols = [s for r in rows for s in compilation_facts(session, r["id"])["symbols"]]
    assert any(s["source"].startswith("x.size()") and s["events"] for s in symbols)
    for row in rows:
        names = compilation_facts(session, row["id"])["texts"]
        texts = [artifact_text(session, row["id"], str(i)) for i in range(len(names))]
        assert [t["name"] for t in texts] == names
        assert all(t["text"] for t in texts)
    with pytest.raises(KeyError):
        part(session, f"file|{rows[0]['id']}|999")


def test_the_title_names_the_compiler_that_was_recorded(log: Path, tmp_path: Path) -> None:
    """A saved session is not called a recording of torch.compile, and opens on Home."""
    own, page = tmp_path / "own.json", tmp_path / "page.html"
    Session(subject="engine").save(own)
    for recording, compiler, view in ((own, "compile-explorer", "home"), (log, "torch.compile", "compilations")):
        assert write_trace_report(recording, page) == 0
        text = page.read_text(encoding="utf-8")
        assert f"<title>{recording.name}, recorded by {compiler}</title>" in text
        assert json.loads(text.partition('id="data">')[2].partition("</script>")[0])["view"] == view


def test_contents_of_our_own_and_of_hostile_sessions() -> None:
    """The contents show any session; hostile text stays text."""
    hostile = hostile_session()
    assert [r["id"] for r in compilations(hostile)["rows"]] == [c.id for c in hostile.compilations]
    for compilation in hostile.compilations:
        assert json.dumps(compilation_facts(hostile, compilation.id))


def test_explore_shows_a_log(shell: Shell, log: Path) -> None:
    """``%explore FILE`` shows a trace in the same way as a saved session.

    It also takes a folder of traces, and a path with spaces.
    """
    spaced = log.parent / "my traces"
    spaced.mkdir(exist_ok=True)
    (spaced / "trace.log").write_bytes(log.read_bytes())
    for text in (str(log), f'"{log}"', str(spaced)):
        ran = shell.run(f"%explore {text}")
        assert "breaks_in_the_middle: 2 graphs, 1 break" in " ".join(ran.text.split())


def test_explore_two_compares_them(shell: Shell, session: Session, log: Path) -> None:
    """``%explore A B`` tells what changed between two sessions, by name or file."""
    shell.ns["before"] = session
    assert "no difference in" in shell.run(f"%explore before {log}").text
    assert "two to compare" in shell.run("%explore a b c").text


def test_difference_is_escaped() -> None:
    """Text from users never becomes HTML in the comparison."""
    from engine.observe.compare_sessions import compare_sessions

    found = compare_sessions(hostile_session(), Session())
    assert HOSTILE not in comparison_html(found, HOSTILE, "<b>")
    assert "<b>" not in comparison_html(found, "x", "<i>").replace("<b>x", "")
    assert comparison_text(found, "a", "b").count("only in a") == len(found.frames)


def test_linked_view_of_inductor_s_kernels() -> None:
    """The linked view shows torch.compile's kernels in one pane, linked to their nodes.

    Inductor names the nodes of each kernel. The view offers no panes of this engine's own targets.
    """
    text = 'class M(torch.nn.Module):\n    def forward(self, a: "f32[8][1]cuda:0"):\n        b: "f32[8][1]cuda:0" = torch.ops.aten.sin.default(a)\n        return (b,)\n'
    graph = GraphRecord("decomposed:0/0", "decomposed", "after passes", parse_nodes(text, "post", "0/0"), text)
    kernel = KernelRecord("k0", "triton_poi_fused_sin_0", "import triton\nx = 1", fused_nodes=("post:0/0:b",))
    made = Session(subject="torch")
    made.put_compilation(
        CompilationRecord(
            "0/0",
            "0",
            "first call",
            graphs=(graph,),
            kernels=(kernel,),
            compiler="torch",
            lowering=LoweringRecord("", wrapper_text="call(x)"),
        )
    )
    shown = linked(made, "0/0")
    panes = {p["id"]: p for p in shown["panes"]}
    assert [p["title"] for p in shown["panes"]][-2:] == ["Triton", "Program"]
    assert "ptx" not in panes
    node = panes["decomposed"]["first"] + 1
    assert shown["up"][panes["triton"]["first"]] == node


def test_refusing_guard_of_a_trace_is_found(session: Session) -> None:
    """The guard view marks the failed guard that a trace names only in words."""
    call = next(c for c in session.calls if c.guard_failures)
    shown = guards(session, call.guard_failures[0].entry)
    (case,) = [c for c in shown["cases"] if c["call"] == call_numbers(session.calls)[call.index]]
    assert shown["guards"][case["failed"]]["origin"] == call.guard_failures[0].source
    assert case["verdicts"][case["failed"]][0] == "fail"


def test_the_command_line_prints_under_an_ascii_locale(log: Path, tmp_path: Path) -> None:
    """Characters that the locale lacks are escaped, and the page is written."""
    page = tmp_path / "seité.html"
    ran = subprocess.run(
        [sys.executable, "-m", "notebook_ext", str(log), "-o", str(page)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert b"seit\\xe9.html" in ran.stdout
    assert page.exists()


def test_a_lone_surrogate_does_not_prevent_a_page(tmp_path: Path) -> None:
    """Text that UTF-8 cannot encode is shown with question marks."""
    session = Session()
    session.add_note("left \ud800 right")
    path = tmp_path / "page.html"
    with path.open("wb") as stream:
        write_page(session, stream, "title \ud800")
    assert b"title ?" in path.read_bytes()


@pytest.mark.parametrize("fails", [False, True])
def test_a_page_has_every_part_also_when_its_helper_fails(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes share the parts; those of a process that fails are made by the other."""
    session, page, here = head_session(), io.BytesIO(), os.getpid()

    def group(session: Session, keys: list[str]) -> Iterator[tuple[str, Any]]:
        if fails and os.getpid() != here:
            raise OSError("no memory")
        return parts(session, keys)

    monkeypatch.setattr(standalone_page, "parts", group)
    write_page(session, page, "shared")
    assert packed(page.getvalue().decode()).keys() == all_parts(head_session()).keys()


def test_the_index_says_when_it_leaves_names_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with more names than the limit is indexed up to it, in the same order."""
    whole = search_index(head_session())
    assert whole["limit"] == 0
    monkeypatch.setattr("notebook_ext.views.search_index.MAX_ROWS", 10)
    assert search_index(head_session()) == {"rows": whole["rows"][:10], "limit": 10}


@pytest.mark.parametrize("limit", [10, 30, 60])
def test_the_index_of_a_page_has_the_first_rows_of_each_kind(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page collects its index by compilation, and has the same rows up to the limit."""
    for module in ("views.search_index", "widgets.standalone_page"):
        monkeypatch.setattr(f"notebook_ext.{module}.MAX_ROWS", limit)
    page = io.BytesIO()
    write_page(head_session(), page, "index")
    index = search_index(head_session())
    assert index["limit"] == limit
    assert packed(page.getvalue().decode())["index"] == json.loads(json.dumps(index))


@pytest.mark.parametrize("asked", [False, True])
def test_a_local_file_is_added_only_when_asked(
    log: Path, tmp_path: Path, asked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local file's other lines are added only with ``--sources``; else a sentence says how."""
    page = tmp_path / "page.html"
    assert main([str(log), "-o", str(page), *(["--sources"] if asked else [])]) == 0
    assert str(page) in capsys.readouterr().out
    shown = json.dumps(packed(page.read_text(encoding="utf-8")), ensure_ascii=False)
    assert "return x + 10" in shown
    assert ("def scaled(function" in shown) == asked
    assert (WITHHELD in shown) != asked
