"""Classes for type annotations in the tracer, imported from here to avoid import cycles.

The modules of these classes import the variables and opcode handlers, which need the classes only in annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bytecode.decode import DecodedInstruction
    from engine.trace.codegen import PyCodegen
    from engine.trace.frame import Frame
    from engine.trace.tracer import Tracer
else:
    DecodedInstruction = Frame = PyCodegen = Tracer = Any

__all__ = ["DecodedInstruction", "Frame", "PyCodegen", "Tracer"]
