"""Effectful and random operators run once each and in program order in training calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F

import engine
from engine.aot.wrappers.effect_order import check_effect_order, effectful_ops
from engine.graph.verify import GraphVerificationError

LOG: list[str] = []


def _note(x: torch.Tensor, word: str) -> None:
    LOG.append(word)


def _pass_on(x: torch.Tensor, word: str) -> torch.Tensor:
    LOG.append(word)
    return x.clone()


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    """Define two custom operators with effects that their schemas hide; one returns nothing."""
    library = torch.library.Library("engine_tests_effects", "DEF")
    for name, run, results in (("note", _note, "()"), ("pass_on", _pass_on, "Tensor")):
        library.define(f"{name}(Tensor x, str word) -> {results}")
        library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake("engine_tests_effects::note", lambda x, word: None, lib=library)
    torch.library.register_fake("engine_tests_effects::pass_on", lambda x, word: torch.empty_like(x), lib=library)
    yield torch.ops.engine_tests_effects


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_effects_happen_once_and_in_order(ops: Any, backend: str) -> None:
    """Effects run once and in order around random operators, and the record shows the order.

    This also holds if the forward computes values for the backward.
    """

    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ops.note(a, "first")
        y = F.dropout(a.sin(), 0.5)
        ops.note(y, "second")
        z = F.dropout(b.cos(), 0.5)
        ops.pass_on(z.detach(), "third")
        w = y.exp() * z.sin()
        ops.note(w.detach(), "fourth")
        return w.tanh(), z

    seen = []
    engine.reset()
    compiled = engine.compile(program, backend=backend, fullgraph=True)
    for run in (program, compiled, compiled):
        torch.manual_seed(0)
        a, b = (torch.randn(8).requires_grad_() for _ in range(2))
        LOG.clear()
        with engine.record() as session:
            w, z = run(a, b)
        words = list(LOG)
        (w.sum() + z.sum()).backward()
        assert words == LOG == ["first", "second", "third", "fourth"]
        seen.append([w.detach(), z.detach(), a.grad, b.grad, torch.rand(1)])
        if session.compilations:
            aot = session.compilations[0].aot
            assert aot is not None and aot.mode == "training" and not aot.note
            (told,) = (w for w in aot.wrappers if w.name == "effects in order")
            assert [a.action for a in told.actions] == [f"runs as effect {n} of 4" for n in (1, 2, 3, 4)]
    for found in seen[1:]:
        for e, f in zip(seen[0], found, strict=True):
            torch.testing.assert_close(f, e)


def test_effects_hand_tokens_to_each_other(ops: Any) -> None:
    """The functional graph passes tokens that order effects, in training and in inference."""

    def program(a: torch.Tensor) -> torch.Tensor:
        ops.note(a, "first")
        b = torch.linalg.inv(a)
        ops.note(b.detach(), "second")
        return b.sin()

    for needs in (True, False):
        LOG.clear()
        engine.reset()
        a = (torch.eye(3) * 2).requires_grad_(needs)
        with engine.record() as session:
            found = engine.compile(program, backend="aot_eager", fullgraph=True)(a)
        assert LOG == ["first", "second"]
        torch.testing.assert_close(found, program(a))
        (record,) = session.compilations
        graph = next(g for g in record.graphs if g.stage in ("aten", "forward"))
        texts = [n.text for n in graph.nodes if "token" in n.text]
        assert [t.partition(" = ")[2].partition("(")[0] for t in texts if "[" not in t] == [
            "prims._make_token",
            *["with_effects"] * 3,
        ]
        assert "tests_effects.note, a, 'first'" in texts[1] and texts[1].partition("(")[2].startswith("token,")
        order = [t.partition("(")[2].partition(",")[0] for t in texts if "with_effects" in t]
        assert order == ["token", "token_1", "token_2"]


class Precise(torch.nn.Module):
    """Compute a Gaussian log density with operators that check their results.

    They are a Cholesky factor, a solve and a determinant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.eye(3) * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log densities up to a constant."""
        factor = torch.linalg.cholesky(self.scale @ self.scale.mT + torch.eye(3))
        solved = torch.linalg.solve_triangular(factor, x.mT, upper=False)
        return -solved.square().sum(0) - factor.logdet() + torch.linalg.solve(self.scale, x.mT).sum(0)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_linear_algebra_that_checks_itself_is_functional(backend: str) -> None:
    """Factors, solves and determinants train in one compiled graph.

    A singular matrix raises eager's error.
    """
    model, x = Precise(), torch.randn(5, 3)
    engine.reset()
    with engine.record() as session:
        found = engine.compile(model, backend=backend, fullgraph=True)(x)
    aot = session.compilations[0].aot
    assert aot is not None and aot.mode == "training" and not aot.note
    torch.testing.assert_close(found, model(x))
    expected = torch.autograd.grad(model(x).sum(), model.scale)[0]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), model.scale)[0], expected)
    invert = engine.compile(lambda a: torch.linalg.inv(a), backend=backend)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        invert(torch.zeros(3, 3))


def test_what_nobody_reads_is_not_tried_out_with_effects(ops: Any) -> None:
    """Compiling runs no custom operator, whether its result is read or not."""

    def program(a: torch.Tensor) -> torch.Tensor:
        ops.pass_on(a, "unread")
        return a * 2

    LOG.clear()
    run = engine.compile(program, backend="aot_eager")
    run(torch.ones(2))
    assert LOG == ["unread"]


def _graph(*words: str) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for word in words:
        graph.create_node("call_function", print, (x,), name=word)
    graph.output((x,))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("forward", "backward"), [(("b", "a"), ("c",)), (("a",), ("c",)), (("a", "b"), ("b", "c")), (("a", "c", "b"), ())]
)
def test_a_half_out_of_order_is_refused(forward: tuple[str, ...], backward: tuple[str, ...]) -> None:
    """Effects that changed places, are missing, or stand in both halves."""

    def with_effects(*words: str) -> torch.fx.GraphModule:
        module = _graph(*words)
        for node in module.graph.nodes:
            if node.op == "call_function":
                node.target = torch.ops.aten._assert_async.default
        return module

    whole = with_effects("a", "b", "c")
    assert effectful_ops(whole) == ("a", "b", "c")
    check_effect_order(whole, (with_effects("a", "b"), with_effects("c")), "graph")
    with pytest.raises(GraphVerificationError, match="effects"):
        check_effect_order(whole, (with_effects(*forward), with_effects(*backward)), "graph")
