"""The dispatcher behaves like its function and compiles only on a cache miss."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import torch

from engine.errors import GraphBreak, RecompileLimit
from engine.ir.annotations import disable
from engine.ir.current_session import set_current_session
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.options import config
from engine.records.session import Session
from engine.records.trace import BreakRecord
from engine.runtime.dispatch import dispatcher, inspect_cache
from engine.runtime.dispatch.dispatcher import ResumeDispatcherFactory, make_dispatcher
from tests.engine.runtime.fake_compiler import FakeCompiler, InterceptingCompiler
from tests.torch_internals import dynamo_config


def plain(a: Any, b: Any) -> Any:
    """Two arguments."""
    return (a, b)


def defaults(a: Any, b: Any = 2, *, c: Any = 3) -> Any:
    """Defaults of both kinds."""
    return (a, b, c)


def everything(a: Any, /, b: Any, *rest: Any, c: Any, d: Any = 4, **more: Any) -> Any:
    """Every kind of parameter."""
    return (a, b, rest, c, d, more)


def clashing(attention: Any, bound: Any, cells: Any, *, miss: Any = 1, check: Any = 2, run: Any = 3) -> Any:
    """Parameters with the names that the generated function uses."""
    return (attention, bound, cells, miss, check, run)


def nothing() -> Any:
    """No parameters."""
    return "nothing"


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, 3), {}),
    ((1, 2, 3), {"c": 5}),
    ((1,), {"b": 2, "c": 3}),
    ((1,), {"b": 2, "c": 3, "e": 4}),
    ((), {"a": 1, "b": 2}),
    ((1, 2), {"a": 3}),
    ((1, 2), {"c": 3, "a": 7}),
    ((1, 2, 3), {"check": 0, "run": 9}),
    ((1, 2, 3), {"nope": 1}),
]


@pytest.mark.parametrize("function", [plain, defaults, everything, clashing, nothing])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_arguments_and_their_errors_are_pythons_own(
    function: Any, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    """Any call gives the function's result or TypeError, on a cache miss and on a hit."""
    args, kwargs = call
    compiled = make_dispatcher(function, FakeCompiler())
    expected = outcome(function, args, kwargs)
    assert outcome(compiled, args, kwargs) == expected
    assert outcome(compiled, args, kwargs) == expected


def outcome(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call, or the words of its TypeError."""
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return f"TypeError: {error}"


@pytest.mark.parametrize("function", [plain, defaults, everything, clashing, nothing])
def test_everything_that_can_be_asked_of_it(function: Any) -> None:
    """The dispatcher is a function with the original's metadata.

    Compared are signature, names, doc, annotations, source and attributes.
    """
    function.note = "kept"
    compiled = make_dispatcher(function, FakeCompiler())
    assert inspect.isfunction(compiled)
    assert inspect.signature(compiled) == inspect.signature(function)
    assert inspect.getsource(compiled) == inspect.getsource(function)
    assert inspect.getfullargspec(compiled) == inspect.getfullargspec(function)
    for name in (
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
        "__defaults__",
        "__kwdefaults__",
        "note",
        "__globals__",
    ):
        assert getattr(compiled, name) is getattr(function, name)
    # From Python 3.14 on, each function makes its dict at the first read.
    assert compiled.__annotations__ == function.__annotations__
    assert unwrap_compiled(compiled) is function
    assert make_dispatcher(compiled, FakeCompiler()).__wrapped__ is function


def test_a_hit_does_not_compile() -> None:
    """The same kind of call is compiled once; another kind once more."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    x = torch.zeros(2)
    for _ in range(3):
        compiled(x, 1)
    assert len(compiler.requests) == 1
    compiled(x, "a")
    assert [r.entry_index for r in compiler.requests] == [0, 1]
    assert compiler.requests[1].miss_reason == "b is 'a'; the compiled code was specialized for 1."


def test_most_recently_hit_first() -> None:
    """An entry that was hit is asked first next time."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    for b in ("a", "b", "c", "a"):
        compiled(1, b)
    assert len(compiler.requests) == 3
    with set_current_session(Session()) as session:
        compiled(1, "b")
        compiled(1, "b")
    assert session is not None
    assert [[id.partition("/")[2] for id in c.checked_entries] for c in session.calls] == [["0", "2", "1"], ["1"]]


def test_methods_bind() -> None:
    """A dispatcher in a class is a method like any other."""

    class Thing:
        n = 3

        @lambda f: make_dispatcher(f, FakeCompiler())
        def times(self, x: int) -> int:
            return self.n * x

    assert Thing().times(2) == 6


def test_super_and_class_cells() -> None:
    """Zero-argument super works in what runs."""

    class Base:
        def f(self) -> str:
            return "base"

    class Derived(Base):
        def f(self) -> str:
            return "derived " + super().f()

    Derived.f = make_dispatcher(Derived.f, FakeCompiler())  # type: ignore[method-assign]
    assert Derived().f() == Derived().f() == "derived base"


def test_closures_share_a_cache_but_not_their_cells() -> None:
    """Functions of one code object share entries; each reads its own cells."""
    compiler = FakeCompiler()

    def make(n: int) -> Callable[[int], int]:
        def add(x: int) -> int:
            return x + n

        return make_dispatcher(add, compiler)  # type: ignore[arg-type]

    one, again, two = make(1), make(1), make(2)
    assert [one(1), again(1), two(1), one(1), two(1)] == [2, 2, 3, 2, 3]
    assert len(compiler.requests) == 2


def test_a_cell_that_changes() -> None:
    """A closure variable that takes another value is seen."""
    n = 1

    def add(x: int) -> int:
        return x + n

    compiled = make_dispatcher(add, FakeCompiler())  # type: ignore[arg-type]
    assert compiled(1) == 2
    n = 5
    assert compiled(1) == 6


def test_sizes_and_numbers_seen_to_change_become_dynamic() -> None:
    """A size or an int that changed is asked for as a symbol; a sweep then compiles no more."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    for size in (4, 5, 6, 7):
        compiled(torch.zeros(size, 3), size)
    assert len(compiler.requests) == 2
    assert compiler.requests[1].dynamic_dims == {"L['a']": frozenset({0}), "L['b']": frozenset({-1})}


def test_the_recompile_limit_leaves_the_function_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the recompile limit new calls run as Python, and cached entries still hit.

    The reason is recorded.
    """
    monkeypatch.setattr(config, "recompile_limit", 2)
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    with set_current_session(Session()) as session:
        results = [compiled("x", b) for b in ("a", "b", "c", "d", "a")]
    assert results == [("x", b) for b in ("a", "b", "c", "d", "a")]
    assert compiled("x", "e") == ("x", "e")
    assert len(compiler.requests) == 2
    assert session is not None
    assert [c.outcome for c in session.calls] == ["compiled", "compiled", "python", "python", "hit"]
    reason = session.skipped[0].reason
    assert reason.startswith("compiled 2 times, which is the recompile limit;")
    assert not reason.endswith(".")


def test_the_recompile_limit_counts_compiles_for_one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other modules of the class that are alive do not use up a module's limit; freed ones do."""
    monkeypatch.setattr(config, "recompile_limit", 2)

    def forward(a: torch.nn.Module, b: Any) -> Any:
        return b

    def compile_count(modules: Iterable[torch.nn.Module]) -> int:
        compiler, count = FakeCompiler(), 0
        compiled = make_dispatcher(forward, compiler)  # type: ignore[arg-type]
        for n, module in enumerate(modules):
            assert compiled(module, str(n)) == str(n)
            count += len(compiler.requests)
            compiler.requests.clear()  # a request holds the module
        return count

    one = torch.nn.ReLU()
    assert compile_count([torch.nn.ReLU() for _ in range(6)]) == 6
    assert compile_count([one] * 6) == 2
    assert compile_count(torch.nn.ReLU() for _ in range(6)) < 6


def test_compiles_for_all_modules_together_have_a_limit() -> None:
    """Modules that are alive use up the limit of the frame."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    modules = [torch.nn.ReLU() for _ in range(6)]
    with dynamo_config.patch(accumulated_recompile_limit=3):
        results = [compiled(m, str(n)) for n, m in enumerate(modules)]
    assert results == [(m, str(n)) for n, m in enumerate(modules)]
    assert len(compiler.requests) == 3


def test_the_recompile_limit_under_fullgraph_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under fullgraph the limit is an error with the last reason."""
    monkeypatch.setattr(config, "recompile_limit", 1)
    compiled = make_dispatcher(plain, FakeCompiler(fullgraph=True))
    compiled(1, "a")
    with pytest.raises(RecompileLimit, match="specialized for 'a'"):
        compiled(1, "b")


def test_frames_below_a_function_left_to_python_are_still_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls made by a function that met its limit go through dispatch."""
    monkeypatch.setattr(config, "recompile_limit", 1)
    compiler = FakeCompiler()

    def below(x: Any) -> Any:
        return x

    def above(a: Any, b: str) -> Any:
        return below(a)

    compiled = make_dispatcher(above, compiler)  # type: ignore[arg-type]
    assert [compiled(1, b) for b in "abc"] == [1, 1, 1]
    assert compiler.names == ["above", "below"]


def test_a_graph_break_under_fullgraph_propagates() -> None:
    """An error on purpose reaches the caller, and nothing is cached."""
    compiler = FakeCompiler(fullgraph=True)

    def refuse(request: Any) -> None:
        raise GraphBreak(BreakRecord("print", "print", "print(x)"), "")

    compiler.before = refuse
    compiled = make_dispatcher(plain, compiler)
    for _ in range(2):
        with pytest.raises(GraphBreak):
            compiled(1, 2)
    assert len(compiler.requests) == 2


def test_a_bug_of_ours_never_reaches_the_user() -> None:
    """A call whose compile fails runs as Python; repeated failures skip the frame.

    Each failure is recorded.
    """
    compiler = FakeCompiler()

    def fail(request: Any) -> None:
        raise ZeroDivisionError("bug")

    compiler.before = fail
    compiled = make_dispatcher(plain, compiler)
    with set_current_session(Session()) as session:
        assert [compiled(1, 2) for _ in range(4)] == [(1, 2)] * 4
    assert session is not None
    assert len(compiler.requests) == len(session.failures) == 2
    assert "ZeroDivisionError: bug" in session.failures[0].sentence


def test_an_interrupted_compile_leaves_no_trace() -> None:
    """Ctrl-C during a compile reaches the caller, and the next call compiles normally."""
    compiler = FakeCompiler()

    def interrupt(request: Any) -> None:
        raise KeyboardInterrupt

    compiler.before = interrupt
    compiled = make_dispatcher(plain, compiler)
    with pytest.raises(KeyboardInterrupt):
        compiled(1, 2)
    compiler.before = lambda request: None
    assert compiled(1, 2) == compiled(1, 2) == (1, 2)
    assert len(compiler.requests) == 2


def test_compiled_code_called_while_compiling_runs_as_python() -> None:
    """What the tracer calls in this thread is the plain function, hits included."""
    compiler = FakeCompiler(code_of=lambda code: replaced.__code__)

    def replaced(a: Any, b: Any) -> Any:
        return "compiled"

    compiled = make_dispatcher(plain, compiler)
    assert compiled(1, 2) == "compiled"
    seen = []
    compiler.before = lambda request: seen.append(compiled(1, 2))
    compiled(1, 3)
    assert seen == [(1, 2)]


def test_guards_that_refuse_their_own_call_are_reported() -> None:
    """An entry whose guards fail for the call it was compiled for is dropped.

    It is recorded as an internal error.
    """
    compiler = FakeCompiler()
    compiler.before = lambda request: request.arguments["a"].append(1)  # changes what was guarded
    compiled = make_dispatcher(lambda a, b: b, compiler)  # type: ignore[arg-type]
    real = compiler.compile_frame

    def compile_frame(request: Any) -> Any:
        entry = real(request)
        return type(entry)(entry.id, entry.code, entry.guards, lambda *values: False, entry.check_text)

    compiler.compile_frame = compile_frame  # type: ignore[method-assign]
    with set_current_session(Session()) as session:
        assert compiled([], 2) == 2
    assert session is not None
    assert "fails for the call it was compiled for" in session.failures[0].sentence


def test_a_generator_that_compiled_code_starts_shows_whom_it_delegates_to() -> None:
    """``gi_yieldfrom`` of a generator run as Python is the user's generator, not the engine's."""

    def inner() -> Any:
        yield 2

    def outer() -> Any:
        yield from inner()

    made = make_dispatcher(outer, InterceptingCompiler(), role="callee")()
    assert made.send(None) == 2
    assert made.gi_yieldfrom.gi_code.co_name == "inner"


def test_generators_run_as_python_and_say_so() -> None:
    """A generator function stays a generator, with send and return; its callees are compiled.

    The reason that it runs as Python is recorded.
    """
    compiler = FakeCompiler()

    def double(x: int) -> int:
        return 2 * x

    def count(n: int) -> Iterator[int]:
        for i in range(n):
            yield double(i)
        return "end"  # type: ignore[return-value]

    compiled: Any = make_dispatcher(count, compiler)  # type: ignore[arg-type]
    assert inspect.isgeneratorfunction(compiled)
    with set_current_session(Session()) as session:
        running = compiled(2)
        assert [next(running), next(running)] == [0, 2]
        with pytest.raises(StopIteration) as end:
            next(running)
    assert end.value.value == "end"
    assert session is not None
    assert "generator" in session.skipped[0].reason
    assert set(compiler.names) == {"double"}


def test_coroutines_run_as_python_and_say_so() -> None:
    """An async function stays one; async generators too."""

    async def twice(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    async def numbers(n: int) -> Any:
        for i in range(n):
            yield i

    compiled: Any = make_dispatcher(twice, FakeCompiler())  # type: ignore[arg-type]
    several: Any = make_dispatcher(numbers, FakeCompiler())  # type: ignore[arg-type]
    assert inspect.iscoroutinefunction(compiled)
    assert inspect.isasyncgenfunction(several)

    async def run() -> Any:
        return await compiled(3), [i async for i in several(3)]

    with set_current_session(Session()) as session:
        # In a thread: a browser that an earlier test in the process opened runs a loop in this one.
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(copy_context().run, asyncio.run, run()).result() == (6, [0, 1, 2])
    assert session is not None
    assert "asynchronous" in session.skipped[0].reason


def test_a_disabled_function_is_left_alone() -> None:
    """``engine.disable`` wins."""

    @disable
    def quiet(x: int) -> int:
        return x

    assert make_dispatcher(quiet, FakeCompiler()) is quiet  # type: ignore[arg-type]


def test_threads_compile_once_and_agree() -> None:
    """Threads that call one function at once get right results and compile each case once."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    start = threading.Barrier(8)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        start.wait()
        for i in range(300):
            b = f"{(i + seed) % 5}"
            if compiled(seed, b) != (seed, b):
                wrong.append((seed, b))

    config_limit, config.recompile_limit = config.recompile_limit, 1000
    try:
        threads = [threading.Thread(target=work, args=(3,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        config.recompile_limit = config_limit
    assert not wrong
    assert len(compiler.requests) == 5


def test_reset_forgets_entries() -> None:
    """After a reset the next call compiles again."""
    compiler = FakeCompiler()
    compiled = make_dispatcher(plain, compiler)
    compiled(1, 2)
    compiled(1, 2)
    inspect_cache.reset()
    assert compiled(1, 2) == (1, 2)
    assert [r.entry_index for r in compiler.requests] == [0, 1]


def test_memory_goes_with_the_function() -> None:
    """Nothing of a dispatched function stays once the function and its dispatcher are gone."""
    compiler = FakeCompiler()
    big = torch.zeros(3)
    alive = weakref.ref(big)

    def make(held: Any) -> Any:
        def read(x: Any) -> Any:
            return (x, held.ndim)

        return make_dispatcher(read, compiler)  # type: ignore[arg-type]

    compiled = make(big)
    compiled(1)
    compiled(1)
    del compiled, big
    compiler.requests.clear()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("role", ["callee", "resume"])
def test_cells_are_freed_without_a_collection(role: str) -> None:
    """Closure contents are freed together with their dispatcher, for any number of entries.

    A closure may hold the tensors of a resumed frame.
    """
    compiler = FakeCompiler()

    def make(held: Any) -> Any:
        def read(x: Any) -> Any:
            return (x, held)

        return make_dispatcher(read, compiler, role)  # type: ignore[arg-type]

    gc.collect()
    gc.disable()
    try:
        big = torch.zeros(3)
        alive = weakref.ref(big)
        compiled = make(big)
        for x in (1, "a", "b", 1, "a"):
            compiled(x)
        compiler.requests.clear()
        del compiled, big
        assert alive() is None
    finally:
        gc.enable()


def _reader(held: Any) -> Any:
    def read(x: Any) -> Any:
        if x is None:
            raise ValueError(held)
        return (x, held)

    return read


def test_resume_functions_in_closures_share_entries_but_not_their_cells() -> None:
    """Each break calls the resume function with the cells of its frame.

    Only a failed guard compiles. Errors have no frame of the engine, cleared caches are compiled again, and a session sees the call.
    """
    compiler = FakeCompiler()
    factory = ResumeDispatcherFactory(compiler, "0", None, {})  # type: ignore[arg-type]
    for x, held in ((1, "a"), (1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "a")):
        assert factory(_reader(held))(x) == (x, held)
    assert len(compiler.requests) == 3
    for _ in range(2):
        with pytest.raises(ValueError, match="a") as caught:
            factory(_reader("a"))(None)
        assert [entry.name for entry in caught.traceback][1:] == ["read"]
    dispatcher.reset()
    assert factory(_reader("a"))(1) == (1, "a")
    assert len(compiler.requests) == 5
    with set_current_session(Session()) as session:
        assert factory(_reader("a"))(1) == (1, "a")
    assert session is not None
    assert [call.outcome for call in session.calls] == ["hit"]


def test_routed_frames_dispatch_what_they_call() -> None:
    """A frame run as rewritten Python dispatches the functions, methods and modules it calls.

    Partials are dispatched too.
    """
    import functools

    compiler = InterceptingCompiler()

    def helper(x: Any) -> Any:
        return x + 1

    class Thing:
        def method(self, x: Any) -> Any:
            return x + 2

        def __call__(self, x: Any) -> Any:
            return x + 3

    class Inner(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 4

    thing, inner = Thing(), Inner()

    def frame(x: Any) -> Any:
        return functools.partial(helper, inner(thing(thing.method(x))))()

    assert make_dispatcher(frame, compiler)(torch.zeros(1)).item() == 10  # type: ignore[arg-type]
    assert sorted(compiler.names) == ["__call__", "forward", "frame", "helper", "method"]
