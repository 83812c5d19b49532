"""Emits instructions for the running Python version, on top of the ``bytecode`` package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from bytecode import BinaryOp, Instr, Label
from bytecode.instr import UNSET, CellVar, FreeVar, InstrLocation, TryBegin, TryEnd

from engine.bytecode.opcodes import RULES

Item = Instr | Label | TryBegin | TryEnd


class Emitter:
    """List of instructions with one source position; hides the differences between versions."""

    def __init__(self, location: InstrLocation | None = None) -> None:
        self.location = location
        self.code: list[Item] = []

    def emit(self, name: str, arg: Any = UNSET) -> None:
        """Add one instruction."""
        self.code.append(Instr(name, arg, location=self.location))

    def extend(self, instructions: Iterable[Item]) -> None:
        """Add existing instructions."""
        self.code.extend(instructions)

    def label(self, label: Label) -> None:
        """Place a jump target here."""
        self.code.append(label)

    def try_begin(self, handler: Label, depth: int) -> TryBegin:
        """Begin a range whose ``handler`` finds the exception above ``depth`` stack values."""
        begin = TryBegin(handler, push_lasti=False, stack_depth=depth)
        self.code.append(begin)
        return begin

    def try_end(self, begin: TryBegin) -> None:
        """End the range that ``begin`` began."""
        self.code.append(TryEnd(begin))

    def const(self, value: Any) -> None:
        """Push a constant (any object)."""
        self.emit("LOAD_CONST", value)

    def load(self, name: str) -> None:
        """Push a local variable."""
        self.emit("LOAD_FAST", name)

    def closure(self, variable: CellVar | FreeVar) -> None:
        """Push a cell of the frame, not its contents."""
        self.emit(RULES.cell_load, variable)

    def store(self, name: str) -> None:
        """Pop into a local variable."""
        self.emit("STORE_FAST", name)

    def callable(self, load: Callable[[], None]) -> None:
        """Push the callable of a following ``call``."""
        if not RULES.null_above_callable:
            self.emit("PUSH_NULL")
        load()
        if RULES.null_above_callable:
            self.emit("PUSH_NULL")

    def insert_callable(self, load: Callable[[], None]) -> None:
        """Push the callable of a following ``call`` below the first argument, which is on top."""
        if not RULES.null_above_callable:
            self.emit("PUSH_NULL")
            self.emit("SWAP", 2)
        load()
        self.emit("SWAP", 2)
        if RULES.null_above_callable:
            self.emit("PUSH_NULL")
            self.emit("SWAP", 2)

    def callable_const(self, value: Any) -> None:
        """Push a constant as the callable of a following ``call``."""
        self.callable(lambda: self.const(value))

    def call(self, count: int) -> None:
        """Call with ``count`` positional arguments on top of the stack."""
        if RULES.call_prefix:
            self.emit(RULES.call_prefix, count)
        self.emit("CALL", count)

    def attribute(self, name: str) -> None:
        """Replace the top of the stack by its attribute."""
        self.emit("LOAD_ATTR", (False, name) if RULES.load_attr_has_flag else name)

    def subscript(self, key: Any) -> None:
        """Replace the top of the stack by its item at a constant key."""
        self.const(key)
        opcode, arg = RULES.subscript
        self.emit(opcode, UNSET if arg is None else BinaryOp(arg))

    def load_global(self, name: str) -> None:
        """Push a global of the frame, without a call's NULL."""
        self.emit("LOAD_GLOBAL", (False, name))

    def return_value(self) -> None:
        """Return the top of the stack."""
        self.emit("RETURN_VALUE")

    def for_iter(self, exhausted: Label) -> None:
        """Push the next item of the top iterator; at its end jump to ``exhausted``.

        ``end_for`` must place that label.
        """
        self.emit("FOR_ITER", exhausted)

    def end_for(self, exhausted: Label) -> None:
        """Place the target of an exhausted iterator; after it, the iterator is off the stack."""
        self.label(exhausted)
        for name in RULES.loop_end:
            self.emit(name)

    def jump(self, label: Label) -> None:
        """Jump forward to ``label``."""
        self.emit("JUMP_FORWARD", label)

    def jump_if_false(self, label: Label) -> None:
        """Pop a value and jump forward to ``label`` if it is false."""
        *before, jump = RULES.jump_if_false
        for name in before:
            self.emit(name)
        self.emit(jump, label)


def drop_unused_temporaries(code: Sequence[Item], variables: Collection[str]) -> list[Item]:
    """Return the code without locals that nothing, or only the next instruction, reads.

    ``variables`` are the locals of the user's function; their stores stay. Cells, which Python 3.13 and later load like
    locals, are no temporaries.
    """
    reads = Counter(str(getattr(i, "arg", "")) for i in code if getattr(i, "name", "") == "LOAD_FAST")
    kept: list[Item] = []
    for item in code:
        before = kept[-1] if kept else None
        last = getattr(before, "name", ""), getattr(before, "arg", None)
        name, variable = getattr(item, "name", ""), getattr(item, "arg", None)
        is_unneeded = isinstance(variable, str) and (
            (name == "STORE_FAST" and last == ("COPY", 1) and not reads[variable])
            or (name == "LOAD_FAST" and last == ("STORE_FAST", variable) and reads[variable] == 1)
        )
        if is_unneeded and variable not in variables:
            kept.pop()
        else:
            kept.append(item)
    return kept
