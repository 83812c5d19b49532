"""Tells training drivers from computations: a function that calls ``backward()`` or an optimizer's ``step()`` runs as Python."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from engine.bytecode.route import route_calls

ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
NAME_READS = frozenset(
    {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_CLASSDEREF"}
)
WORDS = ("opt", "sched", "scaler")
"""A ``step`` of an object that cannot be looked up yet counts when its name speaks of an optimizer."""


def driver_reason(function: FunctionType, is_notebook: Callable[[FunctionType], bool]) -> str:
    """Why a function is a driver, in words ("it calls loss.backward()"); empty when it is none.

    Functions of the notebook that it names are looked into as well: who calls a driver is one.
    """
    return _reason(function, is_notebook, set())


def _reason(function: FunctionType, is_notebook: Callable[[FunctionType], bool], seen: set[CodeType]) -> str:
    code = function.__code__
    if code in seen:
        return ""
    seen.add(code)
    for part in codes(code):
        for owner, attribute in attribute_reads(part):
            if attribute == "backward":
                return f"it calls {owner or '...'}.backward()"
            if attribute == "step" and _is_optimizer(owner, function.__globals__):
                return f"it calls {owner}.step()"
    for name in sorted({name for part in codes(code) for name in part.co_names}):
        other = function.__globals__.get(name)
        if isinstance(other, FunctionType) and other is not function and is_notebook(other):
            inner = getattr(other, "__wrapped__", other)
            why = _reason(inner, is_notebook, seen) if isinstance(inner, FunctionType) else ""
            if why:
                return f"it calls {name}, and {why.replace('it calls', 'that calls', 1)}"
    return ""


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those nested in it (closures, comprehensions)."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def attribute_reads(code: CodeType) -> Iterator[tuple[str, str]]:
    """Each attribute that the code reads, with the dotted name it is read from ("" for the result of an expression)."""
    owner = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in NAME_READS:
            owner = str(instruction.argval)
        elif instruction.opname in ATTRIBUTE_READS:
            yield owner, str(instruction.argval)
            owner = f"{owner}.{instruction.argval}" if owner else ""
        elif instruction.opname not in {"CACHE", "PUSH_NULL", "EXTENDED_ARG"}:
            owner = ""


def _is_optimizer(owner: str, namespace: Mapping[str, Any]) -> bool:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    head, _, rest = owner.partition(".")
    value = namespace.get(head)
    if value is not None and not rest:
        return isinstance(value, (Optimizer, LRScheduler))
    last = owner.rpartition(".")[2].lower()
    return any(word in last for word in WORDS)


def routed(function: FunctionType, callee: Callable[[Any], Any]) -> FunctionType:
    """A copy of a driver whose calls, also those in its closures and comprehensions, ask ``callee`` what to call."""
    copy = FunctionType(
        _routed_code(function.__code__, callee),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _routed_code(code: CodeType, callee: Callable[[Any], Any]) -> CodeType:
    code = route_calls(code, callee)
    constants = tuple(_routed_code(c, callee) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_consts=constants)
