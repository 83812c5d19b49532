"""``id()`` and user-defined hashing: keys that stand for objects compare as the objects do, without numbers that change from run to run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.callable_registry import register_rule

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


class IdVariable(Variable):
    """``id(of)``: equality of two says nothing of the objects but whether they are one; the number itself is guarded."""

    def __init__(self, of: Variable) -> None:
        self.obj = of

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return f"id of {self.obj.describe()}"

    def as_python_constant(self, tx: Tracer) -> Any:
        real = tx.real_object(self.obj)
        if real is NotImplemented or self.obj.source is None:
            raise NotPythonConstant
        tx.guard_identity(real, self.obj.source, "the number that id() gives for it was used")
        return id(real)

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def hash_key(self, tx: Tracer) -> Any:
        return IdKey(tx, self.obj)

    def child_variables(self) -> list[Variable]:
        return [self.obj]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(id))
        cg.load(self.obj)
        cg.body.call(1)


class IdKey:
    """Stands for ``id(x)`` as a key. All hash alike, so that a lookup compares with every other one, which guards what it finds."""

    def __init__(self, tx: Tracer, of: Variable) -> None:
        self.tx = tx
        self.obj = of

    def __hash__(self) -> int:
        return hash(IdKey)

    def __eq__(self, other: object) -> bool:
        from engine.trace.operators.arithmetic import is_same_object

        return isinstance(other, IdKey) and is_same_object(self.tx, self.obj, other.obj)


class HashVariable(Variable):
    """``hash(of)`` of what holds objects that hash by their addresses: known only to be equal for equal values."""

    def __init__(self, tx: Tracer, of: Variable) -> None:
        self.obj = of
        self.hash_value = hash(of.hash_key(tx))

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return f"hash of {self.obj.describe()}"

    def hash_key(self, tx: Tracer) -> Any:
        return self.hash_value

    def child_variables(self) -> list[Variable]:
        return [self.obj]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(hash))
        cg.load(self.obj)
        cg.body.call(1)


@contextlib.contextmanager
def forbid_side_effects(tx: Tracer, what: str) -> Iterator[None]:
    """A method of the user's that runs as often as containers ask for it: how often, and when, is for Python to say if it changes anything.

    Raises:
        Unsupported: it changed something.
    """
    before = tx.mutation_count
    yield
    if tx.mutation_count != before:
        raise Unsupported("unsupported-operation", f"{what} changes something when a container asks for it")


class UserHashKey:
    """Stands for an object whose class defines ``__hash__`` and ``__eq__``: compares by running them.

    One is made for each time that Python hashes the object. While it only looks something up, what comparing it gave is kept: Python compares once.
    """

    def __init__(self, tx: Tracer, of: Variable, number: int, *, has_effects: bool) -> None:
        self.tx = tx
        self.obj = of
        self.hash_value = number
        self.has_effects = has_effects
        self.created_at = tx.root_instruction_number
        self.is_in_container = False
        self._comparison_cache: dict[int, tuple[object, bool]] = {}

    def __hash__(self) -> int:
        return self.hash_value

    def __eq__(self, other: object) -> bool:
        from engine.trace.variables.builder import is_literal

        if self is other:
            return True
        if isinstance(other, UserHashKey):
            return self.obj is other.obj or other._equals_stored(self)
        if is_literal(other):  # whose own class knows nothing of this one
            return self._call_eq(ConstantVariable(other))
        raise Unsupported("unsupported-operation", "comparing keys of different kinds that have the same hash")

    def _equals_stored(self, stored: UserHashKey) -> bool:
        """Whether what is looked up equals a key of a container, which Python asks."""
        if id(stored) not in self._comparison_cache or self.is_in_container:
            self._comparison_cache[id(stored)] = (
                stored,
                stored._call_eq(self.obj, may_change=not self.is_in_container),
            )
        return self._comparison_cache[id(stored)][1]

    def _call_eq(self, other: Variable, *, may_change: bool = False) -> bool:
        from engine.trace.operators.arithmetic import identical_or_equal

        with (
            contextlib.nullcontext()
            if may_change
            else forbid_side_effects(self.tx, f"{self.obj.python_type().__name__}.__eq__")
        ):
            return identical_or_equal(self.tx, self.obj, other)


def mark_stored(key: Any) -> Any:
    """What stands for a key that a container now holds."""
    if isinstance(key, UserHashKey):
        key.is_in_container = True
    return key


def check_keys_rebuildable(keys: Collection[Any], what: str) -> None:
    """Refuse to put keys into a new container after the graph where that would run a method of theirs that is seen to run once more.

    Raises:
        Unsupported: two of the keys have the same hash, or hashing one changes something.
    """
    hashed = [k for k in keys if isinstance(k, UserHashKey)]
    changing = [k for k in hashed if k.has_effects]
    if changing:
        refused = Unsupported("side-effect", f"rebuilding a {what} with keys whose hash changes something")
        refused.created_at = min(k.created_at for k in changing)
        raise refused
    if hashed and len(set(map(hash, keys))) < len(keys):
        raise Unsupported("side-effect", f"rebuilding a {what} with keys that have the same hash")


@register_rule(id)
def _id(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    from engine.trace.operators.arithmetic import is_empty_tuple

    of = realize(tx, args[0])
    if isinstance(of, ConstantVariable) or (not of.is_mutable and not is_empty_tuple(of)):
        from engine.trace.variables.tensors.tensor import TensorVariable

        if not isinstance(of, TensorVariable) and (
            isinstance(of, ConstantVariable) or of.as_python_object() is NotImplemented
        ):
            raise Unsupported("unsupported-operation", f"id() of {of.describe()}")
    return IdVariable(of)


def compare_ids(tx: Tracer, left: Variable, right: Variable) -> bool | None:
    """Whether two ids are equal; None where one of the two is no id."""
    if isinstance(left, HashVariable) and isinstance(right, HashVariable):
        return left.hash_value == right.hash_value
    if isinstance(left, IdVariable) and isinstance(right, IdVariable):
        return IdKey(tx, left.obj) == IdKey(tx, right.obj)
    return None
