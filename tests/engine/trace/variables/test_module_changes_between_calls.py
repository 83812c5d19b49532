"""Modules changed between calls of compiled code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import engine
from engine.ir.guards.aliasing import DistinctObjects
from tests.engine.trace.harness import Traced
from tests.torch_internals import install_generation_tagging_init


def test_replaced_weight_of_lstm_is_used() -> None:
    """An LSTM that was compiled uses a weight that is assigned later."""
    lstm = nn.LSTM(4, 4)
    x = torch.randn(3, 2, 4)
    compiled = engine.compile(lstm, backend="eager")
    before = compiled(x)[0]
    assert torch.equal(before, lstm(x)[0])
    with torch.no_grad():
        lstm.weight_ih_l0 = nn.Parameter(torch.ones_like(lstm.weight_ih_l0))
    after = compiled(x)[0]
    assert torch.equal(after, lstm(x)[0])
    assert not torch.equal(after, before)


def test_hook_added_later_runs() -> None:
    """A hook registered after compiling runs at the next call, with kwargs if requested."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    outer = Outer()
    x = torch.randn(2, 4)
    compiled = engine.compile(outer, backend="eager")
    compiled(x)
    outer.inner.register_forward_hook(lambda module, args, kwargs, output: output * 2, with_kwargs=True)
    assert torch.equal(compiled(x), outer(x))
    outer.inner.register_forward_hook(lambda module, args, output: output + args[0])
    assert torch.equal(compiled(x), outer(x))


def test_hooks_replace_keyword_arguments() -> None:
    """Hooks see and replace keyword arguments in one graph, as in Python."""

    class Scaling(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * scale

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaling()
            self.inner.register_forward_pre_hook(
                lambda module, args, kwargs: ((args[0] + 1,), {"scale": kwargs["scale"] * 2}), with_kwargs=True
            )
            self.inner.register_forward_hook(
                lambda module, args, kwargs, output: output * kwargs["scale"], with_kwargs=True
            )
            self.inner.register_forward_hook(lambda module, args, output: output - args[0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, scale=3.0)  # type: ignore[no-any-return]

    outer = Outer()
    x = torch.randn(2, 4)
    with engine.record() as session:
        found = engine.compile(outer, backend="eager")(x)
    assert torch.equal(found, outer(x))
    assert not [b for c in session.compilations if c.trace is not None for b in c.trace.breaks]


def test_changed_custom_function_is_used() -> None:
    """A backward that is replaced after compiling takes part in the next call."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad * ctx.factor

    def run(x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x).sum()  # type: ignore[no-any-return]

    compiled = engine.compile(run, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    Doubled.backward = staticmethod(lambda ctx, grad: grad * 7)
    x.grad = None
    compiled(x).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [7, 7, 7]


def test_modules_are_made_after_torch_compile_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules created in traced code are traced after torch.compile patches ``__init__``.

    At its first use, torch.compile wraps the initializer of all modules.
    """
    # What makes modules in traced code is loaded while the initializer is still its own, and keeps to that one.
    engine.compile(lambda x: nn.ReLU()(x), backend="eager")(torch.ones(1))
    monkeypatch.setattr(nn.Module, "__init__", nn.Module.__init__)
    monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
    monkeypatch.setattr(nn.Module, "___needs_generation_tag_patch", True, raising=False)
    done = "___has_generation_tag_patch"  # torch 2.15 asks whether there is this one
    monkeypatch.setattr(nn.Module, done, True, raising=False)
    monkeypatch.delattr(nn.Module, done)
    plain = nn.Module.__init__
    install_generation_tagging_init()
    assert nn.Module.__init__ is not plain

    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.Sequential(Scale(2.0), nn.ReLU())(x)  # type: ignore[no-any-return]

    x = torch.randn(3)
    assert torch.equal(engine.compile(f, backend="eager", fullgraph=True)(x), f(x))


def test_keywords_of_a_call_are_nothing_else() -> None:
    """The ``**kwargs`` dict gets no identity guard against other mutated dicts.

    It is new at each call, so it cannot be an alias of another dict.
    """
    table = {"a": 1}

    def f(x: torch.Tensor, given: dict[str, int], **kwargs: int) -> torch.Tensor:
        kwargs["b"] = 2
        given["c"] = table["a"]
        return x + kwargs["b"] + len(table)

    traced = Traced(f)  # type: ignore[arg-type]
    x = torch.ones(2)
    given: dict[str, int] = {}
    assert torch.equal(traced(x, given, a=1), x + 3)
    assert given == {"c": 1}
    (frame,) = traced.frames
    apart = [g for g in frame.guards if isinstance(g, DistinctObjects)]
    assert apart, "the argument might be the table"
    assert not any("kwargs" in o.expr for g in apart for o in g.sources)
