"""Restore fake tensors after an operation on them raises.

Some operations resize their fake result before they check dtypes.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from engine.ir.graph_callable import GraphCallable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


_INPLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul".split()
)
"""Python operators that may mutate their first operand."""


@dataclass(frozen=True)
class FakeMetadata:
    """Sizes, strides, storage offset and version of a fake tensor before an operation."""

    fake: torch.Tensor
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    version: int

    def restore(self, tx: Tracer) -> None:
        """Restore the metadata and the version of the fake tensor."""
        fake = self.fake
        before = (*self.shape, None, *self.stride, self.offset)
        now = (*fake.shape, None, *fake.stride(), fake.storage_offset())
        if list(map(_guard_free_size, before)) != list(map(_guard_free_size, now)):
            with tx.symbols.fake_mode, torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
                fake.as_strided_(self.shape, self.stride, self.offset)
        if fake._version != self.version:
            torch._C._autograd._unsafe_set_version_counter((fake,), (self.version,))


def save_fake_metadata(target: Any, args: list[Any], kwargs: dict[str, Any]) -> list[FakeMetadata]:
    """Save the metadata of tensors that an operation may resize.

    These are the tensors that it writes to, or all arguments of a user function.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    writes = name.endswith("_") or target in _INPLACE_OPERATORS
    given = kwargs.get("out", args[0] if args and writes else None)
    if isinstance(target, GraphCallable):
        given = (*args, *kwargs.values())
    found = given if isinstance(given, (list, tuple)) else (given,)
    return [
        FakeMetadata(t, tuple(t.shape), t.stride(), t.storage_offset(), t._version)
        for t in found
        if isinstance(t, FakeTensor) and t.layout is torch.strided and not t.is_inference()
    ]


def _guard_free_size(size: Any) -> Any:
    """Return a size that can be compared without adding a guard."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
