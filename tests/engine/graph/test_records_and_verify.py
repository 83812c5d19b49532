"""Graphs as records and lines of Python, and the rules they are held against."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F

from engine.graph.format_node import format_node
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.graph.to_records import graph_record
from engine.graph.verify import FUNCTIONAL_RULES, WELL_FORMED_RULES, GraphVerificationError, verify_graph
from engine.ir.node_metadata import NodeProvenance, set_provenance
from engine.records.bytecode import Span

aten = torch.ops.aten


def line(target: Any, *args: Any, op: str = "call_function", **kwargs: Any) -> str:
    """The text of one call whose node arguments are ``x`` and ``y``."""
    graph = torch.fx.Graph()
    nodes = {"x": graph.placeholder("x"), "y": graph.placeholder("y")}
    given = [nodes.get(a, a) if isinstance(a, str) and op != "call_method" else a for a in args]
    if op == "call_method":
        given = [nodes["x"], *args]
    node = graph.create_node(op, target, tuple(given), kwargs, name="out")
    return format_node(node)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line(operator.mul, "x", 0.125), "out = x * 0.125"),
        (line(operator.sub, "x", -1), "out = x - (-1)"),
        (line(operator.neg, "x"), "out = -x"),
        (line(operator.iadd, "x", "y"), "out = (x += y)"),
        (line(operator.matmul, "x", "y"), "out = x @ y"),
        (line(torch.softmax, "x", dim=-1), "out = torch.softmax(x, dim=-1)"),
        (line(torch.Tensor.add_, "x", 1), "out = x.add_(1)"),
        (line(F.gelu, "x", approximate="tanh"), "out = F.gelu(x, approximate='tanh')"),
        (line(F.layer_norm, "x", (4,)), "out = F.layer_norm(x, (4,))"),
        (line(F.scaled_dot_product_attention, "x", "x", "y"), "out = F.scaled_dot_product_attention(x, x, y)"),
        (line(aten.add.Tensor, "x", 1), "out = aten.add.Tensor(x, 1)"),
        (line(aten.mm.default, "x", "y"), "out = aten.mm(x, y)"),
        (line(aten.mul, "x", 2), "out = aten.mul(x, 2)"),
        (line(torch.zeros, 2, dtype=torch.float32), "out = torch.zeros(2, dtype=torch.float32)"),
        (line("view", 2, -1, op="call_method"), "out = x.view(2, -1)"),
        (line(operator.getitem, "x", (slice(None), slice(1, None, 2), None, ...)), "out = x[:, 1::2, None, ...]"),
        (line(operator.getitem, "x", 0), "out = x[0]"),
        (line(getattr, "x", "shape"), "out = x.shape"),
        (line(operator.setitem, "x", 0, "y"), "x[0] = y"),
    ],
)
def test_a_node_is_one_readable_line(text: str, expected: str) -> None:
    """Every node reads as the Python that a person would write for it."""
    assert text == expected


def test_record_tells_layout_and_origin() -> None:
    """A record has shape, stride, dtype, bytes, what it reads, and where it came from."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, 4, dtype=torch.float16, device="meta").t()
    y = graph.call_function(aten.relu.default, (x,))
    y.meta["val"] = x.meta["val"]
    span = Span("cell", 3)
    set_provenance(y, NodeProvenance(("fx:0/0:relu",), span, (span,), "mlp.act"))
    graph.output((y,))
    record = graph_record(torch.fx.GraphModule(torch.nn.Module(), graph), "aten", "0/0", "title")
    node = record.nodes[1]
    assert (node.id, node.inputs, node.origins) == ("aten:0/0:relu_default", ("aten:0/0:x",), ("fx:0/0:relu",))
    assert (node.shape, node.stride, node.dtype, node.bytes) == (("4", "3"), ("1", "4"), "float16", 24)
    assert (node.span, node.stack, node.module, node.target) == (span, (span,), "mlp.act", "aten.relu")
    assert [n.text for n in record.nodes] == ["x", "relu_default = aten.relu(x)", "return (relu_default,)"]


def test_rules_find_what_is_illegal() -> None:
    """A graph that mutates an argument, or has no values, is rejected as not functional.

    The message names the node.
    """
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    written = graph.call_function(aten.add_.Tensor, (x, 1))
    graph.output((written,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    verify_graph(module, WELL_FORMED_RULES, "test")
    with pytest.raises(GraphVerificationError, match=r"add__tensor .* mutates one of its arguments"):
        verify_graph(module, FUNCTIONAL_RULES, "test")


def test_dead_operators_go_and_random_ones_stay() -> None:
    """What nobody reads is dropped in chains; operators that move the generator on are kept."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    dead = graph.call_function(aten.relu.default, (x,))
    graph.call_function(aten.neg.default, (dead,))
    graph.call_function(aten.bernoulli.p, (x, 0.5))
    graph.output((x,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert eliminate_dead_code(module) == 2
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [aten.bernoulli.p]
