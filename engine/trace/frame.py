"""The symbolic frame: stack, locals, blocks and position of one traced function."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from engine.bytecode.decode import DecodedCode, DecodedInstruction, decode
from engine.bytecode.source_positions import span_of
from engine.ir.sources.base import GlobalsNamespace
from engine.records.bytecode import Span
from engine.trace.annotations import CellVariable
from engine.trace.variables.base import Variable


@dataclass(eq=False, slots=True)
class Frame:
    """One activation of a code object: of the root function or of an inlined call."""

    code: CodeType
    globals: GlobalsNamespace
    caller_stack: tuple[Span, ...] = ()
    module_path: str = ""
    decoded: DecodedCode = field(init=False)
    next_index: int = 0
    op: DecodedInstruction = field(init=False)
    stack: list[Variable] = field(default_factory=list)
    stack_before: list[Variable] = field(default_factory=list)
    """The stack before the current instruction: its operands stay alive until it is done."""
    locals: dict[str, Variable] = field(default_factory=dict)
    cells: dict[str, CellVariable] = field(default_factory=dict)
    kw_names: tuple[str, ...] = ()
    result: Variable | None = None
    exc_stack: list[Variable] = field(default_factory=list)
    function: Variable | None = None
    is_finished: bool = False
    instruction_number: int = 0
    """Number of the current instruction among all traced instructions."""
    returns_to_call: bool = False
    """True if its return value is what the call instruction leaves on the caller's stack."""
    ops_at_entry: int = 0
    """Number of graph operations when the call began."""
    is_trusted: bool = False

    def __post_init__(self) -> None:
        self.decoded = decode(self.code)
        self.op = self.decoded.ops[0]
        self.is_trusted = is_trusted_module(self.globals.name)

    def callee(self, code: CodeType, namespace: GlobalsNamespace) -> Frame:
        """Return the frame of a function that this one calls."""
        return Frame(code, namespace, self.user_stack(), self.module_path)

    @property
    def is_root(self) -> bool:
        """True for the frame of the compiled function, which has no traced caller."""
        return not self.caller_stack

    @property
    def builtins(self) -> dict[str, Any]:
        """Builtins that names of this frame reach."""
        namespace = self.globals.values.get("__builtins__", builtins)
        return namespace if isinstance(namespace, dict) else vars(namespace)

    def cell_contents(self) -> list[Variable]:
        """Return the contents of the cells that are not empty."""
        return [cell.content for cell in self.cells.values() if cell.content is not None]

    def clear(self) -> None:
        """Release all variables."""
        for real in (self.stack, self.stack_before, self.locals, self.cells, self.exc_stack):
            real.clear()

    def push(self, value: Variable) -> None:
        """Push a variable."""
        self.stack.append(value)

    def popn(self, count: int) -> list[Variable]:
        """Pop ``count`` variables, bottom first."""
        if not count:
            return []
        popped = self.stack[-count:]
        del self.stack[-count:]
        return popped

    @property
    def line(self) -> int:
        """Line of the current instruction."""
        return span_of(self.code, self.op.offset).line

    def user_stack(self) -> tuple[Span, ...]:
        """Return the user's call stack at the frame's current instruction, outermost first."""
        return (*self.caller_stack, span_of(self.code, self.op.offset))


_TRUSTED_MODULES = frozenset(
    "torch math operator functools itertools collections builtins _operator _functools _collections contextlib enum types typing "
    "copy dataclasses abc numbers warnings _py_warnings inspect random re string weakref unittest einops".split()
)


def is_trusted_module(module: str | None) -> bool:
    """Return True if a module's functions and classes are assumed not to change at run time."""
    return module is not None and module.partition(".")[0] in _TRUSTED_MODULES
