"""Facts about operators, from schemas, tags and dispatch keys."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.operator_facts import OperatorFacts, draws_random, facts_of, facts_of_node, has_only_effect

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "fact", "expected"),
    [
        (aten.rand.default, "draws_random", True),
        (torch.rrelu, "draws_random", True),
        (F.poisson_nll_loss, "draws_random", False),
        (F.normalize, "draws_random", False),
        (F.gumbel_softmax, "draws_random", True),
        ("__rand__", "draws_random", False),
        ("add_", "writes", True),
        ("sort", "writes", False),
        ("__iter__", "writes", False),
        (operator.iadd, "writes_first", True),
        (operator.setitem, "writes", True),
        (torch._foreach_add_, "counts_list_writes", True),
        (aten.add.out, "has_out", True),
        (torch.add, "writes", False),
        (torch.batch_norm, "running_stats", (3, 4)),
        (F.batch_norm, "running_stats", (1, 2)),
        (torch.layer_norm, "running_stats", ()),
        ("unsafe_chunk", "hides_alias", True),
        (aten._unsafe_index.Tensor, "hides_alias", False),
        ("detach", "detaches", True),
        (torch.as_strided, "addresses_storage", True),
        ("view", "is_view", True),
        (aten.mul.Tensor, "is_pointwise", True),
        (aten.hardswish_backward.default, "is_pointwise", True),
        (aten.matmul.default, "is_composite", True),
        (aten.mm.default, "is_composite", False),
        (aten.linalg_svd.default, "is_linear_algebra", True),
        (aten.tanh_backward.default, "is_backward", True),
        (aten.sym_size.int, "returns_sizes", True),
        (aten.item.default, "returns_sizes", False),
        (torch.quantize_per_tensor, "returns_quantized", True),
    ],
)
def test_facts(target: Any, fact: str, expected: object) -> None:
    """Overloads, functions, methods and Python operators get facts of ATen schemas and tags."""
    assert getattr(facts_of(target), fact) == expected


@pytest.mark.parametrize(
    "target", [aten.add.Tensor, aten.add_.Tensor, torch.add, "add", "add_", "__iadd__", "__radd__", operator.iadd]
)
def test_forms_share_a_name(target: Any) -> None:
    """The out-of-place form names an operator, its in-place form and Python's operators."""
    assert facts_of(target).name == "add"


def test_nothing_is_known_about_other_targets() -> None:
    """A Python callable, an input and an attribute have no facts, whatever they are called."""
    graph = torch.fx.Graph()
    assert facts_of(GraphCallable("add_", print)) == OperatorFacts()
    assert facts_of_node(graph.placeholder("detach")) == OperatorFacts()
    assert facts_of(len) == OperatorFacts()


def test_dropout_of_zero_draws_nothing() -> None:
    """Attention and recurrent networks draw random numbers only if they drop something."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    attention = F.scaled_dot_product_attention
    assert not draws_random(graph.call_function(attention, (x, x, x)))
    assert not draws_random(graph.call_function(attention, (x, x, x), {"dropout_p": 0.0}))
    assert draws_random(graph.call_function(attention, (x, x, x, None, 0.1)))
    assert draws_random(graph.call_function(attention, (x, x, x), {"dropout_p": x}))
    assert draws_random(graph.call_function(F.dropout, (x, 0.0)))


def test_facts_keep_no_function_alive() -> None:
    """Facts are remembered by operator; a function of the user is freed with its values."""

    def target(x: Any) -> Any:
        return x

    held = weakref.ref(target)
    assert not has_only_effect(target)
    assert facts_of(target) == OperatorFacts()
    del target
    assert held() is None
    assert all(has_only_effect(aten._print.default) for _ in range(2))
