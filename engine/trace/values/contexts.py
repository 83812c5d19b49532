"""Context managers of torch that the graph holds as nodes: grad modes and autocast."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.in_graph import InGraph
from engine.ir.origin import STACK, Attr, Local, Origin
from engine.ir.value_guard import Equals
from engine.trace.signals import Unsupported
from engine.trace.support import context, grad_context, leave_autocast, under_grad
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.torch_functions import guard_state
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class ContextMethod(MethodOf):
    """A method of a context that the graph holds: a graph that raises half-way is left as if it had been called."""

    is_in_graph = True


class GradContext(Value):
    """``torch.no_grad()``, ``enable_grad()``, ``set_grad_enabled(mode)``: as a context, or as a decorator."""

    is_mutable = True

    def __init__(self, cls: type, mode: bool) -> None:
        self.cls = cls
        self.mode = mode
        self.before: list[bool] = []

    def type(self) -> type:
        return self.cls

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "__call__", "clone"):
            return ContextMethod(self, name)
        if name == "__class__":
            return tx.fixed(self.cls)
        if name == "prev" and self.before:
            return Const(self.before[-1])
        if name == "mode" and self.cls is torch.set_grad_enabled:
            return Const(self.mode)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__enter__":
            self.before.append(torch.is_grad_enabled())
            set_grad(tx, self.mode)
            return NONE
        if name == "__exit__":
            set_grad(tx, self.before.pop())
            return NONE
        if name == "clone":
            return GradContext(self.cls, self.mode)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return UnderContext(self, force(tx, args[0]))

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(grad_context, 0)
        cg.const(self.cls)
        cg.const(self.mode)
        cg.const(self.before[-1] if self.before else None)
        cg.out.call(3)


class UnderContext(Value):
    """A function decorated with a context while tracing."""

    def __init__(self, context: Value, function: Value) -> None:
        self.context = context
        self.function = function

    def type(self) -> type:
        return self.function.type()

    def children(self) -> list[Value]:
        return [self.context, self.function]

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        own = self.context.call_method(tx, "clone", [], {})
        own.call_method(tx, "__enter__", [], {})
        try:
            return self.function.call(tx, args, kwargs)
        finally:
            own.call_method(tx, "__exit__", [NONE, NONE, NONE], {})

    def reconstruct(self, cg: Codegen) -> None:
        if isinstance(self.context, GradContext):  # a context of another class switches grad mode when it decorates
            cg.helper(under_grad, 0)
            cg.const(self.context.mode)
            cg.load(self.function)
            cg.out.call(2)
            return
        cg.out.callable(lambda: cg.load(self.context))
        cg.load(self.function)
        cg.out.call(1)


def set_grad(tx: Tracer, mode: bool) -> None:
    """Switch grad mode in the graph and here, where fakes are evaluated. Two switches with nothing between leave the graph."""
    guard_state(tx, "grad_mode", tx.entry_state["grad_mode"])
    tx.changes += 1
    if torch.is_grad_enabled() == mode:
        return
    last = next(iter(reversed(tx.graph.graph.nodes)), None)
    if last is not None and last.target is torch._C._set_grad_enabled and not last.users:
        tx.graph.forget(last)
    else:
        node = tx.graph.add("call_function", torch._C._set_grad_enabled, (mode,), {}, tx.node_origin())
        node.meta["example_value"] = None
    torch._C._set_grad_enabled(mode)


@wraps(torch.no_grad, torch.enable_grad)
def _grad_context(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is entered")
    return _entered(tx, GradContext(type(real), isinstance(real, torch.enable_grad)), real, origin)


@wraps(torch.set_grad_enabled)
def _grad_enabled_context(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is entered")
    tx.guard(Equals(Attr(origin, "mode"), real.mode, cause=tx.cause("grad mode is set to it")))
    return SetGrad(_entered(tx, GradContext(torch.set_grad_enabled, real.mode), real, origin))


def _entered(tx: Tracer, context: GradContext, real: Any, origin: Origin) -> GradContext:
    """With what leaving a real context sets grad mode to."""
    before = getattr(real, "prev", None)
    if before is not None:
        tx.guard(Equals(Attr(origin, "prev"), before, cause=tx.cause("leaving the context sets grad mode to it")))
        context.before.append(before)
        root = origin.chain()[0]
        if isinstance(root, Local) and root.variable.startswith(STACK):
            tx.resumed_grad[int(root.variable.removeprefix(STACK))] = before
    return context


def _maker(cls: Any, mode: bool) -> None:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        context = GradContext(cls, mode)
        return context.call(tx, args, {}) if args else context

    special(cls)(rule)


_maker(torch.no_grad, False)
_maker(torch.enable_grad, True)


@special(torch.set_grad_enabled)
def _set_grad_enabled(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    mode = bool(force(tx, args[0] if args else kwargs["mode"]).truth(tx))
    context = GradContext(torch.set_grad_enabled, mode)
    # Constructing it switches at once; entering it later switches again, to the same mode.
    context.before.append(torch.is_grad_enabled())
    set_grad(tx, mode)
    return SetGrad(context)


@special(torch._C._set_grad_enabled)
def _switch_grad(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    set_grad(tx, bool(force(tx, args[0]).truth(tx)))
    return NONE


class SetGrad(Value):
    """``torch.set_grad_enabled(mode)``: in force from its construction on."""

    def __init__(self, context: GradContext) -> None:
        self.context = context

    def type(self) -> type:
        return torch.set_grad_enabled

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "__call__"):
            return ContextMethod(self, name)
        return self.context.get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__enter__":
            set_grad(tx, self.context.mode)
            return NONE
        if name == "__exit__":
            set_grad(tx, self.context.before[-1])
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator: what its construction switched is switched back."""
        set_grad(tx, self.context.before[-1])
        return self.context.call(tx, args, kwargs)

    def children(self) -> list[Value]:
        return [self.context]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.context)


class AutocastContext(Value):
    """``torch.autocast(...)``."""

    is_mutable = True

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.active: list[tuple[Any, torch.fx.Node]] = []

    def type(self) -> type:
        return torch.autocast

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "clone"):
            return ContextMethod(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.changes += 1
        if name == "clone":
            return AutocastContext(self.arguments)
        if name == "__enter__":
            real = torch.autocast(**self.arguments)
            words = (real.device, real.fast_dtype, real._enabled, real._cache_enabled)
            node = tx.graph.add("call_function", torch.amp.autocast_mode._enter_autocast, words, {}, tx.node_origin())
            node.meta["example_value"] = None
            real.__enter__()
            tx.undo_at_end.append(real)
            tx.entered.append((self, node))
            self.active.append((real, node))
            return NONE
        if name == "__exit__":
            real, entered = self.active.pop()
            tx.entered.remove((self, entered))
            self.leave(tx, entered)
            real.__exit__(None, None, None)
            tx.undo_at_end.remove(real)
            return NONE
        return super().call_method(tx, name, args, kwargs)

    def leave(self, tx: Tracer, entered: torch.fx.Node) -> None:
        """The node that leaves what ``entered`` entered."""
        node = tx.graph.add("call_function", torch.amp.autocast_mode._exit_autocast, (entered,), {}, tx.node_origin())
        node.meta["example_value"] = None

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return UnderContext(self, force(tx, args[0]))

    def reconstruct(self, cg: Codegen) -> None:
        if len(self.active) > 1:
            raise Unsupported("side-effect", "autocast is entered twice")
        cg.helper(context, 0)
        cg.const(torch.autocast)
        cg.const(bool(self.active))
        cg.const(tuple(self.arguments))
        for value in self.arguments.values():
            cg.const(value)
        cg.out.call(3 + len(self.arguments))


def leave_in_graph(tx: Tracer) -> None:
    """End in the graph the contexts that it entered; code after it enters those that outlive it."""
    for of, entered in reversed(tx.entered):
        of.leave(tx, entered)


@special(torch.autocast, torch.amp.autocast)
def _autocast(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("device_type", "dtype", "enabled", "cache_enabled")
    words = dict(zip(names, tx.constants(args), strict=False))
    words.update(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    return AutocastContext(words)


def _of_device(make: Any, device: str) -> None:
    """The older spelling of autocast for one kind of device, which takes the data type first or the switch."""

    @special(make)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        words = dict(zip(("enabled", "dtype", "cache_enabled"), tx.constants(args), strict=False))
        words.update(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        default = torch.bfloat16 if device == "cpu" else torch.float16
        return AutocastContext({"device_type": device, "dtype": default, **words})


for _device in ("cpu", "cuda"):
    _of_device(getattr(getattr(torch, _device).amp, "autocast"), _device)  # noqa: B009


@wraps(torch.autocast)
def _autocast_context(tx: Tracer, real: Any, origin: Origin) -> Value:
    """An instance made outside: a decorator's, or one kept for reuse."""
    tx.guard_type(real, origin, "it is entered")
    fields = {"device_type": "device", "dtype": "fast_dtype", "enabled": "_enabled", "cache_enabled": "_cache_enabled"}
    words: dict[str, Any] = {}
    for name, field in fields.items():
        words[name] = getattr(real, field)
        tx.guard(Equals(Attr(origin, field), words[name], cause=tx.cause("autocast is switched to it")))
    if hasattr(real, "prev"):
        return _EnteredAutocast(tx, real, origin, words)
    return AutocastContext(words)


class _EnteredAutocast(AutocastContext):
    """One that was entered before: it is entered again, or left after a graph break, by a node that sets what was before."""

    def __init__(self, tx: Tracer, real: Any, origin: Origin, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.origin = origin
        self.before = (real.device, real.prev, real.prev_fastdtype, real.prev_cache_enabled)
        self._place = origin

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name != "__exit__" or self.active:
            self.origin = None  # from here on the instance does not know what it entered: another stands for it
            return super().call_method(tx, name, args, kwargs)
        for field, value in zip(("prev", "prev_fastdtype", "prev_cache_enabled"), self.before[1:], strict=True):
            why = "leaving the context sets autocast to it"
            tx.guard(Equals(Attr(self._place, field), value, cause=tx.cause(why)))
        tx.changes += 1
        target = InGraph("leave_autocast", functools.partial(leave_autocast, *self.before), changes_state=True)
        node = tx.graph.add("call_function", target, (), {}, tx.node_origin())
        node.meta["example_value"] = None
        leave_autocast(*self.before)
        tx.undo_at_end.append(_NestedAgain())
        return NONE


class _NestedAgain:
    """Puts the count of autocasts entered back, when tracing ends."""

    def __exit__(self, *_: object) -> None:
        torch.autocast_increment_nesting()


def _through_class(name: str, *classes: Any) -> None:
    """``no_grad.__enter__(context)``: a method reached through its class, as a stack of contexts does, or kept bound over a break."""

    @special(*(getattr(cls, name) for cls in classes))
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        of = force(tx, args[0])
        if not isinstance(of, (GradContext, SetGrad, AutocastContext)):
            raise of.refuse(f"{name} of a context")
        return of.call_method(tx, name, args[1:], kwargs)


for _name in ("__enter__", "__exit__"):
    _through_class(_name, torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.autocast)
