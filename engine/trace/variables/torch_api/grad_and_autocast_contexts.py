"""Grad modes and autocast as graph nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.frame_code.codegen_runtime.torch_contexts import exit_autocast, make_grad_context, wrap_in_grad_mode
from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.torch_global_state import AUTOCAST_DEVICES, GLOBAL_STATES
from engine.ir.register_once import register_table
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import STACK_PARAM_PREFIX, Source
from engine.ir.sources.roots import LocalSource
from engine.torch_private.autograd import enter_autocast, set_grad_enabled
from engine.torch_private.autograd import exit_autocast as exit_autocast_node
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import append_node, emit_effect, switch_state, undo_after_tracing
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.slotted_type import fresh
from engine.trace.variables.torch_api.context_managers import (
    ContextVariable,
    GraphContextVariable,
    constant_words,
    unbound_context_method,
)
from engine.trace.variables.torch_api.torch_functions import guard_global_state


class GradModeVariable(ContextVariable):
    """``no_grad()``, ``enable_grad()`` or ``set_grad_enabled(mode)``, as context or decorator."""

    cls: type
    mode: bool
    previous_modes: list[bool] = fresh(list)

    methods = ("__enter__", "__exit__", "__call__", "clone")

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "prev" and self.previous_modes:
            return ConstantVariable(self.previous_modes[-1])
        if name == "mode" and self.cls is torch.set_grad_enabled:
            return ConstantVariable(self.mode)
        return super().get_attr(tx, name)

    def enter(self, tx: Tracer) -> Variable:
        self.is_loaded_by_source = False
        self.previous_modes.append(torch.is_grad_enabled())
        set_grad_mode(tx, self.mode)
        return NONE

    def exit(self, tx: Tracer) -> Variable:
        self.is_loaded_by_source = False
        set_grad_mode(tx, self.previous_modes.pop())
        return NONE

    def clone(self) -> Variable:
        return GradModeVariable(self.cls, self.mode)

    def reconstruct(self, cg: PyCodegen) -> None:
        mode_before = self.previous_modes[-1] if self.previous_modes else None
        cg.call(make_grad_context, self.cls, self.mode, mode_before)

    def reconstruct_decorated(self, cg: PyCodegen, function: Variable) -> None:
        cg.call(wrap_in_grad_mode, self.mode, function)


def set_grad_mode(tx: Tracer, mode: bool) -> None:
    """Set grad mode in the graph and for fake evaluation.

    The second of two adjacent switches removes the first.
    """
    guard_global_state(tx, "grad_mode", tx.torch_state.entry_global_state["grad_mode"])
    tx.side_effects.mutation_count += 1
    if torch.is_grad_enabled() == mode:
        return
    last = next(iter(reversed(tx.graph.graph.nodes)), None)
    if last is not None and last.target is set_grad_enabled and not last.users:
        tx.graph.erase_last_node(last)
    else:
        append_node(tx, set_grad_enabled, (mode,))
    set_grad_enabled(mode)


_GRAD_MODES: dict[Any, bool] = {torch.no_grad: False, torch.enable_grad: True}


@register_builder(*_GRAD_MODES, why="it is entered")
def _grad_context(tx: Tracer, real: Any, source: Source) -> Variable:
    return _with_previous_mode(tx, GradModeVariable(type(real), _GRAD_MODES[type(real)]), real, source)


@register_builder(torch.set_grad_enabled, why="it is entered")
def _grad_enabled_context(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard(EqualsMatch, AttrSource(source, "mode"), real.mode, why="grad mode is set to it")
    return _with_previous_mode(tx, SetGradEnabledVariable(torch.set_grad_enabled, real.mode), real, source)


def _with_previous_mode(tx: Tracer, context: GradModeVariable, real: Any, source: Source) -> GradModeVariable:
    """Record the grad mode that exiting a real context restores, with a guard."""
    context.source = source
    mode_before = getattr(real, "prev", None)
    if mode_before is not None:
        tx.guard(EqualsMatch, AttrSource(source, "prev"), mode_before, why="leaving the context sets grad mode to it")
        context.previous_modes.append(mode_before)
        root = source.chain()[0]
        if isinstance(root, LocalSource) and root.variable_name.startswith(STACK_PARAM_PREFIX):
            tx.torch_state.resumed_grad_modes[int(root.variable_name.removeprefix(STACK_PARAM_PREFIX))] = mode_before
    return context


@register_table(register_rule, _GRAD_MODES)
def _grad_mode_context(cls: Any, mode: bool, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    context = GradModeVariable(cls, mode)
    return context.call(tx, args, {}) if args else context


@register_rule(torch.set_grad_enabled)
def _set_grad_enabled(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) + len(kwargs) != 1 or not kwargs.keys() <= {"mode"}:
        tx.fold_constant(torch.set_grad_enabled, *[None] * len(args), **dict.fromkeys(kwargs))  # it raises
    mode = _wanted_mode(tx, args[0] if args else kwargs["mode"])
    context = SetGradEnabledVariable(torch.set_grad_enabled, mode)
    # the constructor sets the mode at once; __enter__ sets the same mode again
    context.previous_modes.append(torch.is_grad_enabled())
    set_grad_mode(tx, mode)
    return context


@register_rule(set_grad_enabled)
def _set_grad_enabled_c(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    set_grad_mode(tx, _wanted_mode(tx, args[0]))
    return NONE


def _wanted_mode(tx: Tracer, mode: Variable) -> bool:
    """Return the mode that the user passed; torch's C++ code takes a bool only."""
    value = realize(tx, mode)
    if value.python_type() is not bool:
        name = value.python_type().__name__
        tx.raise_type_error(f"set_grad_enabled(): argument 'enabled' (position 1) must be bool, not {name}")
    return bool(value.is_truthy(tx))


class SetGradEnabledVariable(GradModeVariable):
    """``torch.set_grad_enabled(mode)``, effective from its construction."""

    def enter(self, tx: Tracer) -> Variable:
        set_grad_mode(tx, self.mode)
        return NONE

    def exit(self, tx: Tracer) -> Variable:
        set_grad_mode(tx, self.previous_modes[-1])
        return NONE

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        """Decorate a function, and undo the switch of the constructor."""
        set_grad_mode(tx, self.previous_modes[-1])
        return self.clone().call(tx, args, kwargs)


class AutocastModeVariable(GraphContextVariable):
    """``torch.autocast(...)``."""

    readable = ()

    def describe(self) -> str:
        return "autocast"

    def emit_enter(self, tx: Tracer, real: Any, displayed: dict[str, Any] | None = None) -> torch.fx.Node:
        settings = (real.device, real.fast_dtype, real._enabled, real._cache_enabled)
        return append_node(tx, enter_autocast, settings)

    def emit_exit(self, tx: Tracer, entered: torch.fx.Node) -> None:
        append_node(tx, exit_autocast_node, (entered,))


@register_rule(torch.autocast, torch.amp.autocast)
def _autocast(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    names = ("device_type", "dtype", "enabled", "cache_enabled")
    guard_global_state(tx, "autocast_settings", GLOBAL_STATES["autocast_settings"].read())
    return AutocastModeVariable(torch.autocast, constant_words(tx, names, args, kwargs))


@register_table(register_rule, {getattr(getattr(torch, d).amp, "autocast"): d for d in ("cpu", "cuda")})  # noqa: B009
def _device_autocast(make: Any, device: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the legacy autocast class of a device, which takes ``enabled`` first."""
    options = constant_words(tx, ("enabled", "dtype", "cache_enabled"), args, kwargs)
    default = torch.bfloat16 if device == "cpu" else torch.float16
    return AutocastModeVariable(torch.autocast, {"device_type": device, "dtype": default, **options})


@register_builder(torch.autocast, why="it is entered")
def _autocast_context(tx: Tracer, real: Any, source: Source) -> Variable:
    """Build the variable of an existing autocast instance, of a decorator or reused."""
    fields = {"device_type": "device", "dtype": "fast_dtype", "enabled": "_enabled", "cache_enabled": "_cache_enabled"}
    options: dict[str, Any] = {}
    for name, field in fields.items():
        options[name] = getattr(real, field)
        tx.guard(EqualsMatch, AttrSource(source, field), options[name], why="autocast is switched to it")
    if hasattr(real, "prev"):
        return _EnteredAutocastVariable(real, source, options)
    context = AutocastModeVariable(torch.autocast, options)
    context.source = source
    return context


class _EnteredAutocastVariable(AutocastModeVariable):
    """An autocast context that was entered before the frame, such as before a graph break.

    A node that restores the previous state exits it.
    """

    __slots__ = ("previous_state",)

    def __init__(self, real: Any, source: Source, arguments: dict[str, Any]) -> None:
        super().__init__(torch.autocast, arguments)
        self.source = source
        self.previous_state = (real.device, real.prev, real.prev_fastdtype, real.prev_cache_enabled)

    def clone(self) -> Variable:
        self.is_loaded_by_source = False
        return AutocastModeVariable(torch.autocast, self.arguments)

    def exit(self, tx: Tracer) -> Variable:
        if self.active:
            return super().exit(tx)
        assert self.source is not None
        for field, value in zip(("prev", "prev_fastdtype", "prev_cache_enabled"), self.previous_state[1:], strict=True):
            why = "leaving the context sets autocast to it"
            tx.guard(EqualsMatch, AttrSource(self.source, field), value, why=why)
        tx.side_effects.mutation_count += 1
        run = functools.partial(exit_autocast, *self.previous_state)
        append_node(tx, GraphCallable("exit_autocast", run, changes_state=True))
        run()
        undo_after_tracing(tx, torch.autocast_increment_nesting)
        return NONE


for _name in ("__enter__", "__exit__"):
    _classes: tuple[Any, ...] = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.autocast)
    register_rule(*(getattr(cls, _name) for cls in _classes))(unbound_context_method(_name))


_STATES = ("autocast", "autocast_settings", "autocast_nesting")


def _restorer() -> Callable[[], None]:
    """Return a function that restores the present state of autocast."""
    devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
    is_cache_enabled = torch.is_autocast_cache_enabled()

    def restore() -> None:
        for device, enabled, dtype in devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(is_cache_enabled)

    return restore


_SWITCHES: dict[Any, Any] = {
    **dict.fromkeys((torch.set_autocast_enabled, torch.set_autocast_dtype, torch.set_autocast_cache_enabled)),
    **dict.fromkeys((torch.set_autocast_cpu_enabled, torch.set_autocast_cpu_dtype, torch.set_autocast_gpu_dtype)),
    torch.autocast_increment_nesting: torch.autocast_decrement_nesting,
    torch.autocast_decrement_nesting: torch.autocast_increment_nesting,
}


@register_table(register_rule, _SWITCHES)
def _switch_autocast(
    switch: Callable[..., Any], undo: Callable[[], Any] | None, tx: Tracer, args: Args, kwargs: Kwargs
) -> Variable:
    """Change the state of autocast; ``undo`` reverts the change of a counter."""
    run = functools.partial(switch, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))
    for state in _STATES:
        value = tx.torch_state.entry_global_state.setdefault(state, GLOBAL_STATES[state].read())
        guard_global_state(tx, state, value)
    return switch_state(tx, switch.__name__, run, undo or _restorer())


@register_rule(torch.clear_autocast_cache)
def _clear_cache(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Clear the cache in the graph only: while tracing it holds no tensor of the graph."""
    emit_effect(tx, GraphCallable("clear_autocast_cache", torch.clear_autocast_cache, changes_state=True))
    return NONE
