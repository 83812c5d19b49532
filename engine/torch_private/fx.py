"""Torch's private names for tracing fx graphs with ``make_fx``, and for its proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_value, load

if TYPE_CHECKING:
    from torch.fx.experimental.proxy_tensor import (
        disable_proxy_modes_tracing,
        get_proxy_mode,
        get_proxy_slot,
        make_fx,
        track_tensor_tree,
    )
    from torch.fx.graph_module import _loader as graph_sources

ENTRIES = (
    *IfMissing("graphs are not functionalized", Feature.FUNCTIONAL_GRAPHS).entries(
        declare(
            "torch.fx.experimental.proxy_tensor:make_fx",
            "Traces a function to an ATen graph.",
            "(a, decomposition_table=, tracing_mode=)",
            "(a, tracing_mode=)",
            "(a, tracing_mode=, _error_on_data_dependent_ops=)",
            "(a, tracing_mode=, record_module_stack=)",
        ),
        declare(
            "torch.fx.experimental.proxy_tensor:disable_proxy_modes_tracing", "Computes without adding nodes.", "()"
        ),
        declare("torch.fx.experimental.proxy_tensor:get_proxy_mode", "Finds the tracer that is active.", "()"),
        declare(
            "torch.fx.experimental.proxy_tensor:track_tensor_tree",
            "Makes a node stand for a tensor.",
            "(a, b, constant=, tracer=)",
        ),
    ),
    *IfMissing("nodes of the backward are not linked to the forward", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch.fx.experimental.proxy_tensor:get_proxy_slot", "Finds the node of a tensor.", "(a, b, c)"),
    ),
    *IfMissing("the sources of graph modules stay in memory", Feature.SOURCE_LIMIT).entries(
        declare_value(
            "torch.fx.graph_module:_loader",
            "Stores the source of each graph module.",
            members=("eval_cache", "next_id"),
            alias="graph_sources",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
