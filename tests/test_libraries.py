"""Libraries that live on torch give eager's results under every backend, in one graph.

``make libraries`` installs the libraries first; there, a missing one is an error. Elsewhere it is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import engine
from tests.differential import TOLERANCES, Comparison, observe_call
from tests.programs import Call

pytestmark = pytest.mark.slow
Target = Callable[..., Any]
Arguments = Callable[[], tuple[Any, ...]]


def _images() -> tuple[Any, ...]:
    return (torch.rand(2, 3, 16, 16, requires_grad=True),)


def _labels() -> tuple[Any, ...]:
    return torch.randn(16, 5).softmax(-1), torch.randint(0, 5, (16,))


def _signals() -> tuple[Any, ...]:
    return torch.randn(2, 64, requires_grad=True), torch.randn(2, 64)


def _points() -> tuple[Any, ...]:
    return (torch.randn(5, 10, requires_grad=True),)


def _logits() -> tuple[Any, ...]:
    return (torch.randn(4, 3, requires_grad=True),)


def _edges() -> tuple[Any, ...]:
    return torch.randn(8, 6, requires_grad=True), torch.randint(0, 8, (2, 20))


def _pair() -> tuple[Any, ...]:
    return torch.randn(3, 4, requires_grad=True), torch.randn(3, 2)


CASES: dict[str, tuple[str, Arguments, Callable[[Any], Target]]] = {
    "accuracy": ("torchmetrics", _labels, lambda m: m.classification.MulticlassAccuracy(num_classes=5)),
    "confusion matrix": ("torchmetrics", _labels, lambda m: m.classification.MulticlassConfusionMatrix(num_classes=5)),
    "squared error": ("torchmetrics", _signals, lambda m: m.functional.mean_squared_error),
    "blur": ("kornia", _images, lambda m: lambda x: m.filters.gaussian_blur2d(x, (3, 3), (1.0, 1.0))),
    "color": ("kornia", _images, lambda m: lambda x: m.color.hsv_to_rgb(m.color.rgb_to_hsv(x))),
    "rotate": ("kornia", _images, lambda m: lambda x: m.geometry.transform.rotate(x, torch.tensor([10.0, 20.0]))),
    "augmentation": ("kornia", _images, lambda m: m.augmentation.RandomAffine(30.0, p=0.7)),
    "equivariant linear": ("e3nn.o3", _points, lambda m: m.Linear("4x0e+2x1o", "3x0e+1x1o")),
    "density": ("pyro.distributions", _logits, lambda m: lambda x: m.StudentT(3.0, x).log_prob(x * 2)),
    "graph attention": ("torch_geometric.nn", _edges, lambda m: m.GATConv(6, 5, heads=2, add_self_loops=False)),
    "neighbor means": ("torch_geometric.nn", _edges, lambda m: m.SAGEConv(6, 5)),
    "update of names": (
        "tensordict",
        _pair,
        lambda m: lambda a, b: m.TensorDict({"a": a, "b": b}, [3]).update({"a": a * 3})["a"],
    ),
    "map over names": (
        "tensordict",
        _pair,
        lambda m: lambda a, b: m.TensorDict({"a": a, "n": {"b": b}}, [3]).apply(lambda x: x + 1)["n", "b"],
    ),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_library_matches_eager_in_one_graph(name: str, backend: str) -> None:
    """Results, gradients and random state of two calls are those of plain PyTorch."""
    module, arguments, make = CASES[name]
    if find_spec(module.partition(".")[0]) is None and "TEST_LIBRARIES" not in os.environ:
        pytest.skip(f"{module} is not installed: `make libraries` installs it")
    library = import_module(module)
    engine.reset()
    outcomes: list[list[dict[str, Any]]] = []
    with engine.record() as session:
        for is_compiled in (False, True):
            torch.manual_seed(0)
            target = make(library)
            run = engine.compile(target, backend=backend) if is_compiled else target
            outcomes.append([observe_call(run, Call(arguments()), grad=True) for _ in range(2)])
            outcomes[-1].append({"random": torch.get_rng_state()})
    comparison = Comparison(None if backend == "eager" else TOLERANCES)
    comparison.values(outcomes[0], outcomes[1], "calls")
    assert not comparison.differences
    assert not [b for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert not [*session.failures, *(f for c in session.compilations for f in c.failures)]
