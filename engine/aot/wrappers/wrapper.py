"""What a wrapper around a traced call is: a compile-time half that changes what is compiled, a run-time half that makes up for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch.fx

from engine.aot.wrappers.probe import Probe
from engine.ir.frame import GraphInput
from engine.ir.guard import Guard
from engine.records.aot import WrapperAction, WrapperRecord

Run = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """What is still to be compiled: a traced graph, and the inputs that it is called with, in placeholder order."""

    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]


@dataclass(frozen=True)
class Change:
    """What a wrapper's first half did: the call that is left to compile, its actions for the record, and what its second half needs."""

    call: Call
    actions: tuple[WrapperAction, ...]
    plan: Any
    """A frozen value of the wrapper's own."""
    guards: tuple[Guard, ...] = ()
    """What else must hold of the inputs for the change to be right."""


class Wrapper(Protocol):
    """A module with these names, one file each. Neither half keeps state: all that passes between them is ``Change.plan``."""

    NAME: str

    def pre_compile(self, call: Call) -> Change | None:
        """Take away what the stages inside cannot cope with; None when there is nothing to do.

        Raises:
            NotFunctional: it cannot be taken away; the graph then runs as traced.
        """
        ...

    def post_compile(self, change: Change, run: Run) -> Run:
        """A callable for the call as it was before: ``run`` takes ``change.call.inputs`` and returns the traced graph's outputs as a tuple."""
        ...


@dataclass(frozen=True)
class Onion:
    """The call left after every wrapper's first half, and the changes that led there, outermost first."""

    call: Call
    changes: tuple[tuple[Wrapper, Change | None], ...]

    def close(self, run: Run, probe: Probe | None = None, names: Sequence[str] = ()) -> Run:
        """The second halves around ``run``, innermost first. ``probe`` is told of what passes; ``names`` are those of the call's inputs."""
        for wrapper, change in reversed(self.changes):
            if change is not None:
                inside = (
                    run if probe is None else probe.passing(wrapper.NAME, run, [i.name for i in change.call.inputs])
                )
                run = wrapper.post_compile(change, inside)
        return run if probe is None else probe.call(run, names)

    def without_values(self) -> Onion:
        """The same without the values of the call that it was made for, for who keeps it beyond that."""
        return Onion(_emptied(self.call), tuple((w, c and replace(c, call=_emptied(c.call))) for w, c in self.changes))

    def change_of(self, wrapper: Wrapper) -> Change | None:
        """What this wrapper has to do; None when it has nothing to do."""
        return next((c for w, c in self.changes if w is wrapper), None)

    def guards(self) -> tuple[Guard, ...]:
        """What the changes take for granted about the inputs."""
        return tuple(g for _, c in self.changes if c is not None for g in c.guards)

    def records(self) -> tuple[WrapperRecord, ...]:
        """What each wrapper did, outermost first."""
        return tuple(WrapperRecord(w.NAME, () if c is None else c.actions) for w, c in self.changes)


def _emptied(call: Call) -> Call:
    return replace(call, inputs=tuple(replace(i, real=None) for i in call.inputs))


def peel(wrappers: Sequence[Wrapper], call: Call) -> Onion:
    """Run the first halves, outermost first.

    Raises:
        NotFunctional: a wrapper could not do its part.
    """
    changes: list[tuple[Wrapper, Change | None]] = []
    for wrapper in wrappers:
        change = wrapper.pre_compile(call)
        changes.append((wrapper, change))
        call = call if change is None else change.call
    return Onion(call, tuple(changes))
