"""The tracer's steps as columns, and the layers around the functional graph."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import engine
from engine.records.aot import ValueFacts, WrapperAction, WrapperRecord
from engine.records.runtime import CallRecord
from engine.records.session import CompilationRecord, Session
from engine.records.trace import StepRecord
from notebook_ext.views.aot_wrappers import aot_wrappers
from notebook_ext.views.explorer_parts import all_parts, initial_parts, overview, part
from notebook_ext.views.tracer_steps import tracer_steps
from tests.notebook_ext.sample_sessions import head_session
from tests.notebook_ext.sample_step_sessions import (
    SOURCE,
    T,
    X,
    many_steps_session,
    steps,
    steps_session,
    wrappers_session,
)


def stack_after(told: dict[str, Any], k: int) -> list[tuple[str, str]]:
    """Texts and nodes of the stack after a step, bottom first, from the columns alone."""
    found = []
    cell = told["stack"][k]
    while cell >= 0:
        cell, text, node = told["cells"][cell]
        found.append((told["strings"][text], told["strings"][node] if node >= 0 else ""))
    return found[::-1]


def locals_after(told: dict[str, Any], k: int) -> dict[str, str]:
    """Variables after a step of the frame that executes next, from the columns alone."""
    frame = told["frame"][min(k + 1, told["count"] - 1)]
    found: dict[str, str] = {}
    for at, owner, name, text, _ in told["locals"]:
        if at <= k and owner == frame and text >= 0:
            found[told["strings"][name]] = told["strings"][text]
        elif at <= k and owner == frame:
            found.pop(told["strings"][name], None)
    return found


def test_the_state_after_each_step_is_that_of_the_frame_that_goes_on() -> None:
    """Each step shows the stack and variables of the frame that continues.

    Entering an inlined call shows its parameters and an empty stack. Leaving it shows the caller's stack with
    the result on top.
    """
    told = tracer_steps(steps_session(), "0/0")
    assert stack_after(told, 3) == [("NULL", ""), ("function scaled", ""), (X, ""), ("2", "")]
    assert stack_after(told, 4) == []
    assert locals_after(told, 4) == {"x": X, "k": "2"}
    assert stack_after(told, 9) == [(T, "mul")]
    assert locals_after(told, 9) == {"x": T, "out": "list of 0 []"}
    assert locals_after(told, 14)["out"] == f"list of 1 [{T}]"
    assert told["caller"][4:10] == [4, 4, 4, 4, 4, -1]


def test_a_step_that_broke_leaves_the_stack_as_it_was() -> None:
    """What the instruction would have used is still there."""
    told = tracer_steps(steps_session(), "0/0")
    assert [text for text, _ in stack_after(told, 18)] == ["NULL", "print", T]
    assert told["stop"] == "Output is printed"


def test_source_lines_nodes_and_instructions_are_at_hand() -> None:
    """Lines have numbers, nodes have types and lines, and unexecuted instructions are listed."""
    told = tracer_steps(steps_session(), "0/0")
    assert told["source"] == SOURCE.splitlines()
    assert told["lines"] == list(range(1, 8))
    assert [(k, told["strings"][name]) for k, name in told["nodes"]] == [(8, "x"), (8, "mul")]
    assert told["described"]["mul"] == ["x * 2", "f32[4]", 2, None]
    assert [(k, told["strings"][g]) for k, g in told["guards"]] == [(1, "G['scaled']: code"), (8, "L['x']: tensor")]
    assert "RETURN_VALUE" in [told["strings"][op[2]] for op in told["ops"] if op[0] == told["ops"][told["op"][0]][0]]


def test_the_columns_hold_what_was_recorded_of_a_real_trace() -> None:
    """The columns rebuild each step's stack and variables exactly as recorded.

    Generators and caught exceptions are included.
    """
    torch = pytest.importorskip("torch")
    import engine

    def part_of(x: Any, k: int) -> Any:
        return x * k

    def f(x: Any) -> Any:
        sizes: dict[str, int] = {}
        try:
            n = sizes["none"]
        except KeyError:
            n = 2
        parts = tuple(
            part_of(x, i + n) for i in (j + 1 for j in range(3))
        )  # a list's would have no frame on Python 3.12
        total = parts[0]
        for p in parts[1:]:
            total = total + p
        return total

    with engine.record(level="steps") as session, torch.no_grad():
        engine.compile(f)(torch.ones(3))
    (compilation,) = session.compilations
    assert compilation.trace is not None
    recorded, told = compilation.trace.steps, tracer_steps(session, compilation.id)
    assert max(s.depth for s in recorded) == 2
    known: dict[int, dict[str, str]] = {}
    for i, (now, after) in enumerate(itertools.pairwise(recorded)):
        known.setdefault(now.frame, {}).update(now.locals_changed)
        if now.frame == after.frame:
            assert [node for _, node in stack_after(told, i)] == list(now.stack_nodes)
            assert len(stack_after(told, i)) == len(now.stack)
            assert locals_after(told, i).keys() == {n for n, text in known[now.frame].items() if text}


def test_without_steps_the_view_says_how_to_get_them() -> None:
    """The remedy is the option's name."""
    told = tracer_steps(head_session(), "0/0")
    assert told["count"] == 0
    assert "%%compile --steps" in told["empty"]


def test_ten_thousand_steps_are_compact_and_come_on_demand() -> None:
    """Less than 80 bytes a step, and none of it in the first payload."""
    session = many_steps_session()
    told = part(session, "tracer|0/0")
    assert told["count"] == 10_000
    assert len(json.dumps(told, separators=(",", ":"))) < 800_000
    assert not any(key.startswith("tracer") for key in initial_parts(session, "linked"))
    assert len(json.dumps(overview(session))) < 8_000
    assert overview(session)["entries"][0]["steps"] == 10_000
    assert all_parts(session)["tracer|0/0"] == json.loads(json.dumps(told)) | {
        "ops": told["ops"],
        "cells": told["cells"],
    }


def test_code_objects_are_told_without_addresses_and_paths() -> None:
    """Nothing of this machine is in a step."""
    text = '<code object <listcomp> at 0x7f9f9ec6ce30, file "/home/someone/x.py", line 16>'
    first, *rest = steps()
    session = steps_session()
    record = StepRecord(19, 0, "f", 60, "LOAD_CONST", text, None, (text,), {}, frame=0)
    session.update_compilation("0/0", lambda c: _with_steps(c, (first, *rest, record)))
    told = json.dumps(tracer_steps(session, "0/0"))
    assert "someone" not in told
    assert "0x7f" not in told
    assert "<code object <listcomp>>" in told


def _with_steps(compilation: CompilationRecord, recorded: tuple[StepRecord, ...]) -> CompilationRecord:
    assert compilation.trace is not None
    return replace(compilation, trace=replace(compilation.trace, steps=recorded))


def test_a_call_goes_in_through_the_rings_and_out_again() -> None:
    """The view lists the active wrappers, outermost first.

    Their side effects are restored after the graph, innermost first.
    """
    told = aot_wrappers(wrappers_session(), "0/0")
    assert [ring["name"] for ring in told["rings"]] == ["Output aliasing", "Input mutation"]
    assert told["idle"] == ["Autocast off"]
    assert told["steps"] == [[-1, "in", -1], [2, "in", -1], [1, "out", 0], [0, "out", 0], [-1, "out", -1]]
    assert told["graph"]["text"] == "1 operation"
    assert told["graph"]["outputs"] == [{"name": "add", "type": "f32[4, 4]"}]
    assert [(v["name"], v["type"], v["facts"]) for v in told["inputs"]] == [
        ("x", "f32[4, 4]", ["data mutated"]),
        ("y", "", []),
    ]


def test_what_a_layer_does_to_many_values_is_told_once() -> None:
    """Equal actions are one step that names the first value and counts the rest."""
    session = wrappers_session()
    record = session.compilations[0]
    assert record.aot is not None
    actions = tuple(WrapperAction(f"w{n}", "gets a gradient", "it needs one") for n in range(20))
    session.put_compilation(replace(record, aot=replace(record.aot, wrappers=(WrapperRecord("autograd", actions),))))
    told = aot_wrappers(session, "0/0")
    assert [(a["argument"], len(a["all"])) for a in told["rings"][0]["actions"]] == [("w0 and 19 more", 20)]
    assert len(told["steps"]) == 4


def test_calls_of_an_entry_can_be_walked_through() -> None:
    """Each call that the entry served is there with what was passed."""
    session = wrappers_session()
    session.add_call(CallRecord(0, session.compilations[0].frame, "hit", "0/0", inputs={"x": "f32[7, 4]", "n": "3"}))
    assert aot_wrappers(session, "0/0")["calls"] == [
        {"text": "call 1: x f32[7, 4], n 3", "inputs": {"x": "f32[7, 4]", "n": "3"}}
    ]


def test_a_trace_of_torch_has_types_of_inputs_and_says_what_it_lacks() -> None:
    """Inputs that torch only numbers have the types of the inputs of the FX graph."""
    session = wrappers_session()
    made = session.compilations[0]
    fx = next(g for g in made.graphs if g.stage == "fx")
    kinds = [n.dtype for n in fx.nodes if n.op == "placeholder"]
    assert made.aot is not None
    values = tuple(ValueFacts(f"input {i}", "input") for i in range(len(kinds)))
    session.put_compilation(replace(made, compiler="torch", aot=replace(made.aot, wrappers=(), values=values)))
    found = aot_wrappers(session, "0/0")
    assert [bool(v["type"]) for v in found["inputs"]] == [bool(kind) for kind in kinds]
    assert found["bare"] == "torch.compile's trace does not list runtime wrappers."


def test_without_layers_the_reason_is_given() -> None:
    """A compilation without a graph has no wrappers, and says so."""
    assert aot_wrappers(steps_session(), "0/0")["empty"] == "This compilation has no graph, so it has no wrappers."
    with pytest.raises(KeyError):
        aot_wrappers(Session(), "0/0")


@torch.no_grad()
def halved(x: torch.Tensor) -> torch.Tensor:
    """A function whose wrapper is torch's."""
    return x / 2


def test_a_decorated_function_begins_at_its_own_code() -> None:
    """The first steps are the decorator's, and the first that is shown is the function's."""
    engine.reset()
    with engine.record(level="steps") as session:
        engine.compile(halved, backend="eager")(torch.ones(2))
    told = tracer_steps(session, session.compilations[0].id)
    assert told["first"] > 0
    assert told["codes"][told["ops"][told["op"][told["first"]]][0]] == "halved"
    assert tracer_steps(steps_session(), "0/0")["first"] == 0
