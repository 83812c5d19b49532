"""Side effects on existing objects, which generated code applies after the graph.

They change contents, attributes, globals and cells.
"""

from __future__ import annotations

from engine.ir.sources.base import GlobalsNamespace
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.variables.base import Variable


def side_effect_variables(tx: Tracer) -> list[Variable]:
    """Return the variables that side effects will load, for codegen's search for cycles."""
    variables: list[Variable] = [v for v in tx.side_effects.global_writes.values() if v is not None]
    for value in tx.side_effects.mutated_variables.values():
        variables.extend(value.child_variables())
    return [*variables, *(call for call, _ in tx.side_effects.side_effect_calls)]


def emit_side_effects(tx: Tracer, cg: PyCodegen) -> tuple[str, ...]:
    """Emit all side effects in order of first occurrence; return their descriptions."""
    descriptions: list[str] = []
    for value in list(tx.side_effects.mutated_variables.values()):
        text = value.emit_mutation(cg)
        if text:
            descriptions.append(text)
        cg.fill_deferred()
    for (namespace, name), written in tx.side_effects.global_writes.items():
        _emit_global_write(tx, cg, namespace, name, written)
        descriptions.append(f"the global {name} is {'deleted' if written is None else 'set'}")
    cg.fill_deferred()
    for call, description in tx.side_effects.side_effect_calls:
        cg.load(call)
        cg.body.emit("POP_TOP")
        descriptions.append(description)
    cg.fill_deferred()
    return tuple(descriptions)


def _emit_global_write(
    tx: Tracer, cg: PyCodegen, namespace: GlobalsNamespace, name: str, value: Variable | None
) -> None:
    is_own = namespace.values is tx.request.function.__globals__
    if value is not None:
        cg.load(value)
    if value is None or (namespace, name) in tx.side_effects.reordered_globals:
        _emit_on_global(cg, "DELETE", namespace, name, is_own=is_own)
    if value is not None:
        _emit_on_global(cg, "STORE", namespace, name, is_own=is_own)


def _emit_on_global(cg: PyCodegen, verb: str, namespace: GlobalsNamespace, name: str, *, is_own: bool) -> None:
    """Emit a store of the top of the stack to a global, or its deletion, as ``verb`` says."""
    if is_own:
        cg.body.emit(f"{verb}_GLOBAL", name)
        return
    cg.load_namespace(namespace)
    cg.load_const(name)
    cg.body.emit(f"{verb}_SUBSCR")
