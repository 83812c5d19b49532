"""Statistics of each node's values in one call: range, NaN, histogram, heat map."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.aot.aot_graph import AotGraph
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.node_values import called_overload, tensors_in
from engine.records.aot import NodeValuesRecord
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.torch_function import DisableTorchFunction

BINS = 16
HEAT_MAP_CELLS = (8, 24)
"""Maximum number of rows and columns of a heat map."""
MAX_NODES = 5_000
"""Maximum number of nodes of a graph whose values are recorded."""
MAX_ELEMENTS = 1 << 24
"""Maximum number of elements of a tensor whose values are recorded."""


def node_statistics(graph: AotGraph, inputs: Sequence[Any]) -> tuple[NodeValuesRecord, ...]:
    """Run a functional graph through ATen, and return statistics of its values.

    Nothing is returned for a graph that draws random numbers or calls operators that are not ATen's: running them
    once more may have an effect.
    """
    nodes = graph.module.graph.nodes
    if len(nodes) > MAX_NODES or not all(map(_can_run_again, nodes)):
        return ()
    prefix = f"{graph.node_id_prefix}:{graph.compilation_id}:"
    recorder = _Recorder(graph.module, prefix)
    with torch.no_grad(), DisableTorchFunction(), disable_current_modes():
        recorder.run(*inputs)
    return tuple(recorder.records)


def _can_run_again(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op != "call_module"
    called = called_overload(node.target)
    return called is not None and called.namespace in ("aten", "prims") and not draws_random(node)


class _Recorder(torch.fx.Interpreter):
    """Interpreter that notes statistics of each tensor."""

    def __init__(self, module: torch.fx.GraphModule, prefix: str) -> None:
        super().__init__(module)
        self.prefix = prefix
        self.records: list[NodeValuesRecord] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, and add statistics of its result if that is one tensor."""
        value = super().run_node(n)
        tensors = list(tensors_in((value,))) if n.op != "output" else []
        if len(tensors) == 1:  # of several results, each has a node of its own
            self.records.extend(_statistics(self.prefix + n.name, tensors[0].detach()))
        return value


def _statistics(node: str, value: torch.Tensor) -> Iterator[NodeValuesRecord]:
    """Yield the statistics of a dense real tensor; nothing for others."""
    if (
        value.layout is not torch.strided
        or value.is_complex()
        or value.is_quantized
        or not 0 < value.numel() <= MAX_ELEMENTS
    ):
        return
    flat = value.reshape(-1).to(torch.float64)
    finite = flat[torch.isfinite(flat)]
    nans = int(torch.isnan(flat).sum())
    infinities = flat.numel() - finite.numel() - nans
    if not finite.numel():
        yield NodeValuesRecord(node, flat.numel(), nans, infinities)
        return
    low, high = finite.min().item(), finite.max().item()
    bins = torch.histc(finite.cpu(), BINS, low, high) if high > low else torch.tensor([finite.numel()])
    counted = tuple(int(b) for b in bins.tolist())
    picture = _heat_map(flat.reshape(-1, value.shape[-1] if value.dim() else 1), low, high)
    yield NodeValuesRecord(node, flat.numel(), nans, infinities, low, high, finite.mean().item(), counted, picture)


def _heat_map(rows: torch.Tensor, low: float, high: float) -> tuple[str, ...]:
    """Return the rows of a coarse picture of a matrix; none if its finite elements are equal."""
    if not high > low:
        return ()
    cells = (min(HEAT_MAP_CELLS[0], rows.shape[0]), min(HEAT_MAP_CELLS[1], rows.shape[1]))
    scaled = ((rows - low) / (high - low)).nan_to_num(0, 0, 0)
    means = torch.nn.functional.adaptive_avg_pool2d(scaled[None], cells)[0]
    bad = torch.nn.functional.adaptive_max_pool2d((~rows.isfinite()).to(rows.dtype)[None], cells)[0]
    return tuple(
        "".join("x" if is_bad else str(round(9 * mean)) for mean, is_bad in zip(line, bads, strict=True))
        for line, bads in zip(means.tolist(), bad.tolist(), strict=True)
    )
