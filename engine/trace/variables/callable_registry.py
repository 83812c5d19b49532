"""Callables with a rule of their own, and where the rules are looked up."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch._compile

from engine.trace.variables.base import Variable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

CallRule = Callable[["Tracer", list[Variable], dict[str, Variable]], Variable]


RULES_BY_ID: dict[int, tuple[Any, CallRule]] = {}
"""Callables with a rule of their own, by id; the callable is kept beside it."""


RULES_BY_NAME: dict[tuple[str, str], CallRule] = {}
"""Rules for functions of modules that must not be imported for their sake, and for class methods from C: by module or class, and name."""


CodeRule = Callable[["Tracer", Any, list[Variable], dict[str, Variable]], Variable]


RULES_BY_CODE: dict[int, tuple[types.CodeType, CodeRule]] = {}
"""Rules for wrappers that the standard library makes anew for each function, by the id of the code that they share."""


def register_rule(*callables: Any) -> Callable[[CallRule], CallRule]:
    """Register what calling one of these callables does in traced code."""

    def register(rule: CallRule) -> CallRule:
        for fn in callables:
            RULES_BY_ID[id(fn)] = (fn, rule)
        return rule

    return register


def find_rule(fn: Any) -> CallRule | None:
    """The rule for a callable, if it has one."""
    known = RULES_BY_ID.get(id(fn))
    if known is not None and known[0] is fn:
        return known[1]
    if type(fn) is types.BuiltinFunctionType and isinstance(fn.__self__, type):
        # Class methods from C are bound anew at each access.
        return RULES_BY_NAME.get((fn.__self__.__name__, fn.__name__))
    if (
        type(fn) is types.FunctionType
        and fn.__module__
        and fn.__module__.startswith(("torch._dynamo", "torch.distributed", "engine.api"))
    ):
        return RULES_BY_NAME.get((fn.__module__, fn.__name__))
    if type(fn) is types.FunctionType and fn.__code__ is DISABLE_DYNAMO_CODE and hasattr(fn, "__wrapped__"):
        return find_rule(fn.__wrapped__)  # torch wraps torch.manual_seed so, once torch._dynamo is loaded
    again = builtin_of_first_import(fn)
    return None if again is None else find_rule(again)


def builtin_of_first_import(fn: Any) -> Any:
    """The function that a module of the standard library from C gave at its first import, of one from a later import; None for any other."""
    owner = getattr(fn, "__self__", None) if type(fn) is types.BuiltinFunctionType else None
    if type(owner) is not types.ModuleType or owner.__name__ not in sys.stdlib_module_names:
        return None
    first = sys.modules.get(owner.__name__)
    found = None if first is None or first is owner else vars(first).get(fn.__name__)
    return found if type(found) is types.BuiltinFunctionType and found is not fn else None


DISABLE_DYNAMO_CODE = next(
    (
        c
        for c in torch._compile._disable_dynamo.__code__.co_consts
        if isinstance(c, types.CodeType) and c.co_name == "inner"
    ),
    None,
)
"""The code of what ``torch._disable_dynamo`` makes of a function of torch's own."""
