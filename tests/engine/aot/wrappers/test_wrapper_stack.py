"""Wrappers around a traced call: their halves run in order, and around the identity they change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from engine.aot.wrappers.base import PreCompileResult, Run, TracedCall, apply_pre_compile
from engine.records.aot import WrapperAction


@dataclass
class _Noted:
    """A wrapper that notes when its halves run; it takes away the last input where there are two or more."""

    NAME: str
    log: list[str]

    def pre_compile(self, call: TracedCall) -> PreCompileResult | None:
        self.log.append(f"{self.NAME} before")
        if len(call.inputs) < 2:
            return None
        action = WrapperAction("input", "taken away", "a test")
        return PreCompileResult(replace(call, inputs=call.inputs[:-1]), (action,), len(call.inputs))

    def post_compile(self, change: PreCompileResult, run: Run) -> Run:
        self.log.append(f"{self.NAME} after {change.runtime_metadata}")
        return lambda *args: run(*args[: change.runtime_metadata - 1])


def _call(inputs: int) -> TracedCall:
    given: Any = tuple(range(inputs))
    return TracedCall(torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), given)


def test_first_halves_run_outermost_first_and_second_halves_innermost_first() -> None:
    """Each wrapper sees what the one outside left, and is closed around the one inside."""
    log: list[str] = []
    onion = apply_pre_compile((_Noted("outer", log), _Noted("inner", log)), _call(3))
    run = onion.apply_post_compile(lambda *args: args)
    assert log == ["outer before", "inner before", "inner after 2", "outer after 3"]
    assert run("a", "b", "c") == ("a",)
    assert [(r.name, len(r.actions)) for r in onion.records()] == [("outer", 1), ("inner", 1)]


def test_a_wrapper_with_nothing_to_do_adds_nothing() -> None:
    """The callable is the very one that was given, and the record has no action."""
    log: list[str] = []
    onion = apply_pre_compile((_Noted("only", log),), _call(1))

    def run(*args: Any) -> Any:
        return args

    assert onion.apply_post_compile(run) is run
    assert [r.actions for r in onion.records()] == [()]
