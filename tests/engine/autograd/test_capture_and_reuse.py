"""Test when a backward is captured, when a capture is a hit, and when torch runs it.

Where torch's own engine runs the backward, the reported reason is tested.
"""

from __future__ import annotations

import gc
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import engine
from engine.records.session import Session
from engine.torch_private.autograd import execution_engine
from tests.engine.autograd.programs import grads, mlp
from tests.torch_internals import dynamo_compiled_autograd


@pytest.fixture(autouse=True)
def _nothing_captured() -> Iterator[None]:
    """Each test begins and ends with nothing captured."""
    engine.reset()
    yield
    engine.reset()


def outcomes(session: Session) -> list[str]:
    """What became of each backward."""
    return [c.outcome for c in session.backward_calls]


def trained(zero: Callable[[nn.Module], Any], steps: int = 5) -> Session:
    """A loop of constant shape."""
    m, x = mlp(), torch.randn(2, 4)
    with engine.record() as session, engine.compiled_autograd("eager"):
        for _ in range(steps):
            zero(m)
            m(x).sum().backward()
    return session


def test_one_capture_for_a_loop_of_constant_shape() -> None:
    """With gradients set to None before each step, one capture serves all steps."""
    assert outcomes(trained(lambda m: m.zero_grad(set_to_none=True))) == ["captured", *["hit"] * 4]


def test_two_captures_where_gradients_accumulate() -> None:
    """Where gradients are added to, there is one more capture, and its cause says what to do."""
    session = trained(lambda m: None)
    assert outcomes(session) == ["captured", "captured", *["hit"] * 3]
    assert "4 of 4 leaves now have a .grad to accumulate into" in session.backwards[1].cause.sentence


def test_a_size_that_changes_becomes_a_symbol() -> None:
    """The third batch size needs no capture of its own."""
    m = mlp()
    with engine.record() as session, engine.compiled_autograd("eager"):
        for n in (2, 3, 5, 7):
            m.zero_grad()
            m(torch.randn(n, 4)).sum().backward()
    assert outcomes(session) == ["captured", "captured", "hit", "hit"]
    assert "symbols now" in session.backwards[1].cause.sentence


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [(2, 3, 5, 7, 4, 9), (4, 4, 6, 1, 8, 1, 6), (3, 0, 5, 1, 2)])
def test_no_more_captures_than_torchs_own(rows: tuple[int, ...], dynamic: bool) -> None:
    """The engine recaptures at most as often as torch's compiled autograd.

    This holds for any order of batch sizes, including 0 and 1, with the same ``dynamic`` setting.
    """

    m = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3))

    def train() -> None:
        for n in rows:
            m.zero_grad()
            m(torch.ones(n, 4)).square().sum().backward()

    with engine.record() as session, engine.compiled_autograd("eager", dynamic=dynamic):
        train()
    engine.reset()
    theirs: list[Any] = []

    def count(graph: Any) -> Any:
        theirs.append(graph)
        return graph

    with dynamo_compiled_autograd._enable(count, dynamic=dynamic):
        train()
    assert 0 < len(session.backwards) <= len(theirs)


def test_dynamic_from_the_start() -> None:
    """With dynamic=True one capture serves all sizes."""
    m = mlp()
    with engine.record() as session, engine.compiled_autograd("eager", dynamic=True):
        for n in (2, 3, 5):
            m.zero_grad()
            m(torch.randn(n, 4)).sum().backward()
    assert outcomes(session) == ["captured", "hit", "hit"]


def test_another_graph_is_told_from_the_nearest() -> None:
    """The cause names the first node that is another."""
    x = torch.randn(3, requires_grad=True)
    with engine.record() as session, engine.compiled_autograd("eager"):
        x.sin().sum().backward()
        x.grad = None
        x.cos().sum().backward()
    assert (
        session.backwards[1].cause.sentence
        == "the backward graph differs: node 2 is CosBackward0, but SinBackward0 in " + session.backwards[0].id
    )


def test_nodes_are_named_by_their_origin() -> None:
    """Captured graph nodes name their autograd nodes, which list the nodes they became."""
    session = trained(lambda m: m.zero_grad(), steps=1)
    (backward,) = session.backwards
    notes = {n.note for n in backward.graphs[0].nodes}
    assert {"SumBackward0 (NodeCall 1)", "AddmmBackward0 (NodeCall 2)"} <= notes
    names = {n.id for n in backward.graphs[0].nodes}
    assert all(set(n.captured) <= names for n in backward.nodes)
    assert [n.name for n in sorted(backward.nodes, key=lambda n: n.position)][:3] == [
        "GraphRoot",
        "SumBackward0",
        "AddmmBackward0",
    ]


def test_records_survive_a_file(tmp_path: Any) -> None:
    """Captures and backwards come back from a saved session as they were."""
    session = trained(lambda m: m.zero_grad(), steps=2)
    loaded = Session.load(session.save(tmp_path / "session.json"))
    assert loaded.backwards == session.backwards
    assert loaded.backward_calls == session.backward_calls


def test_a_session_that_begins_later_knows_the_capture() -> None:
    """What was captured before the recording is told when it serves."""
    m, x = mlp(), torch.randn(2, 4)
    with engine.compiled_autograd("eager"):
        m(x).sum().backward()
        m.zero_grad()
        with engine.record() as session:
            m(x).sum().backward()
    assert outcomes(session) == ["hit"]
    assert session.backwards[0].nodes


def test_contexts_nest_and_can_be_switched_off() -> None:
    """The innermost context applies, and enabled=False leaves backwards to torch.

    After the contexts exit, torch's execution engine is restored.
    """
    before = execution_engine()
    x = torch.randn(3, requires_grad=True)
    with engine.record() as session, engine.compiled_autograd("eager"):
        x.sin().sum().backward()
        with engine.compiled_autograd("aot_eager"):
            x.sin().sum().backward()
        with engine.compiled_autograd(enabled=False):
            x.sin().sum().backward()
        x.sin().sum().backward()
    assert outcomes(session) == ["captured", "captured", "hit"]
    assert execution_engine() is before


def test_backends_share_captures() -> None:
    """A capture made for one backend serves another, and each runs what it compiled."""
    x = torch.randn(3, requires_grad=True)
    seen = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append([n.target for n in module.graph.nodes if n.op == "call_function"])
        return module

    with engine.record() as session:
        for how in ("eager", backend, "eager", backend):
            x.grad = None
            with engine.compiled_autograd(how):
                x.sin().sum().backward()
            assert x.grad is not None
            assert x.grad.equal(x.detach().cos())
    assert outcomes(session) == ["captured", "hit", "hit", "hit"]
    assert len(seen) == 1
    assert torch.ops.aten.cos.default in seen[0]


def test_reset_forgets_captures() -> None:
    """After a reset the same backward is captured anew."""
    x = torch.randn(3, requires_grad=True)
    with engine.record() as session, engine.compiled_autograd("eager"):
        torch.autograd.grad(x.sin().sum(), x)
        engine.reset()
        torch.autograd.grad(x.sin().sum(), x)
    assert outcomes(session) == ["captured", "captured"]
    assert session.backwards[1].cause.sentence == "the first backward"


def test_other_threads_are_left_alone() -> None:
    """Torch runs the backward of a thread that opened no context; all gradients are right.

    Threads that open contexts of their own get right gradients too.
    """
    wrong: list[Any] = []
    sessions: list[Session] = []

    def work(is_captured: bool) -> None:
        m, x = mlp(), torch.randn(2, 4)
        m(x).square().sum().backward()
        expected = [g.clone() for g in grads(m)]
        with engine.record() as session, engine.compiled_autograd("eager", enabled=is_captured):
            for _ in range(20):
                m.zero_grad()
                m(x).square().sum().backward()
                wrong.extend(1 for a, b in zip(expected, grads(m), strict=True) if not a.equal(b))
        sessions.append(session)

    with engine.compiled_autograd("eager"):
        threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert sorted(len(s.backward_calls) for s in sessions) == [0, 0, 20, 20]


def test_a_backward_inside_of_a_hook_is_eager_and_says_so() -> None:
    """A hook that calls backward gets torch's own engine, with the reason in the records."""
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y = x * 2

    def hook(_: Any) -> None:
        with torch.enable_grad():
            (w * 2).sum().backward()

    y.register_hook(hook)
    with engine.record() as session, engine.compiled_autograd("eager"):
        y.sum().backward()
    assert outcomes(session) == ["captured", "eager"]
    assert "hook" in session.backward_calls[1].reason
    assert w.grad is not None
    assert w.grad.equal(torch.full((3,), 2.0))


def test_what_torch_cannot_capture_runs_in_its_engine_with_a_reason() -> None:
    """A nested tensor's gradient is right, and the record says why it was not captured."""
    x = torch.randn(2, 3, requires_grad=True)
    with engine.record() as session, engine.compiled_autograd("eager"):
        n = torch.nested.as_nested_tensor([x[0], x[1]], layout=torch.strided)
        torch.nested.to_padded_tensor(n * 2, 0.0).sum().backward()
    assert x.grad is not None
    assert x.grad.equal(torch.full((2, 3), 2.0))
    assert outcomes(session) == ["eager"]
    assert session.backward_calls[0].reason


def test_a_failed_hook_neither_loses_nor_doubles_gradients() -> None:
    """After a hook raises, earlier gradients are accumulated exactly once.

    The next backward is captured as usual.
    """

    def attempt(context: Any) -> list[Any]:
        torch.manual_seed(0)
        m, x = mlp(), torch.randn(2, 4)
        fails = [True]

        def hook(_: Any) -> None:
            if fails.pop() if fails else False:
                raise KeyError("once")

        with context:
            h = m[0](x)
            h.register_hook(hook)
            with pytest.raises(KeyError, match="once"):
                m[2](m[1](h)).sum().backward()
            seen = [None if g is None else g.clone() for g in grads(m)]
            m(x).sum().backward()
        return [*seen, *grads(m)]

    expected = attempt(engine.compiled_autograd(enabled=False))
    for found in (attempt(engine.compiled_autograd("eager")), attempt(engine.compiled_autograd("aot_eager"))):
        for a, b in zip(expected, found, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.equal(b)


def test_forward_in_three_graphs_one_captured_backward() -> None:
    """A forward that breaks twice is three compiled calls, whose backwards are one graph."""
    m = mlp()

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = m[0](x)
        engine.graph_break()
        x = m[1](x)
        engine.graph_break()
        return m[2](x).sum()

    x = torch.randn(2, 4)
    forward(x).backward()
    expected = [g.clone() for g in grads(m)]
    compiled = engine.compile(forward, backend="aot_eager")
    with engine.record() as session, engine.compiled_autograd("aot_eager"):
        for _ in range(2):
            m.zero_grad()
            compiled(x).backward()
    assert outcomes(session) == ["captured", "hit"]
    assert sum("CompiledFunction" in n.name for n in session.backwards[0].nodes) == 3
    assert all(a.allclose(b) for a, b in zip(expected, grads(m), strict=True))


@pytest.mark.thorough
def test_twenty_steps_of_gpt2() -> None:
    """GPT-2 trains for twenty steps to the very same weights, with one capture."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 16}
    config = GPT2Config(**sizes, attn_implementation="eager", bos_token_id=None, eos_token_id=None)

    def trained(context: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        words = torch.randint(0, 50, (2, 8))
        with context:
            for _ in range(20):
                optimizer.zero_grad(set_to_none=True)
                model(words, labels=words).loss.backward()
                optimizer.step()
        return [p.detach() for p in model.parameters()]

    expected = trained(engine.compiled_autograd(enabled=False))
    with engine.record() as session:
        found = trained(engine.compiled_autograd("eager"))
    assert outcomes(session) == ["captured", *["hit"] * 19]
    assert all(a.equal(b) for a, b in zip(expected, found, strict=True))


def test_stock_and_ours_in_one_process() -> None:
    """Torch's own capture works before and after the engine's, with no shared cache entries.

    Neither runs what the other captured.
    """

    x = torch.randn(3, requires_grad=True)

    def gradient(context: Any) -> torch.Tensor:
        with context:
            (found,) = torch.autograd.grad((x.sin() * x.exp()).sum(), x)
        return found

    plain = gradient(engine.compiled_autograd(enabled=False))
    with engine.record() as session:
        ours = gradient(engine.compiled_autograd("eager"))
        engine.reset()
        graphs: list[Any] = []
        theirs = gradient(dynamo_compiled_autograd._enable(lambda graph: graphs.append(graph) or graph))
        again = gradient(engine.compiled_autograd("eager"))
    assert len(graphs) == 1
    assert outcomes(session) == ["captured", "captured"]
    assert all(plain.allclose(t) for t in (ours, theirs, again))


def test_memory_is_not_kept() -> None:
    """After a backward nothing of it is held: neither what was saved nor the gradients."""
    import weakref

    x = torch.randn(3, requires_grad=True)
    with engine.compiled_autograd("eager"):
        for _ in range(2):
            y = x.exp()
            saved = weakref.ref(y)
            y.sum().backward()
            x.grad = None
            del y
    gc.collect()
    assert saved() is None


def test_backwards_of_compiled_calls_are_inlined() -> None:
    """The backwards of three compiled calls become one graph that a backend compiles whole.

    Gradients are bitwise equal.
    """
    m = mlp()

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = m[0](x)
        engine.graph_break()
        x = m[1](x)
        engine.graph_break()
        return m[2](x).sum()

    x = torch.randn(2, 4)
    forward(x).backward()
    expected = [g.clone() for g in grads(m)]
    compiled = engine.compile(forward, backend="aot_eager")
    seen = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append([n.target for n in module.graph.nodes if n.op == "call_function"])
        return module

    with engine.record() as session, engine.compiled_autograd(backend):
        for _ in range(2):
            m.zero_grad()
            compiled(x).backward()
    assert len(seen) == 1
    assert torch.ops.aten.mm.default in seen[0]
    assert all(a.equal(b) for a, b in zip(expected, grads(m), strict=True))
    assert [n for n in session.backwards[0].notes if "is inlined" in n]


class Several(nn.Module):
    """Four results of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A sum, all rows twice, and the first row."""
        h = self.inner(x)
        return h.sum(), h.relu(), h[0], h.exp().log()


@pytest.mark.combinations
@pytest.mark.thorough
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("uses", [(1,), (0, 1, 2), (2,), (1, 3), (0, 1, 2, 3)])
def test_unused_results_and_symbolic_sizes_are_inlined(uses: tuple[int, ...], dynamic: bool | None) -> None:
    """A compiled call's backward is inlined for any used outputs, with or without symbols.

    Undefined gradients stay undefined.
    """
    m = Several()
    compiled = engine.compile(m, backend="aot_eager", dynamic=dynamic)

    def found(x: torch.Tensor) -> Any:
        loss = sum(compiled(x)[n].square().sum() for n in uses)
        return torch.autograd.grad(loss, [x, *m.parameters()], allow_unused=True)

    with engine.record() as session:
        for n in (2, 3, 5):
            x = torch.linspace(-1, 2, 4 * n).view(n, 4).requires_grad_()
            expected = found(x)
            with engine.compiled_autograd("aot_eager"):
                captured = found(x)
            for a, b in zip(expected, captured, strict=True):
                assert (a is None) == (b is None)
                assert a is None or (a.equal(b) and a.stride() == b.stride())
    notes = [note for b in session.backwards for note in b.notes]
    assert notes
    assert all("is inlined" in note for note in notes)


def test_sizes_and_gradients_are_told_apart() -> None:
    """A forward that saves more for other sizes is not mistaken for gradient accumulation."""
    m = Several()
    compiled = engine.compile(m, backend="aot_eager")
    with engine.record() as session, engine.compiled_autograd("eager"):
        for n in (2, 3):
            m.zero_grad()
            compiled(torch.randn(n, 4))[0].backward()
    assert ".grad" not in session.backwards[-1].cause.sentence


def test_a_training_step_compiled_with_its_backward() -> None:
    """compile(..., compiled_autograd=True) captures only the backward that the function runs."""
    m, x = mlp(), torch.randn(2, 4)
    m(x).square().sum().backward()
    expected = [g.clone() for g in grads(m)]

    @engine.compile(backend="aot_eager", compiled_autograd=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        m.zero_grad()
        loss = m(x).square().sum()
        loss.backward()
        return loss.detach()

    with engine.record() as session:
        for _ in range(3):
            assert step(x).equal(m(x).square().sum())
    assert outcomes(session) == ["captured", "hit", "hit"]
    assert all(a.allclose(b) for a, b in zip(expected, grads(m), strict=True))
    m(x).sum().backward()
    assert len(session.backward_calls) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_changing_sizes_are_compiled_twice(backend: str) -> None:
    """A capture with symbolic sizes compiles once for the first sizes and once with symbols.

    The backend compiles one segment for the first sizes and one with symbols for all others; the compilation
    causes say so.
    """
    m = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3))

    def found(n: int) -> list[torch.Tensor]:
        m.zero_grad()
        m(torch.linspace(-1, 2, 4 * n).view(n, 4)).square().mean().backward()
        return [g.clone() for g in grads(m)]

    rows = (2, 3, 5, 7, 4, 9, 6, 8, 11, 13, 12)
    expected = [found(n) for n in rows]
    with engine.record() as session, engine.compiled_autograd(backend):
        for n, plain in zip(rows, expected, strict=True):
            assert all(a.allclose(b, atol=1e-6) for a, b in zip(plain, found(n), strict=True))
    assert outcomes(session) == ["captured", "captured", *["hit"] * 9]
    causes = [c.cause.partition(", ")[2] for c in session.compilations]
    assert causes[:2] == ["compiled for the sizes of the first backward"] * 2
    assert len(causes) == 3
    assert "changed sizes as symbols" in causes[2]
    assert not session.failures


@pytest.mark.thorough
def test_sizes_that_symbols_do_not_stand_for_are_compiled_apart() -> None:
    """Batches of one row, or with a size that equals another size, get right gradients.

    A size of 1 is never a symbol.
    """
    m = mlp()
    for rows in ((3, 4, 1, 5, 2, 1), (2, 5, 4, 3, 5)):
        engine.reset()
        for n in rows:
            x = torch.randn(n, 4)
            plain = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
            with engine.compiled_autograd("aot_eager"):
                found = torch.autograd.grad(m(x).square().sum(), list(m.parameters()))
            assert all(a.allclose(b) for a, b in zip(plain, found, strict=True))


class Marked(nn.Module):
    """Results in an object of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> Any:
        """Under the name ``logits``."""
        return types.SimpleNamespace(logits=self.inner(x))


@pytest.mark.parametrize("kind", ["module", "class", "method", "function", "object"])
def test_backwards_through_what_was_compiled_are_captured(kind: str) -> None:
    """compiled_autograd=True captures a caller's backward through the compiled results.

    This holds for every kind of compiled object; other backwards are not captured.
    """
    m, x = Marked() if kind == "object" else mlp(), torch.randn(2, 4)
    options: Any = {"backend": "aot_eager", "compiled_autograd": True}
    run: Any = {
        "module": lambda: engine.compile(m, **options),
        "object": lambda: engine.compile(m, **options),
        "method": lambda: engine.compile(m.forward, **options),
        "function": lambda: engine.compile(lambda t: m(t), **options),
        "class": lambda: engine.compile(type("Own", (nn.Sequential,), {"forward": _through}), **options)(*m.children()),
    }[kind]()

    def loss(result: Any) -> torch.Tensor:
        logits: torch.Tensor = result.logits if kind == "object" else result
        return (logits.square() * 2).sum()

    loss(m(x)).backward()
    expected = [g.clone() for g in grads(m)]
    with engine.record() as session:
        for _ in range(2):
            m.zero_grad()
            loss(run(x)).backward()
        assert outcomes(session) == ["captured", "hit"]
        loss(m(x)).backward()
        with engine.compiled_autograd(enabled=False):
            loss(run(x)).backward()
    assert len(session.backward_calls) == 2
    m.zero_grad()
    loss(run(x)).backward()
    assert all(a.allclose(b) for a, b in zip(expected, grads(m), strict=True))


def _through(self: Any, x: torch.Tensor) -> torch.Tensor:
    for part in self:
        x = part(x)
    return x


def test_torchs_engine_stands_again_where_nothing_is_followed() -> None:
    """Freeing a function compiled with compiled_autograd=True restores torch's engine."""
    gc.collect()
    before = execution_engine()
    compiled = engine.compile(lambda x: x * 2, backend="eager", compiled_autograd=True)
    assert compiled(torch.ones(2, requires_grad=True)).requires_grad
    assert execution_engine() is not before
    del compiled
    gc.collect()
    assert execution_engine() is before
