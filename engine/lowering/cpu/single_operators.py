"""Leaves operators that are not fused to ATen, unless their kernels are faster.

A kernel of a single operator moves as many bytes as ATen's loop. It is faster only by better arithmetic, by a better
loop order, or if it stores the new value of an input directly, which ATen computes first and then copies. A large
result is in newly mapped memory, whose page faults take longer than the arithmetic: a kernel writes it to huge pages.
"""

from __future__ import annotations

import collections
from typing import Any

import torch
import torch.fx

from engine.group_pairs import group_pairs
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.node_metadata import is_backward_node
from engine.ir.node_values import called_overload, tensors_in
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.memory.live_memory import bytes_of, size_hints

MIN_BYTES = 1 << 16
"""Below this, most of the time is the call itself."""

NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
FASTER_IN_KERNELS = frozenset(
    f"aten::{name}"
    for name in (
        *("exp", "tanh", "sigmoid", "sin", "cos", "remainder"),
        *("where", "eq", "ne", "lt", "le", "gt", "ge", "tril", "triu"),
        *("argmax", "argmin", "var", "var_mean", "std", "std_mean", "_log_softmax", "cumsum", "any"),
        *("native_layer_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "index", "embedding"),
        *("native_group_norm", "_fused_rms_norm", "logsumexp", "log", "mish", "softplus", "glu", "masked_fill"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "smooth_l1_loss", "huber_loss"),
        *("kl_div", "soft_margin_loss", "constant_pad_nd", "repeat", "index_add", "scatter_add", "index_put"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "im2col"),
        *("bucketize", "searchsorted", "embedding_dense_backward"),
        *("linalg_vector_norm", "max", "min", "all", "mean", "cumprod", "cummax", "cummin", "isfinite", "isinf"),
        *("fmod", "fmax", "fmin", "sum", "prod", "expm1", "log1p", "elu", "digamma", "gather", "stack", "l1_loss"),
        *("selu", "xlogy", "trunc", "tan", "atan", "asin", "acos", "asinh", "acosh", "sinc", "sqrt", "log2", "log10"),
        *("isnan", "signbit", "logical_not", "logit", "special_entr", "special_spherical_bessel_j0", "polygamma"),
        *("heaviside", "special_xlog1py", "floor_divide", "amax", "amin"),
        *("_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *(f"{name}{rank}d{end}" for name in NEAREST for rank in (1, 2, 3) for end in ("", "_backward")),
    )
)
"""Operators whose kernel needs at most 0.8 of ATen's time on a million elements."""

FASTER_WITH_OPTION = frozenset(("aten::gelu", "aten::gelu_backward", "aten::div"))
"""Operators of which this is true with ``approximate="tanh"`` or a rounding mode alone."""
FASTER_IN_FLOAT32 = frozenset(
    f"aten::{name}" for name in ("erf", "erfc", "silu", "celu", "log_sigmoid_forward", "logaddexp", "logaddexp2", "pow")
)
"""Operators of which this is true for all floats but float64."""

SLOW_CALLS = frozenset(
    f"aten::{name}"
    for name in (
        *("gelu", "gelu_backward", "mish", "remainder", "log_sigmoid_forward", "any", "all", "mean", "logsumexp"),
        *("var", "var_mean", "std", "std_mean", "native_layer_norm", "native_group_norm", "_fused_rms_norm"),
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"),
        *(
            "native_layer_norm_backward select_backward slice_backward repeat constant_pad_nd index "
            "_adaptive_avg_pool2d"
        ).split(),
        *(f"{name}2d" for name in NEAREST),
    )
)
"""Operators whose call takes ATen 3 us longer than a kernel, or more, on 1,000 elements."""

MEDIUM_CALLS = frozenset(
    f"aten::{name}"
    for name in (
        *("sum", "prod", "amax", "amin", "argmax", "argmin", "linalg_vector_norm", "cumsum", "cumprod", "roll"),
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("embedding", "gather", "index_select", "index_add", "scatter_add"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "im2col"),
    )
)
"""Operators whose call by the executor takes 1 us longer than a kernel, or more."""

ONEDNN_CALLS = frozenset(("aten::gelu", "aten::gelu_backward"))
"""Operators that ATen leaves to oneDNN, whose primitives take longer to call."""

COPIES = frozenset(("aten::clone", "aten::_to_copy", "aten::cat"))
"""Operators that only copy, beside those that torch calls pointwise."""
LARGE_RESULT = 1 << 25
"""Bytes from which each result of ATen is in newly mapped memory."""

CALL_SECONDS = 4e-6
"""Time of a call of an operator in eager, with its share of autograd."""
SLOW_CALL_SECONDS = 5e-6
"""Time that a call of an operator of ``SLOW_CALLS`` takes in ATen beyond that of others."""
MEDIUM_CALL_SECONDS = 1e-6
"""Time that a call of an operator of ``MEDIUM_CALLS`` takes beyond that of others."""
ONEDNN_CALL_SECONDS = 20e-6
"""Time that a call of an operator of ``ONEDNN_CALLS`` takes beyond that of others."""
CACHE_BYTES = 1 << 20
"""Size of an operator's tensor up to which the next operator reads it from the cache."""
CACHE_BYTES_PER_SECOND = 80e9
"""Speed of a pass over tensors that are in the cache."""
MEMORY_BYTES_PER_SECOND = 15e9
"""Speed of a pass over larger tensors."""
OPERATOR_BYTES_PER_SECOND = 20e9
"""Bytes of a result that a kernel computes per second gained by better arithmetic."""
UNKNOWN_SIZE = 4096
"""Hint for a size without one."""

SAME_BYTES = "It is not fused with other operators, so its kernel would move as many bytes as ATen."
SMALL = "It is small and not fused with other operators: the call takes most of the time, as in ATen."


def nodes_as_fast_in_aten(program: LoweredProgram, module: torch.fx.GraphModule) -> dict[str, str]:
    """Return the nodes that ATen computes as fast as their kernels, with the reason.

    ``module`` is the graph that was lowered to the program.
    """
    graph_nodes = {node.name: node for node in module.graph.nodes}
    kernels_of = group_pairs((node, kernel) for kernel in program.kernels for node in kernel.nodes)
    reasons, small = dict[str, str](), dict[str, str]()
    for node, computed_by in kernels_of.items():
        graph_node = graph_nodes.get(node.rpartition(":")[2])
        called = None if graph_node is None else called_overload(graph_node.target)
        if (
            graph_node is None
            or called is None
            or any(len(k.nodes) > 1 or _mutates_input(k, program) for k in computed_by)
        ):
            continue
        moved = [static_size(k.bytes_moved) for k in computed_by]
        if all(count is not None and count < MIN_BYTES for count in moved):
            small |= {} if _is_slow_call(graph_node) else {node: SMALL}
        elif not (
            any(k.loads_tiles for k in computed_by)
            or _is_faster_in_kernel(graph_node, called._schema.name)
            or any(_has_large_result(called, k, program) for k in computed_by)
        ):
            reasons[node] = SAME_BYTES
    # A launch costs less than a call of ATen, but too little less to compile a program for it.
    return reasons if kernels_of.keys() - reasons.keys() - small.keys() else reasons | small


def _has_large_result(called: Any, kernel: GeneratedKernel, program: LoweredProgram) -> bool:
    """Return True if page faults of the result take ATen longer than its arithmetic."""
    name = called._schema.name
    if name in FASTER_IN_FLOAT32 or not (torch.Tag.pointwise in called.tags or name in COPIES):
        return False
    hints = collections.defaultdict(lambda: UNKNOWN_SIZE, size_hints(program))
    written = [program.buffers[a.buffer] for a in kernel.args if a.is_written and a.buffer]
    return any(bytes_of(buffer, hints)[0] >= LARGE_RESULT for buffer in written)


def _is_faster_in_kernel(node: torch.fx.Node, name: str) -> bool:
    """Return True if the kernel of a node alone is faster than ATen's operator, by its name."""
    if name in FASTER_IN_FLOAT32:
        return all(t.is_floating_point() and t.dtype != torch.float64 for t in tensors_in(node.meta.get("val")))
    is_faster_so = node.kwargs.get("rounding_mode") if name == "aten::div" else node.kwargs.get("approximate") == "tanh"
    return name in FASTER_IN_KERNELS or (name in FASTER_WITH_OPTION and bool(is_faster_so))


def estimate_kernel_gain(program: LoweredProgram, module: torch.fx.GraphModule) -> float:
    """Return the estimated seconds that kernels gain over eager's operators.

    Each fused operator saves a call and an intermediate result in memory; operators that are slow in ATen save more.
    Operators that a backward recomputes save nothing. ``module`` is the graph that was lowered to the program.
    """
    in_backward = any(is_backward_node(n) for n in module.graph.nodes)
    in_eager = {n.name: n for n in module.graph.nodes if is_backward_node(n) == in_backward}
    hints = collections.defaultdict(lambda: UNKNOWN_SIZE, size_hints(program))
    gain, counted = 0.0, set[str]()
    for kernel in program.kernels:
        largest = max(bytes_of(program.buffers[a.buffer], hints)[0] for a in kernel.args if a.buffer)
        names = ({name.rpartition(":")[2] for name in kernel.nodes} & in_eager.keys()) - counted
        counted |= names
        speed = CACHE_BYTES_PER_SECOND if largest <= CACHE_BYTES else MEMORY_BYTES_PER_SECOND
        gain += (len(names) - 1) * CALL_SECONDS + max(len(names) - 1, 0) * largest / speed
        gain += sum(_operator_gain(in_eager[name], largest) for name in names)
        if len(kernel.nodes) == 1:  # it is there because it is faster
            gain += largest / OPERATOR_BYTES_PER_SECOND
    return gain


def _operator_gain(node: torch.fx.Node, largest: int) -> float:
    """Return the seconds that ATen's operator takes beyond others: slow call, slow arithmetic.

    A tensor of symbolic size counts as ``largest`` bytes.
    """
    called = called_overload(node.target)
    if called is None:
        return 0.0
    name = called._schema.name
    is_onednn = name in ONEDNN_CALLS
    call = SLOW_CALL_SECONDS * (name in SLOW_CALLS) + MEDIUM_CALL_SECONDS * (name in MEDIUM_CALLS)
    call = ONEDNN_CALL_SECONDS if is_onednn else call
    if not is_onednn and not _is_faster_in_kernel(node, name):
        return call
    counts = [static_size(t.numel() * t.itemsize) for t in tensors_in(node.meta.get("val"))[:1]]
    return call + sum(largest if count is None else count for count in counts) / OPERATOR_BYTES_PER_SECOND


def _is_slow_call(node: torch.fx.Node) -> bool:
    """Return True if a call takes ATen 1 us longer than a kernel, or more, on 1,000 elements."""
    called, results = called_overload(node.target), tensors_in(node.meta.get("val"))
    name = "" if called is None else called._schema.name
    if name in SLOW_CALLS | MEDIUM_CALLS:
        return True
    if called is None or not (torch.Tag.pointwise in called.tags or name == "aten::clone"):
        return False
    # ATen makes a tensor of a number, and takes longer to find out how other strides are walked.
    operands = [t for argument in node.all_input_nodes for t in tensors_in(argument.meta.get("val"))]
    layouts = {static_sizes((*t.shape, *t.stride())) for t in (*operands, *results)}
    return any(a not in node.all_input_nodes for a in node.args) or len(layouts) > 1


def _mutates_input(kernel: GeneratedKernel, program: LoweredProgram) -> bool:
    """Return True if a kernel stores an input's new value into the input."""
    written = program.written_inputs
    return any(a.is_written and program.buffers[a.buffer].reuses in written for a in kernel.args if a.buffer)
