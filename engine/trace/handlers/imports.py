"""Imports inside functions."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported
from engine.trace.table import handles
from engine.trace.values.base import force

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


@handles("IMPORT_FROM")
def _import_from(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(force(tx, frame.stack[-1]).get_attr(tx, op.argval))
