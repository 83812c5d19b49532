"""Decomposes ``flex_attention``: matrix products, the score functions, and a softmax.

In eager the operator computes the same operators, one at a time. In the functional graph they can be fused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.fx
import torch.fx.traceback

from engine.ir.node_metadata import provenance_in, provenance_of, set_provenance
from engine.torch_private.higher_order_ops import dense_flex_attention


class _ScoreFunction(torch.fx.Interpreter):
    """Callable body of the operator; its ATen nodes get the lines of the user's function."""

    extra_traceback = False

    def __init__(self, body: torch.fx.GraphModule) -> None:
        copied = torch.fx.Graph()
        values: dict[torch.fx.Node, Any] = {}
        copied.output(copied.graph_copy(body.graph, values))
        caller = provenance_in(torch.fx.traceback.get_current_meta())
        for node in values.values():
            set_provenance(node, replace(provenance_of(node), nodes=caller.nodes))
        super().__init__(torch.fx.GraphModule(body, copied), garbage_collect_values=False)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def run_node(self, n: torch.fx.Node) -> Any:
        with torch.fx.traceback.set_current_meta(n):
            return super().run_node(n)


def expand_flex_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *rest: Any) -> Any:
    """Compute ``flex_attention`` with operators of the graph.

    ``query`` is ``[batch, heads, queries, size]``, ``key`` and ``value`` have ``keys`` rows. The functions run under vmap
    on all scores at once. Returns the result, the logarithm of sums and the maximum of each row, as the operator does:
    the maximum has no gradient.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        lower = torch.get_autocast_dtype(device)
        query, key, value = (t.to(lower) for t in (query, key, value))
    *blocks, mask_mod = block_mask
    with torch.autocast(device, enabled=False):
        out, logsumexp, largest = dense_flex_attention(
            query, key, value, _ScoreFunction(score_mod), (*blocks, _ScoreFunction(mask_mod)), *rest
        )
    return out, logsumexp, largest.detach()
