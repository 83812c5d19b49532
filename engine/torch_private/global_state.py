"""Queries of global state, in guards and traced code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch._C import _get_deterministic_algorithms_warn_only as get_deterministic_algorithms_warn_only
    from torch._C import _get_float32_matmul_precision as get_float32_matmul_precision
    from torch._C import _get_mkldnn_enabled as get_mkldnn_enabled
    from torch._C import _get_sdp_priority_order as get_sdp_priority_order
    from torch._C import _get_tracing_state as get_tracing_state
    from torch._C import _set_sdp_priority_order as set_sdp_priority_order
    from torch._compile import _disable_dynamo as disable_dynamo
    from torch._utils import is_compiling
    from torch.fx import _symbolic_trace as symbolic_trace_queries

ENTRIES = (
    Entry(
        "torch._C:_get_tracing_state",
        Kind.FUNCTION,
        "Asks if ``torch.jit.trace`` is active.",
        without="calls under ``torch.jit.trace`` would run compiled",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_get_deterministic_algorithms_warn_only",
        Kind.FUNCTION,
        "Traced query of global state.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._C:_get_float32_matmul_precision",
        Kind.FUNCTION,
        "Precision of float32 products, for guards.",
        without="a change of the precision would be missed",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_get_mkldnn_enabled",
        Kind.FUNCTION,
        "Asks if oneDNN is used, part of cache keys.",
        without="nothing is stored on disk",
        off=Feature.DISK_CACHE,
        calls=("()",),
    ),
    Entry(
        "torch._C:_get_sdp_priority_order",
        Kind.FUNCTION,
        "Order in which attention kernels are tried.",
        without="the order is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_priority_order",
        Kind.FUNCTION,
        "Sets the order in which attention kernels are tried.",
        without="the order is not restored",
        calls=("(a)",),
    ),
    Entry(
        "torch._compile:_disable_dynamo",
        Kind.FUNCTION,
        "Wrapper around functions of torch that Dynamo skips.",
        without="such functions break the graph",
    ),
    Entry(
        "torch._utils:is_compiling",
        Kind.FUNCTION,
        "Traced query.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx:_symbolic_trace",
        Kind.MODULE,
        "Module with the queries of fx tracing.",
        without="traced code that calls them breaks the graph",
        alias="symbolic_trace_queries",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
