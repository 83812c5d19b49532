"""Exercise type errors: the operation raises Python's type and text inside the trace."""

# mypy: ignore-errors
# ruff: noqa: B015, B018, B023, E731, PLW0108, PIE804, PLC3002

import collections
import dataclasses
import functools
import operator
from typing import Any

import torch

from tests.programs import outcomes_of, program


def said(*attempts: Any) -> list[Any]:
    """What each attempt raises: the class's name and the message."""
    found: list[Any] = []
    for attempt in attempts:
        try:
            found.append(attempt())
        except Exception as error:  # noqa: BLE001 - all of them are looked at
            found.append((type(error).__name__, str(error).replace(__name__, "here")))
    return found


@program(lambda: (torch.ones(2),))
def containers(x: torch.Tensor) -> tuple[Any, ...]:
    """Indices and values that lists, tuples, dicts, sets and deques refuse."""
    items, pair, table, tags, line = [1, 2, 3], (1, 2), {"a": 1}, {1}, collections.deque([1])
    return x + 1, said(
        lambda: items[9],
        lambda: items["a"],
        lambda: items[::0],
        lambda: items.pop("a"),
        lambda: items.pop(9),
        lambda: [].pop(),
        lambda: items.insert("a", 1),
        lambda: items.remove(9),
        lambda: items.index(9),
        lambda: items.extend(3),
        lambda: items.sort(1),
        lambda: items.__setitem__(9, 1),
        lambda: items.__setitem__("a", 1),
        lambda: items.__setitem__(slice(0, 1), 3),
        lambda: items.__delitem__(9),
        lambda: items + (1,),
        lambda: items * "a",
        lambda: pair["a"],
        lambda: pair[9],
        lambda: pair.index(9),
        lambda: table["b"],
        lambda: table.update(1),
        lambda: table.update([1]),
        lambda: dict([(1, 2, 3)]),
        lambda: {}.popitem(),
        lambda: {items: 1},
        lambda: tags.remove(9),
        lambda: set().pop(),
        lambda: hash(tags),
        lambda: hash(items),
        lambda: line[9],
        lambda: collections.deque().pop(),
        lambda: collections.deque([1], maxlen=-1),
        lambda: reversed(tags),
        lambda: list(zip([1], [1, 2], strict=True)),
        lambda: items.append(),
        lambda: table.keys(1),
        lambda: table.setdefault(),
    )


class _Slotted:
    __slots__ = ("a",)

    def method(self) -> None:
        pass

    @property
    def fixed(self) -> int:
        return 1


class _Plain:
    pass


@program(lambda: (torch.ones(2),))
def objects(x: torch.Tensor) -> tuple[Any, ...]:
    """Operations that a plain class does not define."""

    a, b = _Slotted(), _Plain()
    return x + 1, said(
        lambda: a.a,
        lambda: setattr(a, "q", 1),
        lambda: setattr(a, "fixed", 1),
        lambda: delattr(a, "a"),
        lambda: delattr(a, "fixed"),
        lambda: delattr(b, "z"),
        lambda: _Plain.z,
        lambda: b.z,
        lambda: b(),
        lambda: b[0],
        lambda: operator.setitem(b, 0, 1),
        lambda: operator.delitem(b, 0),
        lambda: b + 1,
        lambda: 1 + b,
        lambda: b @ b,
        lambda: operator.iadd(b, 1),
        lambda: -b,
        lambda: abs(b),
        lambda: len(b),
        lambda: iter(b),
        lambda: next(b),
        lambda: reversed(b),
        lambda: 1 in b,
        lambda: b < b,
        lambda: int(b),
        lambda: float(b),
        lambda: range(b),
        lambda: [1][b],
        lambda: "a" * b,
        lambda: _Plain(1),
        lambda: _Plain.__init__(b, 1),
        lambda: object.__new__(_Plain, 1),
        lambda: object(1),
        lambda: setattr(b, "__class__", 3),
        lambda: getattr(b, 3),
        lambda: a.method(1),
        lambda: isinstance(b, 3),
    )


@program(lambda: (torch.ones(2),))
def calls(x: torch.Tensor) -> tuple[Any, ...]:
    """Arguments that a function does not take."""

    def mixed(a: int, b: int = 1, /, c: int = 2, *, d: int, e: int = 4) -> int:
        return a

    def three(a: int, b: int, c: int) -> None:
        pass

    def named(*, a: int, b: int) -> None:
        pass

    def none() -> None:
        pass

    return x + 1, said(
        lambda: mixed(),
        lambda: mixed(1),
        lambda: mixed(1, 2, 3, 4, d=1),
        lambda: mixed(1, a=2, d=1),
        lambda: mixed(1, d=1, z=3),
        lambda: mixed(1, 2, 3, c=1, d=2),
        lambda: mixed(1, d=2),
        lambda: three(1),
        lambda: three(1, 2, 3, 4),
        lambda: named(),
        lambda: named(1, a=1),
        lambda: none(1),
        lambda: none(*3),
        lambda: none(**3),
        lambda: none(**{1: 2}),
        lambda: three(a=1, **{"a": 2}),
        lambda: (lambda a: a)(),
        lambda: functools.partial(three, 1)(2),
        lambda: map(len),
        lambda: enumerate(),
        lambda: functools.reduce(operator.add, []),
    )


@program(lambda: (torch.ones(2),))
def statements(x: torch.Tensor) -> tuple[Any, ...]:
    """Unpacking, raising and catching what cannot be."""

    def few() -> None:
        a, b = [1]

    def many() -> None:
        a, b = [1, 2, 3]

    def starred() -> None:
        a, *b, c = [1]

    def number() -> None:
        a, b = 3

    def spread() -> list[Any]:
        return [*3]

    def raised() -> None:
        raise 3

    def caused() -> None:
        raise ValueError("a") from 3

    def caught() -> None:
        try:
            raise ValueError("a")
        except 3:
            pass

    def unbound() -> int:
        if len(x) > 5:
            value = 1
        return value

    return x + 1, said(few, many, starred, number, spread, raised, caused, caught, unbound)


@dataclasses.dataclass(frozen=True)
class _Point:
    a: int


@program(lambda: (torch.ones(2),))
def frozen_fields(x: torch.Tensor) -> tuple[Any, ...]:
    """A frozen dataclass refuses."""

    point = _Point(1)
    return x * point.a, said(lambda: setattr(point, "a", 2), lambda: _Point(), lambda: _Point(1, 2))


class _Odd:
    """Turns into numbers of other kinds."""

    def __float__(self):
        return 3

    def __int__(self):
        return 2.5

    def __complex__(self):
        return 1.5


class _Index:
    """Is an index."""

    def __index__(self):
        return 4


class _Named:
    """Has properties that lack accessors."""

    bare = property()

    @property
    def q(self):
        return 1


_Named.late = property()


class _Without:
    """Says that it cannot be iterated, nor be true or false."""

    __iter__ = __bool__ = __reversed__ = None

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 1


@program(lambda: (torch.ones(2),))
def conversions_and_accessors(x: torch.Tensor) -> tuple[Any, ...]:
    """Odd conversions, bare properties, ``None`` methods and huge ranges fail as in Python."""
    named, without = _Named(), _Without()
    return x + 1, said(
        lambda: float(_Odd()),
        lambda: int(_Odd()),
        lambda: complex(_Odd()),
        lambda: (float(_Index()), int(_Index()), complex(_Index())),
        lambda: named.bare,
        lambda: named.late,
        lambda: setattr(named, "q", 1),
        lambda: delattr(named, "q"),
        lambda: setattr(named, "late", 1),
        lambda: super(1, int),
        lambda: collections.defaultdict(1),
        lambda: len(range(1 << 70)),
        lambda: list(zip(range(1 << 70), "ab", strict=False)),
        lambda: {"a": 1} | collections.defaultdict(int, b=2),
        lambda: {}.fromkeys("ab", 1),
        lambda: iter(without),
        lambda: bool(without),
        lambda: reversed(without),
    )


@program(lambda: (torch.ones(2),))
def sorted_while_it_changes(x: torch.Tensor) -> tuple[Any, ...]:
    """A list that is changed while it is sorted, and back again, is noticed."""
    items = [3, 1, 2]

    def by(item):
        items.append(item)
        items.pop()
        return item

    return x + 1, said(lambda: items.sort(key=by)), items


@program(lambda: (torch.randn(2, 3),))
def builtins_that_tensors_refuse(x):
    """``round`` and ``divmod`` of tensors raise, in Python's words."""
    found = outcomes_of(lambda: round(x), lambda: round(x, 1), lambda: round(x[0, 0]), lambda: divmod(x, 2))
    return x + 1, found, outcomes_of(lambda: divmod(2, x), lambda: divmod(x, x))


@program(lambda: (torch.tensor([True]), [1]), lambda: (torch.tensor([2]), [1]), breaks=2)
def types_that_operators_refuse(x, noted):
    """What was noted before an operator refused the types of its operands stays noted."""
    noted.append(2)
    truths = x > 0
    try:
        truths -= truths
    except RuntimeError as error:
        noted.append(str(error))
    noted.append(3)
    truths %= truths
    return truths


@program(lambda: (torch.tensor([True]), [1]), breaks=1)
def types_refused_in_place(x, noted):
    """An argument is not written to by an operator that refuses it, and what was noted stays."""
    noted.append(2)
    x -= x
    return x


@program(lambda: (torch.ones(2),))
def caught_and_not_read(x):
    """Only the class of an error matters to a handler that does not read it."""
    y = x + 1
    for wrong in (lambda: len(3), lambda: divmod(), lambda: [] in 3, lambda: {[]: 1}):
        try:
            wrong()
        except TypeError:
            y = y * 2
    return y


@program(lambda: (torch.ones(2),), breaks=1)
def text_that_python_words(x):
    """Python raises an error whose text is read, and its text, name and object are Python's."""

    def doubled(of):
        return of * 2

    y = x + 1
    try:
        doubled(y, y)
    except TypeError as error:
        return y, str(error), error.args
    return x
