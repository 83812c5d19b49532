"""Passes that replace each match of a traced function by another traced function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from engine import errors
from engine.aot.functionalize import functionalize
from engine.graph.user_passes.match_pattern import PatternGraph, find_matches, pattern_graph, substitute
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.current_session import set_current_session
from engine.lowering.passes.decompose import decompose
from engine.options import Options
from engine.trace.driver import trace_frame

_OPTIONS = Options("eager", fullgraph=True, dynamic=False)


class PatternPass:
    """A pass that replaces matches of ``pattern`` by ``replacement`` in the graphs of a stage."""

    def __init__(
        self, pattern: Callable[..., Any], replacement: Callable[..., Any], examples: tuple[Any, ...], stage: str
    ) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._stage = stage
        self._by_layout: dict[Any, tuple[PatternGraph, PatternGraph]] = {}
        self._example = self._trace_both(examples)[0]

    def __call__(self, module: torch.fx.GraphModule) -> None:
        """Replace all matches in place."""
        for match in find_matches(module, self._example, exact=False):
            values = [n.meta.get("val", n.meta.get("example_value")) for n in match.inputs]
            if match.is_stale or not all(map(_has_static_layout, values)):
                continue
            try:
                exact, traced = self._trace_both(tuple(map(_real_like, values)))
            except errors.BadArgument:  # These shapes do not fit: the operators match by chance.
                continue
            again = find_matches(module, exact, exact=True, at=match)
            if again:
                substitute(module, again[0], traced)

    def _trace_both(self, inputs: tuple[Any, ...]) -> tuple[PatternGraph, PatternGraph]:
        key = tuple((tuple(i.shape), i.stride(), i.dtype, i.device) for i in inputs)
        if key not in self._by_layout:
            self._by_layout[key] = (self._trace(self._pattern, inputs), self._trace(self._replacement, inputs))
        return self._by_layout[key]

    def _trace(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> PatternGraph:
        """Trace a function as the graphs of the stage are.

        Raises:
            BadArgument: it does not become one graph with results.
        """
        parameters = tuple(inspect.signature(fn).parameters)
        if len(parameters) != len(inputs):
            raise errors.BadArgument(f"{fn.__name__} takes {len(parameters)} inputs, not {len(inputs)}.")
        request = CompileRequest(fn, dict(zip(parameters, inputs, strict=True)), "pattern", 0, "")  # type: ignore[arg-type]
        try:
            with set_current_session(None), torch.no_grad():
                traced = trace_frame(request, _OPTIONS, steps=False).graph
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            raise errors.BadArgument(f"{fn.__name__} cannot be traced for a pattern: {text}") from error
        if traced is None or not traced.has_computation():
            raise errors.BadArgument(f"{fn.__name__} cannot be a pattern: it does not compute with tensors.")
        names = {i.name: i.source.expr for i in traced.inputs}
        module = traced.graph
        if self._stage != "traced":
            functional = functionalize(traced.graph, traced.inputs, "pattern")
            module = functional.module
            if self._stage == "decomposed":
                module = decompose(AotGraph(module, functional.inputs, "pattern"))
        return pattern_graph(module, names, fn)


def _has_static_layout(value: Any) -> bool:
    return hasattr(value, "stride") and not value._has_symbolic_sizes_strides


def _real_like(fake: Any) -> torch.Tensor:
    """Return an uninitialized tensor like a fake one."""
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
