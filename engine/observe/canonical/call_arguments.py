"""Values that a recorded call has as arguments: nodes, constants, and lists of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DIMENSION_NAMES = {"dim", "dims", "dim0", "dim1", "dimension", "axis", "start_dim", "end_dim"}
SCALAR_NAMES = {"self", "other", "value", "min", "max", "exponent", "alpha", "beta", "threshold"}
SIZE_TYPES = {"int", "SymInt"}
LIST_OF_SIZES = {"List[int]", "List[SymInt]"}
NUMBER_TYPES = {"float", "number", "Scalar"}
_CONSTANT_TYPES: dict[type, set[str]] = {
    bool: {"bool"},
    int: SIZE_TYPES | LIST_OF_SIZES | NUMBER_TYPES,
    float: NUMBER_TYPES,
    complex: {"number", "Scalar"},
    str: {"int"},
}
"""Schema types that take a constant; names of dtypes are text, and integers to a schema."""
_CHECKED_TYPES = (
    {"Tensor", "List[Tensor]", "List[Optional[Tensor]]", "bool"} | SIZE_TYPES | LIST_OF_SIZES | NUMBER_TYPES
)


class ArgumentValue:
    """An argument of a recorded call."""

    __slots__ = ()

    @property
    def is_size(self) -> bool:
        """True for an integer, a constant or a symbol."""
        return False

    @property
    def rank(self) -> int | None:
        """Number of dimensions of the tensor, or of the first tensor of a list."""
        return None

    def accepts(self, schema_type: str) -> bool:
        """Return True if a parameter of this type takes the value."""
        raise NotImplementedError

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the normal form of the value as an argument of a call on a tensor of this rank."""
        raise NotImplementedError

    def equals(self, default: Any) -> bool:
        """Return True if the value is this default of a parameter."""
        return False


@dataclass(frozen=True, slots=True)
class NodeValue(ArgumentValue):
    """A node of the graph; ``shape`` is None if it is no tensor."""

    key: str
    shape: tuple[str, ...] | None

    @property
    def is_size(self) -> bool:
        """True if the record says that the node is a symbol."""
        return self.shape is None

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None if it is no tensor."""
        return None if self.shape is None else len(self.shape)

    def accepts(self, schema_type: str) -> bool:
        """Return True for tensors, and for numbers if it is no tensor."""
        if schema_type not in _CHECKED_TYPES:
            return True
        return schema_type == "Tensor" or (self.is_size and schema_type in SIZE_TYPES | LIST_OF_SIZES | NUMBER_TYPES)

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the key of what the node computes."""
        return self.key


@dataclass(frozen=True, slots=True)
class ConstantValue(ArgumentValue):
    """A number, a text, None or Ellipsis."""

    value: Any

    @property
    def is_size(self) -> bool:
        """True for an integer, which a size parameter accepts."""
        return _CONSTANT_TYPES.get(type(self.value), set()) >= SIZE_TYPES

    def accepts(self, schema_type: str) -> bool:
        """Return True if the schema type takes the constant."""
        if self.value is None:
            return schema_type not in _CHECKED_TYPES
        types = _CONSTANT_TYPES.get(type(self.value))
        return schema_type not in _CHECKED_TYPES or (types is not None and schema_type in types)

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the constant: a dimension as nonnegative, a scalar of a float operator as float."""
        if self.is_size and parameter in DIMENSION_NAMES:
            return self.value % rank if rank else self.value
        is_number = _CONSTANT_TYPES.get(type(self.value), set()) >= NUMBER_TYPES
        if is_float and is_number and parameter in SCALAR_NAMES:
            return "nan" if math.isnan(self.value) else float(self.value)
        return self.value

    def equals(self, default: Any) -> bool:
        """Return True if the default is the same constant."""
        return repr(self.value) == repr(default)


@dataclass(frozen=True, slots=True)
class ListValue(ArgumentValue):
    """A list or tuple, which mean the same to an operator."""

    items: tuple[ArgumentValue, ...]

    @property
    def rank(self) -> int | None:
        """Rank of the first tensor, as ``cat`` has it."""
        return next((i.rank for i in self.items if i.rank is not None), None)

    def accepts(self, schema_type: str) -> bool:
        """Return True for a list type that takes every item."""
        if schema_type in LIST_OF_SIZES:
            return all(i.is_size for i in self.items)
        if schema_type in ("List[Tensor]", "List[Optional[Tensor]]"):
            return all(i.accepts("Tensor") or i.equals(None) for i in self.items)
        return schema_type not in _CHECKED_TYPES

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the normal forms of the items."""
        return tuple(i.normal_form(parameter, rank, is_float) for i in self.items)

    def equals(self, default: Any) -> bool:
        """Return True if the default is a list of the same constants."""
        return hasattr(default, "__len__") and _equal_items(self.items, default)


@dataclass(frozen=True, slots=True)
class SliceValue(ArgumentValue):
    """A slice of an index; ``0:``, ``:9223372036854775807`` and ``::1`` are ``:``."""

    start: ArgumentValue
    stop: ArgumentValue
    step: ArgumentValue

    def accepts(self, schema_type: str) -> bool:
        """Return False: no schema has a slice."""
        return False

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the three bounds."""
        return ("slice", *(v.normal_form("index", rank, is_float) for v in (self.start, self.stop, self.step)))


@dataclass(frozen=True, slots=True)
class CallValue(ArgumentValue):
    """A call inside of an argument, or another expression, by its text."""

    text: str
    items: tuple[ArgumentValue, ...] = ()

    def accepts(self, schema_type: str) -> bool:
        """Return True unless the schema type is one that other argument classes check."""
        return schema_type not in _CHECKED_TYPES

    def normal_form(self, parameter: str, rank: int | None, is_float: bool) -> Any:
        """Return the text and the arguments."""
        return (self.text, *(i.normal_form(parameter, rank, is_float) for i in self.items))


def _equal_items(items: Sequence[ArgumentValue], default: Sequence[Any]) -> bool:
    return len(items) == len(default) and all(i.equals(d) for i, d in zip(items, default, strict=True))
