"""AOT chooses a graph's mode and wrappers, fills the records and propagates node sources."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.aot.driver import AotSettings, compile_graph
from engine.graph.verify import FUNCTIONAL_RULES, verify_graph
from engine.runtime.aten_executor import aten_executor
from tests.engine.aot.assert_matches_eager import assert_matches_eager
from tests.engine.aot.tracing import compiled

X, W, B = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4)


def targets(result: Any) -> list[str]:
    """What the functional graph calls."""
    return [n.target for n in result.graphs[-1].nodes if n.op == "call_function"]


def test_run_is_the_lowered_callable_where_nothing_is_to_be_done() -> None:
    """A pure function costs no wrapper: the lowered callable itself is what runs."""
    from tests.engine.aot.tracing import traced

    def lowered(*inputs: Any) -> tuple[Any, ...]:
        return inputs

    graph, inputs = traced(lambda x: (x.sin(), x.cos()), (X,))
    result = compile_graph(graph, inputs, compilation="0/0", settings=AotSettings(lambda graph: lowered, aten_executor))
    assert result.run is lowered
    assert not any(w.actions for w in result.record.wrappers)


def test_every_aten_node_names_the_traced_node_and_line_it_came_from() -> None:
    """ATen nodes have the ids of their traced nodes, the span and the module path."""
    result, _ = compiled(lambda x, w, b: (F.layer_norm(F.linear(x, w, b).add_(1), (4,)),), (X, W, B))
    fx = {n.id: n for n in result.graphs[0].nodes}
    aten = [n for n in result.graphs[1].nodes if n.op == "call_function"]
    assert {n.target for n in aten} >= {"aten.addmm", "aten.add.Tensor", "aten.native_layer_norm"}
    for node in aten:
        (origin,) = node.origins
        assert (node.span, node.module) == (fx[origin].span, "block")
    assert next(fx[n.origins[0]].name for n in aten if n.target == "aten.addmm") == "linear"


def test_placeholders_are_named_and_noted_after_their_origin() -> None:
    """An input keeps its name in the functional graph and tells where it is read."""
    result, _ = compiled(lambda x, w: (x @ w,), (X, W))
    assert [(n.name, n.note) for n in result.graphs[1].nodes[:2]] == [("x", "L['x']"), ("w", "L['w']")]


def test_wrappers_tell_what_they_do() -> None:
    """The record names the wrapper for a mutated input, an aliased input and a view output."""

    def fn(x: Any) -> Any:
        x.add_(1)
        return x, x[0], x * 2

    result, _ = compiled(fn, (X,))
    told = {w.name: [(a.argument, a.action) for a in w.actions] for w in result.record.wrappers}
    assert told["input mutation"] == [("x", "copied back")]
    assert told["output aliasing"] == [("output 0", "is x itself"), ("output 1", "created again as a view of x")]
    assert [v.facts for v in result.record.values][:2] == [("data mutated",), ("is input x itself",)]


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((torch.randn(3, 4).to_sparse(),), "not a strided tensor"),
        ((torch.randn(3, dtype=torch.complex64).conj(),), "lazily conjugated"),
    ],
    ids=["sparse", "conjugated"],
)
def test_unusual_inputs_run_as_traced(args: tuple[Any, ...], reason: str) -> None:
    """What functionalizing does not cover runs as traced, and the record says why."""
    result, lowered = compiled(lambda x: (x * 2,), args)
    assert (result.record.mode, lowered) == ("eager", [])
    assert reason in result.record.note
    eager, ours = args[0] * 2, result.run(*args)[0]
    assert torch.equal(eager.to_dense() if eager.is_sparse else eager, ours.to_dense() if ours.is_sparse else ours)


def test_layout_changed_in_place() -> None:
    """``t_`` on an input is replayed on the user's tensor after its data is copied back.

    The data is written in the layout that the tensor had at the call.
    """

    def fn(x: Any) -> Any:
        x.add_(1)
        x.t_()
        return x + 1, x[0]

    result, _ = compiled(fn, (X.clone(),))
    assert result.record.mode == "inference"
    assert result.record.values[0].facts == ("data mutated", "layout mutated")
    assert_matches_eager(fn, result.run, (X,))


def test_inputs_over_one_storage_are_passed_as_one_when_written() -> None:
    """Inputs that share memory become views of one synthetic base only if one is mutated.

    A guard checks how they overlap.
    """
    both = torch.randn(12)
    args = (both[:8], both[4:])

    def writes(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2, y[1:], x

    result, (graph,) = compiled(writes, args)
    assert [n.name for n in graph.module.graph.nodes if n.op == "placeholder"] == ["memory"]
    assert [a.argument for w in result.record.wrappers if w.name == "synthetic bases" for a in w.actions] == ["x and y"]
    (guard,) = result.guards
    assert guard.test(args[0], (args[1],))
    assert not guard.test(both[:8], (both[3:],))
    assert not guard.test(both[:8], (both[4:].clone(),))
    assert_matches_eager(writes, result.run, args)
    reads, _ = compiled(lambda x, y: (x + y,), args)
    assert (reads.record.mode, reads.guards) == ("inference", ())


@pytest.mark.parametrize(
    ("whole", "one", "other"),
    [
        (torch.randn(12), lambda t: t.view(3, 4), lambda t: t.view(4, 3).t()),
        (torch.randn(12), lambda t: t[2:8], lambda t: t.detach()[4:].data),
        (torch.randn(12), lambda t: t, lambda t: t.view(torch.int32)[3:]),
        (torch.randn(6, dtype=torch.complex64), lambda t: t[1:], torch.view_as_real),
        (torch.randn(12), lambda t: t[1:9].view(torch.uint8), lambda t: t[4:10].view(torch.float64)),
    ],
    ids=["one base", "no base", "another type", "complex as real", "bytes"],
)
def test_synthetic_bases(whole: Any, one: Any, other: Any) -> None:
    """Writes through one view show in another one, whatever relates the two."""
    args = (one(whole), other(whole))

    def fn(x: Any, y: Any) -> Any:
        x[1:] = 3
        z = y.sum()
        y[0] = 1
        return z, x.sum(), x[0], y, y[1:]

    result, _ = compiled(fn, args)
    assert result.record.mode == "inference"
    assert_matches_eager(fn, result.run, args)


def test_as_strided_guards_where_its_input_starts() -> None:
    """``as_strided`` counts from the start of the storage, so its input's offset is guarded."""
    big = torch.arange(12.0)
    result, _ = compiled(lambda x: (x.as_strided((2,), (1,), 3), x * 2), (big[2:6],))
    (guard,) = result.guards
    assert guard.test(big[2:4]) and not guard.test(big)
    assert not guard.test(torch.arange(4.0)[2:])  # too little memory


def test_a_tensor_passed_twice_is_one_input() -> None:
    """A duplicate is left out of the graph, and guarded to be the same object."""
    x = torch.randn(3)

    def fn(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b, b

    result, (graph,) = compiled(fn, (x, x))
    assert len(graph.inputs) == 1
    assert ["passed as a"] == [
        a.action for w in result.record.wrappers for a in w.actions if w.name == "duplicate arguments"
    ]
    (guard,) = result.guards
    assert guard.test(x, (x,)) and not guard.test(x, (x.clone(),))
    mine, theirs = torch.ones(3), torch.ones(3)
    one, other = result.run(mine, mine), fn(theirs, theirs)
    assert one[1] is mine
    assert torch.equal(one[0], other[0]) and torch.equal(mine, theirs)


def test_views_of_inputs_follow_the_offset_of_the_call() -> None:
    """A compiled view is correct for an input with another storage offset than the traced one."""

    def fn(x: Any) -> Any:
        return x[1:], x.t()

    result, _ = compiled(fn, (torch.randn(3, 4),))
    assert_matches_eager(fn, result.run, (torch.randn(6, 4)[2:5],))


def test_symbolic_sizes_serve_other_sizes() -> None:
    """A graph over symbols computes, writes and makes views for sizes it was not traced with."""

    def fn(x: Any, w: Any) -> Any:
        x.mul_(2)
        h = F.softmax(F.linear(x, w), -1)
        return h, x.view(-1), x[0], h.t(), h

    result, (graph,) = compiled(fn, (torch.randn(3, 4), torch.randn(5, 4)), dynamic=True)
    verify_graph(graph.module, FUNCTIONAL_RULES, "test")
    assert result.record.mode == "inference"
    assert any("s" in s for n in result.graphs[1].nodes if n.op == "call_function" for s in n.shape or ())
    for rows, inner, columns in ((3, 4, 5), (7, 6, 2), (2, 9, 4)):
        assert_matches_eager(fn, result.run, (torch.randn(rows, inner), torch.randn(columns, inner)))


def test_relations_that_no_guard_checks_are_not_assumed() -> None:
    """A graph runs as traced for any size if ATen needs size relations that no guard checks."""

    def fn(x: Any) -> Any:
        v = x[1:]
        x.add_(1)
        return v, v.t()

    result, _ = compiled(fn, (torch.randn(3, 4),), dynamic=True)
    assert result.record.mode == "inference" or "which the guards do not check" in result.record.note
    for rows in (3, 2, 9):
        assert_matches_eager(fn, result.run, (torch.randn(rows, 4),))


def test_training_has_a_forward_and_a_backward_compiled_when_needed() -> None:
    """The backward is lowered once, at the first backward call, and gradients match eager."""
    w = W.clone().requires_grad_()
    result, lowered = compiled(lambda x, w: (F.gelu(x @ w),), (X, w))
    assert (result.record.mode, [g.stage for g in lowered]) == ("training", ["forward"])
    assert [g.stage for g in result.graphs] == ["fx", "joint", "forward", "backward"]
    for _ in range(2):
        result.run(X, w)[0].sum().backward()
    assert [g.stage for g in lowered] == ["forward", "backward"]
    expected = W.clone().requires_grad_()
    for _ in range(2):
        F.gelu(X @ expected).sum().backward()
    assert torch.equal(w.grad, expected.grad)  # type: ignore[arg-type]


def test_parameters_under_no_grad_are_inference() -> None:
    """Without grad mode an input that requires grad needs no autograd."""
    w = W.clone().requires_grad_()
    with torch.no_grad():
        result, _ = compiled(lambda x, w: (x @ w, w.t(), w), (X, w))
        assert result.record.mode == "inference"
        assert_matches_eager(lambda x, w: (x @ w, w.t(), w), result.run, (X, w))


def test_inference_mode() -> None:
    """Inference tensors are read, mutated and viewed in inference mode.

    Results are inference tensors.
    """

    def fn(x: Any, w: Any) -> Any:
        y = x @ w
        x.add_(1)
        return y, x[0], w

    with torch.inference_mode():
        result, _ = compiled(fn, (X.clone(), W))
        assert result.record.mode == "inference"
        x, other = X.clone(), X.clone()
        for one, expected in zip((*result.run(x, W), x), (*fn(other, W), other), strict=True):
            assert torch.equal(one, expected)
            assert one.is_inference() == expected.is_inference()


def test_a_view_under_another_width() -> None:
    """An output that sees a complex input as pairs of floats is that again."""

    def fn(z: Any) -> Any:
        return torch.view_as_real(z), z * 2

    z = torch.randn(3, dtype=torch.complex64)
    result, _ = compiled(fn, (z,))
    assert result.record.mode == "inference"
    assert_matches_eager(fn, result.run, (z,))


def test_grad_switched_on_inside_is_training() -> None:
    """``enable_grad`` inside a ``no_grad`` call keeps its gradients."""
    w = W.clone().requires_grad_()

    def fn(x: Any, w: Any) -> Any:
        with torch.enable_grad():
            return (x @ w,)

    with torch.no_grad():
        result, _ = compiled(fn, (X, w))
        assert result.record.mode == "training"


def test_autocast_around_a_call_casts_once() -> None:
    """Under autocast the casts are in the graph, and running it casts no further."""

    def fn(x: Any, w: Any) -> Any:
        return x @ w, F.softmax(x @ w, -1), (x @ w).sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, _ = compiled(fn, (X, W))
        assert [a.argument for w in result.record.wrappers for a in w.actions] == ["cpu"]
        assert_matches_eager(fn, result.run, (X, W))
        assert torch.is_autocast_enabled("cpu")


def test_attention_stays_one_operator() -> None:
    """Attention is the engine's operator, also inside torch's own multi-head attention."""
    q = torch.randn(2, 2, 5, 8)
    plain, _ = compiled(lambda q: (F.scaled_dot_product_attention(q, q, q),), (q,))
    assert targets(plain) == ["engine.attention"]
    heads = torch.nn.MultiheadAttention(8, 2).train()
    x = torch.randn(5, 1, 8)

    def fn(x: Any, w: Any, b: Any, out: Any, bias: Any) -> Any:
        made, _ = F.multi_head_attention_forward(
            x, x, x, 8, 2, w, b, None, None, False, 0.0, out, bias, need_weights=False
        )
        return (made,)

    args = (x, heads.in_proj_weight, heads.in_proj_bias, heads.out_proj.weight, heads.out_proj.bias)
    with torch.no_grad():
        result, _ = compiled(fn, args)
        assert "engine.attention" in targets(result)
        assert not [t for t in targets(result) if "_for_cpu" in t]
        assert_matches_eager(fn, result.run, args)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_stay_one_operator(kind: type[torch.nn.RNNBase]) -> None:
    """An RNN is one operator for every target, with eager's numbers."""
    layer = kind(4, 6, num_layers=2, batch_first=True, bidirectional=True)
    names = {torch.nn.LSTM: "lstm", torch.nn.GRU: "gru", torch.nn.RNN: "rnn_tanh"}
    function = getattr(torch, names[kind])
    state = torch.zeros(4, 2, 6)
    weights = tuple(layer._flat_weights)

    def fn(x: Any, h: Any, *w: Any) -> Any:
        hidden = (h, h) if kind is torch.nn.LSTM else h
        return tuple(function(x, hidden, list(w), True, 2, 0.0, False, True, True))

    namespace: dict[str, Any] = {"fn": fn}
    names_of_weights = ", ".join(f"w{n}" for n in range(len(weights)))
    exec(f"def call(x, h, {names_of_weights}): return fn(x, h, {names_of_weights})", namespace)
    with torch.no_grad():
        args = (torch.randn(2, 5, 4), state, *(w.detach() for w in weights))
        result, _ = compiled(namespace["call"], args)
        assert [t for t in targets(result) if t.startswith("engine.")] == [f"engine.{names[kind]}"]
        assert_matches_eager(namespace["call"], result.run, args)


def test_dead_random_operators_still_draw() -> None:
    """A random tensor that nobody reads moves the generator on, as in eager."""

    def fn(x: Any) -> Any:
        torch.randn(3)
        x * 5
        return (x + torch.rand(3, 4),)

    result, _ = compiled(fn, (X,))
    assert "aten.mul.Tensor" not in targets(result)
    assert_matches_eager(fn, result.run, (X,))


def test_failures_of_lower_are_the_callers() -> None:
    """What ``lower`` raises is not swallowed."""
    from tests.engine.aot.tracing import traced

    def lower(graph: Any) -> Any:
        raise ZeroDivisionError

    graph, inputs = traced(lambda x: (x + 1,), (X,))
    with pytest.raises(ZeroDivisionError):
        compile_graph(graph, inputs, compilation="0/0", settings=AotSettings(lower, aten_executor))


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_functions_decorated_with_inference_mode_are_functional(backend: str) -> None:
    """A function decorated with ``inference_mode`` compiles and returns inference tensors.

    The mode is entered around the graph, which is compiled as any other graph.
    """
    layer = torch.nn.Linear(3, 4)

    @torch.inference_mode()
    def predict(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = layer(x).relu()
        y += 1
        return y, y[0]

    engine.reset()
    x = torch.randn(2, 3)
    with engine.record() as session:
        found = engine.compile(predict, backend=backend)(x)
    aot = session.compilations[0].aot
    assert aot is not None and aot.mode == "inference" and not aot.note
    for expected, value in zip(predict(x), found, strict=True):
        torch.testing.assert_close(value, expected)
        assert value.is_inference()
        assert not value.requires_grad
    assert not torch.is_inference_mode_enabled()


def test_inference_mode_around_writes_to_arguments() -> None:
    """Version counters and views of plain tensors match eager under ``inference_mode``, too.

    Fake tensors do not track some of these counters and views.
    """

    @torch.inference_mode()
    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.mT

    engine.reset()
    for run in (write, engine.compile(write, backend="aot_eager")):
        x = torch.ones(2, 3)
        view = run(x)
        assert (x._version, view._base is x, view.is_inference()) == (1, True, False)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_generators_are_inputs_of_the_functional_graph(backend: str) -> None:
    """Random ops sample from the caller's generators, also in a call that raises."""

    def sample(x: torch.Tensor, g: torch.Generator, h: torch.Generator) -> tuple[torch.Tensor, ...]:
        x.add_(torch.randn(x.shape, generator=g))
        noise = torch.empty(4).uniform_(-1, 1, generator=h) * torch.rand(4, generator=g)
        choice = torch.multinomial(x.softmax(-1), 1, generator=g)
        if x.shape[1] > 1:
            return choice, noise.exp(), torch.randperm(5, generator=h)
        return (noise @ x,)  # the sizes do not match

    def call(run: Any, size: int) -> list[torch.Tensor]:
        generators = [torch.Generator().manual_seed(k) for k in (1, 2)]
        x = torch.ones(3, 4)[:, :size]
        with contextlib.suppress(RuntimeError):
            x = torch.cat([x, *(t.view(-1)[:1, None].expand(3, 1) for t in run(x, *generators))], 1)
        return [x, *(g.get_state() for g in generators)]

    engine.reset()
    with engine.record() as session:
        run = engine.compile(sample, backend=backend)
        for size in (4, 3, 2, 1):
            for expected, value in zip(call(sample, size), call(run, size), strict=True):
                torch.testing.assert_close(value, expected)
    assert all(c.aot is not None and not c.aot.fallback for c in session.compilations)
    assert len(session.compilations) == 3  # 4 columns, more, and 1


def test_a_returned_mask_may_be_saved_for_the_backward() -> None:
    """A mask that the call returns is not packed."""
    torch.manual_seed(0)
    with engine.record() as session:
        run = engine.compile(lambda x: torch.bernoulli(x.sigmoid()), backend="aot_eager")
        run(torch.rand(3, 4, requires_grad=True))
    aot = session.compilations[0].aot
    assert aot is not None and aot.mode == "training" and not aot.fallback


def test_a_size_from_a_float_of_a_tensor_is_functionalized() -> None:
    """The size is computed from the float that the retraced graph reads."""
    compiled = engine.compile(lambda x: torch.ones(int(x.max())) + 1, backend="aot_eager")
    with engine.record() as session:
        for value in (3.7, 5.0):
            assert compiled(torch.tensor([value, 1.0])).tolist() == [2.0] * int(value)
    assert [c.aot is not None and c.aot.fallback for c in session.compilations] == [None]
