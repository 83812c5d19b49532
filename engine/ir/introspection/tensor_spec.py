"""Tensor metadata that stands in for a tensor; no tensor is allocated."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

from engine.torch_private.dispatch import dispatch_keys as torch_dispatch_keys
from engine.torch_private.torch_function import DisableTorchFunction


@dataclass(frozen=True, eq=False, init=False)
class TensorSpec:
    """Metadata of a tensor, accepted instead of a tensor by what-if queries.

    Args:
        shape: sizes.
        dtype: defaults to ``torch.float32``.
        stride: strides in elements; defaults to those of a contiguous tensor.
        device: defaults to the CPU; need not exist on this machine.
        requires_grad: True if the tensor requires grad.
        parameter: True for an ``nn.Parameter``.
        inference: True for a tensor that was created in inference mode.

    Raises:
        ValueError: a size is negative, the number of strides differs from the number of sizes, or a dtype that
            cannot have gradients requires grad.
    """

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]
    device: torch.device
    requires_grad: bool
    is_parameter: bool
    is_inference: bool

    def __init__(
        self,
        shape: Iterable[int],
        dtype: torch.dtype = torch.float32,
        stride: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        requires_grad: bool = False,
        *,
        parameter: bool = False,
        inference: bool = False,
    ) -> None:
        sizes = torch.Size(shape)
        if any(s < 0 for s in sizes):
            raise ValueError(f"A size is at least 0: {tuple(sizes)}.")
        strides = _contiguous(sizes) if stride is None else tuple(stride)
        if len(strides) != len(sizes):
            raise ValueError(f"{len(sizes)} sizes need {len(sizes)} strides, not {len(strides)}.")
        if requires_grad and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"Only floating point and complex tensors can require grad, not {dtype}.")
        for name, value in (
            ("shape", sizes), ("dtype", dtype), ("strides", strides), ("device", torch.device(device)),
            ("requires_grad", bool(requires_grad)), ("is_parameter", parameter),
            ("is_inference", inference),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor) -> TensorSpec:
        """Return the metadata of a tensor."""
        with DisableTorchFunction():
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            spec = cls(
                tensor.shape,
                tensor.dtype,
                tensor.stride(),
                tensor.device,
                parameter=is_parameter,
                inference=tensor.is_inference(),
            )
            # Integer tensors may require grad after an in-place write; the constructor rejects that.
            object.__setattr__(spec, "requires_grad", tensor.requires_grad)
            return spec

    @property
    def layout(self) -> torch.layout:
        """The layout; always strided."""
        return torch.strided

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def tensor_type(self) -> type:
        """The class of the described tensor."""
        return torch.nn.Parameter if self.is_parameter else torch.Tensor

    @property
    def dispatch_keys(self) -> str:
        """The tensor's own dispatch keys, as text."""
        return _dispatch_keys_for_device(self.device.type, is_inference=self.is_inference)

    def size(self, dim: int | None = None) -> Any:
        """Return all sizes, or one size."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """Return all strides, or one stride, in elements."""
        return self.strides if dim is None else self.strides[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


@functools.cache
def _dispatch_keys_for_device(kind: str, *, is_inference: bool) -> str:
    """Return the dispatch keys of a plain tensor on a device type.

    They are the CPU keys with the device's name.
    """
    with torch.inference_mode(is_inference):
        tensor = torch.empty(0, device="meta" if kind == "meta" else "cpu")
    keys = str(torch_dispatch_keys(tensor))
    return keys if kind in ("cpu", "meta") else keys.replace("CPU", kind.upper())


def described_type(value: Any) -> type:
    """Return the exact type of a value, or of the tensor that a ``TensorSpec`` describes."""
    return value.tensor_type if is_spec(value) else type(value)


def is_spec(value: Any) -> TypeGuard[TensorSpec]:
    """Return True if a value is the description of a tensor."""
    return type(value) is TensorSpec
