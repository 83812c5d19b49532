"""Graph passes that users registered: the set that is active, its order and its cache key."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from engine.ir.kernels.kernel_edits import KernelEdit
from engine.records.bytecode import Span

PASS_STAGES = {
    "traced": (),
    "aten": (),
    "decomposed": ("decompose", "fuse_attention", "pad_matmul", "bool_to_bias_mask", "separate_conv_bias"),
}
"""Stages that take passes of users, with the engine's passes that can be named there.

"traced": the traced graph. "aten": the functional ATen graph, or the joint graph of a call that needs gradients.
"decomposed": each graph that is lowered to kernels, after decomposition.
"""

Compare = Callable[[torch.fx.GraphModule, torch.fx.GraphModule, Sequence[Any]], str]
"""Compares two graphs on inputs: the first difference, or ""."""


@dataclass(frozen=True, eq=False)
class UserPass:
    """A registered pass.

    ``run`` takes a copy of a graph, and changes it or returns another one. ``key`` identifies its code. ``why_not_on_disk``: why no cache on disk may hold a graph that it rewrote, or "".
    """

    name: str
    stage: str
    run: Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]
    key: str
    span: Span
    """Line of its definition."""
    before: str | None = None
    after: str | None = None
    verify: bool = False
    why_not_on_disk: str = ""
    reports_difference: bool = False
    """Compare values, but keep the result."""


@dataclass(frozen=True)
class PassSet:
    """Registered passes in order, and edits of kernels.

    ``compare`` compares two graphs for passes with ``verify``.
    """

    passes: tuple[UserPass, ...] = ()
    compare: Compare | None = None
    kernel_edits: tuple[KernelEdit, ...] = ()

    def at(self, stage: str) -> tuple[UserPass, ...]:
        """Return the registered passes of a stage, in order."""
        return tuple(p for p in self.passes if p.stage == stage)

    def after_each(self, stage: str, engine_passes: Sequence[str]) -> dict[str, list[UserPass]]:
        """Return, for each pass of the engine that runs, the user's passes that follow it."""
        passes: dict[str, list[UserPass]] = {name: [] for name in engine_passes}
        last = engine_passes[0]
        for item in ordered(self.at(stage), PASS_STAGES[stage]):
            if item.of_user is not None:
                passes[last].append(item.of_user)
            elif item.name in passes:
                last = item.name
        return passes

    @property
    def why_not_on_disk(self) -> str:
        """Why no cache on disk may hold the result; empty if it may."""
        return next((p.why_not_on_disk for p in self.passes if p.why_not_on_disk), "")

    @property
    def key(self) -> str:
        """Digest of all passes and their order, and of edited kernels; empty without them."""
        return ":".join([_key_of(self.passes), *(e.key for e in self.kernel_edits)])


@dataclass(frozen=True, eq=False)
class OrderedPass:
    """A pass in its place among others: the user's, or the engine's (``of_user`` is None)."""

    name: str
    of_user: UserPass | None = None
    after: str | None = None


def ordered(passes: Sequence[UserPass], engine_passes: Sequence[str]) -> list[OrderedPass]:
    """Return passes of the user and of the engine in the order in which they run.

    A pass runs last, unless ``before`` or ``after`` name a pass.

    Raises:
        LookupError: a named pass does not exist, or the two contradict each other; the text says which.
    """
    order = [OrderedPass(name) for name in engine_passes]
    for item in passes:
        names = [p.name for p in order]
        for neighbor in (item.before, item.after):
            if neighbor is not None and neighbor not in names:
                available = f"it has {', '.join(names)}" if names else "it has no other passes yet"
                raise LookupError(f"no pass {neighbor!r} runs at the stage {item.stage!r}: {available}")
        first = names.index(item.after) + 1 if item.after is not None else 0
        last = names.index(item.before) if item.before is not None else len(names)
        if first > last:
            raise LookupError(f"{item.after!r} does not run before {item.before!r}")
        if item.before is None and item.after is not None:
            while first < last and order[first].after == item.after:
                first += 1
            last = first
        order.insert(last, OrderedPass(item.name, item, item.after))
    return order


def _key_of(passes: Sequence[UserPass]) -> str:
    parts = [(p.stage, p.name, p.key, p.before, p.after, p.verify) for p in passes]
    return hashlib.sha256(repr(parts).encode()).hexdigest() if parts else ""


class _ActivePasses:
    """The active passes of this process, and what must happen around a change of them."""

    def __init__(self) -> None:
        self.passes: tuple[UserPass, ...] = ()
        self.key = ""
        self.around_change: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def change(self, edit: Callable[[tuple[UserPass, ...]], tuple[UserPass, ...]]) -> None:
        with self.around_change():
            self.passes = edit(self.passes)
            self.key = _key_of(self.passes)


active_passes = _ActivePasses()
"""The passes that are registered now."""
