"""Protocol and stack of outer wrappers.

``pre_compile`` changes the graph; ``post_compile`` wraps the compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.fx

from engine.aot.wrappers.value_probe import ValueProbe
from engine.ir.guards.base import Guard
from engine.ir.traced_frame import GraphInput
from engine.records.aot import WrapperAction, WrapperRecord

Run = Callable[..., Any]


@dataclass(frozen=True)
class TracedCall:
    """Traced graph that is still to be compiled, and its inputs in placeholder order."""

    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]


@dataclass(frozen=True)
class PreCompileResult:
    """Result of a wrapper's ``pre_compile``.

    It has the call that is left to compile, the actions for the record, and the data for ``post_compile``.
    """

    call: TracedCall
    actions: tuple[WrapperAction, ...]
    runtime_metadata: Any
    """A frozen value that only the wrapper itself reads."""
    guards: tuple[Guard, ...] = ()
    """Further guards on the inputs that make the change correct."""


class OuterWrapper(Protocol):
    """Module protocol of an outer wrapper.

    Both functions are stateless: ``PreCompileResult.runtime_metadata`` is all that passes between them.
    """

    NAME: str

    def pre_compile(self, call: TracedCall) -> PreCompileResult | None:
        """Remove what inner stages do not support; return None if there is nothing to do.

        Raises:
            FallbackRequired: it cannot be removed; the graph then runs as traced.
        """
        ...

    def post_compile(self, change: PreCompileResult, run: Run) -> Run:
        """Return a callable that takes the inputs of the original call.

        ``run`` takes ``change.call.inputs`` and returns the traced graph's outputs as a tuple.
        """
        ...


@dataclass(frozen=True)
class WrapperStack:
    """Call left to compile after every ``pre_compile``, and their results, outermost first."""

    call: TracedCall
    results: tuple[tuple[OuterWrapper, PreCompileResult | None], ...]

    def apply_post_compile(self, run: Run, probe: ValueProbe | None = None, names: Sequence[str] = ()) -> Run:
        """Apply every ``post_compile`` around ``run``, innermost first.

        ``probe`` records the values at each wrapper boundary; ``names`` are the names of the call's inputs.
        """
        for wrapper, change in reversed(self.results):
            if change is not None:
                inside = (
                    run
                    if probe is None
                    else probe.wrap_wrapper(wrapper.NAME, run, [i.name for i in change.call.inputs])
                )
                run = wrapper.post_compile(change, inside)
        return run if probe is None else probe.wrap_call(run, names)

    def without_real_inputs(self) -> WrapperStack:
        """Return an equal stack without the real inputs, so that it does not retain them."""
        return WrapperStack(
            _drop_real_inputs(self.call),
            tuple((w, c and replace(c, call=_drop_real_inputs(c.call))) for w, c in self.results),
        )

    def result_of(self, wrapper: OuterWrapper) -> PreCompileResult | None:
        """Return the ``pre_compile`` result of a wrapper; None if it has nothing to do."""
        return next((c for w, c in self.results if w is wrapper), None)

    def guards(self) -> tuple[Guard, ...]:
        """Return the guards on the inputs that the wrappers require."""
        return tuple(g for _, c in self.results if c is not None for g in c.guards)

    def records(self) -> tuple[WrapperRecord, ...]:
        """Return one record per wrapper, outermost first."""
        return tuple(WrapperRecord(w.NAME, () if c is None else c.actions) for w, c in self.results)


def _drop_real_inputs(call: TracedCall) -> TracedCall:
    return replace(call, inputs=tuple(replace(i, example_value=None) for i in call.inputs))


def apply_pre_compile(wrappers: Sequence[OuterWrapper], call: TracedCall) -> WrapperStack:
    """Run every ``pre_compile``, outermost first.

    Raises:
        FallbackRequired: a wrapper could not remove what inner stages do not support.
    """
    changes: list[tuple[OuterWrapper, PreCompileResult | None]] = []
    for wrapper in wrappers:
        change = wrapper.pre_compile(call)
        changes.append((wrapper, change))
        call = call if change is None else change.call
    return WrapperStack(call, tuple(changes))
