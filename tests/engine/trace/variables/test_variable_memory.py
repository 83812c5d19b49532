"""Variables are small: a class of them declares all attributes of its objects."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import engine
import engine.trace.driver  # noqa: F401 -- imports the modules of all variables
from engine.trace.variables.base import ConstantVariable, Variable


def _all_subclasses(cls: type) -> Iterator[type]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _all_subclasses(derived)


def test_no_variable_has_an_instance_dict() -> None:
    """No class of variables leaves out ``__slots__``, so that no object has a ``__dict__``."""
    found = {cls for cls in _all_subclasses(Variable) if cls.__module__.startswith("engine.")}
    assert len(found) > 100
    assert sorted(cls.__qualname__ for cls in found if cls.__dictoffset__) == []


def test_undeclared_attribute_of_a_variable_raises() -> None:
    """A misspelled attribute of a variable raises instead of being stored."""
    try:
        ConstantVariable(1).valeu = 2  # type: ignore[attr-defined]
    except AttributeError:
        return
    raise AssertionError("the attribute was stored")


def test_a_long_list_of_numbers_has_one_guard_on_its_items() -> None:
    """A sum of a long list, in a resume function too, adds no guard for each number."""

    def total(x: torch.Tensor, numbers: list[int]) -> torch.Tensor:
        later = [n + 1 for n in range(5000)]
        y = x * sum(numbers)
        engine.graph_break()
        return y + sum(numbers) + sum(later)

    numbers = list(range(5000))
    compiled = engine.compile(total, backend="eager")
    with engine.record() as session:
        assert torch.equal(compiled(torch.ones(1), numbers), total(torch.ones(1), numbers))
        numbers[3] = 7
        assert torch.equal(compiled(torch.ones(1), numbers), total(torch.ones(1), numbers))
    assert len(session.compilations) == 4
    assert all(len(c.guards.guards) < 30 for c in session.compilations if c.guards is not None)
