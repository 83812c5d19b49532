"""Torch's private operators that take functions: ``cond``, ``scan``, ``map`` and others."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._higher_order_ops.associative_scan import associative_scan_op
    from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
    from torch._higher_order_ops.base_hop import BaseHOP
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.effects import with_effects
    from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
    from torch._higher_order_ops.flex_attention import sdpa_dense as dense_flex_attention
    from torch._higher_order_ops.hints_wrap import hints_wrapper
    from torch._higher_order_ops.map import map_impl
    from torch._higher_order_ops.out_dtype import out_dtype
    from torch._higher_order_ops.scan import scan_op
    from torch._higher_order_ops.strict_mode import strict_mode_op
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap

ENTRIES = load_into(globals())("""
If missing, traced code that calls it breaks the graph:
    value torch._higher_order_ops.associative_scan:associative_scan_op -- Operator of ``associative_scan``.
    value torch._higher_order_ops.cond:cond_op -- Operator of ``torch.cond``.
    value torch._higher_order_ops.hints_wrap:hints_wrapper -- Operator that carries hints.
    value torch._higher_order_ops.map:map_impl -- Operator of ``map``.
    value torch._higher_order_ops.out_dtype:out_dtype -- Operator with another result dtype.
    value torch._higher_order_ops.scan:scan_op -- Operator of ``scan``.
    value torch._higher_order_ops.strict_mode:strict_mode_op -- Operator of strict mode.
    value torch._higher_order_ops.while_loop:while_loop_op -- Operator of ``while_loop``.
    value torch._higher_order_ops.wrap:dynamo_bypassing_wrapper -- Operator that wraps a call.
    value torch._higher_order_ops.wrap:wrap -- Operator that wraps a call.
    value torch._higher_order_ops.flex_attention:flex_attention alias=flex_attention_op
        -- Operator of ``flex_attention``.
If missing, nothing is stored on disk (DISK_CACHE):
    value torch._higher_order_ops.auto_functionalize:auto_functionalized -- Operator in stored graphs.
    value torch._higher_order_ops.auto_functionalize:auto_functionalized_v2 -- Operator in stored graphs.
If missing, traced code that calls one breaks the graph:
    class torch._higher_order_ops.base_hop:BaseHOP -- Base class of operators on functions.
If missing, graphs are not functionalized (FUNCTIONAL_GRAPHS):
    value torch._higher_order_ops.effects:with_effects -- Orders operators with effects.
If missing, traced code that calls ``flex_attention`` breaks the graph:
    value torch._higher_order_ops.flex_attention:sdpa_dense alias=dense_flex_attention
        -- What ``flex_attention`` computes in eager, as ordinary operators.
""")
