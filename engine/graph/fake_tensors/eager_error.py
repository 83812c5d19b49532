"""The text of eager's exception where fake tensors raise one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from engine.ir.static_sizes import static_sizes
from engine.torch_private.fake_tensors import unset_fake_temporarily

MAX_BYTES = 1 << 24
"""Maximum bytes of the operands that are created to reproduce eager's exception."""


def eager_error_text(op: str, target: Any, args: Sequence[Any], kwargs: dict[str, Any], error: BaseException) -> str:
    """Return the text of eager's exception; that of ``error`` if none is of its type.

    Fake tensors check shapes and dtypes with other code than kernels, and report errors with other texts. Therefore the
    call is repeated on zeros of the same layout. Functions that are not torch's own may have side effects, and are not
    called.
    """
    if op != "call_method" and not _is_from_torch(target):
        return str(error)
    try:
        with unset_fake_temporarily(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            zeros, named = map_aggregate(tuple(args), _zeros_like), map_aggregate(kwargs, _zeros_like)
            call, zeros = (getattr(zeros[0], target), zeros[1:]) if op == "call_method" else (target, zeros)
            call(*zeros, **named)
    except type(error) as raised:
        return str(raised)
    except Exception:
        return str(error)
    return str(error)


def _is_from_torch(target: Any) -> bool:
    package = f"{getattr(target, '__module__', None) or 'torch'}."
    is_custom = package.startswith(("torch._ops.", "torch._library.")) and not package.startswith("torch._ops.aten.")
    return package.startswith(("torch.", "_operator.")) and not is_custom


def _zeros_like(value: Any) -> Any:
    """Return zeros on the CPU with the layout of a fake tensor; other values unchanged.

    Raises:
        NotImplementedError: its layout is not known, or it is large.
    """
    if not isinstance(value, torch.Tensor):
        return value
    layout = static_sizes((*value.shape, *value.stride())) if value.layout == torch.strided else None
    if layout is None or value.untyped_storage().nbytes() > MAX_BYTES:
        raise NotImplementedError
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu").zero_()
