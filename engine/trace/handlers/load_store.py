"""Handlers that load, store and delete variables and cells, move the stack, and return."""

from __future__ import annotations

import types
from typing import Any, cast

import torch

from engine.bytecode.editable_instructions import resume_index
from engine.bytecode.opcodes import COMMON_CONSTANTS, RULES
from engine.bytecode.resume_functions import resume_info, shared_cell_names
from engine.ir.guards.python_values import IdMatch
from engine.ir.sources.base import MISSING, GlobalsNamespace
from engine.ir.sources.roots import GlobalSource, OptionalGlobalSource
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import Unsupported, UserException
from engine.trace.opcode_registry import RETURN, handle_by_value, handles
from engine.trace.variables.base import NULL, ConstantVariable, Variable, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.objects.attribute_builtins import read_attribute
from engine.trace.variables.objects.super_objects import SuperVariable


def push_loaded(frame: Frame, value: Variable, *, with_null: bool) -> None:
    """Push a loaded value; ``with_null`` adds the NULL that a call expects beside a callable."""
    pair = (value, NULL) if RULES.null_above_callable else (NULL, value)
    frame.stack.extend(pair if with_null else (value,))


@handles("LOAD_ATTR", "LOAD_METHOD")
def _load_attr(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = read_attribute(tx, realize(tx, frame.stack.pop()), op.argval)
    is_flagged = RULES.load_attr_has_flag and bool(op.arg & 1)
    push_loaded(frame, value, with_null=is_flagged or op.opname == "LOAD_METHOD")


@handles("LOAD_SUPER_ATTR")
def _load_super(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    _, cls, of = frame.popn(3)
    value = SuperVariable(realize(tx, cls).as_python_constant(tx), realize(tx, of)).get_attr(
        tx, frame.code.co_names[op.arg >> 2]
    )
    push_loaded(frame, value, with_null=bool(op.arg & 1))


@handles("STORE_ATTR")
def _store(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    of = realize(tx, frame.stack.pop())
    of.set_attr(tx, op.argval, frame.stack.pop())


@handles("DELETE_ATTR")
def _delete(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    realize(tx, frame.stack.pop()).del_attr(tx, op.argval)


@handles("LOAD_CONST", "LOAD_SMALL_INT")
def _load_const(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = op.argval
    frame.push(
        ConstantVariable(value) if is_literal(value) or isinstance(value, types.CodeType) else tx.from_python(value)
    )


def push_local(tx: Tracer, frame: Frame, name: str) -> None:
    """Push a local variable."""
    value = frame.locals.get(name, frame.cells.get(name))  # since 3.13, a closure loads its cells like locals
    if value is None:
        raise _unbound(tx, name)
    frame.push(value)


def _unbound(tx: Tracer, name: str) -> UserException:
    text = f"cannot access local variable '{name}' where it is not associated with a value"
    return tx.make_user_exception(UnboundLocalError(text))


@handles("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK")
def _load_fast(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    push_local(tx, frame, op.argval)


@handles("LOAD_FAST_AND_CLEAR")
def _load_and_clear(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    cell = frame.cells.pop(op.argval, NULL)
    frame.push(frame.locals.pop(op.argval, cell))


@handles("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
def _load_two(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    for name in op.argval:
        push_local(tx, frame, name)


def _store_local(frame: Frame, name: str) -> None:
    """Pop the value of a local variable, or the cell that a comprehension restores."""
    value = frame.stack.pop()
    if not value.is_loaded_by_source and name in shared_cell_names(frame.code):
        frame.locals.pop(name, None)  # LOAD_FAST_AND_CLEAR pushed the cell
        frame.cells[name] = cast("CellVariable", value)
    elif value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


@handles("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def _store_fast(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    _store_local(frame, op.argval)


@handles("STORE_FAST_STORE_FAST")
def _store_two(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    for name in op.argval:
        _store_local(frame, name)


@handles("STORE_FAST_LOAD_FAST")
def _store_load(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    _store_local(frame, op.argval[0])
    push_local(tx, frame, op.argval[1])


@handles("DELETE_FAST")
def _delete_fast(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if frame.locals.pop(op.argval, None) is None:
        raise _unbound(tx, op.argval)


@handles("LOAD_GLOBAL")
def _load_global(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    push_loaded(frame, read_global(tx, frame, op.argval), with_null=bool(op.arg & 1))


class _LoadedGlobals(dict[tuple[int, str], "Variable"]):
    """Globals and builtins that one trace has read and not written, by namespace id and name."""


def read_global(tx: Tracer, frame: Frame, name: str) -> Variable:
    """Return a global variable or a builtin."""
    key = (id(frame.globals.values), name)
    if (frame.globals, name) in tx.side_effects.global_writes:
        return _find_global(tx, frame, name)
    loaded = tx.state_of(_LoadedGlobals)
    if key not in loaded:
        loaded[key] = _find_global(tx, frame, name)
    return loaded[key]


def _find_global(tx: Tracer, frame: Frame, name: str) -> Variable:
    namespace = frame.globals
    is_deleted = (namespace, name) in tx.side_effects.global_writes
    if is_deleted:
        written = tx.side_effects.global_writes[namespace, name]
        if written is not None:
            return written
    elif name in namespace.values:
        real = namespace.values[name]
        if frame.is_trusted and not isinstance(real, (list, dict, set, torch.Tensor, bool)):  # a bool may change
            return ConstantVariable(real) if is_literal(real) else tx.wrap_static(real, name)
        return tx.make_lazy(real, GlobalSource(name, namespace))
    builtin_names = frame.builtins
    if name not in builtin_names:
        if not is_deleted:
            why = f"there was no global variable {name}"
            tx.guard(IdMatch, OptionalGlobalSource(name, namespace), MISSING, why=why)
        return tx.raise_error(NameError, f"name '{name}' is not defined")
    if not frame.is_trusted and not is_deleted:
        why = f"the builtin {name} was used, which a global of that name would hide"
        tx.guard(IdMatch, OptionalGlobalSource(name, namespace), MISSING, why=why)
    real = builtin_names[name]
    if is_literal(real):
        return ConstantVariable(real)
    tx.guards.record_library_function(tx, GlobalsNamespace(builtin_names, "builtins"), name, real)
    return tx.wrap_static(real, name)


@handles("STORE_GLOBAL")
def _store_global(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    tx.side_effects.record_global_write(frame.globals, op.argval, frame.stack.pop())


@handles("DELETE_GLOBAL")
def _delete_global(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    key = (frame.globals, op.argval)
    is_real = op.argval in frame.globals.values
    if tx.side_effects.global_writes[key] is None if key in tx.side_effects.global_writes else not is_real:
        read_global(tx, frame, op.argval)
        tx.raise_error(NameError, f"name '{op.argval}' is not defined")
    if is_real and key not in tx.side_effects.global_writes:
        tx.guard_type(
            frame.globals.values[op.argval],
            OptionalGlobalSource(op.argval, frame.globals),
            "the global variable is deleted",
        )
    tx.side_effects.record_global_write(frame.globals, op.argval, None)
    if not is_real:
        del tx.side_effects.global_writes[key]  # set and deleted during the call: no side effect


def _cell(frame: Frame, name: str) -> CellVariable:
    cell = frame.cells.get(name)
    if cell is None:
        raise Unsupported("closure-variable", f"the closure variable {name!r} is read before it is set")
    return cell


@handles("LOAD_CLOSURE")
def _load_closure(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(_cell(frame, op.argval))


def read_cell(tx: Tracer, frame: Frame, name: str) -> Variable:
    """Return the content of a closure variable."""
    cell = _cell(frame, name)
    content = cell.content
    if content is None:
        cell.guard_empty(tx)
        info = resume_info(frame.code)
        original_code = frame.code if info is None else info.base_code()
        if original_code is not None and name in original_code.co_cellvars:
            raise _unbound(tx, name)
        tx.raise_error(
            NameError,
            f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
        )
    assert content is not None
    return content


@handles("LOAD_DEREF")
def _load_deref(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(read_cell(tx, frame, op.argval))


@handles("STORE_DEREF")
def _store_deref(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    _cell(frame, op.argval).set_content(tx, frame.stack.pop())


@handles("DELETE_DEREF")
def _delete_deref(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    read_cell(tx, frame, op.argval)
    _cell(frame, op.argval).set_content(tx, None)


handle_by_value("LOAD_COMMON_CONSTANT", 0, lambda tx, op: tx.wrap_static(COMMON_CONSTANTS[op.arg]))
handle_by_value("LOAD_ASSERTION_ERROR", 0, lambda tx, op: tx.wrap_static(AssertionError))
handle_by_value("PUSH_NULL", 0, lambda tx, op: NULL)


@handles("NOP", "NOT_TAKEN", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS")
def _no_effect(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    return None


@handles("POP_TOP", "END_FOR", "POP_ITER")
def _pop(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.stack.pop()


@handles("COPY")
def _copy(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(frame.stack[-op.arg])


@handles("SWAP")
def _swap(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    stack = frame.stack
    stack[-1], stack[-op.arg] = stack[-op.arg], stack[-1]


@handles("KW_NAMES")
def _kw_names(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.kw_names = frame.code.co_consts[op.arg]


@handles("MAKE_CELL")
def _make_cell(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    name = str(op.argval)
    # MAKE_CELL after RESUME creates the cell of a comprehension variable.
    # Generated code cannot reach that cell by this name.
    is_own = frame.is_root and op.index < resume_index(frame.code)
    root_name = name if is_own else ""
    frame.cells[name] = CellVariable(frame.locals.pop(name, None), root_frame_name=root_name)


@handles("RETURN_VALUE")
def _return(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    frame.result = frame.stack.pop()
    return RETURN


@handles("RETURN_CONST")
def _return_const(tx: Tracer, frame: Frame, op: DecodedInstruction) -> Any:
    frame.result = tx.from_python(op.argval) if not isinstance(op.argval, ConstantVariable) else op.argval
    return RETURN
