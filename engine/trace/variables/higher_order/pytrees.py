"""Pytrees of variables and Python objects: arguments and results of graph calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.torch_private.pytree import SUPPORTED_NODES
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import BreakGraph
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, NotPythonConstant, Variable, realize
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.slotted_type import SlottedType, state


@dataclass(frozen=True)
class TreeSpec:
    """Structure of a pytree. ``cls`` is the container type; None for a leaf or a constant.

    A constant is stored in ``constant``.
    """

    cls: type | None = None
    keys: tuple[Any, ...] = ()
    children: tuple[TreeSpec, ...] = ()
    constant: Any = None
    is_leaf: bool = False
    unflatten_fn: Callable[[Any, Any], Any] | None = None
    """Unflatten function of a registered pytree class, called with children and ``constant``."""

    def num_leaves(self) -> int:
        """Return the number of leaves."""
        return 1 if self.is_leaf else sum(p.num_leaves() for p in self.children)

    def constants(self) -> Iterator[Any]:
        """Yield the constants in the tree."""
        if self.cls is None and not self.is_leaf:
            yield self.constant
        for part in self.children:
            yield from part.constants()


LEAF = TreeSpec(is_leaf=True)


def _is_graph_value(value: Variable) -> bool:
    return value.is_graph_value


def _constant(tx: Tracer, value: Variable) -> TreeSpec:
    what = f"a {value.python_type().__name__} as argument or result of a higher-order operation"
    with BreakGraph("higher-order-argument", what, NotPythonConstant):
        return TreeSpec(constant=value.as_python_constant(tx))


def flatten_variable(
    tx: Tracer,
    value: Variable,
    leaves: list[Variable],
    is_leaf: Callable[[Variable], bool] = _is_graph_value,
    other: Callable[[Tracer, Variable], TreeSpec] = _constant,
) -> TreeSpec:
    """Flatten ``value``: append tensors and symbols to ``leaves``, return the structure.

    ``is_leaf`` chooses the leaves; ``other`` returns the tree of a value that is neither leaf nor container.

    Raises:
        Unsupported: it contains an object that is not a container, tensor, symbol or constant.
    """
    value = realize(tx, value)
    if is_leaf(value):
        leaves.append(value)
        return LEAF
    parts = value.pytree_parts(tx)
    if parts is None:
        return other(tx, value)
    cls, keys, items = parts
    return TreeSpec(cls, keys, tuple(flatten_variable(tx, i, leaves, is_leaf, other) for i in items))


def arguments_variable(args: Args, kwargs: Kwargs) -> Variable:
    """Return the arguments of a call as one variable: a tuple of (positional, keywords)."""
    return TupleVariable([TupleVariable(list(args)), DictVariable.from_str_keys(kwargs)])


def unflatten_variable(tx: Tracer, tree: TreeSpec, leaves: Iterator[Variable]) -> Variable:
    """Build new containers of variables around the leaves."""
    if tree.is_leaf:
        return next(leaves)
    if tree.cls is None:
        return ConstantVariable(tree.constant) if tree.constant is None else tx.from_python(tree.constant)
    parts = [unflatten_variable(tx, p, leaves) for p in tree.children]
    if tree.unflatten_fn is not None:
        return realize(
            tx, tx.wrap_static(tree.unflatten_fn).call(tx, [ListVariable(parts), tx.from_python(tree.constant)], {})
        )
    if issubclass(tree.cls, tuple):
        return TupleVariable(parts, tree.cls)
    if issubclass(tree.cls, list) or (not tree.keys and not issubclass(tree.cls, dict)):
        return ListVariable(parts, None, tree.cls)
    keys = [tx.from_python(k) for k in tree.keys]
    return DictVariable({k.hash_key(tx): (k, v) for k, v in zip(keys, parts, strict=True)}, None, tree.cls)


def map_leaves(
    tx: Tracer, value: Variable, leaf: Callable[[Variable], Any], is_leaf: Callable[[Variable], bool] = _is_graph_value
) -> Any:
    """Return Python containers like ``value``, with ``leaf(item)`` for each other item."""
    leaves: list[Variable] = []

    def add_leaf(tx: Tracer, item: Variable) -> TreeSpec:
        leaves.append(item)
        return LEAF

    tree = flatten_variable(tx, value, leaves, is_leaf, add_leaf)
    return unflatten_python(tree, map(leaf, leaves))


# The same on Python objects, when the graph runs.


def unflatten_python(tree: TreeSpec, leaves: Iterator[Any], constant: Callable[[Any], Any] = lambda c: c) -> Any:
    """Build the Python object of structure ``tree`` around the leaves.

    ``constant`` maps its constants.
    """
    if tree.is_leaf:
        return next(leaves)
    if tree.cls is None:
        return constant(tree.constant)
    parts = [unflatten_python(p, leaves, constant) for p in tree.children]
    if tree.unflatten_fn is not None:
        return tree.unflatten_fn(parts, tree.constant)
    if issubclass(tree.cls, dict):
        container: Any = tree.cls()
        container.update(zip(tree.keys, parts, strict=True))
        return container
    if issubclass(tree.cls, tuple) and hasattr(tree.cls, "_fields"):
        return tree.cls(*parts)
    sequence: Any = tree.cls
    return sequence(parts)


def flatten_python(packed: Any, leaves: list[Any]) -> TreeSpec:
    """Flatten a Python container: append non-constants to ``leaves`` and return the structure."""
    if isinstance(packed, (tuple, list)):
        return TreeSpec(type(packed), children=tuple(flatten_python(p, leaves) for p in packed))
    if isinstance(packed, dict):
        return TreeSpec(type(packed), tuple(packed), tuple(flatten_python(p, leaves) for p in packed.values()))
    if packed is None or isinstance(packed, (bool, int, float, str)):
        return TreeSpec(constant=packed)
    node = SUPPORTED_NODES.get(type(packed))
    if node is not None:
        parts, context = node.flatten_fn(packed)
        inside = tuple(flatten_python(p, leaves) for p in parts)
        return TreeSpec(type(packed), children=inside, constant=context, unflatten_fn=node.unflatten_fn)
    leaves.append(packed)
    return LEAF


def _collect_leaves(tree: TreeSpec, packed: Any, leaves: list[Any]) -> None:
    """Flatten with a known structure. A number may be a leaf: it was a symbol while tracing."""
    if tree.is_leaf:
        leaves.append(packed)
    elif tree.cls is not None:
        if tree.unflatten_fn is not None:
            items, _ = SUPPORTED_NODES[tree.cls].flatten_fn(packed)
        else:
            items = packed.values() if issubclass(tree.cls, dict) else packed
        for part, item in zip(tree.children, items, strict=True):
            _collect_leaves(part, item, leaves)


class FlatCall(metaclass=SlottedType):
    """Callable of a node: unflattens its arguments, calls a function, flattens the result.

    ``function`` takes the object of structure ``given``. The run on fakes records the structure of the result.
    """

    _function: Callable[[Any], Any]
    _given: TreeSpec
    _fake: Callable[[Any], Any] | None = None
    output_tree: TreeSpec = state(LEAF)

    def __call__(self, *leaves: Any) -> tuple[Any, ...]:
        flat_result: list[Any] = []
        _collect_leaves(self.output_tree, self._function(unflatten_python(self._given, iter(leaves))), flat_result)
        return tuple(flat_result)

    def run_on_fakes(self, *leaves: Any) -> tuple[Any, ...]:
        """Run on fakes and record the structure of the result."""
        flat_result: list[Any] = []
        self.output_tree = flatten_python(
            (self._fake or self._function)(unflatten_python(self._given, iter(leaves))), flat_result
        )
        return tuple(flat_result)


def emit_flat_call(tx: Tracer, target: Any, call: FlatCall, leaves: Iterable[Variable]) -> Variable:
    """Emit the node of a flat call and return its result in containers.

    A function that returns its argument, as an in-place operator does, makes the call return this variable.
    """
    inputs = list(leaves)
    result = emit_node(tx, "call_function", target, inputs, run=call.run_on_fakes)
    arguments = {id(leaf.fake): leaf for leaf in inputs if leaf.fake is not None}
    results = (arguments.get(id(item.fake), item) for item in sequence_items(tx, result))
    return unflatten_variable(tx, call.output_tree, results)
