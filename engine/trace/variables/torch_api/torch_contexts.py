"""Other torch context managers: graph nodes, or no-ops in the graph."""

from __future__ import annotations

import contextlib
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.backends.cudnn
import torch.backends.mkldnn
import torch.fx
import torch.fx.traceback
import torch.nn.attention
import torch.profiler

from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.ir.unwrap_compiled import is_error_on_graph_break_context
from engine.trace.codegen_runtime.torch_contexts import enter_context, exit_context, make_context
from engine.trace.exc import Unsupported
from engine.trace.inline import inline_call
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callable_registry import RULES_BY_CODE, RULES_BY_NAME, CallRule, register_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.call_expressions import CallExpressionVariable
from engine.trace.variables.callables.functions import (
    FunctionVariable,
    NestedUserFunctionVariable,
    UserFunctionVariable,
)
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.torch_api import backend_flags
from engine.trace.variables.torch_api.grad_and_autocast_contexts import (
    ContextDecoratedFunctionVariable,
    ContextMethodVariable,
)

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


class GraphContextVariable(Variable):
    """``make(**arguments)``: entered and exited by graph nodes, and also while tracing."""

    __slots__ = ("active", "arguments", "make")

    is_mutable = True

    def __init__(self, make: Any, arguments: dict[str, Any]) -> None:
        self.make = make
        self.arguments = arguments
        self.active: list[tuple[Any, torch.fx.Node]] = []

    def python_type(self) -> type:
        return self.make if isinstance(self.make, type) else contextlib._GeneratorContextManager

    def describe(self) -> str:
        return f"the context {self.make.__name__}"

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__", "clone"):
            return ContextMethodVariable(self, name)
        if name == "__class__":
            return tx.wrap_static(self.python_type())
        if name in self.arguments:
            return ConstantVariable(self.arguments[name])
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        tx.side_effects.mutation_count += 1
        if self.make in _BACKEND_FLAG_CONTEXTS and name in ("__enter__", "__exit__"):
            backend_flags.guard_all_flags(tx, _BACKEND_FLAG_CONTEXTS[self.make])
        match name:
            case "__enter__":
                real = self.make(**self.arguments)
                arguments = dict(self.arguments)
                make = self.make
                target = GraphCallable(
                    f"enter_{make.__name__}",
                    lambda: enter_context(make(**arguments)),
                    changes_state=True,
                    arguments=arguments,
                )
                node = tx.graph.create_node("call_function", target, (), {}, tx.node_provenance())
                node.meta["example_value"] = None
                real.__enter__()
                tx.torch_state.contexts_to_exit.append(real)
                tx.torch_state.open_graph_contexts.append((self, node))
                self.active.append((real, node))
                return NONE
            case "__exit__":
                real, entered = self.active.pop()
                tx.torch_state.open_graph_contexts.remove((self, entered))
                self.emit_exit(tx, entered)
                real.__exit__(None, None, None)
                tx.torch_state.contexts_to_exit.remove(real)
                return NONE
            case "clone":
                return GraphContextVariable(self.make, dict(self.arguments))
        return super().call_method(tx, name, args, kwargs)

    def emit_exit(self, tx: Tracer, entered: torch.fx.Node) -> None:
        """Emit the node that exits what ``entered`` entered."""
        target = GraphCallable(f"exit_{self.make.__name__}", exit_context, changes_state=True)
        node = tx.graph.create_node("call_function", target, (entered,), {}, tx.node_provenance())
        node.meta["example_value"] = None

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return ContextDecoratedFunctionVariable(self, realize(tx, args[0]))

    def reconstruct(self, cg: PyCodegen) -> None:
        if len(self.active) > 1:
            raise Unsupported("context-manager", f"{self.describe()} is entered twice")
        cg.load_helper(make_context, 0)
        cg.load_const(self.make)
        cg.load_const(bool(self.active))
        cg.load_const(tuple(self.arguments))
        for value in self.arguments.values():
            cg.load_const(value)
        cg.body.call(3 + len(self.arguments))


@register_rule(torch.inference_mode)
def _inference_mode(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    mode = realize(tx, args[0] if args else kwargs.get("mode", ConstantVariable(True)))
    if not isinstance(mode.as_python_object(), bool):
        return ContextDecoratedFunctionVariable(GraphContextVariable(torch.inference_mode, {"mode": True}), mode)
    return GraphContextVariable(torch.inference_mode, {"mode": mode.as_python_object()})


@register_builder(torch.inference_mode)
def _inference_context(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it is entered")
    tx.add_guard(
        EqualsMatch(AttrSource(origin, "mode"), real.mode, cause=tx.guard_cause("inference mode is set to it"))
    )
    if getattr(real, "_inference_mode_context", None) is not None:
        raise Unsupported("context-manager", "an inference mode context that was entered outside the function")
    return GraphContextVariable(torch.inference_mode, {"mode": real.mode})


def _register_graph_context(make: Any, *names: str) -> None:
    """Register ``make``, with first parameters ``names``, as a context that the graph enters."""

    @register_rule(make)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        words = dict(zip(names, tx.as_python_constants(args), strict=False))
        words.update(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
        return GraphContextVariable(make, words)


class SavedTensorsContextVariable(GraphContextVariable):
    """A context for saved tensors of autograd. Only the graph enters it, not the tracer."""

    __slots__ = ()

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        tx.side_effects.mutation_count += 1
        if name == "__enter__":
            make, arguments = self.make, dict(self.arguments)
            target = GraphCallable(
                f"enter_{make.__name__}", lambda: enter_context(make(**arguments)), changes_state=True
            )
            node = tx.graph.create_node("call_function", target, (), {}, tx.node_provenance())
            node.meta["example_value"] = None
            tx.torch_state.open_graph_contexts.append((self, node))
            self.active.append((None, node))
            return NONE
        _, entered = self.active.pop()
        tx.torch_state.open_graph_contexts.remove((self, entered))
        self.emit_exit(tx, entered)
        return NONE


@register_rule(torch.autograd.graph.saved_tensors_hooks)
def _saved_tensors_hooks(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("pack_hook", "unpack_hook"), args, strict=False)) | kwargs
    return SavedTensorsContextVariable(
        torch.autograd.graph.saved_tensors_hooks,
        {n: real_hook_function(tx, f, "for saved tensors") for n, f in given.items()},
    )


@register_rule(torch.autograd.graph.save_on_cpu)
def _save_on_cpu(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    words = dict(zip(("pin_memory", "device_type"), tx.as_python_constants(args), strict=False))
    words.update(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    return SavedTensorsContextVariable(torch.autograd.graph.save_on_cpu, words)


def real_hook_function(tx: Tracer, hook: Variable, when: str) -> Any:
    """Return a hook as a Python object that the graph can hold.

    Raises:
        Unsupported: the hook depends on objects of this call.
    """
    of = realize(tx, hook)
    if isinstance(of, UserFunctionVariable) and of.source is not None:
        if not isinstance(of.source, ConstantSource):
            tx.guard_identity(of.real_object, of.source, f"autograd calls it {when}")
        return of.real_object
    if isinstance(of, BuiltinVariable):
        return of.real_object
    if isinstance(of, NestedUserFunctionVariable) and not (
        of.cell_values or of.default_values or of.keyword_default_values
    ):
        names: Any = of.namespace.values
        return FunctionType(of.code, names, of.name)
    raise Unsupported("tensor-hook", f"{of.describe()} is registered as a hook that autograd calls {when}")


@register_rule(torch.autograd.graph.disable_saved_tensors_hooks)
def _no_saved_tensors_hooks(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    message = tx.as_python_constants([args[0] if args else kwargs["error_message"]])[0]
    return SavedTensorsContextVariable(torch.autograd.graph.disable_saved_tensors_hooks, {"error_message": message})


_register_graph_context(torch.nn.attention.sdpa_kernel, "backends", "set_priority")
_register_graph_context(torch.cuda.device, "device")
_BACKEND_FLAG_CONTEXTS: dict[Any, Any] = {
    torch.backends.cudnn.flags: torch.backends.cudnn,
    torch.backends.mkldnn.flags: torch.backends.mkldnn,
}
"""Contexts that set flags of a backend module, and the module."""
for _flags in _BACKEND_FLAG_CONTEXTS:
    _register_graph_context(_flags, *inspect.signature(_flags).parameters)


class NullContextVariable(Variable):
    """A context for profilers or other compilers. It does nothing in the graph."""

    __slots__ = ("source",)

    is_mutable = True

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    def python_type(self) -> type:
        return contextlib.nullcontext

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__", "_recreate_cm"):
            return ContextMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in ("__enter__", "_recreate_cm"):
            return self
        if name == "__exit__":
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return args[0]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(contextlib.nullcontext))
        cg.body.call(0)


class ErrorOnGraphBreakVariable(NullContextVariable):
    """``torch._dynamo.error_on_graph_break(raises)``. It adds nothing to the graph.

    The setting is read when a graph break occurs.
    """

    __slots__ = ("active", "make", "previous_policy", "raises")

    def __init__(self, make: type, raises: bool) -> None:
        super().__init__()
        self.make = make
        self.raises = raises
        self.active: list[Any] = []
        self.previous_policy: bool | None = None
        """Setting that the exit restores, if Python entered the context."""

    def python_type(self) -> type:
        return self.make

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "__enter__":
            self.source = None
            self.active.append(self._enter_real(tx, self.raises))
            return NONE
        if name == "__exit__":
            self._leave(tx)
            return NONE
        if name == "clone":
            return ErrorOnGraphBreakVariable(self.make, self.raises)
        return super().call_method(tx, name, args, kwargs)

    def _enter_real(self, tx: Tracer, raises: bool) -> Any:
        real = self.make(raises)
        real.__enter__()
        tx.torch_state.contexts_to_exit.append(real)
        return real

    def _leave(self, tx: Tracer) -> None:
        if self.active:
            real = self.active.pop()
            real.__exit__(None, None, None)
            tx.torch_state.contexts_to_exit.remove(real)
            return
        if self.source is None:
            raise Unsupported("compiler-api", "error_on_graph_break is exited, but was not entered")
        left: Any = self.make
        tx.side_effects.record_side_effect(
            CallExpressionVariable(left.__exit__, [self, NONE, NONE, NONE]), "the meaning of graph breaks is restored"
        )
        if self.previous_policy is not None:
            self._enter_real(tx, self.previous_policy)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return ContextDecoratedFunctionVariable(self, realize(tx, args[0]))

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_helper(make_context, 0)
        cg.load_const(self.make)
        cg.load_const(bool(self.active))
        cg.load_const(("error_on_graph_break",))
        cg.load_const(self.raises)
        cg.body.call(4)


@register_builder_if(0, is_error_on_graph_break_context)
def _break_policy(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it decides what a graph break does")
    raises = AttrSource(origin, "error_on_graph_break")
    tx.add_guard(
        EqualsMatch(raises, real.error_on_graph_break, cause=tx.guard_cause("it decides what a graph break does"))
    )
    policy = ErrorOnGraphBreakVariable(type(real), real.error_on_graph_break)
    policy.source = origin
    before = getattr(
        real, "prev_error_on_graph_break", None
    )  # a list with one entry per enter; before torch 2.12 only the last one
    policy.previous_policy = next(iter(reversed(before)), None) if isinstance(before, list) else before
    return policy


def _unbound_policy_method(name: str) -> CallRule:
    """Return the rule for a method called through its class, as code after a graph break does."""

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0])
        if not isinstance(of, ErrorOnGraphBreakVariable):
            raise of.unsupported(f"{name} of a context", "context-manager")
        return of.call_method(tx, name, args[1:], kwargs)

    return rule


for _name in ("__enter__", "__exit__"):
    RULES_BY_NAME[("torch._dynamo.decorators", _name)] = _unbound_policy_method(_name)


@register_rule(torch.profiler.record_function, torch.fx.traceback.annotate, torch._C._DisableTorchDispatch)
def _null_context(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return NullContextVariable()


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
    if maker.source is not None and not isinstance(maker.source, ConstantSource):
        tx.guard_identity(maker.real_object, maker.source, "it creates the context")
    words = tx.unpack_string_mapping(of.get_attr(tx, "kwds"))
    return tx.wrap_static(_CONTEXT_FACTORIES[maker.real_object]).call(
        tx, list(sequence_items(tx, of.get_attr(tx, "args"))), words
    )


_recreate = contextlib._GeneratorContextManager._recreate_cm.__code__
RULES_BY_CODE[id(_recreate)] = (_recreate, _recreate_context)


@register_builder(torch.profiler.record_function)
def _build_null_context(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it is entered")
    return NullContextVariable(origin)
