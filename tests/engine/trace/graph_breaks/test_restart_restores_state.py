"""Tests that a discarded tracing attempt leaves no state behind.

State means guards, side effects, modules and torch's global state.
"""

from __future__ import annotations

import torch
from torch import nn

import engine
from engine.ir.introspection.torch_global_state import GLOBAL_STATES

SEEN: list[int] = []
COUNT = 0


class Counted(nn.Module):
    """Counts its calls in a buffer and in an attribute, and breaks in the middle."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(1))
        self.names: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One more."""
        self.calls += 1
        self.names.append("a")
        self.extra = len(self.names)
        engine.graph_break()
        return x * self.weight * self.extra


def helper(x: torch.Tensor, names: list[str]) -> torch.Tensor:
    """Cause every kind of side effect, then break the graph.

    The caller must be traced again.
    """
    global COUNT
    COUNT += 1
    SEEN.append(COUNT)
    names.append("b")
    y = x * 2
    torch._C._set_grad_enabled(False)
    y = y + 1
    engine.graph_break()
    torch._C._set_grad_enabled(True)
    return y


def states() -> dict[str, object]:
    """All of torch's global state, random numbers included."""
    read: dict[str, object] = {name: state.read() for name, state in GLOBAL_STATES.items()}
    read["random"] = torch.get_rng_state().tolist()
    read["precision"] = torch.get_float32_matmul_precision()
    return read


def test_a_call_that_breaks_inside_is_undone_before_it_is_traced_again() -> None:
    """Lists, globals and the argument change once, even if tracing restarts."""
    global COUNT
    COUNT = 0
    SEEN.clear()
    names: list[str] = []
    with engine.record() as session:
        result = engine.compile(lambda x: helper(x, names) + 1, backend="eager")(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 4.0))
    assert (COUNT, SEEN, names) == (1, [1], ["b"])
    attempts = [a for c in session.compilations if c.trace is not None for a in c.trace.discarded_attempts]
    assert attempts
    assert attempts[0].kind == "explicit-break"
    assert attempts[0].operations > 0
    assert "grad mode" in attempts[0].restored_state
    assert any(text.startswith("mutation of list") for text in attempts[0].side_effects)
    assert not any("not read" in text for text in attempts[0].side_effects)


def test_what_an_attempt_takes_for_granted_goes_with_it() -> None:
    """What only the call that broke had looked at is no guard of the code before it."""

    def looks(x: torch.Tensor, number: int) -> bool:
        if number > 2:
            helper(x, [])
        return True

    def reads(x: torch.Tensor, number: int) -> torch.Tensor:
        y = x + 1
        sorted([x.dim()], key=lambda _: looks(y, number))  # which is called again, as a whole
        return y

    compiled = engine.compile(reads, backend="eager")
    compiled(torch.ones(2), 3)
    assert "L['number']" not in str(engine.guards_of(compiled))
    assert "L['x']" in str(engine.guards_of(compiled))


def test_a_module_is_changed_once() -> None:
    """A buffer, an attribute and a list of a module are as after one plain call."""
    module = Counted()
    compiled = engine.compile(module, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3))
    assert (float(module.calls), module.names, module.extra) == (1.0, ["a"], 1)


def _grad(x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(False)
    y = x * 2
    engine.graph_break()
    torch.set_grad_enabled(True)
    return y


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        y = x @ x
        engine.graph_break()
        return y @ x


def _dtype(x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    y = torch.ones(2) + x.sum()
    engine.graph_break()
    torch.set_default_dtype(torch.float32)
    return y


def _inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x * 2
        raise_or_break(y)
    return y


def raise_or_break(y: torch.Tensor) -> None:
    """A break two calls deep."""
    print(y.shape, end="")


def _fails(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        raise ValueError(str(tuple(y.shape)))


def test_torch_stands_as_before_whatever_becomes_of_tracing() -> None:
    """Torch's global state is as after plain Python, whatever ends tracing.

    Covers breaks under each switch, an exception that leaves the function, and the random state.
    """
    before = states()
    for function in (_grad, _autocast, _dtype, _inference, _fails):
        for fullgraph in (False, True):
            compiled = engine.compile(function, backend="eager", fullgraph=fullgraph)
            try:
                compiled(torch.ones(2, 2))
            except (ValueError, engine.GraphBreak) as error:
                assert function is _fails or fullgraph, error
            assert states() == before, function


def test_explaining_leaves_torch_alone() -> None:
    """The same without running the function for real."""
    before = states()
    for function in (_grad, _autocast, _dtype):
        engine.explain(function, torch.ones(2, 2))
        assert states() == before


def test_grad_mode_switched_back_and_forth_is_no_node() -> None:
    """Grad mode switches with nothing between them cancel out.

    Contexts with an empty body and nested contexts cancel out too.
    """
    seen: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.extend(str(n.target) for n in graph.graph.nodes if n.op == "call_function")
        return graph.forward

    def toggles(x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(True)
        with torch.no_grad():
            with torch.enable_grad():
                y = x + 1
        with torch.no_grad():
            pass
        return y

    compiled = engine.compile(toggles, backend=keep)
    assert torch.equal(compiled(torch.ones(2, requires_grad=True)), torch.full((2,), 2.0))
    assert not any("grad" in name for name in seen), seen
    assert len(seen) == 1


def test_an_error_carries_the_users_stack() -> None:
    """A break under fullgraph and a backend failure name the user's lines.

    The outermost line is first.
    """

    def inner(x: torch.Tensor) -> torch.Tensor:
        print("now")
        return x

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1)

    try:
        engine.compile(outer, backend="eager", fullgraph=True)(torch.ones(1))
    except engine.GraphBreak as error:
        lines = [frame.lineno for frame in error.real_stack]
        assert lines == [outer.__code__.co_firstlineno + 1, inner.__code__.co_firstlineno + 1]
        assert all(frame.filename == __file__ for frame in error.real_stack)
        assert "return inner(x + 1)" in error.real_stack.format()[0]
    else:
        raise AssertionError("nothing was raised")

    def refuses(graph: torch.fx.GraphModule, inputs: object) -> object:
        raise RuntimeError("no")

    try:
        engine.compile(lambda x: x + 1, backend=refuses, fullgraph=True)(torch.ones(1))
    except engine.BackendError as error:
        assert [frame.filename for frame in error.real_stack] == [__file__]
    else:
        raise AssertionError("nothing was raised")
