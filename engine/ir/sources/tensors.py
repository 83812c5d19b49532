"""Sources of strides, scalars in tensors and tensors over numpy arrays."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from engine.ir.sources.base import ConstName, FunctionSource, Source


@dataclass(frozen=True)
class StrideSource(Source):
    """The stride of one dimension of a tensor, an int."""

    base: Source
    dimension: int

    def code(self, base: str, const: ConstName) -> str:
        return f"{base}.stride({self.dimension})"

    def read(self, base: Any) -> Any:
        return base.stride(self.dimension)


def tensor_from_array(array: Any) -> Any:
    """Return a tensor that shares the memory of a NumPy array, or None if that is impossible.

    Strings, objects and negative strides are not supported.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Suppress the warning for a read-only array: the graph does not write to it.
            return torch.from_numpy(array)
    except (TypeError, ValueError, RuntimeError):
        return None


@dataclass(frozen=True)
class NumpyTensorSource(FunctionSource):
    """The tensor that shares the memory of a NumPy array."""

    function = staticmethod(tensor_from_array)

    @property
    def expr(self) -> str:
        return f"from_numpy({self.base.expr})"


@dataclass(frozen=True)
class TensorItemSource(Source):
    """The integer in a one-element CPU tensor; a bool is read as 0 or 1."""

    base: Source

    @property
    def expr(self) -> str:
        return f"{self.base.expr}.item()"

    def code(self, base: str, const: ConstName) -> str:
        return f"{const(int, 'int')}({base})"

    def read(self, base: Any) -> Any:
        return int(base)
