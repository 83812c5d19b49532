"""Constant numpy arrays: created in traced code from constants, computed while tracing.

Each call of the compiled code gets new arrays. If torch or code after the graph uses one, its memory becomes a
graph tensor, or it is copied.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from engine.frame_code.codegen_runtime.tensors import make_array_view
from engine.ir.graph_callable import GraphCallable
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.graph_builder import emitting_into
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.higher_order.pytrees import flatten_python, unflatten_variable
from engine.trace.variables.tensors.numpy_arrays import (
    NumpyNdarrayVariable,
    non_array_result,
    register_constant_evaluator,
)
from engine.trace.variables.tensors.tensor import TensorVariable

_MAX_ELEMENTS = 1 << 14
"""Maximum number of elements of a constant array, whose contents are stored with the code."""
_LAYOUT_ATTRIBUTES = frozenset(("shape", "ndim", "dtype", "size", "itemsize", "strides", "nbytes"))


class ConstantArrayStorageVariable(Variable):
    """Shared memory of constant arrays that alias: the base array at this point of the trace."""

    __slots__ = ("_version", "base_array", "flat_tensor", "views")
    cls = np.ndarray

    is_mutable = True

    def __init__(self, base_array: np.ndarray[Any, Any]) -> None:
        self.base_array = base_array
        self.views: weakref.WeakSet[ConstantNdarrayVariable] = weakref.WeakSet()
        self.flat_tensor: TensorVariable | None = None
        """Flat graph tensor of all elements in memory order, once the graph has it."""
        self._version = 0

    @property
    def is_current(self) -> bool:
        """True if ``base_array`` is current: the graph did not mutate the tensor."""
        return self.flat_tensor is None or self.flat_tensor.fake._version == self._version

    def materialize(self, tx: Tracer) -> TensorVariable:
        """Create a graph tensor of all elements. All arrays over this memory become views of it.

        Raises:
            Unsupported: no tensor can have the strides of one of the arrays.
        """
        if self.flat_tensor is not None:
            return self.flat_tensor
        arrays = list(self.views)
        if any(s < 0 or s % a.array.itemsize for a in arrays for s in a.array.strides):
            raise Unsupported(
                "numpy-array",
                "an array with strides that no tensor can have shares memory with one passed to torch",
            )
        with _in_outermost_graph(tx):
            flat = constant_tensor(tx, self.base_array.flatten(order="K"))
        self.flat_tensor, self._version = flat, flat.fake._version
        return flat

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(_copy_array, self.base_array.copy(order="K"))


def _copy_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.copy(order="K")


def constant_tensor(tx: Tracer, content: np.ndarray[Any, Any]) -> TensorVariable:
    """Emit a node that creates a tensor of these elements, laid out as by ``torch.tensor``.

    The array must not be mutated afterwards.

    Raises:
        Unsupported: torch has no such dtype or strides.
    """
    try:
        laid_out = torch.tensor(content)
    except (TypeError, ValueError):
        raise Unsupported("numpy-array", f"a tensor created from an array of {content.dtype}") from None
    shape, strides = tuple(laid_out.shape), laid_out.stride()
    flat_content = laid_out.as_strided((laid_out.numel(),), (1,)).numpy()

    def make() -> torch.Tensor:
        flat = torch.tensor(flat_content)
        return flat if shape == tuple(flat.shape) else flat.as_strided(shape, strides).clone()

    made: Any = emit_node(tx, "call_function", GraphCallable("constant_array", make), [], run=make)
    return made  # type: ignore[no-any-return]


class ConstantNdarrayVariable(NumpyNdarrayVariable):
    """A numpy array with constant elements."""

    __slots__ = ("_tx", "_view", "array", "storage")

    def __init__(self, tx: Tracer, array: np.ndarray[Any, Any], storage: ConstantArrayStorageVariable) -> None:
        self._tx = tx
        self.array = array
        self.storage = storage
        self.is_scalar = False
        self.source = None
        self.real_object = NotImplemented
        self._view: TensorVariable | None = None
        storage.views.add(self)

    @property
    def tensor(self) -> TensorVariable:  # type: ignore[override]
        """The elements as a graph tensor."""
        if self._view is None:
            flat = self.storage.materialize(self._tx)
            size = self.array.itemsize
            strides = TupleVariable([ConstantVariable(s // size) for s in self.array.strides])
            begin = (_address(self.array) - _address(self.storage.base_array)) // size
            shape = TupleVariable([ConstantVariable(n) for n in self.array.shape])
            with _in_outermost_graph(self._tx):
                view: Any = flat.call_method(self._tx, "as_strided", [shape, strides, ConstantVariable(begin)], {})
            self._view = view
        return self._view

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.array.dtype
        return found

    def python_type(self) -> type:
        return np.ndarray

    def describe(self) -> str:
        return f"array {self.dtype}[{', '.join(map(str, self.array.shape))}]"

    def child_variables(self) -> list[Variable]:
        return [self.storage] if self.storage.flat_tensor is None else [self.tensor]

    def is_truthy(self, tx: Tracer) -> bool:
        if not self.storage.is_current:
            return super().is_truthy(tx)
        return bool(tx.fold_constant(bool, self.array).as_python_constant(tx))

    def length(self, tx: Tracer) -> Variable:
        return tx.fold_constant(len, self.array)

    def _ndim(self, tx: Tracer) -> int:
        return self.array.ndim

    def _layout_attribute(self, tx: Tracer, name: str) -> Variable | None:
        return tx.from_python(getattr(self.array, name)) if name in _LAYOUT_ATTRIBUTES else None

    def copy_to_tensor(self, tx: Tracer) -> Variable | None:
        if not self.storage.is_current:
            return None
        root, content = self.storage.base_array.copy(order="K"), self.array
        begin = _address(content) - _address(self.storage.base_array)
        return constant_tensor(tx, make_array_view(root, content.shape, content.strides, begin, True, content.dtype))

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name in ("tolist", "item") and self.storage.is_current:
            given = tx.as_python_constants([realize(tx, a) for a in args])
            return tx.fold_constant(getattr(self.array, name), *given)
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.storage.flat_tensor is not None:
            super().reconstruct(cg)
            return
        if self.array is self.storage.base_array:
            cg.load(self.storage)
            return
        array, begin = self.array, _address(self.array) - _address(self.storage.base_array)
        writeable = array.flags.writeable
        cg.call(make_array_view, self.storage, array.shape, array.strides, begin, writeable, array.dtype)


def _in_outermost_graph(tx: Tracer) -> contextlib.AbstractContextManager[None]:
    """Emit nodes into the outermost graph.

    An array may outlive the subgraph of a higher-order operator that reads it.
    """
    outermost = tx.graph
    while outermost.outer is not None:
        outermost = outermost.outer
    return emitting_into(tx, outermost)


def _address(array: np.ndarray[Any, Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _base_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@register_constant_evaluator
def compute_constant(
    tx: Tracer,
    name: str,
    function: Callable[..., Any],
    place: Callable[[Sequence[Any]], tuple[Any, Any]],
    leaves: Sequence[Any],
) -> Variable | None:
    """Compute a numpy call on constant arrays; None if the graph must compute it.

    ``place`` substitutes contents for the placeholders in the arguments.

    Raises:
        Unsupported: numpy raises or warns. All mutations are undone.
    """
    if tx.in_subgraph():
        return None
    if not all(isinstance(a, ConstantNdarrayVariable) and a.storage.is_current for a in leaves):
        return None
    memories = list(dict.fromkeys(a.storage for a in leaves))
    if any(m.flat_tensor is not None for m in memories):
        return _read_only_result(tx, function, place, leaves)
    before = [m.base_array.copy(order="K") for m in memories]
    warned: list[str] = []
    args, words = place([a.array for a in leaves])
    try:
        with np.errstate(all="call", call=lambda kind, _: warned.append(kind)):
            result = function(*args, **words)
        found = None if warned else _wrap_result(tx, result, leaves)
    except Unsupported:
        _restore(memories, before)
        raise
    except Exception as error:
        _restore(memories, before)
        raise Unsupported("numpy-function", f"numpy.{name} raises {type(error).__name__}") from error
    if warned:
        _restore(memories, before)
        raise Unsupported("numpy-function", f"numpy.{name} warns of a {warned[0]}")
    changed = [m for m, was in zip(memories, before, strict=True) if m.base_array.tobytes("A") != was.tobytes("A")]
    if found is None and changed:
        _restore(memories, before)
        return None
    for memory in changed:
        tx.side_effects.record_mutation(memory)
    return found


def _read_only_result(tx: Tracer, function: Callable[..., Any], place: Any, leaves: Sequence[Any]) -> Variable | None:
    """Compute a read-only call with a scalar result on arrays in the graph; None for others."""
    shown = []
    for leaf in leaves:
        view = leaf.array.view()
        view.flags.writeable = False
        shown.append(view)
    args, words = place(shown)
    try:
        with np.errstate(all="raise"):
            result = function(*args, **words)
    except (ArithmeticError, ValueError, IndexError, TypeError):
        return None  # it mutates or raises: the graph must handle it
    return tx.from_python(result) if isinstance(result, np.generic) else None


def _restore(memories: Sequence[ConstantArrayStorageVariable], before: Sequence[np.ndarray[Any, Any]]) -> None:
    for memory, was in zip(memories, before, strict=True):
        memory.base_array[...] = was


def _wrap_result(tx: Tracer, result: Any, leaves: Sequence[Any]) -> Variable | None:
    """Wrap a result; None if it is too large to store with the code."""
    parts: list[Any] = []
    tree = flatten_python(result, parts)
    items = [
        _wrap_array(tx, part, leaves) if isinstance(part, np.ndarray) else non_array_result(tx, part) for part in parts
    ]
    return None if None in items else unflatten_variable(tx, tree, iter(items))  # type: ignore[arg-type]


def _wrap_array(tx: Tracer, result: np.ndarray[Any, Any], leaves: Sequence[Any]) -> Variable | None:
    same = next((a for a in leaves if a.array is result), None)
    if same is not None:
        found: Variable = same
        return found
    root = _base_array(result)
    if type(result) is not np.ndarray or type(root) is not np.ndarray or root.base is not None:
        raise Unsupported("numpy-function", f"numpy returns a {type(result).__name__}")
    if root.size > _MAX_ELEMENTS or result.size > _MAX_ELEMENTS:
        return None
    if result.dtype.kind not in "biufc" or not result.dtype.isnative or root.dtype != result.dtype:
        raise Unsupported("numpy-array", f"an array of {result.dtype}")
    memory = next((a.storage for a in leaves if a.storage.base_array is root), None)
    return ConstantNdarrayVariable(tx, result, memory if memory is not None else ConstantArrayStorageVariable(root))
