"""The base class of variables: the answers of an operand to Python's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from engine.ir.introspection.python_operators import Operator
from engine.trace.annotations import DictVariable, SequenceVariable, SetVariable, Tracer, Variable
from engine.trace.exc import Unsupported
from engine.trace.variables.node_argument import NodeArgument

OperatorResult = Any
"""The variable of an operator's result, or ``NotImplemented``."""

_MODULES_COMPARING_OWN_TYPES = ("builtins", "collections", "torch")
"""Modules of builtin types, whose comparisons return NotImplemented for all other types."""


class Operand(NodeArgument):
    """An operand: its class answers an operator or returns NotImplemented, as in CPython.

    The dispatch in ``arithmetic`` asks both operands in CPython's order.
    """

    __slots__ = ()

    is_singleton = False
    """True for the empty tuple, which is one object."""
    equals_by_identity = True
    """False for numpy scalars: their ``==`` never falls back to identity."""
    is_set_like = False
    """True for a set and for the keys and items of a dict: comparisons test for subsets."""
    is_symbolic = False
    """True for a number that is a symbol of the shape environment."""

    def unsupported(self, what: str, kind: str = "unsupported-operation") -> Unsupported:
        """Return the graph break for an operation that this variable does not support."""
        return Unsupported(kind, f"{what} on {self.typed_name}")

    @property
    def builtin_contents(self: Any) -> Any:
        """The variable of the builtin contents of a builtin subclass instance; else itself."""
        return self

    @property
    def set_contents(self) -> SetVariable | None:
        """The elements of a set, a frozenset or an instance of their subclasses; else None."""
        return None

    @property
    def dict_contents(self) -> DictVariable | None:
        """The entries of a dict or of an instance of its subclasses; else None."""
        return None

    @property
    def sequence_contents(self) -> SequenceVariable | None:
        """The items of a list, tuple, deque or an instance of their subclasses; else None."""
        return None

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        """Trace ``self op right`` as the method of this class does, e.g. ``__add__``."""
        return NotImplemented

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        """Trace ``left op self`` as the reflected method of this class does, e.g. ``__radd__``."""
        return NotImplemented

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        """Trace ``self op right`` for an in-place operator, e.g. ``+=``."""
        return NotImplemented

    def concat(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        """Trace ``self + right`` or ``self += right`` of a sequence. Methods of numbers go first."""
        return NotImplemented

    def repeat(self, tx: Tracer, op: Operator, times: Variable) -> OperatorResult:
        """Trace ``self * times`` or ``self *= times`` of a sequence. Methods of numbers go first."""
        return NotImplemented

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        """Trace a comparison as the method of this class does, e.g. ``__lt__``."""
        owner = next(base for base in self.python_type().__mro__ if op.method in vars(base))
        if owner is object or tx.is_python_constant(cast("Variable", self)):
            return NotImplemented
        if owner.__module__ in _MODULES_COMPARING_OWN_TYPES and not issubclass(right.python_type(), owner):
            return NotImplemented
        raise self.unsupported(f"the operator {op.symbol}")

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        """Return ``self is other`` if this class knows it without the real objects, else None."""
        return None

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        """Return the operand that a tensor's operator takes into the graph, or None."""
        return None


CONSTANT_OPERATORS: dict[Any, Callable[..., Any]] = {}
"""Rules for methods of constants that take variables, such as ``str.__mod__``.

The key is the method of the class; the rule takes the tracer, the constant's value and the right operand.
"""
