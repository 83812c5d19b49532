"""``threading.local``: to each thread an object like any other, whose attributes are those of the thread that runs."""

from __future__ import annotations

import builtins
import threading
from typing import TYPE_CHECKING

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.support import new_local
from engine.trace.values.base import Value
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class LocalValue(ObjectValue):
    """An instance of ``threading.local`` or of a subclass."""

    def sets_plainly(self, base: builtins.type) -> bool:
        return base is threading.local

    def has_no_dict(self) -> bool:
        return False

    def deletes_plainly(self, base: builtins.type) -> bool:
        return base is threading.local

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(new_local, 0)
        cg.out.call(0)
        cg.remember(self)
        self.fill_now(cg)


def _is_local(real: object) -> bool:
    return isinstance(real, threading.local)


@wraps_if(60, _is_local)
def _local(tx: Tracer, real: threading.local, origin: Origin) -> Value:
    tx.guard_type(real, origin, "its attributes or methods were used")
    return LocalValue(type(real), origin, real)


@special(threading.local)
def _made(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs:
        raise Unsupported("unknown-call", "threading.local is created with arguments")
    return LocalValue(threading.local, None, NotImplemented)
