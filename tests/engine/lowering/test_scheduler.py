"""What shares a kernel, what does not, and what is told about it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import nn

import engine
from engine.ir.kernels.lowered_program import AtenCall, BufferRef, Launch, LoweredProgram
from engine.ir.kernels.symbol_locations import stride_location
from engine.kernels.to_records import kernel_records
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.lowering.graph_lowering import LoweringError
from tests.engine.lowering.trace_aten import trace_to_aten

F = nn.functional


def lowered(function: Callable[..., Any], *args: torch.Tensor, is_dynamic: bool = False) -> LoweredProgram:
    """The program of a function."""
    return lower(trace_to_aten(function, args, is_dynamic=is_dynamic), "cuda:90", print_triton)


def test_masked_softmax_is_one_kernel() -> None:
    """Scaling and masking go into the softmax, whose row is read once."""
    x, mask = torch.randn(64, 128), torch.rand(64, 128) > 0.5
    program = lowered(lambda x, m: torch.softmax((x * 0.125).masked_fill(m, -1e9), -1), x, mask)
    (kernel,) = program.kernels
    assert kernel.bytes_moved == 64 * 128 * (4 + 4 + 1)
    assert kernel.text.count("tl.load") == 2
    assert "softmax" in kernel.name


@pytest.mark.thorough
def test_layer_norm_with_residual_is_one_kernel() -> None:
    """The sum is computed, stored for later use and normalized in one go."""
    x, w = torch.randn(32, 64), torch.randn(64)

    def function(x: Any, y: Any, w: Any, b: Any) -> Any:
        total = x + y
        return total, F.layer_norm(total, (64,), w, b)

    program = lowered(function, x, x.clone(), w, w.clone())
    (kernel,) = program.kernels
    assert sum(a.is_written for a in kernel.args) == 2
    assert program.record.lowered == program.record.total


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda a: torch.mm(c := a.cos(), c) + c.sum(1), 4 * 1024),
        (lambda a: (torch.mm(c := a.cos(), c) + (e := c + a), e), 6 * 1024),
        (lambda a: torch.mm(c := a.cos(), c) + c.cos(), 5 * 1024),
    ],
    ids=["a sum of it", "a result of its own", "as large as it"],
)
def test_reader_of_a_stored_tensor_joins_its_kernel(function: Callable[..., Any], numbers: int) -> None:
    """A reader of a stored tensor is fused into its kernel unless that moves more bytes.

    The reader waits for an extern call that takes the same tensor; fused, it need not load that tensor again.
    """
    program = lowered(function, torch.randn(32, 32))
    assert 0 <= sum(k.bytes_moved or 0 for k in program.kernels) // 4 - numbers <= 64


def test_short_sums_are_unrolled_into_reductions() -> None:
    """Pairwise distances stay out of memory when only each point's minimum is needed.

    When the distances themselves are returned, they are computed as a sum reduction.
    """
    x, y = torch.randn(40, 1, 3), torch.randn(1, 50, 3)
    (kernel,) = lowered(lambda x, y: (x - y).square().sum(-1).sqrt().amin(1), x, y).kernels
    assert kernel.bytes_moved == 4 * (40 * 3 + 50 * 3 + 40)
    (kernel,) = lowered(lambda x, y: (x - y).square().sum(-1).sqrt(), x, y).kernels
    assert "tl.sum" in kernel.text


def test_embeddings_are_one_kernel() -> None:
    """Two table look-ups and their sum; positions need no memory."""
    tokens = torch.randint(0, 50, (2, 9))
    program = lowered(lambda t, a, b: a[t] + b[torch.arange(9)], tokens, torch.randn(50, 16), torch.randn(9, 16))
    (kernel,) = program.kernels
    assert kernel.text.count("tl.load") == 3


def test_pointwise_between_library_calls_is_one_kernel() -> None:
    """What stands between two matrix products is one pass over memory."""
    program = lowered(
        lambda x, w, v: (F.gelu(x @ w) * 2 + 1) @ v, torch.randn(8, 16), torch.randn(16, 32), torch.randn(32, 4)
    )
    assert [type(s) for s in program.steps] == [AtenCall, Launch, AtenCall]
    assert all(e.is_library for e in program.record.externs)


def test_views_cost_nothing() -> None:
    """Heads are split and transposed by index: the library call gets a strided view."""
    program = lowered(
        lambda x: x.view(2, 6, 4, 8).transpose(1, 2) @ x.view(2, 6, 4, 8).permute(0, 2, 3, 1), torch.randn(2, 6, 32)
    )
    assert sum(isinstance(s, AtenCall) for s in program.steps) == 1


def test_costly_values_are_not_computed_twice() -> None:
    """A value that two different walks need is stored once, and the refusal says why."""

    def function(x: Any) -> Any:
        costly = (x.sin() * 2).exp()
        return costly.sum(0), costly.sum(1)

    program = lowered(function, torch.randn(300, 200))
    assert "".join(k.text for k in program.kernels).count("tl.sin") == 1
    assert any(not d.fused and d.reason for d in program.record.decisions)


def test_cheap_values_are_computed_again() -> None:
    """A cast that two different kernels read is not worth storing."""

    def function(x: Any) -> Any:
        f = x.float()
        return f.sum(0), f.sum(1)

    program = lowered(function, torch.randn(300, 200, dtype=torch.float64).float())
    assert all(b.kind != "intermediate" for b in program.buffers.values())


def test_few_long_rows_are_split() -> None:
    """A sum over everything is done by many programs, then by one."""
    first, second = lowered(torch.sum, torch.randn(1 << 20)).kernels
    assert first.grid[0] > 1
    assert second.grid == (1,)


def test_sums_of_columns_of_two_layouts_are_split() -> None:
    """A sum to few channels is split, also where one factor has its channels apart in memory."""

    def scale_grad(x: Any, y: Any) -> Any:
        return (x.permute(0, 2, 3, 1) * y).sum((0, 1, 2))

    first, second = lowered(scale_grad, torch.randn(8, 192, 40, 40), torch.randn(8, 40, 40, 192)).kernels
    assert first.grid[0] >= 128
    assert second.grid[0] <= 192


def test_an_activation_joins_the_sum_beside_its_gradient() -> None:
    """A recomputed activation is stored where its input is read for the sum.

    The sum's loops are parts, columns and rows of a part; those of the activation have another shape.
    """

    def backward(g: Any, x: Any) -> Any:
        grad = torch.ops.aten.gelu_backward(g, x)
        return F.gelu(x.view(8, -1, x.shape[1])), grad, grad.float().sum(0)

    g, x = torch.randn(4096, 128), torch.randn(4096, 128)
    first, _ = lowered(backward, g, x).kernels
    assert first.text.count("tl.load(arg1_ptr") == 1
    assert first.text.count("tl.store(") == 3


def test_an_activation_in_another_layout_stays_apart() -> None:
    """A kernel that walks a tensor in another order would store elements apart."""

    def backward(x: Any) -> Any:
        return x.float().sum(0), x.t().contiguous().sin()

    assert len(lowered(backward, torch.randn(4096, 128)).kernels) == 3


def test_a_split_variance_reads_its_input_once() -> None:
    """A split variance reads its input once and combines the partial sums and squares.

    Each part gives its sum and the squares around its own mean; the final reduction reads only these.
    """
    x = torch.randn(1 << 18)
    program = lowered(torch.var_mean, x)
    assert sum(k.text.count("tl.load(arg0_ptr") for k in program.kernels) == 1
    assert sum(k.bytes_moved or 0 for k in program.kernels) < 1.1 * x.nbytes


def test_a_refusal_is_recorded_once_per_kernel() -> None:
    """A rejected fusion is recorded once: the matmul stands between, loop order is not named.

    The program has a sum that is read both by the matmul and after it.
    """

    def function(x: Any, y: Any, w: Any) -> Any:
        total = x + y.exp().sin()
        return total @ w + total

    program = lowered(function, *(torch.randn(64, 64) for _ in range(3)))
    refused = [d.reason for d in program.record.decisions if not d.fused]
    assert len(refused) == len(set(refused))
    assert all("order" not in reason for reason in refused)


def test_a_full_normalization_does_not_run_on_one_program() -> None:
    """Division by a full reduction is not fused into the single program that reduces."""
    program = lowered(lambda x: x / x.sum(), torch.randn(1 << 18))
    assert program.kernels[-1].grid[0] > 64


def test_no_cycle_through_a_library_call() -> None:
    """A kernel is never fused across a call that stands between its parts."""

    def function(x: Any, w: Any) -> Any:
        y = x.exp()
        return y + y @ w

    kinds = [type(s) for s in lowered(function, torch.randn(8, 8), torch.randn(8, 8)).steps]
    assert kinds == [Launch, AtenCall, Launch]


def test_every_decision_has_a_sentence() -> None:
    """Reasons are whole sentences, savings are counted."""
    program = lowered(lambda x: torch.softmax(x * 2, -1) + 1, torch.randn(64, 64))
    assert program.record.decisions
    assert all(d.reason.endswith(".") and d.reason[0].isupper() for d in program.record.decisions)
    assert all((d.bytes_saved or 0) > 0 for d in program.record.decisions if d.fused)


def test_missing_lowerings_are_counted_with_a_reason() -> None:
    """What ATen does is told apart: best done by a library, or not lowered."""
    pool = torch.ops.aten.fractional_max_pool2d
    program = lowered(
        lambda x, u: (torch.sort(x * 2)[0], pool(x, [2, 2], [3, 3], u)[0]), torch.randn(1, 4, 8, 8), torch.rand(1, 4, 2)
    )
    reasons = {e.op.split(".")[1]: (e.is_library, e.reason) for e in program.record.externs}
    assert reasons["sort"][0]
    assert reasons["fractional_max_pool2d"] == (False, "It has no lowering.")
    assert program.record.total - program.record.lowered == 2


def test_outputs_that_are_views_share_memory() -> None:
    """An output that is a view of something in memory is not copied."""
    program = lowered(lambda x: (x * 2).t(), torch.randn(4, 6))
    (output,) = program.outputs
    assert isinstance(output, BufferRef)
    assert output.stride == (1, 6)
    assert len(program.kernels) == 1


def test_the_stride_of_a_dimension_of_one_element_can_be_returned() -> None:
    """Its symbol may occur nowhere else: the program reads it from the input."""
    x = torch.empty_strided((4, 1), (1, 7)).fill_(1)
    program = lowered(lambda x: (x.stride(1), x * 2 + 1), x, is_dynamic=True)
    assert program.symbol_sources[str(program.outputs[0])] == (0, stride_location(1))


def test_one_program_serves_all_sizes() -> None:
    """With symbols for sizes, sizes are parameters of the kernel."""
    program = lowered(lambda x: torch.softmax(x * 2, -1), torch.randn(5, 40), is_dynamic=True)
    (kernel,) = program.kernels
    assert {a.kind for a in kernel.args} == {"pointer", "size", "constexpr"}
    assert set(program.symbol_sources.values()) == {(0, 0), (0, 1)}


def test_provenance_reaches_the_aten_nodes() -> None:
    """Every operation of a kernel, and every line that computes, names where it came from."""
    (kernel,) = lowered(lambda x: torch.softmax(x.masked_fill(x > 1, 0), -1), torch.randn(8, 16)).kernels
    origins = {o for op in kernel.ops for o in op.origins}
    assert origins == set(kernel.nodes)
    assert all(o.startswith("aten:0/0:") for o in origins)
    lines = kernel.text.splitlines()
    assert len(lines) == len(kernel.line_ops)
    ids = {op.id for op in kernel.ops}
    assert all(set(found) <= ids for found in kernel.line_ops)
    for line, found in zip(lines, kernel.line_ops, strict=True):
        assert bool(found) == (
            "tl.load" in line
            or "tl.store" in line
            or (" = " in line and "program_id" not in line and "arange" not in line)
        )


def test_a_decomposed_operator_keeps_its_origin() -> None:
    """Parts of a decomposed node all come from that node."""
    (kernel,) = lowered(lambda x: F.mse_loss(x, x * 2), torch.randn(8, 16)).kernels
    assert {o.rsplit(":", 1)[1].split("_")[0] for o in kernel.nodes} == {"mul", "mse"}


def test_a_graph_that_mutates_is_refused() -> None:
    """Lowering takes functional graphs only, and says so."""
    graph = trace_to_aten(lambda x: x + 1, (torch.randn(3),))
    node = next(n for n in graph.module.graph.nodes if n.op == "call_function")
    node.target = torch.ops.aten.add_.Tensor
    with pytest.raises(LoweringError, match="not functional"):
        lower(graph, "cuda:90", print_triton)


def test_the_program_reads_as_python() -> None:
    """The wrapper's text compiles, and names every kernel."""
    program = lowered(lambda x, w: torch.softmax(x @ w, -1), torch.randn(8, 16), torch.randn(16, 32))
    compile(program.record.wrapper_text, "wrapper", "exec")
    assert all(k.name in program.record.wrapper_text for k in program.kernels)


def _blocks(x: Any, w: Any, v: Any, a: Any, b: Any) -> Any:
    """Three equal blocks between library products, and one that differs in a constant."""
    x = F.gelu(x @ w) * a
    x = F.gelu(x @ v) * b
    x = F.gelu(x @ w) * a
    return F.gelu(x @ v) * 2


def test_equal_kernels_are_printed_once() -> None:
    """Equal loops share one kernel, launched on other buffers, with a name free of counters."""
    w = torch.randn(16, 16)
    program = lowered(_blocks, torch.randn(8, 16), w, w.clone(), torch.randn(16), torch.randn(16))
    kernels = program.kernels
    assert [k.id for k in kernels] == ["k0", "k0", "k0", "k1"]
    assert len({k.text for k in kernels}) == 2
    assert kernels[0].name == "fused_gelu_mul"
    assert kernels[3].name == "fused_gelu_mul_2"
    assert [a.name for a in kernels[0].args] == [a.name for a in kernels[2].args]
    pointers = [tuple(a.buffer for a in k.args if a.kind == "pointer") for k in kernels]
    assert len(set(pointers)) == 4
    assert len({k.nodes for k in kernels}) == 4


def test_numbers_that_compare_equal_are_not_the_same_kernel() -> None:
    """Kernels that differ in 0.0 and -0.0, in sizes or in dtypes are distinct kernels."""
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    program = lowered(lambda x, w: (torch.where(x > 1, x, 0.0) @ w, torch.where(w > 1, w, -0.0) @ x), x, w)
    assert [k.id for k in program.kernels] == ["k0", "k1"]
    program = lowered(lambda x, y: ((x * 2) @ x * 2) @ y, x, torch.randn(8, 4))
    assert [k.id for k in program.kernels] == ["k0", "k0"]
    program = lowered(lambda x, y: (x * 2) @ y * 2, x, torch.randn(8, 4))
    assert [k.id for k in program.kernels] == ["k0", "k1"]
    program = lowered(lambda x, y: ((x * 2) @ x, (y * 2) @ y), x, x.double())
    assert [k.id for k in program.kernels] == ["k0", "k1"]


def test_the_record_of_a_shared_kernel_lists_every_launch() -> None:
    """Each distinct kernel has one record with the nodes of all its launches.

    Each operation names the nodes it comes from in any of the launches.
    """
    w = torch.randn(16, 16)
    program = lowered(_blocks, torch.randn(8, 16), w, w.clone(), torch.randn(16), torch.randn(16))
    shared, single = kernel_records(program.kernels)
    assert [len(shared.launches), len(single.launches)] == [3, 1]
    assert set(shared.fused_nodes) == {n for launch in shared.launches for n in launch.nodes}
    assert {o for op in shared.ops for o in op.origins} == set(shared.fused_nodes)
    assert all(launch.buffers and set(launch.buffers) < set(shared.launch_args or {}) for launch in shared.launches)


def test_rows_that_a_library_multiplies_begin_at_whole_lines() -> None:
    """A bfloat16 row of 1,030 elements is padded to 1,032, unless the caller sees the tensor."""

    def multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * 2) @ b

    def shown(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        twice = a * 2
        return twice @ b, twice

    a, b = torch.randn(64, 1030).bfloat16(), torch.randn(1030, 8).bfloat16()
    assert lowered(multiplied, a, b).buffers["mul"].stride == (1032, 1)
    assert lowered(shown, a, b).buffers["mul"].stride == (1030, 1)


def test_schedules_do_not_depend_on_addresses() -> None:
    """Kernels over the same loops are fused in program order, independent of object addresses."""

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a + b, b * c, c - a, a / c

    args = (torch.ones(6, 5), torch.ones(5), torch.ones(6, 1))
    kept, texts = [], set()
    for n in range(6):
        program = lower(trace_to_aten(f, args), "cuda:90", print_triton)
        kept.append([object() for _ in range(1000 * n)])  # the next definitions lie elsewhere
        texts.add((program.record.decisions, program.record.wrapper_text))
    assert len(texts) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x) * x.mean(-1, keepdim=True),
        lambda x: torch.cat([x, x * 2], 0).flip(0) + 1,
        lambda x: x[torch.arange(x.shape[0]) // 2] * 3,
        lambda x: x[:, :1].expand(-1, x.shape[1]).exp() + x,
    ],
    ids=["reduction", "cat", "gather", "expand"],
)
def test_bytes_and_flops_of_symbolic_sizes_are_those_of_the_call(function: Callable[..., Any]) -> None:
    """The record has the counts of the compiled call, and their expressions."""
    counts = []
    for is_dynamic in (False, True):
        engine.reset()
        with engine.record() as session:
            engine.compile(function, backend="triton", dynamic=is_dynamic)(torch.ones(6, 32))
        kernels = session.compilations[0].kernels
        counts.append([(k.bytes_moved, k.flops) for k in kernels])
    assert counts[0] == counts[1]
    for kernel in kernels:
        assert kernel.size_hints
        for text, count in ((kernel.bytes_expression, kernel.bytes_moved), (kernel.flops_expression, kernel.flops)):
            assert sympy.sympify(text).subs(kernel.size_hints) == count


def test_a_sum_before_a_permuted_copy_reads_adjacent_elements() -> None:
    """A kernel that stores sums in another order loops over them in memory order."""
    (kernel,) = lowered(lambda x: x.sum(0).permute(1, 0).contiguous() * 2, torch.randn(64, 6, 50)).kernels
    assert "arg0_ptr + col * 300 + row," in kernel.text


def test_a_softmax_gradient_is_stored_by_rows_before_it_is_summed_by_columns() -> None:
    """The sum over matrices loads the gradient, not the numbers of each row again."""

    def function(g: Any, x: Any, bias: Any) -> Any:
        d = torch.ops.aten._softmax_backward_data(g, torch.softmax(x + bias, -1), -1, torch.float32)
        return d.bfloat16(), d.sum(0)

    program = lowered(function, torch.randn(256, 49, 49), torch.randn(256, 49, 49), torch.randn(49, 49))
    assert [k.text.count("tl.load") for k in program.kernels] == [3, 1]


def test_indices_of_windows_are_divided_once_for_each_column_of_a_sum() -> None:
    """The rows of a program share the part of the split sum that they are in."""
    program = lowered(
        lambda x: x.view(64, 4, 4, 7, 7, 96).transpose(2, 3).reshape(-1, 96).float().sum(0), torch.randn(1024, 49, 96)
    )
    assert "* ROWS // 96" in program.kernels[0].text


def test_atomic_additions_follow_the_order_of_their_targets() -> None:
    """A transposed sum of the same numbers is another kernel."""

    def function(x: Any, index: Any) -> Any:
        y = x.permute(0, 2, 3, 1).reshape(-1, 64)
        return torch.zeros(512, 64).index_put((index,), y, accumulate=True), x.sum((0, 2, 3))

    program = lowered(function, torch.randn(64, 64, 16, 16), torch.randint(512, (64 * 256,)))
    (scatter,) = (k for k in program.kernels if "tl.atomic_add" in k.text)
    assert "tl.sum" not in scatter.text


def channels_last(*sizes: int) -> torch.Tensor:
    """Random images whose channels are adjacent in memory."""
    return torch.randn(sizes).contiguous(memory_format=torch.channels_last)


def instance_norm_grad(x: Any, grad: Any) -> Any:
    """The gradient of an instance norm and the ReLU after it."""
    rows, mask = x.reshape(1, -1, *x.shape[2:]), x > 0
    grad = torch.where(mask, grad, 0).reshape(rows.shape)
    centered = rows - rows.mean((0, 2, 3), True)
    spread, total = (centered * centered).sum((0, 2, 3), True), (grad * centered).sum((0, 2, 3), True)
    return (grad - grad.mean((0, 2, 3), True) - centered * total / spread).view(x.shape)


@pytest.mark.parametrize("sizes", [(4, 32, 128, 128), (2, 64, 64, 64), (8, 16, 128, 128)])
@pytest.mark.parametrize("function", [lambda x, grad: F.instance_norm(x) * grad, instance_norm_grad])
def test_an_instance_norm_of_channels_last_reads_adjacent_channels(function: Any, sizes: tuple[int, ...]) -> None:
    """Few rows are split into parts, and a program reduces adjacent channels together."""
    program = lowered(function, channels_last(*sizes), channels_last(*sizes))
    large = [k for k in program.kernels if k.bytes_moved >= 4 * math.prod(sizes)]
    assert any(name.endswith(("parts", "sums")) for name in program.buffers)
    for kernel in large:
        assert math.prod(kernel.grid) >= 128, kernel.text
        assert "row = tl.program_id(0)\n" not in kernel.text, kernel.text


@pytest.mark.parametrize("groups", [32, 8])
def test_a_group_norm_of_channels_last_reads_adjacent_channels(groups: int) -> None:
    """Pixels are reduced for each channel, and channels that are adjacent in memory together."""
    program = lowered(lambda x: F.silu(F.group_norm(x, groups)), channels_last(4, 64, 128, 128))
    statistics, *_ = program.kernels
    assert len(program.kernels) == 3
    assert statistics.grid == (1024,)
    assert "col * 64 + (row % 64)" in statistics.text


def test_a_value_that_a_large_kernel_repeats_is_stored_once() -> None:
    """A quotient that is spread over many elements is divided once for each of its own."""

    def spread(x: Any, y: Any, z: Any) -> Any:
        return (x / y)[:, None] * z

    x, y = torch.randn(64, 1100), torch.randn(64, 1100)
    assert [len(lowered(spread, x, y, torch.randn(64, n, 1100)).kernels) for n in (8, 64)] == [1, 2]


def test_a_quotient_of_sums_is_computed_in_the_pass_over_their_rows() -> None:
    """One kernel sums a row twice and scales it, however many rows there are."""

    def project(x: Any, y: Any) -> Any:
        return ((x * y).sum(-1) / (y * y).sum(-1))[:, None] * y

    assert len(lowered(project, torch.randn(65536, 64), torch.randn(65536, 64)).kernels) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).amax(2),
        lambda x: (x.half().float().mean(2), x.amin(2)),
        lambda x: (x == x.amax(2, keepdim=True)).sum(2),
    ],
    ids=["maximum", "two", "count"],
)
def test_a_reduction_of_channels_last_reads_adjacent_channels(function: Any) -> None:
    """Rows are in the order of the image in memory, not in that of the result."""
    (kernel,) = lowered(function, channels_last(4, 64, 24, 48)).kernels
    assert "col * 3072 + (row % 3072)" in kernel.text, kernel.text


def test_a_reduction_of_channels_last_with_symbolic_sizes_reads_adjacent_channels() -> None:
    """Symbolic strides are those of outer loops."""
    (kernel,) = lowered(lambda x: x.amax(2), channels_last(4, 64, 24, 48), is_dynamic=True).kernels
    (load,) = [line for line in kernel.text.splitlines() if "tl.load" in line]
    assert re.search(r"\+ \(row % \(s\d+\*s\d+\)\), mask", load), load


def test_reductions_without_rows_and_beside_scatters_are_lowered() -> None:
    """Neither has rows to order."""
    assert lowered(lambda x: (x * 2).sum(), torch.randn(())).kernels

    def gradients(grad: Any, weight: Any, y: Any, at: Any) -> Any:
        return torch.ops.aten.embedding_dense_backward(grad, at, 5, -1, False), (grad * weight * y).sum(-1)

    grad, at = torch.randn(40, 6), torch.arange(40) % 5
    assert lowered(gradients, grad, torch.randn(6), torch.randn(40, 6), at).kernels


def test_a_sum_after_many_operators_is_split_by_what_they_read() -> None:
    """The gradient of a gated convolution reads across rows, and its bias sums rows."""

    def bias_grad(x: Any, turned: Any, other: Any) -> Any:
        gate = x * turned.transpose(1, 2) * other.transpose(1, 2)
        for n in range(20):
            gate = (gate + n).tanh()
        return gate, gate.sum((0, 2))

    turned = torch.randn(4, 1027, 640)
    program = lowered(bias_grad, torch.randn(4, 640, 1027), turned, turned.clone())
    assert any(name.endswith("parts") for name in program.buffers)
    assert all(math.prod(k.grid) >= 64 for k in program.kernels if k.bytes_moved > 1 << 22)


def test_a_sum_of_channels_last_follows_memory() -> None:
    """All dimensions are reduced in the order of memory."""
    program = lowered(lambda x: x.cos().sum(), channels_last(8, 64, 48, 48))
    assert "row * 2304 + col" in program.kernels[0].text


def test_a_gradient_and_its_sum_of_all_share_a_kernel() -> None:
    """A kernel that stores in the order of memory joins a sum in that order."""

    def grads(x: Any, grad: Any, slope: Any) -> Any:
        return torch.where(x > 0, grad, grad * slope), torch.where(x > 0, 0, x * grad).sum()

    x = channels_last(16, 64, 48, 48)
    first, *_ = lowered(grads, x, x.clone(), torch.randn(())).kernels
    assert sum(a.is_written for a in first.args) == 2


@pytest.mark.parametrize("upscale", [2, 4])
def test_a_pixel_shuffle_of_channels_last_reads_and_writes_whole_lines(upscale: int) -> None:
    """The pixels that lie between two channels are rows of a tile, whose columns are channels."""

    def function(x: Any) -> Any:
        return torch.nn.functional.pixel_shuffle(x, upscale).relu()

    (kernel,) = lowered(function, channels_last(2, 32 * upscale**2, 24, 20)).kernels
    assert f"col * {upscale**2} + (row % {upscale**2})" in kernel.text


def test_a_channel_shuffle_into_rows_goes_through_a_tile() -> None:
    """Neighbors in memory are every second channel: digits of a variable, not a variable."""

    def function(x: Any) -> Any:
        return x.view(2, 32, 2, 24, 20).transpose(1, 2).reshape(2, 64, 24, 20).relu()

    (kernel,) = lowered(function, channels_last(2, 64, 24, 20)).kernels
    assert "+ col * 64 + " in kernel.text
    assert "+ (row % 64)" in kernel.text


def test_long_rows_are_stored_apart_from_a_kernel_that_reads_across_them() -> None:
    """A kernel that reads channels last and stores rows does not join a sum of rows."""

    def function(x: Any, y: Any) -> Any:
        rows = y.reshape(1, 512, 64, 64)
        return x.reshape(rows.shape) * rows.cos().sum((0, 2, 3), True)

    program = lowered(function, channels_last(4, 128, 64, 64), torch.randn(4, 128, 64, 64))
    assert len(program.kernels) == 2
    assert "tl.arange(0, ROWS)[:, None]" in program.kernels[1].text


def test_a_chain_of_slice_writes_grows_by_the_same_lines() -> None:
    """Each write reads the one before it twice, with and without a mask: it is computed once."""

    def lines_of(writes: int) -> int:
        def write(x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            for _ in range(writes):
                x[:, 1:] += 0.5
            return x

        (kernel,) = lowered(write, torch.ones(6, 7), is_dynamic=True).kernels
        return len(kernel.text.splitlines())

    assert lines_of(4) - lines_of(3) == lines_of(3) - lines_of(2) <= 3
