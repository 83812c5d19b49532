"""Table of switches of torch.compile: each row is run, and says what was seen."""

from __future__ import annotations

import functools
import inspect
import logging
import pathlib
import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine import errors
from engine.api import torch_backend
from engine.torch_private.symbolic_shapes import ConstraintViolationError
from engine.torch_reports import LOGGER
from tests.torch_internals import dynamo_callbacks, dynamo_config, dynamo_counters, dynamo_decorators, set_logs

TABLE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "STOCK_SWITCHES.md"
ROW = re.compile(r"^\| `(?P<name>.+?)` \| (?P<honored>yes|no|not meaningful) \| (?P<here>.+) \|", re.MULTILINE)


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


def item_breaks(*, is_captured: bool) -> int:
    """Graph breaks of ``item()`` under this setting of Dynamo."""
    with dynamo_config.patch(capture_scalar_outputs=is_captured):
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


def listed(sources: str, *shapes: tuple[int, ...], setting: str = "dynamic_sources") -> int:
    """How often a function is compiled for shapes of a source that the user listed as dynamic."""
    with torch.compiler.config.patch(**{setting: sources}):  # type: ignore[attr-defined]
        return compiles(*((torch.ones(shape),) for shape in shapes))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def disabled(x: torch.Tensor) -> torch.Tensor:
    """Must run as Python."""
    assert not torch.compiler.is_compiling()
    return x + 1


class RunsAsPython(torch.nn.Module):
    """Must run as Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add one."""
        return disabled(x) if not torch.compiler.is_compiling() else x


disabled_module = torch.compiler.disable(RunsAsPython())


def test_a_disabled_module_is_named() -> None:
    """The break at a disabled module says what disabled it, not how torch wraps modules."""
    (found,) = engine.explain(lambda x: disabled_module(x * 2) * 2, torch.ones(3)).breaks
    assert "a RunsAsPython is called, which torch.compiler.disable wrapped" in str(found)


def counted() -> bool:
    """Torch's counters count frames, graphs, operators and breaks as for ``torch.compile``."""

    def breaking(x: torch.Tensor, text: str) -> torch.Tensor:
        y = x.sin() * len(text)
        time.sleep(0)
        return (y.cos() + 1).relu()

    found = []
    for compiled in (torch.compile(breaking, backend="eager"), engine.compile(breaking, backend="eager")):
        dynamo_counters.clear()
        for text in ("a", "ab"):
            compiled(torch.ones(3), text)
        numbers = {kind: dict(dynamo_counters[kind]) for kind in ("stats", "frames")}
        found.append((numbers, sum(dynamo_counters["graph_break"].values())))
    return found[0] == found[1]


LOGGED = {
    "graph_breaks": ("Graph break at", "Hint: "),
    "recompiles": ("Recompiling scaled_by_length",),
    "recompiles_verbose": ("Recompiling scaled_by_length",),
    "graph": ("call_method",),
    "graph_code": ("x.sin()",),
    "aot_graphs": ("torch.ops.aten.sin.default", "backward"),
    "output_code": ("fused_sin",),
    "kernel_code": ("fused_sin",),
    "guards": ("dtype L['x']",),
    "bytecode": ("RETURN_VALUE",),
}
"""What the log of each artifact says."""


def logged() -> bool:
    """Each artifact that the user names is logged, and nothing else is."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(LOGGER).addHandler(handler)
    logging.getLogger("torch._dynamo").addHandler(logging.NullHandler())
    compiles(*TEXTS[:2], fn=scaled_by_length)
    silent = not texts
    missing = [name for name, parts in LOGGED.items() if not _logs(name, parts, texts)]
    set_logs()
    logging.getLogger(LOGGER).removeHandler(handler)
    return silent and not missing


def _logs(name: str, parts: tuple[str, ...], texts: list[str]) -> bool:
    texts.clear()
    set_logs(**{name: True})  # type: ignore[arg-type]

    def breaking(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() * 2
        engine.graph_break()
        return y.exp().sin()

    compiles(*TEXTS[:2], fn=scaled_by_length)
    engine.compile(breaking)(torch.rand(100, 3, requires_grad=True)).sum().backward()
    return all(any(part in text for text in texts) for part in parts)


def first_sizes() -> bool:
    """The first call runs as Python; the second compiles for all sizes."""
    return with_stance("eager_then_compile", *SIZES) == 1


def specialized_on() -> int:
    """How often a function is compiled for sizes that it shall be specialized for."""
    sizes = [lambda n: n == 8, lambda n: n % 16 == 0]
    return marked(lambda t, dim: dynamo_decorators.mark_dynamic(t, dim, specialize_on=sizes), 6, 8, 9, 16, 8, 32)


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
    """A C function with a Python substitute does not break the graph; nor does the latter."""

    @torch.compiler.substitute_in_graph(time.thread_time, skip_signature_check=True)
    def no_time() -> float:
        return -1.0

    compiled = engine.compile(lambda x: x + time.thread_time(), backend="eager", fullgraph=True)
    return bool((compiled(torch.ones(3)) == 0).all()) and breaks(lambda x: x + no_time()) == 0


class Sizes:
    """A spec of torch 2.13 and later, of which the engine reads the JSON form only."""

    def __init__(self, **form: Any) -> None:
        self.form = form

    def to_jsonable(self) -> dict[str, Any]:
        """Return the form."""
        return self.form


def specified() -> bool:
    """Sizes and numbers that a spec makes dynamic need one compilation, also in a list."""
    rows = Sizes(type="TensorSpec", dims=[{"type": "ShapeVar", "min": 0, "max": None}, None])
    inside = {"type": "DictSpec", "entries": {"a": {"type": "SeqSpec", "entries": [rows.form]}}}
    params = {"x": rows.form, "n": {"type": "IntVar"}, "*args": [inside], "**kwargs": {"k": rows.form}}
    spec = Sizes(type="ShapesSpec", params={"type": "ParamsSpec", "params": params})

    def fn(x: torch.Tensor, n: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x * n + args[0]["a"][0] + kwargs["k"]

    counts = []
    for given in ({}, {"shapes_spec": spec}, {"dynamic_shapes": spec}, {"dynamic_shapes": params}):
        engine.reset()
        compiled = engine.compile(fn, backend="eager", **given)
        with engine.record() as session:
            for n in (4, 5):
                compiled(torch.ones(n, 3), n, {"a": [torch.ones(n, 3)]}, k=torch.ones(n, 3))
        counts.append(len(session.compilations))
    return counts == [2, 1, 1, 1] and fails(errors.BadArgument, lambda: engine.compile(fn, dynamic_shapes=4))


def within_spec() -> bool:
    """A size or number outside of the range of a spec raises; a decorator may give the spec."""
    batch, count = {"type": "ShapeVar", "min": 2, "max": 8}, {"type": "IntVar", "min": 1, "max": 5}
    spec = {"x": Sizes(type="TensorSpec", dims=[batch, 3]), "n": Sizes(**count)}

    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n if x.shape[0] > 5 else x + n

    def decorated(x: torch.Tensor, n: int) -> torch.Tensor:
        return fn(x, n)

    decorated._dynamic_spec = Sizes(type="ParamsSpec", params=spec)  # as torch's dynamic_spec keeps it
    answers = []
    for run in (engine.compile(fn, backend="eager", dynamic_shapes=spec), engine.compile(backend="eager")(decorated)):
        engine.reset()
        with engine.record() as session:
            inside = all(
                torch.equal(run(torch.ones(rows, 3), n), fn(torch.ones(rows, 3), n))
                for rows, n in ((4, 2), (5, 5), (7, 1), (8, 3))
            )
        outside = [(9, 3, 2), (1, 3, 2), (4, 4, 2), (4, 3, 6), (4, 3, 0)]
        raised = [fails(errors.SizeOutOfRange, lambda s=s, run=run: run(torch.ones(s[:2]), s[2])) for s in outside]
        answers.append(inside and all(raised) and len(session.compilations) == 2)
    return all(answers) and fails(errors.BadArgument, lambda: engine.compile(decorated, dynamic_shapes=spec))


def in_range() -> bool:
    """A range is guarded, and another size of a marked tensor raises torch's error."""

    def mark(tensor: torch.Tensor, dim: int) -> None:
        dynamo_decorators.mark_dynamic(tensor, dim, min=3, max=8)

    def outside() -> None:
        marked(mark, 4, 20)

    return (
        marked(mark, 4, 8) == 1 and fails(errors.SizeOutOfRange, outside) and fails(ConstraintViolationError, outside)
    )


def isolated() -> bool:
    """Two calls of ``compile`` share entries unless one is isolated."""
    engine.reset()
    compiled = [engine.compile(double, backend="eager", isolate_recompiles=alone) for alone in (False, False, True)]
    with engine.record() as session:
        for run in (*compiled, *compiled):
            run(torch.ones(3))
    return len(session.compilations) == 2


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


def _captures_backward() -> bool:
    """The backward of a compiled function's result is compiled, too."""
    x = torch.ones(3, requires_grad=True)
    with dynamo_config.patch(compiled_autograd=True), engine.record() as session:
        compiled = engine.compile(double, backend="eager")
        compiled(x).sum().backward()
    return len(session.backward_calls) == 1 and bool((x.grad == 2).all())


def _verified() -> bool:
    """A backend that computes something else: a warning, and eager's result."""

    def wrong(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return lambda *inputs: [output + 1 for output in graph(*inputs)]

    with dynamo_config.patch(verify_correctness=True), pytest.warns(engine.errors.WrongResult):
        return bool((engine.compile(double, backend=wrong)(torch.ones(3)) == 2).all())


def calls_backend_with_options() -> bool:
    """Options that are not the engine's, and the mode, are arguments of the backend."""
    seen: list[dict[str, Any]] = []

    def noting(graph: torch.fx.GraphModule, examples: list[Any], **given: Any) -> Any:
        seen.append(given)
        return graph.forward

    assert _compiled(backend=noting, options={"level": 2, "guard_filter_fn": lambda guards: [True] * len(guards)})
    assert _compiled(backend=noting, mode="reduce-overhead")
    assert _compiled(backend=noting, mode="default")
    with pytest.raises(RuntimeError, match=r"'<lambda>' failed: .*'options'"):
        _compiled(backend=lambda graph, examples: graph, options={"level": 2})
    return seen == [{"options": {"level": 2}}, {"mode": "reduce-overhead"}, {}]


def unwraps() -> bool:
    """The original is read outside and inside of compiled code; a plain module has none."""
    engine.reset()
    module = torch.nn.Linear(3, 3)
    compiled = engine.compile(module, backend="eager")

    def count(x: torch.Tensor) -> torch.Tensor:
        return compiled._orig_mod(x) + hasattr(compiled, "_orig_mod") + 2 * hasattr(module, "_orig_mod")

    x = torch.ones(2, 3)
    expected = module(x) + 1
    return compiled._orig_mod is module and torch.equal(engine.compile(count, backend="eager")(x), expected)


def adds_if_compiling(x: torch.Tensor) -> torch.Tensor:
    """Add 1 in compiled code."""
    return x + 1 if torch.compiler.is_compiling() else x


def skips_one_frame() -> bool:
    """The function itself is not compiled, and its callee is."""

    @functools.partial(torch.compiler.disable, recursive=False)
    def outer(x: torch.Tensor) -> torch.Tensor:
        return adds_if_compiling(x) + (10 if torch.compiler.is_compiling() else 0)

    engine.reset()
    with engine.record() as session:
        results = [engine.compile(lambda x: outer(x) * 2, backend="eager")(torch.ones(1)).item() for _ in range(2)]
    assert any("outer is disabled, and runs as Python" in s.reason for s in session.skipped)
    return results == [4.0, 4.0]


def _compiled(**given: Any) -> bool:
    engine.reset()
    return bool((engine.compile(double, **given)(torch.ones(3)) == 2).all())


def _frames(**given: Any) -> tuple[Any, ...]:
    with engine.record() as session:
        _compiled(**given)
    return tuple(session.frames)


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
    "torch.compile(backend=f, options=)": calls_backend_with_options,
    "torch.compile(module)._orig_mod": unwraps,
    "torch.compile(recompile_limit=)": lambda: limited_alone() == 2,
    "torch.compile(isolate_recompiles=True)": isolated,
    "torch.compile(dynamic_shapes=)": lambda: specified() and within_spec(),
    "torch.compile(name=)": lambda: any(f.name == "mine" for f in _frames(name="mine")),
    "torch.compile(f).aot_compile": lambda: hasattr(engine.compile(double), "aot_compile"),
    "torch.compile(disable=True)": lambda: engine.compile(double, disable=True) is double,
    'torch.compile(backend="compile_explorer")': lambda: bool(
        (torch.compile(double, backend=torch_backend)(torch.ones(3)) == 2).all()
    ),
    "torch.nn.Module.compile": compiled_in_place,
    "torch._dynamo.mark_dynamic": lambda: marked(dynamo_decorators.mark_dynamic, 4, 6) == 1,
    "torch._dynamo.mark_dynamic(min=, max=)": in_range,
    "torch._dynamo.mark_dynamic(specialize_on=)": lambda: specialized_on() == 3,
    "torch._dynamo.maybe_mark_dynamic": lambda: marked(dynamo_decorators.maybe_mark_dynamic, 4, 6) == 1,
    "torch._dynamo.decorators.mark_unbacked": lambda: (
        [marked(dynamo_decorators.mark_unbacked, *rows) for rows in ((4, 6, 2), (1, 4, 6, 0))] == [1, 3]
    ),
    "torch._dynamo.mark_static": lambda: marked(dynamo_decorators.mark_static, 4, 5, 6) == 3,
    "torch._dynamo.disallow_in_graph": forbids_nodes,
    "torch.compiler.config.dynamic_sources": lambda: [
        listed("L['x']", (4, 3), (5, 3)), listed(r"L\['x'\]:0", (4, 3), (5, 3), (5, 6)), listed("L['y']", (4, 3), (5, 3))
    ] == [1, 2, 2],
    "torch.compiler.config.unbacked_sources": lambda: listed("L['x']", (4, 3), (5, 3), setting="unbacked_sources") == 1,
    "torch.compiler.disable": lambda: (
        breaks(lambda x: disabled(x * 2) * 2) == 1 and breaks(lambda x: disabled_module(x * 2) * 2) == 1
    ),
    "torch.compiler.disable(recursive=False)": skips_one_frame,
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
    "torch._dynamo.config.capture_scalar_outputs = True": lambda: item_breaks(is_captured=True) == 0,
    "torch._dynamo.config.capture_scalar_outputs = False": lambda: item_breaks(is_captured=False) == 1,
    "torch._dynamo.config.compiled_autograd": _captures_backward,
    "torch._dynamo.config.suppress_errors": _suppressed,
    "torch._dynamo.config.verify_correctness": _verified,
    "torch._dynamo.config.disable": lambda: with_config("disable", True, SIZES, double) == 0,
    "torch._dynamo.callback.on_compile_start": callbacks,
    "torch._dynamo.utils.counters": counted,
    'TORCH_LOGS="graph_breaks,recompiles"': logged,
}  # fmt: skip


def rows() -> dict[str, str]:
    """The rows of the table: switch and verdict."""
    return {m["name"]: m["honored"] for m in ROW.finditer(TABLE.read_text(encoding="utf-8"))}


def test_takes_all_arguments_of_torch_compile() -> None:
    """A call of ``torch.compile`` never fails because the engine does not know an argument."""
    taken = inspect.signature(engine.compile).parameters
    assert set(inspect.signature(torch.compile).parameters) <= set(taken)


def test_each_row_has_a_check() -> None:
    """No row is without a check, and no check without a row."""
    assert set(rows()) == set(CHECKS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKS)
def test_row(name: str) -> None:
    """The table says what is seen."""
    assert (rows()[name] == "yes") == CHECKS[name]()


@pytest.mark.parametrize("backend", ["triton", "inductor"])
def test_values_of_options_and_stances_are_checked(backend: str) -> None:
    """A value of a wrong type and an unknown stance raise, as in ``torch.compile``."""
    for name, value in {"triton.cudagraphs": 5, "max_autotune": "yes", "epilogue-fusion": "no"}.items():
        with pytest.raises(RuntimeError, match=name):
            torch.compile(double, options={name: value})
        with pytest.raises(errors.BadArgument, match=name):
            engine.compile(double, backend=backend, options={name: value})
    engine.reset()
    run = engine.compile(double, backend="eager")
    with torch.compiler.set_stance("eager_on_recompiles"), pytest.raises(RuntimeError, match="eager_on_recompiles"):
        run(torch.ones(3))
    assert run(torch.ones(3)).tolist() == [2, 2, 2]
