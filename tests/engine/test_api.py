"""The public functions, on real compiles."""

from __future__ import annotations

import concurrent.futures
import functools
import operator
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine import api
from engine.torch_private.global_state import loaded_dynamo_module
from engine.torch_private.symbolic_shapes import ConstraintViolationError


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Every test starts with empty caches and the built-in backends."""
    engine.reset()
    known = dict(api.BACKENDS)
    yield
    api.BACKENDS.clear()
    api.BACKENDS.update(known)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def printing(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("seen")
    return y * 2


class Scaled:
    """A callable object."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def shifted(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return self(x) + by


X = torch.arange(4.0)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (double, X * 2),
        (Scaled(3.0), X * 3),
        (Scaled(3.0).shifted, X * 3 + 1),
        (functools.partial(Scaled(3.0).shifted, by=5.0), X * 3 + 5),
        (torch.nn.Softplus(), torch.nn.functional.softplus(X)),
    ],
    ids=["function", "object", "method", "partial", "module"],
)
def test_whatever_python_can_call_is_compiled(subject: Any, expected: torch.Tensor) -> None:
    """Each kind of callable gives its plain result through one graph.

    Covers functions, callable objects, methods, partials and modules.
    """
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(subject)(X), expected)
    assert [g.stage for c in session.compilations for g in c.graphs if g.stage == "fx"] == ["fx"]


def test_a_decorator_with_options() -> None:
    """``@engine.compile(backend=...)`` compiles the function below it."""

    @engine.compile(backend="eager")
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert triple(X).equal(X * 3)
    assert triple.__name__ == "triple"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "tritn"}, "no backend 'tritn'"),
        ({"backend": 3}, "no backend 3"),
        ({"target": "h100"}, "no target 'h100'"),
        ({"dynamic": "yes"}, "dynamic must be"),
        ({"options": {"mood": "fast"}}, "no option 'mood'"),
        (
            {"options": {"mode": "fast"}},
            "must be one of default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs, not 'fast'",
        ),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(arguments: dict[str, Any], words: str) -> None:
    """Each says what was wrong and what to choose."""
    with pytest.raises(engine.EngineError, match=words):
        engine.compile(double, **arguments)


@pytest.mark.parametrize("subject", [3, "f", Scaled])
def test_what_has_no_python_code_is_refused(subject: Any) -> None:
    """The sentence names what was passed."""
    with pytest.raises(engine.EngineError, match="takes a Python function"):
        engine.compile(subject)


def test_fullgraph_points_at_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The user's line stands under the message with a caret, and nothing has run."""
    with pytest.raises(engine.GraphBreak) as caught:
        engine.compile(printing, fullgraph=True)(X)
    assert 'print("seen")' in str(caught.value)
    assert "^^^^^" in str(caught.value)
    assert not capsys.readouterr().out


def test_a_backend_of_ones_own() -> None:
    """A registered callable gets the graph and real inputs, and what it returns is run."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.extend(inputs)
        return lambda *args: tuple(r + 1 for r in graph(*args))

    engine.register_backend("plus_one", backend)
    assert "plus_one" in engine.list_backends()
    assert engine.compile(double, backend="plus_one")(X).equal(X * 2 + 1)
    assert len(seen) == 1
    assert seen[0].equal(X)


def test_a_built_in_backend_cannot_be_replaced() -> None:
    """The sentence says so."""
    with pytest.raises(engine.EngineError, match="built-in"):
        engine.register_backend("triton", lambda graph, inputs: graph)


def test_a_failing_backend_raises_unless_errors_are_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If suppressed, the failure is recorded and the graph runs as traced."""

    def broken(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("out of ideas")

    torch.compiler.reset()  # it loads Dynamo
    stock_error = loaded_dynamo_module("exc").BackendCompilerFailed
    for kind in (engine.BackendError, stock_error):
        with pytest.raises(kind, match="out of ideas"):
            engine.compile(double, backend=broken)(X)
    with pytest.raises(engine.BackendError, match="cannot be called"):
        engine.compile(double, backend=lambda graph, inputs: None)(X)
    monkeypatch.setattr(engine.config, "suppress_errors", True)
    with engine.record() as session:
        assert engine.compile(double, backend=broken)(X).equal(X * 2)
    (failure,) = session.compilations[0].failures
    assert "out of ideas" in failure.sentence
    with pytest.raises(engine.BackendError, match="out of ideas"):
        engine.compile(double, backend=broken, fullgraph=True)(X)


def test_explain_leaves_every_cache_as_it_was() -> None:
    """What is compiled elsewhere stays compiled, and explain's own call adds nothing to it."""
    compiled = engine.compile(printing, backend="eager")
    compiled(X)
    before = engine.guards_of(compiled)
    found = engine.explain(compiled, torch.ones(7))
    assert found.graphs == 2
    assert "printing: 2 graphs, 1 break" in str(found)
    assert "print" in found.breaks[0]
    assert engine.guards_of(compiled) == before
    with engine.record() as session:
        compiled(X)
    assert not session.compilations


def test_explain_shows_what_the_function_raises() -> None:
    """The user's exception is not swallowed."""
    with pytest.raises(RuntimeError, match="shape"):
        engine.explain(lambda x: x.view(3, 5), X)


def test_expect_names_what_was_too_many() -> None:
    """The error says which function recompiled, and why; what is as expected passes."""
    compiled = engine.compile(double, backend="eager")
    with engine.expect(graphs=1, breaks=0, recompiles=0):
        compiled(X)
    with pytest.raises(AssertionError, match="size 7"), engine.expect(recompiles=0):
        compiled(torch.ones(7))


def test_explain_call_runs_nothing() -> None:
    """``explain_call`` names the cache hit or the guard failure, and compiles nothing."""
    compiled = engine.compile(double, backend="eager")
    compiled(X)
    assert engine.explain_call(compiled, X).hit is not None
    refused = engine.explain_call(compiled, X.double())
    assert refused.hit is None
    assert refused.guard_failures[0].kind == "dtype"
    assert len(engine.guards_of(compiled)) == 1


def test_a_marked_dimension_needs_one_compile() -> None:
    """Sizes of a dimension marked as dynamic share one entry; one marked as static never does."""
    compiled = engine.compile(double, backend="eager")
    with engine.record() as session:
        for n in (3, 4, 5):
            x = torch.ones(n)
            engine.mark_dynamic(x, 0)
            assert compiled(x).shape == (n,)
    assert len(session.compilations) == 1


def test_several_dimensions_are_marked_in_one_call() -> None:
    """A list marks each of its dimensions, as torch's function does."""
    compiled = engine.compile(double, backend="eager")
    with engine.record() as session:
        for rows, columns in ((3, 7), (4, 6), (5, 8)):
            x = torch.ones(rows, 2, columns)
            engine.mark_dynamic(x, [0, -1])
            engine.mark_static(x, (1,))
            assert compiled(x).shape == (rows, 2, columns)
    assert len(session.compilations) == 1


@pytest.mark.parametrize("mark", [engine.mark_dynamic, engine.mark_static])
@pytest.mark.parametrize("dim", ["rows", 0.5, [0, None]], ids=str)
def test_marking_what_is_no_dimension(mark: Callable[..., None], dim: object) -> None:
    """One sentence, and nothing is marked."""
    x = torch.ones(2, 2)
    with pytest.raises(engine.EngineError, match="A dimension is an integer, or a list of integers, not"):
        mark(x, dim)
    assert not x.__dict__


@pytest.mark.parametrize("mark", [engine.mark_dynamic, engine.mark_static])
def test_marking_a_dimension_that_is_not_there(mark: Callable[..., None]) -> None:
    """One sentence."""
    with pytest.raises(engine.EngineError, match="has no dimension 3"):
        mark(torch.ones(2, 2), 3)


@pytest.mark.thorough
def test_a_session_survives_its_file(tmp_path: pathlib.Path) -> None:
    """Records of a real compile load back equal; a loaded session cannot be verified.

    ``verify`` gives "not verifiable" for a loaded session.
    """
    with engine.record(level="steps") as session, torch.no_grad():
        engine.compile(printing)(X)
    assert engine.wait(session, 120)
    again = engine.Session.load(session.save(tmp_path / "s.json"))
    assert again.to_data() == session.to_data()
    assert {v.outcome for v in engine.verify(again).values()} == {"not verifiable"}
    assert all(v.outcome in ("equal", "close") for v in engine.verify(session).values())


def test_an_unknown_level_is_refused() -> None:
    """The sentence lists the levels."""
    with pytest.raises(engine.EngineError, match="standard, steps"), engine.record(level="all"):
        pass


def test_kernels_reach_the_session_after_the_results() -> None:
    """Without a GPU the target's listings arrive in the background; waiting for them ends."""
    with engine.record() as session, torch.no_grad():
        engine.compile(double)(X)
    assert engine.wait(session, 60)
    (kernel,) = session.compilations[0].kernels
    assert kernel.targets[0].target == session.target
    assert {listing.stage for listing in kernel.targets[0].listings} >= {"ttir", "ptx", "sass"}


def test_arguments_without_a_name_are_not_told() -> None:
    """What a resume function is handed from the stack is in no record of its inputs."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + operator.truth(x.exp().sum() > 0)

    with engine.record() as session:
        engine.compile(broken, backend="eager")(X)
    assert len(session.compilations) == 2
    assert not [name for c in session.compilations for name in c.inputs or {} if name.startswith("__")]
    assert not [name for call in session.calls for name in call.inputs if name.startswith("__")]


def test_what_has_no_bytecode_compiles() -> None:
    """C functions, method descriptors and bound ``apply`` methods compile without a break.

    They are compiled like a Python function that calls them.
    """
    x = X.clone().requires_grad_()
    for subject in (torch.sin, torch.Tensor.exp, _Doubled.apply):
        with engine.record() as session:
            assert engine.compile(subject, backend="eager")(x).equal(subject(x))
        assert [len(c.trace.breaks) for c in session.compilations if c.trace] == [0]


def test_each_callable_without_bytecode_has_its_own_cache() -> None:
    """More such callables than the recompile limit are each compiled once, with no recompile."""
    with engine.record() as session:
        for subject in (torch.sin, torch.cos, torch.tan, torch.exp, torch.sqrt, torch.abs, torch.neg, torch.ceil, torch.floor, torch.tanh):  # fmt: skip
            assert engine.compile(subject, backend="eager")(X).equal(subject(X))
    assert len(session.frames) == len(session.compilations) == 10


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() + (x[0] * x[1]).sin()


@pytest.mark.parametrize(
    "subject",
    [
        torch.func.vmap(torch.func.grad(_cubes), out_dims=1),
        torch.func.hessian(lambda x: _cubes(x[0])),
        torch.func.jacrev(torch.func.vmap(_cubes)),
        torch.func.jacfwd(torch.func.vmap(_cubes)),
        torch.func.vmap(torch.func.grad_and_value(_cubes)),
        torch.func.vmap(torch.nn.Linear(3, 2)),
        functools.partial(torch.utils.checkpoint.checkpoint, torch.func.vmap(_cubes), use_reentrant=False),
    ],
    ids=["grad", "hessian", "jacrev", "jacfwd", "grad_and_value", "module", "checkpoint"],
)
def test_a_transformed_function_is_one_graph(subject: Any) -> None:
    """Transformed functions and checkpoints are one graph, compiled once."""
    x = torch.arange(12.0).reshape(4, 3) / 10
    with engine.record() as session:
        for _ in range(2):
            torch.testing.assert_close(engine.compile(subject, backend="aot_eager")(x), subject(x))
    assert [len(c.trace.breaks) for c in session.compilations if c.trace] == [0]
    assert [g.stage for c in session.compilations for g in c.graphs if g.stage == "fx"] == ["fx"]


def test_an_exception_of_torch_leaves_no_dispatch_key_excluded() -> None:
    """Eager code works after torch raised inside a transform while tracing."""
    curvature = torch.func.vmap(torch.func.hessian(_cubes))
    x = torch.arange(12.0).reshape(4, 3) / 10
    expected = curvature(x)
    assert engine.compile(curvature, backend="eager")(x).equal(expected)
    assert curvature(x).equal(expected)


def test_a_python_frame_compiles_the_transformed_functions_that_it_calls() -> None:
    """A generator runs as Python; the transformed functions that it calls are compiled whole."""

    def derivatives(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for transform in (torch.func.grad, torch.func.jacrev):
            yield transform(_cubes)(x)

    with engine.record() as session:
        torch.testing.assert_close(list(engine.compile(derivatives, backend="eager")(X)), list(derivatives(X)))
    assert [g.stage for c in session.compilations for g in c.graphs if g.stage == "fx"] == ["fx", "fx"]
    assert not [record for c in session.compilations if c.trace for record in c.trace.breaks]


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@functools.lru_cache
def _kept(n: int) -> int:
    return n * 2


def test_reset_forgets_that_a_cache_was_asked() -> None:
    """A function cache whose usage is queried is left to Python until a reset."""

    def uses(x: torch.Tensor) -> torch.Tensor:
        return x * _kept(3)

    def asks(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return uses(x), _kept.cache_info().currsize

    x = torch.ones(2)
    assert engine.compile(asks, backend="eager")(x)[1] == 1
    assert engine.explain(uses, x).breaks
    engine.reset()
    assert not engine.explain(uses, x).breaks


def test_a_function_that_torch_disabled_is_compiled_when_compile_is_called_on_it() -> None:
    """``compile(disable(f))`` compiles f; other calls of the disabled f stay eager."""
    disabled = torch.compiler.disable(double)
    with engine.record() as session:
        assert engine.compile(disabled, backend="eager")(X).equal(X * 2)
    assert len(session.compilations) == 1
    with engine.expect(breaks=1):
        engine.compile(lambda x: disabled(x) + 1, backend="eager")(X)


def _of_size_three(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] == 3 else x


def _for_some_sizes(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.shape[0] > 3 else x - 1


def test_a_specialized_dimension_that_was_marked_raises() -> None:
    """``mark_dynamic`` and strict ``mark_unbacked`` of torch raise; weak marks do not."""
    torch.compiler.reset()  # it loads Dynamo
    decorators = loaded_dynamo_module("decorators")
    marks = (decorators.mark_dynamic, functools.partial(decorators.mark_unbacked, strict=True))
    for mark in marks:
        x = torch.ones(3)
        mark(x, 0)
        with pytest.raises(ConstraintViolationError, match="needs it to be 3") as found:
            engine.compile(_of_size_three, backend="eager")(x)
        assert isinstance(found.value, engine.ConstraintViolation)
        assert found.value.stack[0].file == __file__
        assert engine.compile(_for_some_sizes, backend="eager")(x).equal(torch.zeros(3))
    for mark in (decorators.maybe_mark_dynamic, decorators.mark_unbacked):
        x = torch.ones(3)
        mark(x, 0)
        assert engine.compile(_of_size_three, backend="eager")(x).equal(torch.full((3,), 2.0))


def test_weak_and_unbacked_marks_make_symbols() -> None:
    """One graph serves all sizes from the first call on."""
    torch.compiler.reset()  # it loads Dynamo
    decorators = loaded_dynamo_module("decorators")
    for mark in (decorators.maybe_mark_dynamic, decorators.mark_unbacked):
        engine.reset()
        compiled = engine.compile(double, backend="eager")
        with engine.record() as session:
            for size in (3, 4, 5):
                x = torch.ones(size)
                mark(x, 0)
                compiled(x)
        assert len(session.compilations) == 1


def test_a_session_says_that_another_thread_compiled() -> None:
    """A session records its own thread, and names what another thread compiled meanwhile."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = engine.compile(doubled, backend="eager")
    with engine.record() as session:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(compiled, torch.ones(2)).result()
            pool.submit(compiled, torch.ones(2)).result()
        compiled(torch.ones(2, 2))
    (note,) = session.notes
    assert note.startswith("Another thread compiled")
    assert "doubled" in note
    assert len(session.compilations) == 1
