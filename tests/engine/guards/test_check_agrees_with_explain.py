"""The generated check and the explaining walk say the same of every call."""

from __future__ import annotations

import collections
import enum
import math
import operator
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import sympy
import torch
from hypothesis import given, settings

from engine.guards.codegen import compile_check
from engine.guards.explain import explain
from engine.guards.recompile_reasons import first_guard_failure
from engine.guards.slow_path import all_hold
from engine.ir.guards.aliasing import DisjointStorage, DistinctObjects, SameObject, SharedStorage
from engine.ir.guards.base import Guard
from engine.ir.guards.computed_condition import ComputedCondition, ConditionOp, ValueRef
from engine.ir.guards.python_values import (
    CodeMatch,
    DictKeysMatch,
    EqualsMatch,
    HasAttrGuard,
    IdMatch,
    LengthMatch,
    TypeMatch,
)
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.sources.attributes import AttrSource, CellContentsSource, TypeSource
from engine.ir.sources.base import FrameScope, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ClosureSource, LocalSource
from tests.engine.guards.sample_guards import current_global_state_guards, tensor_match


class Color(enum.Enum):
    """Members go by identity."""

    RED = 1
    BLUE = 2


class Hostile:
    """Every question put to it raises."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("user code ran")

    def __hash__(self) -> int:
        raise AssertionError("user code ran")

    def __len__(self) -> int:
        raise AssertionError("user code ran")

    def __bool__(self) -> bool:
        raise AssertionError("user code ran")

    def __repr__(self) -> str:
        raise AssertionError("user code ran")

    @property
    def shape(self) -> Any:
        """As a tensor has one."""
        raise AssertionError("user code ran")


class Holder:
    """An object with attributes, some of them containers."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class LyingList(list[Any]):
    """Says that it is empty."""

    def __len__(self) -> int:
        return 0


def adder(n: Any) -> Callable[[Any], Any]:
    """A function with a closure."""
    return lambda x: x + n


HOSTILE = Hostile()
ADDER = adder(2)
SHARED = torch.zeros(4, 16)
CONSTANTS: tuple[Any, ...] = (
    0, 1, True, False, 1.0, 0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 2**70, "a", "b", "", b"a", None, ..., 1j, complex(0.0, -0.0), complex(math.nan, 1),
    (1, 2), (True, 2), (1.0, 2), (), (math.nan,), (-0.0,), slice(1, 2), slice(1, True), torch.float32, torch.float64, torch.strided, torch.device("cpu"),
    torch.device("meta"), torch.contiguous_format, Color.RED, Color.BLUE, frozenset({1}), frozenset({True}), torch.Size((1, 2)), range(3), int, float,
)  # fmt: skip
TENSORS: tuple[Callable[[], Any], ...] = (
    lambda: SHARED,
    lambda: SHARED[:],
    lambda: torch.zeros(4, 16),
    lambda: torch.zeros(5, 16),
    lambda: torch.zeros(4, 17),
    lambda: torch.zeros(16, 4).t(),
    lambda: torch.zeros(4, 16, dtype=torch.float64),
    lambda: torch.zeros(4, 16, requires_grad=True),
    lambda: torch.nn.Parameter(torch.zeros(4, 16)),
    lambda: torch.zeros(4, 16, device="meta"),
    lambda: torch.zeros(4),
    lambda: torch.zeros(()),
    lambda: torch.zeros(4, 16).to_sparse(),
    lambda: torch.zeros(4, 16, dtype=torch.complex64).conj(),
    lambda: torch.zeros(4, 16, dtype=torch.complex64),
    lambda: torch.zeros(1, 16).expand(4, 16),
    lambda: torch.zeros(0, 16),
)
OBJECTS: tuple[Callable[[], Any], ...] = (
    lambda: HOSTILE,
    Hostile,
    lambda: [1, 2],
    lambda: [1, HOSTILE],
    lambda: LyingList((1, 2)),
    lambda: {"a": 1, "b": 2},
    lambda: {"b": 1, "a": 2},
    lambda: {1: 1},
    lambda: {True: 1},
    lambda: collections.OrderedDict(a=1, b=2),
    # No factory: tracing guards a dict's type and keys before its items, but the guards here are drawn alone.
    lambda: collections.defaultdict(None, a=1, b=2),
    dict,
    list,
    lambda: ADDER,
    lambda: adder(2),
    lambda: adder(3.0),
    lambda: len,
    lambda: Holder(a=1),
    lambda: Holder(a=torch.zeros(4, 16)),
    lambda: Holder(a=HOSTILE),
    lambda: Holder(a={"b": [1, 2]}),
    Holder,
)
values = st.one_of(
    st.sampled_from(CONSTANTS),
    st.sampled_from(TENSORS).map(lambda make: make()),
    st.sampled_from(OBJECTS).map(lambda make: make()),
    st.integers(-3, 70),
    st.floats(),
    st.text("ab", max_size=2),
)
roots: st.SearchStrategy[Source] = st.sampled_from((LocalSource("x"), LocalSource("type"), ClosureSource("n", 0)))
origins: st.SearchStrategy[Source] = st.recursive(
    roots,
    lambda inner: st.one_of(
        inner.map(lambda o: AttrSource(o, "a")),
        inner.map(lambda o: AttrSource(o, "b")),
        inner.map(lambda o: GetItemSource(o, 0)),
        inner.map(lambda o: GetItemSource(o, "b")),
        inner.map(lambda o: CellContentsSource(o, 0, "n")),
        inner.map(TypeSource),
    ),
    max_leaves=3,
)
MORE = (ConditionOp(operator.gt, (ValueRef(0), ValueRef(1))),)
S0, S1 = sympy.Symbol("s0", integer=True), sympy.Symbol("s1", integer=True)
RELATIONS = (
    sympy.Eq(S0, S1),
    sympy.Ne(S0 % 8, 0),
    S0 * 2 < S1**2,
    sympy.And(S0 > 2, S1 < 20),
    sympy.Or(S0 > 20, sympy.Ne(S1, 4)),
)


def guard_on(origin: Source, value: Any, other: Source) -> st.SearchStrategy[Guard]:
    """A guard that may hold for ``value`` at ``origin``."""
    choices: list[st.SearchStrategy[Guard]] = [
        st.just(TypeMatch(origin, type(value))),
        st.just(IdMatch(origin, value)),
        st.just(LengthMatch(origin, 2)),
        st.sampled_from((DictKeysMatch(origin, ("a", "b")), DictKeysMatch(origin, ()), DictKeysMatch(origin, (1,)))),
        st.booleans().map(lambda present: HasAttrGuard(origin, "a", present)),
        st.just(CodeMatch(origin, ADDER.__code__, ADDER.__globals__)),
        st.booleans().map(lambda same: SameObject(origin, other, same)),
        st.just(DisjointStorage(origin, (other,))),
        st.just(DisjointStorage(origin, (other,), 2)),
        st.just(DistinctObjects(origin, (other,), 2)),
        st.just(SharedStorage(origin, (other,), (0, 0))),
        st.booleans().map(lambda truth: ComputedCondition(origin, (other,), MORE, truth)),
        st.sampled_from(RELATIONS).map(lambda r: SymbolicShapeGuard(origin, r, ((S0, origin, 0), (S1, other, -1)))),
        st.sampled_from(RELATIONS).map(lambda r: SymbolicShapeGuard(origin, r, ((S0, origin, 0), (S1, other, 1)))),
    ]
    if any(value is c for c in CONSTANTS) or type(value) in (int, float, str):
        choices.append(st.just(EqualsMatch(origin, value)))
    if isinstance(value, torch.Tensor):
        choices.append(st.sampled_from(((), (0,), (0, 1))).map(lambda s: tensor_match(origin, value, s)))
    return st.one_of(choices)


@st.composite
def guard_sets(draw: st.DrawFn) -> tuple[Guard, ...]:
    """Some guards, often on the same values."""
    count = draw(st.integers(1, 6))
    return tuple(draw(guard_on(draw(origins), draw(values), draw(roots))) for _ in range(count))


def run_in(state: str, body: Callable[[], None]) -> None:
    """Run ``body`` under a piece of global state."""
    contexts: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu"),
        "device": lambda: torch.device("meta"),
    }
    if state == "plain":
        return body()
    with contexts[state]():
        return body()


STATES = st.sampled_from(("plain", "plain", "plain", "no_grad", "inference", "autocast", "device"))


CASES = given(guard_sets(), st.lists(st.tuples(values, values, values, STATES), min_size=1, max_size=4), st.booleans())
"""Guards, calls, and whether torch's global state is guarded too."""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@settings(max_examples=300, deadline=None)
@CASES
def test_check_and_walk_agree(
    guards: tuple[Guard, ...], calls: list[tuple[Any, Any, Any, str]], with_state: bool
) -> None:
    """Both check forms, the guard walk, its first failure and the rejection agree.

    This holds for any guards and any arguments.
    """
    agree(guards, calls, with_state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
@settings(max_examples=10_000, deadline=None)
@CASES
def test_check_and_walk_agree_ten_thousand_times(
    guards: tuple[Guard, ...], calls: list[tuple[Any, Any, Any, str]], with_state: bool
) -> None:
    """The same, for many more."""
    agree(guards, calls, with_state)


def agree(guards: tuple[Guard, ...], calls: list[tuple[Any, Any, Any, str]], with_state: bool) -> None:
    """Compare everything that answers whether a call is admitted."""
    guards = (*current_global_state_guards(), *guards) if with_state else guards
    quick = compile_check(guards, ("x", "type"))
    plain = compile_check(guards, ("x", "type"), helpers=False)

    def compare() -> None:
        expected = all_hold(plain.guards, scope)
        assert plain.check(cells, x, y) is expected
        # Twice: the quick check learns from the first call that it admits.
        assert quick.check(cells, x, y) is expected
        assert quick.check(cells, x, y) is expected
        verdicts = [r.verdict for r in explain(plain.guards, scope)]
        assert all(v == "pass" for v in verdicts) is expected
        assert (first_guard_failure("0/0", plain.guards, scope) is None) is expected
        assert verdicts.count("fail") == (0 if expected else 1)

    for x, y, n, state in calls:
        cells = (adder(n).__closure__ or ())[:1]
        scope = FrameScope({"x": x, "type": y}, {"n": cells[0]})
        run_in(state, compare)


@settings(max_examples=400, deadline=None)
@pytest.mark.thorough
@given(
    st.lists(st.sampled_from(TENSORS), min_size=2, max_size=2),
    st.lists(st.tuples(*[st.sampled_from(TENSORS)] * 2, STATES), min_size=1, max_size=5),
)
def test_quick_tensor_checks_agree_once_they_have_learned(traced: list[Any], calls: list[tuple[Any, Any, str]]) -> None:
    """The quick check passes exactly when the guards pass, whatever it has learned.

    This holds however often it learned, and under any global state.
    """
    x, y = traced[0](), traced[1]()
    guards = (*current_global_state_guards(), tensor_match(LocalSource("x"), x), tensor_match(LocalSource("y"), y))
    quick, plain = compile_check(guards, ("x", "y")), compile_check(guards, ("x", "y"), helpers=False)
    assert quick.check((), x, y)

    def compare() -> None:
        assert (
            quick.check((), first, second)
            is plain.check((), first, second)
            is all_hold(plain.guards, FrameScope({"x": first, "y": second}))
        )

    for make_first, make_second, state in calls:
        first, second = make_first(), make_second()
        run_in(state, compare)
    assert quick.check((), x, y)
