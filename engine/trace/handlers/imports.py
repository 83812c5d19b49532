"""Handlers of imports inside functions."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from engine.ir.user_code_files import is_installed_file
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import BreakGraph, Unsupported
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
    module = _loaded_module(full)
    is_package = type(module) is ModuleType and hasattr(module, "__path__") and not hasattr(module, "__getattr__")
    for name in names or () if is_package else ():
        if name != "*" and name not in vars(module):  # ``from package import submodule``
            _loaded_module(f"{full}.{name}")
    module = module if names or level else sys.modules[full.partition(".")[0]]
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
    return tx.wrap_static(_loaded_module(name), name)


def _loaded_module(name: str) -> ModuleType:
    """Return a module; import it while tracing if it is part of a library that is imported.

    Raises:
        Unsupported: it is not imported yet, or its import raises.
    """
    package = sys.modules.get(name.rpartition(".")[0])
    first_import = f"{name} is imported for the first time"
    if name not in sys.modules and not is_installed_file(getattr(package, "__file__", None) or ""):
        raise Unsupported("first-import", first_import)
    with BreakGraph("first-import", first_import, Exception):
        return importlib.import_module(name)


@handles("IMPORT_FROM")
def _import_from(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(realize(tx, frame.stack[-1]).get_attr(tx, op.argval))
