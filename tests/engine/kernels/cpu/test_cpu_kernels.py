"""Kernels compiled for this CPU compute what eager does, for every vector unit."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import engine
from engine.errors import KernelBuildError
from engine.ir.kernels.host_vectors import AVX2, AVX512, NEON, SCALAR, VectorUnit, vector_unit
from engine.ir.kernels.llvm_machine import host_unit
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.kernels.cpu.llvm_types import NotPrintable
from engine.kernels.cpu.printer import print_llvm
from engine.lowering.driver import lower
from engine.runtime.cpu_launcher import cpu_launcher
from engine.runtime.program_executor import ProgramExecutor
from engine.torch_private.pytree import tree_leaves
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import slow_except_sample

F = nn.functional
TOLERANCES = {torch.float32: 1e-5, torch.complex64: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
UNITS = [u for u in (AVX512, AVX2, SCALAR) if u.bits <= host_unit().bits and host_unit() != NEON]


def run_on_cpu(
    function: Callable[..., Any], args: tuple[torch.Tensor, ...], unit: VectorUnit, *, is_dynamic: bool = False
) -> tuple[LoweredProgram, tuple[Any, ...]]:
    """Lower a function for a vector unit and run it; ops without code are ATen's."""
    graph, refused = trace_to_aten(function, args, is_dynamic=is_dynamic), dict[str, str]()

    def emit(kernel: Any, target: str) -> Any:
        try:
            return print_llvm(kernel, unit)
        except NotPrintable as error:
            raise KernelBuildError(kernel.name, error, error.nodes or kernel.nodes) from error

    while True:
        try:
            program = lower(graph, "cpu", emit, forced_fallbacks=refused)
            return program, ProgramExecutor(program, cpu_launcher)(*args)
        except KernelBuildError as error:
            if refused.keys() >= set(error.nodes):
                raise
            refused |= dict.fromkeys(error.nodes, str(error))


def assert_same(found: Any, expected: Any) -> None:
    """Values, dtypes and strides agree."""
    for a, b in zip(found, tree_leaves(expected), strict=True):
        if isinstance(b, torch.Tensor):
            tolerance = TOLERANCES.get(b.dtype, 1e-9)
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert a.stride() == b.stride()


SYMBOLIC_SHARE = 4
"""One case in so many runs with symbolic sizes too, outside the slow ring.

Triton's interpreter runs all of them: lowering is the same.
"""


@pytest.mark.parametrize(
    ("name", "is_dynamic"),
    [
        pytest.param(
            name,
            is_dynamic,
            id=f"{name}-{'dynamic' if is_dynamic else 'static'}",
            marks=slow_except_sample(name, SYMBOLIC_SHARE) if is_dynamic else (),
        )
        for name, case in CASES.items()
        for is_dynamic in (False, True)
        if case.can_be_dynamic or not is_dynamic
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_cases_agree_with_eager(name: str, is_dynamic: bool) -> None:
    """Every case of lowering gives eager's values on this CPU."""
    case = CASES[name]
    _, found = run_on_cpu(case.function, case.args(), host_unit(), is_dynamic=is_dynamic)
    assert_same(found, case.function(*case.args()))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "transcendentals": lambda x: (x.exp(), x.tanh(), torch.sigmoid(x), F.gelu(x), x.sin(), x.abs().log1p()),
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "reductions": lambda x: (x.sum(), x.sum(0), x.amax(1), x.argmax(1), x.argmin(0), x.prod(1), x.var(1)),
    "transposed": lambda x: x.t().contiguous() * 2,
    "shifted": lambda x: x[1:, 2:] + x[:-1, :-2],
    "concatenated": lambda x: torch.cat([x, x.relu(), x[:, :3]], 1),
    "doubles": lambda x: (x.double() / 3).exp(),
    "half": lambda x: (x.half() * 1.5, x.bfloat16().exp(), x.bfloat16().sum(1)),
    "integers": lambda x: ((x * 9).to(torch.int8) // 2, (x * 9).long() % 5, (x > 0).sum(1), (x * 9).int() >> 1),
    "picked": lambda x: x[(x[:, 0].abs() * 3).long().clamp(0, x.shape[0] - 1)],
    "running": lambda x: (x.cumsum(1), x.cumsum(0), x.cummax(1).values),
    "reversed": lambda x: x.flip(1) - x,
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in FUNCTIONS for s in ((1, 1), (3, 37), (200, 1030)) if n != "shifted" or min(s) >= 3],
)
def test_vector_units_agree(name: str, shape: tuple[int, int], unit: VectorUnit) -> None:
    """Full vectors, rests and rows shorter than a vector are right for every unit."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    if name == "concatenated" and shape == (1, 1):
        x = torch.randn(1, 3)
    _, found = run_on_cpu(FUNCTIONS[name], (x,), unit)
    expected = FUNCTIONS[name](x)
    if name == "reductions":
        expected = FUNCTIONS[name](x.double())
        expected = tuple(e if e.dtype == torch.int64 else e.float() for e in expected)
        found = tuple(found)
    assert_same(found, expected)


def test_ops_without_code_leave_the_rest_of_their_kernel() -> None:
    """ATen computes an operator without code for the CPU; those fused with it do not follow."""

    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        return torch.gcd(n, n + 1), n * 2, torch.polygamma(2, x) + 1, x.logcumsumexp(1), x.logsumexp(1), x.exp()

    x, n = torch.rand(3, 5) + 1, torch.arange(7)
    program, found = run_on_cpu(function, (x, n), host_unit())
    assert_same(found, function(x, n))
    computed = {name.rpartition(":")[2] for kernel in program.kernels for name in kernel.nodes}
    assert not computed & {"gcd", "polygamma", "logcumsumexp"}
    assert computed >= {"mul", "logsumexp", "exp"}


def test_special_values() -> None:
    """Infinities, NaN, denormals and signed zeros are eager's."""
    values = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 88.9, 89.5, -87.5, -103.9, -105.0, 3e38]
    x = torch.tensor(values * 3)

    def function(x: torch.Tensor) -> Any:
        return x.exp(), x.tanh(), torch.sigmoid(x), torch.maximum(x, -x), x.clamp(-1, 1), x.relu(), x.bfloat16()

    _, found = run_on_cpu(function, (x,), host_unit())
    for a, b in zip(found, function(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-42, equal_nan=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_elementary_functions_are_exact_to_the_last_bits(unit: VectorUnit) -> None:
    """Each polynomial is within 3e-7 of float64 at all sizes, and has eager's special values."""
    torch.manual_seed(0)
    special = torch.tensor([0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, -3e38, 88.0, -104.0])
    spread = torch.exp(torch.randn(2000) * 20)
    x = torch.cat([special, spread, -spread, torch.randn(4000), 1 + torch.randn(500) * 1e-3, -torch.rand(500)])
    functions = (torch.exp, torch.expm1, torch.tanh, torch.erf, torch.erfc, torch.log, torch.log2, torch.log1p)
    program, found = run_on_cpu(lambda x: tuple(f(x) for f in functions), (x,), unit)
    assert not any("Sleef_" in kernel.text for kernel in program.kernels)
    for made, function in zip(found, functions, strict=True):
        eager, exact = function(x), function(x.double())
        torch.testing.assert_close(made.isnan(), eager.isnan())
        is_usual = exact.isfinite() & eager.isfinite() & (exact.abs() > torch.finfo(torch.float32).tiny)
        torch.testing.assert_close(made[~is_usual], eager[~is_usual], rtol=0, atol=1e-37, equal_nan=True)
        torch.testing.assert_close(made[is_usual].double(), exact[is_usual], rtol=3e-7, atol=0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the bit of the flag is that of Linux")
@pytest.mark.skipif(host_unit() == NEON, reason="the bit of the flag is that of x86")
@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_masked_elements_of_a_softmax_do_not_underflow(unit: VectorUnit) -> None:
    """An exponential of 0 raises no underflow, which takes a hundred times as long."""
    library, underflow = ctypes.CDLL("libm.so.6"), 16
    x = torch.randn(40, 48).masked_fill(torch.rand(40, 48) < 0.5, -math.inf)
    program, (expected,) = run_on_cpu(lambda x: (torch.softmax(x * 0.5, -1),), (x,), unit)
    run = ProgramExecutor(program, cpu_launcher)
    run(x)
    library.feclearexcept(underflow)
    (found,) = run(x)
    flags = library.fetestexcept(underflow)
    assert torch.equal(found, expected)
    assert not flags


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_powers_are_exact_to_the_last_bit(unit: VectorUnit) -> None:
    """A power is the rounded one of float64, and has the special values and signs of IEEE 754."""
    torch.manual_seed(0)
    special = [0.0, 1.0, 2.0, 3.0, 0.5, math.inf, math.nan, 1e-45, 1e38, 2.0**24 - 1, 2.0**24, 1 - 2.0**-24, 150.0]
    numbers = torch.tensor([sign * x for x in special for sign in (1, -1)])
    x = torch.cat([numbers.repeat_interleave(len(numbers)), torch.exp(torch.randn(4000) * 8)])
    y = torch.cat([numbers.repeat(len(numbers)), torch.randn(4000) * 3])
    program, (found, squares) = run_on_cpu(lambda x, y: (x**y, (x + 1) ** 1.75), (x, y), unit)
    assert not any("Sleef_" in kernel.text or "powf" in kernel.text for kernel in program.kernels)
    expected = (x.double() ** y.double()).float()
    torch.testing.assert_close(found, expected, rtol=1.2e-7, atol=1e-45, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(found.signbit()[is_number], expected.signbit()[is_number])
    torch.testing.assert_close(squares, (x + 1) ** 1.75, rtol=2e-7, atol=1e-45, equal_nan=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_zero_has_its_sign(unit: VectorUnit) -> None:
    """Functions through the origin return -0.0 for -0.0, as eager."""
    x = torch.tensor([0.0, -0.0] * 20)
    functions = (torch.tanh, torch.erf, torch.expm1, torch.log1p, torch.sin, F.gelu, F.silu)
    _, found = run_on_cpu(lambda x: tuple(f(x) for f in functions), (x,), unit)
    for made, function in zip(found, functions, strict=True):
        torch.testing.assert_close(torch.signbit(made), torch.signbit(function(x)))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_odd_functions_end_at_one(unit: VectorUnit) -> None:
    """Saturated values are 1 or -1, and none is larger, so that the root of 1 - y is real."""
    x = torch.linspace(-12, 12, 100_001)
    _, found = run_on_cpu(lambda x: (torch.erf(x), torch.tanh(x)), (x,), unit)
    for made in found:
        assert made.abs().max() == 1
        assert made[0] == -made[-1] == -1


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(70, 40).t(),
        torch.randn(64, 80)[::2, 1::2],
        torch.randn(4097)[1:].view(64, 64),
        torch.randn(1, 50).expand(30, 50),
        torch.randn(8, 6, 4, 10).permute(2, 0, 3, 1),
    ],
    ids=["transposed", "every second", "unaligned", "expanded", "permuted"],
)
def test_any_strides_and_offsets(x: torch.Tensor) -> None:
    """Inputs lie in memory as they please."""

    def function(x: torch.Tensor) -> Any:
        return x * 2 + 1, x.sum(-1), torch.softmax(x, 0)

    _, found = run_on_cpu(function, (x,), host_unit())
    assert_same(found, function(x))


@pytest.fixture
def cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled functions run CPU kernels."""
    monkeypatch.setattr(engine.config, "cpu_kernels", True)
    engine.reset()


@pytest.mark.usefixtures("cpu_kernels")
def test_threads_give_the_same_numbers() -> None:
    """One thread and several compute the same elementwise values, and close sums."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() * 2, x.sum(0)

    x, before = torch.randn(1000, 1003), torch.get_num_threads()
    compiled = engine.compile(function)
    try:
        torch.set_num_threads(1)
        alone = compiled(x)
        torch.set_num_threads(3)
        shared = compiled(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone[0], shared[0])
    torch.testing.assert_close(alone[1], shared[1])


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (lambda w, i: (w[i] * 2).sum(-1), torch.tensor([1, -1]), torch.tensor([1, 10])),
        (lambda w, i: w.sum() + 7 // i, torch.tensor([1, -1]), torch.tensor([1, 0])),
    ],
    ids=["index out of bounds", "division by zero"],
)
def test_errors_are_eager_ones(function: Callable[..., Any], good: torch.Tensor, bad: torch.Tensor) -> None:
    """A wrong index or divisor raises what eager raises; calls after it work."""
    compiled, w = engine.compile(function), torch.randn(10, 5)
    torch.testing.assert_close(compiled(w, good), function(w, good))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        function(w, bad)
    with pytest.raises(type(eager.value)) as ours:
        compiled(w, bad)
    assert str(ours.value) == str(eager.value)
    torch.testing.assert_close(compiled(w, good), function(w, good))


@pytest.mark.usefixtures("cpu_kernels")
def test_training_step() -> None:
    """Forward and backward run in kernels and give eager's gradients, dropout included."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 40), nn.LayerNorm(40), nn.GELU(), nn.Dropout(0.3), nn.Linear(40, 2))
    x = torch.randn(16, 8)

    def gradients(run: Any) -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(5)
        run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients(model)
    torch.testing.assert_close(gradients(engine.compile(model)), expected)


@pytest.mark.usefixtures("cpu_kernels")
def test_store_along_rows_without_a_reduction() -> None:
    """A loss whose one-hot sum folds to one element still stores its rows."""

    x, y = torch.randn(8, 8), torch.arange(8)
    model = nn.Linear(8, 8)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).masked_fill(torch.eye(8) > 0, -math.inf), y)

    engine.compile(loss)(x, y.flip(0)).backward()
    found, model.weight.grad = model.weight.grad, None
    loss(x, y.flip(0)).backward()
    torch.testing.assert_close(found, model.weight.grad)


@pytest.mark.usefixtures("cpu_kernels")
def test_index_of_a_constant_is_checked() -> None:
    """An index out of bounds raises also where nothing is read with it."""

    def function(index: torch.Tensor) -> torch.Tensor:
        return torch.ones(5)[index].sum() * 2

    compiled = engine.compile(function)
    assert compiled(torch.tensor([1, 2])) == 4
    with pytest.raises(IndexError):
        compiled(torch.tensor([1, 7]))


@pytest.mark.usefixtures("cpu_kernels")
def test_checks_of_libraries_raise() -> None:
    """A check that returns nothing is not dropped with unused results."""
    with pytest.raises(torch.linalg.LinAlgError):
        engine.compile(lambda x: torch.linalg.cholesky(x * 2))(-torch.eye(3))


def test_text_names_nodes_and_links_ops() -> None:
    """Lines of a kernel name the node that they compute and the ops behind them."""
    program, _ = run_on_cpu(lambda x: torch.sigmoid(x.sin()), (torch.randn(100),), host_unit())
    (kernel,) = program.kernels
    lines = kernel.text.split("\n")
    assert any(line.strip() == "; sigmoid" for line in lines)
    (sine,) = (op.id for op in kernel.ops if " sin(" in op.text)
    assert any("sin" in lines[n] for n, ops in enumerate(kernel.line_ops) if sine in ops)
    assert len(kernel.line_ops) == len(lines) - 1


def test_vector_units_by_feature() -> None:
    """The unit follows from LLVM's feature names."""
    avx2 = frozenset(("avx2", "fma", "f16c"))
    assert vector_unit(avx2, "x86_64") == AVX2
    assert vector_unit(avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}, "x86_64") == AVX512
    assert vector_unit(frozenset(), "x86_64") == SCALAR
    assert vector_unit(frozenset(("neon",)), "aarch64") == NEON


@pytest.mark.usefixtures("cpu_kernels")
def test_without_llvm_aten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without llvmlite results are right."""
    monkeypatch.setattr("engine.backends.cpu_executor.why_llvm_is_missing", functools.partial(str, "none here"))
    x = torch.randn(5)
    torch.testing.assert_close(engine.compile(lambda x: x.sin() * 2)(x), x.sin() * 2)


def test_results_are_no_views_where_eager_has_none() -> None:
    """Copied and complex results can be written in place after a training call."""

    def copied(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).t().reshape(-1), (x + 0j) * 2, x.sin() * 2

    x = torch.randn(3, 4, requires_grad=True)
    engine.reset()
    for found, wanted in zip(engine.compile(copied)(x), copied(x), strict=True):
        assert not found._is_view()
        assert found._version == wanted._version
        torch.testing.assert_close(found.mul_(2), wanted.mul_(2))


def test_a_complex_input_saved_for_backward_is_the_input() -> None:
    """A complex view is saved itself; autograd refuses a view of its parts in its stead."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0].cos()

    def program(x: torch.Tensor) -> torch.Tensor:
        result = Sine.apply(x)
        _ = result.imag
        return result

    def gradient(function: Any) -> torch.Tensor:
        leaf = torch.complex(torch.linspace(0, 1, 6), torch.linspace(1, 2, 6)).requires_grad_()
        function(leaf.hsplit(2)[1]).abs().sum().backward()
        return leaf.grad

    torch.testing.assert_close(gradient(engine.compile(program, backend="triton", dynamic=True)), gradient(program))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_tensors_are_passed_by_address(dtype: torch.dtype) -> None:
    """A call makes no real view of a complex tensor that only kernels access."""
    x, y = torch.randn(6, 9, dtype=dtype), torch.randn(9, dtype=dtype)

    def rotate(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = x * y + y.conj()
        return turned, turned.abs() * 2

    run = engine.compile(rotate)
    for given in ((x, y), (x.conj(), y), (x.t().contiguous().t(), y.conj())):
        assert_same(run(*given), rotate(*given))
    with torch.profiler.profile() as profile:
        run(x, y)
    assert {event.name for event in profile.events()}.isdisjoint(("aten::view_as_real", "aten::view_as_complex"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shape", [(33, 70), (3, 16, 50)], ids=str)
def test_transposes_read_tiles(shape: tuple[int, ...], dtype: torch.dtype, unit: VectorUnit) -> None:
    """A transposed operand is read by tiles, and the rest along its rows without."""
    torch.manual_seed(0)
    x = (torch.randn(shape) * 5).to(dtype)
    other = torch.ones(x.mT.shape, dtype=dtype)
    for is_dynamic in (False, True):
        program, found = run_on_cpu(lambda a, b: b + a.mT, (x, other), unit, is_dynamic=is_dynamic)
        assert torch.equal(found[0], other + x.mT)
        assert found[0].stride() == other.stride()
        lanes = unit.lanes(8 if dtype == torch.float64 else 1 if dtype == torch.int8 else 4)
        assert program.kernels[0].loads_tiles == (lanes > 1 and (is_dynamic or min(x.shape[-2:]) >= lanes))


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [37, 64])
def test_joined_slices_of_a_transposed_operand_read_tiles(channels: int, dtype: torch.dtype, unit: VectorUnit) -> None:
    """Slices of a permuted operand are joined by tiles, zero where a slice does not reach."""

    def decode(x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        return torch.cat([x[..., :2] * 2 - 0.5, x[..., 2:4] * x[..., 2:4], x[..., 4:] + 1], -1)

    x = torch.arange(2 * channels * 63, dtype=torch.float32).sin().reshape(2, channels, 9, 7).to(dtype)
    x[0, 3, 1, 1], x[1, 9, 2, 2] = float("nan"), float("inf")
    program, found = run_on_cpu(decode, (x,), unit)
    assert_same(found, (decode(x),))
    assert found[0].stride() == decode(x).stride()
    assert [k.loads_tiles for k in program.kernels] == [unit.bits > 0]


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_tiles_beyond_a_slice_are_zero(unit: VectorUnit) -> None:
    """The margin of a padded transposed operand is zero, where tiles have no lane."""

    def pad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([x, y, x], 1).permute(0, 2, 3, 1)
        return F.pad(rows.sigmoid(), (40, 40)) + 1

    args = torch.full((2, 37, 8, 8), torch.inf), torch.randn(2, 41, 8, 8)
    program, result = run_on_cpu(pad, args, unit)
    torch.testing.assert_close(result[0], pad(*args))
    if unit.bits:
        texts = [kernel.text for kernel in program.kernels if kernel.loads_tiles]
        assert texts
        assert all("llvm.prefetch" in text for text in texts)


@pytest.mark.usefixtures("cpu_kernels")
def test_a_transposed_operand_is_not_left_to_aten() -> None:
    """One operator runs in a kernel if the kernel reads in a better order."""
    with engine.record() as session, torch.no_grad():
        engine.compile(lambda a, b: a.t() + b)(torch.randn(200, 300), torch.randn(300, 200))
    assert [k.name for c in session.compilations for k in c.cpu_kernels] == ["add_kernel"]


@pytest.mark.usefixtures("cpu_kernels")
def test_a_number_from_a_tensor_does_not_hinder_a_store_into_an_input() -> None:
    """An update scaled by a number read from a tensor is one kernel, without a copy."""

    def update(weight: torch.Tensor, count: torch.Tensor) -> None:
        weight.sub_(weight * (0.9 ** count.item()))

    weight, count = torch.randn(7), torch.tensor(3.0)
    wanted, version = weight - weight * 0.9**3, weight._version
    with engine.record() as session:
        engine.compile(update)(weight, count)
    torch.testing.assert_close(weight, wanted)
    assert weight._version == version + 1
    steps = [step for memory in session.compilations[0].cpu_program.memory for step in memory.steps]
    assert "fused_mul_sub" in steps[-1].name
    assert all(step.live_bytes == 0 for step in steps)


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("shape", [(1,), (0,), (7, 3)])
def test_a_mutation_is_not_left_to_aten(shape: tuple[int, ...]) -> None:
    """One operator runs in a kernel if the kernel stores its result into an input."""

    def update(weight: torch.Tensor, step: torch.Tensor) -> None:
        weight.add_(step, alpha=-0.5)

    weight, step = torch.randn(shape), torch.randn(shape)
    wanted, version = weight.clone().add_(step, alpha=-0.5), weight._version
    with engine.record() as session, torch.no_grad():
        engine.compile(update)(weight, step)
    assert torch.equal(weight, wanted)
    assert weight._version == version + 1
    assert [k.name for c in session.compilations for k in c.cpu_kernels] == ["add_kernel"] * bool(weight.numel())


@pytest.mark.thorough
@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("window", [(2, 2), (3, 4), (9, 8)])
def test_windows_are_pooled_in_kernels(window: tuple[int, int]) -> None:
    """A kernel pools windows, with NaN, infinities and indices as in eager.

    ATen finds the maxima of large ones.
    """
    x = torch.randn(4, 6, 35, 41)
    x[0, 0, :5], x[0, 1, 3, 4], x[1, 2, 7, 7] = -math.inf, math.nan, math.inf

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*nn.functional.max_pool2d(x, window, 2, 1, return_indices=True), nn.functional.avg_pool2d(x, window))

    for given in (x, x.to(memory_format=torch.channels_last), x[..., 1:].mT):
        with engine.record() as session, torch.no_grad():
            found = engine.compile(pool)(given)
        for mine, wanted in zip(found, pool(given), strict=True):
            torch.testing.assert_close(mine, wanted, equal_nan=True, check_stride=True)
        (compilation,) = session.compilations
        assert "avg_pool2d_kernel" in [k.name for k in compilation.cpu_kernels]


@pytest.mark.thorough
@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resampled_images_stay_in_kernels(dtype: torch.dtype) -> None:
    """Pooling, nearest interpolation and its gradient run in kernels and equal eager's."""
    x = torch.randn(8, 24, 12, 14, dtype=dtype)
    x[0, 0, 0, 0], x[1, 2, -1, -1] = math.nan, math.inf
    aten = torch.ops.aten

    def resample(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            nn.functional.adaptive_avg_pool2d(x, (6, 5)),
            *nn.functional.adaptive_max_pool2d(x, 5, return_indices=True),
            *nn.functional.max_pool3d(x[None], 2, return_indices=True),
            nn.functional.interpolate(x, scale_factor=2),
            aten.upsample_nearest2d_backward(x, [12, 14], [8, 24, 6, 7], None, None),
            aten._upsample_nearest_exact2d_backward(x, [12, 14], [8, 24, 3, 7], 4.0, None),
        )

    for given in (x, x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        with engine.record() as session, torch.no_grad():
            found = engine.compile(resample)(given)
        torch.testing.assert_close(found, resample(given), equal_nan=True, check_stride=True)
        assert not [e for c in session.compilations if c.cpu_program for e in c.cpu_program.externs]


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_windows_are_reduced_on_a_cpu_and_left_to_aten_on_a_gpu(dtype: torch.dtype) -> None:
    """Pooling of large windows, of one or of several sizes, copies none of their elements."""
    x = torch.randn(2, 4, 56, 56, dtype=dtype)
    cube = torch.randn(2, 3, 9, 17, 30, dtype=dtype)

    def pool(x: torch.Tensor, cube: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            nn.functional.adaptive_avg_pool2d(x * 2, (5, 9)) + 1,
            nn.functional.adaptive_avg_pool2d(x, 4) + 1,
            nn.functional.adaptive_avg_pool3d(cube, (2, 3, 4)) + 1,
            nn.functional.avg_pool2d(x, 11, 4, 5, count_include_pad=False) + 1,
        )

    with engine.record() as session:
        torch.testing.assert_close(engine.compile(pool)(x, cube), pool(x, cube))
    (compilation,) = session.compilations
    assert compilation.cpu_program is not None
    assert compilation.cpu_program.externs == ()
    assert compilation.lowering is not None
    assert {e.kind for e in compilation.lowering.externs} == {"large-window"}


@pytest.mark.usefixtures("cpu_kernels")
def test_gradients_of_large_windows_that_do_not_overlap_are_kernels() -> None:
    """An element gathers its gradient from the few windows that contain it."""
    x = torch.randn(2, 4, 56, 56, requires_grad=True)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(x * 2, 14, 12, 3).sin()

    with engine.record() as session:
        (found,) = torch.autograd.grad(engine.compile(pool)(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(pool(x).sum(), x)[0])
    in_aten = {e.op for c in session.compilations if c.cpu_program for e in c.cpu_program.externs}
    assert not {op for op in in_aten if "pool" in op}


@pytest.mark.usefixtures("cpu_kernels")
def test_a_scale_other_than_the_ratio_of_sizes_is_honored() -> None:
    """A scale that is not the ratio of sizes decides which elements nearest's gradient adds."""
    grad = torch.randn(1, 2, 6, 6)

    def backward(grad: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.upsample_nearest2d_backward(grad * 2, [6, 6], [1, 2, 3, 3], 2.3, None)

    torch.testing.assert_close(engine.compile(backward)(grad), backward(grad))


@pytest.mark.usefixtures("cpu_kernels")
def test_few_scattered_elements_and_searches_stay_in_kernels() -> None:
    """Few scattered elements, an embedding's gradient and searches need no call of ATen."""
    x, index = torch.randn(64, 16), torch.randperm(64)[:40]
    edges = torch.linspace(-1, 1, 31)

    def write(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.index_put((index,), x[:40] * 2),
            x.scatter(0, index[:, None].expand(40, 16), x[:40] + 1),
            torch.ops.aten.embedding_dense_backward(x[:40] * 2, index, 64, 3, False),
            torch.bucketize(x * 2, edges, right=True),
        )

    with engine.record() as session, torch.no_grad():
        found = engine.compile(write)(x)
    torch.testing.assert_close(found, write(x))
    assert not [e for c in session.compilations if c.cpu_program for e in c.cpu_program.externs]


@pytest.mark.usefixtures("cpu_kernels")
def test_lanes_follow_the_loads_that_run_most() -> None:
    """A short reduction of pairs reads its rows as vectors, not by gathers."""
    a, b = torch.randn(40, 64), torch.randn(48, 64)

    def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a[:, None] - b[None]) ** 2).sum(-1)

    with engine.record() as session:
        found = engine.compile(distances)(a, b)
    torch.testing.assert_close(found, distances(a, b))
    (kernel,) = [k for c in session.compilations for k in c.cpu_kernels]
    assert "gather" not in kernel.text


def test_an_element_scattered_after_a_row_leaves_the_row_in_vectors() -> None:
    """Where a row's reduction picks an element to write, the row is still reduced in vectors."""
    x = torch.randn(30, 64)

    def one_hot(x: torch.Tensor) -> torch.Tensor:
        probabilities = x.sin().softmax(-1)
        top = probabilities.argmax(-1, keepdim=True)
        return torch.zeros_like(x).scatter(-1, top, 1.0) - probabilities.detach() + probabilities

    program, found = run_on_cpu(one_hot, (x,), host_unit())
    assert_same(found, one_hot(x))
    assert all("no vectors" not in kernel.text for kernel in program.kernels) or host_unit() == SCALAR


@pytest.mark.usefixtures("cpu_kernels")
def test_timings_have_the_stages_of_cpu_kernels() -> None:
    """Lowering for the CPU and LLVM are stages of their own beside the GPU's lowering."""
    with engine.record() as session:
        engine.compile(lambda x: torch.relu(x * 2 + 1), backend="triton")(torch.randn(300))
    (record,) = session.compilations
    parents = {t.stage: t.parent for t in record.timings}
    assert parents["CPU lowering"] == parents["LLVM"] == "aot"


def test_the_diagonal_of_a_large_matrix() -> None:
    """``eye`` needs no integer type that ATen does not count in."""
    x = torch.randn(3, 300)
    program, found = run_on_cpu(lambda x: (x + torch.eye(3, 300), torch.eye(300, dtype=torch.int64)), (x,), host_unit())
    assert_same(found, (x + torch.eye(3, 300), torch.eye(300, dtype=torch.int64)))
    assert not any(call for step in program.steps for call in step.calls)


@pytest.mark.usefixtures("cpu_kernels")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.vector_norm(x, 3.0, 0),
        lambda x: x.max(0),
        lambda x: x.cumprod(0),
        lambda x: x.bfloat16().mean(-1),
        torch.expm1,
        lambda x: F.gelu(x[:20]),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: F.silu(x.t()),
        lambda x: torch.softmax(x.view(20, 50, 40), 1),
        lambda x: x.amax(0),
        lambda x: torch.div(x, 0.3, rounding_mode="floor"),
        lambda x: x[:20].sum(0),
        lambda x: x.view(40, 10, 100)[:5].log_softmax(1),
        lambda x: F.max_pool2d(x[None, :20, :20], 2),
        lambda x: torch.gather(x[:20], 1, torch.arange(20)[:, None]),
    ],
    ids=(
        "norm,max,cumprod,mean,expm1,small gelu,gelu with tanh,silu,softmax over the middle,amax,floor division,small sum,"
        "small log softmax,small maximum pooling,small gather"
    ).split(","),
)
def test_slow_operators_of_aten_have_kernels_alone(function: Callable[..., Any]) -> None:
    """An operator that ATen's loops compute slowly has a kernel, fused with nothing or not."""
    x = torch.rand(200, 200)
    x[3, 5] = math.nan
    with engine.record() as session:
        found = engine.compile(function)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)
    assert session.compilations[0].cpu_program.kernels


def test_calls_that_gain_nothing_leave_autograd_to_eager() -> None:
    """After a recorded step, eager differentiates a layer without kernels, but no checkpoint."""
    layer, x = nn.Linear(4, 3), torch.randn(2, 4, requires_grad=True)
    run = engine.compile(layer)

    def gradient(f: Callable[..., torch.Tensor]) -> torch.Tensor:
        return torch.autograd.grad(f(x).square().sum(), x)[0]

    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        once = checkpoint(run, x, use_reentrant=False)
        return once + checkpoint(run, x * 2, use_reentrant=False)

    expected = gradient(layer)
    twice = gradient(lambda x: layer(x) + layer(x * 2))
    with engine.record() as session:
        found = gradient(checkpointed)  # the last call's backward, compiled first, changes later calls
    assert torch.allclose(found, twice)
    assert "calls run in ATen" in session.compilations[0].cpu_program.later_calls
    assert torch.equal(gradient(run), expected)
    assert run(x).grad_fn.name() == layer(x).grad_fn.name()
    assert torch.allclose(gradient(checkpointed), twice)


def test_slow_calls_of_aten_count_for_kernels() -> None:
    """A small training step with gelu and a norm, slow calls in ATen, runs in kernels."""
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    x, run = torch.randn(128, 32), engine.compile(model)
    run(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    result = run(x)
    assert result.grad_fn.name() == "CompiledFunctionBackward"
    wanted = torch.autograd.grad(model(x).sum(), tuple(model.parameters()))
    torch.testing.assert_close(gradients, list(wanted), rtol=1e-4, atol=1e-4)


def test_passes_in_the_cache_are_cheap_in_eager_too() -> None:
    """A few fused operators pay for an autograd node only if their tensors are large."""
    value, gate = nn.Linear(256, 256), nn.Linear(256, 256)

    def gated(x: torch.Tensor) -> torch.Tensor:
        return value(x) * torch.sigmoid(gate(x))

    run, names = engine.compile(gated, dynamic=False), []
    for rows in (128, 8192):
        run(torch.randn(rows, 256)).sum().backward()
        result = run(torch.randn(rows, 256))  # until torch 2.12, the node of a Function has a name only while it lives
        names.append(result.grad_fn.name())
    assert names == ["MulBackward0", "CompiledFunctionBackward"]


def test_the_kernel_of_one_operator_that_gains_runs() -> None:
    """A sum with a transposed operand reads tiles in a kernel; ATen does not add."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    run = engine.compile(lambda a, b: a.t() + b)
    assert torch.equal(run(a, b), a.t() + b)
    with torch.profiler.profile() as profile:
        run(a, b)
    assert "aten::add" not in {event.name for event in profile.events()}


SLOW_IN_ATEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "trunc": lambda x: x.trunc(),
    "erfc": lambda x: x.erfc(),
    "pow": lambda x: x**2.3,
    "isnan": lambda x: x.isnan(),
}


@pytest.mark.parametrize("name", SLOW_IN_ATEN)
def test_functions_that_aten_computes_slowly_run_in_kernels(name: str) -> None:
    """A lone operator whose loop in ATen is slow runs in a kernel, with eager's values."""
    function = SLOW_IN_ATEN[name]
    x = torch.rand(1 << 16) * 4
    run = engine.compile(function)
    torch.testing.assert_close(run(x), function(x))
    with torch.profiler.profile() as profile:
        run(x)
    assert {event.name for event in profile.events()}.isdisjoint((f"aten::{name}", "aten::ne"))


SLOW_CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda x: x * 2,
    "gt": lambda x: x > 0.5,
    "add": lambda x: x + x[0],
    "copy_": lambda x: x.t().contiguous(),
}


@pytest.mark.parametrize("name", SLOW_CALLS)
def test_small_operators_whose_calls_are_slow_run_in_kernels(name: str) -> None:
    """ATen takes long to call with a number or other strides; a launch takes less."""
    function, x = SLOW_CALLS[name], torch.rand(30, 20)
    run = engine.compile(function)
    assert_same((run(x),), (function(x),))
    with torch.profiler.profile() as profile:
        run(x)
    assert f"aten::{name}" not in {event.name for event in profile.events()}


def test_a_small_operator_beside_kernels_is_a_kernel() -> None:
    """A program that has kernels launches one for each small operator, too."""
    x = torch.rand(8, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (((x @ x).relu() @ x).sin() + 1) @ x

    with engine.record() as session:
        assert_same((engine.compile(function)(x),), (function(x),))
    assert len(session.compilations[0].cpu_program.kernels) == 2


def test_inference_without_kernels_runs_the_traced_graph() -> None:
    """A graph that gains nothing by kernels runs as traced, unless it returns views of inputs."""
    bag, ids = nn.EmbeddingBag(9, 4).requires_grad_(False), torch.tensor([[1, 2], [3, 4]])

    def split(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t()[1:], x @ x

    with engine.record() as session:
        assert_same((engine.compile(bag)(ids),), (bag(ids),))
        square = torch.randn(3, 3)
        view, _ = engine.compile(split)(square)
    assert view._base is square
    reasons = [c.cpu_program.later_calls for c in session.compilations]
    assert [bool(r) for r in reasons] == [True, False]


def test_one_row_whose_stride_counts_elements_beside_it_is_no_view() -> None:
    """A copy of one row of a wider tensor has memory for that row."""
    row = torch.randn(1, 4).hsplit(2)[1].requires_grad_()
    copied = engine.compile(lambda x: x.to(torch.float64).to(torch.float32))(row)
    torch.testing.assert_close(copied, row)
    assert not copied._is_view()
    assert copied.untyped_storage().nbytes() == 8
