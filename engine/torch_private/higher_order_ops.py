"""Operators of torch that take functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

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

ENTRIES = (
    Entry(
        "torch._higher_order_ops.associative_scan:associative_scan_op",
        Kind.VALUE,
        "Operator of ``associative_scan``.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.auto_functionalize:auto_functionalized",
        Kind.VALUE,
        "Operator in stored graphs.",
        without="nothing is stored on disk",
        off=Feature.DISK_CACHE,
    ),
    Entry(
        "torch._higher_order_ops.auto_functionalize:auto_functionalized_v2",
        Kind.VALUE,
        "Operator in stored graphs.",
        without="nothing is stored on disk",
        off=Feature.DISK_CACHE,
    ),
    Entry(
        "torch._higher_order_ops.base_hop:BaseHOP",
        Kind.CLASS,
        "Base class of operators on functions.",
        without="traced code that calls one breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.cond:cond_op",
        Kind.VALUE,
        "Operator of ``torch.cond``.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.effects:with_effects",
        Kind.VALUE,
        "Orders operators with effects.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
    ),
    Entry(
        "torch._higher_order_ops.hints_wrap:hints_wrapper",
        Kind.VALUE,
        "Operator that carries hints.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.map:map_impl",
        Kind.VALUE,
        "Operator of ``map``.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.out_dtype:out_dtype",
        Kind.VALUE,
        "Operator with another result dtype.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.scan:scan_op",
        Kind.VALUE,
        "Operator of ``scan``.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.strict_mode:strict_mode_op",
        Kind.VALUE,
        "Operator of strict mode.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.while_loop:while_loop_op",
        Kind.VALUE,
        "Operator of ``while_loop``.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.wrap:dynamo_bypassing_wrapper",
        Kind.VALUE,
        "Operator that wraps a call.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.wrap:wrap",
        Kind.VALUE,
        "Operator that wraps a call.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch._higher_order_ops.flex_attention:flex_attention",
        Kind.VALUE,
        "Operator of ``flex_attention``.",
        without="traced code that calls it breaks the graph",
        alias="flex_attention_op",
    ),
    Entry(
        "torch._higher_order_ops.flex_attention:sdpa_dense",
        Kind.VALUE,
        "What ``flex_attention`` computes in eager, as ordinary operators.",
        without="traced code that calls ``flex_attention`` breaks the graph",
        alias="dense_flex_attention",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
