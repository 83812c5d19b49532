"""``id()`` and user-defined hashing: keys that stand for objects compare as the objects do, without numbers that change from run to run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class IdValue(Value):
    """``id(of)``: equality of two says nothing of the objects but whether they are one; the number itself is guarded."""

    def __init__(self, of: Value) -> None:
        self.of = of

    def type(self) -> type:
        return int

    def describe(self) -> str:
        return f"id of {self.of.describe()}"

    def python(self, tx: Tracer) -> Any:
        real = tx.real_of(self.of)
        if real is NotImplemented or self.of.origin is None:
            raise NotConstant
        tx.guard_object(real, self.of.origin, "the number that id() gives for it was used")
        return id(real)

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return IdKey(tx, self.of)

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(id))
        cg.load(self.of)
        cg.out.call(1)


class IdKey:
    """Stands for ``id(x)`` as a key. All hash alike, so that a lookup compares with every other one, which guards what it finds."""

    def __init__(self, tx: Tracer, of: Value) -> None:
        self.tx = tx
        self.of = of

    def __hash__(self) -> int:
        return hash(IdKey)

    def __eq__(self, other: object) -> bool:
        from engine.trace.operations import is_same

        return isinstance(other, IdKey) and is_same(self.tx, self.of, other.of)


class HashValue(Value):
    """``hash(of)`` of what holds objects that hash by their addresses: known only to be equal for equal values."""

    def __init__(self, tx: Tracer, of: Value) -> None:
        self.of = of
        self.number = hash(of.key(tx))

    def type(self) -> type:
        return int

    def describe(self) -> str:
        return f"hash of {self.of.describe()}"

    def key(self, tx: Tracer) -> Any:
        return self.number

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(hash))
        cg.load(self.of)
        cg.out.call(1)


@contextlib.contextmanager
def unchanging(tx: Tracer, what: str) -> Iterator[None]:
    """A method of the user's that runs as often as containers ask for it: how often, and when, is for Python to say if it changes anything.

    Raises:
        Unsupported: it changed something.
    """
    before = tx.changes
    yield
    if tx.changes != before:
        raise Unsupported("unsupported-operation", f"{what} changes something when a container asks for it")


class HashedKey:
    """Stands for an object whose class defines ``__hash__`` and ``__eq__``: compares by running them.

    One is made for each time that Python hashes the object. While it only looks something up, what comparing it gave is kept: Python compares once.
    """

    def __init__(self, tx: Tracer, of: Value, number: int, *, has_effects: bool) -> None:
        self.tx = tx
        self.of = of
        self.number = number
        self.has_effects = has_effects
        self.born = tx.root_executed
        self.is_stored = False
        self._compared: dict[int, tuple[object, bool]] = {}

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        from engine.trace.values.wrap import is_literal

        if self is other:
            return True
        if isinstance(other, HashedKey):
            return self.of is other.of or other._found_in(self)
        if is_literal(other):  # whose own class knows nothing of this one
            return self._ask(Const(other))
        raise Unsupported("unsupported-operation", "comparing keys of different kinds that have the same hash")

    def _found_in(self, stored: HashedKey) -> bool:
        """Whether what is looked up equals a key of a container, which Python asks."""
        if id(stored) not in self._compared or self.is_stored:
            self._compared[id(stored)] = (stored, stored._ask(self.of, may_change=not self.is_stored))
        return self._compared[id(stored)][1]

    def _ask(self, other: Value, *, may_change: bool = False) -> bool:
        from engine.trace.operations import same_or_equal

        with contextlib.nullcontext() if may_change else unchanging(self.tx, f"{self.of.type().__name__}.__eq__"):
            return same_or_equal(self.tx, self.of, other)


def stored(key: Any) -> Any:
    """What stands for a key that a container now holds."""
    if isinstance(key, HashedKey):
        key.is_stored = True
    return key


def check_rebuilt(keys: Collection[Any], what: str) -> None:
    """Refuse to put keys into a new container after the graph where that would run a method of theirs that is seen to run once more.

    Raises:
        Unsupported: two of the keys have the same hash, or hashing one changes something.
    """
    hashed = [k for k in keys if isinstance(k, HashedKey)]
    changing = [k for k in hashed if k.has_effects]
    if changing:
        refused = Unsupported("side-effect", f"rebuilding a {what} with keys whose hash changes something")
        refused.born = min(k.born for k in changing)
        raise refused
    if hashed and len(set(map(hash, keys))) < len(keys):
        raise Unsupported("side-effect", f"rebuilding a {what} with keys that have the same hash")


@special(id)
def _id(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from engine.trace.operations import is_empty_tuple

    of = force(tx, args[0])
    if isinstance(of, Const) or (not of.is_mutable and not is_empty_tuple(of)):
        from engine.trace.values.tensor import TensorValue

        if not isinstance(of, TensorValue) and (isinstance(of, Const) or of.real() is NotImplemented):
            raise Unsupported("unsupported-operation", f"id() of {of.describe()}")
    return IdValue(of)


def equal_ids(tx: Tracer, left: Value, right: Value) -> bool | None:
    """Whether two ids are equal; None where one of the two is no id."""
    if isinstance(left, HashValue) and isinstance(right, HashValue):
        return left.number == right.number
    if isinstance(left, IdValue) and isinstance(right, IdValue):
        return IdKey(tx, left.of) == IdKey(tx, right.of)
    return None
