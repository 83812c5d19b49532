"""Queries of global state, in guards and traced code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch._C import _get_cudnn_sdp_enabled as get_cudnn_sdp_enabled
    from torch._C import _get_deterministic_algorithms_warn_only as get_deterministic_algorithms_warn_only
    from torch._C import _get_flash_sdp_enabled as get_flash_sdp_enabled
    from torch._C import _get_float32_matmul_precision as get_float32_matmul_precision
    from torch._C import _get_math_sdp_enabled as get_math_sdp_enabled
    from torch._C import _get_mem_efficient_sdp_enabled as get_mem_efficient_sdp_enabled
    from torch._C import _get_mkldnn_enabled as get_mkldnn_enabled
    from torch._C import _get_overrideable_sdp_enabled as get_overrideable_sdp_enabled
    from torch._C import _get_sdp_priority_order as get_sdp_priority_order
    from torch._C import _get_tracing_state as get_tracing_state
    from torch._C import _is_tracing as is_tracing
    from torch._C import _set_sdp_priority_order as set_sdp_priority_order
    from torch._C import _set_sdp_use_cudnn as set_sdp_use_cudnn
    from torch._C import _set_sdp_use_flash as set_sdp_use_flash
    from torch._C import _set_sdp_use_math as set_sdp_use_math
    from torch._C import _set_sdp_use_mem_efficient as set_sdp_use_mem_efficient
    from torch._C import _set_sdp_use_overrideable as set_sdp_use_overrideable
    from torch._compile import _disable_dynamo as disable_dynamo
    from torch._utils import is_compiling
    from torch.fx import _symbolic_trace as symbolic_trace_queries

    unwrap_optional: Any

ENTRIES = (
    Entry(
        "torch.jit:_unwrap_optional",
        Kind.FUNCTION,
        "Traced check for None of TorchScript.",
        without="traced code that calls it breaks the graph",
    ),
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
        "torch._C:_get_flash_sdp_enabled",
        Kind.FUNCTION,
        "Asks if an attention kernel is enabled.",
        without="the kernel is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_use_flash",
        Kind.FUNCTION,
        "Enables an attention kernel.",
        without="the kernel is not restored",
    ),
    Entry(
        "torch._C:_get_mem_efficient_sdp_enabled",
        Kind.FUNCTION,
        "Asks if an attention kernel is enabled.",
        without="the kernel is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_use_mem_efficient",
        Kind.FUNCTION,
        "Enables an attention kernel.",
        without="the kernel is not restored",
    ),
    Entry(
        "torch._C:_get_math_sdp_enabled",
        Kind.FUNCTION,
        "Asks if an attention kernel is enabled.",
        without="the kernel is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_use_math",
        Kind.FUNCTION,
        "Enables an attention kernel.",
        without="the kernel is not restored",
    ),
    Entry(
        "torch._C:_get_cudnn_sdp_enabled",
        Kind.FUNCTION,
        "Asks if an attention kernel is enabled.",
        without="the kernel is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_use_cudnn",
        Kind.FUNCTION,
        "Enables an attention kernel.",
        without="the kernel is not restored",
    ),
    Entry(
        "torch._C:_get_overrideable_sdp_enabled",
        Kind.FUNCTION,
        "Asks if an attention kernel is enabled.",
        without="the kernel is not guarded",
    ),
    Entry(
        "torch._C:_set_sdp_use_overrideable",
        Kind.FUNCTION,
        "Enables an attention kernel.",
        without="the kernel is not restored",
    ),
    Entry(
        "torch._C:_is_tracing",
        Kind.FUNCTION,
        "Traced query that calls of modules make since torch 2.14.",
        without="modules break the graph",
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


DYNAMO_MODULES = frozenset(
    ("compiled_autograd", "config", "decorators", "exc", "symbolic_convert", "trace_rules", "utils")
)
"""Modules of Dynamo whose state the engine reads if the program loaded them."""


def loaded_dynamo_module(name: str) -> Any:
    """Return a module of Dynamo, or None if the program did not load it."""
    if name not in DYNAMO_MODULES:
        raise KeyError(name)
    return sys.modules.get(f"torch._dynamo.{name}")
