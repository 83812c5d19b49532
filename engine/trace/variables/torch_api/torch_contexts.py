"""Other torch context managers: graph nodes, or no-ops in the graph."""

from __future__ import annotations

import contextlib
import inspect
from types import FunctionType
from typing import Any

import torch
import torch.backends.cudnn
import torch.backends.mkldnn
import torch.fx
import torch.fx.traceback
import torch.nn.attention
import torch.profiler

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.unwrap_compiled import is_error_on_graph_break_context
from engine.torch_private.dispatch import DisableTorchDispatch
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.inline import inline_call
from engine.trace.variables.base import NONE, TRUE, Args, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callable_registry import RULES_BY_CODE, RULES_BY_NAME, register_bound_rule, register_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.functions import (
    FunctionVariable,
    NestedUserFunctionVariable,
    UserFunctionVariable,
)
from engine.trace.variables.callables.reconstruct_calls import record_call
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.slotted_type import fresh, state
from engine.trace.variables.torch_api import backend_flags
from engine.trace.variables.torch_api.context_managers import (
    ContextDecoratedFunctionVariable,
    ContextVariable,
    GraphContextVariable,
    NullContextVariable,
    constant_words,
    enter_while_tracing,
    exit_while_tracing,
    load_context,
    null_context,
    unbound_context_method,
)


@register_bound_rule(torch.inference_mode)
def _inference_mode(tx: Tracer, mode: Variable = TRUE) -> Variable:
    if not isinstance(mode.as_python_object(), bool):
        return ContextDecoratedFunctionVariable(mode, GraphContextVariable(torch.inference_mode, {"mode": True}))
    return GraphContextVariable(torch.inference_mode, {"mode": mode.as_python_object()})


@register_builder(torch.inference_mode, why="it is entered")
def _inference_context(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard(EqualsMatch, AttrSource(source, "mode"), real.mode, why="inference mode is set to it")
    if getattr(real, "_inference_mode_context", None) is not None:
        raise Unsupported("context-manager", "an inference mode context that was entered outside the function")
    context = GraphContextVariable(torch.inference_mode, {"mode": real.mode})
    context.source = source
    return context


def _register_graph_context(make: Any, kind: type[GraphContextVariable], *names: str) -> None:
    """Register ``make``, with first parameters ``names``, as a context that the graph enters."""

    @register_rule(make)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return kind(make, constant_words(tx, names, args, kwargs))


class SavedTensorsContextVariable(GraphContextVariable):
    """A context for saved tensors of autograd. Only the graph enters it, not the tracer."""

    def real_context(self) -> Any:
        return contextlib.nullcontext()

    def emit_enter(self, tx: Tracer, real: Any, displayed: dict[str, Any] | None = None) -> torch.fx.Node:
        return super().emit_enter(tx, real, {})


class BackendFlagsContextVariable(GraphContextVariable):
    """A context that sets flags of a backend module; they are guarded before."""

    def enter(self, tx: Tracer) -> Variable:
        backend_flags.guard_all_flags(tx, _BACKEND_FLAG_CONTEXTS[self.make])
        return super().enter(tx)


@register_bound_rule(torch.autograd.graph.saved_tensors_hooks)
def _saved_tensors_hooks(tx: Tracer, pack_hook: Variable, unpack_hook: Variable) -> Variable:
    hook_variables = {"pack_hook": pack_hook, "unpack_hook": unpack_hook}
    hooks = {n: real_hook_function(tx, f, "for saved tensors") for n, f in hook_variables.items()}
    return SavedTensorsContextVariable(torch.autograd.graph.saved_tensors_hooks, hooks)


def real_hook_function(tx: Tracer, hook: Variable, when: str) -> Any:
    """Return a hook as a Python object that the graph can hold.

    Raises:
        Unsupported: the hook depends on objects of this call.
    """
    of = realize(tx, hook)
    if isinstance(of, (UserFunctionVariable, BuiltinVariable)) and of.source is not None:
        if not of.source.is_fixed:
            tx.guard_identity(of.real_object, of.source, f"autograd calls it {when}")
        return of.real_object
    if isinstance(of, NestedUserFunctionVariable) and not (
        of.cell_values or of.default_values or of.keyword_default_values
    ):
        names: Any = of.namespace.values
        return FunctionType(of.code, names, of.name)
    raise Unsupported("tensor-hook", f"{of.describe()} is registered as a hook that autograd calls {when}")


_register_graph_context(torch.autograd.graph.save_on_cpu, SavedTensorsContextVariable, "pin_memory", "device_type")
_register_graph_context(torch.autograd.graph.disable_saved_tensors_hooks, SavedTensorsContextVariable, "error_message")
_register_graph_context(torch.nn.attention.sdpa_kernel, GraphContextVariable, "backends", "set_priority")
_register_graph_context(torch.cuda.device, GraphContextVariable, "device")
_BACKEND_FLAG_CONTEXTS: dict[Any, Any] = {
    torch.backends.cudnn.flags: torch.backends.cudnn,
    torch.backends.mkldnn.flags: torch.backends.mkldnn,
}
"""Contexts that set flags of a backend module, and the module."""
for _flags in _BACKEND_FLAG_CONTEXTS:
    _register_graph_context(_flags, BackendFlagsContextVariable, *inspect.signature(_flags).parameters)


class ErrorOnGraphBreakVariable(ContextVariable):
    """``torch._dynamo.error_on_graph_break(raises)``. It adds nothing to the graph.

    The setting is read when a graph break occurs.
    """

    make: type
    raises: bool
    active: list[Any] = fresh(list)
    previous_policy: bool | None = state(None)
    """Setting that the exit restores, if Python entered the context."""

    def python_type(self) -> type:
        return self.make

    def enter(self, tx: Tracer) -> Variable:
        self.source = None
        self.active.append(self._enter_real(tx, self.raises))
        return NONE

    def exit(self, tx: Tracer) -> Variable:
        if self.active:
            exit_while_tracing(tx, self.active.pop())
            return NONE
        if self.source is None:
            raise Unsupported("compiler-api", "error_on_graph_break is exited, but was not entered")
        left: Any = self.make
        if self.previous_policy is not None:
            self._enter_real(tx, self.previous_policy)
        description = "the setting of error_on_graph_break is restored"
        return record_call(tx, description, left.__exit__, [self, NONE, NONE, NONE])

    def clone(self) -> Variable:
        return ErrorOnGraphBreakVariable(self.make, self.raises)

    def _enter_real(self, tx: Tracer, raises: bool) -> Any:
        real = self.make(raises)
        enter_while_tracing(tx, real)
        return real

    def reconstruct(self, cg: PyCodegen) -> None:
        load_context(cg, self.make, bool(self.active), {"error_on_graph_break": self.raises})


@register_builder_if(1, is_error_on_graph_break_context, why="it decides what a graph break does")
def _break_policy(tx: Tracer, real: Any, source: Source) -> Variable:
    raises = AttrSource(source, "error_on_graph_break")
    tx.guard(EqualsMatch, raises, real.error_on_graph_break, why="it decides what a graph break does")
    policy = ErrorOnGraphBreakVariable(type(real), real.error_on_graph_break)
    policy.source = source
    before = getattr(
        real, "prev_error_on_graph_break", None
    )  # a list with one entry per enter; before torch 2.12 only the last one
    policy.previous_policy = next(iter(reversed(before)), None) if isinstance(before, list) else before
    return policy


for _name in ("__enter__", "__exit__"):
    RULES_BY_NAME["torch._dynamo.decorators", _name] = unbound_context_method(_name)
register_rule(torch.profiler.record_function, torch.fx.traceback.annotate, DisableTorchDispatch)(null_context)


_CONTEXT_FACTORIES: dict[Any, Any] = {
    inspect.unwrap(make): make
    for make in (
        torch.fx.traceback.annotate,
        torch.nn.attention.sdpa_kernel,
        torch.autograd.graph.disable_saved_tensors_hooks,
        *_BACKEND_FLAG_CONTEXTS,
    )
}
"""Context factories of ``contextlib.contextmanager`` functions, by generator function."""


def _recreate_context(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Create a new context for each call of a function that the context decorates."""
    of = realize(tx, args[0])
    maker = realize(tx, of.get_attr(tx, "func"))
    if not isinstance(maker, UserFunctionVariable) or maker.real_object not in _CONTEXT_FACTORIES:
        return inline_call(tx, function, args, kwargs)
    if maker.source is not None and not maker.source.is_fixed:
        tx.guard_identity(maker.real_object, maker.source, "it creates the context")
    keywords = tx.unpack_string_mapping(of.get_attr(tx, "kwds"))
    return tx.wrap_static(_CONTEXT_FACTORIES[maker.real_object]).call(
        tx, list(sequence_items(tx, of.get_attr(tx, "args"))), keywords
    )


_recreate = contextlib._GeneratorContextManager._recreate_cm.__code__
RULES_BY_CODE[id(_recreate)] = (_recreate, _recreate_context)


@register_builder(torch.profiler.record_function, why="it is entered")
def _build_null_context(tx: Tracer, real: Any, source: Source) -> Variable:
    return NullContextVariable(source)
