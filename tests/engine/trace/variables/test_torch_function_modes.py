"""Torch-function modes that are in force around a compiled function."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import engine


class Asked(TorchFunctionMode):
    """Notes what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        if func is torch.add:
            return torch.mul(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _both(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.add(x, 3) + torch.ones(2), x.shape[0]


def test_a_mode_from_outside_is_asked_as_in_plain_python() -> None:
    """An outer torch function mode sees the operations that it sees in plain Python.

    This holds for the call that compiles and for later calls. The mode sees no operation of the compiler.
    """
    engine.reset()
    compiled = engine.compile(_both, backend="aot_eager")
    x = torch.ones(2)
    with Asked() as plain:
        expected = _both(x)
    for _ in range(2):
        with Asked() as asked:
            found = compiled(x)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
        assert asked.names == plain.names


def test_another_mode_of_the_class_uses_the_same_code() -> None:
    """Modes are told by their class; without one, code of its own is compiled."""
    engine.reset()
    compiled = engine.compile(_both, backend="eager")
    x = torch.ones(2)
    with engine.record() as session:
        for _ in range(3):
            with Asked():
                compiled(x)
    assert len(session.compilations) == 1
    assert torch.equal(compiled(x)[0], torch.full((2,), 5.0))
