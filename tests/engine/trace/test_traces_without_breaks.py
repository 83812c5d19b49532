"""Tests of Python programs that trace into one graph without a break.

Their results cannot be told from those of plain Python.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import engine
from tests.engine.trace.harness import compare_with_eager

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5
Pair = collections.namedtuple("Pair", "u v")
LOG: list[int] = []
COUNT = 0


@dataclasses.dataclass
class Point:
    a: Any
    b: int = 3

    def total(self) -> Any:
        return self.a * self.b


class Own:
    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, new: Any) -> None:
        self._value = new

    @classmethod
    def make(cls, value: Any) -> Own:
        return cls(value)

    @staticmethod
    def plus_one(n: int) -> int:
        return n + 1

    def __add__(self, other: Any) -> Own:
        return Own(self._value + other)

    def __getitem__(self, n: int) -> Any:
        return self._value * n

    def __len__(self) -> int:
        return 3

    def __call__(self, z: Any) -> Any:
        return z + self._value

    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])

    def __contains__(self, n: int) -> bool:
        return n == 1


class Derived(Own):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.extra = 1

    def __getattr__(self, name: str) -> int:
        if name.startswith("z"):
            return 7
        raise AttributeError(name)


@contextlib.contextmanager
def offset(n: int) -> Iterator[int]:
    yield n + 1


def arithmetic(x: Any) -> Any:
    return (x * 2 + x).relu().sum(-1), x.T, x.shape, x.dtype, -x, x[:, 1:], x[..., None], math.sqrt(x.size(1))


def torch_results(x: Any) -> Any:
    best, where = torch.max(x, dim=1)
    return (
        best,
        where,
        x.topk(2).values,
        torch.cat([x, x]),
        x.split(2, 1),
        F.softmax(x, -1),
        torch.arange(4),
        torch.rand(3),
    )


def containers(x: Any) -> Any:
    items = [x]
    alias = items
    alias.append(x + 1)
    table = {"a": items, "b": 2}
    table["c"] = x
    first, *rest = (1, 2, 3)
    return (
        items,
        table,
        dict.fromkeys(table, 1),
        {1, 2},
        first,
        rest,
        items is table["a"],
        sorted([3, 1, 2], reverse=True),
    )


def closures(x: Any) -> Any:
    k = 2

    def grow(y: Any, n: int = 1, *more: int, scale: int = 1, **named: int) -> Any:
        nonlocal k
        k += n + sum(more) + len(named)
        return y * k * scale

    return grow(x), grow(x, 2, 3, scale=2, z=1), k, [grow(x) for _ in range(2)], (lambda z: z + k)(x)


def exceptions(x: Any) -> Any:
    try:
        {}["missing"]
    except KeyError as error:
        x = x + len(error.args)
    else:
        x = x * 100
    finally:
        x = x * 2
    with contextlib.suppress(ValueError):
        int("no number")
    return x


def generators(x: Any) -> Any:
    def count(n: int) -> Iterator[Any]:
        for i in range(n):
            yield x * i

    def both() -> Iterator[Any]:
        yield from count(2)
        yield x

    return sum(count(3)), list(both()), any(i > 1 for i in range(3)), next(iter([5]))


def objects(x: Any) -> Any:
    own = Own.make(x)
    own.value = own.value * 2
    point = Point(x)
    point.b = 5
    derived = Derived(x)
    pair = Pair(x, 2)
    return (
        (own + 1).value, own[2], len(own), own(x), list(own), 1 in own, Own.plus_one(3), derived.zz, hasattr(derived, "nope"),
        getattr(derived, "b", 4), isinstance(derived, Own), point.total(), point, pair.u * pair.v, pair._replace(v=3),
    )  # fmt: skip


def text(x: Any) -> Any:
    return f"{x.shape[0]}-{x.dtype}-{'a'.upper():>3}", ",".join(str(i) for i in range(3)), "%s" % 1, repr((1, "a"))


def library(x: Any) -> Any:
    add = functools.partial(operator.add, 1)
    return (
        add(2), functools.reduce(operator.mul, [1, 2, 3]), list(itertools.chain([1], [2])), list(itertools.product([1, 2], [3])),
        [*zip([1, 2], [3, 4], strict=True)], list(enumerate([5])), list(map(lambda v: v * x, [1])), min(3, 1), max([1, 2]),
        collections.OrderedDict(a=1), collections.Counter, list(reversed([1, 2])), operator.itemgetter(1)([4, 5]), x,
    )  # fmt: skip


def control(x: Any) -> Any:
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
        x = x + n
    for i in range(5):
        if i == 3:
            break
    else:
        x = x * 100
    match (1, x):
        case (1, y):
            x = y + 1
        case _:
            x = x - 1
    assert x.shape == (3, 4), "no"
    return x if (m := x.shape[0]) > 2 else m, 0 < n < 5


def contexts(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
    with offset(2) as n:
        y = y * n
    return y, torch.is_grad_enabled(), torch.compiler.is_compiling() or True


def changes_arguments(x: Any, items: list[Any], table: dict[str, Any]) -> Any:
    global COUNT
    COUNT = x.shape[0]
    LOG.append(1)
    items.append(x)
    items[0], items[1] = items[1], items[0]
    table["new"] = items
    x.add_(1)
    view = x.view(-1)
    view.mul_(2)
    return x, view, items, len(LOG) > 0, COUNT


PROGRAMS: list[Callable[..., Any]] = [
    arithmetic, torch_results, containers, closures, exceptions, generators, objects, text, library, control, contexts,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_traces_whole(program: Callable[..., Any]) -> None:
    """No break, one frame, results as Python's."""
    traced = compare_with_eager(program, X)
    assert traced.breaks == []
    assert len(traced.frames) == 1


def test_changes_are_replayed() -> None:
    """Arguments and globals are as Python would leave them, aliases included."""
    assert compare_with_eager(changes_arguments, X.clone(), [1, 2], {"a": 1}).breaks == []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.net(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.named = nn.ModuleDict({"act": nn.ReLU()})
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        for n, block in enumerate(self.blocks):
            x = block(x) + n
        for _, act in self.named.items():
            x = act(x)
        self.calls += 1
        self.seen = self.seen + 1
        return self.norm(x), self.calls, self.seen


def test_modules_are_looked_into() -> None:
    """Submodules, buffers and module attributes trace into one graph; mutations persist.

    The mutations are applied to the module.
    """
    traced = compare_with_eager(Net(), X)
    assert traced.breaks == []
    graph = traced.frames[0].graph
    assert graph is not None
    kinds = {getattr(n.target, "__name__", "") for n in graph.graph.graph.nodes}
    assert {"linear", "layer_norm", "gelu", "batch_norm"} <= kinds


def test_nodes_say_where_they_came_from() -> None:
    """Each node has the user's sub-expression and the path of its module."""
    from engine.ir.node_metadata import provenance_of

    traced = compare_with_eager(Net(), X)
    assert traced.frames[0].graph is not None
    linear = next(n for n in traced.frames[0].graph.graph.graph.nodes if getattr(n.target, "__name__", "") == "linear")
    origin = provenance_of(linear)
    assert origin.module == "blocks.0.net.0"
    assert len(origin.stack) > 2
    assert origin.stack[0].file == __file__
    assert linear.meta["example_value"].shape == (3, 8)


def test_a_wrapped_forward_has_the_same_module_paths() -> None:
    """A decorator that takes ``*args`` adds nothing to the paths below its module."""

    def wrapped(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            return function(*args, **kwargs)

        return call

    class Wrapped(Net):
        forward = wrapped(Net.forward)

    with engine.record() as session:
        engine.compile(Wrapped(), backend="eager")(X)
    paths = {n.module for n in session.compilations[0].graphs[0].nodes}
    assert "blocks.0.net.0" in paths


def test_what_is_not_looked_at_is_not_guarded() -> None:
    """Lazily wrapped arguments that the code only passes on leave no guard."""

    def passes_on(x: Any, other: Any) -> Any:
        return x + 1, other

    traced = compare_with_eager(passes_on, X, {"never": "read"})
    assert all("other" not in g.source.expr for g in traced.frames[0].guards)


def test_one_tensor_in_two_places_is_one_input() -> None:
    """A tensor that enters twice is one placeholder, guarded to be the same object."""
    from engine.ir.guards.aliasing import SameObject

    def twice(x: Any, y: Any) -> Any:
        return x * y

    from tests.engine.trace.harness import Traced

    traced = Traced(twice)
    assert torch.equal(traced(X, X), X * X)
    frame = traced.frames[0]
    assert frame.graph is not None
    assert len(frame.graph.inputs) == 1
    assert any(isinstance(g, SameObject) and g.expect_same for g in frame.guards)


def test_rows_that_repeat_otherwise_in_each_call_need_one_recompile() -> None:
    """Once other names share a tensor, each is an input, and no guard compares them."""
    engine.reset()
    rows = [torch.arange(3.0) + n for n in range(4)]

    def batch_sum(batch: Any, weight: Any) -> Any:
        weight.grad = None
        return torch.stack(batch).sum(0) * batch[0]

    compiled, weight = engine.compile(batch_sum, backend="aot_eager"), torch.nn.Parameter(torch.ones(1))
    with engine.record() as session:
        for chosen in ((0, 0, 1), (1, 2, 1), (3, 3, 3), (0, 1, 2), (2, 0, 0)):
            batch = [rows[n] for n in chosen]
            assert torch.equal(compiled(batch, weight), batch_sum(batch, weight))
    assert len(session.compilations) == 2


def _next_three(iterator: Iterator[Any]) -> list[Any]:
    return [next(iterator) for _ in range(3)]


@pytest.mark.parametrize(
    "steps",
    [
        lambda: list(itertools.permutations(iterable=[1, 2])),
        lambda: [(key, len(list(group))) for key, group in itertools.groupby("aab", key=str.upper)],
        lambda: _next_three(itertools.cycle("ab")),
        lambda: _next_three(enumerate(itertools.accumulate([1, 2, 3], initial=4), start=2)),
        lambda: list(zip([1], [1, 2], strict=True)),
        lambda: itertools.islice([1], -1),
        lambda: itertools.tee([1], -1),
        lambda: itertools.chain(iterable=[]),
        lambda: list(itertools.starmap(operator.add, [(1, 2)])),
    ],
)
def test_iterators_take_arguments_and_raise_as_in_python(steps: Any) -> None:
    """Items, keyword arguments and errors of C iterators are Python's, without a break."""

    def run(x: Any) -> Any:
        try:
            return x + 1, steps()
        except (TypeError, ValueError) as error:
            return x + 1, str(error)

    assert not compare_with_eager(run, X).breaks
