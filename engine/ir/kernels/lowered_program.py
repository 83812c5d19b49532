"""What lowering hands to the targets and to the runtime: kernels as text with their calling convention, and the program around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.fx

from engine.ir.kernels.generated_kernel import GeneratedKernel, Size
from engine.records.lowering import LoweringRecord


@dataclass(frozen=True)
class Buffer:
    """A tensor of the program. ``shape`` and ``stride`` in elements; sympy expressions over the program's symbols where dynamic.

    ``kind`` is "input", "intermediate" or "output"; all start at storage offset 0 of their own storage unless ``kind`` is "input".
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    kind: Literal["input", "intermediate", "output"] = "intermediate"
    is_complex: bool = False
    """It is given, or made by an ATen call, as a complex tensor, of which this describes the real view."""
    reuses: str = ""
    """An equal buffer that nothing reads any more, whose memory it takes over; empty for memory of its own."""


@dataclass(frozen=True)
class BufferRef:
    """A buffer used as an argument or output, seen through sizes, strides and offset (elements); None means as the buffer is.

    One that ``is_complex`` is seen as complex numbers after that, its last dimension of two being their parts.
    """

    buffer: str
    shape: tuple[Size, ...] | None = None
    stride: tuple[Size, ...] | None = None
    offset: Size = 0
    is_complex: bool = False


@dataclass(frozen=True)
class Launch:
    """Run one kernel; its outputs are allocated just before if they are not inputs.

    Launches of equal kernels share ``id``, ``name`` and ``text``; their ``args`` name each one's own buffers, ``nodes`` and the ops'
    origins its own nodes.
    """

    kernel: GeneratedKernel


@dataclass(frozen=True)
class ConstantTensor:
    """Stands as an ATen call's target for a tensor that the graph holds."""

    tensor: torch.Tensor

    def __call__(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor


@dataclass(frozen=True)
class AtenCall:
    """Call ATen (or an operator of ours): ``target(*args, **kwargs)`` with Refs for buffers; results go to ``results`` (None: not used).

    ``node`` is the ATen node's id, ``reason`` why it was not lowered.
    """

    node: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result_buffers: tuple[str | None, ...]
    reason: str = ""
    is_library_call: bool = False


ProgramStep = Launch | AtenCall


@dataclass(frozen=True)
class LoweredProgram:
    """One lowered graph. ``inputs`` name the graph's placeholders in order (buffers, or symbols for sizes); ``outputs`` are Refs or constants.

    ``symbols`` maps each sympy symbol's name to how to read it from the inputs: (input index, dimension), dimension -1 for an int input.
    ``reference`` is the decomposed ATen graph that was lowered: same placeholders in the same order as ``inputs``, and every buffer that has
    a node carries the node's name, so that verification can feed each kernel ATen's own values and compare what it writes. Buffers without
    such a node are scratch. None: there is nothing to compare with.
    """

    target: str
    inputs: tuple[str, ...]
    buffers: Mapping[str, Buffer]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[Any, ...]
    symbol_sources: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    record: LoweringRecord = LoweringRecord(target="")
    reference_graph: torch.fx.GraphModule | None = field(default=None, compare=False, repr=False)
    unbacked_symbols: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Symbols that an ATen call's result tells when the program runs: (its name, dimension), dimension -1 for a number."""
    assumed_numbers: Mapping[str, Size] = field(default_factory=dict)
    """Numbers that ATen reads from tensors, by name, and what the graph takes them to be: told by nothing else, and to be checked."""
    multi_output_buffers: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Buffers that hold one of several results of a node of ``reference``, which have no node of their own: (the node's name, which one)."""

    @property
    def kernels(self) -> tuple[GeneratedKernel, ...]:
        """The kernels in launch order, one that is launched several times each time."""
        return tuple(s.kernel for s in self.steps if isinstance(s, Launch))
