"""Handlers of imports inside functions."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.opcode_registry import handles
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule


@handles("IMPORT_NAME")
def _import(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    names = realize(tx, frame.stack.pop()).as_python_constant(tx)
    level = realize(tx, frame.stack.pop()).as_python_constant(tx)
    full = op.argval
    if level:
        package = str(frame.globals.values.get("__package__") or frame.globals.name.rpartition(".")[0])
        full = importlib.util.resolve_name("." * level + op.argval, package)
    if full not in sys.modules:
        raise Unsupported("first-import", f"{full} is imported for the first time")
    module = sys.modules[full] if names or level else sys.modules[full.partition(".")[0]]
    frame.push(tx.wrap_static(module, module.__name__))


@register_rule(importlib.import_module)
def _import_module(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    name, package = [*tx.as_python_constants([*args, *kwargs.values()]), None][:2]
    if type(name) is str and name.startswith(".") and package and not kwargs:
        name = importlib.util.resolve_name(name, package)
    elif type(name) is not str or len(args) + len(kwargs) != 1 or not kwargs.keys() <= {"name"}:
        raise Unsupported(
            "builtin-arguments", "importlib.import_module is called with arguments other than one module name"
        )
    module = sys.modules.get(name)
    if module is None:
        raise Unsupported("first-import", f"{name} is imported for the first time")
    return tx.wrap_static(module, name)


@handles("IMPORT_FROM")
def _import_from(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(realize(tx, frame.stack[-1]).get_attr(tx, op.argval))
