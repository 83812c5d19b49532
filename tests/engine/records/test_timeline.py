"""Save a session's timeline for Perfetto and for speedscope."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import torch

import engine
from engine.records.kernels import KernelRecord, KernelTimingRecord, LaunchRecord
from engine.records.runtime import CallRecord, Timing
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.timeline import perfetto_trace, speedscope_profile, stage_spans

TIMINGS = (
    Timing("compile", 1.0, 2.0),
    Timing("trace", 1.0, 0.5, "compile"),
    Timing("aot", 1.4, 1.8, "compile"),  # starts before its sibling ends, and ends after its parent
    Timing("lowering", 2.0, 0.5, "aot"),
)


def recorded() -> Session:
    """A session with one compilation, one call and one measured kernel."""
    session = Session()
    session.add_frame(FrameRecord("7", "model", "cell", 1))
    kernel = KernelRecord("k0", "fused_add", "", launches=(LaunchRecord(), LaunchRecord()))
    kernel = replace(kernel, measured=KernelTimingRecord("a GPU", 3e-6))
    session.put_compilation(CompilationRecord("7/0", "7", "first call", timings=TIMINGS, kernels=(kernel,)))
    session.add_call(CallRecord(0, "7", "hit", "7/0", start=3.5))
    return session


def read(path: pathlib.Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_stages_nest_properly() -> None:
    """A stage stays inside its parent and starts after the sibling before it."""
    assert [(s.stage, s.start, s.end, s.depth) for s in stage_spans(TIMINGS)] == [
        ("compile", 1.0, 3.0, 0),
        ("trace", 1.0, 1.5, 1),
        ("aot", 1.5, 3.0, 1),
        ("lowering", 2.0, 2.5, 2),
    ]


def test_perfetto_file_has_stages_calls_and_measured_kernels(tmp_path: pathlib.Path) -> None:
    """Each row is named; a kernel's bar covers all of its launches."""
    events = read(recorded().save_timeline(tmp_path / "run.json"))["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == [
        "compilations and calls",
        "model",
        "measured kernels, in launch order",
    ]
    spans = {e["name"]: (e["ts"], e["dur"]) for e in events if e["ph"] == "X"}
    assert spans["trace"] == (1e6, 5e5)
    assert spans["fused_add"] == (0.0, 6.0)
    (call,) = (e for e in events if e["ph"] == "i")
    assert (call["name"], call["ts"], call["args"]["entry"]) == ("hit", 3.5e6, "7/0")


def test_both_formats_hold_what_their_readers_demand() -> None:
    """In a recorded session Chrome's rows nest, and speedscope's schema is followed."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu().sum()

    compiled = engine.compile(step, backend="aot_eager")
    with engine.record() as session:
        for size in (2, 3):
            compiled(torch.ones(size, size, requires_grad=True)).backward()
    events = json.loads(json.dumps(perfetto_trace(session), allow_nan=False))["traceEvents"]
    opened: dict[tuple[int, int], list[float]] = {}
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        assert e["ts"] >= 0 <= e["dur"]
        ends = opened.setdefault((e["pid"], e["tid"]), [])
        while ends and ends[-1] <= e["ts"] + 1e-3:
            ends.pop()
        assert not ends or e["ts"] + e["dur"] <= ends[-1] + 1e-3, e["name"]
        ends.append(e["ts"] + e["dur"])
    assert {e["ph"] for e in events} == {"M", "X", "i"}
    made = json.loads(json.dumps(speedscope_profile(session), allow_nan=False))
    assert made.keys() >= {"$schema", "shared", "profiles"}
    for profile in made["profiles"]:
        assert (profile["type"], profile["unit"]) == ("evented", "seconds")
        stack, at = list[int](), profile["startValue"]
        for event in profile["events"]:
            assert at <= event["at"] <= profile["endValue"]
            at = event["at"]
            if event["type"] == "O":
                assert 0 <= event["frame"] < len(made["shared"]["frames"])
                stack.append(event["frame"])
            else:
                assert stack.pop() == event["frame"]
        assert stack == []


def test_speedscope_events_open_and_close_in_order(tmp_path: pathlib.Path) -> None:
    """Every stage that opens closes, innermost first, and time never goes back."""
    saved = read(recorded().save_timeline(tmp_path / "run.speedscope.json"))
    names = [f["name"] for f in saved["shared"]["frames"]]
    (profile,) = saved["profiles"]
    assert profile["name"] == "model entry 0"
    assert [(e["type"], names[e["frame"]]) for e in profile["events"]] == [
        ("O", "compile"),
        ("O", "trace"),
        ("C", "trace"),
        ("O", "aot"),
        ("O", "lowering"),
        ("C", "lowering"),
        ("C", "aot"),
        ("C", "compile"),
    ]
    times = [e["at"] for e in profile["events"]]
    assert times == sorted(times)
