"""Bound methods, partials, and functions from C."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, Origin
from engine.ir.value_guard import Equals
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.arity import check_arity, check_method_arity
from engine.trace.values.base import Const, HeldValue, Value, force
from engine.trace.values.rules import imported_first, special_of
from engine.trace.values.shown import shown
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class BoundMethod(Value):
    """A function with its first argument."""

    def __init__(self, of: Value, function: Value, origin: Origin | None = None, name: str = "") -> None:
        self.of = of
        self.function = function
        self.origin = origin
        self.name = name

    def type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return ("method", self.of.key(tx), self.function.key(tx))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if tx.direct is self:
            tx.direct = self.function
        return self.function.call(tx, [self.of, *args], kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.of
        if name == "__func__":
            return self.function
        return self.function.get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.of, self.function]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(types.MethodType))
        cg.load(self.function)
        cg.load(self.of)
        cg.out.call(2)


class MethodOf(Value):
    """A method of a builtin container, bound and not called yet."""

    def __init__(self, of: Value, name: str) -> None:
        self.of = of
        self.name = name

    def type(self) -> type:
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.of.type().__name__}.{self.name}"

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        check_method_arity(tx, self.of.type(), self.name, args, kwargs)
        return self.of.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.of
        if name == "__name__":
            return Const(self.name)
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.of)
        cg.out.attribute(self.name)


class ConstMethod(Value):
    """A method of a constant: run when called with constants."""

    def __init__(self, of: Const, name: str) -> None:
        self.of = of
        self.name = name

    def type(self) -> type:
        return type(getattr(self.of.value, self.name))

    def describe(self) -> str:
        return f"{type(self.of.value).__name__}.{self.name}"

    def python(self, tx: Tracer) -> Any:
        return getattr(self.of.value, self.name)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.of
        if name in ("__name__", "__qualname__", "__doc__"):
            return tx.fold(getattr, self.python(tx), name)
        return super().get_attr(tx, name)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import fold_call

        rule = special_of(getattr(type(self.of.value), self.name, None))
        if rule is not None:
            return rule(tx, [self.of, *args], kwargs)
        if isinstance(self.of.value, str) and self.name == "join" and len(args) == 1:
            from engine.trace.values.sequences import sequence_items

            return tx.fold(self.of.value.join, tx.constants(sequence_items(tx, args[0])))
        if isinstance(self.of.value, str) and self.name in ("format", "format_map"):
            words = {name: shown(tx, value) for name, value in kwargs.items()}
            return tx.fold(getattr(self.of.value, self.name), *(shown(tx, a) for a in args), **words)
        return fold_call(
            tx, getattr(self.of.value, self.name), args, kwargs, f"{self.describe()} with values that are not constant"
        )

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.of.value)
        cg.out.attribute(self.name)


class BuiltinValue(HeldValue):
    """A function or method from C."""

    def describe(self) -> str:
        module = getattr(self.held, "__module__", None)
        name = getattr(self.held, "__qualname__", None) or getattr(self.held, "__name__", repr(self.held))
        if str(name).startswith("pybind11"):
            name = self.held.__name__
        return f"{module}.{name}" if module and module != "builtins" else str(name)

    def truth(self, tx: Tracer) -> bool:
        return True

    def python(self, tx: Tracer) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        return self.held

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.held, name))
        if not hasattr(self.held, name):
            tx.raise_error(AttributeError, f"'{type(self.held).__name__}' object has no attribute '{name}'")
        return tx.fixed(getattr(self.held, name))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import fold_call
        from engine.trace.values.torch_functions import is_leaf, is_pure, unbound_method

        made = by_subclass(tx, self.held, args, kwargs)
        if made is not None:
            return made
        rule = special_of(self.held)
        if rule is not None:
            check_arity(tx, imported_first(self.held) or self.held, args, kwargs)
            return rule(tx, args, kwargs)
        if is_leaf(self.held):
            return emit(tx, "call_function", self.held, args, kwargs)
        if is_pure(self.held):
            return fold_call(tx, self.held, args, kwargs, f"{self.describe()} with values that are not constant")
        method = unbound_method(tx, self.held, args, kwargs)
        if method is not None:
            return method
        getter = getattr(self.held, "__self__", None)
        if isinstance(getter, types.GetSetDescriptorType) and self.held.__name__ == "__get__" and args:
            return force(tx, args[0]).get_attr(tx, getter.__name__)
        raise Unsupported("unknown-call", f"{self.describe()} is called")

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.held)


_SCALARS = (int, float, bytes)


def by_subclass(tx: Tracer, held: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A class method from C called on a subclass, of which it makes an instance; None for any other callable."""
    cls = held.__self__ if type(held) is types.BuiltinFunctionType else None
    if not isinstance(cls, type) or cls in _SCALARS:
        return None
    name = held.__name__
    if name == "fromkeys" and issubclass(cls, dict) and cls.__flags__ & _HEAP:
        from engine.trace.values.mapping_subclasses import from_keys

        return from_keys(tx, cls, args, kwargs)
    base = next((b for b in _SCALARS if issubclass(cls, b)), None)
    if base is None or name.startswith("__"):
        return None
    made = tx.fixed(getattr(base, name)).call(tx, args, kwargs)
    return tx.fixed(cls).call(tx, [made], {})


_HEAP = 1 << 9


@wraps(types.MethodType)
def _method(tx: Tracer, real: types.MethodType, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was called")
    of = tx.lazy(real.__self__, Attr(origin, "__self__"))
    return BoundMethod(of, tx.wrap(real.__func__, Attr(origin, "__func__")), origin)


def _is_builtin(real: Any) -> bool:
    from engine.trace.values.torch_functions import is_leaf

    return (
        isinstance(
            real,
            (
                types.BuiltinFunctionType,
                types.MethodDescriptorType,
                types.WrapperDescriptorType,
                types.MethodWrapperType,
                types.ClassMethodDescriptorType,
                types.GetSetDescriptorType,
                types.MemberDescriptorType,
            ),
        )
        or is_leaf(real)
        or special_of(real) is not None
        or type(real).__module__ in ("operator", "_operator")
    )


@wraps_if(30, _is_builtin)
def _builtin(tx: Tracer, real: Any, origin: Origin) -> Value:
    owner = getattr(real, "__self__", None) if isinstance(real, types.BuiltinFunctionType) else None
    if type(owner).__name__.startswith("pybind11"):  # what pybind's functions are bound to tells nothing
        owner = None
    if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not is_leaf_or_special(real):
        return _bound_builtin(tx, real, owner, origin)
    tx.guard_object(real, origin, "it was called")
    return BuiltinValue(real, origin)


def is_leaf_or_special(real: Any) -> bool:
    """Whether calling a builtin has a rule of its own."""
    from engine.trace.values.torch_functions import is_leaf

    return is_leaf(real) or special_of(real) is not None


def _bound_builtin(tx: Tracer, real: Any, owner: Any, origin: Origin) -> Value:
    """A builtin method that was bound outside: ``items.append``."""
    tx.guard_type(real, origin, "it was called")
    tx.guard(Equals(Attr(origin, "__name__"), real.__name__, cause=tx.cause("it was called")))
    of = tx.wrap(owner, Attr(origin, "__self__"))
    bound = of.get_attr(tx, real.__name__)
    bound.origin = origin
    return bound
