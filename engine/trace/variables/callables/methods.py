"""Variables for bound methods and C functions."""

from __future__ import annotations

import collections
import types
from pathlib import PurePath
from typing import Any, ClassVar

from engine.ir.introspection.callable_arity import arity_of
from engine.ir.introspection.literal_types import FILE_SYSTEM_METHODS
from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import fold_constant_call, is_same_object
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, UserErrors, Variable, type_name
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import find_rule
from engine.trace.variables.slotted_type import state
from engine.trace.variables.stdlib.string_format import format_proxy

_CONTAINERS: tuple[type, ...] = (
    *(list, dict, set, frozenset, tuple),
    *(collections.deque, collections.OrderedDict, collections.defaultdict),
)


def check_arity(tx: Tracer, real: Any, args: Args, kwargs: Kwargs, receiver: tuple[Any, ...] = ()) -> None:
    """Raise Python's TypeError if a C callable does not accept these arguments."""
    arity = arity_of(real)
    if arity is None or arity.accepts(len(receiver) + len(args), kwargs):
        return
    with UserErrors(tx, TypeError):
        real(*receiver, *[object()] * len(args), **dict.fromkeys(kwargs, object()))


def check_method_arity(tx: Tracer, cls: type, name: str, args: Args, kwargs: Kwargs) -> None:
    """Raise Python's TypeError if a builtin container method does not accept these arguments."""
    method = getattr(cls, name, None)
    if cls in _CONTAINERS and method is not None:
        check_arity(tx, method, args, kwargs, (cls(),))


class BoundMethodVariable(Variable):
    """A bound method: a function and its ``self``."""

    obj: Variable
    function: Variable
    source: Source | None = None
    name: str = ""
    cls = types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def hash_key(self, tx: Tracer) -> Any:
        return ("method", self.obj.hash_key(tx), self.function.hash_key(tx))

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if not op.is_equality or right.python_type() is not types.MethodType:
            return NotImplemented
        names = "__self__", "__func__"
        is_equal = all(is_same_object(tx, self.get_attr(tx, name), right.get_attr(tx, name)) for name in names)
        return ConstantVariable(is_equal == (op.symbol == "=="))

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if tx.call_stack.direct_callee is self:
            tx.call_stack.direct_callee = self.function
        return self.function.call(tx, [self.obj, *args], kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.obj
        if name == "__func__":
            return self.function
        return self.function.get_attr(tx, name)

    child_fields = ("obj", "function")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(types.MethodType, self.function, self.obj)


class BuiltinMethodVariable(Variable):
    """A bound method of a builtin container."""

    obj: Variable
    name: str
    source: Source | None = state(None)
    cls = types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.obj.python_type().__name__}.{self.name}"

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        check_method_arity(tx, self.obj.python_type(), self.name, args, kwargs)
        return self.obj.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.obj
        if name == "__name__":
            return ConstantVariable(self.name)
        return super().get_attr(tx, name)

    child_fields = ("obj",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.obj)
        cg.body.attribute(self.name)


class VariableWithMethods(Variable):
    """An object whose class has ``methods``, which ``call_method`` implements."""

    methods: ClassVar[tuple[str, ...]] = ()

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        is_method = name in self.methods and hasattr(self.python_type(), name)
        return BuiltinMethodVariable(self, name) if is_method else super().get_attr(tx, name)


def builtin_attribute(tx: Tracer, of: Variable, name: str) -> Variable:
    """Return an attribute of a C class: a bound method, the class or a constant."""
    cls = of.python_type()
    if name == "__class__":
        return tx.wrap_static(cls)
    if of.lacks_methods(name):
        return tx.raise_error(AttributeError, f"'{type_name(cls)}' object has no attribute '{name}'")
    attribute = getattr(cls, name)
    if callable(attribute):
        return BuiltinMethodVariable(of, name)
    if attribute is None or name == "__doc__":
        return ConstantVariable(attribute)
    raise of.unsupported_attribute("reading", name)


class ConstantMethodVariable(Variable):
    """A bound method of a constant; a call with constants is folded."""

    obj: ConstantVariable
    name: str
    source: Source | None = state(None)

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

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        rule = find_rule(getattr(type(self.obj.value), self.name, None))
        if rule is not None:
            return rule(tx, [self.obj, *args], kwargs)
        if self.name in FILE_SYSTEM_METHODS and issubclass(self.obj.python_type(), PurePath):
            raise Unsupported("file-system", f"{self.describe()} is called")
        is_text = issubclass(self.obj.python_type(), str)
        if is_text and self.name == "join" and len(args) == 1:
            return tx.fold_constant(self.obj.value.join, tx.as_python_constants(tx.unpack_iterable(args[0])))
        if is_text and self.name in ("format", "format_map"):
            proxies = {name: format_proxy(tx, value) for name, value in kwargs.items()}
            return tx.fold_constant(getattr(self.obj.value, self.name), *(format_proxy(tx, a) for a in args), **proxies)
        return fold_constant_call(tx, getattr(self.obj.value, self.name), args, kwargs, f"{self.describe()}()")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.obj.value)
        cg.body.attribute(self.name)


@register_builder(types.MethodType, why="it was called")
def _method(tx: Tracer, real: types.MethodType, source: Source) -> Variable:
    of = tx.make_lazy(real.__self__, AttrSource(source, "__self__"))
    return BoundMethodVariable(of, tx.wrap(real.__func__, AttrSource(source, "__func__")), source)
