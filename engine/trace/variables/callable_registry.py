"""Registry of tracing rules per callable, by identity, by name or by code object."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from engine.ir.annotations import is_disallowed_in_graph, substitute_of
from engine.ir.register_once import register_once
from engine.torch_private.global_state import disable_dynamo
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable, realize

CallRule = Callable[["Tracer", Args, Kwargs], Variable]


RULES_BY_ID: dict[int, tuple[Any, CallRule]] = {}
"""Rules by ``id`` of the callable. The entry holds the callable, so the id stays valid."""


RULES_BY_NAME: dict[tuple[str, str], CallRule] = {}
"""Rules by (module or class, name).

For functions of modules that must not be imported for the registration, and for class methods of C types.
"""


CodeRule = Callable[["Tracer", Any, Args, Kwargs], Variable]


RULES_BY_CODE: dict[int, tuple[types.CodeType, CodeRule]] = {}
"""Rules by ``id`` of a code object that many functions share.

The standard library creates such a wrapper for each decorated function.
"""


UNBOUND_METHOD_RULES: dict[type, Callable[[Tracer, Variable, str, Args, Kwargs], Variable | None]] = {}
"""Rules by C class for methods that are called through the class.

A rule returns None if it does not apply.
"""


SUBCLASS_METHOD_RULES: dict[tuple[type, str], Callable[[Tracer, type, Args, Kwargs], Variable]] = {}
"""Rules by (C class, name) of C classmethods that are called on a Python subclass."""


MARKED_FUNCTION_RULES: list[tuple[Callable[[Any], bool], CodeRule]] = []
"""Rules of functions that a decorator marked, each with the predicate that finds the mark."""


def register_marked_function_rule(is_marked: Callable[[Any], bool]) -> Callable[[CodeRule], CodeRule]:
    """Register the rule for calls of functions that carry a mark."""

    def register(rule: CodeRule) -> CodeRule:
        MARKED_FUNCTION_RULES.append((is_marked, rule))
        return rule

    return register


def register_rule(*callables: Any) -> Callable[[CallRule], CallRule]:
    """Register the tracing rule for calls of these callables."""

    def register(rule: CallRule) -> CallRule:
        for fn in callables:
            RULES_BY_ID[id(fn)] = (fn, rule)
        return rule

    return register


def register_break(kind: str, what: str, *callables: Any) -> None:
    """Register callables whose calls break the graph, always for this reason."""

    def break_graph(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        raise Unsupported(kind, what)

    register_rule(*callables)(break_graph)


def register_rule_by_name(*locations: tuple[str, str]) -> Callable[[CallRule], CallRule]:
    """Register the tracing rule of functions in modules that may not be loaded."""
    return register_once(RULES_BY_NAME, locations, "a rule")


def register_bound_rule(*callables: Any) -> Callable[[Callable[..., Variable]], Callable[..., Variable]]:
    """Register a tracing rule whose parameters after ``tx`` are those of the callables.

    It gets realized variables. Arguments that do not fit the parameters break the graph: Python words the error.
    """

    def register(rule: Callable[..., Variable]) -> Callable[..., Variable]:
        signature = inspect.signature(rule)

        def bind(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
            try:
                signature.bind(tx, *args, **kwargs)
            except TypeError as error:
                callable_name = getattr(callables[0], "__qualname__", callables[0])
                raise Unsupported("builtin-arguments", f"{callable_name} is called: {error}") from None
            return rule(tx, *(realize(tx, a) for a in args), **{k: realize(tx, v) for k, v in kwargs.items()})

        register_rule(*callables)(bind)
        return rule

    return register


def find_rule(fn: Any) -> CallRule | None:
    """Return the rule for a callable, or None. The user's marks come first."""
    if is_disallowed_in_graph(fn):
        return functools.partial(_break_at, fn)
    substitute = substitute_of(fn)
    if substitute is not None:
        return lambda tx, args, kwargs: tx.wrap_static(substitute).call(tx, args, kwargs)
    rule = RULES_BY_ID.get(id(fn))
    if rule is not None and rule[0] is fn:
        return rule[1]
    cls = class_of_classmethod(fn)
    if cls is not None:  # such a method is a new object at each access
        return RULES_BY_NAME.get((cls.__name__, fn.__name__)) or _rule_of_class_method(fn)
    if (
        type(fn) is types.FunctionType
        and fn.__module__
        and fn.__module__.startswith(("torch._dynamo", "torch.distributed", "engine.api"))
    ):
        return RULES_BY_NAME.get((fn.__module__, fn.__name__))
    if type(fn) is types.FunctionType and fn.__code__ is DISABLE_DYNAMO_CODE and hasattr(fn, "__wrapped__"):
        return find_rule(fn.__wrapped__)  # once torch._dynamo is loaded, torch.manual_seed is wrapped like this
    return None


def _break_at(fn: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Break the graph at a call of a function that must not be in a graph."""
    raise Unsupported("disabled", f"{getattr(fn, '__name__', fn)} is called, which disallow_in_graph marked")


def class_of_classmethod(fn: Any) -> Any:
    """Return the class to which a C classmethod is bound; None for any other callable."""
    owner = fn.__self__ if type(fn) is types.BuiltinFunctionType else None
    return owner if isinstance(owner, type) else None


def _rule_of_class_method(bound: Any) -> CallRule | None:
    """Return the rule of a C class method that a subclass inherits. It takes the class first."""
    cls: Any = bound.__self__
    entries = (vars(base).get(bound.__name__) for base in cls.__mro__)
    descriptors = (e for e in entries if type(e) is types.ClassMethodDescriptorType)
    descriptor = next((d for d in descriptors if d.__get__(None, cls) == bound), None)
    rule = None if descriptor is None else find_rule(descriptor)
    if rule is None:
        return None
    return lambda tx, args, kwargs: rule(tx, [tx.wrap_static(cls), *args], kwargs)


DISABLE_DYNAMO_CODE = next(
    (
        c
        for c in getattr(getattr(disable_dynamo, "__code__", None), "co_consts", ())
        if isinstance(c, types.CodeType) and c.co_name == "inner"
    ),
    None,
)
"""Code of the wrapper that ``torch._disable_dynamo`` puts around torch's functions."""
