"""Registry of opcode handlers, filled by ``@handles``.

It rejects names that no Python version has, and duplicates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.bytecode.opcodes import opcode_family
from engine.ir.register_once import register_once
from engine.trace.annotations import DecodedInstruction, Frame, Tracer, Variable

OpcodeHandler = Callable[["Tracer", "Frame", "DecodedInstruction"], Any]
"""Handler of an opcode.

It returns None to continue, or ``RETURN`` or ``YIELD`` with the value in ``frame.result``.
"""

HANDLERS: dict[str, OpcodeHandler] = {}
RETURN = "return"
YIELD = "yield"


def handles(*names: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Register a handler for opcodes.

    Raises:
        ValueError: a name is in no family of ``bytecode.opcodes``, or has a handler already.
    """
    for name in names:
        if opcode_family(name) is None:
            raise ValueError(f"{name} is not an opcode that a family traces")
    return register_once(HANDLERS, names, "a handler")


def handle_by_value(opnames: str, pops: int | None, compute: Callable[..., Variable]) -> None:
    """Register a handler that pops ``pops`` variables and pushes ``compute(tx, op, *popped)``.

    ``pops`` is None for opcodes that pop as many as their argument says.
    """

    def handler(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
        frame.push(compute(tx, op, *frame.popn(op.arg if pops is None else pops)))

    handles(*opnames.split())(handler)
