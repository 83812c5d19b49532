"""Rules for functions that query torch's global state, symbolic shapes and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api import backend_flags
from engine.trace.variables.torch_api.torch_functions import guard_global_state

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


_QUERIES: dict[Callable[[], Any], str] = {
    torch.are_deterministic_algorithms_enabled: "deterministic",
    torch.is_deterministic_algorithms_warn_only_enabled: "deterministic_warn_only",
    torch._C._get_deterministic_algorithms_warn_only: "deterministic_warn_only",
    torch._C._get_float32_matmul_precision: "float32_matmul_precision",
    torch.is_anomaly_enabled: "anomaly",
    torch.is_autocast_cache_enabled: "autocast",
    torch.cuda.device_count: "cuda_devices",
    torch.cuda.is_initialized: "cuda_initialized",
    torch.get_default_dtype: "default_dtype",
    torch.is_grad_enabled: "grad_mode",
    torch.is_inference_mode_enabled: "inference_mode",
}
"""Functions that read global state, each with the name of the guarded state."""


def register_state_query(ask: Callable[[], Any], state: str) -> None:
    """Register a function without arguments that reads a piece of guarded global state."""

    @register_rule(ask)
    def read(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        guard_global_state(tx, state, GLOBAL_STATES[state].read())
        return ConstantVariable(ask())


for _ask, _state in _QUERIES.items():
    register_state_query(_ask, _state)


@register_rule(torch._C._dispatch_keys)
def _dispatch_keys(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Return the dispatch keys of a plain tensor; they follow from dtype and device."""
    of = realize(tx, args[0])
    if of.fake is None or of.python_type() not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported("torch-internals", "torch._C._dispatch_keys is called")
    fake = of.fake
    if fake.device.type not in ("cpu", "cuda") or fake.is_inference() or fake.is_conj() or fake.is_neg():
        raise Unsupported("torch-internals", "torch._C._dispatch_keys is called")
    return ConstantVariable(torch._C._dispatch_keys(torch.empty(0, dtype=fake.dtype, device=fake.device)))


def _register_dispatch_key_query(ask: Callable[[], Any]) -> None:
    @register_rule(ask)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        for state in ("inference_mode", "autocast", "dispatch_modes", "functorch"):
            guard_global_state(tx, state, tx.torch_state.entry_global_state[state])
        if tx.torch_state.entry_global_state["functorch"] is not None:
            raise Unsupported("global-state", "dispatch keys are read inside a torch.func transform")
        return ConstantVariable(ask())


for _ask_keys in (torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set):
    _register_dispatch_key_query(_ask_keys)


@register_rule(torch.accelerator.current_accelerator)
def _current_accelerator(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    named = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return tx.fold_constant(torch.accelerator.current_accelerator, *tx.as_python_constants(args), **named)


@register_rule(torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
def _is_capturing(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    if torch.xpu.is_available():
        raise Unsupported("torch-internals", "torch.cuda.is_current_stream_capturing is called")
    if torch.cuda.is_available():
        guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
    return ConstantVariable(GLOBAL_STATES["capturing"].read())


def _register_capture_health_check(name: str) -> None:
    if (check := vars(torch.optim.Optimizer).get(name)) is None:
        return

    @register_rule(check)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Guard the capture state, which optimizers check before each step.

        They raise if they cannot be captured in a CUDA graph.
        """
        if torch.accelerator.is_available():
            guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
            if not torch.cuda.is_available() or GLOBAL_STATES["capturing"].read():
                raise Unsupported("torch-internals", "torch.cuda.is_current_stream_capturing is called")
        return NONE


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    _register_capture_health_check(_name)


@register_rule(torch.get_device_module)
def _device_module(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    given, named = tx.as_python_constants(args), dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    try:
        return tx.wrap_static(torch.get_device_module(*given, **named))
    except (RuntimeError, TypeError) as error:
        raise tx.make_user_exception(error) from error


@register_rule(torch.accelerator.is_available)
def _is_accelerated(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(torch.accelerator.is_available())


@register_rule(torch.get_autocast_dtype)
def _autocast_dtype(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.torch_state.entry_global_state["autocast"])
    return tx.fold_constant(torch.get_autocast_dtype, *tx.as_python_constants([*args, *kwargs.values()]))


@register_rule(torch.overrides.is_tensor_like)
def _is_tensor_like(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    kind = realize(tx, args[0]).python_type()
    return ConstantVariable(issubclass(kind, torch.Tensor) or hasattr(kind, "__torch_function__"))


@register_rule(torch.get_autocast_gpu_dtype)
def _autocast_gpu_dtype(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "autocast", tx.torch_state.entry_global_state["autocast"])
    return ConstantVariable(torch.get_autocast_gpu_dtype())


@register_rule(torch._C._are_functorch_transforms_active)
def _are_functorch_transforms_active(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    guard_global_state(tx, "functorch", tx.torch_state.entry_global_state["functorch"])
    return ConstantVariable(tx.torch_state.entry_global_state["functorch"] is not None)


@register_rule(torch.autograd._is_checkpoint_valid)
def _checkpoint_valid(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    return ConstantVariable(bool(torch.autograd._is_checkpoint_valid()))


class BackendFlagsVariable(RealObjectVariable):
    """``torch.backends.cuda.matmul``. Each read of a flag is guarded."""

    __slots__ = ()

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        try:
            found = getattr(self.real_object, name)
        except AttributeError as error:
            raise tx.make_user_exception(error) from error
        return backend_flags.read_flag(tx, self.real_object, name, found)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if not hasattr(self.real_object, name):
            super().set_attr(tx, name, value)
        backend_flags.write_flag(tx, self.real_object, name, value)


@register_builder(type(torch.backends.cuda.matmul))
def _matmul_flags(tx: Tracer, real: Any, origin: Source) -> Variable:
    return BackendFlagsVariable(real, ConstantSource(real, "torch.backends.cuda.matmul"))
