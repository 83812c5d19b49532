"""What dispatch tells a session, and what can be asked without running."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from types import FrameType
from typing import Any

import pytest
import torch

import engine
from engine.errors import BadArgument, ExpectationFailed
from engine.expectations import check_expectations
from engine.ir.current_session import set_current_session, slow_dispatch_tokens
from engine.ir.user_code_files import cell_names, display_name
from engine.records.session import Session
from engine.runtime.dispatch.compiled_modules import attach, compiled_module
from engine.runtime.dispatch.dispatcher import make_dispatcher
from engine.runtime.dispatch.inspect_cache import explain_call, guards_by_entry
from tests.engine.runtime.fake_compiler import FakeCompiler, InterceptingCompiler


def add(x: Any, y: Any = 1) -> Any:
    """A function to record."""
    return x + y


def test_calls_are_recorded_with_caller_and_inputs() -> None:
    """Outcome, entry, the caller's line and short descriptions of the arguments."""
    compiled = make_dispatcher(add, FakeCompiler())  # type: ignore[arg-type]
    x = torch.zeros(4, 16)
    with set_current_session(Session()) as session:
        compiled(x)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        compiled(x)
        compiled(x, "a") if False else compiled(x, 2)
    assert session is not None
    assert [c.outcome for c in session.calls] == ["compiled", "hit", "compiled"]
    first = session.calls[0]
    assert first.inputs == {"x": "f32[4, 16]", "y": "1"}
    assert first.caller is not None
    assert (first.caller.file, first.caller.line) == (__file__, line)
    assert first.entry.endswith("/0")
    assert session.calls[2].guard_failures[0].sentence == "y is 2; the compiled code was specialized for 1."
    assert session.calls[2].checked_entries == (first.entry,)


def test_frames_and_files_are_recorded_once() -> None:
    """One frame with its file's whole text; callees name the frame that called them first."""

    def inner(x: Any) -> Any:
        return x

    def outer(x: Any) -> Any:
        return inner(x)

    compiler = InterceptingCompiler()
    compiled = make_dispatcher(outer, compiler)  # type: ignore[arg-type]
    with set_current_session(Session()) as session:
        compiled(1)
        compiled(1)
    assert session is not None
    assert [(f.name.rpartition(".")[2], f.role) for f in session.frames] == [("outer", "root"), ("inner", "callee")]
    assert session.frames[1].parent == session.frames[0].id
    assert [f.name for f in session.files] == ["test_record_calls.py"]
    assert "def outer" in session.files[0].text
    Session.from_data(session.to_data())


def test_a_second_session_sees_a_warm_function() -> None:
    """A function compiled before the session is announced in it, and its calls are hits."""
    compiled = make_dispatcher(add, FakeCompiler())  # type: ignore[arg-type]
    compiled(1)
    with set_current_session(Session()) as session:
        compiled(1)
    assert session is not None
    assert [c.outcome for c in session.calls] == ["hit"]
    assert len(session.frames) == 1
    assert not slow_dispatch_tokens


def test_notebook_cells_have_the_names_people_use() -> None:
    """A cell's file is called by its number."""
    assert display_name("<ipython-input-3-0123abcd>") == "cell 3"
    assert display_name("/tmp/ipykernel_12/345.py") == "cell"
    cell_names["/tmp/ipykernel_12/346.py"] = "cell 7"
    try:
        assert display_name("/tmp/ipykernel_12/346.py") == "cell 7"
    finally:
        del cell_names["/tmp/ipykernel_12/346.py"]


def test_code_of_a_cell_brings_its_text() -> None:
    """The text of a cell comes from where IPython keeps it."""
    text = "def f(x):\n    return x\n"
    linecache.cache["<ipython-input-9-aa>"] = (len(text), None, text.splitlines(keepends=True), "<ipython-input-9-aa>")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<ipython-input-9-aa>", "exec"), space)
    with set_current_session(Session()) as session:
        make_dispatcher(space["f"], FakeCompiler())(1)
    assert session is not None
    assert [(f.name, f.text) for f in session.files] == [("cell 9", text)]


def test_explain_call_moves_nothing() -> None:
    """``explain_call`` gives the entry a call would hit and each guard's verdict.

    Order, caches and the function stay unchanged.
    """
    compiler = FakeCompiler()
    compiled: Any = make_dispatcher(add, compiler)  # type: ignore[arg-type]
    for y in (1.0, "a"):
        with pytest.raises(TypeError) if y == "a" else set_current_session(None):
            compiled(1, y)
    found = explain_call(compiled, 1, y=1.0)
    assert found.entries[1] == found.hit
    assert len(found.entries) == 2
    assert [r.entry for r in found.guard_failures] == [found.entries[0]]
    assert {r.verdict for r in found.results[found.hit]} == {"pass"}
    assert explain_call(compiled, 1, 2.0).hit is None
    assert explain_call(compiled, 1).hit is None
    assert len(compiler.requests) == 2
    assert explain_call(compiled, 1, 1.0).entries == found.entries


def test_explain_call_takes_what_engine_compile_gives() -> None:
    """Methods, partials and compiled or attached modules are explained; others are rejected.

    The rejection is one sentence.
    """

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    compiler = FakeCompiler()
    partial = functools.partial(make_dispatcher(add, compiler), 1)  # type: ignore[arg-type]
    partial()
    assert explain_call(partial).hit is not None
    twin, attached = compiled_module(Net(), compiler), Net()
    attach(attached, compiler)
    for module in (twin, attached):
        module(1)
        assert explain_call(module, 1).hit is not None
        assert tuple(guards_by_entry(module).values())
    with pytest.raises(BadArgument, match="add is not compiled"):
        explain_call(add, 1)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        explain_call(make_dispatcher(add, compiler))  # type: ignore[arg-type]


def test_guards_of_each_entry() -> None:
    """One record an entry, in look-up order."""
    compiled = make_dispatcher(add, FakeCompiler())  # type: ignore[arg-type]
    compiled(1)
    compiled(1, 2.5)
    told = tuple(guards_by_entry(compiled).values())
    assert [[g.expected for g in t.guards if g.source == "L['y']"] for t in told] == [["2.5"], ["1"]]


def test_a_loop_that_broke_recompiles_for_a_reason_in_words() -> None:
    """What the loop's iterator has left is named in words, not by the method that reads it."""

    def f(xs: list[int], t: torch.Tensor) -> list[torch.Tensor]:
        out = []
        for x in xs:
            if t.sum() > 0:
                out += [t * x]
        return out

    compiled = engine.compile(f, backend="eager")
    with engine.record() as session:
        compiled([1, 2, 3], torch.ones(2))
    causes = " ".join(c.cause for c in session.compilations)
    assert "(has items left) is False" in causes
    assert "__" not in causes


def test_expect_counts_recompiles() -> None:
    """More recompiles than allowed fail with the reason; as many as allowed pass."""
    compiled = make_dispatcher(add, FakeCompiler())  # type: ignore[arg-type]
    with set_current_session(Session()) as session:
        assert session is not None
        with check_expectations(session, recompiles=1, breaks=0):
            compiled(1, 1)
            compiled(1, 1.0)
        with pytest.raises(
            ExpectationFailed, match=r"expected at most 0 recompiles, got 1:\n  add: y is True; the compiled code"
        ):
            with check_expectations(session, recompiles=0):
                compiled(1, True)
        with pytest.raises(ExpectationFailed, match="got 0: nothing was compiled, and 1 call ran code"):
            with check_expectations(session, graphs=1):
                compiled(1, True)


def test_expect_lets_the_users_error_through() -> None:
    """An exception inside is not replaced by an expectation."""
    with pytest.raises(KeyError), check_expectations(Session(), graphs=3):
        raise KeyError


def test_a_hit_is_described_as_a_miss_is() -> None:
    """The record of a hit, made when it is read, has the texts and the line of the call."""

    def several(*values: Any, **named: Any) -> Any:
        return values[0]

    given: list[Any] = [torch.ones(2, 3, dtype=torch.int8), 1, True, None, "text", [1], (torch.ones(1), 2), several]
    given += [torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(2))]

    def body(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any) -> Any:
        return a

    compiled = make_dispatcher(body, FakeCompiler())  # type: ignore[arg-type]
    with set_current_session(Session()) as session:
        for _ in range(4):
            compiled(*given)
        given[5].append(2)
        compiled(*given)
    assert session is not None
    first, *hits = session.calls
    assert [c.outcome for c in hits] == ["hit"] * 4
    assert [c.inputs for c in hits[:3]] == [first.inputs] * 3
    assert first.inputs is not None
    assert hits[3].inputs == {**first.inputs, "f": "list of 2"}
    assert [c.caller for c in hits[:3]] == [first.caller] * 3
    assert [c.index for c in session.calls] == list(range(5))
    assert sorted(c.start for c in session.calls[1:]) == [c.start for c in session.calls[1:]]


def test_a_recorded_hit_costs_little_more_than_an_unrecorded_one() -> None:
    """A recorded hit makes a few dozen calls of small functions, however many came before."""

    def count_calls(hits: int) -> float:
        counted = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            for _ in range(hits):
                compiled(x, y)
        finally:
            sys.setprofile(None)
        return counted / hits

    compiled = engine.compile(lambda a, b: (a + b).sin(), backend="eager")
    x, y = torch.ones(4), torch.ones(4)
    compiled(x, y)
    plain = count_calls(200)
    with engine.record():
        compiled(x, y)
        first, later = count_calls(20), count_calls(200)
    assert plain < 12
    assert first < plain + 70
    assert later < first + 1


def test_a_wrapper_that_passes_no_arguments_on_is_recorded() -> None:
    """Hits of a ``functools.wraps`` wrapper that is called without arguments have no inputs."""

    def work() -> int:
        return 3

    @functools.wraps(work)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return work(*args, **kwargs)

    compiled = make_dispatcher(wrapper, FakeCompiler())  # type: ignore[arg-type]
    with set_current_session(Session()) as session:
        assert [compiled() for _ in range(3)] == [3, 3, 3]
    assert session is not None
    assert [(c.outcome, dict(c.inputs)) for c in session.calls] == [("compiled", {}), ("hit", {}), ("hit", {})]
