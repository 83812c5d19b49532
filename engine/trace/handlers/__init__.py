"""Opcode handlers, one module per family. Importing this package fills the registry."""

from engine.trace.handlers import (
    attributes,
    calls,
    class_bodies,
    containers,
    exceptions,
    f_strings,
    generators,
    imports,
    jumps,
    load_store,
    match,
    operators,
    stack,
)

__all__ = [
    "attributes",
    "calls",
    "class_bodies",
    "containers",
    "exceptions",
    "f_strings",
    "generators",
    "imports",
    "jumps",
    "load_store",
    "match",
    "operators",
    "stack",
]
