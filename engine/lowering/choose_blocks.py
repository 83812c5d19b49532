"""Block size autotuning of loop kernels: the default is used unless another is faster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

import sympy

from engine.ir.kernels.lowered_program import Buffer, BufferRef, Launch, LoweredProgram
from engine.ir.kernels.template_choice import Candidate, ChoiceRequest, TemplateChooser
from engine.ir.loop_ir.index_expr import symbols_of
from engine.ir.loop_ir.loop_kernel import BlockConfig, LoopKernel
from engine.ir.loop_ir.ops import VARIES_WITH_X, VARIES_WITH_XR
from engine.ir.static_sizes import static_size
from engine.lowering.dedup_kernels import PrintKernel, structural_key
from engine.records.lowering import AutotuneChoice

MIN_TUNED_BYTES = 1 << 21
"""Kernels that move fewer bytes are too short for block sizes to matter."""

CandidateBlockings = Callable[[LoopKernel], tuple[BlockConfig, ...]]
"""Returns the candidate block sizes of a kernel, the default first.

The caller passes it, since block sizes belong to the next stage.
"""


@dataclass(frozen=True)
class StoredTuning:
    """A kernel with settings that a person tuned by hand, and the record of that choice."""

    kernel: LoopKernel
    choice: AutotuneChoice


FindTuning = Callable[[LoopKernel], StoredTuning | None]
"""Returns the tuning that is stored for a kernel, or None."""


class BlockTuner:
    """Tunes each distinct kernel of a program once, and records each choice with its reason."""

    def __init__(
        self,
        chooser: TemplateChooser,
        cuts: CandidateBlockings | None,
        emit: PrintKernel,
        target: str,
        sizes: Mapping[str, int],
        find_tuning: FindTuning | None = None,
    ) -> None:
        self._find_tuning = find_tuning
        self._chooser, self._candidates, self._emit, self._target, self._size_hints = chooser, cuts, emit, target, sizes
        self._chosen_blockings: dict[Hashable, BlockConfig | None] = {}
        self.choices: list[AutotuneChoice] = []

    def with_chosen_blocking(self, kernel: LoopKernel) -> LoopKernel:
        """Return the kernel with its tuned block sizes, or unchanged if it is not tuned."""
        if self._find_tuning is not None and (stored := self._find_tuning(kernel)) is not None:
            self.choices.append(stored.choice)
            return stored.kernel
        if self._candidates is None or not is_tunable(kernel):
            return kernel
        key = structural_key(kernel)
        if key not in self._chosen_blockings:
            self._chosen_blockings[key] = self._tune(kernel, self._candidates(kernel))
        return replace(kernel, block_config=self._chosen_blockings[key])

    def _tune(self, kernel: LoopKernel, configs: tuple[BlockConfig, ...]) -> BlockConfig | None:
        ways = tuple(
            Candidate(
                f"blocks of {b}",
                functools.partial(
                    benchmark_program, replace(kernel, name="measured", block_config=b), self._emit, self._target
                ),
            )
            for b in configs
        )
        name = kernel.nodes[0] if kernel.nodes else ""
        answer = self._chooser.choose(
            ChoiceRequest(
                name,
                ways,
                "the kernel with its default block sizes",
                "with the best other block sizes",
                self._size_hints,
            )
        )
        if answer.reason:
            seconds = answer.seconds or (None,) * len(ways)
            timings = tuple((config.label, s) for config, s in zip(ways, seconds, strict=True))
            self.choices.append(
                AutotuneChoice(
                    kernel.nodes,
                    ways[answer.chosen].label,
                    answer.reason,
                    timings,
                    answer.device,
                    answer.from_disk_cache,
                )
            )
        return configs[answer.chosen] if answer.chosen else None


def benchmark_program(kernel: LoopKernel, emit: PrintKernel, target: str) -> LoweredProgram:
    """Return a program of one kernel, whose inputs are those of the kernel."""
    source = emit(kernel, target)
    pointers = [a for a in source.args if a.kind == "pointer"]
    read_buffers = tuple(a.buffer for a in pointers if not a.is_written)
    buffers = {
        a.buffer: replace(kernel.buffers[a.buffer], kind="intermediate" if a.is_written else "input") for a in pointers
    }
    written = tuple(BufferRef(a.buffer) for a in pointers if a.is_written)
    symbols = symbols_from_inputs({name: buffers[name] for name in read_buffers})
    return LoweredProgram(target, read_buffers, buffers, (Launch(source),), written, symbols)


def is_tunable(kernel: LoopKernel) -> bool:
    """Return True if a benchmark with random inputs is meaningful.

    The kernel must move enough bytes, and its addresses must not depend on data.
    """
    moved = static_size(kernel.bytes_moved)
    if moved is not None and moved < MIN_TUNED_BYTES:
        return False
    return kernel.matmul is None and not why_not_measurable(kernel)


def why_not_measurable(kernel: LoopKernel) -> str:
    """Return why random inputs do not measure a kernel; empty if they do."""
    if kernel.initial_values:
        return "it updates a buffer in place"
    everywhere = VARIES_WITH_X if kernel.r is None else VARIES_WITH_XR
    picks = any(op.index is not None and op.index.indirect_ops() and op.loops >= everywhere for op in kernel.ops)
    return "its addresses depend on the values of an input" if picks else ""


def symbols_from_inputs(inputs: Mapping[str, Buffer]) -> dict[str, tuple[int, int]]:
    """Return the (input, dimension) from which the size of each symbol can be read."""
    locations: dict[str, tuple[int, int]] = {}
    for position, buffer in enumerate(inputs.values()):
        for dim, size in enumerate(buffer.shape):
            if sympy.sympify(size).is_Symbol:
                locations.setdefault(next(iter(symbols_of([size]))), (position, dim))
    return locations
