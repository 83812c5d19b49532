"""What a wrapper around a traced call is: a compile-time half that changes what is compiled, a run-time half that makes up for it."""

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
    """What is still to be compiled: a traced graph, and the inputs that it is called with, in placeholder order."""

    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]


@dataclass(frozen=True)
class PreCompileResult:
    """What a wrapper's first half did: the call that is left to compile, its actions for the record, and what its second half needs."""

    call: TracedCall
    actions: tuple[WrapperAction, ...]
    runtime_metadata: Any
    """A frozen value of the wrapper's own."""
    guards: tuple[Guard, ...] = ()
    """What else must hold of the inputs for the change to be right."""


class OuterWrapper(Protocol):
    """A module with these names, one file each. Neither half keeps state: all that passes between them is ``Change.runtime_metadata``."""

    NAME: str

    def pre_compile(self, call: TracedCall) -> PreCompileResult | None:
        """Take away what the stages inside cannot cope with; None when there is nothing to do.

        Raises:
            NotFunctional: it cannot be taken away; the graph then runs as traced.
        """
        ...

    def post_compile(self, change: PreCompileResult, run: Run) -> Run:
        """A callable for the call as it was before: ``run`` takes ``change.call.inputs`` and returns the traced graph's outputs as a tuple."""
        ...


@dataclass(frozen=True)
class WrapperStack:
    """The call left after every wrapper's first half, and the changes that led there, outermost first."""

    call: TracedCall
    results: tuple[tuple[OuterWrapper, PreCompileResult | None], ...]

    def apply_post_compile(self, run: Run, probe: ValueProbe | None = None, names: Sequence[str] = ()) -> Run:
        """The second halves around ``run``, innermost first. ``probe`` is told of what passes; ``names`` are those of the call's inputs."""
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
        """The same without the values of the call that it was made for, for who keeps it beyond that."""
        return WrapperStack(
            _drop_real_inputs(self.call),
            tuple((w, c and replace(c, call=_drop_real_inputs(c.call))) for w, c in self.results),
        )

    def result_of(self, wrapper: OuterWrapper) -> PreCompileResult | None:
        """What this wrapper has to do; None when it has nothing to do."""
        return next((c for w, c in self.results if w is wrapper), None)

    def guards(self) -> tuple[Guard, ...]:
        """What the changes take for granted about the inputs."""
        return tuple(g for _, c in self.results if c is not None for g in c.guards)

    def records(self) -> tuple[WrapperRecord, ...]:
        """What each wrapper did, outermost first."""
        return tuple(WrapperRecord(w.NAME, () if c is None else c.actions) for w, c in self.results)


def _drop_real_inputs(call: TracedCall) -> TracedCall:
    return replace(call, inputs=tuple(replace(i, example_value=None) for i in call.inputs))


def apply_pre_compile(wrappers: Sequence[OuterWrapper], call: TracedCall) -> WrapperStack:
    """Run the first halves, outermost first.

    Raises:
        NotFunctional: a wrapper could not do its part.
    """
    changes: list[tuple[OuterWrapper, PreCompileResult | None]] = []
    for wrapper in wrappers:
        change = wrapper.pre_compile(call)
        changes.append((wrapper, change))
        call = call if change is None else change.call
    return WrapperStack(call, tuple(changes))
