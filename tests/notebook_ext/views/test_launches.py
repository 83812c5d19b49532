"""The table of a kernel's launches: what is equal once, what varies in columns, bounded."""

from __future__ import annotations

from engine.records.bytecode import Span
from engine.records.kernels import LaunchGroup
from engine.records.session import FrameRecord, Session
from notebook_ext.views.kernels import MAX_LAUNCH_GROUPS, launches_of


def _session(*groups: LaunchGroup) -> Session:
    session = Session()
    session.add_frame(FrameRecord("0", "f", "a.py", 1, launches=groups))
    return session


def _group(rows: int, line: int, seconds: float | None, *, is_replay: bool = False) -> LaunchGroup:
    arguments = {"x_ptr": f"f32[{rows}, 8]", "w_ptr": "f32[8]", "extent": str(rows), "item_cost": "12"}
    return LaunchGroup("0/0", "c0", arguments, (rows,), Span("a.py", line), 2, seconds, seconds, is_replay)


def test_only_what_varies_is_a_column() -> None:
    """The slowest group comes first; values for the launcher alone are left out."""
    found = launches_of(_session(_group(4, 7, 1e-6), _group(9, 7, 2e-6)), "0/0", "c0")
    assert found is not None
    assert found["varying"] == ["x_ptr", "grid"]
    assert found["equal"] == [["w_ptr", "f32[8]"], ["from", "line 7"]]
    assert [(row["values"], row["count"]) for row in found["rows"]] == [
        (["f32[9, 8]", "9"], 2),
        (["f32[4, 8]", "4"], 2),
    ]
    assert found["total"] == 4


def test_replays_are_told_from_launches() -> None:
    """A CUDA graph's launches have no times, and say what launched them."""
    found = launches_of(_session(_group(4, 7, 1e-6), _group(4, 7, None, is_replay=True)), "0/0", "c0")
    assert found is not None
    assert found["varying"] == ["launched by"]
    assert [(row["values"], row["fastest"]) for row in found["rows"]] == [([""], 1e-6), (["a CUDA graph"], None)]


def test_further_groups_are_counted() -> None:
    """The page shows a bounded number of groups; a kernel without launches has no table."""
    session = _session(*(_group(n, 7, n * 1e-6) for n in range(1, MAX_LAUNCH_GROUPS + 4)))
    found = launches_of(session, "0/0", "c0")
    assert found is not None
    assert (len(found["rows"]), found["more"]) == (MAX_LAUNCH_GROUPS, 3)
    assert launches_of(session, "0/0", "c1") is None
