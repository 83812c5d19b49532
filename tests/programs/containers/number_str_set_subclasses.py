"""Exercise number, str and set subclasses: builtin and overridden operators."""

from typing import Any

import torch

from tests.programs import outcomes_of, program


class Length(int):
    """A whole number with a unit."""

    unit: str

    def __new__(cls, value: int, unit: str = "m") -> "Length":
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def __add__(self, other: int) -> "Length":
        return Length(int(self) + int(other), self.unit)

    def __repr__(self) -> str:
        return f"{int(self)} {self.unit}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Length) and int(self) == int(other)

    __hash__ = int.__hash__


class Count(int):
    """Nothing but a name."""


class Name(str):  # noqa: SLOT000 - as people write it
    """A text that knows a shout."""

    def loud(self) -> "Name":
        return type(self)(self.upper() + "!")


class Ratio(float):
    """A number with another division."""

    def __truediv__(self, other: Any) -> str:
        return f"{float(self)} over {other}"


class Tags(set[Any]):
    """Adds what it is given twice over."""

    def __init__(self, items: Any = (), owner: str = "") -> None:
        super().__init__(items)
        self.owner = owner

    def add(self, item: int) -> None:
        super().add(item * 2)


class Fixed(frozenset[Any]):
    """Knows its size."""

    def __new__(cls, items: Any = ()) -> "Fixed":
        made = super().__new__(cls, items)
        made.size = len(made)  # type: ignore[attr-defined]
        return made


class Pair(tuple[Any, ...]):  # noqa: SLOT001 - as people write it
    """Two things."""

    def __new__(cls, left: Any, right: Any) -> "Pair":
        return super().__new__(cls, (left, right))

    @property
    def left(self) -> Any:
        return self[0]


@program(lambda: (torch.arange(4.0),))
def numbers_with_methods(x: torch.Tensor) -> tuple[Any, ...]:
    """Operators that the class defines, and those it leaves to int."""
    a = Length(3, "km")
    b = a + 4
    return (
        x * a,
        b,
        repr(b),
        b.unit,
        b == Length(7),
        b == 7,
        a > 2,
        -a,
        a * 2,
        [1, 2, 3, 4][a],
        f"{a}",
        str(a),
        {a: 1}[a],
    )


@program(lambda: (torch.arange(4.0),))
def numbers_without_methods(x: torch.Tensor) -> tuple[Any, ...]:
    """They count as int everywhere, and arithmetic gives int."""
    a, b = Count(2), Count("3", 10)
    kept = max(a, b)
    sums = (a + b, type(a + b).__name__, sum([a, b]), a in (2, 3), {2: "x"}[a], [0] * a, "ab" * a, ~a, Count())
    return x + a, x[a], torch.zeros(a), x.reshape(a, 2), torch.arange(b), sums, kept is b, type(kept).__name__, kept


@program(lambda: (torch.arange(4.0),))
def texts(x: torch.Tensor) -> tuple[Any, ...]:
    """Methods of its own, and those of str."""
    name = Name("cos")
    plain = (name + "x", "x" + name, len(name), "o" in name, name == "cos", {name: 1}["cos"], name.split("o"))
    return getattr(torch, name)(x), name.loud(), type(name.loud()).__name__, plain, f"{name:>5}", "-".join([name, name])


@program(lambda: (torch.arange(4.0),))
def floats(x: torch.Tensor) -> tuple[Any, ...]:
    """A division of its own; all else is float's."""
    ratio = Ratio(2.5)
    return x * ratio, ratio / 2, ratio + 1, -ratio, int(ratio), round(ratio), ratio == 2.5, torch.full((2,), ratio)


@program(lambda: (torch.arange(4.0),))
def sets_with_methods(x: torch.Tensor) -> tuple[Any, ...]:
    """Its own add; what set operations give is a set."""
    tags = Tags([1, 2], owner="me")
    tags.add(5)
    tags |= {7}
    union = tags | {3}
    return (
        x + len(tags),
        sorted(tags),
        tags.owner,
        10 in tags,
        tags == {1, 2, 10, 7},
        type(union).__name__,
        sorted(union),
        tags,
    )


@program(lambda: (torch.arange(4.0),))
def frozen_sets(x: torch.Tensor) -> tuple[Any, ...]:
    """Made with ``__new__``, used as keys."""
    fixed = Fixed([1, 2])
    return x + fixed.size, fixed, fixed == {1, 2}, {fixed: "y"}[frozenset([1, 2])], fixed & {1}, Fixed()  # type: ignore[attr-defined]


@program(lambda: (torch.arange(4.0),))
def pairs(x: torch.Tensor) -> tuple[Any, ...]:
    """A tuple made with ``__new__``."""
    pair = Pair(1, x)
    left, right = pair
    return pair.left, right, len(pair), pair, (*pair, 3)


@program(lambda: (torch.ones(2), Length(3, "q"), Count(2), Name("ab"), Ratio(0.5), Tags([1]), Fixed([4])))
def passed_in(
    x: torch.Tensor, length: Length, count: Count, name: Name, ratio: Ratio, tags: Tags, fixed: Fixed
) -> tuple[Any, ...]:
    """From outside: read, changed, and returned as they are."""
    tags.add(3)
    tags.owner = "you"
    same = (length, count, name, ratio, tags, fixed)
    return x * length * count * ratio + len(tags) + len(fixed), length + 1, name.loud(), ratio / 2, 6 in tags, same


@program(lambda: (torch.ones(2), Count(2)), lambda: (torch.ones(2), Count(2)), lambda: (torch.ones(2), Count(3)))
def other_values(x: torch.Tensor, count: Count) -> torch.Tensor:
    """Another object with the same value is served by the same code, another value is not."""
    return x * count


class Shy(int):
    """Refuses both ways."""

    def __add__(self, other: Any) -> Any:
        return NotImplemented

    __radd__ = __lt__ = __add__


class ShyRatio(float):
    """Refuses on the left."""

    def __mul__(self, other: Any) -> Any:
        return NotImplemented


class Lone:
    """Answers on the right, which another of its class does not ask."""

    def __add__(self, other: Any) -> Any:
        return NotImplemented

    def __radd__(self, other: Any) -> Any:
        return type(other).__name__


class Heir(Lone):
    """Another class."""


@program(lambda: (torch.ones(2),))
def refused_by_both(x: torch.Tensor) -> Any:
    """``NotImplemented`` has no builtin fallback; one class twice has no reflected call."""
    shy, ratio, lone = Shy(1), ShyRatio(2.0), Lone()
    calls = (
        lambda: shy + Shy(2),
        lambda: shy + 2,
        lambda: 1 + shy,
        lambda: shy < Shy(3),
        lambda: ratio * ShyRatio(3.0),
        lambda: ratio * 3,
        lambda: 3 * ratio,
        lambda: lone + Lone(),
        lambda: lone + Heir(),
        lambda: Heir() + lone,
        lambda: 1 + lone,
    )
    return outcomes_of(*calls), x + 1


class Guarded(set):  # type: ignore[type-arg]
    """A set whose own methods and iteration say something else."""

    def clear(self) -> None:
        raise AssertionError("cleared")

    def update(self, *others: Any) -> None:
        raise AssertionError("updated")

    def __iter__(self) -> Any:
        return iter([99])


class Stubborn(list):  # type: ignore[type-arg]
    """A list whose own methods change nothing."""

    def clear(self) -> None:
        raise AssertionError("cleared")

    def extend(self, items: Any) -> None:
        super().extend(["extended"])


@program(lambda: (torch.ones(2), Guarded([1]), Stubborn([2])))
def contents_changed_by_the_builtin_class(x: torch.Tensor, numbers: Any, items: Any) -> Any:
    """Mutated contents are stored by the methods of the builtin class, not by overrides."""
    numbers.add(3)
    items.append(x + 1)
    fresh = Stubborn([4])
    fresh.append(5)
    return x * len(numbers), fresh, type(fresh.copy()), len(numbers), len(items)


@program(lambda: (torch.ones(2), Guarded([1])))
def contents_of_a_set_without_its_own_iteration(x: torch.Tensor, numbers: Any) -> Any:
    """Operations of sets read the elements of a set subclass, not its ``__iter__``."""
    made = {1, 2}
    made.update(numbers)
    return made, {1, 2}.intersection(numbers), {1, 2}.difference(numbers), {99}.issuperset(numbers), x + 1
