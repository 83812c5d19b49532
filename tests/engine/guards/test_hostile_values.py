"""Compiled calls match plain calls for hostile arguments and environments.

Explaining a call never raises.
"""

from __future__ import annotations

import collections
import gc
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

import engine


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    engine.reset()
    yield
    engine.reset()


def outcome(function: Any, *args: Any) -> tuple[str, Any]:
    """What a call gives, or the type and text of what it raises."""
    try:
        found = function(*args)
    except Exception as error:
        return type(error).__name__, str(error)
    return "value", found.tolist() if isinstance(found, torch.Tensor) else found


def same(function: Any, *calls: tuple[Any, ...]) -> None:
    """Each call gives the same compiled as plain, and can be explained before and after."""
    compiled = engine.compile(function, backend="eager")
    for call in calls:
        engine.explain_call(compiled, *call)
        plain, found = outcome(function, *call), outcome(compiled, *call)
        assert repr(found) == repr(plain)
        told = engine.explain_call(compiled, *call)
        assert set(told.results) == set(told.entries)


X = torch.arange(3.0)


class Raises:
    """Every comparison, length and truth of it raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparing")

    __hash__ = object.__hash__

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class LyingObject:
    """Equals everything, has every attribute, is empty and full."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return len(name)


def takes_anything(x: Any, thing: Any) -> Any:
    if isinstance(thing, (int, float)):
        return x * thing
    if isinstance(thing, str):
        return x + len(thing)
    return x - 1


def test_objects_that_raise_or_lie_are_told_apart() -> None:
    """An object that says it equals everything hits no entry that was made for another value."""
    same(
        takes_anything,
        (X, 2),
        (X, LyingObject()),
        (X, Raises()),
        (X, "ab"),
        (X, LyingObject()),
        (X, 3),
        (X, Raises()),
        (X, None),
    )


def reads(x: Any, thing: Any) -> Any:
    return x * thing.size


def test_attributes_that_are_computed() -> None:
    """Compiled calls run ``__getattr__`` as plain Python does when it changes or raises.

    This includes a ``__getattr__`` that returns a value, one that returns another value each time, and one
    that raises.
    """

    class Changes:
        def __init__(self) -> None:
            self.__dict__["asked"] = 0

        def __getattr__(self, name: str) -> int:
            if name != "size":
                raise AttributeError(name)
            self.__dict__["asked"] += 1
            return int(self.__dict__["asked"])

    plain, mine = Changes(), Changes()
    compiled = engine.compile(reads, backend="eager")
    for _ in range(4):
        assert torch.equal(compiled(X, mine), reads(X, plain))
    same(reads, (X, LyingObject()), (X, Raises()), (X, Sized(3)), (X, object()))


class Sized(NamedTuple):
    """A tuple with a field of that name."""

    size: int


class Listed(list[Any]):
    """Lies about its length and items."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: Any) -> Any:
        return 5

    def __iter__(self) -> Any:
        return iter((1, 2))


class Keyed(dict[str, Any]):
    """Has an entry for every key."""

    def __missing__(self, key: str) -> int:
        return len(key)


def test_subclasses_of_containers() -> None:
    """Overridden lengths, items and missing keys of container subclasses act as in Python.

    This holds before and after calls with the plain container.
    """

    def first(x: Any, items: Any) -> Any:
        return x * items[0] + len(items) + sum(items)

    def keyed(x: Any, table: Any) -> Any:
        return x * table["ab"]

    same(first, (X, [2, 3]), (X, Listed((2, 3))), (X, [2, 3]), (X, Listed((4,))), (X, (2, 3)))
    same(keyed, (X, {"ab": 3}), (X, Keyed()), (X, Keyed(ab=4)), (X, {}), (X, collections.OrderedDict(ab=3)))
    same(keyed, (X, collections.defaultdict(lambda: 9)), (X, collections.defaultdict(lambda: 9, ab=1)))


@pytest.mark.parametrize("where", ["argument", "default", "closure", "attribute", "tuple"])
def test_nan_is_one_constant(where: str) -> None:
    """NaN equals itself in guards from any source, so calls do not recompile repeatedly."""
    nan = math.nan

    class Box:
        value = float("nan")

    box = Box()

    def argument(x: Any, n: float) -> Any:
        return x * n

    def default(x: Any, n: float = float("nan")) -> Any:
        return x * n

    def closure(x: Any) -> Any:
        return x * nan

    def attribute(x: Any) -> Any:
        return x * box.value

    def pair(x: Any, n: Any) -> Any:
        return x * n[0]

    calls: dict[str, tuple[Any, Any]] = {
        "argument": (argument, lambda: (float("nan"),)),
        "default": (default, tuple),
        "closure": (closure, tuple),
        "attribute": (attribute, tuple),
        "tuple": (pair, lambda: ((float("nan"), 1),)),
    }
    function, more = calls[where]
    compiled = engine.compile(function, backend="eager")
    with engine.record() as session:
        for _ in range(4):
            assert compiled(X, *more()).isnan().all()
    assert len(session.compilations) == 1


def test_signed_zeros_are_two_constants() -> None:
    """0.0 and -0.0 compare equal and are not the same program."""
    same(
        lambda x, n: x.sign() / (n + 0 * x.sum()) if n == 0 else x * n,
        (X, 0.0),
        (X, -0.0),
        (X, 0),
        (X, False),
        (X, 0.0),
    )


def test_guarded_objects_that_are_deleted() -> None:
    """Missing objects, attributes and globals raise Python's error; restoring them hits.

    The call hits the earlier cache entry once they exist again.
    """

    class Holder:
        def __init__(self) -> None:
            self.scale = 2
            self.inner = torch.nn.Linear(3, 3)

    holder = Holder()

    def function(x: Any) -> Any:
        return holder.inner(x) * holder.scale

    compiled = engine.compile(function, backend="eager")
    expected = function(X)
    assert torch.equal(compiled(X), expected)
    inner = holder.inner
    del holder.inner
    engine.explain_call(compiled, X)
    assert outcome(compiled, X) == outcome(function, X)
    holder.inner = inner
    assert torch.equal(compiled(X), expected)


@pytest.mark.thorough
def test_an_argument_is_freed_with_its_last_name() -> None:
    """Entries made for an object do not keep it."""

    class Holder:
        scale = 2

    def function(x: Any, holder: Any) -> Any:
        return x * holder.scale

    holder = Holder()
    compiled = engine.compile(function, backend="eager")
    assert torch.equal(compiled(X, holder), X * 2)
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None


def test_calls_while_an_entry_is_added() -> None:
    """Threads that call with varied argument types while others compile get right results."""

    def function(x: Any, kind: str, n: int) -> Any:
        return (x * n, x + n, x - n)[("mul", "add", "sub").index(kind)]

    compiled = engine.compile(function, backend="eager")
    wrong: list[str] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        start.wait()
        for turn in range(30):
            kind = ("mul", "add", "sub")[(seed + turn) % 3]
            x = torch.full((2 + (seed * turn) % 4,), 1.5)
            if not torch.equal(compiled(x, kind, turn % 3 + 2), function(x, kind, turn % 3 + 2)):
                wrong.append(kind)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_class_that_changes_its_mind() -> None:
    """An instance that is given another class, and a class that is given a property, are seen."""

    class First:
        def scale(self) -> int:
            return 2

    class Second:
        def scale(self) -> int:
            return 3

    thing: Any = First()

    def function(x: Any, thing: Any) -> Any:
        return x * thing.scale()

    compiled = engine.compile(function, backend="eager")
    assert torch.equal(compiled(X, thing), X * 2)
    thing.__class__ = Second
    assert torch.equal(compiled(X, thing), X * 3)
    thing.scale = lambda: 4
    assert torch.equal(compiled(X, thing), X * 4)
    del thing.scale
    Second.scale = lambda self: 5  # type: ignore[method-assign]
    assert torch.equal(compiled(X, thing), X * 5)


@pytest.mark.parametrize("name", ["sqrt", "a b", "class", "x'y\"<script>", "1"])
def test_replaced_library_functions_of_any_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced or deleted function of a module is noticed under any name."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(math, name)(4.0)

    monkeypatch.setitem(vars(math), name, math.fabs)
    compiled, x = engine.compile(scale, backend="eager"), torch.ones(2)
    with engine.record() as session:
        assert outcome(compiled, x) == outcome(scale, x)
    assert [g.kind for g in session.compilations[0].guards.guards].count("library functions") == 1
    monkeypatch.setitem(vars(math), name, lambda number: number + 3)
    assert outcome(compiled, x) == outcome(scale, x) == ("value", [7.0, 7.0])
    monkeypatch.delitem(vars(math), name)
    assert outcome(compiled, x) == outcome(scale, x)


@pytest.mark.parametrize(
    ("cls", "owner"),
    [
        (torch.nn.Linear, torch.nn.Module),
        (torch.optim.SGD, torch.optim.Optimizer),
        (torch.nn.Parameter, torch.Tensor),
        (collections.Counter, collections.Counter),
    ],
)
def test_class_attributes_of_libraries_that_change(cls: Any, owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute of a library's class that is set, hidden or deleted is noticed."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * cls.scale_by * (2 if hasattr(cls, "doubles") else 1) * getattr(cls, "factor", 1.0)

    compiled, x = engine.compile(scale, backend="eager"), torch.ones(2)
    monkeypatch.setattr(owner, "scale_by", 2.0, raising=False)
    assert outcome(compiled, x) == ("value", [2.0, 2.0])
    for target, name, value in [
        (cls, "scale_by", 3.0),
        (owner, "doubles", None),
        (owner, "factor", 5.0),
        (cls, "factor", 7.0),
    ]:
        monkeypatch.setattr(target, name, value, raising=False)
        assert outcome(compiled, x) == outcome(scale, x)
    assert compiled(x).tolist() == [42.0, 42.0]
    monkeypatch.undo()
    assert outcome(compiled, x) == outcome(scale, x)
    assert outcome(compiled, x)[0] == "AttributeError"
