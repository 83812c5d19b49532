"""Table of switches of torch.compile: each row is run, and says what was seen."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.api import torch_backend
from tests.torch_internals import dynamo_config, dynamo_decorators

TABLE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "STOCK_SWITCHES.md"
ROW = re.compile(r"^\| `(?P<name>.+?)` \| (?P<honored>yes|no) \|", re.MULTILINE)


def double(x: torch.Tensor) -> torch.Tensor:
    """One operation."""
    return x * 2


def compiles(*calls: tuple[Any, ...], fn: Callable[..., Any] = double) -> int:
    """How often a function is compiled for these calls."""
    engine.reset()
    compiled = engine.compile(fn, backend="eager")
    with engine.record() as session:
        for given in calls:
            compiled(*given)
    return len(session.compilations)


def breaks(fn: Callable[..., Any]) -> int:
    """The number of graph breaks of a call."""
    return len(engine.explain(fn, torch.ones(3)).breaks)


def marked(mark: Callable[[torch.Tensor, int], Any], *rows: int) -> int:
    """How often a function is compiled for tensors of these sizes, each marked."""
    tensors = [torch.ones(n, 3) for n in rows]
    for tensor in tensors:
        mark(tensor, 0)
    return compiles(*((t,) for t in tensors))


def scaled_by_length(x: torch.Tensor, text: str) -> torch.Tensor:
    """Recompiles for each text."""
    return x * len(text)


TEXTS = tuple((torch.ones(3), "a" * n) for n in range(1, 5))
SIZES = tuple((torch.ones(n, 3),) for n in (4, 5, 6))


def region(x: torch.Tensor) -> torch.Tensor:
    """Call a nested region twice."""
    inner = torch.compiler.nested_compile_region(double)
    return inner(x) + inner(x)


def step(x: torch.Tensor) -> torch.Tensor:
    """Mark a step of CUDA graphs."""
    torch.compiler.cudagraph_mark_step_begin()
    return x * 2


def with_stance(stance: str) -> int:
    """How often a function is compiled for two types of input under a stance."""
    with torch.compiler.set_stance(stance):
        return compiles((torch.ones(3),), (torch.ones(3, dtype=torch.float64),))


def with_config(name: str, value: Any, calls: tuple[Any, ...], fn: Callable[..., Any]) -> int:
    """How often a function is compiled while a setting of Dynamo has a value."""
    with dynamo_config.patch(**{name: value}):
        return compiles(*calls, fn=fn)


def after_reset() -> int:
    """How often a function is compiled with torch's reset between two equal calls."""
    engine.reset()
    compiled = engine.compile(double, backend="eager")
    with engine.record() as session:
        compiled(torch.ones(3))
        torch.compiler.reset()
        compiled(torch.ones(3))
    return len(session.compilations)


def item_breaks() -> int:
    """Graph breaks of ``item()`` if Dynamo does not capture it."""
    with dynamo_config.patch(capture_scalar_outputs=False):
        return breaks(lambda x: x * x.sum().item())


CHECKS: dict[str, Callable[[], bool]] = {
    "torch.compile(mode=)": lambda: bool((engine.compile(double, mode="max-autotune")(torch.ones(3)) == 2).all()),
    'torch.compile(options={"triton.cudagraphs": True})': lambda: bool(
        (engine.compile(double, options={"triton.cudagraphs": True})(torch.ones(3)) == 2).all()
    ),
    "torch.compile(disable=True)": lambda: engine.compile(double, disable=True) is double,
    'torch.compile(backend="compile_explorer")': lambda: bool(
        (torch.compile(double, backend=torch_backend)(torch.ones(3)) == 2).all()
    ),
    "torch._dynamo.mark_dynamic": lambda: marked(dynamo_decorators.mark_dynamic, 4, 6) == 1,
    "torch._dynamo.maybe_mark_dynamic": lambda: marked(dynamo_decorators.maybe_mark_dynamic, 4, 6) == 1,
    "torch._dynamo.decorators.mark_unbacked": lambda: marked(dynamo_decorators.mark_unbacked, 4, 6) == 1,
    "torch._dynamo.mark_static": lambda: marked(dynamo_decorators.mark_static, 4, 5, 6) == 3,
    "torch.compiler.nested_compile_region": lambda: breaks(region) == 0,
    "torch.compiler.cudagraph_mark_step_begin": lambda: breaks(step) == 0,
    'torch.compiler.set_stance("force_eager")': lambda: with_stance("force_eager") == 0,
    'torch.compiler.set_stance("fail_on_recompile")': lambda: with_stance("fail_on_recompile") == 1,
    "torch.compiler.reset": lambda: after_reset() == 2,
    "torch._dynamo.config.recompile_limit": lambda: with_config("recompile_limit", 2, TEXTS, scaled_by_length) == 2,
    "torch._dynamo.config.error_on_recompile": lambda: with_config("error_on_recompile", True, TEXTS, scaled_by_length) == 1,
    "torch._dynamo.config.automatic_dynamic_shapes": lambda: with_config("automatic_dynamic_shapes", False, SIZES, double) == 3,
    "torch._dynamo.config.capture_scalar_outputs": lambda: item_breaks() == 1,
}  # fmt: skip


def rows() -> dict[str, str]:
    """The rows of the table: switch and verdict."""
    return {m["name"]: m["honored"] for m in ROW.finditer(TABLE.read_text(encoding="utf-8"))}


def test_each_row_has_a_check() -> None:
    """No row is without a check, and no check without a row."""
    assert set(rows()) == set(CHECKS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKS)
def test_row(name: str) -> None:
    """The table says what is seen."""
    assert rows()[name] == ("yes" if CHECKS[name]() else "no")
