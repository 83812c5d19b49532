"""Kernel verification, worker side: interpret one launch and compare what it wrote."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.runtime.kernel_launchers import interpreter_kernel

REDZONE = 8192
"""Elements of redzone before and after each buffer.

More than a block, so that accesses without a mask end in it.
"""
FILL_BYTE = 0x5B
"""Byte that fills uninitialized memory; no plausible result."""

ULPS = {torch.float64: 16.0, torch.float32: 16.0, torch.float16: 1.0, torch.bfloat16: 1.0}
"""Allowed error of an element in units of its dtype's epsilon.

16-bit results are rounded once, from float32.
"""
ATEN_ERROR_FACTOR = 4.0
"""Allowed error in units of ATen's largest error in this tensor before the final rounding."""
ACCUMULATION_TOLERANCE = 64.0
"""Allowed error of reordered sums, in units of float32's epsilon times the tensor's RMS.

ATen may accumulate in double.
"""
TOLERANCE_WITHOUT_REFERENCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 2.0**-8,
    torch.bfloat16: 2.0**-6,
}
"""Allowed error without a float64 reference, by dtype.

Relative to the element, plus the same fraction of the tensor's RMS.
"""


@dataclass(frozen=True)
class BufferArgument:
    """A buffer argument of a kernel.

    ``value``: contents before the launch (None: uninitialized). ``expected``: ATen's contents after it (None: unknown).
    ``fp64_reference``: the same in float64 without intermediate rounding (None: not available).
    """

    name: str
    buffer: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    value: torch.Tensor | None
    expected: torch.Tensor | None = None
    fp64_reference: torch.Tensor | None = None
    written: bool = False


def buffer_arguments(arguments: Iterable[object]) -> list[BufferArgument]:
    """Return the buffers among the arguments of a kernel."""
    return [a for a in arguments if isinstance(a, BufferArgument)]


@dataclass(frozen=True)
class KernelTrial:
    """One kernel launch: kernel text, arguments in order (buffers or scalars), grid."""

    name: str
    text: str
    arguments: tuple[BufferArgument | int | float | bool | str | None, ...]
    grid: tuple[int, int, int]


@dataclass(frozen=True)
class KernelComparison:
    """Outcome of one kernel's comparison.

    ``written``: contents of the written buffers without an expected value, by name, for kernels that read them later.
    """

    outcome: str
    max_error: float | None = None
    tolerance: float | None = None
    note: str = ""
    written: dict[str, torch.Tensor] = field(default_factory=dict)


class RedzonedBuffer:
    """A buffer between two redzones."""

    def __init__(self, pointer: BufferArgument) -> None:
        self.pointer = pointer
        pairs = list(zip(pointer.shape, pointer.stride, strict=True))
        extent = 1 + sum((n - 1) * s for n, s in pairs) if all(pointer.shape) else 0
        self._extent = extent
        self._memory, self._start = self._allocate(extent, pointer.dtype)
        self._memory.view(torch.uint8).fill_(FILL_BYTE)
        self._redzone_bytes = self._read_redzones()
        offset = self._memory.storage_offset() + self._start
        self.tensor = self._memory.as_strided(pointer.shape, pointer.stride, offset)
        if pointer.value is not None:
            # With a stride of 0 one element stands for many: write it once.
            distinct = tuple(slice(0, 1) if s == 0 else slice(None) for s in pointer.stride)
            self.tensor[distinct].copy_(pointer.value[distinct])

    @staticmethod
    def _allocate(extent: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """Return memory with redzones, and the index of the first element between them."""
        return torch.empty(extent + 2 * REDZONE, dtype=dtype), REDZONE

    @property
    def addresses(self) -> range:
        """The addresses of the buffer's bytes."""
        start = self.tensor.data_ptr()
        return range(start, start + self._extent * self._memory.element_size())

    def _read_redzones(self) -> torch.Tensor:
        ends = (self._memory[: self._start], self._memory[self._start + self._extent :])
        return torch.cat([end.view(torch.uint8) for end in ends])

    @property
    def is_intact(self) -> bool:
        """Return True if nothing was written outside the buffer."""
        return torch.equal(self._redzone_bytes, self._read_redzones())


def warm_up() -> None:
    """Load Triton, so that the first kernel does not wait for it."""
    importlib.import_module("triton.language")


def run_and_compare(trial: KernelTrial) -> KernelComparison:
    """Interpret the kernel and compare its results with the expected values.

    Raises:
        Exception: whatever interpreting the kernel raises.
    """

    def interpret(*values: Any) -> None:
        if all(trial.grid):
            interpreter_kernel(trial.name, trial.text)[trial.grid](*values)

    return compare_results(trial, interpret)


def compare_results(
    trial: KernelTrial,
    launch: Callable[..., object],
    make_buffer: Callable[[BufferArgument], RedzonedBuffer] = RedzonedBuffer,
    on_buffers: Callable[[Mapping[str, RedzonedBuffer]], object] = lambda _: None,
) -> KernelComparison:
    """Run a kernel by ``launch`` and compare its results with the expected values.

    Its buffers are between redzones. ``on_buffers`` gets them by name before the launch.

    Raises:
        Exception: whatever the launch raises.
    """
    arenas = [make_buffer(a) if isinstance(a, BufferArgument) else None for a in trial.arguments]
    by_buffer: dict[str, RedzonedBuffer] = {}
    values: list[Any] = []
    for argument, arena in zip(trial.arguments, arenas, strict=True):
        if isinstance(argument, BufferArgument) and arena is not None:
            # A buffer passed twice must be the same memory.
            values.append(by_buffer.setdefault(argument.buffer, arena).tensor)
        else:
            values.append(argument)
    on_buffers(by_buffer)
    launch(*values)
    changed_by_kernel = {p.buffer for p in buffer_arguments(trial.arguments) if p.written}
    written = {b: a for b, a in by_buffer.items() if b in changed_by_kernel}
    if broken := [b for b, a in by_buffer.items() if not a.is_intact]:
        return KernelComparison("different", note=f"it writes outside the bounds of {', '.join(broken)}")
    if changed := [b for b, a in by_buffer.items() if b not in written and not _is_unchanged(a)]:
        return KernelComparison("different", note=f"it mutates {', '.join(changed)}, which it should only read")
    scratch = {b: a.tensor.clone() for b, a in written.items() if a.pointer.expected is None}
    compared = [_compare(a, _largest_input(trial)) for a in written.values() if a.pointer.expected is not None]
    if not compared:
        return KernelComparison("not verifiable", note=NOTHING_TO_COMPARE, written=scratch)
    worst = max(compared, key=_severity)
    return KernelComparison(worst.outcome, worst.max_error, worst.tolerance, worst.note, scratch)


NOTHING_TO_COMPARE = "not verifiable: its outputs have no ATen node; they are verified with the kernel that reads them"


def _is_unchanged(arena: RedzonedBuffer) -> bool:
    value = arena.pointer.value
    return value is None or _is_equal(arena.tensor, value)


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if all elements are equal; NaN equals NaN."""
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _severity(outcome: KernelComparison) -> tuple[int, float]:
    rank = ("equal", "close", "different").index(outcome.outcome)
    return rank, math.inf if outcome.max_error is None else outcome.max_error


def _largest_input(trial: KernelTrial) -> float:
    """Return the largest finite magnitude among the floating-point inputs."""
    largest = 0.0
    for argument in buffer_arguments(trial.arguments):
        value = argument.value
        if value is not None and value.is_floating_point() and value.numel():
            magnitude = value.double().abs()
            finite = magnitude[magnitude.isfinite()]
            largest = max(largest, float(finite.max()) if finite.numel() else 0.0)
    return largest


def _compare(arena: RedzonedBuffer, scale: float) -> KernelComparison:
    expected = arena.pointer.expected
    assert expected is not None
    actual = arena.tensor
    if _is_equal(actual, expected):
        return KernelComparison("equal", 0.0)
    if not expected.is_floating_point():
        at = (actual != expected).nonzero()[0].tolist()
        furthest = float((actual.double() - expected.double()).abs().max())
        return KernelComparison("different", furthest, 0.0, _describe_element(arena, at))
    return _compare_floats(arena, expected, scale)


def _compare_floats(arena: RedzonedBuffer, expected: torch.Tensor, scale: float) -> KernelComparison:
    actual, aten = arena.tensor.double(), expected.double()
    exact = arena.pointer.fp64_reference
    # Kernels compute in float32, whatever dtype they store.
    eps = torch.finfo(expected.dtype if expected.dtype is torch.float64 else torch.float32).eps
    if exact is not None:
        unit = torch.finfo(expected.dtype).eps
        mid, relative = exact, ULPS.get(expected.dtype, 1.0) * unit
        # Rounding the result costs half an epsilon. The rest of ATen's error is from before the rounding.
        before_rounding = ((aten - mid).abs() - 0.5 * unit * mid.abs()).clamp(min=0.0)
        allowed = ATEN_ERROR_FACTOR * _largest_finite(
            before_rounding
        ) + ACCUMULATION_TOLERANCE * eps * _root_mean_square(mid)
    else:
        mid, relative = aten, TOLERANCE_WITHOUT_REFERENCE.get(expected.dtype, 0.0)
        allowed = relative * _root_mean_square(mid) + 4 * eps * scale
    is_alike = (actual == aten) | (actual.isnan() & aten.isnan())
    # An element finite on one side only yields NaN or inf here, which fails every bound.
    is_near = (actual - mid).abs() <= allowed + relative * mid.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = _largest_finite(torch.where(is_alike, 0.0, actual - aten))
    # For the record, the maximum difference from ATen: the bound at the largest element plus ATen's own error.
    bound = allowed + relative * _largest_finite(mid) + _largest_finite(aten - mid)
    is_wrong = ~(is_alike | is_near)
    if not bool(is_wrong.any()):
        return KernelComparison("close", largest, bound)
    return KernelComparison("different", largest, bound, _describe_element(arena, is_wrong.nonzero()[0].tolist()))


def _is_fill(element: torch.Tensor) -> bool:
    """Return True if an element of several bytes still holds what filled its buffer."""
    raw = element.clone().reshape(1).view(torch.uint8)
    return len(raw) > 1 and bool((raw == FILL_BYTE).all())


def _largest_finite(errors: torch.Tensor) -> float:
    finite = errors[errors.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _root_mean_square(values: torch.Tensor) -> float:
    finite = values[values.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def _describe_element(arena: RedzonedBuffer, at: list[int]) -> str:
    """Return the element at ``at`` and what ATen has in its place."""
    expected = arena.pointer.expected
    assert expected is not None
    index = tuple(at)
    element = f"{arena.pointer.buffer}[{', '.join(map(str, index))}]"
    if _is_fill(arena.tensor[index]):
        return f"{element} is not written, but {expected[index].item()!r} in ATen"
    return f"{element} is {arena.tensor[index].item()!r}, but {expected[index].item()!r} in ATen"
