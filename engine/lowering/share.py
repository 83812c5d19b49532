"""Gives kernels with equal loops one text: the first is printed, each further one launches it on buffers of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from engine.ir.attention import Attention, AttentionKernel
from engine.ir.kernel import KernelSource
from engine.ir.loops import LoopKernel
from engine.records.lowering import LoopOp

Emit = Callable[[LoopKernel | Attention, str], KernelSource]
"""Prints one kernel for a target; given by the caller, since printing is the next stage's work."""


class Printed:
    """The distinct kernels of one program, printed once each."""

    def __init__(self, emit: Emit, target: str, letter: str = "k") -> None:
        self._letter = letter
        self._emit = emit
        self._target = target
        self._known: dict[Hashable, tuple[KernelSource, tuple[str, ...]]] = {}
        self._names: dict[str, int] = {}

    @property
    def next_id(self) -> str:
        """The id of the next kernel that has no equal."""
        return f"{self._letter}{len(self._known)}"

    def source(self, kernel: LoopKernel) -> KernelSource:
        """The kernel as it is launched here: its text is that of the first kernel with equal loops."""
        roles = _roles(kernel)
        key = loops_of(kernel)
        known = self._known.get(key)
        if known is not None:
            return _rebound(known[0], dict(zip(known[1], roles, strict=True)), kernel)
        source = _started(self._emit(replace(kernel, name=self._name(kernel)), self._target), kernel)
        self._known[key] = (source, roles)
        return source

    def attention(
        self, kernel: AttentionKernel, buffers: Mapping[str, str], prefix: str, nodes: tuple[str, ...]
    ) -> KernelSource:
        """A kernel of attention as it is launched here: equal ones share a text."""
        known = self._known.get(kernel)
        if known is None:
            made = self._emit(Attention(kernel, self.next_id, f"{prefix}:{self.next_id}", nodes, buffers), self._target)
            self._known[kernel] = (made, ())
            return made
        source, _ = known
        args = tuple(
            replace(a, buffer=buffers[a.name.removesuffix("_ptr")]) if a.kind == "pointer" else a for a in source.args
        )
        ops = tuple(LoopOp(op.id, op.text, nodes) for op in source.ops)
        return replace(source, args=args, ops=ops, nodes=nodes)

    def _name(self, kernel: LoopKernel) -> str:
        """What a kernel is called: what it does, and a number only where another kernel of the program does the same otherwise."""
        name = _described(kernel)
        count = self._names[name] = self._names.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"


def _described(kernel: LoopKernel) -> str:
    words: list[str] = []
    for word in kernel.names:
        if len(words) == 5 or sum(map(len, words)) + len(word) > 48:
            break
        words.append(word)
    joined = "_".join(words or ["copy"])
    return f"fused_{joined}" if len(kernel.nodes) > 1 else f"{joined}_kernel"


def _roles(kernel: LoopKernel) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.buffer for op in kernel.ops if op.buffer))


def loops_of(kernel: LoopKernel) -> Hashable:
    """All that a kernel's text follows from, buffers told by their place and values by how they are written (1 is not 1.0)."""
    roles = _roles(kernel)
    place = {name: number for number, name in enumerate(roles)}
    ops = tuple(
        (
            op.name,
            tuple(a.number for a in op.args),
            op.dtype,
            op.space,
            repr(op.value),
            op.index,
            place.get(op.buffer),
            None if op.mask is None else op.mask.number,
        )
        for op in kernel.ops
    )
    dtypes = tuple(kernel.buffers[name].dtype for name in roles)
    return ops, kernel.x, kernel.r, dtypes, kernel.is_wide, kernel.product, kernel.block


def _rebound(source: KernelSource, buffers: dict[str, str], kernel: LoopKernel) -> KernelSource:
    args = tuple(replace(a, buffer=buffers[a.buffer]) if a.kind == "pointer" else a for a in source.args)
    args = _started(replace(source, args=args), kernel).args
    ops = tuple(LoopOp(op.id, op.text, tuple(kernel.ops[_number(op)].origins)) for op in source.ops)
    return replace(source, args=args, ops=ops, nodes=kernel.nodes, bytes_moved=kernel.bytes_moved, flops=kernel.flops)


def _started(source: KernelSource, kernel: LoopKernel) -> KernelSource:
    if not kernel.starts:
        return source
    return replace(
        source, args=tuple(replace(a, start=kernel.starts.get(a.buffer)) if a.written else a for a in source.args)
    )


def _number(op: LoopOp) -> int:
    return int(op.id.rpartition(":")[2])
