"""Conditions under which Python runs the original code although the graph was compiled."""

from __future__ import annotations

import torch.fx

from engine.bytecode.decode import reraise_index
from engine.bytecode.opcodes import EXIT_FROM_TOP
from engine.trace.annotations import CallStack, Frame, InstructionCounter
from engine.trace.variables.nn_modules.optimizer_inlining import USE_GRAD_CODE

OFFSET_AND_ERRORS = 3
"""Values above a handler's depth when its code calls ``__exit__``.

They are the place of the error, the error that was handled before, and the error itself.
"""


def _has_user_handler(frame: Frame) -> bool:
    """Return True if user code may handle an exception at the frame's current instruction.

    Handlers that only exit contexts of the graph itself do not count.
    """
    if frame.code is USE_GRAD_CODE:
        return False
    handler = frame.decoded.handlers[frame.op.index]
    while handler is not None:
        reraise = reraise_index(frame.decoded, handler.target)
        exit = handler.depth + OFFSET_AND_ERRORS + EXIT_FROM_TOP
        exit_method = frame.stack[exit] if 0 <= exit < len(frame.stack) else None
        if reraise < 0 and not getattr(exit_method, "is_in_graph", False):
            return True
        handler = frame.decoded.handlers[handler.target if reraise < 0 else reraise]
    return False


class GraphFallback:
    """Conditions of the fallback: handlers around operations, and assumed conditions."""

    def __init__(self, call_stack: CallStack, instruction_counter: InstructionCounter) -> None:
        self._call_stack = call_stack
        self._instruction_counter = instruction_counter
        self.needed_at: int | None = None
        """Number of the root instruction of the first operation that needs a fallback."""
        self.has_operation_before = False
        """True if an operation joined the graph before the first one that needs a fallback."""
        self.assumed_conditions: list[tuple[torch.fx.Node, bool, int]] = []
        """Tensor conditions that are assumed true or false because the other branch only raises.

        Each has its node, the assumed value and the number of the root instruction.
        """

    @property
    def op_in_try_block(self) -> bool:
        """Return True if user code may handle an exception of a graph operation."""
        return self.needed_at is not None

    def update_op_in_try_block(self) -> None:
        """Record if a user handler covers the operation that joins the graph.

        Handlers that only exit contexts of the graph do not count.
        """
        if self.needed_at is not None:
            return
        if any(_has_user_handler(f) for f in self._call_stack.frames):
            self.needed_at = self._instruction_counter.root_instruction_number
        else:
            self.has_operation_before = True

    def assume_condition(self, node: torch.fx.Node, *, truth: bool) -> None:
        """Assume that a tensor condition has this value.

        Code after the graph checks it. If the check fails, Python runs the original code.
        """
        number = self._instruction_counter.root_instruction_number
        self.assumed_conditions.append((node, truth, number))
        self.needed_at = number if self.needed_at is None else self.needed_at
