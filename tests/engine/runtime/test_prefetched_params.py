"""Parameters that the guard check read are passed to the code, and none is retained.

They are always the ones that a plain call would read.
"""

from __future__ import annotations

import gc
import threading
import weakref

import torch

import engine
from engine.ir.prefetched_params import PrefetchedParams, parameter_runs
from engine.ir.sources.attributes import ModuleMemberSource
from engine.ir.sources.roots import LocalSource


class Deep(torch.nn.Module):
    """Twenty parameters, read before and after an argument that is a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(10))

    def forward(self, x: torch.Tensor, late: torch.Tensor | None = None) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if late is not None and index == 4:
                x = x + late
        return x


def test_order_is_that_of_the_inputs() -> None:
    """Each run of parameters is reversed, the order of unpacking onto the stack.

    The order in which the check reads them does not matter.
    """
    origins = [ModuleMemberSource(LocalSource("self"), "_parameters", f"p{i}") for i in range(20)]
    inputs = [LocalSource("x"), *origins[:12], LocalSource("y"), *origins[12:]]
    runs = parameter_runs(inputs)
    assert runs == (tuple(origins[:12]), tuple(origins[12:]))
    handed = PrefetchedParams(runs)
    give = handed.writer(origins[::-1])
    assert give is not None
    give([f"p{i}" for i in reversed(range(20))])
    first, second = handed() or ((), ())
    assert first == tuple(f"p{i}" for i in reversed(range(12)))
    assert second == tuple(f"p{i}" for i in reversed(range(12, 20)))
    assert handed() is None
    assert handed.writer(origins[1:]) is None


def test_replaced_parameters_are_the_ones_used() -> None:
    """A parameter or submodule replaced between two calls is used by the next call."""
    model = Deep()
    compiled = engine.compile(model, backend="eager")
    x, late = torch.randn(3, 2), torch.randn(3, 2)
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(x, late), model(x, late))
        model.layers[3].weight = torch.nn.Parameter(torch.randn(2, 2))
        assert torch.equal(compiled(x, late), model(x, late))
        model.layers[7] = torch.nn.Linear(2, 2)
        for _ in range(3):
            assert torch.equal(compiled(x, late), model(x, late))
            assert torch.equal(compiled(x), model(x))


def test_nothing_is_kept() -> None:
    """A replaced parameter and its module are freed after calls, even after guard failures."""
    model = Deep()
    compiled = engine.compile(model, backend="eager")
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(3, 2))
        compiled(torch.randn(3, 2, dtype=torch.float64).float().requires_grad_())
        old = weakref.ref(model.layers[0].weight)
        model.layers[0].weight = torch.nn.Parameter(torch.randn(2, 2))
        gc.collect()
        assert old() is None
        compiled(torch.randn(3, 2))
    gone = weakref.ref(model)
    del model, compiled
    gc.collect()
    assert gone() is None


def test_threads_use_what_they_checked() -> None:
    """Threads that call during a parameter swap get the result of one of its two values."""
    model = Deep()
    compiled = engine.compile(model, backend="eager")
    x = torch.randn(3, 2)
    weights = [torch.nn.Parameter(torch.randn(2, 2)) for _ in range(2)]
    with torch.no_grad():
        right = []
        for weight in weights:
            model.layers[0].weight = weight
            right.append(model(x))
            compiled(x)
    found: list[bool] = []
    stop = threading.Event()

    def call() -> None:
        with torch.no_grad():
            while not stop.is_set():
                result = compiled(x)
                found.append(any(torch.equal(result, r) for r in right))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for index in range(300):
        model.layers[0].weight = weights[index % 2]
    stop.set()
    for thread in threads:
        thread.join()
    assert found
    assert all(found)
