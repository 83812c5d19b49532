"""Containers of tensors taken apart and put together again: arguments and results of higher-order operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import SUPPORTED_NODES

from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.mappings import DictValue
from engine.trace.values.sequences import ListValue, TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer


@dataclass(frozen=True)
class Tree:
    """How leaves are packed. ``cls`` is the container's type; None for a leaf, or for a constant, which ``constant`` holds."""

    cls: type | None = None
    keys: tuple[Any, ...] = ()
    parts: tuple[Tree, ...] = ()
    constant: Any = None
    is_leaf: bool = False
    make: Callable[[Any, Any], Any] | None = None
    """For an object of a class that is registered as such a container: makes one of its parts and ``constant``."""

    def leaves(self) -> int:
        """How many leaves there are."""
        return 1 if self.is_leaf else sum(p.leaves() for p in self.parts)

    def constants(self) -> Iterator[Any]:
        """What is packed beside leaves."""
        if self.cls is None and not self.is_leaf:
            yield self.constant
        for part in self.parts:
            yield from part.constants()


LEAF = Tree(is_leaf=True)


def flatten(tx: Tracer, value: Value, leaves: list[Value]) -> Tree:
    """Collect the tensors and symbols inside ``value``.

    Raises:
        Unsupported: it holds what is neither a container, a graph's value nor a constant.
    """
    value = force(tx, value)
    if isinstance(value, (TensorValue, SymValue)):
        leaves.append(value)
        return LEAF
    if isinstance(value, (TupleValue, ListValue)):
        return Tree(value.cls, parts=tuple(flatten(tx, i, leaves) for i in value.items))
    if isinstance(value, DictValue):
        keys = tuple(force(tx, k).python(tx) for k in list(value.keys()))
        return Tree(value.cls, keys, tuple(flatten(tx, v, leaves) for v in value.values()))
    try:
        return Tree(constant=value.python(tx))
    except NotConstant:
        raise Unsupported(
            "unsupported-argument", f"a {value.type().__name__} as argument or result of a higher-order operation"
        ) from None


def unflatten(tx: Tracer, tree: Tree, leaves: Iterator[Value]) -> Value:
    """Pack leaves again, in fresh containers."""
    if tree.is_leaf:
        return next(leaves)
    if tree.cls is None:
        return Const(tree.constant) if tree.constant is None else tx.from_python(tree.constant)
    parts = [unflatten(tx, p, leaves) for p in tree.parts]
    if tree.make is not None:
        return force(tx, tx.fixed(tree.make).call(tx, [ListValue(parts), tx.from_python(tree.constant)], {}))
    if issubclass(tree.cls, tuple):
        return TupleValue(parts, tree.cls)
    if issubclass(tree.cls, list) or (not tree.keys and not issubclass(tree.cls, dict)):
        return ListValue(parts, None, tree.cls)
    keys = [tx.from_python(k) for k in tree.keys]
    return DictValue({k.key(tx): (k, v) for k, v in zip(keys, parts, strict=True)}, None, tree.cls)


# The same over plain Python objects, when the graph runs.


def pack(tree: Tree, leaves: Iterator[Any]) -> Any:
    """The Python object that ``tree`` describes, around these leaves."""
    if tree.is_leaf:
        return next(leaves)
    if tree.cls is None:
        return tree.constant
    parts = [pack(p, leaves) for p in tree.parts]
    if tree.make is not None:
        return tree.make(parts, tree.constant)
    if issubclass(tree.cls, dict):
        made: Any = tree.cls()
        made.update(zip(tree.keys, parts, strict=True))
        return made
    if issubclass(tree.cls, tuple) and hasattr(tree.cls, "_fields"):
        return tree.cls(*parts)
    sequence: Any = tree.cls
    return sequence(parts)


def unpack(packed: Any, leaves: list[Any]) -> Tree:
    """Collect what is in a Python container and is not a constant; how it was packed."""
    if isinstance(packed, (tuple, list)):
        return Tree(type(packed), parts=tuple(unpack(p, leaves) for p in packed))
    if isinstance(packed, dict):
        return Tree(type(packed), tuple(packed), tuple(unpack(p, leaves) for p in packed.values()))
    if packed is None or isinstance(packed, (bool, int, float, str)):
        return Tree(constant=packed)
    node = SUPPORTED_NODES.get(type(packed))
    if node is not None:
        parts, context = node.flatten_fn(packed)
        inside = tuple(unpack(p, leaves) for p in parts)
        return Tree(type(packed), parts=inside, constant=context, make=node.unflatten_fn)
    leaves.append(packed)
    return LEAF


def leaves_of(tree: Tree, packed: Any, leaves: list[Any]) -> None:
    """Collect the leaves of what is packed as ``tree`` says: a number may be one, where it was a symbol when it was unpacked."""
    if tree.is_leaf:
        leaves.append(packed)
    elif tree.cls is not None:
        items = packed.values() if isinstance(packed, dict) else packed
        if tree.make is not None:
            items, _ = SUPPORTED_NODES[tree.cls].flatten_fn(packed)
        for part, item in zip(tree.parts, items, strict=True):
            leaves_of(part, item, leaves)
