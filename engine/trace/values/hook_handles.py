"""What registering a hook on a module gives: torch numbers the handles of a process, so the number is known only when the code runs."""

from __future__ import annotations

import builtins
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch.utils.hooks import RemovableHandle

from engine.ir.origin import Attr
from engine.trace.signals import Unsupported
from engine.trace.support import registered
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class HandleNumber(Value):
    """The key of a hook in its tables. No other handle and no number that was there before is equal to it."""

    def __init__(self, handle: MadeHandle) -> None:
        self.handle = handle

    def type(self) -> builtins.type:
        return int

    def describe(self) -> str:
        return "the number of a hook"

    def key(self, tx: Tracer) -> Any:
        return self

    def children(self) -> list[Value]:
        return [self.handle]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.handle)
        cg.out.attribute("id")


class MadeHandle(Value):
    """A ``RemovableHandle`` that traced code makes, over the tables of hooks of an object from outside.

    ``before`` is the one that was made before it: compiled code makes them in this order, so that they get the numbers that Python gives them.
    """

    is_mutable = True

    def __init__(self, tables: list[DictValue], before: MadeHandle | None) -> None:
        self.tables = tables
        self.before = before
        self.number = HandleNumber(self)

    def type(self) -> builtins.type:
        return RemovableHandle

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def children(self) -> list[Value]:
        return [] if self.before is None else [self.before]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "id":
            return self.number
        return MethodOf(self, name) if name in _METHODS else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or name not in _METHODS or len(args) != _METHODS[name]:
            raise self.refuse(f"the method {name!r}")
        if name == "__enter__":
            return self
        for table in self.tables:
            if self.number.key(tx) in table.entries:
                table.pop(tx, self.number)
        return NONE

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(registered, 0)
        cg.load(self.before or NONE)
        cg.load_all(self.tables)
        cg.out.call(1 + len(self.tables))


_METHODS = {"remove": 0, "__enter__": 0, "__exit__": 3}
"""Those that are traced, with how many arguments they take."""


@special(RemovableHandle)
def _make(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [force(tx, a) for a in (*args, *kwargs.values())]
    if len(args) == 1 and set(kwargs) <= {"extra_dict"}:
        others = given[1:]
        if len(others) == 1 and isinstance(others[0], ListValue):
            others = [force(tx, v) for v in others[0].items]
        tables = [t for t in (given[0], *others) if isinstance(t, DictValue) and _is_table(t)]
        if len(tables) == 1 + len(others):
            before = next((call for call, _ in reversed(tx.effects) if isinstance(call, MadeHandle)), None)
            made = MadeHandle(tables, before)
            tx.happens(made, "a hook gets its number")
            return made
    raise Unsupported(
        "unknown-call", "a handle of a hook is made over other tables than those of a module from outside"
    )


def _is_table(table: DictValue) -> bool:
    """Whether it is a table of a module's own that calling the module looks up while tracing."""
    origin = table.origin
    is_own = isinstance(origin, Attr) and origin.attribute.startswith(("_forward_hooks", "_forward_pre_hooks"))
    return is_own and table.cls is OrderedDict and not table.is_made
