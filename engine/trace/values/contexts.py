"""Context managers of torch that the graph holds as nodes: grad modes and autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.functions import MethodOf, special
from engine.trace.values.torch_functions import guard_state
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class GradContext(Value):
    """``torch.no_grad()``, ``enable_grad()``, ``set_grad_enabled(mode)``: as a context, or as a decorator."""

    is_mutable = True

    def __init__(self, cls: type, mode: bool) -> None:
        self.cls = cls
        self.mode = mode
        self.before: list[bool] = []

    def type(self) -> type:
        return self.cls

    def snapshot(self) -> Callable[[], None]:
        raise Unsupported("side-effect", "grad mode changes while tracing tentatively")

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__", "__call__", "clone"):
            return MethodOf(self, name)
        if name == "__class__":
            return tx.fixed(self.cls)
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
        return DecoratedByContext(self, force(tx, args[0]))

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.cls))
        if self.cls is torch.set_grad_enabled:
            cg.const(self.mode)
        cg.out.call(1 if self.cls is torch.set_grad_enabled else 0)


class DecoratedByContext(Value):
    """A function under ``@torch.no_grad()`` made while tracing."""

    def __init__(self, context: GradContext, function: Value) -> None:
        self.context = context
        self.function = function

    def type(self) -> type:
        return self.function.type()

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.context.call_method(tx, "__enter__", [], {})
        try:
            return self.function.call(tx, args, kwargs)
        finally:
            self.context.call_method(tx, "__exit__", [], {})


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
    return GradContext(type(real), isinstance(real, torch.enable_grad))


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


class SetGrad(Value):
    """``torch.set_grad_enabled(mode)``: in force from its construction on."""

    def __init__(self, context: GradContext) -> None:
        self.context = context

    def type(self) -> type:
        return torch.set_grad_enabled

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__enter__":
            set_grad(tx, self.context.mode)
            return NONE
        if name == "__exit__":
            set_grad(tx, self.context.before[-1])
            return NONE
        return super().call_method(tx, name, args, kwargs)


class AutocastContext(Value):
    """``torch.autocast(...)``."""

    is_mutable = True

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.active: list[tuple[Any, Value]] = []

    def type(self) -> type:
        return torch.autocast

    def snapshot(self) -> Callable[[], None]:
        raise Unsupported("side-effect", "autocast changes while tracing tentatively")

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.changes += 1
        if name == "__enter__":
            real = torch.autocast(**self.arguments)
            words = (real.device, real.fast_dtype, real._enabled, real._cache_enabled)
            node = tx.graph.add("call_function", torch.amp.autocast_mode._enter_autocast, words, {}, tx.node_origin())
            node.meta["example_value"] = None
            real.__enter__()
            tx.undo_at_end.append(real)
            self.active.append((real, node))  # type: ignore[arg-type]
            return NONE
        if name == "__exit__":
            real, entered = self.active.pop()
            node = tx.graph.add(
                "call_function", torch.amp.autocast_mode._exit_autocast, (entered,), {}, tx.node_origin()
            )
            node.meta["example_value"] = None
            real.__exit__(None, None, None)
            tx.undo_at_end.remove(real)
            return NONE
        return super().call_method(tx, name, args, kwargs)


@special(torch.autocast, torch.amp.autocast)
def _autocast(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("device_type", "dtype", "enabled", "cache_enabled")
    words = dict(zip(names, tx.constants(args), strict=False))
    words.update(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    return AutocastContext(words)
