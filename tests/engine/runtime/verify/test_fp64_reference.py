"""What exact arithmetic gives, as the measure for kernels and for ATen alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.runtime.verify.fp64_reference import fp64_values

aten = torch.ops.aten


def graph_of(*calls: tuple[str, Any, tuple[Any, ...]]) -> torch.fx.GraphModule:
    """A graph with the placeholder x; arguments that are strings name earlier nodes."""
    graph = torch.fx.Graph()
    nodes = {"x": graph.placeholder("x")}
    for name, target, arguments in calls:
        args = tuple(nodes[a] if isinstance(a, str) else a for a in arguments)
        nodes[name] = graph.call_function(target, args, name=name)
    graph.output((nodes[calls[-1][0]],))
    return torch.fx.GraphModule({}, graph)


def test_roundings_in_between_are_left_out() -> None:
    """A cast to 16 bits and back is exact here; the result is float64."""
    module = graph_of(
        ("low", torch.ops.prims.convert_element_type.default, ("x", torch.bfloat16)),
        ("out", aten.mul.Tensor, ("low", 3.0)),
    )
    x = torch.tensor([1.001, 2.0])
    found = fp64_values(module, {"x": x}, ["out"])["out"]
    torch.testing.assert_close(found, x.double() * 3, rtol=0, atol=1e-12)


def test_only_what_lies_between_is_run() -> None:
    """Values that are given are taken as they are: nothing before them runs."""
    module = graph_of(("wild", aten.bernoulli.default, ("x",)), ("out", aten.exp.default, ("wild",)))
    found = fp64_values(module, {"wild": torch.zeros(2)}, ["out"])
    assert found["out"].tolist() == [1.0, 1.0]


def test_random_numbers_and_writes_have_no_exact_values() -> None:
    """Run again, they would give something else, or change what is compared with."""
    for name, target, arguments in (("r", aten.bernoulli.default, ("x",)), ("w", aten.add_.Tensor, ("x", 1.0))):
        module = graph_of((name, target, arguments), ("out", aten.exp.default, (name,)))
        assert fp64_values(module, {"x": torch.rand(2)}, ["out"]) == {}


def test_what_does_not_run_in_double_precision_has_no_reference() -> None:
    """An operator that raises leaves the kernel without a reference."""
    module = graph_of(("out", aten.exp.default, ("x", 1, 2, 3)))
    assert fp64_values(module, {"x": torch.rand(2)}, ["out"]) == {}
