"""Sympy relations over sizes as Python code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE

from engine.ir.sources.base import ConstName
from engine.torch_private.sympy_functions import PythonPrinter


class _Printer(PythonPrinter):
    """Prints a relation; each symbol is replaced by the code that reads it."""

    reads: Mapping[sympy.Symbol, str]

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self.reads[expr]

    def _print_Not(self, expr: sympy.Basic) -> str:
        return f"(not ({self._print(expr.args[0])}))"

    def _print_BooleanTrue(self, expr: sympy.Basic) -> str:
        return "True"

    def _print_BooleanFalse(self, expr: sympy.Basic) -> str:
        return "False"

    def _helper_sqrt(self, expr: sympy.Basic) -> str:
        return f"math.sqrt({self._print(expr)})"

    def _print_Float(self, expr: sympy.Expr) -> str:
        return repr(float(expr))

    def _print_ToFloat(self, expr: sympy.Basic) -> str:
        return f"float({self._print(expr.args[0])})"


class _DisplayPrinter(_Printer):
    """Prints a relation for people, with subtractions.

    Code keeps the order of the terms, because rounding depends on it.
    """

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        negative = [-term for term in expr.args if term.could_extract_minus_sign()]
        text = " + ".join(self._print_factor(term) for term in expr.args if -term not in negative)
        for term in negative:
            text = f"{text} - {self._print_factor(term)}" if text else f"-{self._print_factor(term)}"
        return text

    def _print_Mul(self, expr: Any) -> str:
        is_negative = expr.could_extract_minus_sign()
        return f"-{self._print_factor(-expr)}" if is_negative else str(super()._print_Mul(expr))

    def _print_factor(self, expr: Any) -> str:
        parenthesize: Any = self.parenthesize
        return str(parenthesize(expr, PRECEDENCE["Mul"], strict=True))


def _print(relation: sympy.Basic, reads: Mapping[sympy.Symbol, str], make: Any = _Printer) -> str:
    printer = make()
    printer.reads = reads
    return str(printer.doprint(relation))


def relation_code(relation: sympy.Basic, reads: Mapping[sympy.Symbol, str], const: ConstName) -> str:
    """Return Python code of a relation.

    ``reads`` holds the code that reads each symbol: a name, or code in parentheses.

    Raises:
        KeyError: the relation has a symbol that is missing in ``reads``.
    """
    text = _print(relation, reads)
    for name, value in (
        ("math.", math),
        ("float(", float),
        ("int(", int),
        ("max(", max),
        ("min(", min),
        ("abs(", abs),
        ("round(", round),
    ):
        text = _bind_builtin(text, name, value, const)
    for function in {f.func for f in relation.atoms(sympy.Function)}:  # those that have no operator of Python
        text = _bind_builtin(text, f"{function.__name__}(", function, const)
    return text


def _bind_builtin(text: str, name: str, builtin: Any, const: ConstName) -> str:
    if name not in text:
        return text
    builtin_name = name[:-1]
    return text.replace(name, const(builtin, builtin_name) + name[-1])


def relation_display(relation: sympy.Basic, names: Mapping[sympy.Symbol, str] = MappingProxyType({})) -> str:
    """Return a relation for display: ``s0 % 8 == 0``. ``names`` replaces names of symbols."""
    plain = {s: names.get(s, s.name) for s in relation.free_symbols if isinstance(s, sympy.Symbol)}
    return _print(relation, plain, _DisplayPrinter)
