"""Compiled training calls behave as eager ones under autograd.

Covers saved tensors, tangents, hooks, second backwards and threads.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import engine

Run = Callable[..., Any]


def compiled(fn: Any, **options: Any) -> Any:
    """``fn`` compiled, its cache empty."""
    engine.reset()
    return engine.compile(fn, backend="aot_eager", **options)


def leaf(*shape: int) -> torch.Tensor:
    """A leaf that needs a gradient."""
    return torch.randn(*shape, requires_grad=True)


def gradients(run: Run, inputs: list[torch.Tensor], use: Callable[[Any], torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of ``use(run(*inputs))`` with respect to copies of the inputs."""
    copies = [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]
    use(run(*copies)).backward()
    return [c.grad for c in copies]


def same(a: list[torch.Tensor | None], b: list[torch.Tensor | None]) -> bool:
    """Whether gradients are equal to the bit, absent ones included."""
    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))  # type: ignore[arg-type]


def test_a_result_that_no_gradient_comes_back_from_is_absent() -> None:
    """An input that only an unused result needs gets no gradient.

    A NaN in that result's gradient does not reach the other gradients.
    """

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, x.sqrt() + y

    x, y = torch.zeros(3, requires_grad=True), leaf(3)
    expected = gradients(fn, [x, y], lambda r: r[0].sum())
    found = gradients(compiled(fn), [x, y], lambda r: r[0].sum())
    assert expected[1] is None
    assert same(expected, found)


def test_both_halves_compute_numbers_from_sizes() -> None:
    """Functions of sizes have no effect: each half may compute their numbers itself."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length, ratio = max(x.shape[0], 2), float(x.shape[0])
        return (x.sin() * y.cos()).sum() * length + (x.exp() / ratio).sum() * min(x.shape[0], 7)

    run = compiled(fn, dynamic=True)
    with engine.record() as session:
        for size in (3, 5, 9):
            inputs = [leaf(size, 4), leaf(4)]
            assert same(gradients(fn, inputs, torch.Tensor.sum), gradients(run, inputs, torch.Tensor.sum))
    assert [c.aot.note for c in session.compilations if c.aot is not None] == [""]


def test_absent_tangents_of_symbolic_sizes_are_absent_too() -> None:
    """The same for a graph over symbols, whatever the size."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.cat([x, x]), y.exp() @ x

    run = compiled(fn, dynamic=True)
    for n in (3, 5):
        x, y = leaf(n), leaf(n)
        for use in (lambda r: r[0].sum(), lambda r: r[1] * 3, lambda r: r[0].sum() + r[1]):
            assert same(gradients(fn, [x, y], use), gradients(run, [x, y], use))


def test_tangents_of_any_layout() -> None:
    """Expanded and transposed tangents are laid out as the backward expects them."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(-1).view(x.shape)

    run, x = compiled(fn), leaf(3, 4)
    for tangent in (torch.ones(()).expand(3, 4), torch.randn(4, 3).t()):
        (expected,) = torch.autograd.grad(fn(x), x, tangent)
        (found,) = torch.autograd.grad(run(x), x, tangent)
        assert torch.equal(expected, found)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_many_tangents_at_once(backend: str) -> None:
    """A backward over a batch of tangents, which compiled code knows nothing of."""

    def fn(x: torch.Tensor) -> Any:
        return (x * x).sin(), x.exp()

    x, batch = leaf(3), torch.eye(3)
    with engine.record():
        run = engine.compile(fn, backend=backend)
        for place in (0, 1):
            found, expected = (
                torch.autograd.grad(f(x)[place], x, batch, is_grads_batched=True)[0]  # type: ignore[no-untyped-call]
                for f in (run, fn)
            )
            torch.testing.assert_close(found, expected)


def test_writes_to_lists_are_counted() -> None:
    """What autograd saved is known to have changed where an operator on lists wrote to it."""

    def overwritten(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        torch._foreach_mul_([y], 2.0)
        return y

    def written(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._foreach_mul_([y], [x])
        return y

    x = leaf(3)
    for f in (overwritten, compiled(overwritten)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            f(x).sum().backward()
    assert same(gradients(compiled(written), [x], torch.sum), gradients(written, [x], torch.sum))


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_sparse_tangents(backend: str) -> None:
    """The gradient of a sparse embedding table stays sparse through compiled code."""

    def fn(table: torch.Tensor) -> torch.Tensor:
        return table * 2 + 1

    run, places = engine.compile(fn, backend=backend), torch.tensor([1, 1, 3])
    grads = []
    for f in (fn, run):
        table = torch.arange(20.0).reshape(5, 4).requires_grad_()
        F.embedding(places, f(table), sparse=True).sin().sum().backward()
        assert table.grad is not None
        assert table.grad.is_sparse
        grads.append(table.grad.to_dense())
    assert torch.equal(*grads)


def test_graphs_are_kept_only_when_asked() -> None:
    """``retain_graph`` allows a second backward; without it the next one raises eager's error."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sin()

    x = leaf(4)
    y = compiled(fn)(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()  # type: ignore[union-attr]
    y.backward()
    assert torch.equal(x.grad, first * 2)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def second(run: Run, inputs: list[torch.Tensor], *, seed: int = 3) -> list[torch.Tensor | None]:
    """Gradients of a function of first gradients."""
    torch.manual_seed(seed)
    copies = [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]
    needing = [c for c in copies if c.requires_grad]
    first = torch.autograd.grad(run(*copies).sin().sum(), needing, create_graph=True, allow_unused=True)
    drawn = torch.rand(2)
    total = sum((g.pow(2).sum() for g in first if g is not None), torch.zeros(()))
    total.backward()
    return [*first, drawn, *(c.grad for c in needing)]


class Discriminator(nn.Module):
    """Normalizes its weight and its batch, drops out, and scales by its detached input.

    The weight's spectral norm is computed from buffers that each call mutates.
    """

    def __init__(self) -> None:
        super().__init__()
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
        self.body = nn.Sequential(first, nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        return self.body(x) * x.detach().mean() * x[:, :1]


SECOND: dict[str, tuple[Run, list[torch.Tensor]]] = {
    "two inputs": (lambda x, y: x.exp() * y, [leaf(3), leaf(3)]),
    "one does not need it": (lambda x, y: x.sigmoid() * y, [leaf(3), torch.randn(3)]),
    "detached": (lambda x: x.detach() * x * x, [leaf(3)]),
    "dropout": (lambda x: F.dropout(x.pow(3), 0.5), [leaf(40)]),
    "a view of an intermediate": (lambda x: (x.pow(3) * 2)[1:].view(1, -1), [leaf(4)]),
    "written inside": (lambda x: (x * x).mul_(x).add_(1), [leaf(4)]),
    "inputs of each other": (lambda x: x.cos() * x, [leaf(4)]),
}


@pytest.mark.parametrize("case", SECOND)
def test_second_derivatives(case: str) -> None:
    """Gradients made under ``create_graph`` can be differentiated with eager's results.

    Random numbers drawn afterwards are eager's, too.
    """
    fn, inputs = SECOND[case]
    for expected, found in zip(second(fn, inputs), second(compiled(fn), inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_second_derivatives_where_inputs_depend_on_each_other() -> None:
    """Second derivatives are split per graph input, even if the inputs depend on each other."""

    def outside(run: Run) -> Run:
        return lambda x: run(x, x.sin(), x)

    def fn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x * y.pow(2) + z.exp() * y

    x = [leaf(3)]
    for expected, found in zip(second(outside(fn), x), second(outside(compiled(fn)), x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.combinations
@pytest.mark.thorough
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_a_gradient_penalty_trains_as_in_eager(backend: str, autocast: bool) -> None:
    """Training with a penalty on the input gradient matches eager.

    Compares parameter gradients and running statistics.
    """
    torch.manual_seed(0)
    model = Discriminator()
    twin = copy.deepcopy(model)
    engine.reset()
    x = torch.randn(6, 4)

    def step(run: Run) -> None:
        torch.manual_seed(5)
        given = x.clone().requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            scores = run(given)
        (g,) = torch.autograd.grad(scores, given, torch.ones_like(scores), create_graph=True)
        (scores.float().mean() + (g.norm(dim=1) - 1).pow(2).mean()).backward()

    for _ in range(2):
        step(model)
        step(engine.compile(twin, backend=backend))
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True)]
    pairs += list(zip(model.buffers(), twin.buffers(), strict=True))
    for a, b in pairs:
        torch.testing.assert_close(b, a, rtol=2e-2 if autocast else 1e-5, atol=1e-3 if autocast else 1e-6)


def test_what_cannot_be_differentiated_twice_says_so_when_it_is_tried() -> None:
    """After an input mutation, only the second derivative under ``create_graph`` raises.

    The first gradient is correct. The error of the second one gives the reason.
    """
    x, y = leaf(4), torch.randn(4)
    run = compiled(lambda x, y: x.sin() + y)
    out = run(x, y).sum()
    y.add_(1)
    (g,) = torch.autograd.grad(out, x, create_graph=True)
    assert torch.equal(g, x.cos())
    with pytest.raises(RuntimeError, match="an input was mutated after the call.*backend='eager'"):
        g.sum().backward()


def test_inputs_written_between_forward_and_backward() -> None:
    """A saved input that was changed since raises eager's error."""
    x, y = leaf(4), torch.randn(4)
    out = compiled(lambda x, y: x * y)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensors_go_through_hooks() -> None:
    """Pack hooks see saved tensors, and the backward reads what the unpack hooks return."""
    x = leaf(4)
    packed: list[Any] = []

    def pack(t: torch.Tensor) -> Any:
        packed.append(t)
        return t.clone()

    run = compiled(lambda x: x.sin().exp())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = run(x)
    out.sum().backward()
    assert packed
    assert torch.allclose(x.grad, x.sin().exp() * x.cos())  # type: ignore[arg-type]


def test_saved_tensors_are_let_go_of() -> None:
    """After a backward nothing that was saved is held any more."""
    run = compiled(lambda x: (x.sin() * x).cos())
    y = run(leaf(64))
    node: Any = y.grad_fn
    assert node.saved_tensors
    y.sum().backward()
    with pytest.raises(RuntimeError, match="after they have already been freed"):
        node.saved_tensors  # noqa: B018


def test_results_without_gradients() -> None:
    """Integer results, detached results and numbers require no gradient, as in eager."""

    def fn(x: torch.Tensor) -> Any:
        return x.sin(), x.argmax(), x.detach() * 2, x.shape[0], None

    y, index, detached, size, nothing = compiled(fn)(leaf(4))
    assert (y.requires_grad, index.requires_grad, detached.requires_grad) == (True, False, False)
    assert (size, nothing) == (4, None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_undefined_tangents_have_the_layout_of_their_results(dynamic: bool) -> None:
    """A backward views the gradient of a transposed result which got no gradient itself."""

    def fn(x: torch.Tensor) -> Any:
        y = x.view(2, 3, -1).transpose(0, 1) * 2
        return y, y[:1].sin()

    def use(results: Any) -> torch.Tensor:
        return results[1].sum()  # type: ignore[no-any-return]

    inputs = [leaf(24)]
    assert torch.equal(
        *(gradients(run, inputs, use)[0] for run in (fn, compiled(fn, dynamic=dynamic)))  # type: ignore[arg-type]
    )


def test_only_the_backward_that_runs_is_compiled() -> None:
    """A result without a gradient has none in any backward that is compiled."""
    tangents = []

    def list_tangents(module: torch.fx.GraphModule) -> None:
        tangents.append([n.name for n in module.graph.nodes if n.op == "placeholder" and "tangent" in n.name])

    with engine.register_pass(list_tangents, stage="decomposed", version="1"):
        engine.compile(lambda x: (x.sin(), x.exp()))(leaf(100))[1].sum().backward()
    assert max(map(len, tangents)) == 1


def test_hooks_on_results_run() -> None:
    """A hook on a result sees its gradient, and may change it."""
    x = leaf(3)
    y = compiled(lambda x: x * 3)(x)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 30.0))  # type: ignore[arg-type]


def test_backward_on_another_thread() -> None:
    """A backward may be compiled and run by a thread that never saw the forward."""
    x = leaf(3)
    y = compiled(lambda x: x.exp())(x).sum()
    thread = threading.Thread(target=y.backward)
    thread.start()
    thread.join()
    assert torch.equal(x.grad, x.exp())  # type: ignore[arg-type]


def test_dropout_is_the_same_in_forward_and_backward() -> None:
    """Masks are eager's for a seed, and the backward uses the forward's."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.gelu(F.dropout(x, 0.5)), 0.25) * x

    run, x = compiled(fn), leaf(32, 8)
    found = []
    for one in (fn, run):
        torch.manual_seed(3)
        found.append(gradients(one, [x], lambda r: r.sum()))
    assert same(*found)


def test_autocast_is_the_forwards() -> None:
    """The graph holds the forward's casts, and the backward always runs without autocast."""
    lin = nn.Linear(8, 8)

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return lin(x).relu()

    run, x = compiled(fn), leaf(4, 8)
    assert same(
        gradients(fn, [x], lambda r: r.float().pow(2).sum()), gradients(run, [x], lambda r: r.float().pow(2).sum())
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = run(x).float().sum()
        y.backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.float32


def test_overwritten_inputs_are_kept_for_the_backward() -> None:
    """An input that the graph overwrites gives eager's gradient.

    The gradient needs the old contents.
    """

    def fn(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = x * buffer.clone()
        with torch.no_grad():
            buffer.add_(1)
        return y

    run = compiled(fn)
    for one in (fn, run):
        x, buffer = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
        one(x, buffer).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]
        assert torch.equal(buffer, torch.full((3,), 3.0))


class Convolutional(nn.Module):
    """Convolutions, batch norm with running statistics, pooling and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(F.dropout(self.features(x).mean((2, 3)), 0.1, self.training))


def losses(model: nn.Module, run: Any, optimizer: str, *, autocast: bool) -> list[float]:
    """Losses of 20 training steps."""
    torch.manual_seed(1)
    kind = torch.optim.SGD if optimizer == "SGD" else torch.optim.AdamW
    steps = kind(model.parameters(), lr=1e-2)
    found = []
    for _ in range(20):
        x, labels = torch.randn(4, 3, 12, 12), torch.randint(5, (4,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(run(x).float(), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        found.append(loss.item())
    return found


@pytest.mark.combinations
@pytest.mark.thorough
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_convolutional_net_trains_as_in_eager(optimizer: str, autocast: bool) -> None:
    """20 steps have the same losses, and leave the same running statistics."""
    torch.manual_seed(0)
    model = Convolutional()
    twin = copy.deepcopy(model)
    expected = losses(model, model, optimizer, autocast=autocast)
    found = losses(twin, compiled(twin), optimizer, autocast=autocast)
    assert found == pytest.approx(expected, rel=1e-4 if not autocast else 2e-2)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=1e-2, atol=1e-3)


def test_the_partition_is_told() -> None:
    """The record names each value between forward and backward, what became of it, and why."""
    engine.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))
    with engine.record() as session:
        engine.compile(model, backend="aot_eager")(torch.randn(2, 8))
    (record,) = session.compilations
    assert record.aot is not None
    assert record.aot.partition is not None
    rows = {v.name: v for v in record.aot.partition.values}
    assert {"saved", "recomputed"} == {v.action for v in rows.values()}
    assert all(v.reason for v in rows.values())
    assert any("computed again" not in v.reason and v.bytes for v in rows.values())
    assert record.aot.partition.saved_bytes <= record.aot.partition.bytes_without_recompute
    backward = next(g for g in record.graphs if g.stage == "backward")
    computed = [n for n in backward.nodes if n.op == "call_function"]
    assert computed
    assert all(n.span is not None for n in computed)


@pytest.mark.thorough
def test_kernels_of_a_backward_are_verified() -> None:
    """The first backward's kernels appear in the session record and agree with ATen.

    The interpreter runs the kernels.
    """
    from engine import session_jobs

    engine.reset()
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6))
    with engine.record() as session:
        engine.compile(model)(torch.randn(3, 4)).pow(2).sum().backward()
    (record,) = session.compilations
    kernels = [k for k in record.kernels if k.id.startswith("b")]
    assert kernels
    assert record.backward_lowering is not None
    outcomes = session_jobs.verify_session_kernels(session)
    session_jobs.cancel(session)
    assert {outcomes[f"{record.id} {k.id}"].outcome for k in kernels} <= {"equal", "close"}


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention_stays_whole_in_training(mask: str) -> None:
    """Attention becomes one forward and one backward operator with bitwise eager results.

    Gradients are equal to the bit, too.
    """
    given = {"bool": torch.rand(6, 6) > 0.3, "float": torch.randn(6, 6)}.get(mask)

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=mask == "causal", scale=0.3) * 2

    inputs = [leaf(2, 3, 6, 8) for _ in range(3)]
    with engine.record() as session:
        run = compiled(fn)
        assert same(gradients(fn, inputs, lambda r: r.sin().sum()), gradients(run, inputs, lambda r: r.sin().sum()))
    graphs = {g.stage: [n.target for n in g.nodes] for g in session.compilations[0].graphs}
    assert any("attention_with_backward" in t for t in graphs["forward"])
    assert any("attention_backward" in t for t in graphs["backward"])


@pytest.mark.parametrize("mask", [None, torch.rand(6, 6), torch.rand(3, 6, 6)], ids=["none", "shared", "each"])
def test_attention_without_a_batch_trains(mask: torch.Tensor | None) -> None:
    """Three dimensions take the same operator as four where torch does, else its parts."""
    inputs = [leaf(3, 6, 8) for _ in range(3)]

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask)

    with engine.record() as session:
        run = compiled(fn)
        found, expected = (gradients(each, inputs, lambda r: r.sin().sum()) for each in (run, fn))
    assert [c.aot.fallback for c in session.compilations if c.aot] == [None]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def error_of(step: Callable[[Run], object], run: Run) -> str:
    """Text of the error that a step raises; empty if it raises none.

    oneDNN has no LSTM in bfloat16 for processors without AVX-512, and eager raises there.
    """
    try:
        step(run)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.combinations
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train_under_autocast(kind: Any, given: torch.dtype) -> None:
    """Autocast's types in results, float32 in the gradients of parameters, in compiled code."""
    torch.manual_seed(0)
    layer, x = kind(3, 4, 2, batch_first=True), torch.randn(2, 5, 3).to(given)

    def step(run: Run) -> list[Any]:
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = run(x)[0]
        out.float().sin().sum().backward()
        return [out.detach(), *(p.grad for p in layer.parameters())]

    if error := error_of(step, layer):
        assert error_of(step, compiled(layer)) == error
        return
    with engine.record() as session:
        found = step(compiled(layer))
    assert [(c.aot.mode, c.aot.note) for c in session.compilations if c.aot] == [("training", "")]
    assert same(step(layer), found)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_stay_whole_in_training(kind: Any) -> None:
    """One operator for the forward and one for the backward, with eager's gradients."""
    layer = kind(4, 5, num_layers=2, bidirectional=True)
    x = leaf(3, 2, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return layer(x)[0]

    with engine.record() as session:
        run = compiled(fn)
        assert same(gradients(fn, [x], lambda r: r.sin().sum()), gradients(run, [x], lambda r: r.sin().sum()))
    forward = next(g for c in session.compilations for g in c.graphs if g.stage == "forward")
    assert any("engine.recurrent" in n.target for n in forward.nodes)


@pytest.mark.parametrize(("kind", "op"), [(nn.LSTM, "aten::lstm"), (nn.GRU, "aten::gru"), (nn.RNN, "aten::rnn_tanh")])
def test_the_backward_of_a_recurrent_layer_runs_no_second_forward(kind: Any, op: str) -> None:
    """Torch's own history of the layer is used, unless a hook copied what was saved."""
    layer, x = kind(4, 5, num_layers=2), leaf(3, 2, 4)
    inputs = [x, *layer.parameters()]
    run = compiled(lambda x: layer(x)[0].sin())
    expected = torch.autograd.grad(layer(x)[0].sin().sum(), inputs)
    run(x)
    with torch.profiler.profile() as profiler:
        result = run(x).sum()
        first = torch.autograd.grad(result, inputs, retain_graph=True)
        second = torch.autograd.grad(result, inputs)
    assert [event.name for event in profiler.events()].count(op) == 1
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), lambda saved: saved):
        result = run(x).sum()
    for found in (first, second, torch.autograd.grad(result, inputs)):
        assert same(expected, found)


@pytest.mark.parametrize("is_bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_output_written_in_place_raises_as_in_eager(kind: Any, is_bidirectional: bool) -> None:
    """The backward raises where torch's own graph saves the output that was written."""
    layer, x = kind(4, 5, bidirectional=is_bidirectional, batch_first=True), leaf(3, 2, 4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return layer(x)[0].mul_(2)

    def outcome(run: Run) -> Any:
        try:
            return torch.autograd.grad(run(x).sum(), [x, *layer.parameters()])
        except RuntimeError as error:
            return str(error).partition(":")[0]

    expected, found = outcome(fn), outcome(compiled(fn))
    assert expected == found if isinstance(expected, str) else same(expected, found)


def test_tangents_may_be_lazily_conjugated_or_negated() -> None:
    """A lazily conjugated or negated tangent is materialized before the backward reads it.

    Such tangents come from a conjugated result, or from the imaginary part of one.
    """

    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = torch.complex(a, b) * (1 + 2j)
        return c.conj(), a * b

    def gradients(run: Any) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        a, b = leaf(3), leaf(3)
        c, d = run(a, b)
        tangent = torch.randn(3, dtype=torch.complex64)
        return torch.autograd.grad([c.abs().sum(), c, d], [a, b], [None, tangent.conj(), tangent.conj().imag])

    for expected, found in zip(gradients(program), gradients(compiled(program)), strict=True):
        torch.testing.assert_close(found, expected)


def test_items_are_assigned_from_other_items() -> None:
    """Item assignments from a tensor's own parts give one functional graph.

    Parts are also updated in place.
    """

    def program(a: torch.Tensor) -> torch.Tensor:
        x = a * 1
        x[0] = x[1]
        x[:, 0] *= 3
        x[1:3] = x[1:3].flip(0)
        x[0, 1:] += x[1, :-1]
        return x

    a = leaf(4, 4)
    engine.reset()
    with engine.record() as session:
        found = engine.compile(program, backend="aot_eager")(a)
    assert [c.aot.note for c in session.compilations if c.aot is not None] == [""]
    assert torch.equal(found, program(a))
    (expected,) = torch.autograd.grad(program(a).sin().sum(), a)
    torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), a)[0], expected)


@pytest.mark.combinations
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}, {"bias": False}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_stacked_recurrent_layers_drop_as_in_eager(kind: Any, options: dict[str, Any], autocast: bool) -> None:
    """Dropout between recurrent layers draws eager's numbers.

    Results, layouts, gradients and the generator state afterwards are eager's.
    """
    torch.manual_seed(0)
    layer, x = kind(3, 4, 3, dropout=0.4, **options), torch.randn(5, 2, 3)

    def step(run: Run) -> list[Any]:
        torch.manual_seed(1)
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out, last = run(x)
        ends = last if isinstance(last, tuple) else (last,)
        (out.float().sin().sum() + sum(t.float().cos().sum() for t in ends)).backward()
        found = [out.detach(), *ends, *(p.grad for p in layer.parameters()), torch.rand(1)]
        return [t.detach().clone() for t in found]

    engine.reset()
    compiled_layer = engine.compile(layer, backend="aot_eager")
    tolerance = 2e-2 if autocast else 1e-5
    if error := error_of(step, layer):
        assert error_of(step, compiled_layer) == error
        return
    for expected, found in zip(step(layer), step(compiled_layer), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class _Called(torch.autograd.Function):
    """Counts its backwards."""

    count = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Twice."""
        _Called.count += 1
        return gradient * 2


def test_what_a_graph_only_reads_gets_no_backward() -> None:
    """An argument that no gradient flows to is not part of the call's autograd history.

    The backward does not run through the function that made it, nor call its hooks.
    """

    def reads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() * y.detach().cos() + y.shape[0]

    found = []
    for run in (reads, compiled(reads)):
        torch.manual_seed(0)
        _Called.count = 0
        hooked: list[torch.Tensor] = []
        x, given = leaf(3), leaf(3)
        y = _Called.apply(given)  # type: ignore[no-untyped-call]
        y.register_hook(hooked.append)
        run(x, y).sum().backward()
        found.append((_Called.count, hooked, given.grad))
        assert x.grad is not None
    assert found[0] == found[1] == (0, [], None)


def test_an_argument_that_needs_a_gradient_no_longer() -> None:
    """``create_graph`` works after ``requires_grad`` was set to False on an argument.

    The change happens between forward and backward.
    """

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * x * y

    found = []
    for run in (fn, compiled(fn)):
        x, y = torch.arange(3.0, requires_grad=True), torch.ones(3, requires_grad=True)
        made = run(x, y)
        x.requires_grad_(False)
        (first,) = torch.autograd.grad(made.sum(), y, create_graph=True)
        found.append(first.detach())
    assert torch.equal(*found)


def test_gradients_of_gradients_without_their_input() -> None:
    """Differentiating twice after an unsaved argument was freed raises with a hint.

    The first gradient is correct.
    """

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid()

    x = leaf(3)
    made = compiled(fn)(x * 1)
    (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    assert torch.allclose(first, x.sigmoid() * (1 - x.sigmoid()))
    with pytest.raises(RuntimeError, match="an input was freed"):
        first.sum().backward()


def test_hooks_for_what_is_saved_are_shown_real_tensors_only() -> None:
    """Saved tensor hooks see only real tensors and do not affect compilation.

    Tensors that the compiler saves while it compiles do not reach the user's hooks. Operators that the hooks run
    do not enter the compiled graph.
    """
    seen: list[type] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen.append(type(t))
        return t * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    run, x = compiled(fn), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t / 2):
        gradients(run, [x], torch.sum)
    assert set(seen) == {torch.Tensor}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run = compiled(fn)
        gradients(run, [x], torch.sum)
    assert same(gradients(run, [x], torch.sum), gradients(fn, [x], torch.sum))


RATES = [1.0]


class Rated(torch.autograd.Function):
    """Its backward reads a number that it is not given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * RATES[0]


def test_a_backward_reads_a_number_that_varies_from_call_to_call() -> None:
    """A backward reads the outside number of its own call, though varying numbers are symbols."""
    run = compiled(lambda x: Rated.apply(x))  # type: ignore[no-untyped-call]
    for rate in (1.0, 6.0, 11.0):
        RATES[0] = rate
        x = leaf(2)
        run(x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [rate, rate]


def test_gradients_do_not_share_memory() -> None:
    """A gradient that is part of another one is stored as a copy: clipping scales it once."""

    def embed(token: torch.Tensor, position: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([token.expand(1, -1, -1), x], 1) + position

    inputs = [leaf(1, 1, 4), leaf(1, 3, 4), torch.randn(1, 2, 4)]
    found = gradients(compiled(embed), inputs, lambda y: y.sin().sum())
    wanted = gradients(embed, inputs, lambda y: y.sin().sum())
    for given in (found, wanted):
        given[1].mul_(0.5)  # type: ignore[union-attr]
    assert same(found, wanted)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_backward_of_a_recurrent_layer_computes_wanted_gradients_only(kind: Any) -> None:
    """No zeros for unread final states, no gradient of an input that needs none."""
    layer, x = kind(4, 5), torch.randn(3, 2, 4)
    with engine.record() as session:
        compiled(layer)(x)[0].sin().sum().backward()
    found = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    layer(x)[0].sin().sum().backward()
    assert same([p.grad for p in layer.parameters()], found)
    backward = next(g for c in session.compilations for g in c.graphs if g.stage == "backward")
    assert not any("zeros_like" in n.target for n in backward.nodes)
    assert sum("getitem" in n.target for n in backward.nodes if n.op == "call_function") == len(found)
