"""Writing bytecode: instructions for the running version, over the ``bytecode`` package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bytecode import Instr, Label
from bytecode.instr import UNSET, CellVar, FreeVar, InstrLocation, TryBegin, TryEnd

from engine.bytecode.opcodes import VERSION


class Emitter:
    """A list of instructions that all blame one place in the user's text; hides what differs between versions."""

    def __init__(self, location: InstrLocation | None = None) -> None:
        self.location = location
        self.code: list[Instr | Label | TryBegin | TryEnd] = []

    def emit(self, name: str, arg: Any = UNSET) -> None:
        """Add one instruction."""
        self.code.append(Instr(name, arg, location=self.location))

    def extend(self, instructions: Iterable[Instr | Label | TryBegin | TryEnd]) -> None:
        """Add ready instructions."""
        self.code.extend(instructions)

    def label(self, label: Label) -> None:
        """Put a jump target here."""
        self.code.append(label)

    def try_begin(self, handler: Label, depth: int) -> TryBegin:
        """What follows is covered by ``handler``, which finds the exception above ``depth`` values."""
        begin = TryBegin(handler, push_lasti=False, stack_depth=depth)
        self.code.append(begin)
        return begin

    def try_end(self, begin: TryBegin) -> None:
        """End what ``begin`` covers."""
        self.code.append(TryEnd(begin))

    def const(self, value: Any) -> None:
        """Push a constant (any object)."""
        self.emit("LOAD_CONST", value)

    def load(self, name: str) -> None:
        """Push a local variable."""
        self.emit("LOAD_FAST", name)

    def closure(self, variable: CellVar | FreeVar) -> None:
        """Push a cell of the frame, not what it holds."""
        self.emit("LOAD_CLOSURE" if VERSION < (3, 13) else "LOAD_FAST", variable)

    def store(self, name: str) -> None:
        """Pop into a local variable."""
        self.emit("STORE_FAST", name)

    def callable(self, load: Callable[[], None]) -> None:
        """Push what a following ``call`` will call."""
        if VERSION < (3, 13):
            self.emit("PUSH_NULL")
        load()
        if VERSION >= (3, 13):
            self.emit("PUSH_NULL")

    def callable_const(self, value: Any) -> None:
        """Push a constant for a following ``call``."""
        self.callable(lambda: self.const(value))

    def call(self, count: int) -> None:
        """Call with ``count`` positional arguments on top of the stack."""
        if VERSION == (3, 11):
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def attribute(self, name: str) -> None:
        """Replace the top of the stack by its attribute."""
        self.emit("LOAD_ATTR", name if VERSION < (3, 12) else (False, name))

    def subscript(self, key: Any) -> None:
        """Replace the top of the stack by its item under a constant key."""
        self.const(key)
        self.emit("BINARY_SUBSCR")

    def load_global(self, name: str) -> None:
        """Push a global of the frame."""
        self.emit("LOAD_GLOBAL", (False, name))

    def return_value(self) -> None:
        """Return the top of the stack."""
        self.emit("RETURN_VALUE")

    def for_iter(self, exhausted: Label) -> None:
        """Push the next item of the iterator on top; at its end go to ``exhausted``, where ``end_for`` must stand."""
        self.emit("FOR_ITER", exhausted)

    def end_for(self, exhausted: Label) -> None:
        """Where an exhausted iterator leads: the iterator is off the stack after this, on every version."""
        self.label(exhausted)
        if VERSION >= (3, 12):
            self.emit("END_FOR")
        if VERSION >= (3, 13):
            self.emit("POP_TOP")

    def jump(self, label: Label) -> None:
        """Go forward to ``label``."""
        self.emit("JUMP_FORWARD", label)

    def jump_if_false(self, label: Label) -> None:
        """Pop; go forward to ``label`` if it is false. The value must be a bool on 3.13."""
        if VERSION >= (3, 13):
            self.emit("TO_BOOL")
        self.emit("POP_JUMP_FORWARD_IF_FALSE" if VERSION == (3, 11) else "POP_JUMP_IF_FALSE", label)
