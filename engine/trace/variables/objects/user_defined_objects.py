"""Variables for user-defined objects and opaque objects."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from engine.bytecode.opcodes import VERSION
from engine.frame_code.codegen_runtime.objects import new_object
from engine.ir.guards.aliasing import SameObject
from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.operators.arithmetic import compare_op, identical_or_equal, is_same_object
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    RealObjectVariable,
    Variable,
    describe_attribute_writes,
    is_not_implemented,
    raise_missing_method,
    realize,
    unwrap_not_implemented,
)
from engine.trace.variables.builder import guarded_builder, register_builder_if
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.itertools_module import make_getitem_iterator
from engine.trace.variables.objects.attribute_binding import bind_attribute
from engine.trace.variables.objects.class_lookup import find_in_class, has_user_method, is_plain_class
from engine.trace.variables.objects.id_and_hash import HashVariable, UserHashKey
from engine.trace.variables.objects.instance_attributes import InstanceVariable

ObjectMethod = Callable[["Tracer", InstanceVariable, Args, Kwargs], Variable]
NOT_IMPLEMENTED = ConstantVariable(NotImplemented)


def _attribute_name(tx: Tracer, args: Args) -> str:
    return str(realize(tx, args[0]).as_python_constant(tx))


def _setattr(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    of.generic_set_attr(tx, _attribute_name(tx, args), args[1])
    return NONE


def _delattr(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    of.generic_del_attr(tx, _attribute_name(tx, args))
    return NONE


def _init(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Extra arguments are allowed only if ``__new__`` is overridden but ``__init__`` is not."""
    for name, owner in (("__init__", "object"), ("__new__", of.cls.__name__)) if args or kwargs else ():
        if has_user_method(of.cls, name) == (name == "__init__"):
            tx.raise_type_error(f"{owner}.__init__() takes exactly one argument (the instance to initialize)")
    return NONE


def _eq(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(True) if is_same_object(tx, of, args[0]) else NOT_IMPLEMENTED


def _ne(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Return the inverse of ``__eq__``."""
    if is_same_object(tx, of, args[0]):
        return ConstantVariable(False)
    equal = of.call_user_method(tx, "__eq__", [args[0]])
    if equal is None or is_not_implemented(equal):
        return NOT_IMPLEMENTED
    return ConstantVariable(not equal.is_truthy(tx))


def _format(tx: Tracer, of: InstanceVariable, args: Args, kwargs: Kwargs) -> Variable:
    if realize(tx, args[0]).as_python_constant(tx) != "":
        raise of.unsupported("object's method '__format__'", "unsupported-method")
    return realize(tx, tx.wrap_static(str).call(tx, [of], {}))


OBJECT_METHODS: dict[str, ObjectMethod] = {
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getattribute__": lambda tx, of, args, kwargs: of.object_getattribute(tx, _attribute_name(tx, args)),
    "__init__": _init,
    "__init_subclass__": lambda tx, of, args, kwargs: NONE,
    "__eq__": _eq,
    "__ne__": _ne,
    **dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__"), lambda tx, of, args, kwargs: NOT_IMPLEMENTED),
    "__str__": lambda tx, of, args, kwargs: realize(tx, tx.wrap_static(repr).call(tx, [of], {})),
    "__format__": _format,
}
"""Methods of ``object`` called on a user-defined object, not on an override of its class."""


class UserOperators(Variable):
    """An operand whose class may define special methods in Python."""

    def call_special_method(self, tx: Tracer, name: str, args: Args) -> Variable:
        """Call a special method; raise Python's TypeError if it is missing."""
        raise NotImplementedError

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return self._call_operator_method(tx, op.method, right)

    inplace = binary

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return self._call_operator_method(tx, op.reflected, left)

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "!=" or self.lookup_special_method(tx, "__ne__") is not None:
            return self._call_operator_method(tx, op.method, right)
        equal = self._call_operator_method(tx, "__eq__", right)
        return NotImplemented if equal is NotImplemented else ConstantVariable(not equal.is_truthy(tx))

    def _call_operator_method(self, tx: Tracer, name: str, other: Variable) -> OperatorResult:
        """Call a special method of two operands; NotImplemented if the class has none."""
        result = self.call_user_method(tx, name, [other])
        return NotImplemented if result is None else unwrap_not_implemented(result)

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return self.call_special_method(tx, op.method, [])

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        """Return the object if its class handles torch functions: the operator dispatches to it."""
        return self if self.has_torch_function else None


_DISABLED_BY_NONE = frozenset(("__iter__", "__contains__", "__hash__", "__reversed__"))
"""Special methods that None disables; another special method set to None is called."""


class UserDefinedObjectVariable(UserOperators, InstanceVariable):
    """A user-defined object: operations on it call the special methods of its class."""

    is_user_object = True
    must_not_be_copied = True
    may_have_torch_function = True

    def describe_mutation(self) -> str:
        return "__dict__ is set" if self.dict_was_assigned else describe_attribute_writes(self.attr_writes)

    def describe(self) -> str:
        return f"{self.cls.__name__} object"

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        """Return a bound special method that a user class defines; None without one."""
        entry = find_in_class(self.cls, name)
        if entry is None or entry.owner is object or entry.raw is None:
            return None
        return bind_attribute(tx, self.cls, entry.owner, name, entry.raw, self)

    def call_special_method(self, tx: Tracer, name: str, args: Args) -> Variable:
        """Call a special method; raise Python's TypeError if it is missing."""
        method = self.lookup_special_method(tx, name)
        if method is None and self._is_set_to_none(name) and name not in _DISABLED_BY_NONE:
            return tx.raise_type_error("'NoneType' object is not callable")
        if method is None:
            return raise_missing_method(tx, self.cls, name)  # type: ignore[no-any-return]
        return realize(tx, method.call(tx, args, {}))

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        direct = tx.call_stack.direct_callee is self
        method = self.lookup_special_method(tx, "__call__")
        if method is None:
            return tx.raise_type_error(f"'{self.cls.__name__}' object is not callable")
        tx.call_stack.direct_callee = method if direct else None
        return method.call(tx, args, kwargs)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if not name.startswith("object."):
            return super().call_method(tx, name, args, kwargs)
        method = OBJECT_METHODS.get(name.removeprefix("object."))
        if method is None:
            raise self.unsupported(f"object's method {name.removeprefix('object.')!r}", "unsupported-method")
        return method(tx, self, args, kwargs)

    def call_c_method(self, tx: Tracer, owner: builtins.type, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        return self.call_method(tx, f"object.{name}", args, kwargs) if owner is object else None

    def is_truthy(self, tx: Tracer) -> bool:
        if self._is_set_to_none("__bool__"):
            raise_missing_method(tx, self.cls, "__bool__")
        truth = self.call_user_method(tx, "__bool__", [])
        if truth is not None:
            if not issubclass(truth.python_type(), bool):
                tx.raise_type_error(f"__bool__ should return bool, returned {truth.python_type().__name__}")
            return truth.is_truthy(tx)
        return self.lookup_special_method(tx, "__len__") is None or self.length(tx).is_truthy(tx)

    def _is_set_to_none(self, name: str) -> bool:
        """Return True if the class sets this special method to None."""
        entry = find_in_class(self.cls, name)
        return entry is not None and entry.raw is None

    def length(self, tx: Tracer) -> Variable:
        count = self.call_special_method(tx, "__len__", [])
        is_number = count.is_symbolic or count.python_type() is int
        if is_number and realize(tx, compare_op(tx, ">=", count, ConstantVariable(0))).is_truthy(tx):
            return count
        raise self.unsupported("a __len__ that returns no positive number", "builtin-arguments")

    def get_iterator(self, tx: Tracer) -> Variable:
        if self._is_set_to_none("__iter__"):
            raise_missing_method(tx, self.cls, "__iter__")
        if (
            self.lookup_special_method(tx, "__iter__") is None
            and self.lookup_special_method(tx, "__getitem__") is not None
        ):
            return make_getitem_iterator(tx, self)
        iterator = self.call_special_method(tx, "__iter__", [])
        if find_in_class(iterator.python_type(), "__next__") is None:
            tx.raise_type_error(f"iter() returned non-iterator of type '{iterator.python_type().__name__}'")
        return iterator

    def next_item(self, tx: Tracer) -> Variable | None:
        try:
            return self.call_special_method(tx, "__next__", [])
        except UserException as error:
            if issubclass(error.exception.python_type(), StopIteration):
                return None
            raise

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self.call_special_method(tx, "__getitem__", [key])

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        self.call_special_method(tx, "__setitem__", [key, value])

    def del_item(self, tx: Tracer, key: Variable) -> None:
        self.call_special_method(tx, "__delitem__", [key])

    def contains(self, tx: Tracer, item: Variable) -> bool:
        is_member = self.call_user_method(tx, "__contains__", [item])
        if is_member is not None:
            return is_member.is_truthy(tx)
        if self._is_set_to_none("__contains__"):
            raise_missing_method(tx, self.cls, "__contains__")
        if all(self.lookup_special_method(tx, name) is None for name in ("__iter__", "__getitem__")):
            raise_missing_method(tx, self.cls, "__contains__")
        return any(identical_or_equal(tx, realize(tx, i), item) for i in tx.unpack_iterable(self))

    def hash_key(self, tx: Tracer) -> Any:
        entry = find_in_class(self.cls, "__hash__")
        if entry is not None and entry.raw is not object.__dict__["__hash__"]:
            method = self.lookup_special_method(tx, "__hash__")
            if method is None:
                return tx.raise_error(TypeError, f"unhashable type: '{self.cls.__name__}'", is_exact=False)
            mutations_before = tx.side_effects.mutation_count
            try:
                hash_result = realize(tx, method.call(tx, [], {}))
            except UserException as raised:
                if VERSION >= (3, 14) and raised.exception.python_type() is TypeError:  # dicts and sets reword it
                    tx.raise_error(TypeError, f"cannot use a '{self.cls.__name__}'", is_exact=False)
                raise
            number = (
                hash_result.hash_value if isinstance(hash_result, HashVariable) else hash_result.as_python_constant(tx)
            )
            if not issubclass(hash_result.python_type(), int):
                return tx.raise_type_error("__hash__ method should return an integer")
            return UserHashKey(tx, self, number, has_effects=tx.side_effects.mutation_count != mutations_before)
        return tx.objects.as_identity_key(self)

    def reconstruct(self, cg: PyCodegen) -> None:
        if not is_plain_class(self.cls):
            raise Unsupported("rebuild-value", f"rebuilding a {self.cls.__name__} after the graph")
        cg.call(new_object, self.cls)
        self.fill_or_defer(cg)


class OpaqueObjectVariable(RealObjectVariable):
    """An object of which only the type is known; traced code just passes it on."""

    is_mutable = True

    def describe(self) -> str:
        return f"{type(self.real_object).__module__}.{type(self.real_object).__qualname__} object"

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        """Return a bound method of the C class, so that the graph breaks once, at its call."""
        return super().get_attr(tx, name) if self._c_method(name) is None else BuiltinMethodVariable(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        method = self._c_method(name)
        if method is None:
            return super().call_method(tx, name, args, kwargs)
        kind = unknown_call_kind(method)
        if kind == "unknown-call":
            raise self.unsupported_method(name)
        raise Unsupported(kind, f"{self.describe()}: {name}() is called")

    def _c_method(self, name: str) -> Any:
        entry = find_in_class(type(self.real_object), name)
        return entry.raw if entry is not None and isinstance(entry.raw, types.MethodDescriptorType) else None

    def hash_key(self, tx: Tracer) -> Any:
        assert self.source is not None
        tx.guard_identity(self.real_object, self.source, "it is a key of a dict or an element of a set")
        return self.real_object


@register_builder_if(90, lambda real: is_plain_class(type(real)), why="its attributes or methods were used")
def _object(tx: Tracer, real: Any, source: Source) -> Variable:
    variable = UserDefinedObjectVariable(type(real), source, real)
    register_instance_dict(tx, variable)
    return variable


def register_instance_dict(tx: Tracer, value: UserDefinedObjectVariable) -> None:
    """Register the ``__dict__`` of an object, so that all references to it share one state.

    A dict that already has a variable holds the attributes from now on.
    """
    real_dict = getattr(value.real_object, "__dict__", None)
    if type(real_dict) is not dict or value.source is None:
        return
    first_owner = tx.objects.variables_by_dict_id.setdefault(id(real_dict), value)
    dict_variable = tx.objects.variables_by_id.get(id(real_dict))
    if first_owner is not value:  # two objects share one dict
        value.shared_dict = first_owner.get_attr(tx, "__dict__")
    elif dict_variable is not None:
        value.shared_dict = dict_variable[0]
    if value.shared_dict is not None and value.shared_dict.source is not None:
        dict_source = AttrSource(value.source, "__dict__")
        tx.guard(SameObject, dict_source, value.shared_dict.source, True, why="it holds the attributes of an object")


register_builder_if(100, lambda real: True)(guarded_builder(OpaqueObjectVariable, "it was used", by_type=True))
