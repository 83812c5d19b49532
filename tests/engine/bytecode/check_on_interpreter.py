"""Check bytecode tools on any supported interpreter, without torch.

It decodes code, stops functions at every instruction and continues in resume functions.

Prints a JSON list of what went wrong, one sentence each. ``resume_corpus.py`` beside it holds the functions. An argument
says that only one instruction in so many is stopped at.
"""

from __future__ import annotations

import dis
import inspect
import json
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar

from engine.bytecode import intercept_calls
from engine.bytecode.assemble import Emitter
from engine.bytecode.decode import DecodedCode, decode, exception_table
from engine.bytecode.editable_instructions import editable_instructions
from engine.bytecode.liveness import live_before
from engine.bytecode.opcodes import (
    FAMILIES,
    RULES,
    UNSUPPORTED,
    VERSION,
    index_after_loop,
    opcode_family,
    unsupported_reason,
)
from engine.bytecode.resume_functions import HANDLED_EXCEPTION, NULL, VALUE, ResumePoint, resume_code, shared_cell_names
from engine.bytecode.to_records import instruction_records

HERE = pathlib.Path(__file__).parent
Kinds = tuple[str | int, ...]


def real_opcodes() -> tuple[str, ...]:
    """Return the interpreter's opcodes without instrumented and specialized variants."""
    return tuple(name for name in dis.opmap if not name.startswith("INSTRUMENTED_") and not name.startswith("<"))


def opcodes() -> Iterator[str]:
    """Every opcode is either traced by one family or left to Python with a reason."""
    for name in real_opcodes():
        if (opcode_family(name) is not None) == (name in UNSUPPORTED):
            yield f"{name} is {'in a family and unsupported' if name in UNSUPPORTED else 'not placed'}"
        elif name in UNSUPPORTED and not unsupported_reason(name):
            yield f"{name} has no reason"
    for name in {n for names in FAMILIES.values() for n in names}:
        if sum(name in names for names in FAMILIES.values()) > 1:
            yield f"{name} is in two families"


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all those inside."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def taken_apart(code: types.CodeType) -> Iterator[str]:
    """Yield differences from CPython's tables, unknown live names, and missing spans.

    Tables must agree with CPython's own, every live name must be a variable, and every instruction must have
    a span in the text.
    """
    decoded = decode(code)
    named = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "EXTENDED_ARG")]
    if [op.opname for op in decoded.ops] != [i.opname for i in named]:
        yield f"{code.co_qualname}: other instructions than dis"
    table = [(e.start, e.end, e.target, e.depth, e.lasti) for e in dis._parse_exception_table(code)]  # type: ignore[attr-defined]
    if list(exception_table(code)) != table:
        yield f"{code.co_qualname}: another exception table than dis"
    known = set(code.co_varnames) | set(shared_cell_names(code))
    if not all(live <= known for live in live_before(decoded)):
        yield f"{code.co_qualname}: something is live that is no variable"
    if any(op.opname == "RESUME" for op in decoded.ops) and len(
        {n for _, n in editable_instructions(code)} - {len(decoded.ops)}
    ) != len(decoded.ops):
        yield f"{code.co_qualname}: taken apart into other instructions"
    if len(instruction_records(code)) != len(decoded.ops):
        yield f"{code.co_qualname}: not every instruction has a span"


def stacks(decoded: DecodedCode) -> dict[int, Kinds]:
    """What lies on the stack before each reachable instruction: kinds as a Point has them."""
    found: dict[int, Kinds] = {}
    todo: list[tuple[int, Kinds]] = [(0, ())]
    while todo:
        n, stack = todo.pop()
        while n < len(decoded.ops) and n not in found:
            found[n] = stack
            op, handler = decoded.ops[n], decoded.handlers[n]
            if handler is not None:
                marker = (n,) if handler.pushes_lasti else ()
                todo.append((handler.target, (*stack[: handler.depth], *marker, VALUE)))
            if op.opname == "FOR_ITER":
                todo.append((index_after_loop(op.target), stack[:-1]))
            elif op.target >= 0:
                todo.append((op.target, after(op, stack, jump=True)))
            if op.opname in intercept_calls._ENDS or op.opname in intercept_calls._ALWAYS_JUMP:
                break
            stack = after(op, stack, jump=False)
            n += 1
    return found


def after(op: Any, stack: Kinds, *, jump: bool) -> Kinds:
    """The stack after an instruction, by ``route``'s rules, with what is handled marked."""
    if op.opname == "PUSH_EXC_INFO":
        return (*stack[:-1], HANDLED_EXCEPTION, VALUE)
    if op.opname in ("SWAP", "COPY"):
        low = len(stack) - op.arg
        return (
            (*stack, stack[low]) if op.opname == "COPY" else (*stack[:low], stack[-1], *stack[low + 1 : -1], stack[low])
        )
    nulls = tuple(kind == NULL for kind in stack)
    made = intercept_calls._stack_after(op, nulls, jump=jump)
    if op.opname == "LOAD_FAST_AND_CLEAR":
        return (*stack, "maybe")
    if intercept_calls._loads_method(op.opname, op.arg & 1):
        pair = (VALUE, "maybe") if RULES.null_above_callable else ("maybe", VALUE)
        return (*stack[: -3 if op.opname == "LOAD_SUPER_ATTR" else -1], *pair)
    # What only takes leaves the rest as it is; else the top is new.
    kept = min(len(made), len(stack)) - (not op.opname.startswith(_TAKES) and len(made) <= len(stack))
    return tuple(stack[n] if n < kept else NULL if is_null else VALUE for n, is_null in enumerate(made))


_TAKES = (
    "STORE_",
    "POP_",
    "DELETE_",
    "JUMP_",
    "END_FOR",
    "LIST_",
    "SET_",
    "MAP_",
    "DICT_",
    "PRECALL",
    "NOP",
    "KW_NAMES",
)


class Stop:
    """Continue a stopped function in its resume function, with its stack and variables."""

    def __init__(self, function: types.FunctionType, index: int, kinds: Kinds) -> None:
        self.function = function
        self.index = index
        self.kinds = kinds
        self.resumes = 0

    def __call__(self, cells: tuple[Any, ...]) -> Any:
        frame = sys._getframe(1)
        stack = {n: frame.f_locals[f"__s{n}"] for n in range(len(self.kinds)) if f"__s{n}" in frame.f_locals}
        code = self.function.__code__
        live = live_before(decode(code))[self.index]
        names = tuple(
            sorted(n for n in live if n in frame.f_locals and n not in shared_cell_names(code) and n.isidentifier())
        )
        kinds = tuple((VALUE if n in stack else NULL) if k == "maybe" else k for n, k in enumerate(self.kinds))
        now = frame.f_locals.get("__handled", (None, None))[1]
        values = [
            handled_exception(stack, kinds, n, now) if k == HANDLED_EXCEPTION else stack[n]
            for n, k in enumerate(kinds)
            if k in (VALUE, HANDLED_EXCEPTION)
        ]
        made = resume_code(code, ResumePoint(self.index, kinds, names))
        self.resumes += 1
        return types.FunctionType(made, self.function.__globals__, code.co_name, None, cells)(
            *values, *(frame.f_locals[n] for n in names)
        )


def handled_exception(stack: dict[int, Any], kinds: Kinds, place: int, now: Any) -> Any:
    """Return the exception being handled above a stack position; ``now`` is the innermost."""
    above = [n for n in range(place + 1, len(kinds)) if kinds[n] == HANDLED_EXCEPTION]
    return stack[above[0]] if above else now


def stop_at(function: types.FunctionType, index: int, kinds: Kinds) -> tuple[types.FunctionType, Stop] | None:
    """Build a function that stops before ``index`` and continues in a resume function."""
    code = function.__code__
    stop, there = Stop(function, index, kinds), Label()
    result = Bytecode()
    for item, n in editable_instructions(code):
        if n == index and isinstance(item, Instr):
            result.append(Instr("JUMP_FORWARD", there, location=item.location))
            index = -1
        result.append(item)
    out = Emitter(None)
    out.label(there)
    for n in reversed(range(len(kinds))):
        out.emit("POP_TOP") if isinstance(kinds[n], int) else out.store(f"__s{n}")  # an offset may be no object
    outermost = next((n for n, kind in enumerate(kinds) if kind == HANDLED_EXCEPTION), None)
    if outermost is not None:
        out.callable_const(sys.exc_info)
        out.call(0)
        out.store("__handled")
        out.load(f"__s{outermost}")
        out.emit("POP_EXCEPT")
    out.callable_const(stop)
    for name in shared_cell_names(code):
        out.closure(CellVar(name) if name in code.co_cellvars else FreeVar(name))
    out.emit("BUILD_TUPLE", len(shared_cell_names(code)))
    out.call(1)
    out.return_value()
    result.extend(out.code)
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    result.argnames = list(code.co_varnames[:count])
    result.argcount, result.kwonlyargcount, result.posonlyargcount = (
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_posonlyargcount,
    )
    result.name, result.qualname, result.filename, result.first_lineno = (
        code.co_name,
        code.co_qualname,
        code.co_filename,
        code.co_firstlineno,
    )
    result.cellvars, result.freevars, result.flags = (
        list(code.co_cellvars),
        list(code.co_freevars),
        CompilerFlags(code.co_flags),
    )
    made = result.to_code(stacksize=code.co_stacksize + 3 * len(kinds) + 8, compute_exception_stack_depths=False)
    return with_code(function, made), stop


def with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """The function with other code."""
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def outcome(function: Callable[..., Any], printed: list[str]) -> Any:
    """Result or exception, what was printed, and that no exception is left being handled."""
    printed.clear()
    try:
        seen = ("returned", repr(function()))
    except Exception as error:
        seen = ("raised", f"{error!r} {error.__cause__!r} {error.__context__!r}")
    return seen, tuple(printed), sys.exc_info()


def corpus(printed: list[str]) -> dict[str, types.FunctionType]:
    """The functions of the corpus that this version of Python can compile."""
    found: dict[str, Any] = {"say": lambda *words: printed.append(" ".join(map(repr, words)))}
    newer = [
        name for name, first in (("corpus_from_312.txt", (3, 12)), ("corpus_from_314.txt", (3, 14))) if VERSION >= first
    ]
    for name in ("resume_corpus.py", *newer):
        exec(compile((HERE / name).read_text(encoding="utf-8"), str(HERE / name), "exec"), found)
    return {n: f for n, f in found.items() if isinstance(f, types.FunctionType) and n.startswith("case_")}


def check_every_stop(
    name: str, function: types.FunctionType, printed: list[str], met: set[str], step: int = 1
) -> Iterator[str]:
    """A function cut at each of its instructions does what it does uncut.

    With ``step``, at one in so many instructions and where a kind of instruction is first met.
    """
    expected = outcome(function, printed)
    decoded = decode(function.__code__)
    if function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return
    first = next(op.index for op in decoded.ops if op.opname == "RESUME")
    for index, kinds in sorted(stacks(decoded).items()):
        op = decoded.ops[index]
        if (
            index <= first
            or (index % step and op.opname in met)
            or op.opname in ("PRECALL", "CALL")
            and decoded.ops[index - 1].opname in ("KW_NAMES", "PRECALL")
            or op.opname in ("END_FOR", "MAKE_CELL")
        ):
            continue
        made = stop_at(function, index, kinds)
        assert made is not None
        cut_function, stop = made
        actual = outcome(cut_function, printed)
        if stop.resumes:
            met.add(op.opname)
        if actual != expected:
            yield f"{name} cut at {index} {op.opname} {op.argrepr}: {actual} instead of {expected}"


def main(step: int = 1) -> list[str]:
    """All checks, with a stop at one instruction in ``step``."""
    printed: list[str] = []
    met: set[str] = set()
    wrong = list(opcodes())
    functions = corpus(printed)
    for function in functions.values():
        for code in codes(function.__code__):
            wrong += taken_apart(code)
        routed = with_code(function, intercept_calls.intercept_calls(function.__code__, lambda obj: obj))
        if outcome(function, printed) != outcome(routed, printed):
            wrong.append(f"{function.__name__}: the routed copy behaves otherwise")
    for module in (json, inspect, dis):
        for value in vars(module).values():
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                for code in codes(value.__code__):
                    wrong += taken_apart(code)
    for name, function in functions.items():
        wrong += check_every_stop(name, function, printed, met, step)
    if "torch" in sys.modules:
        wrong.append("torch was imported")
    if len(met) < 60:
        wrong.append(f"only {len(met)} kinds of instructions were stopped at")
    return wrong


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
