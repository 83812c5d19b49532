"""Tests of object lifetimes: compiling keeps no call or function alive.

Nothing of a call is alive once it is over, and nothing of a function once it is freed.
"""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine.torch_private.fake_tensors import FakeTensor, FakeTensorMode

PLAIN = "def f(x):\n    return m(x) + 1"
BREAKS = "def f(x):\n    y = m(x)\n    print(1)\n    z = y + 1\n    print(2)\n    return z * 2"
CLOSES = "def f(x):\n    k = x + 1\n    def add(q):\n        return q + k + m(q)\n    y = add(x)\n    print(1)\n    return add(y)"
HANDLES = "def f(x):\n    y = x + 1\n    try:\n        print(1)\n        raise ValueError(y)\n    except ValueError as error:\n        z = error.args[0]\n    return m(z)"
RAISES = "def f(x):\n    y = x + 1\n    raise ValueError(y)"
REFUSED = "def f(x):\n    y = x + 1\n    return y @ torch.ones(5)"
FAILS_IN_GRAPH = "def f(x):\n    return torch.nn.functional.embedding(torch.tensor([9]), x + 1)"
TEXTS = {
    "plain": PLAIN,
    "breaks": BREAKS,
    "closes": CLOSES,
    "handles": HANDLES,
    "raises": RAISES,
    "refused": REFUSED,
    "fails": FAILS_IN_GRAPH,
}


def made(text: str) -> tuple[types.FunctionType, weakref.ref[Any]]:
    """The function in a namespace of its own, and its module."""
    module = torch.nn.Linear(3, 3)
    space: dict[str, Any] = {"m": module, "torch": torch}
    exec(text, space)
    return space.pop("f"), weakref.ref(module)


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_frozen() -> Iterator[None]:
    """Take objects of earlier tests out of what is collected and counted here."""
    collect_all()
    gc.freeze()
    yield
    gc.unfreeze()


def collect_all() -> None:
    """Collect garbage twice.

    Data attached to a code object, or saved for a backward, is freed only after its owner.
    """
    gc.collect()
    gc.collect()


def alive(kind: type) -> int:
    """How many objects of a type there are."""
    collect_all()
    return sum(issubclass(type(o), kind) for o in gc.get_objects())


def quietly(run: Callable[..., Any], *args: Any) -> Any:
    """The call's result, None where it raised."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ValueError, RuntimeError, IndexError):
        return run(*args)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_call_leaves_no_tensor(text: str, backend: str) -> None:
    """A call's argument and result are freed with their last reference, even if it compiles."""
    function, _ = made(text)
    quietly(
        engine.compile(made(text)[0], backend=backend), torch.randn(3, 3)
    )  # what is imported first keeps its importer
    compiled = engine.compile(function, backend=backend)
    gc.disable()
    try:
        assert not any(r() is not None for r in [*remains(compiled), *remains(compiled)])
    finally:
        gc.enable()


def remains(compiled: Any) -> list[weakref.ref[Any]]:
    """References to the argument and the result of a call, whose names are gone."""
    x = torch.randn(3, 3)
    y = quietly(compiled, x)
    seen = [weakref.ref(t) for t in (x, y) if t is not None]
    del x, y
    return seen


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_function_takes_all_with_it(text: str) -> None:
    """Freeing the user's function frees everything that was compiled for it.

    Freed are its code, its graphs with their fake tensors, its resume functions and the module that it used.
    """
    quietly(
        engine.compile(torch.nn.Linear(3, 3), backend="eager"), torch.randn(3, 3)
    )  # what forward keeps is forward's
    before = alive(torch.fx.GraphModule), alive(FakeTensor)
    function, module = made(text)
    code = weakref.ref(function.__code__)
    compiled = engine.compile(function, backend="eager")
    quietly(compiled, torch.randn(3, 3))
    del function, compiled
    assert (alive(torch.fx.GraphModule), alive(FakeTensor)) == before
    assert code() is None
    assert module() is None


@pytest.mark.parametrize("text", [PLAIN, BREAKS, CLOSES])
def test_reset_drops_the_graphs(text: str) -> None:
    """A reset frees all graphs of a live compiled function, which then recompiles.

    The result after the recompile is right.
    """
    engine.reset()
    before = alive(torch.fx.GraphModule), alive(FakeTensor)
    function, _module = made(text)
    function.__globals__["m"] = kept = torch.nn.Linear(3, 3)
    compiled = engine.compile(function, backend="eager")
    x = torch.randn(3, 3)
    quietly(compiled, x)
    assert alive(torch.fx.GraphModule) > before[0]
    engine.reset()
    assert (alive(torch.fx.GraphModule), alive(FakeTensor)) == before
    assert torch.equal(quietly(compiled, x), quietly(function, x))
    assert kept.weight is not None


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_nothing_is_put_among_the_users_globals(text: str) -> None:
    """The names of the function's module are the same before and after."""
    function, module = made(text)
    function.__globals__["m"] = torch.nn.Linear(3, 3)
    names = set(function.__globals__)
    quietly(engine.compile(function, backend="eager"), torch.randn(3, 3))
    assert set(function.__globals__) == names
    assert module() is None


@pytest.mark.parametrize("trains", [False, True], ids=["infers", "trains"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_a_session_is_freed_while_what_it_saw_compiled_lives_on(backend: str, trains: bool) -> None:
    """A session is freed although the code compiled in it lives on.

    Its records and the tensors of the compiled call are freed too. A backward that is compiled later records
    nothing.
    """

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin().sum()

    compiled = engine.compile(scaled, backend=backend)
    x = torch.ones(2, requires_grad=trains)
    with engine.record() as session:
        found = compiled(x)
    assert session.compilations
    gone = [weakref.ref(session)]
    del session
    if trains:
        found.backward()
    gone.append(weakref.ref(x.untyped_storage()))
    del x, found
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert compiled(torch.zeros(2)).item() == 0


def test_torchs_cache_of_fake_results_does_not_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions with fresh constants fill torch's cache; it is emptied above a limit."""
    monkeypatch.setattr("engine.graph.fake_tensors.fake_mode.MAX_CACHED_RESULTS", 4)
    sizes = []
    for number in range(12):
        space: dict[str, Any] = {}
        exec(f"def f(x):\n    return (x * {number}.5).sin() + {number}.25", space)
        assert torch.equal(engine.compile(space["f"], backend="eager")(torch.ones(2)), space["f"](torch.ones(2)))
        sizes.append(len(FakeTensorMode.cache))
    assert max(sizes[1:]) < 12


def test_sources_of_generated_code_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of old checks and graphs are dropped, but none of the user's own graphs."""
    monkeypatch.setattr("engine.ir.generated_sources.MAX_FILES", 8)
    graph = torch.fx.Graph()
    graph.output(graph.call_function(operator.add, (graph.placeholder("x"), 12345)))
    own = torch.fx.GraphModule({}, graph)
    before, graphs = set(linecache.cache), []

    def backend(module: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(module)
        return module

    for number in range(5):
        for used in ("aot_eager", backend):
            compiled = engine.compile(eval(f"lambda x: x.sin() + {number}"), backend=used)
            assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), float(number)))
    assert 0 < sum(file[0] == "<" for file in set(linecache.cache) - before) <= 8
    for module, text in ((graphs[-1], "+ 4"), (own, "+ 12345")):
        assert text in "".join(linecache.getlines(module.forward.__code__.co_filename))


CELL = """
import engine

def helper(x):
    engine.graph_break()
    return x + 1

{decorator}
def cell(x):
    return helper(x.sin()) * 2
"""


@pytest.mark.parametrize("decorator", ["", "@engine.compile(backend=BACKEND)"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_functions_made_by_exec_are_freed(backend: str, decorator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of namespaces made by ``exec`` do not pile up; ``reset`` frees the last."""
    monkeypatch.setattr("engine.runtime.dispatch.code_cache.MAX_RECENT_CACHES", 6)
    functions = []
    for _ in range(6):
        namespace: dict[str, Any] = {"BACKEND": backend}
        exec(CELL.format(decorator=decorator), namespace)
        compiled = namespace["cell"] if decorator else engine.compile(namespace["cell"], backend=backend)
        with engine.record() as session:
            for _ in range(3):
                compiled(torch.ones(2))
        assert len(session.compilations) == 4
        functions.append(weakref.ref(namespace["cell"]))
        del namespace, compiled, session
    collect_all()
    assert sum(f() is not None for f in functions) <= 3
    engine.reset()
    collect_all()
    assert not [f for f in functions if f() is not None]


CLASS = "class C:\n    def __init__(self):\n        self.a = 3\n    def run(self, x):\n        return x * self.a\nc = C()\ndef f(x):\n    return c.run(x)"
MODULE = "class C(torch.nn.Module):\n    def forward(self, x):\n        return x.relu()\nf = C()"
LINEAR = "class C(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.linear = torch.nn.Linear(2, 2)\n    def forward(self, x):\n        return self.linear(x).relu()\nf = C()"
COUNTER = "class C: pass\nn = 0\ndef f(x):\n    global n\n    n += 1\n    return x * 2"
NAMED = "import typing\nclass C(typing.NamedTuple):\n    a: object\n    def twice(self):\n        return self.a * 2\ndef f(x):\n    return C(x).twice()"


@pytest.mark.parametrize("is_rerun", [False, True], ids=["new namespace", "rerun"])
@pytest.mark.parametrize(
    "text", [CLASS, MODULE, LINEAR, COUNTER, NAMED], ids=["class", "module", "linear", "counter", "named tuple"]
)
def test_classes_of_cells_are_freed(text: str, is_rerun: bool) -> None:
    """Caches hold no namespace and no class of a cell that was run again."""
    classes, shared = [], {"torch": torch}
    for _ in range(3):
        namespace = shared if is_rerun else {"torch": torch}
        exec(text, namespace)
        compiled = engine.compile(namespace["f"], backend="eager")
        for size in (2, 2, 3):
            compiled(torch.ones(size, 2))
        classes.append(weakref.ref(namespace["C"]))
        del namespace, compiled
    if not is_rerun:
        engine.reset()
    collect_all()
    assert [c() for c in classes[: 2 if is_rerun else 3] if c() is not None] == []


def test_a_dispatcher_holds_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many other namespaces do not make a live compiled function compile again."""
    monkeypatch.setattr("engine.runtime.dispatch.code_cache.MAX_RECENT_CACHES", 1)
    first, _ = made(PLAIN)
    other, _ = made(PLAIN)
    x = torch.ones(2, 3)
    compiled = engine.compile(first, backend="eager")
    compiled(x)
    engine.compile(other, backend="eager")(x)
    with engine.record() as session:
        compiled(x)
    assert not session.compilations
    engine.reset()
    with engine.record() as session:
        compiled(x)
    assert len(session.compilations) == 1


def test_a_new_function_of_one_namespace_and_code_hits_the_cache() -> None:
    """A loop that compiles the same lambda in a namespace made by ``exec`` compiles once."""
    namespace: dict[str, Any] = {"engine": engine, "x": torch.ones(2)}
    loop = "for _ in range(3):\n    engine.compile(lambda x: x + 1, backend='eager')(x)\n"
    with engine.record() as session:
        exec(loop, namespace)
    assert len(session.compilations) == 1
