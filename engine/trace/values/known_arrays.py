"""numpy arrays that the traced code makes of constants alone: numpy itself computes them while tracing, so their elements are known.

Each call gets arrays of its own. Where torch or code after the graph needs one, its memory becomes a tensor of the graph, or a copy is made.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.support import array_over
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.iterators import SequenceIterator
from engine.trace.values.nested import NestedBuilder
from engine.trace.values.numpy_arrays import ArrayValue, plain_result
from engine.trace.values.sequences import ListValue, TupleValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_LARGEST = 1 << 14
"""Elements up to which contents are kept with the code."""
_LAYOUT = frozenset(("shape", "ndim", "dtype", "size", "itemsize", "strides", "nbytes"))


class Memory(Value):
    """What arrays that see the same elements share: the array that owns them, as it is at this point of the trace."""

    is_mutable = True

    def __init__(self, root: np.ndarray[Any, Any]) -> None:
        self.root = root
        self.arrays: weakref.WeakSet[KnownArray] = weakref.WeakSet()
        self.flat: TensorValue | None = None
        """All elements in the order in which they lie, once the graph has them."""
        self._version = 0

    def type(self) -> type:
        return np.ndarray

    @property
    def is_known(self) -> bool:
        """Whether ``root`` holds what the array holds by now: the graph has not written to it."""
        return self.flat is None or self.flat.fake._version == self._version

    def materialize(self, tx: Tracer) -> TensorValue:
        """A tensor of the graph over all elements; every array over them becomes a view of it.

        Raises:
            Unsupported: no tensor can lie as one of the arrays does.
        """
        if self.flat is not None:
            return self.flat
        arrays = list(self.arrays)
        if any(s < 0 or s % a.content.itemsize for a in arrays for s in a.content.strides):
            raise Unsupported("unsupported-operation", "an array that lies as no tensor can, beside one given to torch")
        with _outside_of_bodies(tx):
            flat = constant(tx, self.root.flatten(order="K"))
        self.flat, self._version = flat, flat.fake._version
        return flat

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(_copied, 0)
        cg.const(self.root.copy(order="K"))
        cg.out.call(1)


def _copied(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.copy(order="K")


def constant(tx: Tracer, content: np.ndarray[Any, Any]) -> TensorValue:
    """A node that makes a new tensor of these elements, as ``torch.tensor`` does: it lies as they do. Nothing may write to them any more.

    Raises:
        Unsupported: torch has no such elements, or none that lie so.
    """
    try:
        lies = torch.tensor(content)
    except (TypeError, ValueError):
        raise Unsupported("unsupported-operation", f"a tensor made of an array of {content.dtype}") from None
    shape, strides = tuple(lies.shape), lies.stride()
    kept = lies.as_strided((lies.numel(),), (1,)).numpy()

    def make() -> torch.Tensor:
        flat = torch.tensor(kept)
        return flat if shape == tuple(flat.shape) else flat.as_strided(shape, strides).clone()

    made = force(tx, emit(tx, "call_function", InGraph("known_array", make), [], run=make))
    assert isinstance(made, TensorValue)
    return made


class KnownArray(ArrayValue):
    """An array whose elements are known."""

    def __init__(self, tx: Tracer, content: np.ndarray[Any, Any], memory: Memory) -> None:
        self._tx = tx
        self.content = content
        self.memory = memory
        self.is_scalar = False
        self.origin = None
        self.held = NotImplemented
        self._view: TensorValue | None = None
        memory.arrays.add(self)

    @property
    def tensor(self) -> TensorValue:  # type: ignore[override]
        """The same elements as a tensor of the graph."""
        if self._view is None:
            flat = self.memory.materialize(self._tx)
            size = self.content.itemsize
            strides = TupleValue([Const(s // size) for s in self.content.strides])
            begin = (_address(self.content) - _address(self.memory.root)) // size
            shape = TupleValue([Const(n) for n in self.content.shape])
            with _outside_of_bodies(self._tx):
                view = force(self._tx, flat.call_method(self._tx, "as_strided", [shape, strides, Const(begin)], {}))
            assert isinstance(view, TensorValue)
            self._view = view
        return self._view

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.content.dtype
        return found

    def type(self) -> type:
        return np.ndarray

    def describe(self) -> str:
        return f"array {self.dtype}[{', '.join(map(str, self.content.shape))}]"

    def children(self) -> list[Value]:
        return [self.memory] if self.memory.flat is None else [self.tensor]

    def truth(self, tx: Tracer) -> bool:
        if not self.memory.is_known:
            return super().truth(tx)
        return bool(tx.fold(bool, self.content).python(tx))

    def length(self, tx: Tracer) -> Value:
        return tx.fold(len, self.content)

    def iterate(self, tx: Tracer) -> Value:
        count = int(self.length(tx).python(tx))
        return SequenceIterator([self.get_item(tx, Const(n)) for n in range(count)], type(iter(())))

    def _layout(self, tx: Tracer, name: str) -> Value | None:
        return tx.from_python(getattr(self.content, name)) if name in _LAYOUT else None

    def copied(self, tx: Tracer) -> Value | None:
        if not self.memory.is_known:
            return None
        root, content = self.memory.root.copy(order="K"), self.content
        begin = _address(content) - _address(self.memory.root)
        return constant(tx, array_over(root, content.shape, content.strides, begin, True, content.dtype))

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("tolist", "item") and self.memory.is_known:
            given = tx.constants([force(tx, a) for a in args])
            return tx.fold(getattr(self.content, name), *given)
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        if self.memory.flat is not None:
            super().reconstruct(cg)
            return
        if self.content is self.memory.root:
            cg.load(self.memory)
            return
        cg.helper(array_over, 0)
        cg.load(self.memory)
        begin = _address(self.content) - _address(self.memory.root)
        for part in (self.content.shape, self.content.strides, begin, self.content.flags.writeable):
            cg.const(part)
        cg.const(self.content.dtype)
        cg.out.call(6)


@contextlib.contextmanager
def _outside_of_bodies(tx: Tracer) -> Iterator[None]:
    """Nodes go to the outermost graph: an array may outlive the body of a higher-order operation that asks for its tensor."""
    inside: Any = tx.graph
    outermost = inside
    while isinstance(outermost, NestedBuilder):
        outermost = outermost.outer
    tx.graph = outermost
    try:
        yield
    finally:
        tx.graph = inside


def _address(array: np.ndarray[Any, Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _root(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def computed(
    tx: Tracer,
    name: str,
    function: Callable[..., Any],
    place: Callable[[Sequence[Any]], tuple[Any, Any]],
    leaves: Sequence[Any],
) -> Value | None:
    """What numpy makes of arrays that are known; None where the graph has to. ``place`` puts contents into the arguments.

    Raises:
        Unsupported: numpy raises or warns, and has changed nothing.
    """
    if isinstance(tx.graph, NestedBuilder):
        return None
    if not all(isinstance(a, KnownArray) and a.memory.is_known for a in leaves):
        return None
    memories = list(dict.fromkeys(a.memory for a in leaves))
    if any(m.flat is not None for m in memories):
        return _only_read(tx, function, place, leaves)
    before = [m.root.copy(order="K") for m in memories]
    warned: list[str] = []
    args, words = place([a.content for a in leaves])
    try:
        with np.errstate(all="call", call=lambda kind, _: warned.append(kind)):
            result = function(*args, **words)
        found = None if warned else _wrapped(tx, result, leaves)
    except Exception as error:
        _restore(memories, before)
        if isinstance(error, Unsupported):
            raise
        raise Unsupported("unknown-call", f"numpy.{name} raises {type(error).__name__}") from error
    if warned:
        _restore(memories, before)
        raise Unsupported("unknown-call", f"numpy.{name} warns of a {warned[0]}")
    changed = [m for m, was in zip(memories, before, strict=True) if m.root.tobytes("A") != was.tobytes("A")]
    if found is None and changed:
        _restore(memories, before)
        return None
    for memory in changed:
        tx.mutating(memory)
    return found


def _only_read(tx: Tracer, function: Callable[..., Any], place: Any, leaves: Sequence[Any]) -> Value | None:
    """A number that numpy finds in arrays which the graph has too; None where it gives anything else."""
    shown = []
    for leaf in leaves:
        view = leaf.content.view()
        view.flags.writeable = False
        shown.append(view)
    args, words = place(shown)
    try:
        with np.errstate(all="raise"):
            result = function(*args, **words)
    except (ArithmeticError, ValueError, IndexError, TypeError):
        return None  # it writes, or raises: as the graph has it
    return tx.from_python(result) if isinstance(result, np.generic) else None


def _restore(memories: Sequence[Memory], before: Sequence[np.ndarray[Any, Any]]) -> None:
    for memory, was in zip(memories, before, strict=True):
        memory.root[...] = was


def _wrapped(tx: Tracer, result: Any, leaves: Sequence[Any]) -> Value | None:
    """A result as a value; None where it is too large to be kept with the code."""
    if isinstance(result, (tuple, list)):
        items = [_wrapped(tx, r, leaves) for r in result]
        known = [i for i in items if i is not None]
        if len(known) < len(items):
            return None
        return ListValue(known) if isinstance(result, list) else TupleValue(known, type(result))
    if result is None:
        return NONE
    if not isinstance(result, np.ndarray):
        return plain_result(tx, result)
    same = next((a for a in leaves if a.content is result), None)
    if same is not None:
        found: Value = same
        return found
    root = _root(result)
    if type(result) is not np.ndarray or type(root) is not np.ndarray or root.base is not None:
        raise Unsupported("unsupported-operation", f"numpy returns a {type(result).__name__}")
    if root.size > _LARGEST or result.size > _LARGEST:
        return None
    if result.dtype.kind not in "biufc" or not result.dtype.isnative or root.dtype != result.dtype:
        raise Unsupported("unsupported-operation", f"an array of {result.dtype}")
    memory = next((a.memory for a in leaves if a.memory.root is root), None)
    return KnownArray(tx, result, memory if memory is not None else Memory(root))
