"""Output of lowering: kernels as source code with calling convention, and their program.

Used by the targets and by the runtime.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.fx

from engine.ir.kernels.generated_kernel import GeneratedKernel, Size
from engine.ir.node_values import unwrap_functionalized
from engine.ir.triton_launches import launch_of
from engine.records.lowering import LoweringRecord
from engine.torch_private.pytree import tree_leaves

CPU_TARGET = "cpu"
"""Target of kernels that run on this machine's CPU."""


@dataclass(frozen=True)
class Buffer:
    """A tensor of the program.

    ``shape`` and ``stride`` count elements; they are sympy expressions over the program's symbols if dynamic.
    ``kind`` is "input", "intermediate" or "output". Only an input may have a nonzero storage offset.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    kind: Literal["input", "intermediate", "output"] = "intermediate"
    is_complex: bool = False
    """True if the real tensor is complex and this buffer is its real view.

    This holds for inputs and for results of ATen calls.
    """
    reuses: str = ""
    """Name of a dead buffer of equal size whose memory it reuses; empty for its own memory."""


@dataclass(frozen=True)
class BufferRef:
    """A buffer as an argument or output, optionally as a view; None means the buffer's layout.

    It may also name an input that is a random generator.

    Sizes, strides and offset count elements. With ``is_complex`` the view is then read as complex numbers: its
    last dimension of size two holds the real and imaginary parts.
    """

    buffer: str
    shape: tuple[Size, ...] | None = None
    stride: tuple[Size, ...] | None = None
    offset: Size = 0
    is_complex: bool = False

    def sizes(self) -> list[Any]:
        """Return the sizes, the strides and the offset of the view."""
        return [*(self.shape or ()), *(self.stride or ()), self.offset]


def buffer_refs(values: Any) -> list[BufferRef]:
    """Return the buffers in arguments or outputs, nested ones too."""
    return [v for v in tree_leaves(values) if isinstance(v, BufferRef)]


def sizes_in(values: Any) -> list[Any]:
    """Return the sizes and numbers in arguments or outputs, symbolic ones as expressions."""
    sizes: list[Any] = []
    for value in tree_leaves(values):
        refs = buffer_refs(value)
        sizes += refs[0].sizes() if refs else [getattr(getattr(value, "node", None), "expr", value)]
    return sizes


@dataclass(frozen=True)
class Launch:
    """The launch of one kernel; allocates its outputs just before if they are not inputs.

    Launches of equal kernels share ``id``, ``name`` and ``text``. Each one has its own buffers in ``args``, its
    own ``nodes``, and its own node ids in the ops.
    """

    kernel: GeneratedKernel

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches of this step: the launch itself."""
        return (self,)

    @property
    def calls(self) -> tuple[AtenCall, ...]:
        """The ATen calls of this step: none."""
        return ()

    def fingerprint(self) -> list[Any]:
        """Return a description that is equal for equal kernels."""
        k = self.kernel
        values = [(a.name, a.triton_type, str(a.value)) for a in k.args]
        return ["kernel", k.text, values, str(k.grid), k.num_warps, k.num_stages]

    def touched_buffers(self) -> Iterator[str]:
        """Yield the buffers that the step reads or writes."""
        yield from (a.buffer for a in self.kernel.args if a.kind == "pointer")
        yield from (a.copied_buffer for a in self.kernel.args if a.copied_buffer)

    def sizes(self) -> list[Any]:
        """Return the sizes that the launch passes to the kernel."""
        return [*self.kernel.grid, *(a.value for a in self.kernel.args if a.kind == "size")]


@dataclass(frozen=True)
class ConstantTensor:
    """Target of an ATen call that returns a constant tensor of the graph."""

    tensor: torch.Tensor

    def __call__(self) -> torch.Tensor:
        """Return the tensor."""
        return self.tensor


@dataclass(frozen=True)
class AtenCall:
    """A call of an ATen operator or an engine operator: ``target(*args, **kwargs)``.

    Buffers in the arguments are ``BufferRef`` objects. The results are written to ``result_buffers`` (None:
    unused). ``node`` is the id of the ATen node, ``reason`` explains why it was not lowered.
    """

    node: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result_buffers: tuple[str | None, ...]
    reason: str = ""
    is_library_call: bool = False

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches of this step: none."""
        return ()

    @property
    def calls(self) -> tuple[AtenCall, ...]:
        """The ATen calls of this step: the call itself."""
        return (self,)

    def fingerprint(self) -> list[Any]:
        """Return a description that is equal for equal calls."""
        return ["call", str(self.target), str(self.args), str(dict(self.kwargs))]

    def touched_buffers(self) -> Iterator[str]:
        """Yield the buffers that the step reads or writes."""
        yield from (r.buffer for r in buffer_refs((self.args, dict(self.kwargs))))
        yield from (r for r in self.result_buffers if r is not None)

    def sizes(self) -> list[Any]:
        """Return the sizes and numbers in the arguments of the call."""
        return sizes_in((self.args, dict(self.kwargs)))


ProgramStep = Launch | AtenCall


@dataclass(frozen=True)
class LoweredProgram:
    """One lowered graph.

    ``inputs`` names the graph's placeholders in order: buffers, or symbols for sizes. ``outputs`` holds
    ``BufferRef`` objects or constants. ``symbol_sources`` maps each sympy symbol's name to (input index,
    location). ``reference_graph`` is the decomposed ATen graph that was lowered,
    with the placeholders of ``inputs``. A buffer that has a node carries the node's name, so that verification
    can run each kernel on ATen's values and compare its results. Other buffers are scratch. None: there is
    nothing to compare with.
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
    """Symbol -> (result name of an ATen call, dimension) that defines it at run time.

    Dimension -1 means the value of a number.
    """
    assumed_numbers: Mapping[str, Size] = field(default_factory=dict)
    """Name of a number that ATen reads from a tensor -> the value that the graph assumes.

    Nothing else defines these numbers; the assumption is checked at run time.
    """
    assumed_relations: tuple[Any, ...] = ()
    """Relations among the outputs that the graph assumes; they are checked at run time."""
    multi_output_buffers: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Buffer -> (node name, index) of one of several results of a node of ``reference_graph``.

    Such buffers have no node of their own.
    """

    @property
    def written_inputs(self) -> tuple[str, ...]:
        """Inputs that kernels write: a buffer takes their memory."""
        input_names = set(self.inputs)
        return tuple(b.reuses for b in self.buffers.values() if b.reuses in input_names)

    @property
    def kernels(self) -> tuple[GeneratedKernel, ...]:
        """The kernels in launch order; a kernel with several launches is repeated."""
        return tuple(launch.kernel for step in self.steps for launch in step.launches)

    @property
    def shown_kernels(self) -> tuple[GeneratedKernel, ...]:
        """The kernels of a program for a GPU with those that the user wrote."""
        return (*self.kernels, *self.user_kernels)

    @property
    def user_kernels(self) -> tuple[GeneratedKernel, ...]:
        """Kernels that the user wrote and ATen calls launch, in launch order.

        Equal kernels have one id.
        """
        kernels: list[GeneratedKernel] = []
        numbers: dict[int, int] = {}
        for call in (call for step in self.steps for call in step.calls):
            launch = launch_of(unwrap_functionalized(call.target, call.args))
            if launch is not None:
                number = numbers.setdefault(id(launch), len(numbers))
                with contextlib.suppress(OSError, TypeError):  # the kernel's source cannot be read
                    kernels.append(launch.generated_kernel(number, call.node, _buffers_by_parameter(call)))
        return tuple(kernels)


def _buffers_by_parameter(call: AtenCall) -> dict[str, str]:
    """Return the buffer of each tensor argument of a launch.

    An argument that the kernel writes is given by the number of its base.
    """
    kwargs = dict(call.kwargs)
    bases: Sequence[BufferRef] = kwargs.pop("_all_bases", ())
    buffers = {name: ref for name, value in kwargs.items() for ref in buffer_refs(value)}
    for name, value in kwargs.items():
        if name.endswith("_base_index"):
            buffers[name.removeprefix("_").removesuffix("_base_index")] = bases[value]
    return {name: ref.buffer for name, ref in buffers.items()}
