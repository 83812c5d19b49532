"""Live guards of stock torch.compile in this process.

Guard managers are walked, not called, so torch's counters and the order of guards do not change.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import torch

from engine.errors import BadArgument
from engine.group_pairs import group_pairs
from engine.ir.introspection.describe_values import short_dtype
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.observe.parse_messages import PathResolver, parse_guards, parse_recompile_reasons
from engine.records.guards import CallExplanation, GuardFailure, GuardRecord, GuardResult, GuardsRecord, Verdict
from engine.torch_private.pytree import tree_map
from engine.torch_private.torch_compile import RelationalGuard, debug_get_cache_entry_list

_MISSING_VALUE = object()
_RELATIONAL_GUARDS: tuple[type, ...] = (RelationalGuard,)
"""Guards with state between calls: evaluating one alone would change its next result."""


@dataclass(frozen=True)
class _LeafGuard:
    """One leaf guard in printed order, and its source expression ("" for the root)."""

    guard: Any
    source: str


def is_torch_compiled(value: Any) -> bool:
    """Return True if a function or module was passed to ``torch.compile``."""
    return _python_function(_original_callable(value)) is not None


def torch_guards_by_entry(value: Any) -> dict[str, GuardsRecord]:
    """Return the guards of a torch-compiled function by id of cache entry, in lookup order.

    Raises:
        BadArgument: it was not passed to ``torch.compile``.
    """
    function, _ = _function_and_self(value)
    resolve = _path_resolver(function.__code__.co_filename)
    entries = enumerate(_cache_entries(function.__code__))
    return {_compile_id(e).replace("?", f"?/{n}"): _printed_guards(e, resolve) for n, e in entries}


def explain_torch_call(value: Any, *arguments: Any, **keywords: Any) -> CallExplanation:
    """Return which entry a call would hit and, guard by guard, why the others fail.

    Runs nothing and changes no order.

    Raises:
        BadArgument: ``value`` was not passed to ``torch.compile``.
        TypeError: the arguments do not match its signature.
    """
    function, first = _function_and_self(value)
    arguments, keywords = tree_map(_materialize, (arguments, keywords))
    scope = _frame_locals(function, (*first, *arguments), keywords)
    code = function.__code__
    return _explain_entries(_frame_name(value, function), _cache_entries(code), scope, _path_resolver(code.co_filename))


def explain_code(code: CodeType, arguments: Mapping[str, Any]) -> CallExplanation | None:
    """Explain a call of a frame by its code object; None if it has no cache entries.

    ``arguments``: values of arguments and free variables.

    Raises:
        BadArgument: a ``TensorSpec`` describes a tensor that cannot be allocated here.
    """
    file, entries = code.co_filename, _cache_entries(code)
    scope = tree_map(_materialize, dict(arguments))
    return _explain_entries(code.co_qualname, entries, scope, _path_resolver(file)) if entries else None


def _explain_entries(name: str, entries: list[Any], scope: Mapping[str, Any], resolve: PathResolver) -> CallExplanation:
    explanations = [explain_entry(e, scope, resolve) for e in entries]
    ids = tuple(_compile_id(e) for e in entries)
    hit = next((id for id, (rejection, _) in zip(ids, explanations, strict=True) if rejection is None), None)
    refused = tuple(r for r, _ in explanations if r is not None)
    return CallExplanation(name, hit, ids, refused, dict(zip(ids, (r for _, r in explanations), strict=True)))


def explain_entry(
    entry: Any, scope: Mapping[str, Any], resolve: PathResolver
) -> tuple[GuardFailure | None, tuple[GuardResult, ...]]:
    """Return an entry's guard failure for these locals (None: a hit), and all guard results."""
    manager = entry.guard_manager
    check = manager.check_verbose(dict(scope))  # torch's own query for a failure reason: it changes no state
    guards = _printed_guards(entry, resolve).guards
    leaves = list(_leaf_guards(manager))
    if len(leaves) != len(guards):  # printed in an unknown format
        leaves = []
    answers = [_evaluate_guard(leaf, manager, scope, is_hit=bool(check.result)) for leaf in leaves]
    failed = next((i for i, (passed, _) in enumerate(answers) if passed is False), -1)
    results = tuple(
        GuardResult(g.id, _verdict(passed, i, failed), actual)
        for i, (g, (passed, actual)) in enumerate(zip(guards, answers, strict=False))
    )
    if check.result:
        return None, results
    return _guard_failure(_compile_id(entry), check, guards, failed, results, resolve), results


def live_guard_failures(
    prefix: str, resolve: PathResolver, recorded_guards: Callable[[str], GuardsRecord | None]
) -> dict[str, GuardFailure]:
    """Evaluate all guards of all entries while torch reports a recompile.

    Returns guard failures by entry id, for the call's locals. ``recorded_guards`` returns those of an entry as
    first recorded: torch has since reordered guards by failures. The locals are found in torch's frame
    further up the stack; the result is empty if that frame has another form.
    """
    asking = _recompile_reasons_frame(sys._getframe())
    frame, entries = (asking.f_locals.get(k) for k in ("frame", "cache_entries")) if asking else (None, None)
    if frame is None:
        return {}
    if not isinstance(
        entries, (list, tuple)
    ):  # before torch 2.12 it is a linked list, whose head is no longer available
        entries = _cache_entries(frame.f_code)
    failures: dict[str, GuardFailure] = {}
    for entry in entries:
        with contextlib.suppress(Exception):
            rejection, _ = explain_entry(entry, frame.f_locals, resolve)
            if rejection is not None:
                id = prefix + rejection.entry
                failures[id] = _with_recorded_ids(rejection, _printed_guards(entry, resolve), recorded_guards(id))
    return failures


def _with_recorded_ids(rejection: GuardFailure, now: GuardsRecord, then: GuardsRecord | None) -> GuardFailure:
    """Return the guard failure with the recorded guard ids, in recorded order."""
    recorded = then.guards if then is not None else ()
    ids = group_pairs(((g.source, g.kind, g.code), g.id) for g in recorded)
    new = {g.id: _pop_id(ids, (g.source, g.kind, g.code)) for g in now.guards}
    order = {g.id: i for i, g in enumerate(recorded)}
    results = [replace(r, guard=new[r.guard]) for r in rejection.results if new.get(r.guard)]
    results.sort(key=lambda r: order[r.guard])
    return replace(rejection, guard=new.get(rejection.guard, ""), results=tuple(results))


def _pop_id(ids: dict[tuple[str, str, str], list[str]], key: tuple[str, str, str]) -> str:
    left = ids.get(key)
    return left.pop(0) if left else ""


def _recompile_reasons_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and frame.f_code.co_name != "get_and_maybe_log_recompilation_reasons":
        frame = frame.f_back
    return frame


# Compiled functions.


def _function_and_self(value: Any) -> tuple[FunctionType, tuple[Any, ...]]:
    """Return the Python function, and ``(self,)`` for a method or module."""
    compiled = _python_function(_original_callable(value))
    if compiled is None:
        raise BadArgument(
            "This function was not compiled with torch.compile: pass the function or module that torch.compile returned."
        )
    function, owners = compiled
    return function, owners


def _original_callable(value: Any) -> Any:
    """Return the module or callable behind a compiled value; None if torch did not compile it."""
    if isinstance(value, torch.nn.Module):
        inner = value.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is None:
            call = value.__dict__.get("_compiled_call_impl")
            frame = None if call is None else _original_callable(call)
            return None if call is None else frame if inspect.isfunction(frame) else value
        frame = _original_callable(value.__dict__.get("forward"))
        # For modules of torch itself, Dynamo traces a function that calls the module, not the module's forward.
        return frame if inspect.isfunction(frame) else inner
    inner = getattr(value, "_torchdynamo_orig_callable", None)
    while (deeper := getattr(inner, "_torchdynamo_orig_callable", None)) is not None:
        inner = deeper
    return inner


def _frame_name(value: Any, function: FunctionType) -> str:
    """Return the frame's name; for the wrapper of a module, that of the module's forward."""
    module = getattr(value, "_orig_mod", None)
    wraps_module = module is not None and getattr(function, "__wrapped__", None) is module
    return f"{type(module).__name__}.forward" if wraps_module else function.__qualname__


@functools.singledispatch
def _python_function(called: Any) -> tuple[FunctionType, tuple[Any, ...]] | None:
    """Return the Python function that a call runs and its ``self``; None if there is none."""
    return None


@_python_function.register(FunctionType)
def _(called: FunctionType) -> tuple[FunctionType, tuple[Any, ...]]:
    return called, ()


@_python_function.register(MethodType)
def _(called: MethodType) -> tuple[FunctionType, tuple[Any, ...]] | None:
    inner = _python_function(called.__func__)
    return None if inner is None else (inner[0], (called.__self__,))


@_python_function.register(torch.nn.Module)
def _(called: torch.nn.Module) -> tuple[FunctionType, tuple[Any, ...]] | None:
    inner = _python_function(type(called).forward)
    return None if inner is None else (inner[0], (called,))


def _cache_entries(code: CodeType) -> list[Any]:
    return list(debug_get_cache_entry_list(code))


def _compile_id(entry: Any) -> str:
    compile_id = getattr(entry, "compile_id", None)
    return str(compile_id) if compile_id is not None else "?"


def _path_resolver(file: str) -> PathResolver:
    return lambda end: file if file.endswith(end.removeprefix("...")) else None


def _materialize(value: Any) -> Any:
    """Materialize a ``TensorSpec`` as an uninitialized tensor; return other values unchanged."""
    if not isinstance(value, TensorSpec):
        return value
    try:
        tensor = torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=value.device)
    except (RuntimeError, AssertionError) as error:
        raise BadArgument(
            f"torch's guards need a real tensor, and this tensor cannot be created here: {error}"
        ) from None
    if value.is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=value.requires_grad)
    return tensor.requires_grad_(value.requires_grad)


def _frame_locals(function: FunctionType, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the locals of the frame: arguments and closure variables."""
    bound = inspect.signature(function, follow_wrapped=False).bind(*arguments, **keywords)
    bound.apply_defaults()
    scope = dict(bound.arguments)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            scope[name] = cell.cell_contents
    return scope


# Guards.


def _printed_guards(entry: Any, resolve: PathResolver) -> GuardsRecord:
    return parse_guards(str(entry.guard_manager), resolve)


def _leaf_guards(manager: Any) -> Iterator[_LeafGuard]:
    """Yield leaf guards as printed: a value's own guards, then those of its children."""
    seen: list[Any] = []
    yield from _manager_guards(manager.root, "", seen)
    for guard in getattr(manager.root, "get_epilogue_lambda_guards", list)():
        yield from (_LeafGuard(guard, "") for _ in guard.verbose_code_parts())


def _manager_guards(manager: Any, source: str, seen: list[Any]) -> Iterator[_LeafGuard]:
    for guard in manager.get_leaf_guards():
        if isinstance(guard, _RELATIONAL_GUARDS):
            if any(guard is s for s in seen):
                continue
            seen.append(guard)
        yield from (_LeafGuard(guard, source) for _ in guard.verbose_code_parts())
    if hasattr(manager, "get_key_value_managers"):
        for _, pair in sorted(manager.get_key_value_managers().items()):
            for child in pair:
                if child:
                    yield from _manager_guards(child, child.get_source(), seen)
    for child in manager.get_child_managers():
        yield from _manager_guards(child, child.get_source(), seen)


def _evaluate_guard(
    leaf: _LeafGuard, manager: Any, scope: Mapping[str, Any], *, is_hit: bool
) -> tuple[bool | None, str]:
    """Return whether a guard passes (None: it cannot be evaluated alone) and its actual value."""
    value = _read_source(leaf.source, manager, scope)
    if value is _MISSING_VALUE:
        return False, "the value does not exist"
    actual = describe_value(value) if leaf.source else ""
    if is_hit:
        return True, actual
    if isinstance(leaf.guard, _RELATIONAL_GUARDS):
        return None, actual
    try:
        return bool(leaf.guard(value)), actual
    except Exception:
        return None, actual


def _read_source(source: str, manager: Any, scope: Mapping[str, Any]) -> Any:
    """Read the value of a guard's source expression, as the guard does."""
    if not source:
        return dict(scope)
    names = {"L": scope, **manager.closure_vars}
    try:
        return eval(source, dict(manager.global_scope), names)
    except Exception:
        return _MISSING_VALUE


def _verdict(passed: bool | None, index: int, failed: int) -> Verdict:
    if passed is None:
        return "not reached"
    if index == failed:
        return "fail"
    if failed < 0 or index < failed:
        return "pass"
    return "would pass" if passed else "would fail"


def describe_value(value: Any) -> str:
    """Describe a value briefly, without running user code."""
    if isinstance(value, torch.Tensor):
        grad = ", requires grad" if value.requires_grad else ""
        stride = f", stride {list(value.stride())}" if value.layout is torch.strided else ""
        return f"{short_dtype(value.dtype)}{list(value.shape)} on {value.device}{stride}{grad}"
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)[:80]
    if type(value) in (list, tuple, dict, set):
        return f"{type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _guard_failure(
    entry: str,
    check: Any,
    guards: tuple[GuardRecord, ...],
    failed: int,
    results: tuple[GuardResult, ...],
    resolve: PathResolver,
) -> GuardFailure:
    """Return torch's failure reason with the failing guard, if the walk found it."""
    parts = [str(p) for p in check.verbose_code_parts] or ["a guard failed"]
    (reason,) = parse_recompile_reasons(f"{entry}: {parts[0]}", resolve)
    guard = guards[failed] if failed >= 0 else None
    actual = reason.actual or (results[failed].actual if failed >= 0 else "")
    span = (guard.span if guard else None) or reason.span
    return GuardFailure(
        entry, guard.id if guard else "", reason.source, reason.kind, reason.expected, actual, reason.sentence, span, reason.fixes, results
    )  # fmt: skip
