"""Texts that show where an object is: of one that the traced code makes, with an address that no object has, which leaves no compiled code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Closure, Local
from engine.trace.signals import Unsupported
from engine.trace.values.base import Value, force
from engine.trace.values.classes import find_in_class
from engine.trace.values.functions import FunctionValue, MadeFunction
from engine.trace.values.methods import BoundMethod
from engine.trace.values.objects import ObjectValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_FIRST = 0xFABE_0000_0000
"""Above what any process uses for its objects."""
_MADE_UP = re.compile("0xfabe[0-9a-f]{8}")


def text_with_address(tx: Tracer, of: Value) -> str | None:
    """``repr`` as ``object``, functions and methods have it; None of anything else."""
    if isinstance(of, BoundMethod):
        name = force(tx, of.function.get_attr(tx, "__qualname__")).python(tx)
        return f"<bound method {name} of {_shown(tx, of.of)}>"
    if isinstance(of, FunctionValue):
        name = force(tx, of.get_attr(tx, "__qualname__")).python(tx)
        return f"<function {name} at {_address(tx, of, isinstance(of, MadeFunction))}>"
    found = find_in_class(of.type(), "__repr__")
    if not isinstance(of, ObjectValue) or found is None or found[0] is not object:
        return None
    cls = of.type()
    name = cls.__qualname__ if cls.__module__ in (None, "builtins") else f"{cls.__module__}.{cls.__qualname__}"
    return f"<{name} object at {_address(tx, of, of.origin is None or of.is_made)}>"


def _shown(tx: Tracer, of: Value) -> str:
    return str(force(tx, tx.fixed(repr).call(tx, [of], {})).python(tx))


def _address(tx: Tracer, of: Value, is_made: bool) -> str:
    if not is_made:
        real = tx.real_of(of)
        if real is NotImplemented or of.origin is None or isinstance(of.origin.chain()[0], (Local, Closure)):
            # What a call is given is another object each time.
            raise Unsupported("unknown-call", f"the address of {of.describe()} is shown")
        tx.guard_object(real, of.origin, "its address was shown")
        return f"{id(real):#x}"
    if id(of) not in tx.made_up:
        tx.made_up[id(of)] = (f"{_FIRST + 16 * len(tx.made_up):#x}", tx.root_executed, of)
    return tx.made_up[id(of)][0]


def check_addresses(tx: Tracer, value: Any) -> None:
    """Refuse to embed text with an address that no object has: Python makes the text itself.

    Raises:
        Unsupported: there is one in it.
    """
    text = value if isinstance(value, str) else repr(value) if isinstance(value, (bytes, tuple)) else ""
    found = _MADE_UP.findall(text)
    if not found:
        return
    refused = Unsupported("side-effect", "text shows where an object is that compiled code makes anew")
    refused.born = min((born for address, born, _ in tx.made_up.values() if address in found), default=0)
    raise refused
