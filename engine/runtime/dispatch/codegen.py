"""Dispatch codegen: the fast path and argument binding, generated per signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, TracebackType
from typing import Any

from engine.frame_code.codegen_runtime import resume_calls
from engine.interrupts.weak_tables import WeakMemo
from engine.ir.current_session import slow_dispatch_tokens
from engine.ir.graph_callable import Run
from engine.runtime.dispatch.stock_switches import stance_owner_cell, usual_stance_cell
from engine.torch_private.global_state import STANCE_ATTR

DISPATCH_FILE = "<engine dispatch>"
"""File name of generated dispatcher functions, as it appears in tracebacks."""


@dataclass(frozen=True)
class Parameters:
    """Parameter names of a code object, by kind."""

    positional_only: tuple[str, ...]
    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    varargs: str | None
    varkw: str | None

    @classmethod
    def of(cls, code: CodeType) -> Parameters:
        """Return the parameters of a code object."""
        names = code.co_varnames
        count, only = code.co_argcount, code.co_posonlyargcount
        after = count + code.co_kwonlyargcount
        has_rest = bool(code.co_flags & inspect.CO_VARARGS)
        varargs = names[after] if has_rest else None
        keywords = names[after + has_rest] if code.co_flags & inspect.CO_VARKEYWORDS else None
        return cls(names[:only], names[only:count], names[count:after], varargs, keywords)

    @property
    def names(self) -> tuple[str, ...]:
        """All parameter names in ``co_varnames`` order."""
        ends = filter(None, (self.varargs, self.varkw))
        return (*self.positional_only, *self.positional, *self.keyword_only, *ends)


@dataclass(frozen=True)
class Signature:
    """Generated functions for one code object."""

    parameters: Parameters
    dispatch_code: CodeType
    """Code of the dispatcher; it reads no globals.

    Its free variables: the slow-dispatch tokens, the bound entries (see ``bind_pairs``), the closure cells, the
    function that strips dispatcher frames from tracebacks, the miss handler, the object that holds torch's stance, and
    the default stance.
    """
    call_positional: Callable[..., Any]
    """``call_positional(run, *values)``: call ``run`` with values in ``co_varnames`` order."""


def _generate(code: CodeType) -> Signature:
    parameters = Parameters.of(code)
    # Generate with names p0, p1, ... that cannot clash with other names in the text; rename them afterwards.
    plain = [f"p{i}" for i in range(len(parameters.names))]
    heading, call = _header_and_call(parameters, plain)
    values = "".join(f"{p}, " for p in plain)
    define, result = _definition_and_return(code)
    text = (
        f"def make(attention, bound, cells, leave_out, miss, stances, usual):\n"
        f"    {define} dispatch({heading}):\n"
        f"        try:\n"
        f"            if not attention and stances.{STANCE_ATTR} is usual:\n"
        f"                check, run, others = bound\n"
        f"                if check(cells, {values}):\n"
        f"                    {result.format(f'run({call})')}\n"
        f"                for check, run in others:\n"
        f"                    if check(cells, {values}):\n"
        f"                        {result.format(f'run({call})')}\n"
        f"            {result.format(f'miss(({values}))')}\n"
        f"        except BaseException as error:\n"
        f"            leave_out(error)\n"
        f"            raise\n"
        f"    return dispatch\n"
        f"def spread(run, {values}):\n"
        f"    return run({call})\n"
    )
    space: dict[str, Any] = {}
    exec(compile(text, DISPATCH_FILE, "exec"), space)
    inner = next(c for c in space["make"].__code__.co_consts if isinstance(c, CodeType))
    names = parameters.names
    dispatch = inner.replace(
        co_varnames=(*names, *inner.co_varnames[len(names) :]), co_name=code.co_name, co_qualname=code.co_qualname
    )
    return Signature(parameters, dispatch, space["spread"])


signature_of = WeakMemo(_generate)
"""Returns the generated functions for a code object's signature."""
_DISPATCH_FILES = frozenset((DISPATCH_FILE, str(Path(__file__).with_name("dispatcher.py")), resume_calls.__file__))


def strip_dispatch_frames(error: BaseException) -> None:
    """Remove frames of dispatchers from an error's traceback.

    They are also between a function and its resume function. The innermost frame stays, whatever it is.
    """
    shown = None
    for entry in reversed(_traceback_entries(error)):
        if shown is None or entry.tb_frame.f_code.co_filename not in _DISPATCH_FILES:
            entry.tb_next = shown
            shown = entry
    if shown is not None:
        error.__traceback__ = shown


def _traceback_entries(error: BaseException) -> list[TracebackType]:
    entries = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _definition_and_return(code: CodeType) -> tuple[str, str]:
    """Return the keyword that defines a function of this kind, and its return statement."""
    if code.co_flags & inspect.CO_COROUTINE:
        return "async def", "return await {}"
    if code.co_flags & inspect.CO_GENERATOR:
        return "def", "return (yield from {})"
    return "def", "return {}"


def _header_and_call(parameters: Parameters, plain: list[str]) -> tuple[str, str]:
    """Return the parameter list of the definition, and the call that passes the arguments on."""
    names = iter(plain)
    only = [next(names) for _ in parameters.positional_only]
    positional = [next(names) for _ in parameters.positional]
    keyword = [(real, next(names)) for real in parameters.keyword_only]
    varargs = next(names) if parameters.varargs is not None else None
    keywords = next(names) if parameters.varkw is not None else None
    star = [f"*{varargs}"] if varargs else (["*"] if keyword else [])
    heading = [
        *only,
        *(["/"] if only else []),
        *positional,
        *star,
        *(p for _, p in keyword),
        *([f"**{keywords}"] if keywords else []),
    ]
    call = [
        *only,
        *positional,
        *([f"*{varargs}"] if varargs else []),
        *(f"{r}={p}" for r, p in keyword),
        *([f"**{keywords}"] if keywords else []),
    ]
    return ", ".join(heading), ", ".join(call)


def make_dispatch_function(
    function: FunctionType, miss: Callable[[tuple[Any, ...]], Any]
) -> tuple[FunctionType, CellType]:
    """Return the dispatcher function for ``function``, and the cell of its bound entries.

    It calls ``miss(values)`` if no entry's guards pass.
    """
    code = signature_of(function.__code__).dispatch_code
    bound = CellType(bind_pairs(()))
    cells = {
        "attention": _SLOW_DISPATCH_CELL,
        "bound": bound,
        "cells": CellType(function.__closure__ or ()),
        "leave_out": _STRIP_FRAMES_CELL,
        "miss": CellType(miss),
        "stances": stance_owner_cell,
        "usual": usual_stance_cell,
    }
    closure = tuple(cells[name] for name in code.co_freevars)
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure), bound


def bind_pairs(pairs: tuple[tuple[Callable[..., bool], Run], ...]) -> tuple[Any, ...]:
    """Return the first check, its run and the other (check, run) pairs, for a dispatcher.

    Most dispatchers have one entry. Starting a loop costs more than these three values.
    """
    (check, run), *others = pairs or ((_never_matches, _never_matches),)
    return check, run, tuple(others)


def _never_matches(*_: Any) -> bool:
    return False


_SLOW_DISPATCH_CELL = CellType(slow_dispatch_tokens)
_STRIP_FRAMES_CELL = CellType(strip_dispatch_frames)


def copy_metadata(dispatch: FunctionType, function: FunctionType) -> None:
    """Copy a function's metadata (name, doc, defaults, annotations, ...) to a dispatcher."""
    functools.update_wrapper(dispatch, function, (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__"))
    if getattr(function, "__annotate__", None) is None:  # from 3.14 on, ``update_wrapper`` copies only this
        dispatch.__annotations__ = function.__annotations__


def bind_call_arguments(function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values a call would bind to the parameters, in ``co_varnames`` order.

    Defaults are filled in. The function itself does not run.

    Raises:
        TypeError: the arguments do not match the signature; Python's own message.
    """
    bound: list[tuple[Any, ...]] = []
    taker, _ = make_dispatch_function(function, bound.append)
    copy_metadata(taker, function)
    result = taker(*args, **kwargs)
    if inspect.iscoroutine(result):
        result.close()
    return bound[0]
