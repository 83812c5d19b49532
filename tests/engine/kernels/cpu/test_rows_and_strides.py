"""Sums into rows and accesses at short strides use whole vectors, and agree with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import engine
from engine.ir.kernels.host_vectors import VectorUnit
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu

STRIDED: dict[str, Callable[..., Any]] = {
    "every second": lambda x: (x[..., ::2] * 2, x[..., 1::2].exp(), x[..., ::2].double() + 1),
    "every third": lambda x: x[..., ::3] - x[..., 1::3][..., : x[..., ::3].shape[-1] - 1].sum(),
    "every fourth, small types": lambda x: (x.to(torch.uint8)[:, ::4] + 1, x.bfloat16()[:, ::4] * 2),
    "interleaved": lambda x: torch.stack([x * 2, x + 1], -1).flatten(-2),
    "complex": lambda x: torch.view_as_complex(x[:, :90].reshape(-1, 45, 2).contiguous()) * (2 + 1j),
    "last dimension of three": lambda x: (x[:, :90].reshape(-1, 30, 3) * torch.arange(3)).permute(0, 2, 1),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", STRIDED)
def test_short_strides(name: str, unit: VectorUnit) -> None:
    """Vectors at a stride of 2 to 4 read and write no element beyond the tensor."""
    x = torch.randn(6, 95).abs()
    _, found = run_on_cpu(STRIDED[name], (x,), unit)
    assert_same(found, STRIDED[name](x))


ADDED: dict[str, Callable[..., Any]] = {
    "index_add": lambda o, i, x: o.index_add(0, i, x * 2, alpha=3),
    "index_add of columns": lambda o, i, x: o[None].index_add(1, i, x[None].relu()),
    "scatter_add": lambda o, i, x: o.scatter_add(0, i[:, None].expand_as(x), x),
    "index_put": lambda o, i, x: o.index_put((i,), x, accumulate=True),
}


def _rotary_pairs(x: torch.Tensor) -> torch.Tensor:
    a, b = x[:, :94:2], x[:, 1:94:2]
    return torch.stack([a * b.cos() - b * a.sin(), a * b.sin() + b], -1).flatten(-2)


ALTERNATING: dict[str, Callable[..., Any]] = {
    "rotary pairs": _rotary_pairs,
    "complex": lambda x: torch.complex(x[:, :47], x[:, 1:48]) * torch.complex(x[:, 1:48], x[:, :47]),
    "three": lambda x: torch.stack([x + 1, x * 2, x.exp()], -1),
    "three, in bfloat16": lambda x: torch.stack([x + 1, x * 2, x.exp()], -1).bfloat16(),
    "four, from two parts": lambda x: torch.cat([torch.stack([x + 1, -x], -1), torch.stack([x * 2, x.sin()], -1)], -1),
    "padded": lambda x: torch.nn.functional.pad((x + 1)[..., None], (1, 0)) * 2,
    "integers": lambda x: torch.stack([(x * 9).to(torch.uint8), (x * 5).to(torch.uint8)], -1).flip(-1),
    "doubles": lambda x: torch.stack([x.double() + 1, x.double() * 2], -1),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", ALTERNATING)
def test_results_whose_elements_alternate(name: str, unit: VectorUnit) -> None:
    """Alternating results are eager's, for NaN, infinities and a rest of a vector too."""
    torch.manual_seed(0)
    x = torch.randn(6, 95).abs()
    if name != "integers":
        x[0, 3], x[2, 5], x[5, 94] = torch.inf, torch.nan, -torch.inf
    _, found = run_on_cpu(ALTERNATING[name], (x,), unit)
    assert_same(found, ALTERNATING[name](x))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_alternating_results_are_stored_as_whole_vectors(count: int) -> None:
    """The kernel stores all that a vector of iterations computes at once."""
    unit = UNITS[0]
    program, _ = run_on_cpu(
        lambda x: torch.stack([x * (n + 2) for n in range(count)], -1), (torch.randn(64, 64),), unit
    )
    assert any(f"store <{count * unit.lanes(4)} x float>" in kernel.text for kernel in program.kernels)


@pytest.mark.combinations
@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("width", [8, 37, 300])
@pytest.mark.parametrize("name", ADDED)
def test_rows_are_added_in_kernels(name: str, width: int, unit: VectorUnit) -> None:
    """Rows with equal indices are added one after the other, for sizes that change too."""
    torch.manual_seed(0)
    args = (torch.randn(7, width), torch.randint(0, 7, (40,)), torch.randn(40, width))
    for is_dynamic in (False, True):
        program, found = run_on_cpu(ADDED[name], args, unit, is_dynamic=is_dynamic)
        assert_same(found, ADDED[name](*args))
        assert not any(call for step in program.steps for call in step.calls)


def test_a_clone_is_written_in_place() -> None:
    """Rows written into a clone are not written into a copy of the clone; the original stays."""

    def fn(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made = x.clone()
        made[i] = v
        return made.relu()

    args = (torch.randn(2048, 64), torch.randint(0, 2048, (512,)), torch.ones(512, 64))
    original, run = args[0].clone(), engine.compile(fn)
    assert_same((run(*args),), fn(*args))
    with torch.profiler.profile() as profiler:
        run(*args)
    assert [event.name for event in profiler.events()].count("aten::copy_") == 1
    assert torch.equal(args[0], original)


@pytest.mark.parametrize(("count", "is_in_aten"), [(40, False), (12000, True)])
def test_many_elements_are_added_by_aten(count: int, is_in_aten: bool) -> None:
    """A sum into many single elements is left to ATen, which shares it among threads."""
    args = (torch.randn(7, 3), torch.randint(0, 7, (count,)), torch.randn(count, 3))
    program, found = run_on_cpu(ADDED["index_add"], args, UNITS[0])
    torch.testing.assert_close(found[0], ADDED["index_add"](*args), rtol=1e-4, atol=1e-3)
    assert any(call for step in program.steps for call in step.calls) is is_in_aten


OF_ROWS: dict[str, Callable[..., Any]] = {
    "of a slice": lambda x: ((x[..., 1:] - x[..., :-1]).abs().sum(), (x[..., 1:] * 2).mean()),
    "in bfloat16": lambda x: (x.bfloat16()[:, :, 1:] * 2).sum(),
    "extremes": lambda x: (x[..., :-1].exp().amax(), (x[..., 3:] * 2).amin((0, 1, 2))),
    "with a mask of rows": lambda x: (x * (x[..., :1] > 0)).sum(),
    "beside a dimension that remains": lambda x: (x[..., 1:] * x[..., :-1]).sum((0, 2, 3)),
    "of short rows": lambda x: (x[..., 60:].abs() - x[..., 59:-1]).mean(),
    "of few rows": lambda x: (x[:1, :1, :3, 1:] * 2).sum(),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", OF_ROWS)
def test_sums_over_rows_that_are_not_one_run(name: str, unit: VectorUnit) -> None:
    """A long reduction whose rows lie apart in memory is split between rows."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, 30, 97, dtype=torch.float64)
    program, found = run_on_cpu(OF_ROWS[name], (x,), unit)
    assert_same(found, OF_ROWS[name](x))
    assert name == "of few rows" or not any("urem <" in kernel.text for kernel in program.kernels)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_a_norm_of_channels_last_reads_along_the_channels(unit: VectorUnit) -> None:
    """The rows of a group of channels are reduced in the order of memory, without gathers."""
    torch.manual_seed(0)
    x = torch.randn(3, 24, 5, 7).contiguous(memory_format=torch.channels_last)
    w, b = torch.randn(2, 24)

    def norm(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.group_norm(x, 3, w, b).relu()

    program, found = run_on_cpu(norm, (x, w, b), unit)
    assert_same(found, norm(x, w, b))
    assert not any("masked.gather" in kernel.text for kernel in program.kernels)


SHORT_ROWS: dict[str, Callable[..., Any]] = {
    "sums and extremes": lambda x, i: (x.sum(-1) * 2, x.amax(-1), x.prod(-1)),
    "in two passes": lambda x, i: (x.logsumexp(-1), x.var(-1)),
    "argmax": lambda x, i: x.argmax(-1),
    "an element of each row": lambda x, i: torch.nn.functional.nll_loss(x.log_softmax(-1), i, reduction="none"),
    "pairs": lambda x, i: torch.exp(-((x[:70, None] - x[None, :90]) ** 2).sum(-1)),
    "in bfloat16": lambda x, i: x.bfloat16().float().abs().sum(-1),
}


@pytest.mark.combinations
@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("length", [4, 7, 16, 24])
@pytest.mark.parametrize("name", SHORT_ROWS)
def test_short_rows_are_reduced_side_by_side(name: str, length: int, unit: VectorUnit) -> None:
    """Rows of at most two vectors are reduced one in each lane, without sums across lanes."""
    torch.manual_seed(0)
    x, i = torch.randn(133, length), torch.randint(0, length, (133,))
    program, found = run_on_cpu(SHORT_ROWS[name], (x, i), unit)
    expected = SHORT_ROWS[name](x, i)
    assert_same(found, expected)
    if length <= 2 * unit.lanes(4) and name != "an element of each row":
        assert not any("vector.reduce" in k.text for k in program.kernels if "133" in str(k.grid))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("width", [7, 16, 17, 100, 512])
def test_a_roll_of_rows_gathers_no_element(width: int, dtype: torch.dtype, unit: VectorUnit) -> None:
    """A vector that wraps around the end of its row is read by two masked loads."""
    x = (torch.randn(3, width) * 5).to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.roll(1, -1) == x, x.roll(-3, -1) == x, x.roll((width // 2, 1), (1, 0)) == x

    program, found = run_on_cpu(function, (x,), unit)
    assert_same(found, function(x))
    assert width < 64 or not any("masked.gather" in kernel.text for kernel in program.kernels)


ACROSS: dict[str, Callable[..., Any]] = {
    "layer norm": lambda x: torch.nn.functional.layer_norm(x.movedim(1, -1), x.shape[1:2]).movedim(-1, 1) + x,
    "softmax of two": lambda x: (x.movedim(1, -1) + x.exp().movedim(1, -1)).softmax(-1).contiguous(),
    "bfloat16": lambda x: (x.bfloat16().movedim(1, -1) - x.amax(1)[..., None]).contiguous(),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(2, 64, 8, 8), (3, 37, 5, 7), (1, 100, 70)], ids=str)
@pytest.mark.parametrize("name", ACROSS)
def test_rows_across_memory(name: str, shape: tuple[int, ...], unit: VectorUnit) -> None:
    """Channels of a contiguous image are transposed by tiles to be reduced, not gathered."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    program, found = run_on_cpu(ACROSS[name], (x,), unit)
    expected = ACROSS[name](x)
    torch.testing.assert_close(found[0], expected)
    assert found[0].stride() == expected.stride()
    if unit.bits and shape[1:] == (64, 8, 8):
        assert any("tile.slot" in kernel.text for kernel in program.kernels)
        assert not any("masked.gather" in kernel.text for kernel in program.kernels)


TRANSPOSED: dict[str, Callable[..., torch.Tensor]] = {
    "values of a row": lambda x, y, n, i: x.mT * y + n[:, None] * y,
    "an index of a row": lambda x, y, n, i: x.mT * y + n[i][:, None] * y,
    "many ops": lambda x, y, n, i: (x.mT.tanh() * y + n[:, None]).erf().exp() * y,
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_rows_of_a_tile(name: str, unit: VectorUnit) -> None:
    """The rows of a tile read their own numbers: few ops for all rows at once, many in a loop."""
    torch.manual_seed(0)
    args = torch.randn(37, 70), torch.randn(70, 37), torch.randn(70), torch.arange(70).flip(0)
    program, found = run_on_cpu(TRANSPOSED[name], args, unit)
    torch.testing.assert_close(found[0], TRANSPOSED[name](*args))
    if unit.bits:
        (text,) = (kernel.text for kernel in program.kernels if kernel.loads_tiles)
        assert ("[ %row" in text or "%row.more" in text) == (name == "many ops"), text


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_functions_of_one_number_for_each_row(unit: VectorUnit) -> None:
    """What follows from a reduced row is one number, of any kind, and no vector."""
    rows = torch.tensor(
        [0.0, -0.0, 1e-40, 3e-8, 0.5, 0.9999, 2.0, 88.0, 1e38, -3.0, -200.0, torch.inf, -torch.inf, torch.nan]
    )
    x = torch.stack([rows, *[torch.full_like(rows, -torch.inf)] * 20], 1)

    def of_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top = x.amax(1)
        return top.log(), top.log2(), top.log1p(), top.exp(), top.erf(), top.tanh(), torch.logsumexp(x, 1)

    program, found = run_on_cpu(of_rows, (x,), unit)
    assert_same(found, of_rows(x))
    assert program.kernels


def test_masked_loads_of_one_number_read_nothing_uninitialized() -> None:
    """Where a condition is false, a number is zero, and not what the stack held."""
    x, low = torch.randn(2, 8, 6, 32), torch.randn(2, 8, 3, 16)

    def joined(x: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        own = F.silu(F.group_norm(x, 4))
        return torch.cat([F.interpolate(F.silu(low), scale_factor=2), own], 1)

    program, found = run_on_cpu(joined, (x, low), UNITS[0])
    assert_same(found, (joined(x, low),))
    lines = [line.strip() for kernel in program.kernels for line in kernel.text.splitlines()]
    slots = [line.split(" = alloca ") for line in lines if line.startswith("%unused")]
    assert slots
    assert all(f"store {kind} zeroinitializer, ptr {slot}" in lines for slot, kind in slots)
