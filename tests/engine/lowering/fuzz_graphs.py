"""Lower random graphs, run them in Triton's interpreter and compare with eager.

Hypothesis chooses and shrinks the graphs.

A program of its own, because the interpreter must be chosen before Triton is imported:
``TRITON_INTERPRET=1 python -m tests.engine.lowering.fuzz_graphs 24``, with the number of graphs. It ends with the
smallest graph that differs, if there is one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.lowering.trace_aten import trace_to_aten, with_flat_results
from tests.engine.runtime.interpreter_launcher import interpreter_launcher

Step = Callable[[torch.Tensor, int], torch.Tensor]

VIEWS: dict[str, Step] = {
    "turned": lambda x, d: x.transpose(0, d),
    "flat": lambda x, d: x.flatten(),
    "reshaped": lambda x, d: x.reshape(-1, x.shape[d]),
    "every other": lambda x, d: x[(slice(None),) * d + (slice(None, None, 2),)],
    "windows": lambda x, d: x.unfold(d, min(2, x.shape[d]), 1),
    "backwards": lambda x, d: x.flip(d),
    "rolled": lambda x, d: x.roll(2, d),
    "repeated": lambda x, d: torch.cat([x, x.flip(d)], d),
    "stacked": lambda x, d: torch.stack([x, x], d),
    "padded": lambda x, d: torch.nn.functional.pad(x, (1, 2)),
    "spread": lambda x, d: x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]),
    "picked": lambda x, d: x.index_select(d, torch.arange(x.shape[d] - 1, -1, -1) // 2),
    "looked up": lambda x, d: x[(slice(None),) * d + (torch.arange(x.shape[d]) // 3 - 1,)],
    "triangle": lambda x, d: x.tril() if x.dim() > 1 else x,
    "diagonal": lambda x, d: x.diagonal() if x.dim() > 1 else x,
    "copied": lambda x, d: x.transpose(0, -1).contiguous(),
    "in part": lambda x, d: x.clone().select(d, 0).fill_(1)._base,  # type: ignore[return-value]
    "as another": lambda x, d: x.to((torch.float32, torch.int64, torch.float64)[d]),
}
"""For all types."""
FLOATS: dict[str, Step] = {
    "sine": lambda x, d: x.sin(),
    "absolute": lambda x, d: x.abs() * 2 + 1,
    "squashed": lambda x, d: torch.tanh(x / 4),
    "halves": lambda x, d: x.half().float(),
    "narrow": lambda x, d: x.bfloat16(),
    "sum": lambda x, d: x - x.sum(d, keepdim=True),
    "sum of two": lambda x, d: x.sum((0, -1)) if x.dim() > 1 else x.sum(),
    "mean": lambda x, d: x.mean(d, keepdim=True) * 2 + x,
    "largest": lambda x, d: x.amax(d),
    "softmax": lambda x, d: x.softmax(d),
    "variance": lambda x, d: x.var(d, correction=0, keepdim=True) + x,
    "cumsum_and_triangles": lambda x, d: x.cumsum(d),
    "running largest": lambda x, d: x.cummax(d).values,
    "written": lambda x, d: torch.select_scatter(x, x.select(d, 0) * 3, d, -1),
    "added": lambda x, d: x.index_add(d, torch.arange(x.shape[d]) // 2, x),
    "changed": lambda x, d: x.clone().mul_(2).add_(x),
}
DISCONTINUOUS: dict[str, Step] = {
    "rounded": lambda x, d: x.round().clamp(-3, 3),
    "wholes": lambda x, d: x.clamp(-9, 9).to(torch.int32),
    "place": lambda x, d: x.argmax(d, keepdim=True) - x,
    "chosen": lambda x, d: torch.where(x > 0.25, x, x.flip(d)),
    "masked": lambda x, d: x.masked_fill(x < 0, 0.125),
    "positive": lambda x, d: x > 0,
}
"""Of numbers with more than 16 bits, whose last bits decide less often."""
INTEGERS: dict[str, Step] = {
    "a third": lambda x, d: x // 3,
    "rest": lambda x, d: x % 4,
    "some bits": lambda x, d: (x & 6) ^ 1,
    "moved bits": lambda x, d: (x << 1) >> 2,
    "ratio": lambda x, d: x / 2,
    "product": lambda x, d: x * 3 - x,
    "sum": lambda x, d: x + x.sum(d, keepdim=True),
    "largest": lambda x, d: x.amax(d),
    "place": lambda x, d: x.argmin(d),
    "cumsum_and_triangles": lambda x, d: x.cumsum(d),
    "many": lambda x, d: x > 2,
    "chosen": lambda x, d: torch.where(x > 1, x, x.flip(d)),
    "added": lambda x, d: x.index_add(d, torch.arange(x.shape[d]) // 2, x),
    "changed": lambda x, d: x.clone().mul_(2).add_(x),
}
BOOLS: dict[str, Step] = {
    "opposite": lambda x, d: ~x,
    "any": lambda x, d: x.any(d),
    "all": lambda x, d: x.all(d, keepdim=True) | x,
    "how many": lambda x, d: x.sum(d),
    "cumsum_and_triangles": lambda x, d: x.cumsum(d),
    "numbers": lambda x, d: torch.where(x, 1.5, -2.0),
}
NAMES = sorted({*VIEWS, *FLOATS, *DISCONTINUOUS, *INTEGERS, *BOOLS})
TYPES = (
    torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
LARGEST = 4096


Graph = tuple[torch.Tensor, list[tuple[str, int]], bool]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a tensor of any dtype and layout, steps with dimensions, and a symbolic flag.

    The flag says whether sizes are symbols.
    """
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    torch.manual_seed(draw(st.integers(0, 99)))
    dtype = draw(st.sampled_from(TYPES))
    numbers = torch.randn([2 * n for n in shape])
    x = numbers.to(dtype) if dtype.is_floating_point else (numbers * 4).abs().round().to(dtype)
    x = x[tuple(slice(n) for n in shape)]
    x = x if draw(st.booleans()) else x.contiguous()
    steps = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2)), min_size=1, max_size=7))
    return (x.permute(*reversed(range(len(shape)))) if draw(st.booleans()) else x), steps, draw(st.booleans())


def available_steps(x: torch.Tensor, *, has_halves: bool) -> dict[str, Step]:
    """What can be done with numbers of this type so that the result is told by them."""
    if x.dtype is torch.bool:
        return {**VIEWS, **BOOLS}
    if not x.is_floating_point():
        return {**VIEWS, **INTEGERS}
    return {**VIEWS, **FLOATS} if has_halves else {**VIEWS, **FLOATS, **DISCONTINUOUS}


def apply_steps(x: torch.Tensor, steps: list[tuple[str, int]]) -> tuple[torch.Tensor, ...]:
    """Apply the steps and return the last two values; skip steps that do not apply.

    A step does not apply if its result would be too large or if it is for another dtype.
    """
    values = [x]
    for name, dim in steps:
        known = available_steps(values[-1], has_halves=any(v.dtype in HALVES for v in values))
        if name in known and values[-1].dim() and values[-1].numel() < LARGEST and values[-1].dim() < 5:
            values.append(known[name](values[-1], dim % values[-1].dim()))
    return tuple(values[1:][-2:])


@given(graphs())
def check(case: Graph) -> None:
    """A graph's results are eager's: whole numbers exactly, floats within their rounding."""
    x, steps, is_dynamic = case
    function: Any = lambda x: apply_steps(x, steps)  # noqa: E731
    wanted = with_flat_results(function)(x)
    graph = trace_to_aten(function, (x,), is_dynamic=is_dynamic)
    found = ProgramExecutor(lower(graph, "cuda:90", print_triton), interpreter_launcher)(x)
    has_halves = x.dtype in HALVES or {"narrow", "halves"} & {name for name, _ in steps}
    for mine, value in zip(found, wanted, strict=True):
        largest = max(1.0, float(value.double().abs().max())) if value.numel() else 1.0
        limit = (0.06 if has_halves else 1e-4) * (largest if value.is_floating_point() else 0)
        torch.testing.assert_close(mine, value, rtol=limit and 1e-4, atol=limit)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    quiet = list(HealthCheck)
    settings(
        max_examples=int(sys.argv[1]), deadline=None, derandomize=True, database=None, suppress_health_check=quiet
    )(check)()
