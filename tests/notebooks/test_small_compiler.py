"""Hold the compiler of lesson 12 against eager: values, layouts, mutation, exceptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.notebooks.notebook_runner import NOTEBOOKS_DIR, SMALL_COMPILER_CELLS, plain_python, read

MOST_LINES = 320
"""Lines of the compiler without blank lines, comments and docstrings."""
SCALE = 2.0
NAN, INF = float("nan"), float("inf")


def softmax(x: Any) -> Any:
    """Two reductions."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    """A reduction that depends on another one."""
    c = x - x.mean(-1, keepdim=True)
    return c * ((c * c).mean(-1, True) + 1e-5).rsqrt() * w + b


def many(x: Any, rounds: int) -> Any:
    """A loop, a branch on a shape, an inlined call."""
    y = x * 2
    for i in range(rounds):
        y = y + i
    return torch.relu(y) if len(x.shape) == 2 else gated(y)


def gated(x: Any, scale: float = 1.5) -> Any:
    """A default, an operation that is used twice."""
    y = F.relu(x) * scale
    return y.sigmoid() * y


def until(x: Any, n: int) -> Any:
    """A while loop over numbers."""
    while n > 0:
        x, n = x.tanh() + n, n - 1
    return x


def scalars(x: Any, n: Any) -> Any:
    """Arithmetic on numbers."""
    return x * n / 3 + n**2 // 1 - (x / (n + 1.5)) ** 2


def by_keyword(x: Any) -> Any:
    """Functions with keywords."""
    return torch.sum(x, -1, keepdim=True) + torch.add(x, 2.0) - abs(-3) * x


def row(x: Any, r: Any) -> Any:
    """Broadcasting."""
    return x * r - SCALE


def unused(x: Any, y: Any) -> Any:
    """An argument that is not read."""
    return x.sum(-1, keepdim=True)


def writes(x: Any) -> Any:
    """A mutation of the argument."""
    x += 1
    return x * 2


def branch(x: Any) -> Any:
    """A branch on a value."""
    return x + 1 if x.sum() > 0 else x - 1


def same(x: Any) -> Any:
    """The argument itself."""
    return x


def root(x: Any) -> Any:
    """A function of Python that has the name of an operation."""
    return x * math.sqrt(SCALE)


def inputs(*sizes: int) -> torch.Tensor:
    """Numbers of both signs."""
    return torch.linspace(-3, 3, math.prod(sizes)).view(sizes)


X = inputs(5, 16)
TRACED: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((softmax, (x,)) for x in (X, inputs(2, 3, 7), inputs(9), torch.tensor([[1.0, NAN], [INF, 1.0], [99.0, -99.0]]))),
    (layer_norm, (X, inputs(16), inputs(16))),
    *((many, (X, n)) for n in (0, 3)),
    (many, (inputs(4), 2)),
    (gated, (torch.tensor([NAN, INF, -INF, -0.0]),)),
    (gated, (X, 2)),
    (until, (X, 3)),
    *((scalars, (X, n)) for n in (3, 2.5)),
    *((row, (inputs(4, 3, 8), r)) for r in (inputs(8), inputs(1, 8), torch.tensor(2.0))),
    *(
        (row, pair)
        for pair in ((X, inputs(5, 1)), (inputs(5, 1), inputs(1, 7)), (torch.tensor(3.0), torch.tensor(2.0)))
    ),
    (unused, (X, inputs(50, 50))),
]
EAGER: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (row, (inputs(4, 3, 8), inputs(3, 1)), "the shape (3, 1) among (4, 3, 8)"),
    (unused, (inputs(4, 1), X), "not a new tensor"),
    (by_keyword, (X,), "a call of abs"),
    (writes, (X,), "+= on a tensor"),
    (branch, (X,), "another dimension than the last"),
    (same, (X,), "not a new tensor"),
    (root, (X,), "a call of sqrt"),
    *((gated, (x,), "not a plain") for x in (X.double(), X.t(), torch.ones(2, requires_grad=True), inputs(0, 4))),
    (gated, (torch.nn.Parameter(torch.ones(2)),), "not a plain"),
]


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    """The names of the lesson's compiler."""
    cells = {c.id: c.source for c in read(NOTEBOOKS_DIR / "12_small_compiler.ipynb").cells}
    names: dict[str, Any] = {"__name__": "lesson"}
    for cell in ("setup", *SMALL_COMPILER_CELLS):
        exec(compile(plain_python(cells[cell]), f"<{cell}>", "exec"), names)
    return names


def copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with tensors of their own where the function may write."""
    return tuple(a.clone() if isinstance(a, torch.Tensor) and a.is_contiguous() and a.is_leaf else a for a in arguments)


def assert_same(found: Any, wanted: Any) -> None:
    """Close values, and the same shape, dtype and strides."""
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True, check_stride=True)


def test_its_results_are_those_of_eager(small: dict[str, Any]) -> None:
    """Traced functions agree with eager when they are compiled, and when called again."""
    for function, arguments in TRACED:
        compiled = small["Compiled"](function)
        for _ in range(2):
            assert_same(compiled(*arguments), function(*arguments))
        assert [entry.reason for entry in compiled.entries] == [""], function.__name__


def test_the_rest_runs_in_eager_with_a_reason(small: dict[str, Any]) -> None:
    """What it does not know gives the result and the mutations of eager, and a reason."""
    for function, arguments, reason in EAGER:
        compiled, ours, theirs = small["Compiled"](function), copies(arguments), copies(arguments)
        assert_same(compiled(*ours), function(*theirs))
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
        assert [reason in entry.reason for entry in compiled.entries] == [True], compiled.entries[0].reason


def test_guards_hold_entries_apart(small: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another size, number, type of number or global gives another entry."""
    compiled = small["Compiled"](row)
    calls = [(X, 2), (X, 2.0), (inputs(4, 16), 2), (X, 2), (X, True), (X, None)]
    for arguments in calls[:-1]:
        assert_same(compiled(*arguments), row(*arguments))
    assert len(compiled.entries) == 4
    with pytest.raises(TypeError):
        compiled(*calls[-1])
    monkeypatch.setitem(globals(), "SCALE", -3.0)
    assert_same(compiled(X, 2), X * 2 + 3)


def test_it_raises_what_eager_raises(small: dict[str, Any]) -> None:
    """Shapes that do not fit raise eager's error."""
    with pytest.raises(RuntimeError, match="must match the size"):
        small["Compiled"](row)(X, inputs(15))


def test_it_is_small(small: dict[str, Any]) -> None:
    """The compiler has few lines and imports nothing of this project."""
    cells = {c.id: c.source for c in read(NOTEBOOKS_DIR / "12_small_compiler.ipynb").cells}
    lines = "\n".join(cells[cell] for cell in SMALL_COMPILER_CELLS).splitlines()
    assert sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in lines) <= MOST_LINES
    assert not any(word in line for line in lines for word in ("engine.api", "import engine", "notebook_ext"))
