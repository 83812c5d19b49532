"""Functions that the generated Python of a program calls."""

from __future__ import annotations

import torch

from engine.ir.kernels.compile_triton import ALIGNMENT
from engine.runtime.aten_fallback import OutOfBounds, UnexpectedSize


def zeros_strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor whose memory holds zeros, also between its rows.

    Products of bfloat16 matrices on CPUs with matrix units read past the end of a row: a NaN there reaches the result.
    """
    return torch.zeros(size[0] * stride[0], dtype=dtype).as_strided(size, stride)


def real_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return the real view of a complex tensor, lazy conjugation resolved."""
    return torch.view_as_real(tensor.resolve_conj())


def check_size(tensor: torch.Tensor, size: tuple[int, ...], name: str) -> None:
    """Check the data-dependent size of a result.

    Raises:
        UnexpectedSize: the size differs from what the graph assumes.
    """
    if tuple(tensor.shape) != size:
        raise UnexpectedSize(f"{name} has the shape {tuple(tensor.shape)} where the graph assumes {size}")


def raise_unexpected_size(relation: str) -> None:
    """Raise because a runtime assert of the graph fails.

    Raises:
        UnexpectedSize: always.
    """
    raise UnexpectedSize(f"the graph assumes {relation} for data-dependent sizes, which is false in this call")


def raise_out_of_bounds() -> None:
    """Raise because an index is out of bounds: ATen then raises eager's error.

    Raises:
        OutOfBounds: always.
    """
    raise OutOfBounds("index out of range")


def with_expected_layout(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, name: str
) -> torch.Tensor:
    """Return ``tensor`` with these strides at an aligned address, copied if necessary.

    Strides of dimensions of size 1 may differ without a copy.

    Raises:
        RuntimeError: its shape or dtype is not what the kernels were compiled for.
    """
    if tuple(tensor.shape) != size or tensor.dtype is not dtype:
        actual = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise RuntimeError(
            f"The operator behind {name} returned {actual} but the graph was compiled for {dtype} {size}."
        )
    is_same = all(n == 1 or a == b for n, a, b in zip(size, tensor.stride(), stride, strict=True)) or not tensor.numel()
    if is_same and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    # A stride of 0 (an expanded tensor): write each element once.
    fresh = torch.empty_strided(size, stride, dtype=dtype, device=tensor.device)
    distinct = tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)
    fresh[distinct].copy_(tensor[distinct])
    return fresh
