"""Grad modes and autocast as graph nodes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import STACK_PARAM_PREFIX, Source
from engine.ir.sources.roots import LocalSource
from engine.trace.codegen_runtime.torch_contexts import (
    exit_autocast,
    make_context,
    make_grad_context,
    wrap_in_grad_mode,
)
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.torch_api.torch_functions import guard_global_state

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


class ContextMethodVariable(BuiltinMethodVariable):
    """A method of a context in the graph. If the graph raises, the context counts as exited."""

    __slots__ = ()

    is_in_graph = True


class GradModeVariable(Variable):
    """``no_grad()``, ``enable_grad()`` or ``set_grad_enabled(mode)``, as context or decorator."""

    __slots__ = ("cls", "mode", "previous_modes")

    is_mutable = True

    def __init__(self, cls: type, mode: bool) -> None:
        self.cls = cls
        self.mode = mode
        self.previous_modes: list[bool] = []

    def python_type(self) -> type:
        return self.cls

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__", "__call__", "clone"):
            return ContextMethodVariable(self, name)
        if name == "__class__":
            return tx.wrap_static(self.cls)
        if name == "prev" and self.previous_modes:
            return ConstantVariable(self.previous_modes[-1])
        if name == "mode" and self.cls is torch.set_grad_enabled:
            return ConstantVariable(self.mode)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name == "__enter__":
            self.previous_modes.append(torch.is_grad_enabled())
            set_grad_mode(tx, self.mode)
            return NONE
        if name == "__exit__":
            set_grad_mode(tx, self.previous_modes.pop())
            return NONE
        if name == "clone":
            return GradModeVariable(self.cls, self.mode)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        return ContextDecoratedFunctionVariable(self, realize(tx, args[0]))

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_helper(make_grad_context, 0)
        cg.load_const(self.cls)
        cg.load_const(self.mode)
        cg.load_const(self.previous_modes[-1] if self.previous_modes else None)
        cg.body.call(3)


class ContextDecoratedFunctionVariable(Variable):
    """A function decorated with a context in traced code."""

    __slots__ = ("context", "function")

    def __init__(self, context: Variable, function: Variable) -> None:
        self.context = context
        self.function = function

    def python_type(self) -> type:
        return self.function.python_type()

    def child_variables(self) -> list[Variable]:
        return [self.context, self.function]

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        own = self.context.call_method(tx, "clone", [], {})
        own.call_method(tx, "__enter__", [], {})
        try:
            return self.function.call(tx, args, kwargs)
        finally:
            own.call_method(tx, "__exit__", [NONE, NONE, NONE], {})

    def reconstruct(self, cg: PyCodegen) -> None:
        if isinstance(self.context, GradModeVariable):  # other decorating contexts are called as they are
            cg.load_helper(wrap_in_grad_mode, 0)
            cg.load_const(self.context.mode)
            cg.load(self.function)
            cg.body.call(2)
            return
        cg.body.callable(lambda: cg.load(self.context))
        cg.load(self.function)
        cg.body.call(1)


def set_grad_mode(tx: Tracer, mode: bool) -> None:
    """Set grad mode in the graph and for fake evaluation.

    The second of two adjacent switches removes the first.
    """
    guard_global_state(tx, "grad_mode", tx.torch_state.entry_global_state["grad_mode"])
    tx.side_effects.mutation_count += 1
    if torch.is_grad_enabled() == mode:
        return
    last = next(iter(reversed(tx.graph.graph.nodes)), None)
    if last is not None and last.target is torch._C._set_grad_enabled and not last.users:
        tx.graph.erase_last_node(last)
    else:
        node = tx.graph.create_node("call_function", torch._C._set_grad_enabled, (mode,), {}, tx.node_provenance())
        node.meta["example_value"] = None
    torch._C._set_grad_enabled(mode)


@register_builder(torch.no_grad, torch.enable_grad)
def _grad_context(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it is entered")
    return _with_previous_mode(tx, GradModeVariable(type(real), isinstance(real, torch.enable_grad)), real, origin)


@register_builder(torch.set_grad_enabled)
def _grad_enabled_context(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it is entered")
    tx.add_guard(EqualsMatch(AttrSource(origin, "mode"), real.mode, cause=tx.guard_cause("grad mode is set to it")))
    return SetGradEnabledVariable(
        _with_previous_mode(tx, GradModeVariable(torch.set_grad_enabled, real.mode), real, origin)
    )


def _with_previous_mode(tx: Tracer, context: GradModeVariable, real: Any, origin: Source) -> GradModeVariable:
    """Record the grad mode that exiting a real context restores, with a guard."""
    before = getattr(real, "prev", None)
    if before is not None:
        tx.add_guard(
            EqualsMatch(
                AttrSource(origin, "prev"), before, cause=tx.guard_cause("leaving the context sets grad mode to it")
            )
        )
        context.previous_modes.append(before)
        root = origin.chain()[0]
        if isinstance(root, LocalSource) and root.variable_name.startswith(STACK_PARAM_PREFIX):
            tx.torch_state.resumed_grad_modes[int(root.variable_name.removeprefix(STACK_PARAM_PREFIX))] = before
    return context


def _register_grad_context(cls: Any, mode: bool) -> None:
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        context = GradModeVariable(cls, mode)
        return context.call(tx, args, {}) if args else context

    register_rule(cls)(rule)


_register_grad_context(torch.no_grad, False)
_register_grad_context(torch.enable_grad, True)


@register_rule(torch.set_grad_enabled)
def _set_grad_enabled(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    mode = bool(realize(tx, args[0] if args else kwargs["mode"]).is_truthy(tx))
    context = GradModeVariable(torch.set_grad_enabled, mode)
    # the constructor sets the mode at once; __enter__ sets the same mode again
    context.previous_modes.append(torch.is_grad_enabled())
    set_grad_mode(tx, mode)
    return SetGradEnabledVariable(context)


@register_rule(torch._C._set_grad_enabled)
def _set_grad_enabled_c(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    set_grad_mode(tx, bool(realize(tx, args[0]).is_truthy(tx)))
    return NONE


class SetGradEnabledVariable(Variable):
    """``torch.set_grad_enabled(mode)``, effective from its construction."""

    __slots__ = ("context",)

    def __init__(self, context: GradModeVariable) -> None:
        self.context = context

    def python_type(self) -> type:
        return torch.set_grad_enabled

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__", "__call__"):
            return ContextMethodVariable(self, name)
        return self.context.get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name == "__enter__":
            set_grad_mode(tx, self.context.mode)
            return NONE
        if name == "__exit__":
            set_grad_mode(tx, self.context.previous_modes[-1])
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """Decorate a function, and undo the switch of the constructor."""
        set_grad_mode(tx, self.context.previous_modes[-1])
        return self.context.call(tx, args, kwargs)

    def child_variables(self) -> list[Variable]:
        return [self.context]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.context)


class AutocastModeVariable(Variable):
    """``torch.autocast(...)``."""

    __slots__ = ("active", "arguments")

    is_mutable = True

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.active: list[tuple[Any, torch.fx.Node]] = []

    def python_type(self) -> type:
        return torch.autocast

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__", "clone"):
            return ContextMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        tx.side_effects.mutation_count += 1
        if name == "clone":
            return AutocastModeVariable(self.arguments)
        if name == "__enter__":
            real = torch.autocast(**self.arguments)
            words = (real.device, real.fast_dtype, real._enabled, real._cache_enabled)
            node = tx.graph.create_node(
                "call_function", torch.amp.autocast_mode._enter_autocast, words, {}, tx.node_provenance()
            )
            node.meta["example_value"] = None
            real.__enter__()
            tx.torch_state.contexts_to_exit.append(real)
            tx.torch_state.open_graph_contexts.append((self, node))
            self.active.append((real, node))
            return NONE
        if name == "__exit__":
            real, entered = self.active.pop()
            tx.torch_state.open_graph_contexts.remove((self, entered))
            self.emit_exit(tx, entered)
            real.__exit__(None, None, None)
            tx.torch_state.contexts_to_exit.remove(real)
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def emit_exit(self, tx: Tracer, entered: torch.fx.Node) -> None:
        """Emit the node that exits what ``entered`` entered."""
        node = tx.graph.create_node(
            "call_function", torch.amp.autocast_mode._exit_autocast, (entered,), {}, tx.node_provenance()
        )
        node.meta["example_value"] = None

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        return ContextDecoratedFunctionVariable(self, realize(tx, args[0]))

    def reconstruct(self, cg: PyCodegen) -> None:
        if len(self.active) > 1:
            raise Unsupported("context-manager", "autocast is entered twice")
        cg.load_helper(make_context, 0)
        cg.load_const(torch.autocast)
        cg.load_const(bool(self.active))
        cg.load_const(tuple(self.arguments))
        for value in self.arguments.values():
            cg.load_const(value)
        cg.body.call(3 + len(self.arguments))


def emit_context_exits(tx: Tracer) -> None:
    """Exit all open contexts at the end of the graph; code after the graph enters them again."""
    for of, entered in reversed(tx.torch_state.open_graph_contexts):
        of.emit_exit(tx, entered)


@register_rule(torch.autocast, torch.amp.autocast)
def _autocast(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    names = ("device_type", "dtype", "enabled", "cache_enabled")
    words = dict(zip(names, tx.as_python_constants(args), strict=False))
    words.update(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return AutocastModeVariable(words)


def _register_device_autocast(make: Any, device: str) -> None:
    """Register the legacy autocast class of a device, which takes ``enabled`` or dtype first."""

    @register_rule(make)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        words = dict(zip(("enabled", "dtype", "cache_enabled"), tx.as_python_constants(args), strict=False))
        words.update(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
        default = torch.bfloat16 if device == "cpu" else torch.float16
        return AutocastModeVariable({"device_type": device, "dtype": default, **words})


for _device in ("cpu", "cuda"):
    _register_device_autocast(getattr(getattr(torch, _device).amp, "autocast"), _device)  # noqa: B009


@register_builder(torch.autocast)
def _autocast_context(tx: Tracer, real: Any, origin: Source) -> Variable:
    """Build the variable of an existing autocast instance, of a decorator or reused."""
    tx.guard_type(real, origin, "it is entered")
    fields = {"device_type": "device", "dtype": "fast_dtype", "enabled": "_enabled", "cache_enabled": "_cache_enabled"}
    words: dict[str, Any] = {}
    for name, field in fields.items():
        words[name] = getattr(real, field)
        tx.add_guard(
            EqualsMatch(AttrSource(origin, field), words[name], cause=tx.guard_cause("autocast is switched to it"))
        )
    if hasattr(real, "prev"):
        return _EnteredAutocastVariable(tx, real, origin, words)
    return AutocastModeVariable(words)


class _EnteredAutocastVariable(AutocastModeVariable):
    """An autocast context that was entered before the frame, such as before a graph break.

    A node that restores the previous state exits it.
    """

    __slots__ = ("_entered_source", "previous_state", "source")

    def __init__(self, tx: Tracer, real: Any, source: Source, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.source = source
        self.previous_state = (real.device, real.prev, real.prev_fastdtype, real.prev_cache_enabled)
        self._entered_source = source

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name != "__exit__" or self.active:
            self.source = None  # after another entry the real instance is outdated: reconstruct a new one
            return super().call_method(tx, name, args, kwargs)
        for field, value in zip(("prev", "prev_fastdtype", "prev_cache_enabled"), self.previous_state[1:], strict=True):
            why = "leaving the context sets autocast to it"
            tx.add_guard(EqualsMatch(AttrSource(self._entered_source, field), value, cause=tx.guard_cause(why)))
        tx.side_effects.mutation_count += 1
        target = GraphCallable(
            "exit_autocast", functools.partial(exit_autocast, *self.previous_state), changes_state=True
        )
        node = tx.graph.create_node("call_function", target, (), {}, tx.node_provenance())
        node.meta["example_value"] = None
        exit_autocast(*self.previous_state)
        tx.torch_state.contexts_to_exit.append(_RestoreAutocastNesting())
        return NONE


class _RestoreAutocastNesting:
    """Restores autocast's nesting counter when tracing ends."""

    def __exit__(self, *_: object) -> None:
        torch.autocast_increment_nesting()


def _register_unbound_method(name: str, *classes: Any) -> None:
    """Register a context method called through its class: ``no_grad.__enter__(context)``.

    ``ExitStack`` calls it like this, and so does code after a graph break.
    """

    @register_rule(*(getattr(cls, name) for cls in classes))
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        of = realize(tx, args[0])
        if not isinstance(of, (GradModeVariable, SetGradEnabledVariable, AutocastModeVariable)):
            raise of.unsupported(f"{name} of a context", "context-manager")
        return of.call_method(tx, name, args[1:], kwargs)


for _name in ("__enter__", "__exit__"):
    _register_unbound_method(_name, torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.autocast)
