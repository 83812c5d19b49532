"""Calls user hooks and autograd.Function backwards as torch's engine does.

For invalid results, torch raises its own errors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.autograd.function import BackwardCFunction

from engine.autograd.graph_ops import check_saved_versions
from engine.autograd.hook_tracking import running_function


class SavedTensorsContext:
    """Proxy of an autograd.Function's ctx with the saved tensors of the captured graph.

    All other attributes come from the real ctx.
    """

    __slots__ = ("_engine_check", "_engine_context", "_engine_saved")

    def __init__(self, context: Any, saved: Sequence[Any], check: Callable[[], None]) -> None:
        object.__setattr__(self, "_engine_context", context)
        object.__setattr__(self, "_engine_saved", tuple(saved))
        object.__setattr__(self, "_engine_check", check)

    @property  # type: ignore[misc]  # intentionally read-only
    def __class__(self) -> Any:
        """Class of the real ctx, so that ``isinstance`` works."""
        return type(self._engine_context)

    def __eq__(self, other: object) -> bool:
        return self._engine_context is (other._engine_context if type(other) is type(self) else other)

    def __hash__(self) -> int:
        return hash(self._engine_context)

    def _engine_release_saved(self) -> None:
        """Release the saved tensors after the backward; later reads go to the real ctx."""
        object.__setattr__(self, "_engine_saved", None)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Tensors that the forward saved; raises if one was changed in place."""
        if self._engine_saved is None:
            return cast("tuple[Any, ...]", self._engine_context.saved_tensors)
        self._engine_check()
        return self._engine_saved  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine_context, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine_context, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._engine_context, name)


@functools.cache
def _context_class(name: str) -> type[SavedTensorsContext]:
    """Return a context class with the name that the user's ``ctx`` has in eager."""
    return type(name, (SavedTensorsContext,), {"__slots__": ()})


def python_backward(
    context: Any,
    saved: Sequence[Any],
    present: Sequence[bool],
    grads: Sequence[Any],
    versions: Sequence[int] = (),
    positions: Sequence[int] = (),
) -> tuple[Any, ...]:
    """Run an autograd.Function's backward; return a gradient per argument of its forward.

    ``present``: for each argument, True if it is a tensor.
    ``versions``, ``positions``: if user code ran before, the version of each input, and the input index of each
    saved tensor.

    Raises:
        RuntimeError: It returned a wrong number of gradients, or a value that is no gradient; torch's own message.
    """

    def check() -> None:
        if positions:
            check_saved_versions(versions, positions, [t for t in saved if t is not None])

    own_context = _context_class(type(context).__name__)(context, saved, check)
    with running_function(own_context):
        gradients = BackwardCFunction.apply(own_context, *grads)  # type: ignore[arg-type]
    own_context._engine_release_saved()
    results = gradients if isinstance(gradients, tuple) else (gradients,)
    if len(results) == len(present) and all(
        r is None or (is_defined and isinstance(r, torch.Tensor))
        for r, is_defined in zip(results, present, strict=True)
    ):
        return results
    _raise_for_python_function(context, present, gradients)
    return tuple(results[: len(present)])


def tensor_hook(hook: Callable[..., Any], value: Any) -> Any:
    """Run a tensor hook; return its result, or the gradient if it returns None.

    Raises:
        RuntimeError, TypeError: The result is invalid; torch's own message.
    """
    result = hook(value)
    if result is None:
        return value
    if not _has_same_metadata(result, value):
        _raise_for_tensor_hook(hook, value, result)
    return result


def pre_hook(hook: Callable[..., Any], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a node's pre-hook on the incoming gradients. Raises as ``tensor_hook``."""
    return _check_hook_results(hook, hook(values), values, "register_prehook")


def post_hook(hook: Callable[..., Any], results: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run a node's post-hook on outgoing and incoming gradients. Raises as ``tensor_hook``."""
    return _check_hook_results(hook, hook(results, values), results, "register_hook")


def post_acc_grad_hook(hook: Callable[..., Any], variable: torch.Tensor) -> None:
    """Run a leaf's hook after its ``.grad`` is written; its result is only checked.

    Raises as ``tensor_hook``.
    """
    result = hook(variable)
    if result is not None and not _has_same_metadata(result, variable):
        probe = torch.zeros_like(variable).detach().requires_grad_()
        probe.register_post_accumulate_grad_hook(_ReplayedHookResult(hook, result))
        with _without_anomaly_mode():
            probe.backward(torch.zeros_like(probe))


def unpack_hook(hook: Callable[..., Any], packed: Any) -> Any:
    """Unpack a saved tensor.

    Raises:
        TypeError: The hook returned no tensor; torch's own message.
    """
    result = hook(packed)
    if not isinstance(result, torch.Tensor):
        probe = torch.zeros((), requires_grad=True)
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, _ReplayedHookResult(hook, result)),
            torch.enable_grad(),
        ):
            probe_result = probe.exp()
        with _without_anomaly_mode():
            probe_result.backward()
    return result


HOOK_RUNNERS: dict[str, Callable[..., Any]] = {
    "tensor_pre_hook": tensor_hook,
    "pre_hook": pre_hook,
    "post_hook": post_hook,
    "post_acc_grad_hook": post_acc_grad_hook,
    "unpack_hook": unpack_hook,
}


def _has_same_metadata(result: Any, value: Any) -> bool:
    return (
        type(result) is torch.Tensor
        and type(value) is torch.Tensor
        and result.dtype is value.dtype
        and result.shape == value.shape
        and result.device == value.device
        and result.layout is value.layout
    )


def _check_hook_results(
    hook: Callable[..., Any], results: Any, values: tuple[Any, ...], register: str
) -> tuple[Any, ...]:
    if results is None:
        return values
    is_tuple = type(results) is tuple and len(results) == len(values)
    if is_tuple and all(r is v or _has_same_metadata(r, v) for r, v in zip(results, values, strict=True)):
        return tuple(results)
    _raise_for_node_hook(hook, values, results, register)
    return tuple(results)


def _without_anomaly_mode() -> contextlib.AbstractContextManager[Any]:
    """Disable anomaly mode, which would report the stack of the probe node."""
    return torch.autograd.set_detect_anomaly(False)


class _ReplayedHookResult:
    """Hook with the name and the result of a user hook, so that torch raises its own error."""

    def __init__(self, hook: Any, result: Any) -> None:
        self._result = result
        name = getattr(hook, "__name__", None)
        if name is not None:
            self.__name__ = name

    def __call__(self, *values: Any) -> Any:
        return self._result


def _raise_for_tensor_hook(hook: Callable[..., Any], value: Any, result: Any) -> None:
    if not isinstance(value, torch.Tensor):
        return
    probe = torch.zeros_like(value).requires_grad_()
    probe.register_hook(_ReplayedHookResult(hook, result))
    with _without_anomaly_mode():
        torch.autograd.grad(probe, probe, value)


class _Identity(torch.autograd.Function):
    """Identity in forward and backward; undefined gradients stay so."""

    @staticmethod
    def forward(ctx: Any, *values: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(v.clone() for v in values)

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        return grads


def _raise_for_node_hook(hook: Callable[..., Any], values: tuple[Any, ...], results: Any, register: str) -> None:
    probes = [torch.zeros(()) if v is None else torch.zeros_like(v) for v in values]
    with torch.enable_grad():
        output: Any = cast("Any", _Identity).apply(*[p.requires_grad_() for p in probes])
    outputs = output if isinstance(output, tuple) else (output,)
    getattr(outputs[0].grad_fn, register)(_ReplayedHookResult(hook, results))
    defined = [n for n, v in enumerate(values) if v is not None]
    with _without_anomaly_mode():
        torch.autograd.grad([outputs[n] for n in defined], probes, [values[n] for n in defined], allow_unused=True)


def _raise_for_python_function(context: Any, present: Sequence[bool], results: Any) -> None:
    name = type(context).__name__.removesuffix("Backward")
    methods = {
        "forward": staticmethod(lambda ctx, *values: torch.zeros(())),
        "backward": staticmethod(lambda ctx, *grads: results),
    }
    function: Any = type(name, (torch.autograd.Function,), methods)
    inputs = [torch.zeros((), requires_grad=True) if is_defined else None for is_defined in present]
    with torch.enable_grad():
        output = function.apply(*inputs)
    with _without_anomaly_mode():
        torch.autograd.grad(output, [g for g in inputs if g is not None], allow_unused=True)
