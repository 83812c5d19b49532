"""Calls that may read the local variables of their own frame."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import BuiltinFunctionType
from typing import Any

from engine.bytecode.liveness import reachable_from
from engine.trace.annotations import Frame
from engine.trace.variables.base import NULL, Variable

_FRAME_READER_NAMES = frozenset(("eval", "exec", "locals", "_getframe"))
"""Names of the builtins that read the local variables of their caller."""
_FRAME_READERS = frozenset((eval, exec, locals, sys._getframe))
_NAME_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"))


def may_read_own_frame(frame: Frame, stack: Sequence[Variable] | None = None) -> bool:
    """Return True if the rest of the call may read its own local variables.

    A resume function has only the variables that its code reads.
    """
    if not _FRAME_READER_NAMES.intersection(frame.code.co_names):
        return False
    if any(
        _builtin_of(v) in _FRAME_READERS for v in (*(stack or frame.stack), *frame.locals.values()) if v is not NULL
    ):
        return True
    ops = (frame.decoded.ops[n] for n in reachable_from(frame.decoded, frame.op.index))
    return any(
        (op.opname in _NAME_LOADS and op.argval in _FRAME_READER_NAMES) or op.argval == "_getframe" for op in ops
    )


def _builtin_of(value: Variable) -> Any:
    """Return the builtin function that the variable represents, or None."""
    function = value.as_python_object()
    return function if isinstance(function, BuiltinFunctionType) else None
