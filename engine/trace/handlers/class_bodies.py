"""Handlers of name opcodes in the bodies of class statements."""

from __future__ import annotations

import builtins

from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.handlers.load_store import read_cell, read_global
from engine.trace.opcode_registry import handles
from engine.trace.variables.base import Variable, realize
from engine.trace.variables.callables.cells import ClassNamespaceVariable
from engine.trace.variables.containers.dicts import DictVariable


@handles("LOAD_BUILD_CLASS")
def _build_class(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(tx.wrap_static(builtins.__build_class__))


@handles("LOAD_NAME")
def _load_name(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    known = frame.locals.get(op.argval)
    frame.push(read_global(tx, frame, op.argval) if known is None else known)


@handles("STORE_NAME")
def _store_name(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = frame.stack.pop()
    if op.argval == "__classcell__":
        frame.cells["__class__"].is_class_cell = True
    frame.locals[op.argval] = value


@handles("DELETE_NAME")
def _delete_name(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if frame.locals.pop(op.argval, None) is None:
        tx.raise_error(NameError, f"name '{op.argval}' is not defined")


@handles("SETUP_ANNOTATIONS")
def _setup_annotations(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if "__annotations__" not in frame.locals:
        frame.locals["__annotations__"] = DictVariable({})


@handles("LOAD_CLASSDEREF")
def _load_class_deref(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    known = frame.locals.get(op.argval)
    frame.push(read_cell(tx, frame, op.argval) if known is None else known)


@handles("LOAD_LOCALS")
def _load_locals(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(ClassNamespaceVariable(frame.locals))


def _find_in_namespace(tx: Tracer, frame: Frame, name: str) -> Variable | None:
    """Pop the namespace of a class and look a name up in it."""
    namespace = realize(tx, frame.stack.pop())
    if not isinstance(namespace, ClassNamespaceVariable):
        raise Unsupported("class-creation", "names are looked up in a class that exists outside the traced function")
    return namespace.names.get(name)


@handles("LOAD_FROM_DICT_OR_DEREF")
def _load_dict_or_deref(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    known = _find_in_namespace(tx, frame, op.argval)
    frame.push(read_cell(tx, frame, op.argval) if known is None else known)


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def _load_dict_or_global(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    known = _find_in_namespace(tx, frame, op.argval)
    frame.push(read_global(tx, frame, op.argval) if known is None else known)
