"""The compiler reads tensors of a subclass without the user's ``__torch_function__``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine

DISPATCHED: list[str] = []
HELD: list[Any] = []


class Counted(torch.Tensor):
    """Logs each dispatch; a read by the compiler would show in the log."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        DISPATCHED.append(getattr(func, "__name__", str(func)))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Endless(torch.Tensor):
    """Calls itself on each dispatch, until Python's stack is full."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        DISPATCHED.append(getattr(func, "__name__", str(func)))
        assert len(DISPATCHED) < 20
        return func(*args, **(kwargs or {}))


def _asks(x: Any) -> Any:
    return torch.overrides.has_torch_function_unary(x)


def _stores(x: Any) -> Any:
    HELD.append(x)
    holder = {"x": [x]}
    return holder["x"][0] is x, type(x).__name__, id(x) == id(x)


def _computes_without_dispatch(x: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return type(x.sin()).__name__


def _sets_attribute(x: Any) -> Any:
    x.tag = 3
    return x.tag


def _mutates(x: Any) -> Any:
    x.add_(1)
    return x.dtype


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [_asks, _stores, _computes_without_dispatch, _sets_attribute, _mutates])
def test_compiled_calls_dispatch_as_eager(function: Callable[[Any], Any], backend: str) -> None:
    """Compiling and calling runs ``__torch_function__`` for the operators of eager, no more."""
    logs, results = [], []
    for run in (function, engine.compile(function, backend=backend)):
        x = torch.ones(2).as_subclass(Counted)
        for _ in range(2):
            DISPATCHED.clear()
            results.append(run(x))
            logs.append(list(DISPATCHED))
    assert logs[2:] == logs[:2]
    assert results[2:] == results[:2]


def test_endless_protocol_is_not_entered() -> None:
    """``has_torch_function`` of a tensor with an endless ``__torch_function__`` compiles."""
    DISPATCHED.clear()
    assert engine.compile(_asks, backend="aot_eager")(torch.ones(2).as_subclass(Endless)) is True
    assert DISPATCHED == []
