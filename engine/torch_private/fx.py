"""Torch's private names for tracing fx graphs with ``make_fx``, and for its proxies."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch.fx._lazy_graph_module import _use_lazy_graph_module as use_lazy_graph_module
    from torch.fx.experimental.proxy_tensor import (
        disable_proxy_modes_tracing,
        get_proxy_mode,
        get_proxy_slot,
        make_fx,
        track_tensor_tree,
    )
    from torch.fx.graph_module import _loader as graph_sources

ENTRIES = load_into(globals())("""
If missing, graphs are not functionalized (FUNCTIONAL_GRAPHS):
    function torch.fx.experimental.proxy_tensor:make_fx (a, decomposition_table=, tracing_mode=) (a, tracing_mode=) (a,
         tracing_mode=, _error_on_data_dependent_ops=) (a, tracing_mode=, record_module_stack=)
        -- Traces a function to an ATen graph.
    function torch.fx.experimental.proxy_tensor:disable_proxy_modes_tracing () -- Computes without adding nodes.
    function torch.fx.experimental.proxy_tensor:get_proxy_mode () -- Finds the tracer that is active.
    function torch.fx.experimental.proxy_tensor:track_tensor_tree (a, b, constant=, tracer=)
        -- Makes a node stand for a tensor.
If missing, nodes of the backward are not linked to the forward (FUNCTIONAL_GRAPHS):
    function torch.fx.experimental.proxy_tensor:get_proxy_slot (a, b, c) -- Finds the node of a tensor.
If missing, code is generated for graphs that do not run:
    function torch.fx._lazy_graph_module:_use_lazy_graph_module (a) -- Makes ``make_fx`` return a graph without code.
If missing, the sources of graph modules stay in memory (SOURCE_LIMIT):
    value torch.fx.graph_module:_loader alias=graph_sources members=eval_cache,next_id
        -- Stores the source of each graph module.
""")
