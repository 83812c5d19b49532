"""Tensor subclasses enter the functional graph as inner tensors and return as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.torch_internals import TwoTensor


def two(*shape: int) -> TwoTensor:
    return TwoTensor(torch.randn(*shape), torch.randn(*shape))


def copied(value: Any, known: dict[int, Any]) -> Any:
    """A copy that shares what the original shares."""
    if id(value) not in known:
        if isinstance(value, TwoTensor):
            known[id(value)] = TwoTensor(copied(value.a, known), copied(value.b, known))
        else:
            known[id(value)] = value.clone() if isinstance(value, torch.Tensor) else value
    return known[id(value)]


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, TwoTensor):
        return one._version == other._version and same(one.a, other.a) and same(one.b, other.b)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def arithmetic(x: Any, y: Any) -> Any:
    return x * 2 + y, x.sum(), (x @ y.t()).relu()


def written(x: Any, y: Any) -> Any:
    x.add_(1)
    z = x * y
    x.mul_(z)
    return x, z


def nested(x: Any, y: Any) -> Any:
    x.sin_()
    return x.exp() + y, y


def viewed(x: Any, y: Any) -> Any:
    return x.t(), x + y


CASES = [
    (arithmetic, lambda: (two(2, 3), two(2, 3)), "inference"),
    (arithmetic, lambda: (two(2, 3), torch.randn(2, 3)), "inference"),
    (written, lambda: (two(2, 3), torch.randn(2, 3)), "inference"),
    (nested, lambda: (TwoTensor(two(3), two(3)), two(3)), "inference"),
    (viewed, lambda: (two(2, 3), two(2, 3)), "eager"),
]


@pytest.mark.parametrize(("fn", "make", "mode"), CASES)
def test_subclasses(fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]], mode: str) -> None:
    """Results, writes and version counters are eager's, in both of two calls."""
    engine.reset()
    known: dict[int, Any] = {}
    ours = make()
    theirs = tuple(copied(v, known) for v in ours)
    with engine.record() as session:
        run = engine.compile(fn, backend="aot_eager")
        for _ in range(2):
            results, expected = run(*ours), fn(*theirs)
            assert all(same(r, e) for r, e in zip((*results, *ours), (*expected, *theirs), strict=True))
    (compilation,) = session.compilations
    assert compilation.aot is not None
    assert compilation.aot.mode == mode, compilation.aot.note


def test_parts_that_are_one_tensor() -> None:
    """Subclasses that share an inner tensor see each other's writes.

    Covers one subclass that holds a tensor twice, and two subclasses around one tensor.
    """
    inner = torch.randn(3)

    def fn(x: Any, y: Any) -> Any:
        x.add_(1)
        return x + y

    def call(run: Callable[..., Any], t: torch.Tensor) -> Any:
        return run(TwoTensor(t, t), TwoTensor(t, torch.ones(3))), t

    engine.reset()
    one, written = call(engine.compile(fn, backend="aot_eager"), inner.clone())
    other, expected = call(fn, inner.clone())
    assert torch.equal(written, expected)
    assert same(one, other)


def test_a_part_that_comes_to_be_shared_is_compiled_again() -> None:
    """Code made for parts of their own does not serve parts that are shared."""

    def fn(x: Any, y: Any) -> Any:
        x.add_(1)
        return x + y

    engine.reset()
    run = engine.compile(fn, backend="aot_eager")
    run(two(3), two(3))
    t, u = torch.ones(3), torch.ones(3)
    ours = run(TwoTensor(t, torch.ones(3)), TwoTensor(t, torch.ones(3)))
    theirs = fn(TwoTensor(u, torch.ones(3)), TwoTensor(u, torch.ones(3)))
    assert same(ours, theirs)


def test_a_subclass_of_another_context_is_compiled_again() -> None:
    """What a subclass holds beside its tensors is guarded."""

    class Scaled(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: torch.Tensor, scale: int) -> Any:
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
            made.inner, made.scale = inner, scale
            return made

        def __tensor_flatten__(self) -> Any:
            return ["inner"], self.scale

        @staticmethod
        def __tensor_unflatten__(parts: Any, scale: int, size: Any, stride: Any) -> Any:
            return Scaled(parts["inner"], scale)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*(a.inner * a.scale if isinstance(a, Scaled) else a for a in args), **(kwargs or {}))

    engine.reset()
    run = engine.compile(lambda x: x + 1, backend="aot_eager")
    t = torch.ones(2)
    assert [run(Scaled(t, s)).tolist() for s in (2, 2, 5)] == [[3, 3], [3, 3], [6, 6]]


def test_writes_are_counted_as_autograd_counts_them() -> None:
    """Version counters of subclasses match eager.

    The subclass counts each write through any of its views; its inner tensors count none. A result that is
    mutated counts, too.
    """

    def fn(x: Any, y: Any) -> Any:
        x.fill_(2)
        y.mul_(x.t())
        made = x + 1
        made.sin_()
        return made

    def versions(run: Callable[..., Any]) -> list[int]:
        whole = two(3, 2)
        parts = whole.a, whole.b
        made = run(whole, whole.t())
        return [t._version for t in (whole, *parts, made, made.a)]

    assert versions(fn) == versions(engine.compile(fn, backend="aot_eager")) == [2, 0, 0, 1, 0]


def test_one_guard_keeps_all_written_parts_apart() -> None:
    """One check replaces a guard for each written part; shared parts still recompile."""
    engine.reset()

    def step(tensors: list[Any]) -> None:
        for x in tensors:
            x.add_(1)

    compiled = engine.compile(step, backend="aot_eager")
    with engine.record() as session:
        compiled([two(3) for _ in range(4)])
    guards = [g for c in session.compilations for g in c.guards.guards if g.kind == "no overlap"]
    assert len(guards) <= 2  # the tracer's for the outer tensors, and this one
    shared = torch.zeros(3)
    parts = [TwoTensor(shared, torch.zeros(3)), TwoTensor(torch.zeros(3), shared)]
    tensors = [*parts, two(3), two(3)]
    compiled(tensors)
    assert shared.tolist() == [2.0, 2.0, 2.0]
