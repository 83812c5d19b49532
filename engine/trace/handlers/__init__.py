"""Handlers of opcodes, one file per family. Importing this package fills the table."""

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
