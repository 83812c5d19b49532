"""Public API: compile, record, explain; queries of compiled functions and live sessions."""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import platform
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from engine import errors, replay_values, session_jobs, verify_fixes
from engine.accuracy import AccuracyBisector, AccuracyReport
from engine.autograd.intercept import clear_captures
from engine.backends.registry import BACKENDS
from engine.backends.torch_compile_arguments import (
    backend_and_options,
    find_backend,
    shape_spec_of,
    with_dynamic_shapes,
)
from engine.backward_pipeline import capture_backwards, capture_pipeline_for
from engine.bytecode.calling_frames import make_calling_frame
from engine.expectations import check_expectations
from engine.ir.annotations import DYNAMIC_DIMS_ATTR, STATIC_DIMS_ATTR
from engine.ir.current_session import current_session, set_current_session
from engine.ir.introspection.transformed_functions import applied_function
from engine.ir.unwrap_compiled import unwrap_torch_disable
from engine.kernels.gpu_targets import default_target, parse_target
from engine.observe.dynamo_guards import explain_torch_call, is_torch_compiled, torch_guards_by_entry
from engine.options import MODES, OPTION_NAMES, TEMPLATE_CHOICES, Options
from engine.pipeline import Pipeline
from engine.pipeline_cache import forget_pipelines, pipeline_for
from engine.records.findings_text import Diagnosis
from engine.records.guards import CallExplanation, GuardsRecord
from engine.records.session import Session
from engine.runtime.dispatch import inspect_cache
from engine.runtime.dispatch import measure_guards as time_guards
from engine.runtime.dispatch import what_if as ask
from engine.runtime.dispatch.compiled_modules import attach as attach_module
from engine.runtime.dispatch.compiled_modules import compiled_module
from engine.runtime.dispatch.compiled_modules import detach as detach_module
from engine.runtime.dispatch.dispatcher import make_dispatcher, unwrap_compiled
from engine.runtime.record_launches import record_launches
from engine.torch_private import contract
from engine.torch_private.entries import Feature, why_off
from engine.torch_private.global_state import changed_setting, is_compiling_disabled

LEVELS = ("standard", "steps")


def make_options(
    backend: str | Callable[..., Any] | None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Options:
    """Check the user's options and return them.

    Raises:
        errors.UnknownBackend: the backend is neither a known name nor callable.
        errors.UnknownTarget: kernels cannot be compiled for the target.
        errors.BadArgument: another argument is invalid.
    """
    backend = find_backend(backend)
    if dynamic not in (None, True, False):
        raise errors.BadArgument(f"dynamic must be True, False or None, not {dynamic!r}.")
    extra = dict(options or {})
    if unknown := extra.keys() - set(OPTION_NAMES):
        raise errors.BadArgument(f"engine.compile has no option {min(unknown)!r}: remove it.")
    if extra.get("mode", "default") not in MODES:
        raise errors.BadArgument(f"The option 'mode' must be one of {', '.join(MODES)}, not {extra['mode']!r}.")
    if extra.get("templates", "never") not in TEMPLATE_CHOICES:
        raise errors.BadArgument(
            f"The option 'templates' must be one of {', '.join(TEMPLATE_CHOICES)}, not {extra['templates']!r}."
        )
    if target is not None:
        parse_target(target)
    guard_filter, limit = extra.pop("guard_filter_fn", None), extra.pop("recompile_limit", None)
    if guard_filter is not None and not callable(guard_filter):
        raise errors.BadArgument(f"guard_filter_fn must be a function of a list of guards, not {guard_filter!r}.")
    if limit is not None and not (hasattr(limit, "__index__") and limit > 0):
        raise errors.BadArgument(f"recompile_limit must be a positive integer or None, not {limit!r}.")
    return Options(backend, bool(fullgraph), dynamic, target, extra, guard_filter=guard_filter, recompile_limit=limit)


def compile(
    fn_or_module: Any = None,
    *,
    backend: str | Callable[..., Any] | None = "triton",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    target: str | None = None,
    options: Mapping[str, Any] | None = None,
    compiled_autograd: bool = False,
    mode: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    dynamic_shapes: Any = None,
    shapes_spec: Any = None,
    name: str | None = None,
    model: Any = None,
) -> Any:
    """Compile a function, a bound method or an ``nn.Module``; also a decorator.

    The result has the results, mutations, gradients and exceptions of the original. It compiles at the first call
    and when a guard fails. Code that cannot be traced runs as Python.

    Args:
        fn_or_module: a Python function, a bound method or a module; None as ``@engine.compile(backend=...)``.
        backend: "triton" (Triton kernels on a GPU, LLVM kernels on a CPU, ATen for the rest), "aot_eager" (ATen),
            "eager", "inductor", a name known to torch, or ``(graph_module, example_inputs) -> callable``.
        fullgraph: raise ``GraphBreak`` instead of breaking the graph.
        dynamic: True makes every size a symbol, False none, None one that changes between calls.
        target: "cuda:90", "hip:gfx942", ... for generated kernels; default: the current GPU, else "cuda:90".
        options: ``{"fused_random": True}``: kernels on a GPU generate random numbers (not those of eager).
            ``{"guard_filter_fn": f}``: ``f`` returns which guards of a list to check (unsafe).
            ``{"templates": "always"}``: use templates in all supported cases, without a GPU too.
            ``{"recompute_random": True}``: a backward may recompute random masks instead of saving them.
        compiled_autograd: capture backwards that run inside the function or go through its outputs.
        mode: "reduce-overhead" (CUDA graphs, one per input shape), "max-autotune" or "max-autotune-no-cudagraphs".
        recompile_limit: cache entries per function, else ``engine.config.recompile_limit``; also an option.
        disable: return ``fn_or_module`` as it is.
        isolate_recompiles: share no cache entries with other calls of ``compile``.
        dynamic_shapes: a ``ParamsSpec`` of torch or a dict: symbols and their ranges; 2.13 says ``shapes_spec``.
        shapes_spec: another name of ``dynamic_shapes``.
        name: no effect.
        model: another name of ``fn_or_module``.

    Returns:
        A function or module like the original; a module class itself, with ``forward`` compiled.

    Raises:
        UnknownBackend, UnknownTarget, BadArgument: see their messages.

    See also: ``explain``, ``record``, ``doctor``, ``expect``, ``guards_of``, ``explain_call``, ``mark_dynamic``,
    ``disable``, ``observe_torch``; ``BREAKS.md`` and ``GUARDS.md`` in ``notebooks/reference``.
    """
    subject = model if fn_or_module is None else fn_or_module
    if disable or is_compiling_disabled():
        return (lambda each: each) if subject is None else subject
    backend, extra = backend_and_options(backend, options, mode=mode, recompile_limit=recompile_limit)
    checked = make_options(backend, fullgraph=fullgraph, dynamic=dynamic, target=target, options=extra)
    captures = compiled_autograd or bool(changed_setting("compiled_autograd"))
    return _compile_or_decorate(checked, isolate_recompiles, dynamic_shapes or shapes_spec, captures, subject)


def _compile_or_decorate(options: Options, isolated: bool, spec: Any, captures: bool, fn_or_module: Any) -> Any:
    """Return the compiled ``fn_or_module``; a decorator for None."""
    if fn_or_module is None:
        return functools.partial(_compile_or_decorate, options, isolated, spec, captures)
    options = replace(with_dynamic_shapes(options, shape_spec_of(fn_or_module, spec)), is_isolated=bool(isolated))
    pipeline = (capture_pipeline_for if captures else pipeline_for)(options)
    return compile_with(fn_or_module, pipeline=pipeline)


def torch_backend(graph_module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Compile a graph that Dynamo traced (``torch.compile(f, backend="compile_explorer")``).

    AOT and lowering are this engine's. If Dynamo made sizes symbols, they are symbols here too.
    """
    # Dynamo generates the code when it is read, else at the first call, which breaks the graph.
    _generated = graph_module.code
    is_dynamic = any(not torch.is_tensor(x) and hasattr(x, "node") for x in example_inputs)
    compiled: Callable[..., Any] = compile(graph_module, dynamic=True if is_dynamic else None)
    return compiled


@contextlib.contextmanager
def compiled_autograd(
    backend: str | Callable[..., Any] = "triton",
    *,
    dynamic: bool | None = None,
    target: str | None = None,
    enabled: bool = True,
) -> Iterator[None]:
    """Capture each backward of this thread as one graph, compile it, and run it.

    A compiled backward is cached and reused for an equal one. The graph includes all that autograd runs:
    hooks, Python functions, backwards of compiled calls (also of several, around graph breaks), and the
    accumulation into ``.grad``. Gradients, side effects, their order, and errors are eager's. A backward that
    cannot be captured runs in torch's autograd engine; the records have the reason. Contexts nest: the
    innermost is used. If a hook adds or removes hooks of the running backward, the rest of it runs node by
    node with the current hooks.

    Args:
        backend: as for ``compile``.
        dynamic: True makes every size that autograd saves a symbol; else only sizes that change between calls.
        target: as for ``compile``.
        enabled: False leaves the backwards inside to torch's engine.

    Raises:
        UnknownBackend, UnknownTarget, BadArgument: see their messages.
    """
    options = make_options(backend, dynamic=dynamic, target=target)
    with capture_backwards(options if enabled else None):
        yield


contract.report()


def compile_with(subject: Any, pipeline: Pipeline) -> Any:
    """Compile a function, method, module or class with one pipeline."""
    if why_off(Feature.COMPILATION):
        return subject
    if isinstance(subject, torch.nn.Module):
        return compiled_module(subject, pipeline)
    if applied_function(subject) is not None:
        return compile_with(make_calling_frame(subject), pipeline)
    if isinstance(subject, types.MethodType):
        return types.MethodType(compile_with(subject.__func__, pipeline), subject.__self__)
    subject = unwrap_torch_disable(subject)
    behind = unwrap_compiled(subject)
    if isinstance(subject, types.FunctionType):
        return (
            make_dispatcher(behind, pipeline)
            if isinstance(behind, types.FunctionType)
            else compile_with(behind, pipeline)
        )
    if isinstance(subject, functools.partial):
        return functools.partial(compile_with(subject.func, pipeline), *subject.args, **subject.keywords)
    if (
        isinstance(subject, type)
        and issubclass(subject, torch.nn.Module)
        and type(subject.forward) is types.FunctionType
    ):
        subject.forward = make_dispatcher(unwrap_compiled(subject.forward), pipeline)
        return subject
    call = getattr(type(subject), "__call__", None)  # noqa: B004 - Python looks ``__call__`` up on the class
    if not isinstance(subject, type) and isinstance(call, types.FunctionType):
        return types.MethodType(compile_with(call, pipeline), subject)
    if not isinstance(subject, type) and callable(subject):
        return compile_with(make_calling_frame(subject), pipeline)
    raise errors.BadArgument(
        f"engine.compile takes a Python function, a method or an nn.Module, not {describe_subject(subject)}: wrap it in a function."
    )


def backend_is_named(options: Options) -> bool:
    """Return True if the backend is one of ``list_backends()``, not a callable."""
    return options.backend in BACKENDS


def describe_subject(value: object) -> str:
    """Describe an argument that the user passed, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = getattr(value, "__name__", None)
    return f"the built-in {name}" if name and inspect.isbuiltin(value) else f"an object of type {type(value).__name__}"


def attach(module: torch.nn.Module, **options: Any) -> None:
    """Compile a module in place; class, identity, ``state_dict`` and pickle are unchanged.

    Options as for ``compile``.
    """
    attach_module(module, pipeline_for(make_options(options.pop("backend", "triton"), **options)))


def detach(module: torch.nn.Module) -> None:
    """Let the module's own ``forward`` run again."""
    detach_module(module)


def register_backend(name: str, fn: Callable[..., Any]) -> None:
    """Register ``fn(graph_module, example_inputs) -> callable`` as ``backend=name``.

    Raises:
        BadArgument: the name belongs to a built-in backend, or ``fn`` is not callable.
    """
    if name in BACKENDS and BACKENDS[name] is None:
        raise errors.BadArgument(f"{name!r} is a built-in backend: choose another name.")
    if not callable(fn):
        raise errors.BadArgument(
            f"A backend is a callable (graph_module, example_inputs) -> callable, not {describe_subject(fn)}."
        )
    BACKENDS[name] = fn


def list_backends() -> tuple[str, ...]:
    """Return the names of built-in and registered backends, sorted."""
    return tuple(sorted(BACKENDS))


@contextlib.contextmanager
def record(level: str = "standard", *, target: str | None = None, launches: bool = False) -> Iterator[Session]:
    """Record what compiled functions do in this thread while the context is open.

    Args:
        level: "standard", or "steps" to record every instruction that the tracer executes.
        target: the session's target; default: the current GPU, else "cuda:90".
        launches: also record each launch of a kernel: argument shapes, grid, time and the call that led to it. A GPU
            then runs one kernel at a time. In a CUDA graph, launches have no times, and only those of graphs recorded
            in the context are known.

    Yields:
        The Session, which is filled while code runs. Background compile jobs may add kernels after the
        context is closed. What other threads compile is not recorded: a note names it.
    """
    if level not in LEVELS:
        raise errors.BadArgument(f"The recording level {level!r} does not exist. Choose one of {', '.join(LEVELS)}.")
    session = new_session(level, target)
    with set_current_session(session), record_launches(session) if launches else contextlib.nullcontext():
        try:
            yield session
        finally:
            session.seconds = time.perf_counter() - session.started


def new_session(level: str = "standard", target: str | None = None, subject: str = "engine") -> Session:
    """Return an empty session with the versions and the device of this machine."""
    if target is not None:
        parse_target(target)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    session = Session(subject=subject, level=level, target=target or default_target(), device=device)
    session.started_at = time.time()
    session.versions = {"python": platform.python_version(), "torch": str(torch.__version__)} | _triton_version()
    return session


def _triton_version() -> dict[str, str]:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return {"triton": metadata.version("triton")}
    return {}


class Explanation:
    """Result of ``explain``: ``session`` has all records, ``str()`` is a summary."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name

    @property
    def graphs(self) -> int:
        """Number of graphs that the call ran."""
        return sum(g.stage == "fx" for c in self.session.compilations for g in c.graphs)

    @property
    def breaks(self) -> tuple[str, ...]:
        """One line per graph break: reason and location."""
        breaks = [b for c in self.session.compilations if c.trace for b in c.trace.breaks]
        return tuple(f"{b.title}: {b.context}" + (f" ({b.span.file}:{b.span.line})" if b.span else "") for b in breaks)

    @property
    def constraints(self) -> tuple[str, ...]:
        """One line per symbol: its supported values, and the source line that restricts them."""
        return tuple(s.constraint for c in self.session.compilations if c.trace for s in c.trace.symbols)

    @property
    def guards(self) -> tuple[GuardsRecord, ...]:
        """Guards of each compilation that has some."""
        return tuple(c.guards for c in self.session.compilations if c.guards is not None)

    def __repr__(self) -> str:
        guards = sum(len(g.guards) for g in self.guards)
        counts = ((self.graphs, "graph"), (len(self.breaks), "break"), (guards, "guard"))
        head = f"{self.name}: " + ", ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts)
        limits = (f"  dynamic: {c}" for c in self.constraints)
        return "\n".join([head, *(f"  break: {b}" for b in self.breaks), *limits])


def explain(fn: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Call ``fn`` once under a recording; return its graphs, graph breaks and guards.

    It uses its own caches, so other compiled functions are unaffected. The call is real, with its side effects.
    """
    private = Pipeline(Options(backend="eager"))
    subject = unwrap_compiled(fn)
    with record() as session:
        compile_with(subject, private)(*args, **kwargs)
    return Explanation(session, getattr(subject, "__qualname__", type(subject).__name__))


def doctor(fn: Any, *args: Any, **kwargs: Any) -> Diagnosis:
    """Compile and call ``fn`` twice under a recording; return ranked, verified findings.

    Each finding has its cause, the user's line, fixes, and the expected gain. The second call shows what recompiles
    although the arguments are the same. It uses its own caches. The calls are real, with their side effects.
    Fixes that are code are re-run in another process, as ``try_fixes`` does.
    """
    private = Pipeline(Options(backend="triton"))
    with record() as session:
        compiled = compile_with(unwrap_compiled(fn), private)
        for _ in range(2):
            compiled(*args, **kwargs)
    wait(session)
    try_fixes(session)
    return Diagnosis(session)


def bisect_accuracy(
    fn: Any,
    *args: Any,
    against: str = "eager",
    backend: str | Callable[..., Any] = "triton",
    rtol: float | None = None,
    atol: float | None = None,
    **kwargs: Any,
) -> AccuracyReport:
    """Find the first operator whose compiled result, or its gradient, leaves tolerance.

    Each graph of the call runs in eager and in the backend on copies of its inputs, with every intermediate value
    as a result, so fusion may differ from that of the plain function. Then gradients are compared in the order of
    the backward, if an input requires one. Random operators draw the same numbers in both. The call itself is
    real and computes in eager.

    Args:
        fn: a function or module.
        *args: its arguments.
        **kwargs: its keyword arguments.
        against: "eager", the only reference.
        backend: as for ``compile``; "inductor" for torch's.
        rtol: relative tolerance; default: that of ``torch.testing.assert_close`` for the dtype.
        atol: absolute tolerance.

    Raises:
        BadArgument: there is no such reference.
    """
    if against != "eager":
        raise errors.BadArgument(f"Results can be compared with 'eager' only, not with {against!r}.")
    every = sys.maxsize  # the graphs of all calls share one code object, and one that is not compiled is not compared
    bisector = AccuracyBisector(lambda f: compile(f, backend=backend, recompile_limit=every), rtol, atol)
    compile(unwrap_compiled(fn), backend=bisector)(*args, **kwargs)
    return AccuracyReport(bisector.nodes, bisector.problems)


def guards_of(f: Any) -> tuple[GuardsRecord, ...]:
    """Return the guards of each cache entry of a compiled function or module, in lookup order.

    Functions that stock ``torch.compile`` compiled are supported too.
    """
    return tuple(guards_by_entry(f).values())


def guards_by_entry(f: Any) -> dict[str, GuardsRecord]:
    """Return ``guards_of`` by the id of the entry, as ``explain_call`` names it."""
    return torch_guards_by_entry(f) if _is_compiled_by_torch(f) else inspect_cache.guards_by_entry(f)


def explain_call(f: Any, *args: Any, **kwargs: Any) -> CallExplanation:
    """Return which cache entry a call would hit and, guard by guard, why the others fail.

    It runs nothing and does not reorder entries. For a function or module that stock ``torch.compile``
    compiled, torch's guard managers are evaluated. An ``engine.TensorSpec`` may replace a tensor anywhere in
    the arguments, with another shape, dtype, strides, device or requires_grad.

    Raises:
        BadArgument: ``f`` is not compiled.
        TypeError: the arguments do not match ``f``'s signature.
    """
    if _is_compiled_by_torch(f):
        return explain_torch_call(f, *args, **kwargs)
    return inspect_cache.explain_call(f, *args, **kwargs)


def _is_compiled_by_torch(f: Any) -> bool:
    """Return True if stock ``torch.compile`` compiled the function, and this engine did not."""
    return is_torch_compiled(f) and not inspect_cache.is_compiled(f)


@contextlib.contextmanager
def expect(
    *,
    graphs: int | None = None,
    breaks: int | None = None,
    recompiles: int | None = None,
    guards: int | None = None,
    peak_bytes: int | None = None,
) -> Iterator[Session]:
    """Fail if the code in the context makes more graphs, breaks or recompiles than given.

    ``peak_bytes``: largest estimated peak memory of a compiled forward or backward that is trained.

    Raises:
        ExpectationFailed: the message has the reason and line of each.
    """
    outer = current_session()
    with (
        record() if outer is None else contextlib.nullcontext(outer) as session,
        check_expectations(session, graphs, breaks, recompiles, guards=guards, peak_bytes=peak_bytes),
    ):
        yield session


def mark_dynamic(t: torch.Tensor, dim: int | Sequence[int], min: int | None = None, max: int | None = None) -> None:
    """Make a dimension of ``t``, or several, a symbol at the next compile.

    Bounds are inclusive. If the traced code specializes the size nevertheless, the symbol's record has the line.

    Raises:
        BadArgument: the tensor has no such dimension, the bounds are invalid, or the tensor's size is outside
            of them.
    """
    positions = normalize_dims(t, dim)
    for position in positions:
        check_bounds(position, t.shape[position], min, max)
    getattr_or_set(t, DYNAMIC_DIMS_ATTR, dict).update(dict.fromkeys(positions, (min, max)))


def check_bounds(dim: int, size: int, low: int | None, high: int | None) -> None:
    """Check a user's bounds for the size of a dimension.

    Raises:
        BadArgument: the bounds are not ordered sizes, or ``size`` is outside of them.
    """
    for name, bound in (("min", low), ("max", high)):
        if bound is not None and (type(bound) is not int or bound < 0):
            raise errors.BadArgument(
                f"{name} must be an integer of at least 0 (a bound for the size of dimension {dim}), not {bound!r}."
            )
    if low is not None and high is not None and low > high:
        raise errors.BadArgument(f"min={low} is greater than max={high}: exchange them.")
    if (low is not None and size < low) or (high is not None and size > high):
        bounds = " and ".join(f"{n}={b}" for n, b in (("min", low), ("max", high)) if b is not None)
        raise errors.BadArgument(
            f"Dimension {dim} has size {size}, which is outside of {bounds}: widen the bounds, or pass another tensor."
        )


def mark_static(t: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Never make a dimension of ``t``, or several, a symbol (None: any dimension).

    Raises:
        BadArgument: the tensor has no such dimension.
    """
    dims = range(t.ndim) if dim is None else normalize_dims(t, dim)
    getattr_or_set(t, STATIC_DIMS_ATTR, set).update(dims)


def getattr_or_set(t: torch.Tensor, name: str, default: Callable[[], Any]) -> Any:
    """Return an attribute of a tensor; create it if it is missing."""
    if name not in t.__dict__:
        setattr(t, name, default())
    return getattr(t, name)


def normalize_dims(t: torch.Tensor, dim: int | Sequence[int]) -> list[int]:
    """Return a dimension, or each of several, as nonnegative numbers.

    Raises:
        BadArgument: the tensor has no such dimension, or it is no integer.
    """
    try:
        dims = [operator.index(number) for number in (dim if hasattr(dim, "__iter__") else (dim,))]
    except TypeError:
        raise errors.BadArgument(f"A dimension is an integer, or a list of integers, not {dim!r}.") from None
    for number in dims:
        if not -t.ndim <= number < t.ndim:
            raise errors.BadArgument(f"A tensor of {t.ndim} dimensions has no dimension {number}.")
    return [number % t.ndim for number in dims]


def reset() -> None:
    """Clear all compiled code and caches."""
    inspect_cache.reset()
    forget_pipelines()
    clear_captures()


def wait(session: Session, timeout: float | None = None) -> bool:
    """Wait for the session's background compile jobs; return False on timeout (in seconds)."""
    return session_jobs.wait(session, timeout)


def cancel(session: Session) -> None:
    """Stop compiling the session's kernels; finished results stay."""
    session_jobs.cancel(session)


def compile_for(session: Session, target: str) -> None:
    """Compile all kernels of a live session for one more target, in the background.

    Raises:
        UnknownTarget: see its message.
    """
    parse_target(target)
    for compilation in session.compilations:
        session_jobs.compile_for(session, compilation.id, target)


def measure_guards(session: Session) -> int:
    """Measure the cost of each guard of a live session, on new tensors of the recorded shapes.

    The guard records then have the cost in nanoseconds. Returns the number of cache entries measured.
    """
    return time_guards.measure_guards(session)


def try_fixes(session: Session) -> int:
    """Rerun the calls that recompiled with each suggested fix, in a forked process.

    Inputs are new tensors of the recorded shapes. The record of each fix then has the result: verified, did
    not help, or the reason why it is not verifiable. Returns the number of verified fixes.
    """
    return verify_fixes.try_fixes(session, lambda dynamic: Pipeline(Options("eager", dynamic=dynamic)))


def what_if(session: Session, frame: str, edits: Mapping[str, Mapping[str, str]]) -> CallExplanation:
    """Return which entry the last call of a frame would hit with edited arguments.

    No tensor is allocated.

    Args:
        session: recorded in this process.
        frame: the id of one of its frames.
        edits: new texts of fields by path (``x``, ``xs[0]``): ``shape``, ``stride``, ``dtype``, ``device``,
            ``requires_grad``, or ``value``.

    Raises:
        BadArgument: the session is not live, an argument is no longer available, or a text cannot be parsed.
    """
    return ask.what_if(session, frame, edits)


def what_if_inputs(
    session: Session, frame: str, edits: Mapping[str, Mapping[str, str]] = types.MappingProxyType({})
) -> dict[str, dict[str, str]]:
    """Return the fields that ``what_if`` can edit, as text, by path.

    With ``edits``, those of the call that it then asks about: the strides follow an edited shape.

    Raises:
        BadArgument: the session is not live, or a text cannot be parsed.
    """
    return {i.path: dict(i.fields) for i in ask.editable_inputs(session, frame, edits)}


def measure_kernels(session: Session) -> int:
    """Time the kernels of a live session where they run; return the number of kernels timed.

    The kernel records then have the timings and the copy bandwidth of the GPU or of this CPU. Each graph runs once more, on
    copies of the inputs it was compiled for.

    Raises:
        BadArgument: no kernel of the session can run here.
    """
    return session_jobs.time_session_kernels(session)


def record_tensor_values(session: Session, compilation: str) -> str:
    """Replay one compilation's call and record small tensors' values at the AOT wrappers.

    The graph runs through ATen on copies, with its backward if there is one; no user code runs. Returns a
    message on which inputs were used.

    Raises:
        BadArgument: the call cannot be replayed; the message has the reason.
    """
    return replay_values.replay_with_probes(session, compilation)


def verify(session: Session) -> dict[str, Any]:
    """Verify the session's kernels against ATen: on this CPU, or in Triton's interpreter.

    Kernels for the CPU run as compiled; those for a GPU are interpreted. Returns the results by "compilation kernel".
    """
    return dict(session_jobs.verify_session_kernels(session))
