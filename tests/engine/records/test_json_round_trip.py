"""Records and sessions round-trip through JSON, load without torch, and reject damage.

A damaged file is rejected with one sentence.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.records import session as session_records
from engine.records.base import Record, RecordError, to_json
from engine.records.bytecode import SourceFile, Span
from engine.records.kernels import VerifyRecord
from engine.records.runtime import CallRecord, SkippedRecord, StageFailure
from engine.records.session import MAX_CALLS, CompilationRecord, FrameRecord, Session, SessionData
from engine.supported_versions import torch_version

ROOT = Path(__file__).parents[3]
KINDS = sorted(  # without the classes that dataclass(slots=True) replaced
    (
        k
        for k in Record.__subclasses__()
        if k.__module__.startswith("engine.records") and getattr(sys.modules[k.__module__], k.__name__) is k
    ),
    key=lambda k: k.__name__,
)


def values(expected: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated field type, nested records included."""
    origin, args = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arm) for arm in args])
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return st.lists(values(args[0]), max_size=2).map(tuple)
        return st.tuples(*[values(arg) for arg in args])
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), values(args[1]), max_size=2)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if isinstance(expected, type) and issubclass(expected, Record):
        return records(expected)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: st.text(max_size=8),
        int: st.integers(),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        type(None): st.none(),
        Any: st.none(),
    }
    return plain[expected]


@functools.cache
def records(kind: type[Record]) -> st.SearchStrategy[Any]:
    """Records of one class, with anything in their fields."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{f.name: values(hints[f.name]) for f in dataclasses.fields(kind)})


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k not in (SessionData, CompilationRecord)], ids=lambda k: k.__name__
)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_record_goes_to_json_and_back(kind: type[Record], data: st.DataObject) -> None:
    """Any record, with any text and numbers in it, is equal to itself after JSON."""
    record = data.draw(records(kind))
    assert kind.from_dict(json.loads(to_json(record))) == record


@settings(max_examples=5, deadline=None)
@given(record=records(CompilationRecord))
def test_compilation_goes_to_json_and_back(record: CompilationRecord) -> None:
    """A whole compilation, with everything nested in it, is equal to itself after JSON."""
    assert CompilationRecord.from_dict(json.loads(to_json(record))) == record


def test_numbers_that_json_lacks_become_null() -> None:
    """NaN and infinity are written as null, so that every JSON reader opens the file."""
    text = to_json(VerifyRecord("different", "interpreter", max_error=float("inf"), tolerance=float("nan")))
    assert json.loads(text, parse_constant=pytest.fail)["max_error"] is None


def filled() -> Session:
    """A session with one of each kind of addition."""
    session = Session(target="cuda:90")
    session.versions = {"torch": torch_version()}
    session.add_file(SourceFile("f.py", "f.py", "x = 1\n<script>alert('é')</script>"))
    session.add_frame(FrameRecord("0", "f", "f.py", 1))
    session.put_compilation(CompilationRecord("0/0", "0", "first call"))
    session.add_call(CallRecord(0, "0", "compiled", "0/0", Span("f.py", 1)))
    session.add_skipped(SkippedRecord("g", "it is a generator"))
    session.add_failure(StageFailure("lowering", "made to fail", "ATen runs the graph"))
    session.add_note("a note")
    return session


def test_session_goes_to_a_file_and_back(tmp_path: Path) -> None:
    """A saved session loads completely, and saving it again gives an identical file."""
    session = filled()
    path = session.save(tmp_path / "a.json")
    loaded = Session.load(path)
    assert loaded.to_data() == session.to_data()
    assert loaded.save(tmp_path / "b.json").read_bytes() == path.read_bytes()


def test_unknown_fields_are_ignored_and_missing_ones_defaulted() -> None:
    """Loading ignores unknown fields of a newer minor version and fills in missing defaults."""
    plain = Span("f.py", 3).to_dict() | {"invented_later": [1, 2]}
    del plain["column"]
    assert Span.from_dict(plain) == Span("f.py", 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p | {"version": 999}, "format 999"),
        (lambda p: {k: v for k, v in p.items() if k != "frames"}, "'frames' is missing"),
        (lambda p: p | {"frames": 3}, "frames: expected a list"),
        (lambda p: p | {"frames": [{"id": 1}]}, "frames[0].id: expected str"),
        (lambda p: p | {"calls_dropped": True}, "expected int"),
        (lambda p: [p], "not a saved session"),
    ],
)
def test_damaged_session_says_what_is_wrong(tmp_path: Path, change: Any, words: str) -> None:
    """A wrong version, missing field or wrong type is rejected in one sentence that names it."""
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(change(filled().to_dict())), encoding="utf-8")
    with pytest.raises(RecordError) as raised:
        Session.load(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b'"text"', b"null"])
def test_what_is_no_session_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is empty, cut off, binary or other JSON is refused with its name."""
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"other\.json"):
        Session.load(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """A path where nothing is gives the same class of error."""
    with pytest.raises(RecordError, match=r"nothing\.json"):
        Session.load(tmp_path / "nothing.json")


def test_a_saved_session_opens_without_torch(tmp_path: Path) -> None:
    """Where neither torch nor a notebook package can be imported, a saved session still loads."""
    path = filled().save(tmp_path / "s.json")
    program = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numpy', 'sympy', 'IPython', 'ipywidgets', 'anywidget'): sys.modules[name] = None\n"
        "import engine\n"
        f"print(len(engine.Session.load({str(path)!r}).compilations))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "1", ran.stderr


def test_hits_beyond_the_limit_are_counted_and_misses_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session keeps a bounded number of hits and all misses, numbered in call order."""
    assert MAX_CALLS >= 1000
    monkeypatch.setattr(session_records, "MAX_CALLS", 2)
    session = Session()
    for outcome in ("hit", "hit", "hit", "hit", "compiled"):
        session.add_call(CallRecord(0, "0", outcome))
    assert [(c.index, c.outcome) for c in session.calls] == [(0, "hit"), (1, "hit"), (4, "compiled")]
    assert session.calls_dropped == 2


def test_listeners_hear_of_changes_until_they_stop() -> None:
    """A subscriber receives the name of each change until it unsubscribes, once or twice."""
    session, heard = Session(), list[str]()
    stop = session.on_change(heard.append)
    session.add_note("one")
    stop()
    stop()
    session.add_note("two")
    assert heard == ["notes"]
    assert session.notes == ("one", "two")


def test_a_session_of_another_torch_says_so_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a session of another torch adds one sentence; the same torch adds none."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.13.0"))
    session = Session()
    session.versions = {"python": "3.11.7", "torch": "2.13.0"}
    session.save(tmp_path / "recorded.json")
    assert Session.load(tmp_path / "recorded.json").notes == ()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.15.0"))
    opened = Session.load(tmp_path / "recorded.json")
    assert opened.notes == (
        "recorded.json was recorded with torch 2.13.0; torch 2.15.0 is installed and runs what is rerun.",
    )
    assert opened.versions == session.versions
    assert opened.to_data() == session.to_data()  # saved again, it is the session that was recorded
