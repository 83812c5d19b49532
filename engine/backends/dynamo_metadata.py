"""Metadata of traced nodes as Dynamo's graphs have it, for backends of users."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable

import torch

from engine.ir.guards.base import Guard
from engine.ir.node_metadata import provenance_of
from engine.ir.sources.base import module_path
from engine.records.bytecode import Span

_DEFINITION = re.compile(r"(\s*)(?:async\s+)?def\s+(\w+)")
Modules = dict[str, tuple[str, type]]


def add_dynamo_metadata(graph: torch.fx.Graph, guards: Iterable[Guard]) -> None:
    """Set ``stack_trace``, ``nn_module_stack`` and ``source_fn_stack`` of each operation.

    The classes of modules come from the guards on their types.
    """
    types = ((g.source, g.implied_type) for g in guards)
    modules = {
        module_path(s): (s.expr, cls) for s, cls in types if cls is not None and issubclass(cls, torch.nn.Module)
    }
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        origin = provenance_of(node)
        node.meta["stack_trace"] = "".join(map(_traceback_entry, origin.stack))
        node.meta["nn_module_stack"] = _module_stack(origin.module, modules)
        node.meta["source_fn_stack"] = [(node.name, node.target)]


def _module_stack(path: str, modules: Modules) -> Modules:
    """Return the modules around an operation, outermost first, by their expression."""
    parts = path.split(".") if path else []
    paths = (".".join(parts[:n]) for n in range(len(parts) + 1))
    return {modules[p][0]: modules[p] for p in paths if p in modules}


def _traceback_entry(span: Span) -> str:
    text = linecache.getline(span.file, span.line).strip()
    return f'  File "{span.file}", line {span.line}, in {_function_at(span)}\n    {text}\n'


def _function_at(span: Span) -> str:
    """Return the name of the function that contains a line, as its source shows it."""
    lines = linecache.getlines(span.file)[: span.line]
    indent = len(lines[-1]) - len(lines[-1].lstrip()) if lines else 0
    for line in reversed(lines[:-1]):
        definition = _DEFINITION.match(line)
        if definition is not None and len(definition[1]) < indent:
            return definition[2]
    return "<module>"
