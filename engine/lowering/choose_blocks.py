"""Asks how kernels' loops are cut, where somebody measures: the usual blocks stay unless others are faster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from engine.ir.kernels.lowered_program import Buffer, BufferRef, Launch, LoweredProgram
from engine.ir.kernels.template_choice import Candidate, ChoiceRequest, TemplateChooser
from engine.ir.loop_ir.index_expr import symbols_of
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import VARIES_WITH_X, VARIES_WITH_XR
from engine.lowering.dedup_kernels import PrintKernel, structural_key
from engine.records.lowering import AutotuneChoice

MIN_TUNED_BYTES = 1 << 21
"""Bytes below which a kernel is over before blocks could matter."""

CandidateBlockings = Callable[[LoopKernel], tuple[BlockConfig, ...]]
"""Ways to cut a kernel, the usual one first; given by the caller, since blocks are the next stage's work."""


class BlockTuner:
    """Cuts each distinct kernel of a program once, and keeps what was chosen and why."""

    def __init__(
        self,
        chooser: TemplateChooser,
        cuts: CandidateBlockings | None,
        emit: PrintKernel,
        target: str,
        sizes: Mapping[str, int],
    ) -> None:
        self._chooser, self._candidates, self._emit, self._target, self._size_hints = chooser, cuts, emit, target, sizes
        self._chosen_blockings: dict[Hashable, BlockConfig | None] = {}
        self.choices: list[AutotuneChoice] = []

    def with_chosen_blocking(self, kernel: LoopKernel) -> LoopKernel:
        """The kernel with the blocks that were chosen; as it is where nobody measures, or nothing could be gained."""
        if self._candidates is None or not is_tunable(kernel):
            return kernel
        key = structural_key(kernel)
        if key not in self._chosen_blockings:
            self._chosen_blockings[key] = self._tune(kernel, self._candidates(kernel))
        return replace(kernel, block_config=self._chosen_blockings[key])

    def _tune(self, kernel: LoopKernel, found: tuple[BlockConfig, ...]) -> BlockConfig | None:
        ways = tuple(
            Candidate(f"blocks of {b}", functools.partial(self._benchmark_program, replace(kernel, block_config=b)))
            for b in found
        )
        name = kernel.nodes[0] if kernel.nodes else ""
        answer = self._chooser.choose(
            ChoiceRequest(name, ways, "with its usual blocks it", "with the best others", self._size_hints)
        )
        if answer.reason:
            seconds = answer.seconds or (None,) * len(ways)
            told = tuple((way.label, s) for way, s in zip(ways, seconds, strict=True))
            self.choices.append(
                AutotuneChoice(
                    kernel.nodes, ways[answer.chosen].label, answer.reason, told, answer.device, answer.from_disk_cache
                )
            )
        return found[answer.chosen] if answer.chosen else None

    def _benchmark_program(self, kernel: LoopKernel) -> LoweredProgram:
        source = self._emit(replace(kernel, name="measured"), self._target)
        pointers = [a for a in source.args if a.kind == "pointer"]
        given = tuple(a.buffer for a in pointers if not a.is_written)
        buffers = {
            a.buffer: replace(kernel.buffers[a.buffer], kind="intermediate" if a.is_written else "input")
            for a in pointers
        }
        written = tuple(BufferRef(a.buffer) for a in pointers if a.is_written)
        symbols = symbols_from_inputs({name: buffers[name] for name in given})
        return LoweredProgram(self._target, given, buffers, (Launch(source),), written, symbols)


def is_tunable(kernel: LoopKernel) -> bool:
    """Whether made-up numbers tell how fast a kernel is: it moves enough, and does not read or write wherever they happen to point."""
    if (
        kernel.matmul is not None
        or kernel.initial_values
        or (kernel.bytes_moved is not None and kernel.bytes_moved < MIN_TUNED_BYTES)
    ):
        return False
    everywhere = VARIES_WITH_X if kernel.r is None else VARIES_WITH_XR
    return not any(op.index is not None and op.index.indirect_ops() and op.loops >= everywhere for op in kernel.ops)


def symbols_from_inputs(given: Mapping[str, Buffer]) -> dict[str, tuple[int, int]]:
    """Which input's dimension tells each symbol that one of them is."""
    found: dict[str, tuple[int, int]] = {}
    for position, buffer in enumerate(given.values()):
        for dim, size in enumerate(buffer.shape):
            if not isinstance(size, int) and size.is_Symbol:
                found.setdefault(next(iter(symbols_of([size]))), (position, dim))
    return found
