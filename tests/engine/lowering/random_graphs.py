"""Random graphs, lowered and run in Triton's interpreter beside eager; hypothesis chooses and shrinks them.

A program of its own, because the interpreter must be chosen before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.engine.lowering.random_graphs``. It ends with the smallest graph that differs, if there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kernels.triton import emit
from engine.lowering.driver import lower
from engine.runtime.launch import in_interpreter
from engine.runtime.program import executable
from tests.engine.lowering.tracing import flat, trace

Step = Callable[[torch.Tensor, int], torch.Tensor]

STEPS: dict[str, Step] = {
    "sine": lambda x, d: x.sin(),
    "absolute": lambda x, d: x.abs() * 2 + 1,
    "squashed": lambda x, d: torch.tanh(x / 4),
    "rounded": lambda x, d: x.round().clamp(-3, 3),
    "halves": lambda x, d: x.half().float(),
    "wholes": lambda x, d: x.clamp(-9, 9).to(torch.int32).float() / 2,
    "sum": lambda x, d: x - x.sum(d, keepdim=True),
    "mean": lambda x, d: x.mean(d, keepdim=True) * 2 + x,
    "largest": lambda x, d: x.amax(d),
    "place": lambda x, d: x.argmax(d, keepdim=True) - x,
    "softmax": lambda x, d: x.softmax(d),
    "variance": lambda x, d: x.var(d, correction=0, keepdim=True) + x,
    "running": lambda x, d: x.cumsum(d),
    "running largest": lambda x, d: x.cummax(d).values,
    "turned": lambda x, d: x.transpose(0, d),
    "flat": lambda x, d: x.flatten(),
    "reshaped": lambda x, d: x.reshape(-1, x.shape[d]),
    "every other": lambda x, d: x[(slice(None),) * d + (slice(None, None, 2),)],
    "backwards": lambda x, d: x.flip(d),
    "rolled": lambda x, d: x.roll(2, d),
    "repeated": lambda x, d: torch.cat([x, x * 2], d),
    "stacked": lambda x, d: torch.stack([x, -x], d),
    "padded": lambda x, d: torch.nn.functional.pad(x, (1, 2), value=0.5),
    "spread": lambda x, d: x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]),
    "picked": lambda x, d: x.index_select(d, torch.arange(x.shape[d] - 1, -1, -1) // 2),
    "written": lambda x, d: torch.select_scatter(x, x.select(d, 0) * 3, d, -1),
    "chosen": lambda x, d: torch.where(x > 0.25, x, x.flip(d)),
    "masked": lambda x, d: x.masked_fill(x < 0, 0.125),
    "added": lambda x, d: x.index_add(d, torch.arange(x.shape[d]) // 2, x),
    "triangle": lambda x, d: x.tril() if x.dim() > 1 else x,
    "diagonal": lambda x, d: x.diagonal() if x.dim() > 1 else x,
    "changed": lambda x, d: x.clone().mul_(2).add_(x),
}
LARGEST = 4096


@st.composite
def graphs(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[str, int]], bool]:
    """A tensor of any layout, steps with the dimension that each is about, and whether sizes are symbols."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    torch.manual_seed(draw(st.integers(0, 99)))
    x = (
        torch.randn([2 * n for n in shape])[tuple(slice(n) for n in shape)]
        if draw(st.booleans())
        else torch.randn(shape)
    )
    steps = draw(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2)), min_size=1, max_size=7))
    return (x.permute(*reversed(range(len(shape)))) if draw(st.booleans()) else x), steps, draw(st.booleans())


def applied(x: torch.Tensor, steps: list[tuple[str, int]]) -> tuple[torch.Tensor, ...]:
    """The last two values; a step that would make too much is left out."""
    values = [x]
    for name, dim in steps:
        if values[-1].dim() and values[-1].numel() < LARGEST and values[-1].dim() < 5:
            values.append(STEPS[name](values[-1], dim % values[-1].dim()))
    return tuple(values[1:][-2:])


@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def check(case: tuple[torch.Tensor, list[tuple[str, int]], bool]) -> None:
    """A graph's results are eager's: whole numbers exactly, floats within their rounding."""
    x, steps, is_dynamic = case
    function: Any = lambda x: applied(x, steps)  # noqa: E731
    graph = trace(function, (x,), is_dynamic=is_dynamic)
    found = executable(lower(graph, "cuda:90", emit), in_interpreter)(x)
    for mine, wanted in zip(found, flat(function)(x), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    check()
