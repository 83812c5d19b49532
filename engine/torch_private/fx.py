"""Tracing to fx graphs with ``make_fx``, and its proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch.fx.experimental.proxy_tensor:make_fx",
        Kind.FUNCTION,
        "Traces a function to an ATen graph.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=(
            "(a, decomposition_table=, tracing_mode=)",
            "(a, tracing_mode=)",
            "(a, tracing_mode=, _error_on_data_dependent_ops=)",
            "(a, tracing_mode=, record_module_stack=)",
        ),
    ),
    Entry(
        "torch.fx.experimental.proxy_tensor:disable_proxy_modes_tracing",
        Kind.FUNCTION,
        "Computes without adding nodes.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch.fx.experimental.proxy_tensor:get_proxy_mode",
        Kind.FUNCTION,
        "Finds the tracer that is active.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch.fx.experimental.proxy_tensor:get_proxy_slot",
        Kind.FUNCTION,
        "Finds the node of a tensor.",
        without="nodes of the backward are not linked to the forward",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a, b, c)",),
    ),
    Entry(
        "torch.fx.experimental.proxy_tensor:track_tensor_tree",
        Kind.FUNCTION,
        "Makes a node stand for a tensor.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a, b, constant=, tracer=)",),
    ),
    Entry(
        "torch.fx.graph_module:_loader",
        Kind.VALUE,
        "Stores the source of each graph module.",
        without="the sources of graph modules stay in memory",
        off=Feature.SOURCE_LIMIT,
        members=("eval_cache", "next_id"),
        alias="graph_sources",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
