"""Tensors that kernels cannot take: empty, too large, overlapping or of unusual dtypes.

Unusual dtypes are those that no target computes with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine import errors
from engine.api import make_options
from engine.backends.triton import TritonBackend
from engine.compilation import Compilation
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.lowered_program import AtenCall, LoweredProgram
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.records.session import CompilationRecord
from engine.runtime.program_executor import ProgramExecutor
from engine.runtime.verify.kernels import verify_kernels
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.fx import make_fx
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton
F16, F32 = torch.float16, torch.float32


def lower_fake_inputs(
    function: Callable[..., Any], *made: tuple[tuple[int, ...], torch.dtype], device: str = "cpu"
) -> LoweredProgram:
    """The program for tensors that have no memory."""
    mode = FakeTensorMode()
    with mode:
        fakes = tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in made)
        module = make_fx(lambda *args: (function(*args),), tracing_mode="real")(*fakes)
    return lower(AotGraph(module, fakes, "0/0"), "cuda:90", print_triton)


HUGE_TENSORS: dict[str, tuple[Any, ...]] = {
    "elementwise": (lambda x: x * 2 + 1, ((2**31 + 8,), F16)),
    "rows": (lambda x: x.sum(-1), ((70_000, 40_000), F16)),
    "look-up": (lambda x, at: x[at], ((3_000_000, 1_000), F32), ((8,), torch.int64)),
    "end of a large one": (lambda x: x[-1] + 1, ((3_000_000, 1_000), F32)),
    "turned": (lambda x: x.t().contiguous(), ((50_000, 60_000), F16)),
}


@pytest.mark.parametrize("name", HUGE_TENSORS)
def test_more_than_two_billion_elements_are_indexed_in_64_bits(name: str) -> None:
    """Positions are 64 bits wide as soon as one does not fit in 32, and the kernels compile."""
    function, *made = HUGE_TENSORS[name]
    program = lower_fake_inputs(function, *made)
    (kernel,) = program.kernels
    assert "tl.program_id(0).to(tl.int64)" in kernel.text
    assert not compile_kernel(kernel, "cuda:90").error


def test_positions_that_fit_are_32_bits_wide() -> None:
    """Most kernels pay nothing for those that do not."""
    assert "int64" not in lower_fake_inputs(lambda x: x * 2, ((2**20, 2**10), F32)).kernels[0].text


def test_no_grid_is_longer_than_a_device_takes() -> None:
    """The second dimension of a grid ends at 65,535, however long the rows."""
    for shape in ((64, 6_000_000), (6_000_000, 64)):
        for kernel in lower_fake_inputs(lambda x: x.t().contiguous(), (shape, F16)).kernels:
            assert all(int(size) <= 65_535 for size in kernel.grid[1:])


ODD_LAYOUTS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "no elements": lambda: (torch.randn(0, 4), torch.randn(0, 4)),
    "no elements in rows": lambda: (torch.randn(4, 0), torch.randn(4, 0)),
    "no dimensions": lambda: (torch.randn(()), torch.randn(())),
    "turned": lambda: (torch.randn(6, 4).t(), torch.randn(4, 6)),
    "every other": lambda: (torch.randn(8, 12)[::2, ::2], torch.randn(4, 6)),
    "expanded": lambda: (torch.randn(1, 6).expand(4, 6), torch.randn(4, 1).expand(4, 6)),
    "overlapping": lambda: (torch.randn(9).as_strided((4, 6), (1, 1)), torch.randn(4, 6)),
    "not from the start": lambda: (torch.randn(30)[3:27].view(4, 6), torch.randn(25)[1:].view(4, 6)),
}


@pytest.mark.parametrize("name", ODD_LAYOUTS)
def test_odd_layouts_are_read_as_they_are(name: str) -> None:
    """Kernels read them by their strides, or there is nothing to launch."""
    args = ODD_LAYOUTS[name]()

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 + y, torch.relu(x).sum(), (x + 1).t()

    graph = trace_to_aten(function, args)
    program = lower(graph, "cuda:90", print_triton)
    assert {r.outcome for r in verify_kernels(program, graph, args).values()} <= {"equal", "close"}
    assert bool(program.kernels) == bool(args[0].numel()) or name.startswith("no elements")


@pytest.mark.parametrize(
    ("dtype", "word"), [(torch.float8_e4m3fn, "Float8"), (torch.float8_e5m2, "Float8"), (torch.complex32, "Complex32")]
)
def test_types_without_loops_are_left_to_aten(dtype: torch.dtype, word: str) -> None:
    """The reason names the type."""
    program = lower_fake_inputs(lambda x: x.clone(), ((8, 8), dtype))
    (call,) = program.record.externs
    assert word in call.reason
    assert not program.kernels


def test_a_kernel_that_cannot_be_built_is_named() -> None:
    """What the compiler or the driver raises comes with the kernel's name."""

    def refuse(source: Any, misaligned: frozenset[str]) -> Any:
        raise RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448.\nmore")

    program = lower(trace_to_aten(lambda x: torch.softmax(x, -1), (torch.randn(4, 8),)), "cuda:90", print_triton)
    with pytest.raises(
        errors.KernelBuildError, match=r"softmax_kernel could not be built: RuntimeError: out of resource.*232448\.$"
    ):
        ProgramExecutor(program, refuse)


def lowered_with(monkeypatch: pytest.MonkeyPatch, bind: Any, function: Any, x: torch.Tensor) -> tuple[Any, Any]:
    """Return the pipeline's executor for a GPU with ``bind``'s kernels, and its compilation."""
    monkeypatch.setattr(ProgramExecutor.__init__, "__defaults__", (bind,))
    graph = trace_to_aten(function, (x,))
    work = Compilation(CompilationRecord("0/0", "0", "first"))
    return TritonBackend(make_options("triton"), work, on_gpu=True).make_executor(graph), work


def test_only_what_an_unbuilt_kernel_computes_is_left_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot be built falls back to ATen with a reason; all others are built.

    The recorded failure names the kernel.
    """
    built: list[str] = []

    def bind(source: Any, misaligned: frozenset[str] = frozenset()) -> Any:
        if "softmax" in source.name:
            raise RuntimeError("out of resource: shared memory")
        built.append(source.name)
        return in_aten

    def in_aten(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        given, made = arguments[:2]
        made.copy_(torch.sin(given) * 2)

    def function(x: torch.Tensor) -> Any:
        return torch.softmax(x, -1), torch.sin(x.flatten()[:7]) * 2

    x = torch.randn(40, 8)
    _, work = lowered_with(monkeypatch, bind, function, x)
    assert len(built) == 1
    (failure,) = work.failures
    assert "softmax" in failure.sentence
    assert failure.fallback == "ATen computes the result of this kernel"
    calls = {call.op: call.reason for call in work.program.record.externs}
    assert all("could not be built: RuntimeError: out of resource" in reason for reason in calls.values())
    assert "aten._softmax.default" in calls
    assert [kernel.name for kernel in work.program.kernels] == built


def test_a_graph_of_which_no_kernel_can_be_built_runs_in_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every failure names its kernel and reason; the result is that of ATen."""

    def refuse(source: Any, misaligned: frozenset[str] = frozenset()) -> Any:
        raise RuntimeError("out of resource: registers")

    x = torch.randn(4, 8)
    run, work = lowered_with(monkeypatch, refuse, lambda x: torch.softmax(x, -1), x)
    assert torch.equal(run(x)[0], torch.softmax(x, -1))
    (failure,) = work.failures
    assert "softmax_kernel could not be built: RuntimeError: out of resource: registers" in failure.sentence
    assert not work.program.kernels


def test_a_number_assigned_to_a_part_of_a_gpu_tensor_is_a_constant_of_the_kernel() -> None:
    """Eager makes a tensor on the CPU of it; no ATen call and no launch moves it to the GPU."""

    def window_mask(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(x)
        for start, number in ((0, 1), (5, 2)):
            part = torch.fill(mask.narrow(0, start, 3), torch.tensor(number, device="cpu"))
            mask = torch.slice_scatter(mask, part, 0, start, start + 3)
        return x + mask

    program = lower_fake_inputs(window_mask, ((8, 8), F32), device="cuda")
    (kernel,) = program.kernels
    assert "2.0" in kernel.text
    assert len(program.steps) == 1


def test_what_eager_computes_on_the_cpu_stays_there_beside_gpu_tensors() -> None:
    """Kernels for a GPU neither read memory of the CPU nor return a result there."""
    program = lower_fake_inputs(
        lambda x: (x + torch.tensor([1.0, 2.0], device="cpu").sum(), torch.tensor(2.0, device="cpu").sin(), x * 2),
        ((8, 8), F32),
        device="cuda",
    )
    assert [kernel.name for kernel in program.kernels] == ["mul_kernel"]
    called = [str(step.target) for step in program.steps if isinstance(step, AtenCall)]
    assert {"aten.sum.default", "aten.sin.default", "aten.add.Tensor"} <= {*called}
