"""Resume functions: the rest of a function from any instruction on."""

from __future__ import annotations

import types
from collections import Counter
from typing import Any

import pytest

from engine.bytecode import editable_instructions
from engine.bytecode.decode import decode
from engine.bytecode.resume_functions import NULL, VALUE, ResumePoint, resume_code, resume_info, shared_cell_names


def plain(a: int, b: int) -> int:
    c = a + b
    return c * 2


def outer(a: int) -> Any:
    total = a

    def add(n: int) -> int:
        nonlocal total
        total += n
        return total

    first = add(1)
    return first, total


def test_goes_on_with_the_stack_given() -> None:
    """The values handed over are found on the stack and in the locals."""
    index = next(op.index for op in decode(plain.__code__).ops if op.opname == "STORE_FAST")
    code = resume_code(plain.__code__, ResumePoint(index, (VALUE,), ()))
    assert types.FunctionType(code, {})(21) == 42


def test_one_point_has_one_code_object() -> None:
    """Compiles of one frame share the cache of what follows."""
    point = ResumePoint(1, (), ("a", "b"))
    assert resume_code(plain.__code__, point) is resume_code(plain.__code__, point)


def test_cells_are_shared() -> None:
    """Cells of the broken frame become free variables of the resume function."""
    ops = decode(outer.__code__).ops
    index = next(op.index for op in ops if op.opname == "STORE_FAST" and op.argval == "first")
    code = resume_code(outer.__code__, ResumePoint(index, (VALUE,), ()))
    assert code.co_freevars == shared_cell_names(outer.__code__) == ("total",)
    cell = types.CellType(5)
    assert types.FunctionType(code, {}, "f", None, (cell,))(3) == (3, 5)


def test_resuming_a_resume_function_starts_from_the_original() -> None:
    """Resume points inside a resume function refer to the user's code, so code does not grow."""
    index = next(op.index for op in decode(plain.__code__).ops if op.opname == "STORE_FAST")
    first = resume_code(plain.__code__, ResumePoint(index, (VALUE,), ()))
    inside = next(op.index for op in decode(first).ops if op.opname == "RETURN_VALUE")
    second = resume_code(first, ResumePoint(inside, (VALUE,), ()))
    made = resume_info(second)
    assert made is not None
    assert made.base_code() is plain.__code__
    assert types.FunctionType(second, {})(9) == 9


def test_null_entries_are_made_again() -> None:
    """A NULL on the stack is no parameter."""
    code = resume_code(plain.__code__, ResumePoint(0, (NULL, VALUE), ("a", "b")))
    assert code.co_varnames[:3] == ("__stack_1", "a", "b")


def test_the_code_of_a_frame_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume functions of several points share what was read of their code."""
    reads: Counter[types.CodeType] = Counter()
    read = editable_instructions.editable_bytecode

    def count(code: types.CodeType) -> Any:
        reads[code] += 1
        return read(code)

    monkeypatch.setattr(editable_instructions, "editable_bytecode", count)
    fresh = plain.__code__.replace(co_name="fresh")
    index = next(op.index for op in decode(fresh).ops if op.opname == "STORE_FAST")
    rest = resume_code(fresh, ResumePoint(index, (VALUE,), ()))
    whole = resume_code(fresh, ResumePoint(1, (), ("a", "b")))
    assert types.FunctionType(rest, {})(21) == types.FunctionType(whole, {})(20, 1) == 42
    assert reads == {fresh: 1}
