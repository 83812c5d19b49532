"""Imports inside functions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported
from engine.trace.table import handles
from engine.trace.values.base import Value, force
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("IMPORT_NAME")
def _import(tx: Tracer, frame: Frame, op: Op) -> None:
    names = force(tx, frame.stack.pop()).python(tx)
    level = force(tx, frame.stack.pop()).python(tx)
    full = op.argval
    if level:
        package = str(frame.globals.values.get("__package__") or frame.globals.name.rpartition(".")[0])
        full = importlib.util.resolve_name("." * level + op.argval, package)
    if full not in sys.modules:
        raise Unsupported("unknown-call", f"{full} is imported for the first time")
    module = sys.modules[full] if names or level else sys.modules[full.partition(".")[0]]
    frame.push(tx.fixed(module, module.__name__))


@special(importlib.import_module)
def _import_module(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name, package = [*tx.constants([*args, *kwargs.values()]), None][:2]
    if type(name) is str and name.startswith(".") and package and not kwargs:
        name = importlib.util.resolve_name(name, package)
    elif type(name) is not str or len(args) + len(kwargs) != 1 or not kwargs.keys() <= {"name"}:
        raise Unsupported("unknown-call", "importlib.import_module is called in an unusual way")
    module = sys.modules.get(name)
    if module is None:
        raise Unsupported("unknown-call", f"{name} is imported for the first time")
    return tx.fixed(module, name)


@handles("IMPORT_FROM")
def _import_from(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(force(tx, frame.stack[-1]).get_attr(tx, op.argval))
