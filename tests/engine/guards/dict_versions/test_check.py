"""One-call checks of dicts, classes and attributes agree for Python and torch nodes.

Python's iterators and torch's nodes give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.guards.dict_versions import check as asked
from engine.guards.torch_c_helpers import HAS_DICT_VERSIONS, dict_version, track_attribute_writes

pytestmark = pytest.mark.skipif(not HAS_DICT_VERSIONS, reason="this torch does not tell versions of dictionaries")


class First:
    """A class."""


class Second(First):
    """Another, with the same layout."""


def sample_dicts_and_objects() -> tuple[list[dict[str, int]], list[First], Any]:
    """More of each than one node has below it, and a function."""
    return [{"a": i} for i in range(70)], [First() for _ in range(70)], lambda: 1


CHANGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "an entry": lambda dicts, objects, function: dicts[69].update(a=-1),
    "a new entry": lambda dicts, objects, function: dicts[0].update(b=1),
    "an entry removed": lambda dicts, objects, function: dicts[33].clear(),
    "a class": lambda dicts, objects, function: setattr(objects[69], "__class__", Second),
    "code": lambda dicts, objects, function: setattr(function, "__code__", (lambda: 2).__code__),
    "an attribute": lambda dicts, objects, function: setattr(function, "__defaults__", (1,)),
    "an attribute removed": lambda dicts, objects, function: delattr(function, "mark"),
}


@pytest.mark.parametrize("way", [asked.make_c_check, asked.make_python_check])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(way: Any, change: str) -> None:
    """The answer is yes as long as nothing changed, and no from the first change on."""
    dicts, objects, function = sample_dicts_and_objects()
    function.mark = dicts
    names = ("__code__", "__defaults__", "mark")
    attributes = [(function, n, getattr(function, n)) for n in names]
    ask = way(dicts, objects, [(First, "__mro__", First.__mro__), *attributes])
    assert ask()
    objects[0].__dict__["other"] = 1
    assert ask(), "what was not asked about may change"
    CHANGES[change](dicts, objects, function)
    assert not ask()
    assert not ask(), "asking does not make it forget"


def test_a_new_base_is_seen() -> None:
    """A class whose bases are replaced is another class to those who look attributes up."""
    made_one = type("MadeOne", (First,), {})
    for way in (asked.make_c_check, asked.make_python_check):
        made_one.__bases__ = (First,)
        ask = way([], [], [(made_one, "__mro__", made_one.__mro__)])
        assert ask()
        made_one.__bases__ = (Second,)
        assert not ask()


@pytest.mark.parametrize(
    "change", [lambda o: setattr(o, "a", 2), lambda o: delattr(o, "a"), lambda o: setattr(o, "b", 1)]
)
def test_attributes_move_versions(change: Callable[[Any], None]) -> None:
    """Assigning an attribute changes its object's dict version, wherever values are stored."""
    owner = First()
    owner.a = 1  # type: ignore[attr-defined]
    space = owner.__dict__
    track_attribute_writes(owner, space)
    assert owner.__dict__ is space
    before = dict_version(space)
    change(owner)
    assert dict_version(space) != before


def test_nothing_to_ask() -> None:
    """With nothing to look at the answer is yes."""
    assert asked.make_c_check([], [], [])()
    assert asked.make_python_check([], [], [])()


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch has no such nodes, Python asks."""

    def none() -> Any:
        raise AttributeError

    monkeypatch.setattr(asked, "RootGuardManager", none)
    table = {"a": 1}
    ask = asked.make_unchanged_check([table], [], [])
    assert ask()
    table["a"] = 2
    assert not ask()
