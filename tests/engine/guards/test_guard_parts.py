"""Parts of guards, each alone: what they accept, say, and leave to their own tests."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.guards.dict_versions.collect import ObservedWrites, collect_dependencies
from engine.guards.measure_costs import measure_guard_costs
from engine.guards.safe_read import read_static
from engine.ir.guards.aliasing import SharedStorage
from engine.ir.guards.base import Guard
from engine.ir.guards.computed_condition import ConditionOp, NumberProgram, ValueRef
from engine.ir.guards.python_values import CodeMatch, EqualsMatch, LengthMatch
from engine.ir.guards.tensors import TensorSubclassMatch
from engine.ir.sources.attributes import AttrSource, CellContentsSource, ModuleMemberSource
from engine.ir.sources.roots import LocalSource
from engine.records.counts import causing_guard_failure
from tests.torch_internals import TwoTensor

ROOT = LocalSource("x")


@pytest.mark.parametrize(("least", "end"), [(0, ""), (24, " of at least 24")])
def test_a_guard_of_a_storage_names_its_size_if_it_matters(least: int, end: str) -> None:
    """Without a least size only the place of the first element counts."""
    guard = SharedStorage(ROOT, (), (8,), least)
    assert guard.expected_text() == f"x from byte 8{end}"
    assert guard.actual_text(torch.zeros(9)[2:]) == f"x from byte 8{' of 36' if least else ''}"


def test_a_guard_of_a_subclass_compares_each_item_of_its_context() -> None:
    """The names of the inner tensors count too; a value that is no subclass is described."""
    value = TwoTensor(torch.ones(2), torch.ones(2))
    guard = TensorSubclassMatch(ROOT, ("a", "b"), None)
    assert guard.test(value)
    assert guard.actual_text(value) == "a, b and None"
    assert guard.actual_text(torch.ones(2)) == "f32[2]"
    assert not TensorSubclassMatch(ROOT, ("a",), None).test(value)

    class Tagged:
        """An object that comes apart with a context."""

        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return ["a"], ("tag", 1)

    contexts = [("tag", 1), ("tag", 2), ("other", 1), ("tag",), None]
    assert [TensorSubclassMatch(ROOT, ("a",), c).test(Tagged()) for c in contexts] == [True, *[False] * 4]


def test_guards_of_code_are_equal_for_one_code() -> None:
    """Two functions of one code share a guard, functions of other code do not."""

    def make() -> types.FunctionType:
        return lambda: 1  # type: ignore[return-value]

    first, second, other = make(), make(), (lambda: 2)
    guards = [CodeMatch(ROOT, f.__code__, f.__globals__) for f in (first, second, other)]
    assert guards[0] == guards[1] != guards[2]
    assert guards[0] != CodeMatch(LocalSource("y"), first.__code__, first.__globals__)
    assert len(set(guards)) == 2


def test_a_program_of_numbers_takes_only_numbers() -> None:
    """Anything else, also a bool or a tensor, gives no result."""
    program = NumberProgram((ConditionOp("__mul__", (ValueRef(0), 3)),))
    values: list[Any] = [2, 1.5, True, torch.ones(1), "a"]
    assert [program(v) for v in values] == [6, 4.5, None, None, None]


def test_the_contents_of_a_cell_are_read_from_functions_only() -> None:
    """An object with a ``__closure__`` of its own could run code."""
    content = [1]

    def inner() -> Any:
        return content

    source = CellContentsSource(ROOT, 0, "content")
    assert read_static(source, inner) is content
    with pytest.raises(TypeError):
        read_static(source, types.SimpleNamespace(__closure__=inner.__closure__))


def test_the_costs_of_guards_are_measured() -> None:
    """Each guard that can be evaluated has a time, one that raises has none."""
    guards = [EqualsMatch(ROOT, 3), EqualsMatch(AttrSource(ROOT, "missing"), 3)]
    first, second = measure_guard_costs(guards, ("x",), (), (3,))
    assert first is not None
    assert second is None


class Slotted:
    """Has no dict of attributes."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 3


def layer_with(name: str, value: Any) -> torch.nn.Module:
    """Return a layer with an entry in its dict."""
    layer = torch.nn.Linear(2, 2)
    vars(layer)[name] = value
    return layer


UNCOVERED: dict[str, tuple[Callable[[], Any], Guard]] = {
    "no dict of attributes": (Slotted, EqualsMatch(AttrSource(ROOT, "size"), 3)),
    "another dict of members": (
        lambda: layer_with("_parameters", types.MappingProxyType({"weight": 3})),
        EqualsMatch(ModuleMemberSource(ROOT, "_parameters", "weight"), 3),
    ),
    "an attribute of no class": (lambda: torch.nn.Linear, EqualsMatch(AttrSource(ROOT, "missing"), 3)),
    "a list of numbers": (lambda: layer_with("sizes", [3]), EqualsMatch(AttrSource(ROOT, "sizes"), [3])),
    "an object": (lambda: layer_with("size", Slotted()), EqualsMatch(AttrSource(ROOT, "size"), 3)),
    "a long text": (lambda: layer_with("names", {"a": 1}.keys()), LengthMatch(AttrSource(ROOT, "names"), 1)),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_dict_versions_cannot_show_is_checked_by_its_guard(name: str) -> None:
    """A guard on a value that can change without a write to a dict is left to its own test."""
    make, guard = UNCOVERED[name]
    plan, rest = collect_dependencies(ROOT, make(), [guard], ObservedWrites())
    assert rest == [guard]
    assert not plan.tensors


def test_a_recompile_names_a_module_that_is_another_one() -> None:
    """A guard below an argument that is another module says so; one on a number does not."""

    def call(layer: torch.nn.Module, x: torch.Tensor, size: int) -> Any:
        return layer(x) * size

    engine.reset()
    compiled = engine.compile(call, backend="eager", dynamic=False)
    with engine.record() as session:
        compiled(torch.nn.Linear(2, 2), torch.ones(1, 2), 2)
        compiled(torch.nn.Linear(2, 2, bias=False), torch.ones(1, 2), 2)
        compiled(torch.nn.Linear(2, 2), torch.ones(1, 2), 3)
    failures = [causing_guard_failure(session, c.id) for c in session.compilations]
    texts = [f.sentence for f in failures if f is not None]
    assert len(texts) == 2
    assert texts[0].startswith("layer is another Linear than the one before: ")
    assert "another Linear" not in texts[1]


def test_a_filter_sees_the_names_of_guarded_values() -> None:
    """A guard that reads no value, as on torch's state, has no name."""
    names: list[str] = []

    def keep_all(entries: Any) -> list[bool]:
        names.extend(e.name for e in entries)
        return [True] * len(entries)

    engine.reset()
    engine.compile(lambda x: x + 1, backend="eager", options={"guard_filter_fn": keep_all})(torch.ones(2))
    assert "" in names
    assert {n for n in names if n} == {"L['x']"}, names
