"""Kernel deduplication: kernels with equal loops share one source text.

The first one is printed. Others launch the same kernel on their own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from engine.ir.kernels.attention_kernel import AttentionKernel, AttentionLaunch
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.records.kernels import LoopOp

PrintKernel = Callable[[LoopKernel | AttentionLaunch, str], GeneratedKernel]
"""Prints one kernel for a target. The caller passes it, since printing is the next stage."""


class KernelDeduplicator:
    """Prints each distinct kernel of a program once."""

    def __init__(self, emit: PrintKernel, target: str, letter: str = "k") -> None:
        self._id_prefix = letter
        self._emit = emit
        self.target = target
        self._printed: dict[Hashable, tuple[GeneratedKernel, LoopKernel | None]] = {}
        self._name_counts: dict[str, int] = {}

    @property
    def next_id(self) -> str:
        """Id of the next kernel without an equal."""
        return f"{self._id_prefix}{len(self._printed)}"

    def kernel_source(self, kernel: LoopKernel) -> GeneratedKernel:
        """Return a kernel as it is launched here; kernels with equal loops share one text."""
        key = structural_key(kernel)
        source, printed = self._printed.get(key, (None, None))
        if source is not None and printed is not None:
            return _rebind_args(source, printed, kernel)
        source = _set_initial_values(self._emit(replace(kernel, name=self._unique_name(kernel)), self.target), kernel)
        self._printed[key] = (source, kernel)
        return source

    def attention_source(
        self, kernel: AttentionKernel, buffers: Mapping[str, str], prefix: str, nodes: tuple[str, ...]
    ) -> GeneratedKernel:
        """Return an attention kernel as it is launched here; equal kernels share one text."""
        printed = self._printed.get(kernel)
        if printed is None:
            generated = self._emit(
                AttentionLaunch(kernel, self.next_id, f"{prefix}:{self.next_id}", nodes, buffers), self.target
            )
            self._printed[kernel] = (generated, None)
            return generated
        source, _ = printed
        args = tuple(
            replace(a, buffer=buffers[a.name.removesuffix("_ptr")]) if a.kind == "pointer" else a for a in source.args
        )
        ops = tuple(LoopOp(op.id, op.text, nodes) for op in source.ops)
        return replace(source, args=args, ops=ops, nodes=nodes)

    def combined_source(self, kernel: LoopKernel, printed: GeneratedKernel) -> GeneratedKernel:
        """Return a kernel with its companions in one text, in place of its own text."""
        return self._emit(replace(kernel, id=printed.id, name=printed.name), self.target)

    def _unique_name(self, kernel: LoopKernel) -> str:
        """Return a unique name: the kernel's ops, and a number if the name is taken."""
        name = _kernel_name(kernel)
        count = self._name_counts[name] = self._name_counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"


def _kernel_name(kernel: LoopKernel) -> str:
    words: list[str] = []
    for word in kernel.name_parts:
        if len(words) == 5 or sum(map(len, words)) + len(word) > 48:
            break
        words.append(word)
    joined = "_".join(words or ["copy"])
    return f"fused_{joined}" if len(kernel.nodes) > 1 else f"{joined}_kernel"


def structural_key(kernel: LoopKernel) -> Hashable:
    """Return a key of all that determines a kernel's text.

    Buffers and fractions that the host computes count by their position, and values by their ``repr`` (1 is not 1.0).
    """
    roles = kernel.buffers_in_order
    numbers = {name: number for number, name in enumerate(roles)}
    fractions = {value: number for number, value in enumerate(kernel.fractions_in_order)}
    ops = tuple(
        (
            op.name,
            tuple(a.number for a in op.args),
            op.dtype,
            op.loops,
            fractions[op.value] if op.is_fraction else repr(op.value),
            op.index,
            numbers.get(op.buffer),
            None if op.mask is None else op.mask.number,
        )
        for op in kernel.ops
    )
    dtypes = tuple(kernel.buffers[name].dtype for name in roles)
    settings = kernel.matmul, kernel.block_config, kernel.vector_config
    return ops, kernel.x, kernel.r, dtypes, kernel.uses_int64_index, *settings, kernel.nest


def _rebind_args(source: GeneratedKernel, printed: LoopKernel, kernel: LoopKernel) -> GeneratedKernel:
    rebound = replace(source, args=kernel.args_like(printed, source.args))
    args = _set_initial_values(rebound, kernel).args
    ops = tuple(LoopOp(op.id, op.text, tuple(kernel.ops[_op_number(op)].node_ids)) for op in source.ops)
    return replace(source, args=args, ops=ops, nodes=kernel.nodes, bytes_moved=kernel.bytes_moved, flops=kernel.flops)


def _set_initial_values(source: GeneratedKernel, kernel: LoopKernel) -> GeneratedKernel:
    if not kernel.initial_values:
        return source
    return replace(
        source,
        args=tuple(
            replace(a, initial_value=kernel.initial_values.get(a.buffer)) if a.is_written else a for a in source.args
        ),
    )


def _op_number(op: LoopOp) -> int:
    return int(op.id.rpartition(":")[2])
