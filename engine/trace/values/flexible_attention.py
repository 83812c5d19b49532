"""``flex_attention``: attention with the user's own function of scores and masks, which become graphs inside the operator's node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op

from engine.trace.graph_builder import evaluate, wrap_result
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.nested import Body, NestedBuilder, lift_all, trace_body
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options")


@special(flex_attention_op)
def _flex_attention(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    tensors = [force(tx, given[name]) for name in _NAMES[:3]]
    query = tensors[0]
    if not all(isinstance(t, TensorValue) for t in tensors) or set(given) - set(_NAMES):
        raise Unsupported("unsupported-argument", "flex_attention on more than three tensors")
    *blocks, mask_mod = sequence_items(tx, given["block_mask"])
    pairs = [v.graph_arg(tx) for v in tensors]
    blocks_node, blocks_fake = TupleValue(list(blocks)).graph_arg(tx)
    rest = [force(tx, given[name]).graph_arg(tx) for name in ("scale", "kernel_options")]
    fake = query.fake  # type: ignore[attr-defined]
    score = _on_indices(tx, force(tx, given["score_mod"]), fake, [fake.dtype, *[torch.int] * 4])
    mask = _on_indices(tx, force(tx, mask_mod), fake, [torch.int] * 4)
    others = [tuple(lift_all([body])) for body in (score, mask)]
    modules = [body.module() for body in (score, mask)]
    score_node = tx.graph.attach("score_mod", modules[0], tx.node_origin())
    mask_node = tx.graph.attach("mask_mod", modules[1], tx.node_origin())
    node = tx.graph.add(
        "call_function",
        flex_attention_op,
        (*(p[0] for p in pairs), score_node, (*blocks_node, mask_node), *(r[0] for r in rest), *others),
        {},
        tx.node_origin(),
    )
    tx.note_handlers()
    buffers = [tuple(n.meta["example_value"] for n in nodes) for nodes in others]
    fakes = [*(p[1] for p in pairs), modules[0], (*blocks_fake, modules[1]), *(r[1] for r in rest), *buffers]
    if any(isinstance(f, torch.Tensor) and f.requires_grad for f in (*fakes, *buffers[0], *buffers[1])):
        tx.graph.forget(node)
        raise Unsupported("unsupported-argument", "flex_attention with gradients")
    return wrap_result(tx, node, evaluate(tx, "call_function", flex_attention_op, fakes, {}), keep=True)


def _on_indices(tx: Tracer, function: Value, like: torch.Tensor, kinds: list[Any]) -> Body:
    """The graph of a function of single elements: a score and four positions, or the positions alone."""

    def parameters(builder: NestedBuilder) -> list[Value]:
        with tx.fake_mode, torch.no_grad():
            scalars = [torch.empty((), dtype=kind, device=like.device) for kind in kinds]
        return [TensorValue(builder.parameter(s), s) for s in scalars]

    before, tx.indexes_by_tensor = tx.indexes_by_tensor, True
    try:
        body = trace_body(tx, function, parameters)
    finally:
        tx.indexes_by_tensor = before
    if len(body.outputs) != 1:
        raise Unsupported("unsupported-operation", "a function given to flex_attention returns more than one tensor")
    output = body.builder.graph.output_node()
    output.args = (output.args[0][0],)  # type: ignore[index]
    return body
