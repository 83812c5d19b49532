"""Version counters of fake tensors: which writes an operator counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import (
    FakeTensor,
)

if TYPE_CHECKING:
    pass


def _foreach_targets(target: Any, fakes: list[Any]) -> list[tuple[torch.Tensor, int]]:
    """Return the tensors that a ``_foreach_*_`` operator mutates, with their versions.

    Fake tensors do not count these mutations.
    """
    name = getattr(target, "__name__", "").partition(".")[0]
    if (
        not name.startswith("_foreach_")
        or not name.endswith("_")
        or not fakes
        or not isinstance(fakes[0], (list, tuple))
    ):
        return []
    given = [t for a in fakes if isinstance(a, (list, tuple)) for t in a if isinstance(t, torch.Tensor)]
    # Lists that a tensor subclass handles are not counted for real tensors either.
    if not all(isinstance(t, FakeTensor) for t in given):
        return []
    return [(t, t._version) for t in fakes[0] if not t.is_inference()]


def bump_custom_op_versions(target: Any, fakes: list[Any], keyword_fakes: dict[str, Any]) -> None:
    """Bump the versions of arguments that a custom operator's schema marks as mutated.

    The operator's fake implementation need not mutate them.
    """
    overload = (
        target.default
        if isinstance(target, torch._ops.OpOverloadPacket) and "default" in target.overloads()
        else target
    )
    if (
        not isinstance(overload, torch._ops.OpOverload)
        or not overload._schema.is_mutable
        or overload.namespace == "aten"
    ):
        return
    for n, argument in enumerate(overload._schema.arguments):
        given = keyword_fakes.get(argument.name, fakes[n] if n < len(fakes) else None)
        written = argument.alias_info is not None and argument.alias_info.is_write
        for t in given if isinstance(given, (list, tuple)) else (given,):
            if written and isinstance(t, torch.Tensor) and not t.is_inference():
                torch.autograd.graph.increment_version(t)


def bump_inference_mode_version(
    op: str,
    target: Any,
    fakes: list[Any],
    keyword_fakes: dict[str, Any],
    result: Any,
    before: list[tuple[int, bool]] | None,
) -> None:
    """Bump the version of a tensor that was mutated in inference mode by a composite operator.

    Operators such as ``absolute_`` count this for real tensors, but not for fake tensors.
    """
    if not torch.is_inference_mode_enabled() or not isinstance(result, torch.Tensor) or result.is_inference():
        return
    name = str(target) if op == "call_method" else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name != "requires_grad_" and bool(fakes)
    written = keyword_fakes.get("out", fakes[0] if in_place else None)
    if isinstance(written, torch.Tensor) and written is result and before == tensor_versions((fakes, keyword_fakes)):
        torch.autograd.graph.increment_version(written)


def tensor_versions(values: Any) -> list[tuple[int, bool]] | None:
    """Return the version and ``requires_grad`` of each tensor inside.

    Return None if one is an inference tensor: those have no version counter.
    """
    found: list[tuple[int, bool]] = []
    todo = [values]
    while todo:
        value = todo.pop()
        if isinstance(value, torch.Tensor):
            if value.is_inference():
                return None
            found.append((value._version, value.requires_grad))
        elif isinstance(value, (list, tuple)):
            todo.extend(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
    return found
