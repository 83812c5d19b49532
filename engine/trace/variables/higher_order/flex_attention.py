"""``flex_attention``: ``score_mod`` and ``mask_mod`` become subgraphs of its node."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.node_values import tensors_in
from engine.torch_private.higher_order_ops import flex_attention_op
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.emit_node import wrap_result
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    TracedSubgraph,
    lift_shared_free_variables,
    trace_subgraph,
)
from engine.trace.variables.tensors.tensor import TensorVariable

_PARAMETERS = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")


@register_rule(flex_attention_op)
def _flex_attention(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    arguments = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    tensors = [realize(tx, arguments[name]) for name in _PARAMETERS[:3]]
    query = tensors[0]
    if any(t.fake is None for t in tensors) or set(arguments) - set(_PARAMETERS):
        raise Unsupported("flex-attention", "flex_attention on more than three tensors")
    *blocks, mask_mod = sequence_items(tx, arguments["block_mask"])
    pairs = [v.as_node_arg(tx) for v in tensors]
    blocks_node, blocks_fake = TupleVariable(list(blocks)).as_node_arg(tx)
    options = [realize(tx, arguments[name]).as_node_arg(tx) for name in ("scale", "kernel_options")]
    fake = query.fake
    score = _trace_scalar_function(tx, realize(tx, arguments["score_mod"]), fake, [fake.dtype, *[torch.int] * 4])
    mask = _trace_scalar_function(tx, realize(tx, mask_mod), fake, [torch.int] * 4)
    others = [tuple(lift_shared_free_variables([body])) for body in (score, mask)]
    modules = [body.module() for body in (score, mask)]
    score_node = tx.graph.add_subgraph("score_mod", modules[0], tx.node_provenance())
    mask_node = tx.graph.add_subgraph("mask_mod", modules[1], tx.node_provenance())
    node_args = (*(p[0] for p in pairs), score_node, (*blocks_node, mask_node), *(r[0] for r in options), *others)
    node = emit_effect(tx, flex_attention_op, node_args)
    buffers = [tuple(n.meta["example_value"] for n in nodes) for nodes in others]
    fakes = [*(p[1] for p in pairs), modules[0], (*blocks_fake, modules[1]), *(r[1] for r in options), *buffers]
    if any(t.requires_grad for t in tensors_in(buffers[1])):  # eager raises
        tx.graph.erase_last_node(node)
        raise Unsupported("flex-attention", "flex_attention with gradients of what its mask function reads")
    return wrap_result(tx, node, evaluate_on_fakes(tx, "call_function", flex_attention_op, fakes, {}), keep=True)


def _trace_scalar_function(tx: Tracer, function: Variable, query: torch.Tensor, kinds: list[Any]) -> TracedSubgraph:
    """Trace a function of scalars: a score and four indices, or four indices alone."""

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        with tx.symbols.fake_mode, torch.no_grad():
            scalars = [torch.empty((), dtype=kind, device=query.device) for kind in kinds]
        return [TensorVariable(builder.add_parameter(s), s) for s in scalars]

    index_mode, tx.torch_state.scalar_tensors_index = tx.torch_state.scalar_tensors_index, True
    try:
        body = trace_subgraph(tx, function, parameters)
    finally:
        tx.torch_state.scalar_tensors_index = index_mode
    if len(body.outputs) != 1:
        raise Unsupported("flex-attention", "a function given to flex_attention returns more than one tensor")
    body.unwrap_single_output()
    return body
