"""Side effects on existing objects, which generated code applies after the graph.

They change contents, attributes, globals and cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bytecode.instr import FreeVar

from engine.ir.sources.attributes import AttrSource, CellContentsSource
from engine.ir.sources.base import GlobalsNamespace
from engine.ir.sources.roots import ClosureSource
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.callables.suspended_generators import SuspendedGeneratorVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.external_iterators import ExternalIteratorVariable
from engine.trace.variables.containers.sequences import ListVariable
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.stdlib.context_vars import ContextVarVariable
from engine.trace.variables.stdlib.random_numbers import RandomVariable
from engine.trace.variables.tensors.tensor import TensorVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


def side_effect_variables(tx: Tracer) -> list[Variable]:
    """Return the variables that side effects will load, for codegen's search for cycles."""
    found: list[Variable] = [v for v in tx.side_effects.global_writes.values() if v is not None]
    for value in tx.side_effects.mutated_variables.values():
        found.extend(value.child_variables())
    return [*found, *(call for call, _ in tx.side_effects.side_effect_calls)]


def emit_side_effects(tx: Tracer, cg: PyCodegen) -> tuple[str, ...]:
    """Emit all side effects in order of first occurrence; return their descriptions."""
    told: list[str] = []
    for value in list(tx.side_effects.mutated_variables.values()):
        text = _emit_mutation(cg, value)
        if text:
            told.append(text)
        cg.fill_deferred()
    for (namespace, name), written in tx.side_effects.global_writes.items():
        _emit_global_write(tx, cg, namespace, name, written)
        told.append(f"the global {name} is {'deleted' if written is None else 'set'}")
    cg.fill_deferred()
    for call, words in tx.side_effects.side_effect_calls:
        cg.load(call)
        cg.body.emit("POP_TOP")
        told.append(words)
    cg.fill_deferred()
    return tuple(told)


def _emit_mutation(cg: PyCodegen, value: Variable) -> str:
    if isinstance(value, CellVariable):
        return _emit_cell_write(cg, value)
    if isinstance(value, (ListVariable, DictVariable, SetVariable)):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: contents of the {value.python_type().__name__} are replaced"
    if isinstance(value, (UserDefinedObjectVariable, TensorVariable)):
        is_assigned = isinstance(value, UserDefinedObjectVariable) and value.dict_was_assigned
        if not value.attr_writes and not is_assigned:
            return ""
        cg.load(value)
        value.fill(cg)
        if is_assigned:
            return f"{_target_name(value)}: __dict__ is set"
        return f"{_target_name(value)}: {', '.join(value.attr_writes)} {'is' if len(value.attr_writes) == 1 else 'are'} set"
    if isinstance(value, ExternalIteratorVariable):
        if not value.steps_taken:
            return ""
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the iterator is advanced by {value.steps_taken}"
    if isinstance(value, SuspendedGeneratorVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the generator is exhausted"
    if isinstance(value, RandomVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the random number state is set"
    if isinstance(value, ContextVarVariable):
        cg.load(value)
        value.fill(cg)
        return f"{_target_name(value)}: the context variable is set" if value.deferred_steps else ""
    raise Unsupported("rebuild-value", f"changing a {value.python_type().__name__}")


def _target_name(value: Variable) -> str:
    return value.source.expr if value.source is not None else value.describe()


def _emit_cell_write(cg: PyCodegen, value: CellVariable) -> str:
    match value.source:
        case ClosureSource(variable):
            if value.content is None:
                cg.body.emit("DELETE_DEREF", FreeVar(variable))
            else:
                cg.load(value.content)
                cg.body.emit("STORE_DEREF", FreeVar(variable))
            return f"the closure variable {variable} is set"
        case CellContentsSource(base, index, variable):
            if value.content is None:
                raise Unsupported("closure-variable", "a closure variable of another function is deleted")
            cg.load(value.content)
            cg.load_source(AttrSource(base, "__closure__"))
            cg.body.subscript(index)
            cg.body.emit("STORE_ATTR", "cell_contents")
            return f"the closure variable {variable} is set"
    raise Unsupported("closure-variable", "a closure variable is set")


def _emit_global_write(
    tx: Tracer, cg: PyCodegen, namespace: GlobalsNamespace, name: str, value: Variable | None
) -> None:
    own = namespace.values is tx.request.function.__globals__
    if value is not None:
        cg.load(value)
    if value is None or (namespace, name) in tx.side_effects.reordered_globals:
        _emit_on_global(cg, "DELETE", namespace, name, own=own)
    if value is not None:
        _emit_on_global(cg, "STORE", namespace, name, own=own)


def _emit_on_global(cg: PyCodegen, verb: str, namespace: GlobalsNamespace, name: str, *, own: bool) -> None:
    """Emit a store of the top of the stack to a global, or its deletion, as ``verb`` says."""
    if own:
        cg.body.emit(f"{verb}_GLOBAL", name)
        return
    cg.load_namespace(namespace)
    cg.load_const(name)
    cg.body.emit(f"{verb}_SUBSCR")
