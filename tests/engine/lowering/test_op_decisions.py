"""What lowerings of operators leave to ATen, and how they split reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engine.lowering.graph_lowering import GraphLowering
from engine.lowering.ops.pooling import MAX_WINDOW
from engine.lowering.ops.random import MAX_ELEMENTS_PER_SEED
from engine.lowering.ops.scans import MAX_SCAN_ELEMENTS
from engine.lowering.ops.scatter_reduce import MAX_MASK_ELEMENTS
from engine.lowering.philox_ops import random_uniform
from tests.engine.lowering.trace_aten import trace_to_aten

aten = torch.ops.aten
ROW, ROWS, MASK = torch.arange(4.0), torch.arange(12.0).view(3, 4), torch.arange(4) > 1
COUNTS, WIDE, COMPLEX = torch.arange(4), torch.arange(4.0).double(), torch.arange(4.0) * 1j
NARROW, BAGS = ROW.to(torch.float8_e5m2), torch.tensor([0, 2])


def lowered(function: Callable[..., Any], *args: Any, is_dynamic: bool = False, is_cpu: bool = False) -> GraphLowering:
    """Lower a function's operators one by one, without passes before or after."""
    walk = GraphLowering("0/0", trace_to_aten(function, args, is_dynamic=is_dynamic).module, is_cpu=is_cpu)
    walk.run()
    return walk


def deterministic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that asks for deterministic algorithms at its first call."""

    def call(*args: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        return function(*args)

    return call


def bag_gradient(mode: int, by_frequency: bool) -> Callable[..., Any]:
    """Return a call of the gradient of an embedding bag."""
    return lambda x, i: aten._embedding_bag_dense_backward(x, i, i, i, i, 3, by_frequency, mode, None)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "concatenation of many": (lambda x: torch.cat([x] * 17), (ROW,), "more than 16 tensors"),
    "as_strided of columns": (lambda x: aten.as_strided(x, [2], [1]), (ROWS.t(),), "non-contiguous"),
    "as_strided of a view": (lambda x: aten.as_strided((x + 1).t(), [2], [1]), (ROWS,), "non-contiguous"),
    "as_strided with an offset": (lambda x: aten.as_strided(x, [2], [1], 1), (ROW,), "storage offset"),
    "as_strided past the end": (lambda x: aten.as_strided(x, [3], [2]), (torch.arange(9.0)[:4],), "past the elements"),
    "view as another width": (lambda x: x.view(torch.int16), (ROW,), "another size"),
    "view as 8-bit float": (lambda x: x.view(torch.uint8), (NARROW,), "float8_e5m2 has no lowering"),
    "unfold of a number": (lambda x: x.unfold(0, 1, 1), (torch.ones(()),), "0-dim tensor"),
    "roll of a number": (lambda x: aten.roll(x, [1]), (torch.ones(()),), "roll of a 0-dim tensor"),
    "series of doubles": (torch.special.gammainc, (WIDE, WIDE), "no lowering for float64"),
    "bags of maxima": (lambda x, i: aten._embedding_bag(x, i, i, False, 2), (ROWS, BAGS), "mode 'max'"),
    "gradient of bags of maxima": (bag_gradient(2, False), (ROWS, BAGS), "mode 'max'"),
    "gradient by frequency": (bag_gradient(0, True), (ROWS, BAGS), "scale_grad_by_freq"),
    "weights of empty bags": (
        lambda x, i: aten._embedding_bag_per_sample_weights_backward(x, x, i, i, i, 0),
        (ROWS[:0], BAGS),
        "embedding_bag without elements",
    ),
    "many random numbers": (
        lambda s: random_uniform(s, 0, [MAX_ELEMENTS_PER_SEED + 1]),
        (COUNTS,),
        "a random tensor of more than",
    ),
    "a long scan": (lambda x: x.expand(MAX_SCAN_ELEMENTS + 1).cumsum(0), (ROW[:1],), "faster in ATen"),
    "a long mask": (
        lambda x, m: x.expand(MAX_MASK_ELEMENTS + 1).masked_scatter(m, x.expand(MAX_MASK_ELEMENTS + 1)),
        (ROW[:1], torch.ones(1, dtype=torch.bool)),
        "a long mask",
    ),
    "reduction of bools": (
        lambda x, i: x.scatter_reduce(0, i, x, "amax"),
        (MASK, COUNTS),
        "a scatter reduction of bool",
    ),
    "write to a number": (lambda x, i: x.put(i, x.expand(4)), (torch.ones(()), COUNTS), "a 0-dim tensor"),
    "write at a number": (lambda x, i: x.put(i, x[0]), (ROW, torch.tensor(1)), "a 0-dim tensor"),
    "deterministic scatter": (deterministic(lambda x, i: x.scatter(0, i, 1.0)), (ROW, COUNTS), "any order"),
    "float in integers": (lambda x: torch.bucketize(1.5, x), (COUNTS,), "a float in integers"),
    "complex beside real": (lambda x, y: torch.cat([x, y]), (COMPLEX, ROW), "several dtypes"),
    "large windows": (
        lambda x: F.adaptive_max_pool2d(x.expand(1, 1, MAX_WINDOW + 2, 4), 2),
        (torch.ones(1, 1, 1, 1),),
        "window",
    ),
    "grid over no channels": (
        lambda x, g: aten.grid_sampler_2d_backward(x, x, g, 0, 0, False, [True, True])[1],
        (torch.ones(1, 0, 2, 2), torch.zeros(1, 2, 2, 2)),
        "nonempty",
    ),
}
"""Calls that a kernel cannot compute, or should not, each with its reason."""


@pytest.mark.parametrize("name", REFUSED)
def test_an_operator_is_left_to_aten_with_a_reason(name: str) -> None:
    """No lowering fails, and only the named operator is ATen's."""
    function, args, reason = REFUSED[name]
    try:
        walk = lowered(function, *args)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [reason.lower() in extern.reason.lower() for extern in walk.context.externs] == [True], walk.context.externs


LOWERED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "windows": (lambda x: F.adaptive_max_pool2d(x.expand(1, 1, MAX_WINDOW, 4), 2), (torch.ones(1, 1, 1, 1),)),
    "concatenation of sixteen": (lambda x: torch.cat([x] * 16), (ROW,)),
    "as_strided to the end": (lambda x: aten.as_strided(x, [2], [3]), (torch.arange(9.0)[:4],)),
    "random numbers": (lambda s: random_uniform(s, 0, [MAX_ELEMENTS_PER_SEED]), (COUNTS,)),
    "the longest scan": (lambda x: x.expand(MAX_SCAN_ELEMENTS).cumsum(0), (ROW[:1],)),
    "the longest mask": (
        lambda x, m: x.expand(MAX_MASK_ELEMENTS).masked_scatter(m, x.expand(MAX_MASK_ELEMENTS)),
        (ROW[:1], torch.ones(1, dtype=torch.bool)),
    ),
}
"""Calls at the border of what kernels compute."""


@pytest.mark.parametrize("name", LOWERED)
def test_an_operator_at_the_border_is_lowered(name: str) -> None:
    """The largest call that a limit allows is not left to ATen."""
    function, args = LOWERED[name]
    assert lowered(function, *args).context.externs == []


UNSUPPORTED: tuple[Callable[..., Any], ...] = (
    aten.clone,
    aten.alias,
    lambda x: x.to(torch.float32),
    lambda x: x.flip(0),
    lambda x: torch.cat([x, x]),
)


@pytest.mark.parametrize("function", UNSUPPORTED)
def test_dtypes_without_arithmetic_are_left_to_aten(function: Callable[..., Any]) -> None:
    """An 8-bit float is neither read nor written by a kernel; its views are lowered."""
    (extern,) = lowered(lambda x: function(x.view(2, 2)), NARROW).context.externs
    assert extern.reason == "Float8_e5m2 has no lowering."


@pytest.mark.parametrize("mask", [COUNTS > 1, COUNTS])
def test_symbolic_sizes_that_decide_are_left_to_aten(mask: torch.Tensor) -> None:
    """A count of elements must be known, and the sign of an index."""

    def index(x: Any, y: Any) -> Any:
        return x.select(0, -y.shape[0]) * 2, x.select_scatter(y[0], 0, -y.shape[0]), x[-y.shape[0] :] * 2

    def roll(x: Any, y: Any) -> Any:
        return aten.roll(x, [y.shape[0]], [0])

    assert lowered(index, torch.arange(6.0), torch.arange(3.0), is_dynamic=True).context.externs == []
    (extern,) = lowered(roll, torch.arange(6.0), torch.arange(3.0), is_dynamic=True).context.externs
    assert "symbolic shift" in extern.reason
    (extern,) = lowered(lambda x, m: x.masked_scatter(m > 1, x), ROW, mask, is_dynamic=True).context.externs
    assert "symbolic size" in extern.reason


def reductions_of(function: Callable[..., Any], args: tuple[Any, ...], *, is_cpu: bool) -> str:
    """Return each reduction of a function as ``sizes of results <- reduced sizes``."""
    definitions = [d for d in lowered(function, *args, is_cpu=is_cpu).context.defs if d.kind == "reduction"]
    return ", ".join(f"{d.name}: {sizes(d.shape)} <- {sizes(d.ranges)}" for d in definitions)


def sizes(shape: Any) -> str:
    """Return sizes as text."""
    return "x".join(map(str, shape)) or "1"


def channels_last(*shape: int) -> torch.Tensor:
    """Return an image whose channels are adjacent in memory."""
    return torch.empty(shape).contiguous(memory_format=torch.channels_last)


empty = torch.empty
SPLITS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str, str]] = {
    "all": (lambda x: x.sum(), (empty(1 << 20),), "sum_1_parts: 512 <- 2048, sum_1: 1 <- 512", ""),
    "a count without divisors": (
        lambda x: x.sum(),
        (empty((1 << 20) + 7),),
        "sum_1_parts: 512 <- 2049, sum_1: 1 <- 512",
        "",
    ),
    "a count with an odd divisor": (
        lambda x: x.sum(),
        (empty(3 * (1 << 18)),),
        "sum_1_parts: 512 <- 1536, sum_1: 1 <- 512",
        "",
    ),
    "a count with odd divisors alone": (
        torch.sum,
        (empty(511 * 2053),),
        "sum_1_parts: 511 <- 2053, sum_1: 1 <- 511",
        "",
    ),
    "maximum": (
        lambda x: x.amax(),
        (empty(1 << 20),),
        "amax_max_parts: 512 <- 2048, amax_max: 1 <- 512, amax_nan_parts: 512 <- 2048, amax_nan: 1 <- 512",
        "",
    ),
    "maximum of integers": (
        lambda x: x.amax(),
        (empty(1 << 20, dtype=torch.int64),),
        "amax_parts: 512 <- 2048, amax: 1 <- 512",
        "",
    ),
    "maximum of bools": (
        lambda x: x.amax(),
        (empty(1 << 20, dtype=torch.bool),),
        "amax_int_parts: 512 <- 2048, amax_int: 1 <- 512",
        "",
    ),
    "four columns": (lambda x: x.sum(0), (empty(1 << 16, 4),), "sum_1_parts: 1024x4 <- 64, sum_1: 4 <- 1024", ""),
    "columns": (lambda x: x.sum(0), (empty(1 << 14, 256),), "sum_1_parts: 128x256 <- 128, sum_1: 256 <- 128", ""),
    "many long columns": (lambda x: x.sum(0), (empty(8192, 8192),), "sum_1: 8192 <- 8192", ""),
    "many shorter columns": (
        lambda x: x.sum(0),
        (empty(4096, 8192),),
        "sum_1_parts: 4x8192 <- 1024, sum_1: 8192 <- 4",
        "",
    ),
    "short columns": (lambda x: x.sum(0), (empty(1024, 64),), "sum_1_parts: 16x64 <- 64, sum_1: 64 <- 16", ""),
    "shortest columns": (lambda x: x.sum(0), (empty(1023, 64),), "sum_1: 64 <- 1023", ""),
    "rows": (lambda x: x.sum(1), (empty(64, 1 << 16),), "sum_1_parts: 8x64 <- 8192, sum_1: 64 <- 8", ""),
    "more rows": (lambda x: x.sum(1), (empty(128, 1 << 16),), "sum_1: 128 <- 65536", ""),
    "short rows": (lambda x: x.sum(1), (empty(8, 8192),), "sum_1: 8 <- 8192", ""),
    "columns of a transposed tensor": (
        lambda x: x.t().sum(0),
        (empty(64, 1 << 16),),
        "sum_1_parts: 8x64 <- 8192, sum_1: 64 <- 8",
        "",
    ),
    "outer and inner dimension": (
        lambda x: x.sum((0, 2)),
        (empty(64, 16, 1 << 12),),
        "sum_1_parts: 32x16 <- 8192, sum_1: 16 <- 32",
        "sum_1_parts: 64x16 <- 4096, sum_1: 16 <- 64",
    ),
    "a slice of rows": (
        lambda x: x[:, :100].sum(),
        (empty(512, 200),),
        "sum_1_parts: 32 <- 1600, sum_1: 1 <- 32",
        "sum_1_parts: 512 <- 100, sum_1: 1 <- 512",
    ),
    "a slice of short rows": (
        lambda x: x[:, :, :10].sum(),
        (empty(64, 64, 20),),
        "sum_1_parts: 32 <- 1280, sum_1: 1 <- 32",
        "sum_1_parts: 64 <- 64x10, sum_1: 1 <- 64",
    ),
    "images of channels": (
        lambda x: x.sum((0, 2, 3)),
        (channels_last(8, 64, 64, 64),),
        "sum_1_parts: 512x64 <- 64, sum_1: 64 <- 512",
        "",
    ),
    "channels of images": (lambda x: x.sum(1), (channels_last(2, 4096, 16, 16),), "sum_1: 2x16x16 <- 4096", ""),
    "two layouts": (
        lambda x, y: (x.permute(0, 2, 3, 1) * y).sum((0, 1, 2)),
        (empty(8, 192, 40, 40), empty(8, 40, 40, 192)),
        "sum_1_parts: 128x192 <- 100, sum_1: 192 <- 128",
        "sum_1_parts: 8x192 <- 40x40, sum_1: 192 <- 8",
    ),
    "rows and columns": (
        lambda x, y: (x * y.t()).sum(1),
        (empty(32, 1 << 15), empty(1 << 15, 32)),
        "sum_1_parts: 512x32 <- 64, sum_1: 32 <- 512",
        "",
    ),
    "many rows and columns": (
        lambda x, y: (x * y.t()).sum(1),
        (empty(1024, 1 << 14), empty(1 << 14, 1024)),
        "sum_1: 1024 <- 16384",
        "sum_1_parts: 32x1024 <- 512, sum_1: 1024 <- 32",
    ),
    "variance of rows": (
        lambda x: torch.var_mean(x, 1),
        (empty(64, 1 << 16),),
        "var_mean_sums: 8x64 <- 8192, var_mean_parts: 8x64 <- 8192, var_mean_sum: 64 <- 8, var_mean_squares: 64 <- 8",
        "",
    ),
    "variance of long rows": (
        lambda x: torch.var_mean(x, 1),
        (empty(160, 1 << 16),),
        "var_mean_sums: 4x160 <- 16384, var_mean_parts: 4x160 <- 16384, var_mean_sum: 160 <- 4, var_mean_squares: 160 <- 4",
        "var_mean_mean_sum: 160 <- 65536, var_mean_squares: 160 <- 65536",
    ),
    "variance of rows in registers": (
        lambda x: torch.var_mean(x, 1),
        (empty(160, 1 << 15),),
        "var_mean_mean_sum: 160 <- 32768, var_mean_squares: 160 <- 32768",
        "",
    ),
    "variance of groups": (
        lambda x: torch.var_mean(x.view(4, 32, 2, 128, 128), (2, 3, 4)),
        (channels_last(4, 64, 128, 128),),
        "var_mean_sums: 128x4x32x2 <- 128, var_mean_parts: 128x4x32x2 <- 128, var_mean_sum: 4x32 <- 128x2, var_mean_squares: 4x32 <- 128x2",
        "var_mean_mean_sum: 4x32 <- 2x128x128, var_mean_squares: 4x32 <- 2x128x128",
    ),
    "variance of large groups": (
        lambda x: torch.var_mean(x.view(4, 2, 32, 128, 128), (2, 3, 4)),
        (channels_last(4, 64, 128, 128),),
        "var_mean_sums: 64x4x2 <- 8192, var_mean_parts: 64x4x2 <- 8192, var_mean_sum: 4x2 <- 64, var_mean_squares: 4x2 <- 64",
        "",
    ),
    "variance of small groups": (
        lambda x: torch.var_mean(x.view(4, 32, 2, 64, 64), (2, 3, 4)),
        (channels_last(4, 64, 64, 64),),
        "var_mean_mean_sum: 4x32 <- 64x64x2, var_mean_squares: 4x32 <- 64x64x2",
        "var_mean_mean_sum: 4x32 <- 2x64x64, var_mean_squares: 4x32 <- 2x64x64",
    ),
    "variance of an odd count": (
        torch.var_mean,
        (empty((1 << 20) + 7),),
        "var_mean_mean_sum_parts: 512 <- 2049, var_mean_mean_sum: 1 <- 512, var_mean_squares_parts: 512 <- 2049, var_mean_squares: 1 <- 512",
        "",
    ),
}
"""Reductions with those of a GPU and those of a CPU (empty if they are the same)."""


@pytest.mark.parametrize("name", SPLITS)
def test_reductions_are_split_into_parts_that_fill_the_machine(name: str) -> None:
    """Few results of many elements are reduced in parts, of equal lengths if possible."""
    function, args, on_gpu, on_cpu = SPLITS[name]
    assert reductions_of(function, args, is_cpu=False) == on_gpu
    assert reductions_of(function, args, is_cpu=True) == (on_cpu or on_gpu)


def test_reductions_of_symbolic_sizes_are_not_split() -> None:
    """The number of parts is fixed when a kernel is written."""
    walk = lowered(lambda x: torch.var_mean(x, 0), empty(1 << 16, 4), is_dynamic=True)
    assert len([d for d in walk.context.defs if d.kind == "reduction"]) == 2
