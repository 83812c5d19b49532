"""Variables for ``id()`` and ``hash()``; hash keys of objects with a user-defined hash.

These keys compare like their objects and do not depend on addresses, which differ from run to run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch

from engine.ir.introspection.python_operators import Operator
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import identical_or_equal, is_same_object
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import ConstantVariable, NotPythonConstant, Variable
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_bound_rule
from engine.trace.variables.slotted_type import SlottedType


class IdVariable(Variable):
    """``id(obj)``: comparing two ids guards only identity; using the number guards the object."""

    cls = int
    obj: Variable

    def describe(self) -> str:
        return f"id of {self.obj.describe()}"

    def as_python_constant(self, tx: Tracer) -> Any:
        real = tx.objects.real_object(self.obj)
        if real is NotImplemented or self.obj.source is None:
            raise NotPythonConstant(self)
        tx.guard_identity(real, self.obj.source, "its id() was used")
        return id(real)

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.is_equality and isinstance(right, IdVariable):
            return ConstantVariable((IdKey(tx, self.obj) == IdKey(tx, right.obj)) == (op.symbol == "=="))
        return NotImplemented

    def hash_key(self, tx: Tracer) -> Any:
        return IdKey(tx, self.obj)

    child_fields = ("obj",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(id, self.obj)


class IdKey(metaclass=SlottedType):
    """Hash key for ``id(x)``.

    All such keys have the same hash, so that a lookup compares with every other one; the comparison adds the guard.
    """

    tx: Tracer
    obj: Variable

    def __hash__(self) -> int:
        return hash(IdKey)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdKey) and is_same_object(self.tx, self.obj, other.obj)


class HashVariable(Variable):
    """``hash(obj)`` of a container of objects that hash by address.

    Its number is unknown; equal values have equal hashes.
    """

    obj: Variable
    hash_value: int
    cls = int

    def describe(self) -> str:
        return f"hash of {self.obj.describe()}"

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.is_equality and isinstance(right, HashVariable):
            return ConstantVariable((self.hash_value == right.hash_value) == (op.symbol == "=="))
        return super().compare(tx, op, right)

    def hash_key(self, tx: Tracer) -> Any:
        return self.hash_value

    child_fields = ("obj",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(hash, self.obj)


@contextlib.contextmanager
def forbid_side_effects(tx: Tracer, what: str) -> Iterator[None]:
    """Check that a user-defined method called by a container has no side effects.

    Python decides when and how often a container calls it.

    Raises:
        Unsupported: the method has a side effect.
    """
    count_before = tx.side_effects.mutation_count
    yield
    if tx.side_effects.mutation_count != count_before:
        raise Unsupported("dict-key", f"{what} has a side effect when a container calls it")


class UserHashKey:
    """Hash key of an object with user-defined ``__hash__`` and ``__eq__``, which it traces.

    Each Python hash call creates one key. While a key is only looked up, its comparison results are cached, because
    Python compares once.
    """

    def __init__(self, tx: Tracer, of: Variable, number: int, *, has_effects: bool) -> None:
        self.tx = tx
        self.obj = of
        self.hash_value = number
        self.has_effects = has_effects
        self.created_at = tx.instruction_counter.root_instruction_number
        self.is_in_container = False
        self._comparison_cache: dict[int, tuple[object, bool]] = {}

    def __hash__(self) -> int:
        return self.hash_value

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, UserHashKey):
            return self.obj is other.obj or other._equals_stored(self)
        if is_literal(other):  # the class of a literal does not know the user-defined class
            return self._call_eq(ConstantVariable(other))
        raise Unsupported("dict-key", "comparing keys of different kinds that have the same hash")

    def _equals_stored(self, stored: UserHashKey) -> bool:
        """Return True if this lookup key equals a stored key, whose ``__eq__`` Python calls."""
        if id(stored) not in self._comparison_cache or self.is_in_container:
            self._comparison_cache[id(stored)] = (
                stored,
                stored._call_eq(self.obj, may_change=not self.is_in_container),
            )
        return self._comparison_cache[id(stored)][1]

    def _call_eq(self, other: Variable, *, may_change: bool = False) -> bool:
        with (
            contextlib.nullcontext()
            if may_change
            else forbid_side_effects(self.tx, f"{self.obj.python_type().__name__}.__eq__")
        ):
            return identical_or_equal(self.tx, self.obj, other)


def mark_stored(key: Any) -> Any:
    """Mark a hash key as stored in a container and return it."""
    if isinstance(key, UserHashKey):
        key.is_in_container = True
    return key


def check_keys_rebuildable(keys: Collection[Any], what: str) -> None:
    """Check that rebuilding a container after the graph runs no observable key method.

    Raises:
        Unsupported: two of the keys have the same hash, or hashing one has side effects.
    """
    hashed = [k for k in keys if isinstance(k, UserHashKey)]
    changing = [k for k in hashed if k.has_effects]
    if changing:
        reason = f"rebuilding a {what} with keys whose __hash__ has a side effect"
        raise Unsupported("dict-key", reason, created_at=min(k.created_at for k in changing))
    if hashed and len(set(map(hash, keys))) < len(keys):
        raise Unsupported("dict-key", f"rebuilding a {what} with keys that have the same hash")


@register_bound_rule(id)
def _id(tx: Tracer, of: Variable) -> Variable:
    has_identity = of.is_mutable or of.is_singleton or issubclass(of.python_type(), torch.Tensor)
    if of.is_constant or (not has_identity and of.as_python_object() is NotImplemented):
        raise Unsupported("object-address", f"id() of {of.describe()}")
    return IdVariable(of)
