"""Test that files of sessions are written as a whole, and that damaged ones are refused."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch

import engine
from engine.records.base import RecordError
from engine.records.session import Session
from engine.runtime.dispatch import record_calls
from notebook_ext.views.explorer_parts import all_keys, part


def test_deeply_nested_json_is_refused(tmp_path: pathlib.Path) -> None:
    """JSON nested 100,000 deep is a ``RecordError``, as other damage is."""
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000, encoding="utf-8")
    with pytest.raises(RecordError, match="too deeply"):
        Session.load(path)


def test_a_number_too_large_for_a_float_is_refused(tmp_path: pathlib.Path) -> None:
    """JSON has integers of any size."""
    path = Session().save(tmp_path / "session.json")
    plain = json.loads(path.read_text())
    plain["seconds"] = 10**400
    path.write_text(json.dumps(plain))
    with pytest.raises(RecordError, match="seconds: the number is too large"):
        Session.load(path)


def test_a_lone_surrogate_is_written_as_a_question_mark(tmp_path: pathlib.Path) -> None:
    """Text that UTF-8 cannot encode does not prevent saving."""
    session = Session()
    session.add_note("left \ud800 right")
    assert Session.load(session.save(tmp_path / "s.json")).notes == ("left ? right",)


def test_saving_follows_a_link_and_keeps_the_mode(tmp_path: pathlib.Path) -> None:
    """A link stays a link, and a file that only the user may read stays so."""
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("{}", encoding="utf-8")
    target.chmod(0o600)
    link.symlink_to(target)
    Session().save(link)
    assert link.is_symlink()
    assert json.loads(target.read_text(encoding="utf-8"))["version"]
    assert target.stat().st_mode & 0o777 == 0o600


def test_hits_beyond_the_limit_are_counted_without_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a session holds its maximum of calls, a hit costs no description of its arguments."""
    compiled = engine.compile(lambda x: x + 1, backend="eager")
    compiled(torch.ones(2))
    monkeypatch.setattr("engine.records.session.MAX_CALLS", 3)
    described: list[Any] = []
    snapshot = record_calls.snapshot
    monkeypatch.setattr(record_calls, "snapshot", lambda a: described.append(a) or snapshot(a))
    with engine.record() as session:
        for _ in range(10):
            compiled(torch.ones(2))
    assert (len(session.calls), session.calls_dropped, len(described)) == (3, 7, 3)


def test_the_oldest_compilations_lose_their_content(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A session has details of the newest compilations, and a note that counts the others."""
    monkeypatch.setattr("engine.records.session.MAX_COMPILATIONS", 3)
    with engine.record() as session:
        compiled = engine.compile(lambda x: x + x, backend="eager")
        for dtype in (torch.float32, torch.float64, torch.int8, torch.int32, torch.int64):
            compiled(torch.ones(2, dtype=dtype))
    assert [bool(c.graphs) for c in session.compilations] == [False, False, True, True, True]
    assert all(c.cause for c in session.compilations)
    assert [n for n in session.notes if "compilations" in n] == [
        "Only the newest 3 compilations have details: 2 older ones have none."
    ]
    for key in all_keys(session):
        part(session, key)
    saved = Session.load(session.save(tmp_path / "saved.json"))
    assert (saved.compilations, saved.notes) == (session.compilations, session.notes)
