"""Code objects taken apart: every opcode known, targets and handlers found."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType

from engine.bytecode.decode import decode, exception_table, reraise_index
from engine.bytecode.liveness import live_before
from engine.bytecode.opcodes import UNSUPPORTED, opcode_family, unsupported_reason
from tests.engine.bytecode.check_on_interpreter import real_opcodes


def with_loop(items: list[int]) -> int:
    total = 0
    for item in items:
        try:
            total += int(item)
        except ValueError:
            continue
    return total


def test_every_opcode_of_this_version_is_placed() -> None:
    """An opcode is in a family or is left to Python with a reason, never both, never neither."""
    for name in real_opcodes():
        assert (opcode_family(name) is not None) != (name in UNSUPPORTED), name
        assert opcode_family(name) is not None or unsupported_reason(name)


def test_jumps_point_at_instructions() -> None:
    """Targets are indices of the instructions that dis names."""
    decoded = decode(with_loop.__code__)
    jumps = [op for op in decoded.ops if op.target >= 0]
    assert jumps
    for op in jumps:
        assert decoded.ops[op.target].offset == op.argval or decoded.index_of[op.argval] == op.target


def test_exception_table_agrees_with_dis() -> None:
    """Our reading of the exception table is CPython's."""
    expected = [(e.start, e.end, e.target, e.depth, e.lasti) for e in dis._parse_exception_table(with_loop.__code__)]  # type: ignore[attr-defined]
    assert list(exception_table(with_loop.__code__)) == expected
    assert expected


def test_only_the_users_handlers_do_more_than_clean_up() -> None:
    """The handler that each generator has since 3.12 raises again; ``except`` does not."""

    def doubled(items: list[int]) -> Iterator[int]:
        for item in items:
            yield 2 * item

    def outermost(code: CodeType) -> list[int]:
        decoded = decode(code)
        return [reraise_index(decoded, handler.target) for handler in decoded.handlers if handler is not None]

    assert min(outermost(doubled.__code__), default=0) >= 0
    assert min(outermost(with_loop.__code__)) == -1


def test_liveness_follows_the_loop() -> None:
    """The total is live through the loop, the item only until it was used."""
    decoded = decode(with_loop.__code__)
    live = live_before(decoded)
    loop = next(op.index for op in decoded.ops if op.opname == "FOR_ITER")
    assert "total" in live[loop]
    assert "item" not in live[loop]
