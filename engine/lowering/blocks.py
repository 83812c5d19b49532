"""Asks how kernels' loops are cut, where somebody measures: the usual blocks stay unless others are faster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from engine.ir.index import symbols_of
from engine.ir.kernel import Buffer, Launch, Program, Ref
from engine.ir.loops import INNER, OUTER, Blocking, LoopKernel
from engine.ir.tuning import Chooser, Question, Way
from engine.lowering.share import Emit, loops_of
from engine.records.lowering import Choice

LEAST_MOVED = 1 << 21
"""Bytes below which a kernel is over before blocks could matter."""

Cuts = Callable[[LoopKernel], tuple[Blocking, ...]]
"""Ways to cut a kernel, the usual one first; given by the caller, since blocks are the next stage's work."""


class Cutter:
    """Cuts each distinct kernel of a program once, and keeps what was chosen and why."""

    def __init__(self, chooser: Chooser, cuts: Cuts | None, emit: Emit, target: str, sizes: Mapping[str, int]) -> None:
        self._chooser, self._cuts, self._emit, self._target, self._sizes = chooser, cuts, emit, target, sizes
        self._known: dict[Hashable, Blocking | None] = {}
        self.choices: list[Choice] = []

    def cut(self, kernel: LoopKernel) -> LoopKernel:
        """The kernel with the blocks that were chosen; as it is where nobody measures, or nothing could be gained."""
        if self._cuts is None or not is_measurable(kernel):
            return kernel
        key = loops_of(kernel)
        if key not in self._known:
            self._known[key] = self._chosen(kernel, self._cuts(kernel))
        return replace(kernel, block=self._known[key])

    def _chosen(self, kernel: LoopKernel, found: tuple[Blocking, ...]) -> Blocking | None:
        ways = tuple(Way(f"blocks of {b}", functools.partial(self._alone, replace(kernel, block=b))) for b in found)
        name = kernel.nodes[0] if kernel.nodes else ""
        answer = self._chooser.choose(
            Question(name, ways, "with its usual blocks it", "with the best others", self._sizes)
        )
        if answer.reason:
            seconds = answer.seconds or (None,) * len(ways)
            told = tuple((way.label, s) for way, s in zip(ways, seconds, strict=True))
            self.choices.append(
                Choice(kernel.nodes, ways[answer.taken].label, answer.reason, told, answer.device, answer.is_known)
            )
        return found[answer.taken] if answer.taken else None

    def _alone(self, kernel: LoopKernel) -> Program:
        source = self._emit(replace(kernel, name="measured"), self._target)
        pointers = [a for a in source.args if a.kind == "pointer"]
        given = tuple(a.buffer for a in pointers if not a.written)
        buffers = {
            a.buffer: replace(kernel.buffers[a.buffer], kind="intermediate" if a.written else "input") for a in pointers
        }
        written = tuple(Ref(a.buffer) for a in pointers if a.written)
        symbols = told_by({name: buffers[name] for name in given})
        return Program(self._target, given, buffers, (Launch(source),), written, symbols)


def is_measurable(kernel: LoopKernel) -> bool:
    """Whether made-up numbers tell how fast a kernel is: it moves enough, and does not read or write wherever they happen to point."""
    if (
        kernel.product is not None
        or kernel.starts
        or (kernel.bytes_moved is not None and kernel.bytes_moved < LEAST_MOVED)
    ):
        return False
    everywhere = OUTER if kernel.r is None else INNER
    return not any(op.index is not None and op.index.picks() and op.space >= everywhere for op in kernel.ops)


def told_by(given: Mapping[str, Buffer]) -> dict[str, tuple[int, int]]:
    """Which input's dimension tells each symbol that one of them is."""
    found: dict[str, tuple[int, int]] = {}
    for position, buffer in enumerate(given.values()):
        for dim, size in enumerate(buffer.shape):
            if not isinstance(size, int) and size.is_Symbol:
                found.setdefault(next(iter(symbols_of([size]))), (position, dim))
    return found
