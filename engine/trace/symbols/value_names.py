"""Names of traced values in the user's words, for reasons of graph breaks."""

from __future__ import annotations

from typing import Any

from engine.ir.guards.base import STACK_VALUE_TEXT, user_expr
from engine.ir.sources.base import STACK_PARAM_PREFIX
from engine.ir.user_code_files import is_library_file
from engine.trace.annotations import Tracer, Variable
from engine.trace.exc import Unsupported
from engine.trace.symbols.unbacked_symints import describe_number, expression_of


def name_value(tx: Tracer, value: Any) -> str:
    """Return a value as the user would call it, with its type: ``mask.any() (tensor b8[])``.

    It is the variable that holds the value, or the expression that reads or computes it.
    """
    value = value.resolved
    node = value.node if value.is_symbolic else getattr(value, "_tensor", value).node_or_none  # that of an array
    kind = value.python_type().__name__ if value.is_symbolic else value.describe()
    name = _local_name(tx, value) or _source_name(value) or ("" if node is None else expression_of(node))
    if not name and value.is_symbolic:
        name = describe_number(tx, value.sym.node.expr)
    return f"{name} ({kind})" if name and name != kind else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def unknown_value_break(tx: Tracer, value: Variable) -> Unsupported:
    """Return the graph break where Python needs a value that is not known yet."""
    needed = f"Python needs the value of {name_value(tx, value)}"
    if value.is_graph_value or value.is_numpy_array:
        return Unsupported("data-dependent", f"{needed}, and it is known only when the graph runs")
    why = "traced code creates it" if value.source is None else "it may change between calls"
    return Unsupported("unsupported-operation", f"{needed}, and {why}")


def _local_name(tx: Tracer, value: Variable) -> str:
    frames = [f for f in reversed(tx.call_stack.frames) if not is_library_file(f.code.co_filename)]
    names = (n for f in frames for n, v in f.locals.items() if v.resolved is value)
    return next((n for n in names if n.isidentifier() and not n.startswith(STACK_PARAM_PREFIX)), "")


def _source_name(value: Variable) -> str:
    name = "" if value.source is None else user_expr(value.source)
    return "" if STACK_VALUE_TEXT in name else name
