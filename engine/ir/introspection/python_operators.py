"""Python's operators: symbol, function and the special methods that implement each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """A Python operator.

    ``reflected`` is the method of the right operand, if there is one.
    """

    symbol: str
    function: Callable[..., Any]
    method: str
    reflected: str = ""
    plain: Operator | None = None
    """For an in-place operator, the one that runs without an in-place method."""

    @property
    def is_equality(self) -> bool:
        """True for ``==`` and ``!=``, which compare identities if no method implements them."""
        return self.symbol in ("==", "!=")

    @property
    def swapped(self) -> Operator:
        """The comparison with its operands exchanged."""
        return COMPARE_BY_METHOD[self.reflected]


def _binary(symbol: str, name: str, function: Callable[[Any, Any], Any] | None = None) -> Operator:
    return Operator(symbol, function or getattr(operator, f"__{name}__"), f"__{name}__", f"__r{name}__")


BINARY: dict[str, Operator] = {
    op.symbol: op
    for op in (
        _binary("+", "add"),
        _binary("-", "sub"),
        _binary("*", "mul"),
        _binary("/", "truediv"),
        _binary("//", "floordiv"),
        _binary("%", "mod"),
        _binary("**", "pow"),
        _binary("@", "matmul"),
        _binary("<<", "lshift"),
        _binary(">>", "rshift"),
        _binary("&", "and"),
        _binary("|", "or"),
        _binary("^", "xor"),
    )
}
DIVMOD = _binary("divmod()", "divmod", divmod)


def _inplace(plain: Operator) -> Operator:
    method = plain.method.replace("__", "__i", 1)
    return Operator(f"{plain.symbol}=", getattr(operator, method), method, plain=plain)


INPLACE: dict[str, Operator] = {op.symbol: op for op in map(_inplace, BINARY.values())}

COMPARE: dict[str, Operator] = {
    "<": Operator("<", operator.lt, "__lt__", "__gt__"),
    "<=": Operator("<=", operator.le, "__le__", "__ge__"),
    "==": Operator("==", operator.eq, "__eq__", "__eq__"),
    "!=": Operator("!=", operator.ne, "__ne__", "__ne__"),
    ">": Operator(">", operator.gt, "__gt__", "__lt__"),
    ">=": Operator(">=", operator.ge, "__ge__", "__le__"),
}
COMPARE_BY_METHOD: dict[str, Operator] = {op.method: op for op in COMPARE.values()}

UNARY: dict[str, Operator] = {
    "-": Operator("-", operator.neg, "__neg__"),
    "+": Operator("+", operator.pos, "__pos__"),
    "~": Operator("~", operator.invert, "__invert__"),
    "abs()": Operator("abs()", abs, "__abs__"),
}

METHODS: dict[str, tuple[str, Operator]] = {
    **{op.method: ("binary", op) for op in BINARY.values()},
    **{op.reflected: ("reflected", op) for op in BINARY.values()},
    **{op.method: ("inplace", op) for op in INPLACE.values()},
    **{op.method: ("compare", op) for op in COMPARE.values()},
}
"""By special method of two operands: its method of ``Variable``, and the operator."""
