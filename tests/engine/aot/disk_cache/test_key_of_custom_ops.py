"""The disk cache tells custom operators apart by their code and handles unbacked symbols."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import custom_op

import engine

SCALE = 2.0
SEEN: list[int] = []


pytestmark = pytest.mark.usefixtures("disk_cache")


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=torch.float64)


def _scaled(ctx: Any, g: torch.Tensor) -> torch.Tensor:
    return g * SCALE


def _own(
    kernel: Callable[..., Any], fake: Callable[..., Any] | None, backward: Callable[..., Any] | None = None
) -> Any:
    """An operator of this name, whose definition is new at each call."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = kernel(x)
        return found

    made = custom_op("kept_somewhere::twice", twice, mutates_args=())
    if fake is not None:
        made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward)
    return made


def _told(fn: Callable[..., Any], *args: Any, backend: str = "aot_eager") -> tuple[str, Any]:
    """What the record says about the cache, and what the call gave."""
    engine.reset()
    with engine.record() as session:
        found = engine.compile(fn, backend=backend)(*args)
    (note,) = (c.aot.cache for c in session.compilations if c.aot is not None)
    return note, found


def _calls(operator: Any, *, needs: bool = False, backend: str = "aot_eager") -> tuple[str, torch.Tensor, Any]:
    def through(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = operator(x)
        return found + 1

    x = torch.arange(4.0).requires_grad_(needs)
    note, found = _told(through, x, backend=backend)
    if needs:
        found.sum().backward()
    return note, found.detach(), x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_an_equal_definition_is_read(backend: str) -> None:
    """An equal redefinition of an operator hits the cache and runs the new kernel.

    The redefinition is one that another process would make. This holds in training, too.
    """
    for factor, expected in ((2, "saved to disk"), (3, "loaded from disk")):
        note, found, grad = _calls(_own(lambda x, k=factor: x * k, _doubled, _scaled), needs=True, backend=backend)
        assert note == expected
        assert found.tolist() == [1 + factor * n for n in range(4)]
        assert grad.tolist() == [2.0] * 4


def test_what_the_code_reads_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changing the fake, the backward or a value that it reads changes the cache key.

    Such a value is a global or a closure cell that the backward reads.
    """

    def by(factor: float) -> Any:
        return lambda ctx, g: g * factor

    assert _calls(_own(torch.sin, _doubled, by(2.0)), needs=True)[0] == "saved to disk"
    note, _, grad = _calls(_own(torch.sin, _doubled, by(5.0)), needs=True)
    assert (note, grad.tolist()) == ("saved to disk", [5.0] * 4)
    assert _calls(_own(torch.sin, _doubled, _scaled), needs=True)[0] == "saved to disk"
    monkeypatch.setitem(_scaled.__globals__, "SCALE", 7.0)
    note, _, grad = _calls(_own(torch.sin, _doubled, _scaled), needs=True)
    assert (note, grad.tolist()) == ("saved to disk", [7.0] * 4)
    note, found, _ = _calls(_own(lambda x: x.double(), _wide))
    assert (note, found.dtype) == ("saved to disk", torch.float64)


def _random(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape, dtype=random.choice([torch.float32]))


def _counted(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return torch.empty_like(x)


def _asked(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x) if eval("1") else x


@pytest.mark.parametrize(
    ("fake", "reason"),
    [(_random, "it reads the module random"), (_asked, "it calls eval()")],
)
def test_what_its_text_does_not_tell_is_not_kept(fake: Callable[..., Any], reason: str) -> None:
    """An operator whose fake reads module state or runs generated code is not cached.

    Its result could differ in another process. The record says so.
    """
    note, found, _ = _calls(_own(lambda x: x * 2, fake))
    assert note == f"not saved to disk: kept_somewhere::twice: {reason}"
    assert found.tolist() == [1.0, 3.0, 5.0, 7.0]


def test_state_that_a_fake_reads_is_part_of_the_key() -> None:
    """A list outside is written down as it is when the graph is made."""
    SEEN.clear()
    notes = [_calls(_own(lambda x: x * 2, _counted))[0] for _ in range(2)]
    assert notes == ["saved to disk", "saved to disk"] and SEEN


def test_operators_of_a_library() -> None:
    """Library operators with a Python fake are cached.

    Operators with a traced kernel that only the dispatcher knows are not.
    """
    library = torch.library.Library("kept_by_hand", "DEF")
    for name in ("half", "third"):
        library.define(f"{name}(Tensor x) -> Tensor")
    library.impl("half", lambda x: x / 2, "CPU")
    torch.library.register_fake("kept_by_hand::half", _doubled, lib=library)
    library.impl("third", lambda x: x / 3, "CompositeImplicitAutograd")

    def half(x: torch.Tensor) -> Any:
        return torch.ops.kept_by_hand.half(x) * 1

    def third(x: torch.Tensor) -> Any:
        return torch.ops.kept_by_hand.third(x) * 1

    x = torch.ones(3)
    for note in ("saved to disk", "loaded from disk"):
        assert _told(half, x)[0] == note
    reason = "kept_by_hand::third: the code of its CompositeImplicitAutograd[alias] kernel cannot be read"
    assert _told(third, x)[0] == f"not saved to disk: {reason}"
    library._destroy()


@custom_op("kept_somewhere::scale_", mutates_args=("x",))
def _scale(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_operators_that_write(backend: str) -> None:
    """What writes to an argument, or to a view of it, is read with its functional form."""

    def writes(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        _scale(y[1:], 3.0)
        _scale(x, 2.0)
        return y.sin()

    for note in ("saved to disk", "loaded from disk"):
        ours, eager = torch.arange(4.0), torch.arange(4.0)
        told, found = _told(writes, ours, backend=backend)
        assert told == note
        assert torch.allclose(found, writes(eager)) and torch.equal(ours, eager)


# Numbers that only the running graph knows.


def _where(x: torch.Tensor) -> Any:
    found = x.nonzero()
    torch._check(found.shape[0] >= 2)
    return found[:2] + found.shape[0], torch.zeros(found.shape[0]).cumsum(0)


def _chosen(x: torch.Tensor) -> Any:
    y = x[x > 0.5]
    return y.sin().sum() + y.shape[0], y * 2


def _as_many(x: torch.Tensor) -> Any:
    n = x.long().max().item()
    torch._check(n >= 0)
    torch._check(n < 10)
    return torch.arange(n) * 2, x[:1] + n


def _fraction(x: torch.Tensor) -> Any:
    return x * x.sum().item(), x


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("fn", [_where, _chosen, _as_many, _fraction], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("needs", [False, True], ids=["infers", "trains"])
def test_sizes_that_data_decides(fn: Callable[..., Any], needs: bool, backend: str) -> None:
    """Read for data that gives other sizes, results and gradients are eager's."""
    for note, data in (("saved to disk", [1.0, 2.0, 3.0, 4.0]), ("loaded from disk", [3.0, 1.0, 0.0, 4.0])):
        ours, eager = (torch.tensor(data).requires_grad_(needs) for _ in range(2))
        told, found = _told(fn, ours, backend=backend)
        expected = fn(eager)
        assert told == note
        for f, e in zip(found, expected, strict=True):
            assert torch.allclose(f, e) and f.requires_grad == e.requires_grad
        if expected[0].requires_grad:
            for result in (found, expected):
                sum(r.sum() for r in result if r.requires_grad).backward()  # type: ignore[union-attr]
            assert ours.grad is not None and eager.grad is not None and torch.allclose(ours.grad, eager.grad)


def test_what_is_checked_of_a_size_is_part_of_the_key() -> None:
    """A ``torch._check`` on a size is part of the cache key, and a loaded graph still raises."""

    def at_least(n: int) -> Callable[..., Any]:
        def fn(x: torch.Tensor) -> Any:
            found = x.nonzero()
            torch._check(found.shape[0] >= n)
            return found + 1

        return fn

    x = torch.ones(4)
    assert [_told(at_least(n), x)[0] for n in (2, 3, 2)] == ["saved to disk", "saved to disk", "loaded from disk"]
    with pytest.raises(RuntimeError):
        _told(at_least(2), torch.zeros(4))
