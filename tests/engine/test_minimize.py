"""Minimizing: the smallest graph that fails in the same way, for each way to fail."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine.editing import minimize_graphs
from engine.editing.measure_slowdown import Slowdown, is_similarly_slow
from engine.editing.minimize_graphs import MinimizedGraph, minimize
from engine.errors import BadArgument, NotReproduced

forks = pytest.mark.skipif(
    sys.platform != "linux", reason="trials run in forked processes, which are safe on Linux only"
)


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x
    for _ in range(6):
        y = torch.relu(y @ w) + 1
    y = torch.sigmoid(y) * y.cos()
    for _ in range(6):
        y = torch.relu(y @ w) + 1
    return y.sum()


def faulty(fault: str) -> Callable[..., Any]:
    """A backend that fails if a graph has a sigmoid and, for a wrong value, multiplies it."""

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        targets = [n.target for n in graph.graph.nodes]
        if torch.sigmoid not in targets:
            return graph.forward
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exception":
            raise KeyError("no rule for sigmoid")
        while fault == "hang":
            time.sleep(0.01)
        wrong = torch.fx.GraphModule(graph, torch.fx.Graph())
        wrong.graph.output(wrong.graph.graph_copy(graph.graph, {}))
        for node in wrong.graph.find_nodes(op="call_function", target=torch.sigmoid):
            if any(u.op == "call_function" and "mul" in str(u.target) for u in node.users):
                node.target = torch.tanh
        wrong.recompile()
        return wrong.forward

    return backend


def test_no_operation_is_accused_where_nothing_can_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without forked processes, a sentence says so: a refused trial is no failure."""
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(BadArgument, match="cannot be tried in another process: this system cannot fork"):
        minimize(program, torch.randn(8, 8), torch.randn(8, 8), backend="eager")


def check_smallest(found: MinimizedGraph, fault: str, nodes: int) -> None:
    """Assert that a graph fails as the whole one did, and holds little else."""
    assert found.outcome.kind == fault
    assert (found.nodes, found.is_minimal) == (nodes, True), found
    assert "torch.sigmoid" in found.text
    assert all(max(t.shape) <= 3 for t in found.inputs if fault != "wrong value")
    assert found.nodes_before == 40
    if fault in ("crash", "hang"):
        with pytest.raises(BadArgument, match=f"would {fault}"):
            found.record()


@pytest.mark.thorough
@forks
@pytest.mark.parametrize(("fault", "nodes"), [("wrong value", 2), ("exception", 1), ("crash", 1)])
def test_the_smallest_graph_fails_in_the_same_way(fault: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the operations that the fault needs are left, on small inputs."""
    monkeypatch.setattr("engine.editing.minimize_graphs.TRIAL_SECONDS", 2.0)
    torch.manual_seed(0)  # large values would make sigmoid and tanh equal
    found = minimize(program, torch.randn(8, 8), torch.randn(8, 8), fails=fault, backend=faulty(fault))
    check_smallest(found, fault, nodes)
    if fault == "wrong value":
        assert found.record().compilations


@pytest.mark.forks_backward
@forks
def test_a_wrong_gradient_is_minimized() -> None:
    """A backward that is wrong leaves the operation whose gradient it is."""

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            results = graph(*inputs)
            has_tanh = torch.tanh in [n.target for n in graph.graph.nodes]
            return tuple(r * 2 - r.detach() for r in results) if has_tanh else results

        return run

    def steps(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x * 2) + 1).sin()

    found = minimize(steps, torch.randn(4, requires_grad=True), backend=backend)
    assert "gradient" in found.outcome.sentence
    assert found.nodes == 1
    assert "torch.tanh" in found.text


@forks
def test_what_does_not_fail_says_so() -> None:
    """A correct call, and an unknown failure, are errors of one sentence."""
    with pytest.raises(NotReproduced, match="agrees with eager"):
        minimize(program, torch.randn(8, 8), torch.randn(8, 8), backend="aot_eager")
    with pytest.raises(BadArgument, match="choose one of"):
        minimize(program, torch.randn(8, 8), torch.randn(8, 8), fails="sadly")
    assert engine.minimize is minimize


def slow_sigmoid(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A backend whose sigmoid is computed a thousand times."""

    def sigmoid(x: torch.Tensor) -> torch.Tensor:
        for _ in range(1000):
            y = torch.sigmoid(x)
        return y

    slow = torch.fx.GraphModule(graph, torch.fx.Graph())
    slow.graph.output(slow.graph.graph_copy(graph.graph, {}))
    for node in slow.graph.find_nodes(op="call_function", target=torch.sigmoid):
        node.target = sigmoid
    slow.recompile()
    return slow.forward


@pytest.mark.thorough
@forks
def test_the_operation_that_is_slower_than_eager_is_left() -> None:
    """A part is slow alike if it has half of the lost seconds: the others are removed."""
    said: list[str] = []
    x, w = torch.randn(32, 32), torch.randn(32, 32)
    found = minimize(program, x, w, fails="slower", backend=slow_sigmoid, on_progress=said.append, seconds=300)
    assert found.outcome.kind == "slower"
    assert (found.nodes, found.is_minimal) == (1, True), found
    assert "torch.sigmoid" in found.text
    assert found.outcome.slowdown.ratio > 10
    assert said[0] == "trial 1"
    assert said[-1].endswith(": 1 of 40 operations left")


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ((1.1, 1.3, 1.2), r"takes over 1\.2 times the time of eager"),
        ((2.0, 4.0, *[9.0] * 6), "The measured slowdown varies too much"),
    ],
)
def test_what_is_not_slower_says_so(seconds: tuple[float, ...], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may be as fast as eager; times that vary too much remove nothing."""
    measured = iter([Slowdown(1.0, each) for each in seconds])
    monkeypatch.setattr("engine.editing.minimize_graphs._Search._slowdown", lambda *_: next(measured))
    with pytest.raises(NotReproduced, match=sentence):
        minimize(program, torch.randn(8, 8), torch.randn(8, 8), fails="slower")


def test_a_measurement_near_the_limit_is_repeated() -> None:
    """A small excess decides alone; else the fastest of three measurements does."""
    original = Slowdown(1.0, 3.0)

    def answers(*compiled: float) -> Iterator[Slowdown]:
        return iter([Slowdown(1.0, c) for c in compiled])

    for times, is_alike, unused in (
        ([3.0, 2.9, 3.0], True, 0),
        ([1.4, 3.0], False, 1),
        ([2.1, 2.2, 9.0], True, 0),
        ([2.1, 1.8, 1.9], False, 0),
        ([9.0, 1.1, 3.0], False, 1),
    ):
        given = answers(*times)
        assert is_similarly_slow(lambda given=given: next(given), original) is is_alike
        assert len(list(given)) == unused


@forks
def test_a_search_can_be_stopped() -> None:
    """Another thread ends it, in a trial too, with the smallest graph so far."""
    stop = threading.Event()

    def progress(said: str) -> None:
        if "20 of 40" in said:
            stop.set()

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    found = minimize(program, x, w, fails="exception", backend=faulty("exception"), on_progress=progress, stop=stop)
    assert not found.is_minimal
    assert "the search was stopped" in repr(found)
    assert found.nodes <= 20
    stop.clear()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(NotReproduced, match="stopped before a failure was found"):
        minimize(program, x, w, fails="hang", backend=faulty("hang"), stop=stop)


@forks
def test_a_fork_without_backward_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch runs no backward in a fork, nothing was tried, and a sentence says so."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    with pytest.raises(BadArgument, match="another process: this build of torch runs no backward in a fork"):
        minimize(program, x, w, backend="aot_eager")


@pytest.mark.thorough
@forks
def test_trials_of_a_hang_take_as_long_as_those_that_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest graph hangs; the first and the last trial have more time than the others."""
    limits: list[float] = []
    run = minimize_graphs.run_in_fork

    def noted(work: Callable[[], Any], *, seconds: float, **options: Any) -> Any:
        limits.append(seconds)
        return run(work, seconds=seconds, **options)

    monkeypatch.setattr(minimize_graphs, "run_in_fork", noted)
    monkeypatch.setattr(minimize_graphs, "TRIAL_SECONDS", 4.0)
    monkeypatch.setattr(minimize_graphs, "HANG_RATIO", 0.01)
    monkeypatch.setattr(minimize_graphs, "MIN_HANG_SECONDS", 1.5)
    found = minimize(program, torch.randn(8, 8), torch.randn(8, 8), fails="hang", backend=faulty("hang"))
    check_smallest(found, "hang", 1)
    assert limits[0] == limits[-1] == 4.0
    assert 1.5 in limits
