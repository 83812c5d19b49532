"""``globals()`` of the calling function, and ``sys.modules``, as dict variables."""

from __future__ import annotations

import sys

from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.base import MISSING, GlobalsNamespace
from engine.ir.sources.roots import GlobalSource, OptionalGlobalSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import builtin_attribute


class GlobalsDictVariable(Variable):
    """A dict that any code may add names to: reads and writes by name.

    Listing the names is unsupported.
    """

    cls = dict
    namespace: GlobalsNamespace

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def lookup(self, tx: Tracer, key: Variable) -> Variable | None:
        """Return the global variable of that name; None if there is none."""
        if not issubclass(key.python_type(), str):
            raise self.unsupported("reading a key that is not a name")
        name = key.as_python_constant(tx)
        global_key = (self.namespace, name)
        if global_key in tx.side_effects.global_writes:
            return tx.side_effects.global_writes[global_key]
        if name in self.namespace.values:
            return realize(tx, tx.wrap(self.namespace.values[name], GlobalSource(name, self.namespace)))
        why = f"there was no global variable {name}"
        tx.guard(IdMatch, OptionalGlobalSource(name, self.namespace), MISSING, why=why)
        return None

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return self.lookup(tx, item) is not None

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self.lookup(tx, key) or tx.raise_key_error(key)

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        if not issubclass(key.python_type(), str):
            raise self.unsupported("setting a key that is not a name")
        tx.side_effects.record_global_write(self.namespace, key.as_python_constant(tx), value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        operands = [realize(tx, a) for a in args]
        match name, len(operands):
            case "get", (1 | 2):
                return self.lookup(tx, operands[0]) or (operands[1] if len(operands) == 2 else NONE)
            case "__getitem__", 1:
                return self.get_item(tx, operands[0])
            case "__contains__", 1:
                return ConstantVariable(self.contains(tx, operands[0]))
        owner = "sys.modules" if self.namespace.values is sys.modules else "globals()"
        raise self.unsupported(f"the method {name!r} of {owner}", "unsupported-method")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_namespace(self.namespace)


@register_rule(globals)
def _globals(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    namespace = tx.frame.globals
    return tx.objects.variables_by_dict_id.setdefault(id(namespace.values), GlobalsDictVariable(namespace))
