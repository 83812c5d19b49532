"""Rules for functions that read or set torch's global state, attention kernels included."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.backends.cuda
from torch.backends.cuda import SDPAParams

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.torch_global_state import GLOBAL_STATES, SDPA_BACKENDS
from engine.ir.register_once import register_each, register_table
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.torch_private import autograd, global_state
from engine.torch_private.dispatch import dispatch_keys, dispatch_tls_local_exclude_set, dispatch_tls_local_include_set
from engine.torch_private.functorch import are_functorch_transforms_active
from engine.torch_private.global_state import get_deterministic_algorithms_warn_only, get_float32_matmul_precision
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, RealObjectVariable, UserErrors, Variable
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_bound_rule, register_break, register_rule
from engine.trace.variables.torch_api import backend_flags
from engine.trace.variables.torch_api.torch_functions import guard_global_state


def _attention_switches(module: Any, name: str) -> list[Any]:
    """Return the functions that read or set which attention kernels are enabled."""
    functions = (getattr(module, name.format(backend), None) for backend in SDPA_BACKENDS)
    return [function for function in functions if function is not None]


# Reads.

_QUERIES: dict[Callable[..., Any], str] = {
    torch.are_deterministic_algorithms_enabled: "deterministic",
    torch.is_deterministic_algorithms_warn_only_enabled: "deterministic_warn_only",
    get_deterministic_algorithms_warn_only: "deterministic_warn_only",
    get_float32_matmul_precision: "float32_matmul_precision",
    autograd.is_any_autocast_enabled: "autocast",
    torch.is_anomaly_enabled: "anomaly",
    torch.cuda.device_count: "cuda_devices",
    torch.cuda.is_initialized: "cuda_initialized",
    torch.get_default_dtype: "default_dtype",
    torch.is_grad_enabled: "grad_mode",
    torch.is_inference_mode_enabled: "inference_mode",
    torch.is_warn_always_enabled: "warn_always",
    torch.get_num_threads: "threads",
    autograd.is_multithreading_enabled: "multithreading",
    torch.get_autocast_dtype: "autocast_settings",
    torch.get_autocast_cpu_dtype: "autocast_settings",
    torch.get_autocast_gpu_dtype: "autocast_settings",
    torch.is_autocast_cache_enabled: "autocast_settings",
    **dict.fromkeys(
        (
            global_state.get_sdp_priority_order,
            *_attention_switches(global_state, "get_{}_sdp_enabled"),
            *_attention_switches(torch.backends.cuda, "{}_sdp_enabled"),
        ),
        "attention_kernels",
    ),
}
"""Functions that read global state, each with the name of the guarded state."""


@register_table(register_rule, _QUERIES)
def _read_state(ask: Callable[..., Any], state: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    guard_global_state(tx, state, GLOBAL_STATES[state].read())
    return tx.fold_constant(ask, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))


@register_bound_rule(dispatch_keys)
def _dispatch_keys(tx: Tracer, of: Variable) -> Variable:
    """Return the dispatch keys of a plain tensor; they follow from dtype and device."""
    fake = of.fake if of.python_type() in (torch.Tensor, torch.nn.Parameter) else None
    if (
        fake is None
        or fake.device.type not in ("cpu", "cuda")
        or fake.is_inference()
        or fake.is_conj()
        or fake.is_neg()
    ):
        raise Unsupported("torch-internals", "torch._C._dispatch_keys is called")
    return ConstantVariable(dispatch_keys(torch.empty(0, dtype=fake.dtype, device=fake.device)))


@register_each(register_rule, dispatch_tls_local_include_set, dispatch_tls_local_exclude_set)
def _query_dispatch_keys(ask: Callable[[], Any], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    for state in ("inference_mode", "autocast", "dispatch_modes", "functorch"):
        guard_global_state(tx, state, tx.torch_state.entry_global_state[state])
    if tx.torch_state.entry_global_state["functorch"] is not None:
        raise Unsupported("global-state", "dispatch keys are read inside a torch.func transform")
    return ConstantVariable(ask())


@register_rule(torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing)
def _is_capturing(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if torch.xpu.is_available():
        raise Unsupported("torch-internals", "torch.cuda.is_current_stream_capturing is called")
    if torch.cuda.is_available():
        guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
    return ConstantVariable(GLOBAL_STATES["capturing"].read())


def _capture_health_check(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Guard the capture state, which optimizers check before each step.

    They raise if they cannot be captured in a CUDA graph.
    """
    if torch.accelerator.is_available():
        guard_global_state(tx, "capturing", GLOBAL_STATES["capturing"].read())
        if not torch.cuda.is_available() or GLOBAL_STATES["capturing"].read():
            raise Unsupported("torch-internals", "torch.cuda.is_current_stream_capturing is called")
    return NONE


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    if _name in vars(torch.optim.Optimizer):
        register_rule(vars(torch.optim.Optimizer)[_name])(_capture_health_check)


@register_rule(torch.get_device_module)
def _device_module(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    constants, keywords = tx.as_python_constants(args), tx.as_python_keywords(kwargs)
    with UserErrors(tx, RuntimeError, TypeError):
        return tx.wrap_static(torch.get_device_module(*constants, **keywords))


@register_rule(are_functorch_transforms_active)
def _are_functorch_transforms_active(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    guard_global_state(tx, "functorch", tx.torch_state.entry_global_state["functorch"])
    return ConstantVariable(tx.torch_state.entry_global_state["functorch"] is not None)


class BackendFlagsVariable(RealObjectVariable):
    """``torch.backends.cuda.matmul``. Each read of a flag is guarded."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        with UserErrors(tx, AttributeError):
            flag_value = getattr(self.real_object, name)
        return backend_flags.read_flag(tx, self.real_object, name, flag_value)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if not hasattr(self.real_object, name):
            super().set_attr(tx, name, value)
        backend_flags.write_flag(tx, self.real_object, name, value)


@register_builder(type(torch.backends.cuda.matmul))
def _matmul_flags(tx: Tracer, real: Any, source: Source) -> Variable:
    return BackendFlagsVariable(real, ConstantSource(real, "torch.backends.cuda.matmul"))


# Writes.


_SETTABLE_STATES = tuple(
    "default_dtype deterministic deterministic_warn_only float32_matmul_precision attention_kernels".split()
)
"""States that the functions below set. The compiled code guards their values at entry."""


@register_each(
    register_rule,
    torch.set_default_dtype,
    torch.use_deterministic_algorithms,
    torch.set_deterministic_debug_mode,
    torch.set_float32_matmul_precision,
    global_state.set_sdp_priority_order,
    *_attention_switches(global_state, "set_sdp_use_{}"),
    *_attention_switches(torch.backends.cuda, "enable_{}_sdp"),
)
def _set_state(switch: Callable[..., None], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Set a piece of torch's global state to a constant.

    It takes effect while tracing, at whose end the snapshot of the state is restored, and in the graph.
    """
    for state in _SETTABLE_STATES:
        tx.torch_state.entry_global_state.setdefault(state, GLOBAL_STATES[state].read())
    run = functools.partial(switch, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))
    tx.fold_constant(run)
    emit_effect(tx, GraphCallable(switch.__name__, run, changes_state=True))
    return NONE


@register_each(register_rule, autograd.saved_tensors_hooks_disable, autograd.saved_tensors_hooks_enable)
def _switch_in_graph(switch: Callable[..., None], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Set state of autograd in the graph only: it does not matter while tracing."""
    run = functools.partial(switch, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))
    emit_effect(tx, GraphCallable(switch.__name__, run, changes_state=True))
    return NONE


_KERNEL_QUERIES = [
    getattr(torch.backends.cuda, f"can_use_{n}_attention", None) for n in ("flash", "efficient", "cudnn")
]


_KERNEL_QUERY = "a query about attention kernels, which reads the memory of tensors"
register_break("torch-internals", _KERNEL_QUERY, SDPAParams, *filter(None, _KERNEL_QUERIES))
