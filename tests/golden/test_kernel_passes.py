"""Golden pairs of kernel generation: loop IR to Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engine.ir.kernels.host_vectors import AVX2
from engine.ir.kernels.llvm_machine import llvm
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.kernels.cpu.listings import CpuMachine, compile_for_cpu
from engine.kernels.cpu.printer import print_llvm
from engine.lowering.driver import lower
from tests.golden.pairs import Pair, shows
from tests.golden.test_loop_passes import kernel_text, loop_lines, program_of, to_aten

Tensor = torch.Tensor
Show = Callable[..., None]


@pytest.fixture
def show(pair: Pair) -> Show:
    """Write the pair of a function's kernel: loop IR and Triton."""

    def write(function: Callable[..., Any], *args: Any, **options: Any) -> None:
        program = program_of(function, args, **options)
        pair(function, before=loop_lines(program), after=kernel_text(program))

    return write


@shows("engine/kernels/triton/printer.py", "engine/kernels/triton/op_codegen.py")
def test_print_pointwise(show: Show) -> None:
    """Prints a loop over all elements as a kernel of blocks.

    The mask is there only if the size is not a multiple of the block size.
    """

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).relu()

    show(f, torch.ones(1000), torch.ones(1000))


@shows("engine/kernels/triton/combined_printer.py", "engine/lowering/combine_launches.py")
def test_print_combined(show: Show) -> None:
    """Launches equal computations on tensors of different sizes together.

    Each program finds the tensor that its block belongs to.
    """

    def f(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
        return [x.sigmoid() * 2 for x in (a, b, c)]

    show(f, torch.ones(64, 32), torch.ones(7), torch.ones(1000))


@shows("engine/kernels/triton/printer.py", "engine/kernels/triton/block_heuristics.py")
def test_print_row_reduction(show: Show) -> None:
    """Reduces a short row in one block.

    Each program loads a row, reduces it and continues with it from registers.
    """

    def f(x: Tensor) -> Tensor:
        return x / x.sum(-1, keepdim=True)

    show(f, torch.ones(64, 128))


@shows("engine/kernels/triton/looped_reduction.py")
def test_looped_reduction(show: Show) -> None:
    """Reduces a row that is too long for one block in a loop.

    Each lane has its own accumulator.
    """

    def f(x: Tensor) -> Tensor:
        return x.sum(-1)

    show(f, torch.empty(2048, 40_000))


@shows("engine/kernels/online_reductions.py")
def test_online_softmax(show: Show) -> None:
    """Accumulates a maximum and the sum of exponentials relative to it in one loop.

    This takes one pass over the row instead of two (Milakov and Gimelshein, 2018).
    """

    def f(x: Tensor) -> Tensor:
        return F.softmax(x, -1)

    show(f, torch.empty(2048, 40_000))


@shows("engine/kernels/online_reductions.py")
def test_welford(show: Show) -> None:
    """The squares around a mean are accumulated in the same loop as the mean (Welford, 1962)."""

    def f(x: Tensor) -> Tensor:
        return F.layer_norm(x, (40_000,))

    show(f, torch.empty(2048, 40_000))


@shows("engine/kernels/triton/jit_helpers.py")
def test_half_precision_helpers(show: Show) -> None:
    """Uses approximate functions in a kernel that reads only 16-bit floats.

    Their error is far below the precision of these floats.
    """

    def f(x: Tensor) -> Tensor:
        return F.gelu(x)

    show(f, torch.ones(1024, dtype=torch.bfloat16))


@shows("engine/lowering/philox_ops.py", "engine/lowering/ops/random.py")
def test_random_numbers_in_kernel(show: Show) -> None:
    """With fused_random, the kernel computes the random numbers itself.

    It computes them from a seed and the position of the element.
    """

    def f(x: Tensor) -> Tensor:
        return F.dropout(x, 0.25)

    show(f, torch.ones(1024), fused_random=True)


@shows("engine/kernels/triton/printer.py")
def test_symbolic_sizes(show: Show) -> None:
    """Makes a symbolic size a parameter of the kernel.

    The launch computes the size from the inputs.
    """

    def f(x: Tensor) -> Tensor:
        return x + 1

    show(f, torch.ones(1000), dynamic=True)


@shows("engine/kernels/cpu/listings.py", "engine/kernels/cpu/line_tables.py", "engine/kernels/cpu/instruction_lines.py")
def test_assembly_by_line(pair: Pair) -> None:
    """Each instruction for a CPU has the line of LLVM IR that it comes from.

    LLVM carries the lines through its passes. A constant that it moves has the line that uses it. The CPU is always the
    same one (haswell), whatever this machine has.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()

    def f(x: Tensor) -> Tensor:
        return (x * 3).sum(0)

    graph = to_aten(f, torch.ones(4, 8))
    program = lower(graph, CPU_TARGET, lambda kernel, target: print_llvm(kernel, AVX2))  # type: ignore[arg-type]
    (kernel,) = program.kernels
    made = compile_for_cpu(kernel.name, kernel.text, CpuMachine("x86_64-unknown-linux-gnu", "haswell", "", AVX2))
    assembly = made.listings[1]
    origin = {link.line: str(link.triton_line or link.label) for link in assembly.links}
    numbered = [f"{n:>3} {line}".rstrip() for n, line in enumerate(kernel.text.splitlines(), 1)]
    after = [
        f"{origin.get(n, ''):>3} {line.expandtabs(8)}".rstrip()
        for n, line in enumerate(assembly.text.splitlines(), 1)
        if n in origin or line.endswith(":")
    ]
    pair(f, before=loop_lines(program), between="\n".join(numbered), after="\n".join(after))
