"""Code for a frame that breaks: run the one instruction in Python, then go on in resume functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from bytecode import Instr, Label
from bytecode.instr import CellVar, FreeVar, TryBegin

from engine.bytecode.apart import take_apart
from engine.bytecode.decode import Decoded, Op
from engine.bytecode.liveness import live_before
from engine.bytecode.opcodes import VERSION, after_loop
from engine.bytecode.resume import (
    HANDLED,
    VALUE,
    InstructionOffset,
    Point,
    first_local,
    free_names,
    resume_code,
    resumed,
)
from engine.bytecode.resume import NULL as NULL_KIND
from engine.bytecode.spans import span_of
from engine.ir.frame import ResumeSlot, Slot
from engine.ir.origin import STACK
from engine.trace.open_generators import is_half_way
from engine.trace.signals import Unsupported
from engine.trace.support import TailCall, finish, leave_with
from engine.trace.values.base import NULL, Const, Value, reached
from engine.trace.values.cells import CellValue
from engine.trace.values.exceptions import ExceptionValue, Handling
from engine.trace.values.objects import ObjectValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Frame, Tracer

_JUMPS: dict[str, bool] = {
    "POP_JUMP_FORWARD_IF_FALSE": True,
    "POP_JUMP_BACKWARD_IF_FALSE": True,
    "POP_JUMP_IF_FALSE": True,
    "POP_JUMP_FORWARD_IF_TRUE": True,
    "POP_JUMP_BACKWARD_IF_TRUE": True,
    "POP_JUMP_IF_TRUE": True,
    "JUMP_IF_TRUE_OR_POP": False,
    "JUMP_IF_FALSE_OR_POP": False,
}
"""Conditional jumps on a truth: whether both ways take the condition off the stack."""
_CONSUMING = frozenset(("LIST_EXTEND", "SET_UPDATE", "UNPACK_SEQUENCE", "UNPACK_EX", "CONTAINS_OP"))
"""Instructions that draw from the iterator on top of the stack."""

_SIMPLE: dict[str, tuple[int, int]] = {
    "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1),
    "BINARY_SLICE": (3, 1),
    "STORE_SUBSCR": (3, 0),
    "STORE_SLICE": (4, 0),
    "DELETE_SUBSCR": (2, 0),
    "COMPARE_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "IS_OP": (2, 1),
    "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1),
    "UNARY_INVERT": (1, 1),
    "UNARY_NOT": (1, 1),
    "TO_BOOL": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "GET_ITER": (1, 1),
    "IMPORT_NAME": (2, 1),
    "IMPORT_FROM": (1, 2),
    "LIST_TO_TUPLE": (1, 1),
    "FORMAT_SIMPLE": (1, 1),
    "FORMAT_WITH_SPEC": (2, 1),
    "CONVERT_VALUE": (1, 1),
    "GET_LEN": (1, 2),
    "LOAD_BUILD_CLASS": (0, 1),
    "MATCH_CLASS": (3, 1),
    "MATCH_KEYS": (2, 3),
    "DELETE_GLOBAL": (0, 0),
    "BEFORE_WITH": (1, 2),
    "CHECK_EXC_MATCH": (2, 2),
}
"""Instructions that work on the top of the stack alone: how many values they take and leave."""


def operands(op: Op) -> tuple[int, int] | None:
    """How many values an instruction takes and leaves; None where it cannot be run by itself."""
    known = _SIMPLE.get(op.opname)
    if known is not None:
        return known
    match op.opname:
        case "BUILD_TUPLE" | "BUILD_LIST" | "BUILD_SET" | "BUILD_STRING" | "BUILD_SLICE":
            return op.arg, 1
        case "BUILD_MAP":
            return 2 * op.arg, 1
        case "BUILD_CONST_KEY_MAP":
            return op.arg + 1, 1
        case "UNPACK_SEQUENCE":
            return 1, op.arg
        case "UNPACK_EX":
            return 1, (op.arg & 0xFF) + 1 + (op.arg >> 8)
        case "FORMAT_VALUE":
            return (2 if op.arg & 4 else 1), 1
        case "LIST_EXTEND" | "SET_UPDATE" | "DICT_UPDATE" | "LIST_APPEND" | "SET_ADD":
            return op.arg + 1, op.arg
        case "MAP_ADD":
            return op.arg + 2, op.arg
        case "DICT_MERGE":
            return op.arg + 1, op.arg
    return None


def _objects_made(values: Iterable[Value]) -> set[int]:
    """The ids of those objects of the user's that the traced code made which are reached from ``values``."""
    return {
        id(value) for value in reached(values) if type(value) is ObjectValue and (value.origin is None or value.is_made)
    }


@dataclass(frozen=True)
class Outcome:
    """What follows the broken instruction on one path: the stack left below (values or names of temporaries) and where to go on."""

    index: int
    stack: list[Value | str]


class Resumption:
    """Emits the break at one instruction of the root frame."""

    def __init__(
        self, tx: Tracer, cg: Codegen, frame: Frame, op: Op, stack: list[Value], *, is_root: bool = True
    ) -> None:
        self.tx = tx
        self.cg = cg
        self.frame = frame
        self.is_root = is_root
        self.op = op
        self.stack = stack
        self.code: CodeType = frame.code
        self.decoded: Decoded = frame.decoded
        first = first_local(self.code)
        self.live = tuple(live | {first} if first else live for live in live_before(frame.decoded))
        self.slots: list[ResumeSlot] = []
        self.handler = frame.decoded.handlers[op.index]
        self.caught = Label()

    def values(self) -> list[Value]:
        """All that the new code may have to load."""
        return [*(v for v in self.stack if v is not NULL), *self.frame.locals.values(), *self.cells()]

    def cells(self) -> list[Value]:
        """The cells of the call."""
        return [c for c in self.frame.cells.values() if isinstance(c, Value)]

    def emit(self, replay: Callable[[], None]) -> None:
        """Emit everything after the graph; ``replay`` emits the side effects.

        Raises:
            Unsupported: this instruction cannot be left to Python by itself.
        """
        self.check_handled()
        here = self.live[self.op.index]
        local = [v for n, v in self.frame.locals.items() if n in here]
        dated = [v for v in reached([v for v in self.stack if v is not NULL] + local) if v.is_dated]
        # Python closes a generator that is left half-way also where the broken instruction raises.
        early = [*dated, *(v for v in self.frame.locals.values() if is_half_way(v))]
        self.load_all(early)
        self.drop(len(early))
        self.store_cells()
        if self.op.opname in _JUMPS:
            self._jump(replay)
        elif self.op.opname == "FOR_ITER":
            self._for_iter(replay)
        elif self.op.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
            self._call(replay)
        elif self.op.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            self._load_attr(replay)
        elif self.op.opname == "WITH_EXCEPT_START":
            self._with_except(replay)
        elif self.op.opname == "RAISE_VARARGS":
            self._raise(replay)
        else:
            self._simple(replay)
        self.catch()

    def check_handled(self) -> None:
        """Refuse where the stack does not hold all exceptions that are being handled.

        Raises:
            Unsupported: so it is.
        """
        if [v.error for v in self.stack if isinstance(v, Handling)] != self.frame.handled:
            raise Unsupported("side-effect", "an exception is about to leave its handler")

    # An instruction in Python that may raise, inside the user's try and with blocks.

    def _begin(self) -> TryBegin | None:
        """What follows is the broken instruction: it sees the exception being handled, and what it raises goes to the user's handler."""
        out = self.cg.out
        if self.handler is None:
            return None
        self.keep(self.live[self.handler.target])
        if self.frame.handled:
            self.load_all([self.frame.handled[-1]])
            out.emit("PUSH_EXC_INFO")
            out.emit("POP_TOP")
        return out.try_begin(self.caught, 1 if self.frame.handled else 0)

    def _end(self, begin: TryBegin | None) -> None:
        """The broken instruction is done; its results are still on the stack."""
        if begin is not None:
            self.cg.out.try_end(begin)

    def _leave(self) -> None:
        """The results are off the stack: no exception is being handled from here on."""
        if self.frame.handled:
            self.cg.out.emit("POP_EXCEPT")

    def catch(self) -> None:
        """Where an exception of the broken instruction goes: on at the user's handler."""
        if self.handler is None:
            return
        out = self.cg.out
        out.label(self.caught)
        if self.frame.handled:
            out.emit("SWAP", 2)
            out.emit("POP_EXCEPT")
        self.resume(self.at_handler(self.store_top()))

    def at_handler(self, error: str) -> Outcome:
        """Where the function goes on when the instruction has raised what the variable holds."""
        assert self.handler is not None
        stack: list[Value | str] = [*self.stack[: self.handler.depth]]
        if self.handler.push_index:
            stack.append(Const(InstructionOffset(self.op.offset // 2)))
        return Outcome(self.handler.target, [*stack, error])

    # The kinds of break.

    def _jump(self, replay: Callable[[], None]) -> None:
        takes = _JUMPS[self.op.opname]
        below = self.stack[:-1]
        self.load_all([*below, self.stack[-1]])
        condition = self.store_top()
        self.drop(len(below))
        self._materialize()
        replay()
        begin = self._begin()
        self.cg.out.load(condition)
        jumps_if_false = "FALSE" in self.op.opname
        label = Label()
        self.cg.out.jump_if_false(label)
        self._end(begin)
        self._leave()
        kept: list[Value | str] = [*below]
        at_target: list[Value | str] = kept if takes else [*kept, condition]
        if jumps_if_false:
            self.resume(Outcome(self.op.index + 1, kept))
            self.cg.out.label(label)
            self._leave()
            self.resume(Outcome(self.op.target, at_target))
        else:
            self.resume(Outcome(self.op.target, at_target))
            self.cg.out.label(label)
            self._leave()
            self.resume(Outcome(self.op.index + 1, kept))

    def _for_iter(self, replay: Callable[[], None]) -> None:
        self.load_all(self.stack)
        iterator = self.store_top()
        self.drop(len(self.stack) - 1)
        self._materialize()
        replay()
        label = Label()
        begin = self._begin()
        self._load_consumed(self.stack[-1], iterator)
        self.cg.out.for_iter(label)
        self._end(begin)
        item = self.store_top()
        self.cg.out.emit("POP_TOP")
        self._leave()
        below: list[Value | str] = [*self.stack[:-1]]
        self.resume(Outcome(self.op.index + 1, [*below, iterator, item]))
        self.cg.out.end_for(label)
        self._leave()
        self.resume(Outcome(after_loop(self.op.target), below))

    def _call(self, replay: Callable[[], None]) -> None:
        cg, op = self.cg, self.op
        count = 1 + (op.arg & 1) if op.opname == "CALL_FUNCTION_EX" else op.arg + (1 if op.opname == "CALL_KW" else 0)
        below, operands_ = self.stack[: -count - 2], self.stack[len(self.stack) - count - 2 :]
        self.load_all(below)
        self.drop(len(below))
        pair, args = operands_[:2], operands_[2:]
        if VERSION >= (3, 13):
            fn, beside = pair
        else:
            fn, beside = (pair[1], NULL) if pair[0] is NULL else pair
        first = [] if beside is NULL else [beside]
        self.load_all([fn, *first, *args])
        names = [self.store_top() for _ in (fn, *first, *args)]
        names.reverse()
        replay()
        begin = self._begin()
        cg.callable_exchanged(lambda: cg.out.load(names[0]))
        for name in names[1:]:
            cg.out.load(name)
        self._call_instruction(len(names) - 1)
        self._end(begin)
        result = self.store_top()
        self._leave()
        self.resume(Outcome(op.index + 1, [*below, result]))

    def _call_instruction(self, count: int) -> None:
        out, op = self.cg.out, self.op
        if op.opname == "CALL_FUNCTION_EX":
            out.emit("CALL_FUNCTION_EX", op.arg & 1)
            return
        if op.opname == "CALL_KW":
            out.emit("CALL_KW", count - 1)
            return
        if self.frame.kw_names:
            out.emit("KW_NAMES", self.frame.kw_names)
        out.call(count)

    def _load_attr(self, replay: Callable[[], None]) -> None:
        as_method = self.op.opname == "LOAD_METHOD" or (VERSION >= (3, 12) and bool(self.op.arg & 1))
        self.load_all(self.stack)
        of = self.store_top()
        self.drop(len(self.stack) - 1)
        replay()
        begin = self._begin()
        self.cg.out.load(of)
        self.cg.out.attribute(self.op.argval)
        self._end(begin)
        found = self.store_top()
        self._leave()
        pair: list[Value | str] = [found, NULL] if VERSION >= (3, 13) else [NULL, found]
        self.resume(Outcome(self.op.index + 1, [*self.stack[:-1], *(pair if as_method else [found])]))

    def _with_except(self, replay: Callable[[], None]) -> None:
        """A context manager's ``__exit__`` is told of an exception; the stack stays as it is."""
        self.load_all(self.stack)
        self.drop(len(self.stack))
        replay()
        begin = self._begin()
        self.cg.out.callable(lambda: self.cg.const(leave_with))
        self.load_all([self.stack[-4], self.stack[-1]])
        self.cg.out.call(2)
        self._end(begin)
        result = self.store_top()
        self._leave()
        self.resume(Outcome(self.op.index + 1, [*self.stack, result]))

    def _raise(self, replay: Callable[[], None]) -> None:
        """A ``raise`` of something unknown: nothing follows it but a handler."""
        split = len(self.stack) - self.op.arg
        self.load_all(self.stack)
        self.drop(len(self.stack))
        replay()
        begin = self._begin()
        self.load_all(self.stack[split:])
        self.cg.out.extend([self._instruction()])
        self._end(begin)

    def _simple(self, replay: Callable[[], None]) -> None:
        counts = operands(self.op)
        if counts is None:
            raise Unsupported("side-effect", f"the instruction {self.op.opname} cannot be left to Python by itself")
        takes, leaves = counts
        split = len(self.stack) - takes
        below, taken = self.stack[:split], self.stack[split:]
        self.load_all(below)
        self.drop(len(below))
        self.load_all(taken)
        names = [self.store_top() for _ in taken]
        names.reverse()
        replay()
        begin = self._begin()
        for name in names[:-1]:
            self.cg.out.load(name)
        if names and self.op.opname in _CONSUMING:
            self._load_consumed(taken[-1], names[-1])
        elif names:
            self.cg.out.load(names[-1])
        self.cg.out.extend([self._instruction()])
        self._end(begin)
        results: list[Value | str] = [self.store_top() for _ in range(leaves)]
        results.reverse()
        self._leave()
        self.resume(Outcome(self.op.index + 1, [*below, *results]))

    def _load_consumed(self, value: Value, name: str) -> None:
        """Push an iterator that the broken instruction consumes."""
        if value.type() in (map, filter):
            self.cg.exchanged(lambda: self.cg.out.load(name))
        else:
            self.cg.out.load(name)

    def _instruction(self) -> Instr:
        return next(i for i, n in take_apart(self.code) if n == self.op.index and isinstance(i, Instr))

    # Pieces.

    def load_all(self, values: list[Value]) -> None:
        """Push values in order."""
        # The last value must end on top: what stands for NULL goes below all others.
        for _ in [v for v in values if v is NULL]:
            self.cg.const(None)
        self.cg.load_all(v for v in values if v is not NULL)
        self.cg.flush()

    def _materialize(self) -> None:
        """Build live locals before the paths part, so that both find them."""
        self.keep(self.live[self.op.index + 1] | self.live[self.op.target])

    def keep(self, wanted: frozenset[str]) -> None:
        """Build these locals now."""
        values = [v for n, v in self.frame.locals.items() if n in wanted]
        self.load_all(values)
        self.drop(len(values))

    def drop(self, count: int) -> None:
        """Pop so many values."""
        for _ in range(count):
            self.cg.out.emit("POP_TOP")

    def store_top(self) -> str:
        """Pop into a fresh variable; its name."""
        name = self.cg.temp("t")
        self.cg.out.store(name)
        return name

    def store_cells(self) -> None:
        """Put the contents of the frame's own cells into them: resume functions and closures share the cells."""
        for name in self.code.co_cellvars:
            cell: Any = self.frame.cells.get(name)
            if cell is not None:
                self.cg.fill_root_cell(name, cell)

    def resume(self, outcome: Outcome) -> None:
        """Return what the rest of the function returns. What is built on the way there, no other way has."""
        with self.cg.forked():
            if resumed(self.code) is None:
                self.push_rest(outcome)
            else:
                self._rest(outcome, TailCall)
            self.cg.out.returns()

    def push_rest(self, outcome: Outcome, *, is_broken: bool = False) -> None:
        """Run the rest of the function and push what it returns."""
        out = self.cg.out
        out.callable(lambda: self.cg.const(finish))
        self._rest(outcome, None, is_broken=is_broken)
        out.call(1)

    def _rest(self, outcome: Outcome, wrapper: type[TailCall] | None, *, is_broken: bool = False) -> None:
        """Push what the resume function returns, or with ``wrapper`` what stands for the call of it."""
        out = self.cg.out
        first, holder = self._first()
        held = self._held() | {n for n, v in self.frame.locals.items() if is_half_way(v)}
        # What this function was given of the stack has left it, and the next one has parameters of these names.
        wanted = self.live[outcome.index] | {n for n in held if not n.startswith(STACK)}
        names = tuple(sorted(n for n in wanted if n in self.frame.locals and n != first))
        if any(not n.isidentifier() for n in names):
            raise Unsupported("side-effect", "the rest of a comprehension")
        if any(isinstance(v, CellValue) for v in outcome.stack):
            raise Unsupported("side-effect", "a comprehension whose variable a function closes over")
        kinds = tuple(self._kind(v) for v in outcome.stack)
        code = resume_code(self.code, Point(outcome.index, kinds, names, first, is_broken))
        slot = Slot("resume")
        free = free_names(self.code)
        span = span_of(self.code, self.op.offset)
        self.slots.append(ResumeSlot(slot, code, self.frame.globals.values, span, bool(free)))  # type: ignore[arg-type]
        if wrapper is not None:
            out.callable(lambda: self.cg.const(wrapper))
            self._function(slot, code, free)
        else:
            out.callable(lambda: self._function(slot, code, free))
        if holder is not None:
            self.cg.load(holder)
        for value, kind in zip(outcome.stack, kinds, strict=True):
            if isinstance(value, str):
                out.load(value)
            elif kind in (VALUE, HANDLED):
                self.cg.load(value)
        self.cg.load_all(self.frame.locals[n] for n in names)
        self.cg.flush()
        # An exception knows the frames that it went through, and one that holds it would live until garbage is collected.
        for name in [v for v in outcome.stack if isinstance(v, str)] + self.cg.kept_of(ExceptionValue):
            self.cg.const(None)
            out.store(name)
        out.call(sum(k in (VALUE, HANDLED) for k in kinds) + len(names) + bool(first) + (wrapper is not None))

    def _held(self) -> frozenset[str]:
        """Variables that nothing reads any more, but that keep an object alive to which the broken instruction may have made a weak reference.

        The function's first part holds what it made until the whole call ends; a resume function ends before the next one begins.
        """
        if resumed(self.code) is None:
            return frozenset()
        given = frozenset(self.code.co_varnames[: self.code.co_argcount]) - self.live[0]
        shown = _objects_made(self.stack)
        return given.union(
            n for n, v in self.frame.locals.items() if shown and not shown.isdisjoint(_objects_made([v]))
        )

    def _first(self) -> tuple[str, Value | None]:
        """The parameter that ``super()`` will look at, and its value; one that is a cell here comes as a parameter of its own beside the cell."""
        name = first_local(self.code)
        if name in self.frame.locals:
            return name, self.frame.locals[name]
        cell = self.frame.cells.get(name)
        if cell is None or cell.content is None:
            return "", None
        return "__first", cell.content

    def _kind(self, value: Value | str) -> str | int:
        """How a resume function gets a value of the stack."""
        if isinstance(value, Handling):
            return HANDLED
        if isinstance(value, Const) and type(value.value) is InstructionOffset:
            return self.decoded.index_of[2 * value.value]
        return NULL_KIND if value is NULL else VALUE

    def _function(self, slot: Slot, code: CodeType, free: tuple[str, ...]) -> None:
        """Push the resume function; with cells, made around them now."""
        out = self.cg.out
        if not free:
            out.const(slot)
            return
        out.callable_const(slot)
        if not self.is_root:
            out.callable(lambda: self.cg.const(FunctionType))
            out.const(code)
            self.cg.namespace(self.frame.globals)
            out.const(code.co_name)
            out.const(None)
            self._cells_of_inline(free)
            out.call(5)
            out.call(1)
            return
        for name in free:
            out.closure(CellVar(name) if name in self.code.co_cellvars else FreeVar(name))
        out.emit("BUILD_TUPLE", len(free))
        out.const(code)
        if VERSION >= (3, 13):
            out.emit("MAKE_FUNCTION")
            out.emit("SET_FUNCTION_ATTRIBUTE", 8)
        else:
            out.emit("MAKE_FUNCTION", 8)
        out.call(1)

    def _cells_of_inline(self, free: tuple[str, ...]) -> None:
        """Push the cells of a call that was traced inline."""
        for name in free:
            self.cg.load(self.frame.cells[name])
        self.cg.flush()
        self.cg.out.emit("BUILD_TUPLE", len(free))
