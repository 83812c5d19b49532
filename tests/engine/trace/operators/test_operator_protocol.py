"""Operators ask the variables of their operands, as Python asks classes."""

from __future__ import annotations

import ast
import operator
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import engine
from engine.ir.introspection import python_operators
from engine.trace.variables import builder
from engine.trace.variables.base import ConstantVariable, RealObjectVariable, Variable
from tests.engine.trace.harness import Traced

if TYPE_CHECKING:
    from engine.ir.introspection.python_operators import Operator
    from engine.ir.sources.base import Source
    from engine.trace.operators.operand import OperatorResult
    from engine.trace.tracer import Tracer

ROOT = pathlib.Path(__file__).parents[4]


class Meters:
    """A length that knows how to add, compare, negate, index and be called."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    def __add__(self, other: Any) -> Any:
        return self.count + other.count if type(other) is Meters else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self.count if type(other) is int else NotImplemented

    def __iadd__(self, other: Any) -> Any:
        return ("in place", self.count, other)

    def __lt__(self, other: Any) -> Any:
        return self.count < other.count if type(other) is Meters else NotImplemented

    def __neg__(self) -> int:
        return -self.count

    def __getitem__(self, key: int) -> int:
        return self.count + key

    def __contains__(self, item: int) -> bool:
        return item == self.count

    def __len__(self) -> int:
        return self.count

    def __call__(self, by: int) -> int:
        return self.count * by


class MetersVariable(RealObjectVariable):
    """A new kind of variable, unknown to the engine: all its operators are its own methods."""

    real_object: Meters

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "+" or not isinstance(right, MetersVariable):
            return NotImplemented
        return ConstantVariable(self.real_object.count + right.real_object.count)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        if op.symbol != "+" or left.python_type() is not int:
            return NotImplemented
        return ConstantVariable(left.as_python_constant(tx) + self.real_object.count)

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return tx.from_python(("in place", self.real_object.count, right)) if op.symbol == "+=" else NotImplemented

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol not in ("<", ">") or not isinstance(right, MetersVariable):
            return NotImplemented
        return ConstantVariable(op.function(self.real_object.count, right.real_object.count))

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return tx.fold_constant(op.function, self.real_object)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return ConstantVariable(self.real_object[key.as_python_constant(tx)])

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return item.as_python_constant(tx) in self.real_object

    def length(self, tx: Tracer) -> Variable:
        return ConstantVariable(self.real_object.count)

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        return ConstantVariable(self.real_object(*tx.as_python_constants(args)))


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the builder of the new kind of variable for one test."""

    def build(tx: Tracer, real: Any, origin: Source) -> Variable:
        tx.guard_identity(real, origin, "it was used")
        return MetersVariable(real, origin)

    monkeypatch.setitem(builder._BUILDERS_BY_TYPE, Meters, build)
    yield
    engine.reset()


@pytest.mark.parametrize(
    "operate",
    [
        lambda a, b: a + b,
        lambda a, b: 5 + b,
        lambda a, b: operator.iadd(a, 3),
        lambda a, b: (a < b, a > b, a == b, a != b, a == a),
        lambda a, b: -a,
        lambda a, b: (a[2], 3 in a, 4 in a, len(b), a(by := 2) + by),
    ],
    ids=["binary", "reflected", "in-place", "comparison", "unary", "items and calls"],
)
@pytest.mark.usefixtures("meters")
def test_a_new_kind_of_value_brings_its_own_operators(operate: Callable[[Any, Any], Any]) -> None:
    """Operators of a variable class defined by the test work like Python's, in one graph."""

    def run(x: torch.Tensor, a: Meters, b: Meters) -> Any:
        return x * 2, operate(a, b)

    x, a, b = torch.ones(2), Meters(3), Meters(7)
    traced = Traced(run)
    assert traced(x, a, b)[1] == operate(a, b)
    assert (traced.graphs, traced.breaks) == (1, [])


@pytest.mark.parametrize("left", [3, 2.5, "s", None, [1], (1,), {1}, {"a": 1}, range(2)], ids=repr)
@pytest.mark.usefixtures("meters")
def test_an_operator_that_no_operand_implements_raises_as_in_python(left: Any) -> None:
    """After NotImplemented from both operands, the traced code gets CPython's TypeError."""

    def run(x: torch.Tensor, b: Meters) -> tuple[torch.Tensor, str]:
        try:
            left - b
        except TypeError as error:
            return x + 1, str(error)
        return x, ""

    x, b = torch.ones(2), Meters(2)
    assert engine.compile(run, backend="eager")(x, b)[1] == run(x, b)[1] != ""


class Tagged:
    """Its reflected methods run before the methods of sequences."""

    def __radd__(self, other: Any) -> str:
        return "reflected"

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2))


def test_number_methods_go_before_those_of_sequences() -> None:
    """``list += obj`` calls ``obj.__radd__`` as in CPython, not ``list.extend``."""

    def run(x: torch.Tensor, tagged: Tagged) -> Any:
        items = [0]
        items += tagged  # type: ignore[arg-type]
        return x + 1, items, [0] + tagged  # type: ignore[operator]

    made = engine.compile(run, backend="eager")(torch.ones(2), Tagged())
    assert made[1:] == ("reflected", "reflected")


class Half(float):
    """A subclass whose reflected method goes first."""

    def __rsub__(self, other: Any) -> str:
        return "reflected"


def test_the_reflected_method_of_a_subclass_goes_first() -> None:
    """``float - Half`` calls ``Half.__rsub__`` although ``float`` implements the operator."""

    def run(x: torch.Tensor) -> Any:
        return x + 1, 2.5 - Half(1), 2 - Half(1), Half(1) - 2.5

    made = engine.compile(run, backend="eager")(torch.ones(2))
    assert made[1:] == run(torch.ones(2))[1:] == ("reflected", "reflected", -1.5)


class Count(int):
    """A class with slots of a sequence, all of them empty, as every class in Python has."""


class Row(list):
    """A list that numpy reads as an array."""


def _raised(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except TypeError as error:
        return str(error)


def repeats_in_place(left: Any) -> Any:
    left *= [1, 2]
    return left


@pytest.mark.parametrize(
    "operation",
    [
        lambda: repeats_in_place(Count(2)),
        lambda: repeats_in_place(2),
        lambda: Count(2) * [1],
        lambda: operator.mod("text", ValueError("x")),
        lambda: operator.mod("text", Row()),
        lambda: "%s" % ValueError("x"),
        lambda: np.float32(2) == Row([1.0, 2.0]),
        lambda: Row([1, 2]) != np.int32(2),
        lambda: np.float64(3) == [1, 3],
    ],
)
def test_rare_operands_give_what_python_gives(operation: Callable[[], Any]) -> None:
    """Operands treated unlike their base class give the value or TypeError of Python."""

    def run(x: torch.Tensor) -> Any:
        return x + 1, _raised(operation)

    expected, seen = _raised(operation), engine.compile(run, backend="eager")(torch.ones(2))[1]
    assert type(seen) is type(expected)
    assert np.array_equal(seen, expected) if isinstance(expected, np.ndarray) else seen == expected


def test_the_table_knows_every_operator_of_the_operator_module() -> None:
    """Each operator function has one entry, with methods that exist.

    Covers binary, in-place, comparison and unary functions.
    """
    functions = [
        op.function
        for ops in (python_operators.BINARY, python_operators.INPLACE, python_operators.COMPARE)
        for op in ops.values()
    ]
    assert len(set(functions)) == len(functions) == 13 + 13 + 6
    for op in python_operators.BINARY.values():
        assert op.function is getattr(operator, op.method)
        assert python_operators.INPLACE[f"{op.symbol}="].plain is op
    for op in python_operators.COMPARE.values():
        assert op.swapped.swapped is op


def test_dispatch_names_no_family_of_values() -> None:
    """The dispatch imports no variable family: what a value does is a method of its class."""
    path = ROOT / "engine" / "trace" / "operators" / "arithmetic.py"
    modules = {n.module or "" for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)}
    families = {m for m in modules if m.startswith("engine.trace.variables.")}
    assert families == {"engine.trace.variables.base"}
