"""Base classes of torch's context managers, and of those that graph nodes enter."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import torch.fx

from engine.frame_code.codegen_runtime.torch_contexts import enter_context, exit_context, make_context
from engine.ir.graph_callable import GraphCallable
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import append_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import CallRule
from engine.trace.variables.callables.function_wrappers import FunctionWrapperVariable
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.slotted_type import fresh, state


class ContextMethodVariable(BuiltinMethodVariable):
    """A method of a context in the graph. If the graph raises, the context counts as exited."""

    is_in_graph = True


class ContextVariable(Variable):
    """A context manager of torch. Subclasses say what entering and exiting it do."""

    source: Source | None = state(None)
    is_loaded_by_source: bool = state(True)
    """False once traced code entered or left a context from outside: the real one differs."""

    is_mutable = True
    methods: ClassVar[tuple[str, ...]] = ("__enter__", "__exit__", "clone")
    """Methods that traced code can read."""

    def enter(self, tx: Tracer) -> Variable:
        """Trace ``__enter__``."""
        raise self.unsupported("entering", "context-manager")

    def exit(self, tx: Tracer) -> Variable:
        """Trace ``__exit__``."""
        raise self.unsupported("exiting", "context-manager")

    def clone(self) -> Variable:
        """Return a context with the same settings that is not entered."""
        raise self.unsupported("copying", "context-manager")

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.methods:
            return ContextMethodVariable(self, name)
        return tx.wrap_static(self.python_type()) if name == "__class__" else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "__enter__":
                return self.enter(tx)
            case "__exit__":
                return self.exit(tx)
            case "clone":
                return self.clone()
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return ContextDecoratedFunctionVariable(realize(tx, args[0]), self)

    def reconstruct_decorated(self, cg: PyCodegen, function: Variable) -> None:
        """Emit code that pushes ``function``, decorated with this context."""
        cg.body.callable(lambda: cg.load(self))
        cg.load(function)
        cg.body.call(1)


class ContextDecoratedFunctionVariable(FunctionWrapperVariable):
    """A function decorated with a context in traced code."""

    context: ContextVariable

    child_fields = ("context", "function")

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        context = self.context.call_method(tx, "clone", [], {})
        context.call_method(tx, "__enter__", [], {})
        try:
            return self.function.call(tx, args, kwargs)
        finally:
            context.call_method(tx, "__exit__", [NONE, NONE, NONE], {})

    def reconstruct(self, cg: PyCodegen) -> None:
        self.context.reconstruct_decorated(cg, self.function)


class GraphContextVariable(ContextVariable):
    """``make(**arguments)``: entered and exited by graph nodes, and also while tracing."""

    make: Any
    arguments: dict[str, Any]
    active: list[tuple[Any, torch.fx.Node]] = fresh(list)

    readable: ClassVar[tuple[str, ...]] = ("mode", "pack_hook", "unpack_hook")
    """Arguments that are also attributes of the context."""

    def python_type(self) -> type:
        return self.make if isinstance(self.make, type) else contextlib._GeneratorContextManager

    def describe(self) -> str:
        return f"the context {self.make.__name__}"

    def clone(self) -> Variable:
        return type(self)(self.make, dict(self.arguments))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.arguments and name in self.readable:
            return ConstantVariable(self.arguments[name])
        return super().get_attr(tx, name)

    def real_context(self) -> Any:
        """Return a real context for the time of tracing."""
        return self.make(**self.arguments)

    def enter(self, tx: Tracer) -> Variable:
        tx.side_effects.mutation_count += 1
        self.is_loaded_by_source = False
        real = self.real_context()
        node = self.emit_enter(tx, real)
        enter_while_tracing(tx, real)
        tx.torch_state.open_graph_contexts.append((self, node))
        self.active.append((real, node))
        return NONE

    def exit(self, tx: Tracer) -> Variable:
        tx.side_effects.mutation_count += 1
        real, entered = self.active.pop()
        tx.torch_state.open_graph_contexts.remove((self, entered))
        self.emit_exit(tx, entered)
        exit_while_tracing(tx, real)
        return NONE

    def emit_enter(self, tx: Tracer, real: Any, displayed: dict[str, Any] | None = None) -> torch.fx.Node:
        """Emit the node that enters the context. ``displayed`` are the arguments that it shows."""
        make, arguments = self.make, dict(self.arguments)
        displayed = arguments if displayed is None else displayed
        target = GraphCallable(
            f"enter_{make.__name__}", lambda: enter_context(make(**arguments)), changes_state=True, arguments=displayed
        )
        return append_node(tx, target)

    def emit_exit(self, tx: Tracer, entered: torch.fx.Node) -> None:
        """Emit the node that exits what ``entered`` entered."""
        append_node(tx, GraphCallable(f"exit_{self.make.__name__}", exit_context, changes_state=True), (entered,))

    def reconstruct(self, cg: PyCodegen) -> None:
        if len(self.active) > 1:
            raise Unsupported("context-manager", f"{self.describe()} is entered twice")
        load_context(cg, self.make, bool(self.active), self.arguments)


class NullContextVariable(ContextVariable):
    """A context for profilers or other compilers. It does nothing in the graph."""

    source: Source | None = None
    cls = contextlib.nullcontext

    methods = ("__enter__", "__exit__", "_recreate_cm")

    def enter(self, tx: Tracer) -> Variable:
        return self

    def exit(self, tx: Tracer) -> Variable:
        return NONE

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return self if name == "_recreate_cm" else super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return args[0]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(contextlib.nullcontext)


def null_context(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the construction of a context that does nothing in the graph."""
    return NullContextVariable()


def enter_while_tracing(tx: Tracer, real: Any) -> None:
    """Enter a real context, which is exited at the end of tracing at the latest."""
    real.__enter__()
    tx.torch_state.contexts_to_exit.append(real)


def exit_while_tracing(tx: Tracer, real: Any) -> None:
    """Exit a real context that ``enter_while_tracing`` entered."""
    real.__exit__(None, None, None)
    tx.torch_state.contexts_to_exit.remove(real)


def load_context(cg: PyCodegen, make: Any, entered: bool, arguments: dict[str, Any]) -> None:
    """Emit code that pushes ``make(**arguments)``, entered if ``entered`` is true."""
    cg.call(make_context, make, entered, tuple(arguments), *arguments.values())


def constant_words(tx: Tracer, names: tuple[str, ...], args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Return constant arguments by name; ``names`` are those of the first parameters."""
    return dict(zip(names, tx.as_python_constants(args), strict=False)) | tx.as_python_keywords(kwargs)


def unbound_context_method(name: str) -> CallRule:
    """Return the rule for a method called through its class: ``no_grad.__enter__(context)``.

    ``ExitStack`` calls it like this, and so does code after a graph break.
    """

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0])
        if not isinstance(of, ContextVariable):
            raise of.unsupported(f"{name} of a context", "context-manager")
        return of.call_method(tx, name, args[1:], kwargs)

    return rule
