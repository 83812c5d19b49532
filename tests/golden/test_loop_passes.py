"""Golden pairs of lowering: loops, kernel fusion, block sizes, templates and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.kernels.template_choice import AlwaysTemplateChooser
from engine.kernels.print_kernel import print_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from tests.golden.pairs import TARGET, Pair, graph_lines, shows, to_aten

Tensor = torch.Tensor
Show = Callable[..., None]


def program_of(
    function: Callable[..., Any], args: Sequence[Any], *, dynamic: bool | None = None, **options: Any
) -> LoweredProgram:
    """The lowered program of a function."""
    return lower(to_aten(function, *args, dynamic=dynamic), TARGET, print_triton, **options)


def loop_lines(program: LoweredProgram) -> list[str]:
    """Each kernel's loop IR, once."""
    kernels = {k.id: k for k in program.kernels}.values()
    return [line for k in kernels for line in (f"{k.name}:", *(f"    {op.text}" for op in k.ops))]


def decision_lines(program: LoweredProgram) -> list[str]:
    """The decisions to fuse or not, with their reasons."""

    def names(ids: Sequence[str]) -> str:
        return ", ".join(i.rpartition(":")[2] for i in ids)

    return [
        f"{'fused' if d.fused else 'not fused'}: {names(d.first)} with {names(d.second)}. {d.reason}"
        for d in program.record.decisions
    ]


def kernel_text(program: LoweredProgram) -> list[str]:
    """The Triton text of each kernel, once, without imports."""
    texts = dict.fromkeys(k.text.split("@triton.jit\n", 1)[1].rstrip("\n") for k in program.kernels)
    return "\n\n".join(texts).split("\n")


def call_lines(program: LoweredProgram) -> list[str]:
    """The wrapper program, which launches the kernels."""
    return program.record.wrapper_text.rstrip("\n").split("\n")


@pytest.fixture
def show_fusion(pair: Pair) -> Show:
    """Write the pair of a function's fusion: ATen graph, kernels as loop IR, decisions."""

    def write(function: Callable[..., Any], *args: Any) -> None:
        program = program_of(function, args)
        parts: dict[str, Any] = {"before": graph_lines(to_aten(function, *args).module), "after": loop_lines(program)}
        pair(function, **parts, decisions=decision_lines(program))

    return write


@shows("engine/lowering/graph_lowering.py", "engine/lowering/build_loop_kernel.py")
def test_lower_to_loops(show_fusion: Show) -> None:
    """Lowers each operator to a function of an index.

    A chain of elementwise operators becomes one loop over all elements.
    """

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).relu() * 2

    show_fusion(f, torch.ones(64, 32), torch.ones(32))


@shows("engine/lowering/cpu/build_loop_nest.py")
def test_loops_of_a_cpu_kernel(pair: Pair) -> None:
    """Quotients and remainders of an index become loops of their own on a CPU.

    Before: indices of the GPU kernel, which numbers all elements. After: those of the nest.
    """

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.t().reshape(-1) + y).sin()

    args = torch.ones(8, 4), torch.ones(32)
    program = lower(to_aten(f, *args), CPU_TARGET, print_kernel)
    pair(f, before=loop_lines(program_of(f, args)), after=loop_lines(program))


@shows("engine/lowering/ops/views.py", "engine/ir/loop_ir/index_expr.py")
def test_views_become_indices(show_fusion: Show) -> None:
    """A view is no loop: it changes the index at which its reader loads."""

    def f(x: Tensor) -> Tensor:
        return x.t()[1:].reshape(-1) + 1

    show_fusion(f, torch.ones(8, 4))


@shows("engine/lowering/fusion/scheduler.py")
def test_fuse_reduction_with_its_readers(show_fusion: Show) -> None:
    """Fuses a reduction into the kernel that reads it if both have the same rows.

    One pass over memory computes both.
    """

    def f(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    show_fusion(f, torch.ones(64, 128))


@shows("engine/lowering/fusion/scheduler.py", "engine/lowering/fusion/fusion_cost.py")
def test_recompute_cheap_value(show_fusion: Show) -> None:
    """Computes a cheap value in each of the two kernels that read it.

    This costs less than storing it.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y.sum(0), y.sum(1)

    show_fusion(f, torch.ones(64, 128))


@shows("engine/lowering/fusion/scheduler.py", "engine/lowering/fusion/fusion_cost.py")
def test_store_expensive_value(show_fusion: Show) -> None:
    """A value that would be computed many times is stored once, with the reason."""

    def f(x: Tensor, table: Tensor) -> Tensor:
        rows = table.sum(1)
        return rows[:, None] * x[None, :]

    show_fusion(f, torch.ones(64), torch.ones(32, 128))


@shows("engine/lowering/fusion/scheduler.py")
def test_fuse_horizontally(show_fusion: Show) -> None:
    """Merges independent kernels over the same loops into one kernel.

    The merged kernel loads the inputs that both read once.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    show_fusion(f, torch.ones(64, 128))


@shows("engine/lowering/fusion/scheduler.py")
def test_stored_result_is_read_in_registers(show_fusion: Show) -> None:
    """Stores a returned value in the kernel that computes the next operator from it.

    The next operator reads the value from registers.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y + 1

    show_fusion(f, torch.ones(64, 128))


@shows("engine/lowering/unroll_reductions.py")
def test_unroll_reductions(show_fusion: Show) -> None:
    """Unrolls a short sum that only another reduction reads.

    Both then fit into one kernel: the distances of all pairs of points are never stored.
    """

    def nearest(a: Tensor, b: Tensor) -> Tensor:
        apart = a[:, None, :] - b[None, :, :]
        return (apart * apart).sum(-1).amin(-1)

    show_fusion(nearest, torch.ones(64, 3), torch.ones(128, 3))


@shows("engine/lowering/promotion.py")
def test_promotion(show_fusion: Show) -> None:
    """Converts operands to the dtype of the result.

    16-bit floats are computed in 32 bits and rounded where eager rounds.
    """

    def f(x: Tensor, n: Tensor) -> Tensor:
        return x * n + 0.5

    show_fusion(f, torch.ones(64, dtype=torch.bfloat16), torch.ones(64, dtype=torch.int64))


@shows("engine/lowering/ops/indexing.py")
def test_index_bounds_check(show_fusion: Show) -> None:
    """Lowers a gather to a load at an index that is itself loaded.

    A negative index counts from the end, and a check raises for an index out of bounds.
    """

    def f(table: Tensor, index: Tensor) -> Tensor:
        return table[index] * 2

    show_fusion(f, torch.ones(8, 16), torch.zeros(4, dtype=torch.int64))


@shows("engine/lowering/ops/scatter.py", "engine/lowering/ops/scatter_reduce.py")
def test_scatter(pair: Pair) -> None:
    """Additions to indexed elements become atomic additions into a copy of the base."""

    def f(base: Tensor, index: Tensor, values: Tensor) -> Tensor:
        return base.index_add(0, index, values)

    args = torch.ones(8), torch.zeros(4, dtype=torch.int64), torch.ones(4)
    program = program_of(f, args)
    after = [*loop_lines(program), "", *call_lines(program)]
    pair(f, before=graph_lines(to_aten(f, *args).module), after=after)


@shows("engine/lowering/ops/scans.py")
def test_scan(show_fusion: Show) -> None:
    """A cumulative sum becomes a scan along its dimension."""

    def f(x: Tensor) -> Tensor:
        return x.exp().cumsum(-1)

    show_fusion(f, torch.ones(64, 128))


@shows("engine/lowering/library_ops.py", "engine/lowering/schedule_to_program.py")
def test_library_call(pair: Pair) -> None:
    """A matmul stays a call of a vendor library. The operators around it become kernels."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    args = torch.ones(64, 64), torch.ones(64, 64)
    pair(f, before=graph_lines(to_aten(f, *args).module), after=call_lines(program_of(f, args)))


@shows("engine/lowering/templates/matmul.py", "engine/lowering/templates/choose_templates.py")
def test_matmul_template(pair: Pair) -> None:
    """A template turns a matmul into a kernel of tiles with an epilogue.

    The operators that follow the matmul become the epilogue.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).relu()

    args = torch.ones(256, 256), torch.ones(256, 256)
    after = program_of(f, args, chooser=AlwaysTemplateChooser())
    pair(f, before=call_lines(program_of(f, args)), after=[*call_lines(after), "", *kernel_text(after)])


@shows("engine/lowering/templates/attention.py", "engine/kernels/triton/attention_template.py")
def test_attention_template(pair: Pair) -> None:
    """With a template, an attention call becomes a kernel that never stores the scores."""

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    args = [torch.ones(2, 4, 128, 64, dtype=torch.bfloat16) for _ in range(3)]
    after = program_of(f, args, chooser=AlwaysTemplateChooser())
    pair(f, before=call_lines(program_of(f, args)), after=call_lines(after))


@shows("engine/lowering/memory/buffer_reuse.py")
def test_buffer_reuse_in_place(pair: Pair) -> None:
    """A kernel writes its result into memory that it is the last to read."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm((torch.mm(x, w) + 1), w)

    args = torch.ones(256, 256), torch.ones(256, 256)
    program = program_of(f, args)
    reuses = [
        f"{r.buffer} takes the memory of {r.reused}, {r.bytes_saved:,} bytes. {r.reason}" for r in program.record.reuses
    ]
    pair(f, before=graph_lines(to_aten(f, *args).module), after=call_lines(program), reuses=reuses)


@shows("engine/lowering/dedup_kernels.py")
def test_dedup_kernels(pair: Pair) -> None:
    """Kernels with equal loops share one text; each launch has its own buffers."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = torch.mm(x, w).relu() * 2
        return torch.mm(y, w).relu() * 2

    args = torch.ones(64, 64), torch.ones(64, 64)
    program = program_of(f, args)
    after = [*call_lines(program), "", *kernel_text(program)]
    pair(f, before=graph_lines(to_aten(f, *args).module), after=after)


@shows("engine/lowering/pad_strides.py")
def test_pad_strides(pair: Pair) -> None:
    """Aligns the rows of a result that only a library matmul reads to 16 bytes.

    The library then has a faster kernel.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x * 2, w)

    args = torch.ones(512, 509, dtype=torch.bfloat16), torch.ones(509, 64, dtype=torch.bfloat16)
    pair(f, before=graph_lines(to_aten(f, *args).module), after=call_lines(program_of(f, args)))


@shows("engine/lowering/transpose_tile.py")
def test_transpose_tile(pair: Pair) -> None:
    """Uses square tiles for a kernel that reads and writes along different dimensions.

    Both accesses are then contiguous.
    """

    def f(x: Tensor) -> Tensor:
        return x.t().contiguous() + 1

    args = (torch.ones(512, 512),)
    program = program_of(f, args)
    pair(f, before=loop_lines(program), after=kernel_text(program))
