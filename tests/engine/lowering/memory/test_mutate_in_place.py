"""Kernels write an input's new value into the input where nobody sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.llvm_machine import host_unit
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.kernels.cpu.printer import print_llvm
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.aten_fallback import with_aten_fallback
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.lowering.trace_aten import trace_to_aten

SIDE = torch.randn(64, 64)


def lowered(function: Any, *args: torch.Tensor, mutated: tuple[tuple[int, int], ...] = ((0, 0),)) -> LoweredProgram:
    """The program of a function whose outputs are new values of inputs, by positions."""
    return lower(replace(trace_to_aten(function, args), mutated_inputs=mutated), "cuda:90", print_triton)


def written(function: Any, *args: torch.Tensor, **options: Any) -> tuple[str, ...]:
    """The inputs that the program writes."""
    return lowered(function, *args, **options).written_inputs


def test_an_elementwise_update_is_written_into_the_input():
    """The program writes the input and records the reason."""
    program = lowered(lambda w, g: (w - 0.1 * g, g @ g), SIDE, SIDE)
    assert program.written_inputs == (program.inputs[0],)
    assert any("into the input" in r.reason for r in program.record.reuses)


def test_statistics_of_rows_are_written_by_the_reduction():
    """A kernel that reduces rows writes one number of a row into the input."""
    program = lowered(lambda r, x: (r * 0.9 + x.mean(1) * 0.1,), SIDE[0].clone(), SIDE)
    assert program.written_inputs == (program.inputs[0],)


def test_a_few_elements_are_written_into_the_input():
    """A cache that gets new rows is not copied if its old ones are not read."""
    place, row = torch.tensor([3]), torch.randn(1, 64)
    program = lowered(lambda w, i, g: (w.index_copy(0, i, g), g @ g.t()), SIDE, place, row)
    assert program.written_inputs == (program.inputs[0],)
    assert ".copy_(" not in program.record.wrapper_text
    assert not written(lambda w, i: (w.index_copy(0, i, w[:1] + 1),), SIDE, place)
    assert not written(lambda w, i, g: (w.index_copy(0, i, g), w + 1), SIDE, place, row)


def test_results_that_alias_are_left_alone():
    """An input stays as it is where its old value is read or returned later."""
    w, g = torch.randn(64, 64), torch.randn(64, 64)
    assert not written(lambda w, g: ((y := w - g), y), w, g)
    assert not written(lambda w, g: (w - g, w), w, g)
    assert not written(lambda w, g: (w.t() + g,), w, g)
    assert not written(lambda w, g: (w - w.sum(),), w, g)
    assert not written(lambda w, g: (w - g, torch.linalg.inv(g)), w, g)
    assert not written(lambda w, g: (w.double() - g,), w, g)
    assert not written(lambda w, g: (w - g, w @ g), w, g) or lowered(lambda w, g: (w - g, w @ g), w, g).steps[0].calls
    assert not written(lambda w: (w + 1,), torch.randn(64, 1).expand(64, 64))


def written_on_cpu(function: Any, *args: torch.Tensor, mutated: tuple[tuple[int, int], ...] = ((0, 0),)) -> set[str]:
    """The inputs that the program for the CPU writes."""
    graph = replace(trace_to_aten(function, args), mutated_inputs=mutated)
    return set(lower(graph, CPU_TARGET, lambda kernel, target: print_llvm(kernel, host_unit())).written_inputs)


def _update_twice(w: torch.Tensor, v: torch.Tensor, m: torch.Tensor, n: torch.Tensor, g: torch.Tensor) -> Any:
    m, n = m + 1, n + 1
    return w - g / (1 - 0.9 ** m.item()), m, v - g / (1 - 0.9 ** n.item()), n


def test_numbers_are_read_before_inputs_are_written() -> None:
    """A number that a later kernel takes is read first, so that each kernel writes its input."""
    counts = torch.tensor(1.0), torch.tensor(2.0)
    mutated = (0, 0), (1, 2), (2, 1), (3, 3)
    assert written_on_cpu(_update_twice, SIDE, SIDE + 1, *counts, SIDE, mutated=mutated) == {"arg0_1", "arg1_1"}


def test_an_error_of_a_number_leaves_what_eager_leaves() -> None:
    """A division by zero in the second update leaves the first one done, as in eager."""

    def optimizer() -> torch.optim.Adam:
        parameters = [torch.nn.Parameter(SIDE + n) for n in range(3)]
        made = torch.optim.Adam(parameters, foreach=False)
        for parameter in parameters:
            parameter.grad = SIDE * 2
        made.step()
        return made

    eager, ours = optimizer(), optimizer()
    run = engine.compile(ours.step)
    for count in (1.0, -1.0):
        for made, step in ((eager, eager.step), (ours, run)):
            list(made.state.values())[1]["step"].fill_(count)
            with pytest.raises(ZeroDivisionError) if count < 0 else contextlib.nullcontext():
                step()
        for theirs, its in zip(eager.state.items(), ours.state.items(), strict=True):
            torch.testing.assert_close(its, theirs)


def test_a_cpu_kernel_writes_an_input_only_where_nothing_raises_later() -> None:
    """An input keeps its value until the last check of an index or divisor passed."""

    w, places, n = torch.randn(512, 512), torch.randint(0, 512, (512,)), torch.randint(1, 5, (512, 512))
    assert written_on_cpu(lambda w, i: (w.sin() * 2, i), w, places)
    assert not written_on_cpu(lambda w, i: (w.sin() + w[i], i), w, places)
    assert not written_on_cpu(lambda w, n: (w.sin() * 2, (n // (n - 1)) + 1), w, n)


@pytest.mark.parametrize(
    "later",
    [
        lambda g: torch.nn.functional.dropout(g, 0.5),
        lambda g: torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(g, "sum", "0")),
        lambda g: g + torch.rand(64, device="cpu"),
        lambda g: torch.nn.functional.interpolate(g[None, None], scale_factor=2, mode="bilinear"),
        lambda g: torch.fft.rfft(g).abs(),
        lambda g: g.topk(3)[0],
    ],
)
def test_operators_that_check_no_values_may_follow(later: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Running statistics are written in place although dropout, resizing or sorting follows."""
    assert written(lambda w, g: (w * 0.9 + g * 0.1, later(g)), SIDE.clone(), SIDE)


def test_probabilities_are_checked_before_an_input_is_written() -> None:
    """Tensors of probabilities may be out of range."""
    assert not written(lambda w, g: (w * 0.9 + g * 0.1, torch.bernoulli(g)), SIDE.clone(), SIDE)


class Launches:
    """Kernels that do nothing, or fail."""

    def __init__(self, fails_at: int) -> None:
        self.count, self.fails_at = 0, fails_at

    def __call__(self, kernel: Any, misaligned: Any) -> Any:
        def launch(x: int, y: int, z: int, stream: int, *args: torch.Tensor) -> None:
            self.count += 1
            if self.count == self.fails_at:
                raise torch.OutOfMemoryError("no memory left")

        return launch


def two_updates() -> LoweredProgram:
    return lowered(lambda a, b: (a - 1, b[:32] * 2), torch.randn(64, 64), torch.randn(32, 64), mutated=((0, 0), (1, 1)))


def test_the_input_itself_is_returned():
    """The output is the input, so that nothing is copied back."""
    program = two_updates()
    assert len(program.written_inputs) == 2
    a, b = torch.ones(64, 64), torch.ones(32, 64)
    run = ProgramExecutor(program, Launches(0))
    out = run(a, b)
    assert out[0] is a
    assert out[1] is b


@pytest.mark.parametrize("fails_at", [1, 2])
def test_nothing_runs_twice_after_an_input_may_be_written(fails_at):
    """An error after the first write is raised, and the version counter has risen."""
    program = two_updates()
    assert len(program.kernels) == 2
    told: list[str] = []
    run = with_aten_fallback(
        ProgramExecutor(program, Launches(fails_at)),
        lambda: lambda a, b: ("eager",),
        lambda error, why, done: told.append(done),
        is_boxed=False,
    )
    a, b = torch.ones(64, 64), torch.ones(32, 64)
    with pytest.raises(torch.OutOfMemoryError):
        run(a, b)
    assert a._version == 1
    assert told == [""]


def test_an_all_reduce_overwrites_what_nothing_reads_later():
    """An all-reduce overwrites an intermediate, never an output, input or strided view."""
    reduce = torch.ops._c10d_functional.all_reduce

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        returned = x * 2
        operands = ((x @ w).view(16, 16, 16), (x + w).t(), returned, x)
        return returned, *(reduce(operand, "sum", "0") + 1 for operand in operands)

    program = lowered(function, SIDE, SIDE, mutated=())
    targets = [str(call.target) for step in program.steps for call in step.calls if "all_reduce" in str(call.target)]
    assert targets == ["_c10d_functional.all_reduce_.default"] + ["_c10d_functional.all_reduce.default"] * 3
