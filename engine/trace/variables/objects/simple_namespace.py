"""Variable for ``types.SimpleNamespace``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.operators import arithmetic
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.dicts import mapping_entries
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable, register_instance_dict


class SimpleNamespaceVariable(UserDefinedObjectVariable):
    """A ``SimpleNamespace``, external or created while tracing."""

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        return BuiltinMethodVariable(self, name) if name in ("__eq__", "__ne__", "__repr__", "__str__") else None

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "__eq__" | "__ne__":
                return self._compare(tx, name, realize(tx, args[0]))
            case "__repr__" | "__str__":
                return tx.fold_constant(repr, self.as_python_constant(tx))
        return super().call_method(tx, name, args, kwargs)

    def has_generic_setattr(self, base: type) -> bool:
        return True

    def del_attr(self, tx: Tracer, name: str) -> None:
        if self.get_instance_attr(tx, name) is None:
            tx.raise_error(AttributeError, name)
        self.generic_set_attr(tx, name, None)

    def _compare(self, tx: Tracer, name: str, other: Variable) -> Variable:
        if not issubclass(other.python_type(), SimpleNamespace):
            return ConstantVariable(NotImplemented)
        equal = arithmetic.identical_or_equal(tx, self.get_attr(tx, "__dict__"), other.get_attr(tx, "__dict__"))
        return ConstantVariable(equal == (name == "__eq__"))

    def hash_key(self, tx: Tracer) -> Any:
        return tx.raise_error(TypeError, "unhashable type: 'types.SimpleNamespace'", is_exact=False)

    def as_python_constant(self, tx: Tracer) -> Any:
        attributes = realize(tx, self.get_attr(tx, "__dict__")).as_python_constant(tx)
        return SimpleNamespace(**attributes)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(SimpleNamespace)
        cg.defer_fill(self)


@register_builder(SimpleNamespace, why="its attributes were used")
def _namespace(tx: Tracer, real: SimpleNamespace, source: Source) -> Variable:
    namespace = SimpleNamespaceVariable(SimpleNamespace, source, real)
    register_instance_dict(tx, namespace)
    return namespace


@register_rule(SimpleNamespace)
def _construct_namespace(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    namespace = SimpleNamespaceVariable(SimpleNamespace, None, NotImplemented)
    for key, value in mapping_entries(tx, args[0]) if args else []:
        namespace.generic_set_attr(tx, str(realize(tx, key).as_python_constant(tx)), value)
    for name, value in kwargs.items():
        namespace.generic_set_attr(tx, name, value)
    return namespace
