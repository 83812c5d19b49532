"""Exercise dict subclasses: overridden methods, result types, keys moved in iteration."""

import collections
import copy
from typing import Any

import torch

from tests.programs import outcomes_of, program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


class Recent(collections.OrderedDict[str, Any]):
    """Keeps what was set last at its end."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)


class Told(collections.OrderedDict[Any, Any]):
    """Notes what is asked of it."""

    log: list[Any] = []  # noqa: RUF012 - one for all

    def __getitem__(self, key: Any) -> Any:
        self.log.append(("get", key))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.log.append(("set", key))
        super().__setitem__(key, value)

    def __contains__(self, key: Any) -> bool:
        self.log.append(("in", key))
        return super().__contains__(key)

    def items(self) -> Any:
        self.log.append("items")
        return super().items()

    def keys(self) -> Any:
        self.log.append("keys")
        return super().keys()


class ToldDict(dict[Any, Any]):
    """The same over ``dict``, whose own methods ask none of these."""

    log: list[Any] = []  # noqa: RUF012

    def __setitem__(self, key: Any, value: Any) -> None:
        self.log.append(("set", key))
        super().__setitem__(key, value)

    def keys(self) -> Any:
        self.log.append("keys")
        return super().keys()


class Plain(collections.OrderedDict[Any, Any]):
    """Nothing but a name."""


@program(ones)
def recent(x: torch.Tensor) -> Any:
    """The constructor, ``update``, ``setdefault`` and ``|=`` call an own ``__setitem__``."""
    kept = Recent([("a", 1), ("b", x)], c=4)
    kept["a"] = 2
    kept.update(b=3)
    kept.setdefault("z", x + 1)
    kept |= {"c": 5}
    return list(kept.items()), x * 2


@program(ones)
def what_is_asked(x: torch.Tensor) -> Any:
    """Which of a subclass's methods the inherited ones run, in order."""
    out: list[Any] = []
    for cls in (Told, ToldDict):
        cls.log = []
        of = cls([("a", 1), ("b", 2)], c=3)
        for run in (
            lambda of: of.setdefault("a", 1),
            lambda of: of.setdefault("q", 1),
            lambda of: of.pop("a"),
            lambda of: of.popitem(),
            lambda of: of.update(x=1),
            lambda of: of.copy(),
            lambda of: of | {"k": 1},
            lambda of: {"k": 1} | of,
            lambda of: of == {"x": 1},
            lambda of: type(of).fromkeys("ab"),
            repr,
            copy.copy,
        ):
            before = len(cls.log)
            found = run(of)
            shown = len(found) if isinstance(found, dict) else found
            out.append((type(found).__name__, shown, cls.log[before:]))
    return out, x + 1


@program(ones)
def order_counts(x: torch.Tensor) -> Any:
    """Equality of ordered dicts depends on order; merges and copies have the builtin's type."""
    out: list[Any] = []
    for cls in (collections.OrderedDict, Plain):
        a, b = cls([("a", x), ("b", 1)]), cls([("b", 1), ("a", x)])
        out += [a == b, a != b, a == dict(b), dict(b) == a, collections.OrderedDict(a) == Plain(b)]
        out += [type(a | b).__name__, type(dict(a) | b).__name__, type(a | dict(b)).__name__, list(b | a)]
        out += outcomes_of(lambda a=a: a | None, lambda a=a: a.__ror__({"q": 1}), lambda a=a: a.__or__(3))  # type: ignore[misc]
        out += [type(a.copy()).__name__, a.__reduce__()[2]]
        a.x = x
        out += [list(a.__dict__), copy.copy(a).x]
    return out, x + 1


@program(ones)
def refusals(x: torch.Tensor) -> Any:
    """What the methods of dicts say to arguments that they do not take."""
    out: list[Any] = []
    for cls in (collections.OrderedDict, Plain, dict):
        of: Any = cls()
        out += outcomes_of(
            lambda of=of: of.update([("a", 1)], None),
            lambda of=of: of.update(42),
            lambda cls=cls: cls.update(),
            lambda of=of: of.popitem(),
            lambda of=of: of.pop("x"),
            lambda of=of: of.pop(),
            lambda of=of: of.setdefault("g", default=9),
            lambda of=of: of[[]],
            lambda of=of: hash(of),
            lambda of=of: of.nothing,
            lambda of=of: of < of,
            lambda cls=cls: cls([1, 2], None),
            lambda cls=cls: cls.get(3, 4),
        )
    return out, x + 1


@program(ones)
def moved(x: torch.Tensor) -> Any:
    """``move_to_end`` and ``popitem`` of an ordered dict, by place and by name."""
    out: list[Any] = []
    for cls in (collections.OrderedDict, Plain):
        of = cls.fromkeys("abcde")
        out += outcomes_of(
            lambda of=of: of.move_to_end("x"),
            lambda of=of: of.move_to_end("c", last=False),
            lambda of=of: of.move_to_end(key="b"),
            lambda of=of: of.popitem(False),
            lambda of=of: of.popitem(last=True),
            lambda of=of: list(of),
        )
    return out, x + 1


@program(ones, breaks=3, steady=False)
def keys_that_change(x: torch.Tensor) -> Any:
    """Keys that are added, taken out or moved while a dict is iterated."""

    def again(of: Any) -> Any:
        for key in of:
            del of[key]
            of[key] = 0
        return "end"

    def replaced(of: Any) -> Any:
        seen = []
        for key, value in of.items():
            seen.append((key, value))
            if len(seen) == 1:
                del of["b"]
                of["z"] = 9
        return seen

    def turned(of: Any) -> Any:
        for n, key in enumerate(of):
            of.move_to_end(key)
            if n > 5:
                return "no end"
        return "end"

    out: list[Any] = []
    for cls in (dict, collections.OrderedDict, Plain):
        out += outcomes_of(lambda cls=cls: again(cls(a=1)), lambda cls=cls: replaced(cls(a=1, b=2, c=3)))
        out += outcomes_of(lambda cls=cls: turned(cls.fromkeys("abc")) if cls is not dict else None)
    return out, x + 1


@program(ones)
def shown_inside(x: torch.Tensor) -> Any:
    """The text of dicts that hold themselves, or a view of themselves."""
    out: list[Any] = []
    for cls in (collections.OrderedDict, Plain, dict):
        of: Any = cls.fromkeys("ab")
        of["x"] = of
        out.append(repr(of))
        of = cls()
        of[1] = of.values()
        out.append(repr(of))
    numbers: list[Any] = []
    pair = (numbers,)
    numbers += [pair, numbers]
    return out, repr(numbers), repr(pair), x + 1


FIRST, SECOND = torch.zeros(3), torch.ones(3)
WEIGHTS = collections.OrderedDict([(FIRST, torch.full((3,), 3.0)), (SECOND, torch.full((3,), 5.0))])
WEIGHTS.move_to_end(FIRST)


@program(ones)
def values_by_tensor(x: torch.Tensor) -> Any:
    """The values of an ordered dict by tensors, of which one was moved to the end."""
    return [x * weight for weight in WEIGHTS.values()], x + WEIGHTS[FIRST]
