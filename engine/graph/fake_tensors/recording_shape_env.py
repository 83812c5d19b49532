"""A ShapeEnv that records the user line that caused each guard and specialization."""

from __future__ import annotations

import sys
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import sympy

from engine.ir.guards.base import Cause
from engine.ir.user_code_files import is_library_file
from engine.options import config
from engine.torch_private.symbolic_shapes import ShapeEnv


class RecordingShapeEnv(ShapeEnv):
    """ShapeEnv that records causes.

    ``where`` returns the cause of an assumption: a reason and the current line of the user's code.
    """

    def __init__(self, where: Callable[[str], Cause]) -> None:
        super().__init__(
            allow_scalar_outputs=config.capture_scalar_outputs,
            allow_dynamic_output_shape_ops=config.capture_dynamic_output_shape_ops,
        )
        # Weak: fake tensors in the graph hold this ShapeEnv. They must not hold the tracer with the call's arguments.
        self._cause_method = weakref.WeakMethod(where)
        self._end_of_trace: Cause | None = None
        self.guard_causes: dict[Any, Cause] = {}
        """Causes by guarded relation."""
        self.specialization_causes: dict[Any, Cause] = {}
        """Causes by symbol that was replaced by another expression."""

    def cause(self, cause: str | Cause) -> Cause:
        """Return a cause with the current line of the user's code; a cause is returned as it is."""
        if isinstance(cause, Cause):
            return cause
        if self._end_of_trace is not None:
            return replace(self._end_of_trace, reason=cause)
        method = self._cause_method()
        return Cause(reason=cause) if method is None else method(cause)

    def end_trace(self) -> None:
        """Give the assumptions that a backend makes later the line where the trace ended."""
        self._end_of_trace = self.cause("")

    def _get_user_frame(self) -> FrameType | None:
        """Return the caller outside of torch, which torch would find by importing Inductor."""
        frames = traceback.walk_stack(sys._getframe(1))
        return next((frame for frame, _ in frames if not is_library_file(frame.f_code.co_filename)), None)

    def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
        self.guard_causes.setdefault(g, self.cause("the traced code assumed this relation between symbols"))
        super()._log_guard(prefix, g, forcing_spec)

    def _set_replacement(self, a: sympy.Symbol, tgt: sympy.Expr, msg: str) -> None:
        replacement = self.replacements.get(a)
        super()._set_replacement(a, tgt, msg)
        if self.replacements.get(a) is not replacement:
            self.specialization_causes[a] = self.cause("the traced code needed this concrete value")

    def _maybe_evaluate_singleton_int(self, expr: sympy.Basic) -> sympy.Basic | None:
        """Leave a relation of two ragged sizes to a guard: torch 2.15 adds none.

        Other calls may have other ragged sizes. One ragged size differs from every number in all calls.
        """
        if len(expr.free_symbols) > 1:
            return None
        return super()._maybe_evaluate_singleton_int(expr)  # type: ignore[misc, no-any-return, unused-ignore]
