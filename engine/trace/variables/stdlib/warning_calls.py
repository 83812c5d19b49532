"""Warnings and log messages: replayed after the graph in order, or omitted if disabled."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from engine.frame_code.codegen_runtime.warnings_logging import warn_at_caller, warn_at_line
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.register_once import register_each
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable, record_call
from engine.trace.variables.objects.globals_dict import GlobalsDictVariable


class _WarningFilters:
    """The active ``catch_warnings`` of one trace."""

    def __init__(self) -> None:
        self.silenced: list[bool] = [False]
        """For each ``catch_warnings``, outermost first: True if a filter prevents raising."""


@register_bound_rule(warnings.warn)
def _warn(
    tx: Tracer,
    message: Variable,
    category: Variable = NONE,
    stacklevel: Variable | None = None,
    source: Variable = NONE,
) -> Variable:
    cls = category.as_python_constant(tx) or UserWarning
    if message.as_exception() is not None:
        cls = message.python_type()
    elif not message.is_constant:
        raise Unsupported("warning", f"warnings.warn({message.describe()}) is called")
    level = 1 if stacklevel is None else int(stacklevel.as_python_constant(tx))
    _guard_warnings_do_not_raise(tx, cls)
    description = f"a {cls.__name__} is issued: {message.describe()}"
    arguments = [message, tx.wrap_static(cls)]
    if level > len(tx.call_stack.frames):
        levels_above_root = ConstantVariable(level - len(tx.call_stack.frames))
        return record_call(tx, description, warn_at_caller, [*arguments, levels_above_root])
    frame = tx.call_stack.frames[-max(level, 1)]
    location = [*map(ConstantVariable, (frame.code.co_filename, frame.line)), GlobalsDictVariable(frame.globals)]
    return record_call(tx, description, warn_at_line, [*arguments, *location])


def _guard_warnings_do_not_raise(tx: Tracer, cls: type) -> None:
    """Guard that warnings of a class do not raise: they occur after the traced handlers."""
    if tx.state_of(_WarningFilters).silenced[-1]:
        return
    name = "builtin_warnings_raise" if cls.__module__ == "builtins" else "warnings_raise"
    if GLOBAL_STATES[name].read():
        raise Unsupported("warning", "warnings.warn is called where warnings are errors")
    why = "the warning is issued after the graph, where it must not raise"
    tx.guard(GlobalStateMatch, ConstantSource(torch, "torch"), name, False, why=why)


@register_each(register_rule, warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
def _set_warning_filter(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    constants = tx.as_python_constants([*args, *kwargs.values()])
    if "error" in constants:
        raise Unsupported("warning", f"warnings.{function.__name__} turns warnings into errors")
    if function is warnings.simplefilter and len(constants) == 1:
        tx.state_of(_WarningFilters).silenced[-1] = True
    return record_call(tx, f"warnings.{function.__name__} is called", function, list(args), dict(kwargs))


class CatchWarningsVariable(VariableWithMethods):
    """``warnings.catch_warnings()``: entered and exited after the graph, around its warnings."""

    kwargs: Kwargs
    cls = warnings.catch_warnings

    is_mutable = True

    methods = ("__enter__", "__exit__")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        exit_arguments: Args = [NONE, NONE, NONE] if name == "__exit__" else []
        silenced = tx.state_of(_WarningFilters).silenced
        if exit_arguments:
            silenced.pop()
        else:
            silenced.append(silenced[-1])
        description = f"catch_warnings is {'left' if exit_arguments else 'entered'}"
        return record_call(tx, description, vars(warnings.catch_warnings)[name], [self, *exit_arguments])

    def child_variables(self) -> list[Variable]:
        return list(self.kwargs.values())

    def reconstruct(self, cg: PyCodegen) -> None:
        CallExpressionVariable(warnings.catch_warnings, [], self.kwargs).reconstruct(cg)


@register_rule(warnings.catch_warnings)
def _catch_warnings(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    keywords = tx.as_python_keywords(kwargs)
    if args or keywords.get("action") == "error" or keywords.get("module") is not None or keywords.get("record"):
        raise Unsupported(
            "warning", "warnings.catch_warnings records warnings, turns them into errors, or is used with a module"
        )
    return CatchWarningsVariable(dict(kwargs))
