"""Sources of members of tensors, scalars in tensors and tensors over numpy arrays."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch

from engine.ir.introspection.tensor_spec import is_spec
from engine.ir.sources.base import ConstName, FunctionSource, Source
from engine.torch_private.torch_function import DisableTorchFunctionSubclass


class TensorMemberSource(Source):
    """An attribute of a tensor, or the result of a method; runs no override of a subclass.

    ``arguments`` are those of the method ``member``; None for an attribute.
    """

    base: Source
    member: str
    arguments: tuple[int, ...] | None
    is_subclass: bool = False

    @property
    def expr(self) -> str:
        return self._plain_code(self.base.expr)

    def _plain_code(self, base: str) -> str:
        return f"{base}.{self.member}" + ("" if self.arguments is None else f"({', '.join(map(str, self.arguments))})")

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(self.read, 'read_member')}({base})" if self.is_subclass else self._plain_code(base)

    def read(self, base: Any) -> Any:
        with DisableTorchFunctionSubclass():
            value = getattr(base, self.member) if is_spec(base) else getattr(torch.Tensor, self.member).__get__(base)
            return value if self.arguments is None else value(*self.arguments)


def tensor_from_array(array: Any) -> Any:
    """Return a tensor that shares the memory of a NumPy array, or None if that is impossible.

    Strings, objects and negative strides are not supported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Suppress the warning for a read-only array: the graph does not write to it.
            return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError):
        return None


class NumpyTensorSource(FunctionSource):
    """The tensor that shares the memory of a NumPy array."""

    notation: ClassVar[str] = "from_numpy({0.base.expr})"
    function = staticmethod(tensor_from_array)


class TensorItemSource(FunctionSource):
    """The integer in a one-element CPU tensor; a bool is read as 0 or 1."""

    notation: ClassVar[str] = "{0.base.expr}.item()"
    function = staticmethod(int)
