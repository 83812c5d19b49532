"""Pass a tensor given as several inputs only once, so that mutations show in all of them."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
import torch.fx

from engine.aot.wrappers.base import PreCompileResult, TracedCall
from engine.aot.wrappers.codegen import WrapperCode
from engine.aot.wrappers.replace_placeholders import replace_placeholders
from engine.ir.guards.aliasing import SameObject
from engine.records.aot import WrapperAction

NAME = "duplicate arguments"
NEEDS = attrgetter("has_several_inputs")


def pre_compile(call: TracedCall) -> PreCompileResult[TracedCall] | None:
    """Drop every input that is the same object as an earlier one; None if there is none."""
    first_occurrences = _first_occurrences(call)
    if all(n == k for n, k in enumerate(first_occurrences)):
        return None

    def emit(copy: torch.fx.Graph, n: int, node: torch.fx.Node, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        return copy.node_copy(node) if first_occurrences[n] == n else copies[placeholders[first_occurrences[n]]]

    placeholders = [n for n in call.graph.graph.nodes if n.op == "placeholder"]
    graph = replace_placeholders(call.graph, emit)
    twice = [(call.inputs[n], call.inputs[k]) for n, k in enumerate(first_occurrences) if n != k]
    why = "they are one tensor: a write to one must be visible in the other"
    actions = tuple(WrapperAction(i.name, f"passed as {k.name}", why) for i, k in twice)
    guards = tuple(SameObject(i.source, k.source, expect_same=True) for i, k in twice if i.source != k.source)
    inputs = tuple(i for n, i in enumerate(call.inputs) if first_occurrences[n] == n)
    return PreCompileResult(TracedCall(graph, inputs), actions, first_occurrences, guards)


def _first_occurrences(call: TracedCall) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(
        first.setdefault(id(i.example_value), n) if i.has_real_tensor else n for n, i in enumerate(call.inputs)
    )


def post_compile(change: PreCompileResult[TracedCall]) -> WrapperCode:
    """Return code that passes the first occurrence of each input."""
    first_occurrence: tuple[int, ...] = change.runtime_metadata
    return WrapperCode(arguments=tuple(f"i{n}" for n, k in enumerate(first_occurrence) if n == k))
