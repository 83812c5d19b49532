"""Table of switches of torch.compile: each row is run, and says what was seen."""

from __future__ import annotations

import pathlib
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.api import torch_backend
from tests.torch_internals import dynamo_callbacks, dynamo_config, dynamo_counters, dynamo_decorators

TABLE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "STOCK_SWITCHES.md"
ROW = re.compile(r"^\| `(?P<name>.+?)` \| (?P<honored>yes|no) \|", re.MULTILINE)


def double(x: torch.Tensor) -> torch.Tensor:
    """One operation."""
    return x * 2


def compiles(*calls: tuple[Any, ...], fn: Callable[..., Any] = double) -> int:
    """How often a function is compiled for these calls."""
    engine.reset()
    compiled = engine.compile(fn, backend="eager")
    with engine.record() as session:
        for given in calls:
            compiled(*given)
    return len(session.compilations)


def breaks(fn: Callable[..., Any]) -> int:
    """The number of graph breaks of a call."""
    return len(engine.explain(fn, torch.ones(3)).breaks)


def marked(mark: Callable[[torch.Tensor, int], Any], *rows: int) -> int:
    """How often a function is compiled for tensors of these sizes, each marked."""
    tensors = [torch.ones(n, 3) for n in rows]
    for tensor in tensors:
        mark(tensor, 0)
    return compiles(*((t,) for t in tensors))


def scaled_by_length(x: torch.Tensor, text: str) -> torch.Tensor:
    """Recompiles for each text."""
    return x * len(text)


TEXTS = tuple((torch.ones(3), "a" * n) for n in range(1, 5))


def limited_alone() -> int:
    """How often a function with a limit of its own is compiled for four texts."""
    engine.reset()
    compiled = engine.compile(scaled_by_length, backend="eager", recompile_limit=2)
    with engine.record() as session:
        for given in TEXTS:
            compiled(*given)
    return len(session.compilations)


SIZES = tuple((torch.ones(n, 3),) for n in (4, 5, 6))


def region(x: torch.Tensor) -> torch.Tensor:
    """Call a nested region twice."""
    inner = torch.compiler.nested_compile_region(double)
    return inner(x) + inner(x)


def step(x: torch.Tensor) -> torch.Tensor:
    """Mark a step of CUDA graphs."""
    torch.compiler.cudagraph_mark_step_begin()
    return x * 2


def with_stance(stance: str, *calls: tuple[Any, ...]) -> int:
    """How often a function is compiled for calls under a stance."""
    with torch.compiler.set_stance(stance):
        return compiles(*(calls or ((torch.ones(3),), (torch.ones(3, dtype=torch.float64),))))


def with_config(name: str, value: Any, calls: tuple[Any, ...], fn: Callable[..., Any]) -> int:
    """How often a function is compiled while a setting of Dynamo has a value."""
    with dynamo_config.patch(**{name: value}):
        return compiles(*calls, fn=fn)


def fails(error: type[Exception], run: Callable[[], Any]) -> bool:
    """Return True if running something raises this error."""
    try:
        run()
    except error:
        return True
    return False


def after_reset() -> int:
    """How often a function is compiled with torch's reset between two equal calls, twice."""
    engine.reset()
    compiled = engine.compile(double, backend="eager")
    with engine.record() as session:
        compiled(torch.ones(3))
        for _ in range(2):
            torch.compiler.reset()
            compiled(torch.ones(3))
            compiled(torch.ones(3))
    return len(session.compilations)


def item_breaks() -> int:
    """Graph breaks of ``item()`` if Dynamo does not capture it."""
    with dynamo_config.patch(capture_scalar_outputs=False):
        return breaks(lambda x: x * x.sum().item())


def eager_on_recompile() -> bool:
    """A hit runs compiled code, and a miss runs as Python."""
    engine.reset()
    compiled = engine.compile(lambda x: x * 2 if torch.compiler.is_compiling() else x * 3, backend="eager")
    compiled(torch.ones(3))
    with torch.compiler.set_stance("eager_on_recompile"):
        hit, miss = compiled(torch.ones(3)), compiled(torch.ones(4, 4))
    return bool((hit == 2).all() and (miss == 3).all() and (compiled(torch.ones(4, 4)) == 2).all())


def force_eager() -> bool:
    """A function with compiled code runs as Python; its code is there afterwards."""
    engine.reset()
    compiled = engine.compile(lambda x: x * 2 if torch.compiler.is_compiling() else x * 3, backend="eager")
    ran = [float(compiled(torch.ones(3))[0])]
    torch.compiler.set_stance("force_eager")
    try:
        ran.append(float(compiled(torch.ones(3))[0]))
    finally:
        torch.compiler.set_stance("default")
    return [*ran, float(compiled(torch.ones(3))[0])] == [2, 3, 2] and with_stance("force_eager") == 0


def force_backend() -> bool:
    """Another backend compiles a function inside the block, once; after it the first one runs."""
    engine.reset()
    graphs = []

    def keep(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = engine.compile(double, backend="eager")
    compiled(torch.ones(3))
    with torch.compiler.set_stance("default", force_backend=keep):
        assert (compiled(torch.ones(3)) == 2).all()
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    return len(graphs) == 1


def filtered(keeps: Callable[..., Any]) -> bool:
    """Without guards on globals, a changed global is not seen."""
    engine.reset()
    compiled = engine.compile(times_global, backend="eager", options={"guard_filter_fn": keeps})
    globals()["FACTOR"] = 2
    try:
        return bool((compiled(torch.ones(3)) == 2).all()) and _runs_old_code(compiled)
    finally:
        globals()["FACTOR"] = 2


def _runs_old_code(compiled: Callable[..., Any]) -> bool:
    globals()["FACTOR"] = 5
    return bool((compiled(torch.ones(3)) == 2).all())


FACTOR = 2


def times_global(x: torch.Tensor) -> torch.Tensor:
    """Read a global number."""
    return x * FACTOR


def compiled_in_place() -> bool:
    """A module that compiles itself does so with ``torch.compile``, whatever that is."""
    engine.reset()
    stock, torch.compile = torch.compile, engine.compile  # type: ignore[assignment]
    try:
        module = torch.nn.Linear(3, 3)
        module.compile(backend="eager")
        with engine.record() as session:
            found = module(torch.ones(2, 3))
    finally:
        torch.compile = stock
    return len(session.compilations) == 1 and torch.equal(found, module.forward(torch.ones(2, 3)))


def callbacks() -> bool:
    """Callbacks run at the start and at the end of a compilation, and not at a hit."""
    engine.reset()
    seen: list[str] = []
    handler = dynamo_callbacks.callback_handler
    handler.register_start_callback(lambda given: seen.append("start"))
    handler.register_end_callback(lambda given: seen.append("end"))
    try:
        compiled = engine.compile(double, backend="eager")
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    finally:
        handler.clear()
    return seen == ["start", "end"]


def listed(sources: str, *shapes: tuple[int, ...]) -> int:
    """How often a function is compiled for shapes of a source that the user listed as dynamic."""
    with torch.compiler.config.patch(dynamic_sources=sources):  # type: ignore[attr-defined]
        return compiles(*((torch.ones(shape),) for shape in shapes))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def disabled(x: torch.Tensor) -> torch.Tensor:
    """Must run as Python."""
    assert not torch.compiler.is_compiling()
    return x + 1


def counted() -> bool:
    """Torch's counters count the engine's frames."""
    dynamo_counters.clear()
    compiles((torch.ones(3),))
    return bool(dynamo_counters)


def first_sizes() -> bool:
    """The first call runs as Python; the second compiles for all sizes."""
    return with_stance("eager_then_compile", *SIZES) == 1


def specialized_on() -> int:
    """How often a function is compiled for sizes that it shall be specialized for."""
    sizes = [lambda n: n == 8, lambda n: n == 16]
    return marked(lambda t, dim: dynamo_decorators.mark_dynamic(t, dim, specialize_on=sizes), 8, 16)


def over_limit() -> int:
    """Compile a function more often than a limit allows that must not be hit."""
    with dynamo_config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        return compiles(*TEXTS, fn=scaled_by_length)


def forbids_nodes() -> bool:
    """A function that must not be in a graph breaks it."""
    decorators: Any = dynamo_decorators
    decorators.disallow_in_graph(torch.sin)
    try:
        return breaks(lambda x: torch.sin(x) + 1) == 1
    finally:
        decorators.allow_in_graph(torch.sin)


def substituted() -> bool:
    """A C function with a Python substitute does not break the graph."""

    @torch.compiler.substitute_in_graph(time.thread_time, skip_signature_check=True)
    def no_time() -> float:
        return 0.0

    return breaks(lambda x: x + time.thread_time()) == 0


def skips_guards() -> bool:
    """Guards are not checked."""
    engine.reset()
    compiled = engine.compile(scaled_by_length, backend="eager")
    compiled(*TEXTS[0])
    with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
        return bool((compiled(*TEXTS[1]) == 1).all())


def _suppressed() -> bool:
    def broken(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        raise ValueError("broken backend")

    with dynamo_config.patch(suppress_errors=True):
        return bool((engine.compile(double, backend=broken)(torch.ones(3)) == 2).all())


def _compiled(**given: Any) -> bool:
    engine.reset()
    return bool((engine.compile(double, **given)(torch.ones(3)) == 2).all())


def _has_effect(option: str) -> bool:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert _compiled(options={option: True})
    return not any(option in str(w.message) for w in seen)


CHECKS: dict[str, Callable[[], bool]] = {
    "torch.compile(model=)": lambda: bool((engine.compile(model=double)(torch.ones(3)) == 2).all()),
    "torch.compile(mode=)": lambda: _compiled(mode="max-autotune") and _compiled(mode="lite"),
    'torch.compile(options={"triton.cudagraphs": True})': lambda: _compiled(options={"triton.cudagraphs": True}),
    'torch.compile(options={"shape_padding": True})': lambda: _has_effect("shape_padding"),
    'torch.compile(options={"guard_filter_fn": f})': lambda: filtered(torch.compiler.skip_guard_on_globals_unsafe) and not filtered(lambda guards: [True] * len(guards)),
    'torch.compile(backend="cudagraphs")': lambda: _compiled(backend="aot_eager_decomp_partition"),
    "torch.compile(recompile_limit=)": lambda: limited_alone() == 2,
    "torch.compile(name=)": lambda: not fails(TypeError, lambda: engine.compile(double, name="double")),  # type: ignore[call-arg]
    "torch.compile(disable=True)": lambda: engine.compile(double, disable=True) is double,
    'torch.compile(backend="compile_explorer")': lambda: bool(
        (torch.compile(double, backend=torch_backend)(torch.ones(3)) == 2).all()
    ),
    "torch.nn.Module.compile": compiled_in_place,
    "torch._dynamo.mark_dynamic": lambda: marked(dynamo_decorators.mark_dynamic, 4, 6) == 1,
    "torch._dynamo.mark_dynamic(specialize_on=)": lambda: specialized_on() == 2,
    "torch._dynamo.maybe_mark_dynamic": lambda: marked(dynamo_decorators.maybe_mark_dynamic, 4, 6) == 1,
    "torch._dynamo.decorators.mark_unbacked": lambda: marked(dynamo_decorators.mark_unbacked, 4, 6) == 1,
    "torch._dynamo.mark_static": lambda: marked(dynamo_decorators.mark_static, 4, 5, 6) == 3,
    "torch._dynamo.disallow_in_graph": forbids_nodes,
    "torch.compiler.config.dynamic_sources": lambda: [
        listed("L['x']", (4, 3), (5, 3)), listed(r"L\['x'\]:0", (4, 3), (5, 3), (5, 6)), listed("L['y']", (4, 3), (5, 3))
    ] == [1, 2, 2],
    "torch.compiler.disable": lambda: breaks(lambda x: disabled(x * 2) * 2) == 1,
    "torch.compiler.substitute_in_graph": substituted,
    "torch.compiler.nested_compile_region": lambda: breaks(region) == 0,
    "torch.compiler.cudagraph_mark_step_begin": lambda: breaks(step) == 0,
    'torch.compiler.set_stance("force_eager")': force_eager,
    'torch.compiler.set_stance("eager_on_recompile")': eager_on_recompile,
    'torch.compiler.set_stance("fail_on_recompile")': lambda: fails(RuntimeError, lambda: with_stance("fail_on_recompile")),
    'torch.compiler.set_stance("eager_then_compile")': first_sizes,
    'torch.compiler.set_stance("aot_eager_then_compile")': lambda: with_stance("aot_eager_then_compile", *SIZES) == 1,
    "torch.compiler.set_stance(force_backend=)": force_backend,
    "torch.compiler.set_stance(skip_guard_eval_unsafe=True)": skips_guards,
    "torch.compiler.reset": lambda: after_reset() == 3,
    "torch._dynamo.config.recompile_limit": lambda: with_config("recompile_limit", 2, TEXTS, scaled_by_length) == with_config("cache_size_limit", 2, TEXTS, scaled_by_length) == 2,
    "torch._dynamo.config.accumulated_recompile_limit": lambda: with_config("accumulated_recompile_limit", 2, TEXTS, scaled_by_length) == 2,
    "torch._dynamo.config.fail_on_recompile_limit_hit": lambda: fails(engine.RecompileLimit, over_limit),
    "torch._dynamo.config.error_on_recompile": lambda: fails(RuntimeError, lambda: with_config("error_on_recompile", True, TEXTS, scaled_by_length)),
    "torch._dynamo.config.automatic_dynamic_shapes": lambda: with_config("automatic_dynamic_shapes", False, SIZES, double) == 3,
    "torch._dynamo.config.assume_static_by_default": lambda: with_config("assume_static_by_default", False, SIZES, double) == 1,
    "torch._dynamo.config.specialize_int": lambda: [
        with_config(name, True, tuple((torch.ones(3), n * one) for n in (2, 3, 4)), lambda x, n: x * n)
        for name, one in (("specialize_int", 1), ("specialize_float", 1.5))
    ] == [3, 3],
    "torch._dynamo.config.capture_scalar_outputs": lambda: item_breaks() == 1,
    "torch._dynamo.config.suppress_errors": _suppressed,
    "torch._dynamo.config.disable": lambda: with_config("disable", True, SIZES, double) == 0,
    "torch._dynamo.callback.on_compile_start": callbacks,
    "torch._dynamo.utils.counters": counted,
}  # fmt: skip


def rows() -> dict[str, str]:
    """The rows of the table: switch and verdict."""
    return {m["name"]: m["honored"] for m in ROW.finditer(TABLE.read_text(encoding="utf-8"))}


def test_each_row_has_a_check() -> None:
    """No row is without a check, and no check without a row."""
    assert set(rows()) == set(CHECKS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKS)
def test_row(name: str) -> None:
    """The table says what is seen."""
    assert rows()[name] == ("yes" if CHECKS[name]() else "no")
