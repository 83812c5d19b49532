"""Breaks inside calls that are traced inline: the graph ends there, and each function of the call stack goes on in a resume function of its own.

The innermost one starts with the broken instruction, which runs in its own code as Python would run it; what it returns is handed to the rest of its
caller, and so on outwards. (The idea of one break for a whole stack of calls is that of nested graph breaks in torch._dynamo.)
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, GeneratorType
from typing import TYPE_CHECKING, Any

import torch
from bytecode import Label

from engine.bytecode.decode import Decoded
from engine.bytecode.liveness import reached_from
from engine.bytecode.resume import resumed
from engine.ir.files import is_library_file, is_over_tensors
from engine.trace.resumption import Outcome, Resumption
from engine.trace.signals import Cut
from engine.trace.values.base import NULL, Lazy, Value
from engine.trace.values.generators import GeneratorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Frame, Tracer

_LOOK_AT_FRAME = frozenset(("eval", "exec", "locals", "_getframe"))
"""Names of what finds the local variables of the function that calls it."""
_LOOKERS = frozenset((eval, exec, locals, sys._getframe))
_ARE_READ = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"))
_BELONG_TO_A_CALL = frozenset(("KW_NAMES", "PRECALL"))


def innermost_cut(tx: Tracer) -> Cut | None:
    """Where the graph can end now, as far inside the calls as there is something in the graph or tensors to go on with; None: in the root frame."""
    if len(tx.frames) < 2 or tx.is_nested():
        return None
    depth = 0
    while depth + 1 < len(tx.frames) and _is_resumable(tx.frames[depth], tx.frames[depth + 1]):
        depth += 1
    while depth and not (_is_of_user(tx.frames[depth]) and _has_tensors(tx, tx.frames[depth])):
        depth -= 1
    if not all(_is_of_user(f) or _wraps(f, g) for f, g in itertools.pairwise(tx.frames[1 : depth + 1])):
        return None
    if any(_cleans_up_later(v, 3) for f in tx.frames[1 : depth + 1] for v in (*f.stack, *f.locals.values())):
        return None  # the root's code would hold the generator until the root returns
    frame = tx.frames[depth]
    return Cut(frame.begun, depth, frame.code, frame.op.offset) if depth else None


def _is_resumable(caller: Frame, frame: Frame) -> bool:
    """Whether a call can be cut in two, and its caller go on with what it returns."""
    code = frame.code
    return (
        frame.is_direct
        and not caller.handled
        and not code.co_flags & inspect.CO_GENERATOR
        and all(name.isidentifier() for name in code.co_varnames)
        and not looks_at_frame(caller)
        and not looks_at_frame(frame)
    )


def looks_at_frame(frame: Frame, stack: Sequence[Value] | None = None) -> bool:
    """Whether what follows in a call may look at the call's own local variables, of which a resume function has those that it reads."""
    if not _LOOK_AT_FRAME.intersection(frame.code.co_names):
        return False
    if any(_real(v) in _LOOKERS for v in (*(stack or frame.stack), *frame.locals.values()) if v is not NULL):
        return True
    ops = (frame.decoded.ops[n] for n in reached_from(frame.decoded, frame.op.index))
    return any(
        op.argval in _LOOK_AT_FRAME and (op.opname in _ARE_READ or op.argval == "_getframe")
        for op in ops
        if isinstance(op.argval, str)
    )


def _real(value: Value) -> Any:
    """The builtin that a value is, if it is one."""
    found = value.held if isinstance(value, Lazy) else value.real()
    return found if isinstance(found, BuiltinFunctionType) else None


def _is_of_user(frame: Frame) -> bool:
    """Whether a function would be compiled by itself were it called by Python: those of libraries are left alone, save torch's over tensors."""
    module = frame.globals.name
    is_of_torch = is_library_file(frame.code.co_filename)
    return not is_of_torch or module.startswith("torch.nn.modules.") or is_over_tensors(module)


def _wraps(wrapper: Frame, wrapped: Frame) -> bool:
    """Whether a library's function is the wrapper that a decorator put around what it calls."""
    contents = (_known(c.content) for c in wrapper.cells.values() if isinstance(getattr(c, "content", None), Value))
    return any(v is wrapped.function for v in contents)


def _known(value: Value) -> Value | None:
    """What is known of a value, without looking at it."""
    return value.known if isinstance(value, Lazy) else value


def _cleans_up_later(value: Value, depth: int) -> bool:
    """Whether a generator is within reach that may run handlers when nothing holds it any more."""
    if isinstance(value, Lazy):
        if value.known is None:
            return isinstance(value.held, GeneratorType) and bool(value.held.gi_code.co_exceptiontable)
        value = value.known
    if isinstance(value, GeneratorValue):
        return not value.frame.finished and bool(value.frame.code.co_exceptiontable)
    return depth > 0 and any(_cleans_up_later(v, depth - 1) for v in value.children()[:20])


def _has_tensors(tx: Tracer, frame: Frame) -> bool:
    """Whether a call has done something in the graph, or holds what may do so later."""
    if tx.graph.operations != frame.operations:
        return True
    cells = (c.content for c in frame.cells.values() if isinstance(getattr(c, "content", None), Value))
    return any(_reaches_tensor(v, 3) for v in (*frame.locals.values(), *cells))


def _reaches_tensor(value: Value, depth: int) -> bool:
    if isinstance(value, Lazy):
        if value.known is None:
            return holds_tensor(value.held, depth)
        value = value.known
    if issubclass(value.type(), (torch.Tensor, torch.nn.Module)):
        return True
    return depth > 0 and any(_reaches_tensor(v, depth - 1) for v in value.children()[:20])


def holds_tensor(value: Any, depth: int) -> bool:
    """Whether a tensor or module is within reach of an object."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if depth == 0:
        return False
    if isinstance(value, (list, tuple)):
        return any(holds_tensor(v, depth - 1) for v in value[:20])
    if isinstance(value, dict):
        return any(holds_tensor(v, depth - 1) for v in list(value.values())[:20])
    owner = getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return holds_tensor(owner, depth - 1)
    return callable(value) and not isinstance(value, type)


def broken_first(code: Any, decoded: Decoded) -> int | None:
    """The index of the instruction that this resume function starts with and leaves to Python, if it does."""
    known = resumed(code)
    if known is None or not known.is_broken:
        return None
    index = known.indices.index(known.index)
    while decoded.ops[index].opname in _BELONG_TO_A_CALL:
        index += 1
    return index


class NestedResumption:
    """Emits a break inside calls; ``frames`` are the root's and those of the calls, outermost first."""

    def __init__(self, tx: Tracer, cg: Codegen, frames: list[Frame]) -> None:
        self.cg = cg
        self.levels = [Resumption(tx, cg, f, f.op, list(f.stack), is_root=n == 0) for n, f in enumerate(frames)]
        self.result = cg.temp("t")

    def values(self) -> list[Value]:
        """All that the new code may have to load."""
        return [v for level in self.levels for v in level.values()]

    @property
    def slots(self) -> list[Any]:
        """What the emitted code calls to go on."""
        return [slot for level in self.levels for slot in level.slots]

    def emit(self, replay: Callable[[], None]) -> None:
        """Emit everything after the graph; ``replay`` emits the side effects.

        Raises:
            Unsupported: one of the functions cannot be cut in two here.
        """
        *outer, inner = self.levels
        root = self.levels[0]
        root.store_cells()
        for level in outer:
            self._keep(level, level.op.index + 1)
            if level.handler is not None:
                self._keep(level, level.handler.target)
        start = _start(inner)
        self._keep(inner, start)
        for level in self.levels:
            level.check_handled()
        replay()
        for n in range(len(outer), 0, -1):
            self._rest_of_inline(n, start)
        root.resume(Outcome(root.op.index + 1, [*root.stack, self.result]))
        root.catch()

    def _keep(self, level: Resumption, index: int) -> None:
        """Build what the function will need while it is as it was when the graph ended."""
        level.load_all(level.stack)
        level.drop(len(level.stack))
        level.keep(level.live[index])
        if not level.is_root:
            level.load_all(level.cells())
            level.drop(len(level.cells()))

    def _rest_of_inline(self, n: int, start: int) -> None:
        """Run the rest of one call; ``result`` holds what it returns."""
        level, out = self.levels[n], self.cg.out
        if n == len(self.levels) - 1:
            self._guarded(n, Outcome(start, [*level.stack]), is_broken=True)
            return
        self._guarded(n, Outcome(level.op.index + 1, [*level.stack, self.result]))
        if level.handler is None:
            return
        joined = Label()
        out.jump(joined)
        out.label(level.caught)
        self._guarded(n, level.at_handler(level.store_top()))
        out.label(joined)

    def _guarded(self, n: int, outcome: Outcome, *, is_broken: bool = False) -> None:
        """Go on with one call, where what it raises goes to the nearest handler around it in its callers."""
        out = self.cg.out
        around = next((level for level in reversed(self.levels[:n]) if level.handler is not None), None)
        begin = None if around is None else out.try_begin(around.caught, 0)
        self.levels[n].push_rest(outcome, is_broken=is_broken)
        if begin is not None:
            out.try_end(begin)
        out.store(self.result)


def _start(level: Resumption) -> int:
    """The first instruction that belongs to the broken one."""
    index = level.op.index
    while index and level.decoded.ops[index - 1].opname in _BELONG_TO_A_CALL:
        index -= 1
    return index
