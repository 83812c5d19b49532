"""Debug assertions, when enabled, reject calls that pass the guards with invalid inputs.

Invalid inputs are those that the graph was not compiled for.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine
from engine.errors import DebugAssertionError
from tests.engine.aot.tracing import compiled


def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    """Writes to an input."""
    a.add_(1)
    return ((a * b).sin(),)


def _given() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(2, 3), torch.ones(2, 3)


LIES: dict[str, tuple[Any, str]] = {
    "gradient": (lambda a, b: (a, b.requires_grad_()), "b.requires_grad was False at compile time and is True"),
    "duplicate": (lambda a, b: (a, a), "b is the same tensor as a, and one of them is mutated"),
    "sizes": (lambda a, b: (torch.ones(3, 3), b), "a has other sizes than at compile time"),
    "strides": (lambda a, b: (a, torch.ones(3, 2).t()), "b has other strides than at compile time"),
    "dtype": (lambda a, b: (a, b.double()), "b had dtype torch.float32 at compile time and has dtype torch.float64"),
    "kind": (lambda a, b: (a, 3), "b was a tensor at compile time and is a int"),
}


@pytest.mark.parametrize(("lie", "fault"), LIES.values(), ids=LIES.keys())
def test_lies_are_told(monkeypatch: pytest.MonkeyPatch, lie: Any, fault: str) -> None:
    """Each names the input and what became of it; what was compiled for passes."""
    monkeypatch.setattr(engine.config, "debug_assertions", True)
    run = compiled(program, _given())[0].run
    assert torch.equal(run(*_given())[0], program(*_given())[0])
    with pytest.raises(DebugAssertionError, match=fault):
        run(*lie(*_given()))


def test_nothing_is_asserted_unasked() -> None:
    """Without the option there is no such layer."""
    engine.reset()
    with engine.record() as session:
        engine.compile(program, backend="aot_eager")(*_given())
    aot = session.compilations[0].aot
    assert aot is not None
    (told,) = (w for w in aot.wrappers if w.name == "debug assertions")
    assert not told.actions


def test_compiled_functions_keep_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """With debug assertions on, calls that the guards accept pass.

    Covers duplicates, gradients and sizes that vary.
    """
    monkeypatch.setattr(engine.config, "debug_assertions", True)
    engine.reset()
    run = engine.compile(program, backend="aot_eager")
    for n in (2, 3, 4):
        a, b = torch.randn(n, 3), torch.randn(n, 3)
        for make in (lambda x, y: (x, y), lambda x, y: (x, x), lambda x, y: (x, y.requires_grad_())):
            ours, plain = (make(a.clone(), b.clone()) for _ in range(2))  # noqa: B023
            assert torch.equal(run(*ours)[0], program(*plain)[0])
            assert torch.equal(ours[0], plain[0])
