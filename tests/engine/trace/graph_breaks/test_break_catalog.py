"""Tests of the graph break catalog: reason ids, their pages and example programs.

Each site has an id that says what to do, and the programs of each page do what the page says.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import itertools
import linecache
import logging
import os
import pathlib
import socket
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import engine
from engine import trace
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.session import Session
from engine.records.trace import BreakRecord
from engine.trace.driver import trace_frame
from engine.trace.graph_breaks.reasons import BREAK_REASONS, make_break_record, unknown_call_kind
from tests.engine.trace.harness import request_for

HELPERS = {
    "unsupported": "unsupported-operation",
    "unsupported_method": "unsupported-method",
    "unsupported_attribute": "unsupported-attribute",
    "unsupported_call": "distributed",
}
"""Methods that return ``Unsupported``, each with the id that it chooses by default."""

MAX_SHARE = 0.05


CALLS_WITH_KINDS = (time.time, os.listdir, socket.gethostname, sys.getrefcount, io.StringIO.write, DataLoader.__iter__)
"""Calls whose reason is chosen by their class or module."""


def sites() -> Iterator[tuple[str, str]]:
    """Yield location and id of each site that breaks the graph or skips the frame.

    Only ids that are literals at the site are found.
    """
    for path in sorted(pathlib.Path(trace.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            place = f"{path.name}:{node.lineno}"
            if isinstance(node.func, ast.Name) and node.func.id in (
                "Unsupported",
                "BreakGraph",
                "SkipFrame",
                "_MutatesContainerArgument",
                "register_break",
            ):
                yield from ((place, id) for id in literals(node.args[0]))
            elif isinstance(node.func, ast.Attribute) and node.func.attr in HELPERS:
                chosen = list(literals(node.args[1])) if len(node.args) == 2 and node.func.attr == "unsupported" else []
                if node.func.attr == "unsupported_attribute" and list(literals(node.args[0])) != ["reading"]:
                    chosen = ["attribute-write"]
                yield from ((place, id) for id in chosen or [HELPERS[node.func.attr]])


def literals(node: ast.expr) -> Iterator[str]:
    """Ids that an argument may be."""
    if isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_no_id_covers_more_than_a_twentieth_of_the_sites() -> None:
    """An id that many sites share says little about what to do."""
    found = Counter(id for _, id in sites())
    total = found.total()
    assert total > 400
    assert {id: n for id, n in found.items() if n > MAX_SHARE * total} == {}


def test_every_site_has_a_page() -> None:
    """A site's id is a page of the catalog."""
    assert {f"{place} {id}" for place, id in sites() if id not in BREAK_REASONS} == set()


def test_every_page_has_a_site() -> None:
    """Every catalog page is used by a site that breaks the graph.

    Ids of unknown calls are chosen by the callable's module.
    """
    known = {id for _, id in sites()}
    by_module = {unknown_call_kind(f) for f in CALLS_WITH_KINDS}
    assert set(BREAK_REASONS) - known - by_module == set()


@pytest.mark.parametrize("id", BREAK_REASONS)
def test_a_page_says_why_and_what_to_do(id: str) -> None:
    """Each page has a title, a cause, and hints or a reason why there is no fix.

    The title has no full stop. Each page has programs, unless it describes an internal error.
    """
    page = BREAK_REASONS[id]
    assert id == id.lower()
    assert not page.title.endswith(".")
    assert page.cause.endswith(".")
    assert page.advice
    assert all(sentence.endswith(".") for sentence in page.advice)
    assert bool(page.example_before) == (id != "internal")
    assert bool(page.example_after) or page.no_fix


def test_titles_differ() -> None:
    """A title names one page."""
    assert len({page.title for page in BREAK_REASONS.values()}) == len(BREAK_REASONS)


NOT_RESUMED = {"break-position", "forward-ad", "functorch-state"}
"""Reasons why another break cannot resume; its record has their hints."""

DIFFERENT_RESULT = {
    "generator-frame": "a generator becomes a list",
    "async-frame": "a coroutine becomes a result",
    "generator-state": "a generator becomes an iterator",
}
"""Pages whose second program cannot return what the first one does."""


@pytest.mark.parametrize("id", [id for id in BREAK_REASONS if BREAK_REASONS[id].example_before])
@pytest.mark.filterwarnings("ignore")
def test_a_program_breaks_and_its_repair_does_not(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program of a page breaks for its reason; the fixed one does not break.

    Both return what plain Python returns, and their results are equal.
    """
    monkeypatch.setattr(config, "inline_depth", 60)
    monkeypatch.setattr(config, "instruction_budget", 20_000)
    page = BREAK_REASONS[id]
    first, broken = compiled_outcome(page.example_before)
    assert_same(first, outcome(page.example_before))
    if id in NOT_RESUMED:
        assert any(set(page.advice) <= set(b.hints) for b in broken if isinstance(b, BreakRecord))
    else:
        assert id in {b.kind for b in broken}, broken
    if not page.example_after:
        return
    second, rest = compiled_outcome(page.example_after)
    assert [b for b in rest if isinstance(b, BreakRecord)] == []
    assert_same(second, outcome(page.example_after))
    if id not in DIFFERENT_RESULT and not isinstance(first, Exception):  # some programs raise without a compiler
        assert_same(first, second)


NUMBERS = itertools.count()


def load(text: str) -> tuple[Any, Any]:
    """Run the definitions of a program as a module; return its function and its argument."""
    module = types.ModuleType(f"break_example_{next(NUMBERS)}")
    sys.modules[module.__name__] = module
    vars(module).update(torch=torch, engine=engine)
    linecache.cache["<break example>"] = (len(text), None, text.splitlines(keepends=True), "<break example>")
    exec(compile(text, "<break example>", "exec"), vars(module))
    return vars(module)["f"], torch.arange(4.0)


def outcome(text: str) -> Any:
    """Result of a program in plain Python, or its exception."""
    f, x = load(text)
    with contextlib.redirect_stdout(io.StringIO()), no_process_group_left():
        return result_of(f, x)


@contextlib.contextmanager
def no_process_group_left() -> Iterator[None]:
    """Destroy the process group that a program created."""
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def compiled_outcome(text: str) -> tuple[Any, list[Any]]:
    """Result of a compiled program, and the breaks, skips and discarded attempts on the way."""
    f, x = load(text)
    if f.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return result_of(f, x), list(trace_frame(request_for(f, (x,), {}), Options()).record.breaks)
    engine.reset()
    with engine.record() as session, contextlib.redirect_stdout(io.StringIO()), no_process_group_left():
        result = result_of(engine.compile(f, backend="eager"), x)
    return result, list(breaks_of(session))


def breaks_of(session: Session) -> Iterator[Any]:
    """Breaks, skips and discarded attempts of all compilations."""
    for compilation in session.compilations:
        if compilation.trace is not None:
            yield from compilation.trace.breaks
            yield from compilation.trace.discarded_attempts


def result_of(f: Any, x: Any) -> Any:
    """What a call returns or raises; a coroutine is closed."""
    try:
        result = f(x)
    except Exception as error:
        return error
    if inspect.iscoroutine(result):
        result.close()
    return result


def assert_same(one: Any, other: Any) -> None:
    """Two outcomes are equal: tensors by value, objects of other classes by class."""
    assert type(one) is type(other), (one, other)
    match one:
        case torch.Tensor():
            torch.testing.assert_close(one, other)
        case list() | tuple():
            assert len(one) == len(other)
            for a, b in zip(one, other, strict=True):
                assert_same(a, b)
        case bool() | int() | float() | str() | None:
            assert one == other
        case Exception():
            assert str(one).partition("\n")[0] == str(other).partition("\n")[0]


def test_a_logged_tensor_breaks_at_the_logger() -> None:
    """The reason is the record that is written, not an operation without support."""
    log = logging.getLogger("a logged tensor")
    log.propagate = False  # pytest's handlers would break the graph, too
    log.addHandler(logging.NullHandler())

    def scaled(x: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        log.warning("total %s", total)
        return x / total

    with engine.record() as session:
        engine.compile(scaled, backend="eager")(torch.ones(3))
    trace = session.compilations[0].trace
    assert trace is not None
    assert [(b.kind, b.context) for b in trace.breaks] == [("logging", "tensor f32[] is logged")]


def test_a_break_in_a_wrapper_of_torch_is_not_the_users_to_rewrite() -> None:
    """Nobody changes lines of ``DistributedDataParallel``: compile the module inside."""
    user, wrapper = Span("/home/me/train.py", 7), Span(torch.nn.parallel.distributed.__file__, 1566)
    own = make_break_record("unsupported-attribute", "an attribute", (user,), skipped=False)
    inside = make_break_record("unsupported-attribute", "an attribute", (user, wrapper), skipped=False)
    assert own.hints == BREAK_REASONS["unsupported-attribute"].advice
    assert any("DistributedDataParallel(engine.compile(module))" in hint for hint in inside.hints)
    assert not set(own.hints) & set(inside.hints)
