"""Golden pairs: a readable file per pass or wrapper with a before and after example.

The file also says what the pass does. This text is the first part of the test's docstring, so the test
and the file agree.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import itertools
import pathlib
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch
import torch.fx

import engine
from engine.aot.functionalize import functionalize
from engine.graph.format_node import format_node
from engine.graph.to_records import graph_record
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.traced_frame import TracedGraph
from engine.options import Options
from engine.records.graph import GraphRecord
from engine.records.session import CompilationRecord, Session
from engine.records.text_views import format_graph
from engine.torch_private.pytree import tree_leaves
from engine.trace.driver import trace_frame
from tests.engine.trace.harness import request_for

Test = TypeVar("Test", bound=Callable[..., None])
TARGET = "cuda:90"
"""Kernels are shown for an H100, whatever this machine has."""
_NOISE = re.compile(r", (pin_memory=False|layout=torch\.strided|device=device\(\"cpu\"\))")
"""Arguments of creating operators that say nothing."""
PASS_ATTRIBUTE = "golden_passes"


def shows(*modules: str) -> Callable[[Test], Test]:
    """Mark a test as the golden pair of passes.

    The passes are given by the paths of their modules from the repository's root.
    """

    def mark(test: Test) -> Test:
        setattr(test, PASS_ATTRIBUTE, modules)
        return test

    return mark


class Pair:
    """Writes the file of one golden pair; each part is a title and the lines below it."""

    def __init__(self, test: Callable[..., None], compare: Callable[[str], None]) -> None:
        self._modules: Sequence[str] = getattr(test, PASS_ATTRIBUTE)
        self._words = inspect.cleandoc(test.__doc__ or "")
        self._compare = compare

    def __call__(self, code: Callable[..., Any] | Sequence[Callable[..., Any]] = (), **parts: Any) -> None:
        """Compare with the file: the user's ``code``, then each named part.

        The names are for example "before" and "after".
        """
        sections = [", ".join(self._modules), textwrap.fill(" ".join(self._words.split()), 110)]
        functions = [code] if callable(code) else [f for f in code if callable(f)]
        if functions:
            sections.append(_section("user's code", "\n".join(map(source, functions))))
        sections += [_section(name, part) for name, part in parts.items() if part]
        self._compare(_stable("\n\n".join(sections) + "\n"))


def _stable(text: str) -> str:
    """Remove line numbers of tests, and number size symbols in their order.

    Torch's numbers of size symbols are hashes.
    """
    text = re.sub(r"'test_\w+\.py:\d+'", "'model.py:2'", text)
    if "SymInt(" not in text:
        return text
    order = {name: f"s{n}" for n, name in enumerate(dict.fromkeys(re.findall(r"\bs\d+\b", text)))}
    return re.sub(r"\bs\d+\b", lambda found: order[found[0]], text)


def _section(name: str, part: Any) -> str:
    lines = part.rstrip("\n").split("\n") if isinstance(part, str) else list(part)
    return "\n".join([f"---- {name.replace('_', ' ')}", *(line.rstrip() for line in lines)])


@pytest.fixture
def pair(request: pytest.FixtureRequest, expected: Callable[[str], None]) -> Iterator[Pair]:
    """The pair of the test that asks for it; nothing compiled is left afterwards."""
    engine.reset()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield Pair(request.function, expected)
    engine.reset()


def source(function: Callable[..., Any]) -> str:
    """Source text of a function, without indentation and remarks to the linter."""
    text = textwrap.dedent(inspect.getsource(function))
    return re.sub(r" *# noqa.*", "", text)


def trace(function: Callable[..., Any], *args: Any, **options: Any) -> TracedGraph:
    """The graph that the tracer makes of a function, and its inputs."""
    frame = trace_frame(request_for(function, args, {}), Options(**options))  # type: ignore[arg-type]
    assert frame.graph is not None
    return frame.graph


def to_aten(function: Callable[..., Any], *args: Any, **options: Any) -> AotGraph:
    """The functional ATen graph of a function for these arguments."""
    traced = trace(function, *args, **options)
    functional = functionalize(traced.graph, traced.inputs, "0/0")
    return AotGraph(functional.module, functional.inputs, "0/0")


def in_order(*parts: Sequence[str]) -> list[list[str]]:
    """Move each size to its first use, and number names in the order of all parts.

    Versions of torch differ in where they trace sizes, and in how many unused nodes take a number.
    """
    parts = tuple(list(_sizes_at_first_use(part)) for part in parts)
    names, numbers = {}, Counter[str]()
    for name in re.findall(r"^(\w+) = ", "\n".join(itertools.chain(*parts)), re.MULTILINE):
        base = re.sub(r"_\d+$", "", name)
        if name not in names:
            number = numbers[base] + hasattr(builtins, base)
            names[name], numbers[base] = f"{base}_{number}" if number else base, numbers[base] + 1
    return [
        [re.sub(r"\b[a-z]\w*", lambda found: names.get(found[0], found[0]), line) for line in part] for part in parts
    ]


def _sizes_at_first_use(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a graph, each size before the line that reads it first."""
    unread: dict[str, str] = {}
    for line in lines:
        if found := re.match(r"(\w+) = aten\.sym_size\.int\(", line):
            unread[found[1]] = line
            continue
        yield from (unread.pop(name) for name in re.findall(r"\w+", line) if name in unread)
        yield line


def graph_lines(graph: torch.fx.GraphModule | GraphRecord) -> list[str]:
    """A graph as Python, one line per node, with dtype and shape."""
    found = graph if isinstance(graph, GraphRecord) else graph_record(graph, "aten", "0/0", "graph")
    return [_NOISE.sub("", line.removeprefix("  ")) for line in list(format_graph(found))[1:]]


def plain_lines(graph: torch.fx.GraphModule) -> list[str]:
    """A graph as Python without types, for passes that run before fake values exist."""
    return [_NOISE.sub("", format_node(node)) for node in graph.graph.nodes]


@contextlib.contextmanager
def recording(level: str = "standard") -> Iterator[Session]:
    """A session that records for ``TARGET``."""
    with engine.record(level, target=TARGET) as session:
        yield session


def compile_and_run(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[CompilationRecord, Any]:
    """Call a compiled function once; return the record of its compilation, and the result."""
    with recording() as session:
        result = engine.compile(function, target=TARGET, **options)(*args)
        leaves = [r for r in tree_leaves(result) if isinstance(r, torch.Tensor) and r.requires_grad]
        leaves = [r for r in leaves if type(r.grad_fn).__name__ != "FreedHistoryBackward"]
        if leaves:
            torch.autograd.backward(leaves, [torch.ones_like(r) for r in leaves])
    return session.compilations[0], result


def graph_of(record: CompilationRecord, stage: str) -> list[str]:
    """The lines of one graph of a compilation: "fx", "aten", "joint", "forward" or "backward"."""
    return graph_lines(next(g for g in record.graphs if g.stage == stage))


def kernel_lines(record: CompilationRecord) -> list[str]:
    """The text of each kernel of a compilation, once, without its imports."""
    texts = dict.fromkeys(k.text for k in record.kernels)
    return "\n".join(re.sub(r"\A(import .*\n)+\n*", "", text) for text in texts).split("\n")


def repository_root() -> pathlib.Path:
    """Root of the repository."""
    return pathlib.Path(__file__).parents[2]


@contextlib.contextmanager
def generated_code(monkeypatch: pytest.MonkeyPatch, files: str = "<engine (aot|autograd)") -> Iterator[list[str]]:
    """Collect the texts of the functions that the engine generates for these files."""
    texts: list[str] = []
    real = builtins.compile

    def note(text: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(text, str) and re.match(files, str(filename)):
            texts.append(text)
        return real(text, filename, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "compile", note)
        yield texts


def wrapper_actions(record: CompilationRecord, *names: str) -> list[str]:
    """The actions of these AOT wrappers, with their reasons."""
    assert record.aot is not None
    return [
        f"{a.argument} {a.action}, because {a.why}" for w in record.aot.wrappers if w.name in names for a in w.actions
    ]
