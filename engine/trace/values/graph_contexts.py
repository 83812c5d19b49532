"""Contexts of torch's that the graph enters and leaves through nodes: inference mode, kernels of attention; and those that a graph has no use for."""

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

from engine.ir.in_graph import InGraph
from engine.ir.marks import is_break_policy
from engine.ir.origin import Attr, Fixed, Origin
from engine.ir.value_guard import Equals
from engine.trace.inline import inline_call
from engine.trace.signals import Unsupported
from engine.trace.support import context, enter_context, leave_context
from engine.trace.values import backend_flags
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.contexts import ContextMethod, UnderContext
from engine.trace.values.functions import FunctionValue, MadeFunction, RealFunction
from engine.trace.values.iteration import CallOf
from engine.trace.values.methods import BuiltinValue
from engine.trace.values.rules import BY_CODE, BY_NAME, Special, special
from engine.trace.values.sequences import sequence_items
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class GraphContext(Value):
    """``make(**arguments)``: entering and leaving it are nodes, and done while tracing too."""

    is_mutable = True

    def __init__(self, make: Any, arguments: dict[str, Any]) -> None:
        self.make = make
        self.arguments = arguments
        self.active: list[tuple[Any, torch.fx.Node]] = []

    def type(self) -> type:
        return self.make if isinstance(self.make, type) else contextlib._GeneratorContextManager

    def describe(self) -> str:
        return f"the context {self.make.__name__}"

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "clone"):
            return ContextMethod(self, name)
        if name == "__class__":
            return tx.fixed(self.type())
        if name in self.arguments:
            return Const(self.arguments[name])
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        tx.changes += 1
        if self.make in _SWITCHED and name in ("__enter__", "__exit__"):
            backend_flags.note_all(tx, _SWITCHED[self.make])
        match name:
            case "__enter__":
                real = self.make(**self.arguments)
                arguments = dict(self.arguments)
                make = self.make
                target = InGraph(
                    f"enter_{make.__name__}",
                    lambda: enter_context(make(**arguments)),
                    changes_state=True,
                    arguments=arguments,
                )
                node = tx.graph.add("call_function", target, (), {}, tx.node_origin())
                node.meta["example_value"] = None
                real.__enter__()
                tx.undo_at_end.append(real)
                tx.entered.append((self, node))
                self.active.append((real, node))
                return NONE
            case "__exit__":
                real, entered = self.active.pop()
                tx.entered.remove((self, entered))
                self.leave(tx, entered)
                real.__exit__(None, None, None)
                tx.undo_at_end.remove(real)
                return NONE
            case "clone":
                return GraphContext(self.make, dict(self.arguments))
        return super().call_method(tx, name, args, kwargs)

    def leave(self, tx: Tracer, entered: torch.fx.Node) -> None:
        """The node that leaves what ``entered`` entered."""
        target = InGraph(f"leave_{self.make.__name__}", leave_context, changes_state=True)
        node = tx.graph.add("call_function", target, (entered,), {}, tx.node_origin())
        node.meta["example_value"] = None

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return UnderContext(self, force(tx, args[0]))

    def reconstruct(self, cg: Codegen) -> None:
        if len(self.active) > 1:
            raise Unsupported("side-effect", f"{self.describe()} is entered twice")
        cg.helper(context, 0)
        cg.const(self.make)
        cg.const(bool(self.active))
        cg.const(tuple(self.arguments))
        for value in self.arguments.values():
            cg.const(value)
        cg.out.call(3 + len(self.arguments))


@special(torch.inference_mode)
def _inference_mode(tx: Tracer, args: Args, kwargs: Words) -> Value:
    mode = force(tx, args[0] if args else kwargs.get("mode", Const(True)))
    if not isinstance(mode, Const) or not isinstance(mode.value, bool):
        return UnderContext(GraphContext(torch.inference_mode, {"mode": True}), mode)
    return GraphContext(torch.inference_mode, {"mode": mode.value})


@wraps(torch.inference_mode)
def _inference_context(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is entered")
    tx.guard(Equals(Attr(origin, "mode"), real.mode, cause=tx.cause("inference mode is switched to it")))
    if getattr(real, "_inference_mode_context", None) is not None:
        raise Unsupported("unsupported-operation", "a context of inference mode that was entered outside")
    return GraphContext(torch.inference_mode, {"mode": real.mode})


def _switch(make: Any, *names: str) -> None:
    """Calling ``make``, whose first parameters are ``names``, makes a context that the graph enters."""

    @special(make)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        words = dict(zip(names, tx.constants(args), strict=False))
        words.update(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        return GraphContext(make, words)


class SavingContext(GraphContext):
    """A context that says how autograd keeps tensors: only the running graph is in it."""

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        tx.changes += 1
        if name == "__enter__":
            make, arguments = self.make, dict(self.arguments)
            target = InGraph(f"enter_{make.__name__}", lambda: enter_context(make(**arguments)), changes_state=True)
            node = tx.graph.add("call_function", target, (), {}, tx.node_origin())
            node.meta["example_value"] = None
            tx.entered.append((self, node))
            self.active.append((None, node))
            return NONE
        _, entered = self.active.pop()
        tx.entered.remove((self, entered))
        self.leave(tx, entered)
        return NONE


@special(torch.autograd.graph.saved_tensors_hooks)
def _saved_tensors_hooks(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("pack_hook", "unpack_hook"), args, strict=False)) | kwargs
    return SavingContext(
        torch.autograd.graph.saved_tensors_hooks, {n: as_it_is(tx, f, "for what it saves") for n, f in given.items()}
    )


@special(torch.autograd.graph.save_on_cpu)
def _save_on_cpu(tx: Tracer, args: Args, kwargs: Words) -> Value:
    words = dict(zip(("pin_memory", "device_type"), tx.constants(args), strict=False))
    words.update(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    return SavingContext(torch.autograd.graph.save_on_cpu, words)


def as_it_is(tx: Tracer, hook: Value, when: str) -> Any:
    """A hook as an object that the graph can hold.

    Raises:
        Unsupported: it needs something that only this call knows.
    """
    of = force(tx, hook)
    if isinstance(of, RealFunction) and of.origin is not None:
        if not isinstance(of.origin, Fixed):
            tx.guard_object(of.held, of.origin, f"autograd calls it {when}")
        return of.held
    if isinstance(of, BuiltinValue):
        return of.held
    if isinstance(of, MadeFunction) and not (of.cell_values or of.default_values or of.keyword_default_values):
        names: Any = of.namespace.values
        return FunctionType(of.code, names, of.name)
    raise Unsupported("unknown-call", f"{of.describe()} is given to autograd, to be called {when}")


@special(torch.autograd.graph.disable_saved_tensors_hooks)
def _no_saved_tensors_hooks(tx: Tracer, args: Args, kwargs: Words) -> Value:
    message = tx.constants([args[0] if args else kwargs["error_message"]])[0]
    return SavingContext(torch.autograd.graph.disable_saved_tensors_hooks, {"error_message": message})


_switch(torch.nn.attention.sdpa_kernel, "backends", "set_priority")
_switch(torch.cuda.device, "device")
_SWITCHED: dict[Any, Any] = {
    torch.backends.cudnn.flags: torch.backends.cudnn,
    torch.backends.mkldnn.flags: torch.backends.mkldnn,
}
"""Contexts that set switches of a module, and the module."""
for _flags in _SWITCHED:
    _switch(_flags, *inspect.signature(_flags).parameters)


class IdleContext(Value):
    """A context that says something to a profiler or to other compilers: in a graph it does nothing."""

    is_mutable = True

    def __init__(self, origin: Origin | None = None) -> None:
        self.origin = origin

    def type(self) -> type:
        return contextlib.nullcontext

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "_recreate_cm"):
            return ContextMethod(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name in ("__enter__", "_recreate_cm"):
            return self
        if name == "__exit__":
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return args[0]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(contextlib.nullcontext))
        cg.out.call(0)


class BreakPolicy(IdleContext):
    """``torch._dynamo.error_on_graph_break(raises)``: nothing in the graph; whether a break is an error is asked where it happens."""

    def __init__(self, make: type, raises: bool) -> None:
        super().__init__()
        self.make = make
        self.raises = raises
        self.active: list[Any] = []
        self.before: bool | None = None
        """For one that Python entered: what leaving it switches back to, if anything."""

    def type(self) -> type:
        return self.make

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name == "__enter__":
            self.origin = None
            self.active.append(self._switched(tx, self.raises))
            return NONE
        if name == "__exit__":
            self._leave(tx)
            return NONE
        if name == "clone":
            return BreakPolicy(self.make, self.raises)
        return super().call_method(tx, name, args, kwargs)

    def _switched(self, tx: Tracer, raises: bool) -> Any:
        real = self.make(raises)
        real.__enter__()
        tx.undo_at_end.append(real)
        return real

    def _leave(self, tx: Tracer) -> None:
        if self.active:
            real = self.active.pop()
            real.__exit__(None, None, None)
            tx.undo_at_end.remove(real)
            return
        if self.origin is None:
            raise Unsupported("unknown-call", "error_on_graph_break is left, and was not entered")
        left: Any = self.make
        tx.happens(CallOf(left.__exit__, [self, NONE, NONE, NONE]), "what graph breaks mean is switched back")
        if self.before is not None:
            self._switched(tx, self.before)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return UnderContext(self, force(tx, args[0]))

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(context, 0)
        cg.const(self.make)
        cg.const(bool(self.active))
        cg.const(("error_on_graph_break",))
        cg.const(self.raises)
        cg.out.call(4)


@wraps_if(0, is_break_policy)
def _break_policy(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it says what breaks mean")
    raises = Attr(origin, "error_on_graph_break")
    tx.guard(Equals(raises, real.error_on_graph_break, cause=tx.cause("it says what breaks mean")))
    policy = BreakPolicy(type(real), real.error_on_graph_break)
    policy.origin = origin
    before = getattr(
        real, "prev_error_on_graph_break", None
    )  # one for each time it was entered; the last one only before torch 2.12
    policy.before = next(iter(reversed(before)), None) if isinstance(before, list) else before
    return policy


def _bound_policy(name: str) -> Special:
    """A method reached through its class, as one is that was kept bound over a break."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0])
        if not isinstance(of, BreakPolicy):
            raise of.refuse(f"{name} of a context")
        return of.call_method(tx, name, args[1:], kwargs)

    return rule


for _name in ("__enter__", "__exit__"):
    BY_NAME[("torch._dynamo.decorators", _name)] = _bound_policy(_name)


@special(torch.profiler.record_function, torch.fx.traceback.annotate, torch._C._DisableTorchDispatch)
def _idle(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return IdleContext()


_MAKERS: dict[Any, Any] = {
    inspect.unwrap(make): make
    for make in (
        torch.fx.traceback.annotate,
        torch.nn.attention.sdpa_kernel,
        torch.autograd.graph.disable_saved_tensors_hooks,
        *_SWITCHED,
    )
}
"""By its generator function, what makes a context of the kind that ``contextlib.contextmanager`` gives."""


def _made_anew(tx: Tracer, function: FunctionValue, args: Args, kwargs: Words) -> Value:
    """What a function decorated with a context enters at each call: one like it, of the same arguments."""
    of = force(tx, args[0])
    maker = force(tx, of.get_attr(tx, "func"))
    if not isinstance(maker, RealFunction) or maker.held not in _MAKERS:
        return inline_call(tx, function, args, kwargs)
    if maker.origin is not None and not isinstance(maker.origin, Fixed):
        tx.guard_object(maker.held, maker.origin, "it makes the context")
    words = tx.entries(of.get_attr(tx, "kwds"))
    return tx.fixed(_MAKERS[maker.held]).call(tx, list(sequence_items(tx, of.get_attr(tx, "args"))), words)


_recreate = contextlib._GeneratorContextManager._recreate_cm.__code__
BY_CODE[id(_recreate)] = (_recreate, _made_anew)


@wraps(torch.profiler.record_function)
def _idle_context(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is entered")
    return IdleContext(origin)
