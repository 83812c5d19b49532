"""Python frames that call what has no bytecode, or what is traced as one call."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable
from typing import Any, cast

from engine.interrupts.weak_tables import WeakTable

_frame_codes: WeakTable[Any, types.CodeType] = WeakTable()
"""Code of the calling frames, by the innermost wrapped function's code or by the callable."""


def is_calling_frame(code: types.CodeType) -> bool:
    """Return True for the code of a function that ``make_calling_frame`` made."""
    return code.co_freevars == ("subject",) and code.co_filename == __file__


def make_calling_frame(subject: Callable[..., Any]) -> types.FunctionType:
    """Return a Python function that calls ``subject`` with its own arguments.

    Two callables have frames with two code objects, and so two code caches. Wrappers of one function share them.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return subject(*args, **kwargs)

    call.__name__ = getattr(subject, "__name__", call.__name__)
    call.__qualname__ = subject.__qualname__ if isinstance(subject, types.FunctionType) else call.__name__
    call.__doc__ = subject.__doc__
    function: Any = call
    function.__code__ = _code_for(subject, function)
    return cast("types.FunctionType", function)


def _code_for(subject: Callable[..., Any], call: types.FunctionType) -> types.CodeType:
    inner = inspect.unwrap(subject) if isinstance(subject, types.FunctionType) else subject
    owner = inner.__code__ if isinstance(inner, types.FunctionType) else inner
    code = _frame_codes.get(owner)
    if code is None:
        code = call.__code__.replace(co_name=call.__name__, co_qualname=call.__qualname__)
        with contextlib.suppress(TypeError):  # not every callable can be referenced weakly
            _frame_codes[owner] = code
    return code
