"""Bound methods, partials, and functions from C."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.ir.origin import AttrSource, Source
from engine.ir.value_guard import EqualsMatch
from engine.trace.graph_builder import emit_node
from engine.trace.signals import Unsupported
from engine.trace.values.arity import check_arity, check_method_arity
from engine.trace.values.base import ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.values.rules import builtin_of_first_import, find_rule
from engine.trace.values.shown import format_proxy
from engine.trace.values.wrap import register_builder, register_builder_if

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.state import Tracer


class BoundMethodVariable(Variable):
    """A function with its first argument."""

    def __init__(self, of: Variable, function: Variable, source: Source | None = None, name: str = "") -> None:
        self.obj = of
        self.function = function
        self.source = source
        self.name = name

    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def hash_key(self, tx: Tracer) -> Any:
        return ("method", self.obj.hash_key(tx), self.function.hash_key(tx))

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if tx.direct_callee is self:
            tx.direct_callee = self.function
        return self.function.call(tx, [self.obj, *args], kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.obj
        if name == "__func__":
            return self.function
        return self.function.get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return [self.obj, self.function]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(types.MethodType))
        cg.load(self.function)
        cg.load(self.obj)
        cg.body.call(2)


class BuiltinMethodVariable(Variable):
    """A method of a builtin container, bound and not called yet."""

    def __init__(self, of: Variable, name: str) -> None:
        self.obj = of
        self.name = name

    def python_type(self) -> type:
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.obj.python_type().__name__}.{self.name}"

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        check_method_arity(tx, self.obj.python_type(), self.name, args, kwargs)
        return self.obj.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.obj
        if name == "__name__":
            return ConstantVariable(self.name)
        return super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return [self.obj]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.obj)
        cg.body.attribute(self.name)


class ConstantMethodVariable(Variable):
    """A method of a constant: run when called with constants."""

    def __init__(self, of: ConstantVariable, name: str) -> None:
        self.obj = of
        self.name = name

    def python_type(self) -> type:
        return type(getattr(self.obj.value, self.name))

    def describe(self) -> str:
        return f"{type(self.obj.value).__name__}.{self.name}"

    def as_python_constant(self, tx: Tracer) -> Any:
        return getattr(self.obj.value, self.name)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.obj
        if name in ("__name__", "__qualname__", "__doc__"):
            return tx.fold_constant(getattr, self.as_python_constant(tx), name)
        return super().get_attr(tx, name)

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        from engine.trace.operations import fold_constant_call

        rule = find_rule(getattr(type(self.obj.value), self.name, None))
        if rule is not None:
            return rule(tx, [self.obj, *args], kwargs)
        if isinstance(self.obj.value, str) and self.name == "join" and len(args) == 1:
            from engine.trace.values.sequences import sequence_items

            return tx.fold_constant(self.obj.value.join, tx.as_python_constants(sequence_items(tx, args[0])))
        if isinstance(self.obj.value, str) and self.name in ("format", "format_map"):
            words = {name: format_proxy(tx, value) for name, value in kwargs.items()}
            return tx.fold_constant(getattr(self.obj.value, self.name), *(format_proxy(tx, a) for a in args), **words)
        return fold_constant_call(
            tx, getattr(self.obj.value, self.name), args, kwargs, f"{self.describe()} with values that are not constant"
        )

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.obj.value)
        cg.body.attribute(self.name)


class BuiltinVariable(RealObjectVariable):
    """A function or method from C."""

    def describe(self) -> str:
        module = getattr(self.real_object, "__module__", None)
        name = getattr(self.real_object, "__qualname__", None) or getattr(
            self.real_object, "__name__", repr(self.real_object)
        )
        if str(name).startswith("pybind11"):
            name = self.real_object.__name__
        return f"{module}.{name}" if module and module != "builtins" else str(name)

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.real_object, name))
        if not hasattr(self.real_object, name):
            tx.raise_error(AttributeError, f"'{type(self.real_object).__name__}' object has no attribute '{name}'")
        return tx.wrap_static(getattr(self.real_object, name))

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        from engine.trace.operations import fold_constant_call
        from engine.trace.values.torch_functions import call_unbound_method, can_constant_fold, is_in_graph_function

        made = call_classmethod_on_subclass(tx, self.real_object, args, kwargs)
        if made is not None:
            return made
        rule = find_rule(self.real_object)
        if rule is not None:
            check_arity(tx, builtin_of_first_import(self.real_object) or self.real_object, args, kwargs)
            return rule(tx, args, kwargs)
        if is_in_graph_function(self.real_object):
            return emit_node(tx, "call_function", self.real_object, args, kwargs)
        if can_constant_fold(self.real_object):
            return fold_constant_call(
                tx, self.real_object, args, kwargs, f"{self.describe()} with values that are not constant"
            )
        method = call_unbound_method(tx, self.real_object, args, kwargs)
        if method is not None:
            return method
        getter = getattr(self.real_object, "__self__", None)
        if isinstance(getter, types.GetSetDescriptorType) and self.real_object.__name__ == "__get__" and args:
            return realize(tx, args[0]).get_attr(tx, getter.__name__)
        raise Unsupported("unknown-call", f"{self.describe()} is called")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.real_object)


_SCALARS = (int, float, bytes)


def call_classmethod_on_subclass(
    tx: Tracer, held: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A class method from C called on a subclass, of which it makes an instance; None for any other callable."""
    cls = held.__self__ if type(held) is types.BuiltinFunctionType else None
    if not isinstance(cls, type) or cls in _SCALARS:
        return None
    name = held.__name__
    if name == "fromkeys" and issubclass(cls, dict) and cls.__flags__ & _HEAP_TYPE_FLAG:
        from engine.trace.values.mapping_subclasses import subclass_fromkeys

        return subclass_fromkeys(tx, cls, args, kwargs)
    base = next((b for b in _SCALARS if issubclass(cls, b)), None)
    if base is None or name.startswith("__"):
        return None
    made = tx.wrap_static(getattr(base, name)).call(tx, args, kwargs)
    return tx.wrap_static(cls).call(tx, [made], {})


_HEAP_TYPE_FLAG = 1 << 9


@register_builder(types.MethodType)
def _method(tx: Tracer, real: types.MethodType, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it was called")
    of = tx.make_lazy(real.__self__, AttrSource(origin, "__self__"))
    return BoundMethodVariable(of, tx.wrap(real.__func__, AttrSource(origin, "__func__")), origin)


def _is_builtin(real: Any) -> bool:
    from engine.trace.values.torch_functions import is_in_graph_function

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
        or is_in_graph_function(real)
        or find_rule(real) is not None
        or type(real).__module__ in ("operator", "_operator")
    )


@register_builder_if(30, _is_builtin)
def _builtin(tx: Tracer, real: Any, origin: Source) -> Variable:
    owner = getattr(real, "__self__", None) if isinstance(real, types.BuiltinFunctionType) else None
    if type(owner).__name__.startswith("pybind11"):  # what pybind's functions are bound to tells nothing
        owner = None
    if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not has_call_rule(real):
        return _bound_builtin(tx, real, owner, origin)
    tx.guard_identity(real, origin, "it was called")
    return BuiltinVariable(real, origin)


def has_call_rule(real: Any) -> bool:
    """Whether calling a builtin has a rule of its own."""
    from engine.trace.values.torch_functions import is_in_graph_function

    return is_in_graph_function(real) or find_rule(real) is not None


def _bound_builtin(tx: Tracer, real: Any, owner: Any, origin: Source) -> Variable:
    """A builtin method that was bound outside: ``items.append``."""
    tx.guard_type(real, origin, "it was called")
    tx.add_guard(EqualsMatch(AttrSource(origin, "__name__"), real.__name__, cause=tx.guard_cause("it was called")))
    of = tx.wrap(owner, AttrSource(origin, "__self__"))
    bound = of.get_attr(tx, real.__name__)
    bound.source = origin
    return bound
