"""The symbolic frame: stack, locals, blocks and position of one traced function."""

from __future__ import annotations

import builtins
from types import CodeType
from typing import Any

from engine.bytecode.decode import DecodedCode, DecodedInstruction, decode
from engine.bytecode.source_positions import span_of
from engine.ir.sources.base import GlobalsNamespace
from engine.records.bytecode import Span
from engine.trace.variables.base import (
    Variable,
)


class Frame:
    """One activation of a code object: the root's, or one traced inline."""

    __slots__ = (
        "builtins",
        "caller_stack",
        "cells",
        "code",
        "decoded",
        "exc_stack",
        "function",
        "globals",
        "instruction_number",
        "is_finished",
        "is_trusted",
        "kw_names",
        "locals",
        "module_path",
        "next_index",
        "op",
        "ops_at_entry",
        "parent",
        "result",
        "returns_to_call",
        "stack",
        "stack_before",
    )

    def __init__(
        self, code: CodeType, namespace: GlobalsNamespace, parent: Frame | None, caller_stack: tuple[Span, ...]
    ) -> None:
        self.code = code
        self.decoded: DecodedCode = decode(code)
        self.next_index = 0
        self.op: DecodedInstruction = self.decoded.ops[0]
        self.stack: list[Variable] = []
        self.stack_before: list[Variable] = []
        """The stack as the current instruction found it: what it takes lives until it is done."""
        self.locals: dict[str, Variable] = {}
        self.cells: dict[str, Any] = {}
        self.globals = namespace
        self.builtins = namespace.values.get("__builtins__", builtins)
        self.parent = parent
        self.caller_stack = caller_stack
        self.module_path: str = parent.module_path if parent is not None else ""
        self.kw_names: tuple[str, ...] = ()
        self.result: Variable | None = None
        self.exc_stack: list[Variable] = []
        self.function: Variable | None = None
        self.is_finished = False
        self.instruction_number = 0
        """Which of all instructions the current one is."""
        self.returns_to_call = False
        """Whether what it returns is what the calling instruction leaves on the caller's stack."""
        self.ops_at_entry = 0
        """How many operations the graph held when the call began."""
        self.is_trusted = is_trusted_module(namespace.name)

    def clear(self) -> None:
        """Let go of all values."""
        for held in (self.stack, self.stack_before, self.locals, self.cells, self.exc_stack):
            held.clear()

    def push(self, value: Variable) -> None:
        """Push."""
        self.stack.append(value)

    def pop(self) -> Variable:
        """Pop, as it is (maybe lazy)."""
        return self.stack.pop()

    def popn(self, count: int) -> list[Variable]:
        """Pop ``count`` values, bottom first."""
        if not count:
            return []
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def user_stack(self) -> tuple[Span, ...]:
        """The user's call stack at this frame's current instruction, outermost first."""
        return (*self.caller_stack, span_of(self.code, self.op.offset))


_TRUSTED_MODULES = frozenset(
    "torch math operator functools itertools collections builtins _operator _functools _collections contextlib enum types typing "
    "copy dataclasses abc numbers warnings inspect random re string weakref unittest einops".split()
)


def is_trusted_module(module: str | None) -> bool:
    """Whether a module's functions and classes are taken not to change while a program runs."""
    return module is not None and module.partition(".")[0] in _TRUSTED_MODULES
