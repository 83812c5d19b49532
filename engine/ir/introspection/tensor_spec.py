"""Descriptions of tensors that stand in for them where only their properties matter: no tensor is allocated."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False, init=False)
class TensorSpec:
    """What a tensor is like, without the tensor: what-if questions take it in place of one.

    Args:
        shape: sizes.
        dtype: by default ``torch.float32``.
        stride: in elements; by default those of a contiguous tensor.
        device: by default the CPU; need not exist on this machine.
        requires_grad: whether the tensor requires grad.
        parameter: whether it is an ``nn.Parameter``.

    Raises:
        ValueError: a size is negative, strides are not one for each size, or a dtype without gradients requires grad.
    """

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]
    device: torch.device
    requires_grad: bool
    is_parameter: bool

    def __init__(
        self,
        shape: Iterable[int],
        dtype: torch.dtype = torch.float32,
        stride: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        requires_grad: bool = False,
        *,
        parameter: bool = False,
    ) -> None:
        sizes = torch.Size(shape)
        if any(s < 0 for s in sizes):
            raise ValueError(f"A size is at least 0: {tuple(sizes)}.")
        strides = _contiguous(sizes) if stride is None else tuple(stride)
        if len(strides) != len(sizes):
            raise ValueError(f"{len(sizes)} sizes take {len(sizes)} strides, not {len(strides)}.")
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"Only floating point and complex tensors can require grad, not {dtype}.")
        for name, value in (
            ("shape", sizes), ("dtype", dtype), ("strides", strides), ("device", torch.device(device)),
            ("requires_grad", bool(requires_grad)), ("is_parameter", parameter),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> TensorSpec:
        """What a tensor is like."""
        with torch._C.DisableTorchFunction():
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made = cls(tensor.shape, tensor.dtype, tensor.stride(), tensor.device, parameter=is_parameter)
            # Whole numbers that gradients were written to require them, too, though nobody can ask for it.
            object.__setattr__(made, "requires_grad", tensor.requires_grad)
            return made

    @property
    def layout(self) -> torch.layout:
        """Always strided."""
        return torch.strided

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def tensor_type(self) -> type:
        """The class of the tensor that is described."""
        return torch.nn.Parameter if self.is_parameter else torch.Tensor

    @property
    def dispatch_keys(self) -> str:
        """The tensor's own dispatch keys, as text."""
        return _dispatch_keys_for_device(self.device.type)

    def size(self, dim: int | None = None) -> Any:
        """All sizes, or one."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """All strides, or one."""
        return self.strides if dim is None else self.strides[dim]

    def dim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


@functools.cache
def _dispatch_keys_for_device(kind: str) -> str:
    """Dispatch keys of an ordinary tensor on a kind of device: as on the CPU, under that device's names."""
    if kind == "meta":
        return str(torch._C._dispatch_keys(torch.empty(0, device="meta")))
    keys = str(torch._C._dispatch_keys(torch.empty(0, device="cpu")))
    return keys if kind == "cpu" else keys.replace("CPU", kind.upper())


def described_type(value: Any) -> type:
    """The exact type of a value, or of the tensor that it describes."""
    return value.tensor_type if type(value) is TensorSpec else type(value)
