"""A ShapeEnv that records the user line behind each guard and specialization."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from engine.ir.guards.base import Cause
from engine.options import config


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
        self.guard_causes: dict[Any, Cause] = {}
        """Causes by guarded relation."""
        self.specialization_causes: dict[Any, Cause] = {}
        """Causes by symbol that was replaced by another expression."""

    def _cause(self, why: str) -> Cause:
        method = self._cause_method()
        return Cause(reason=why) if method is None else method(why)

    def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
        self.guard_causes.setdefault(g, self._cause("the traced code assumed this relation between symbols"))
        super()._log_guard(prefix, g, forcing_spec)

    def _set_replacement(self, a: sympy.Symbol, tgt: sympy.Expr, msg: str) -> None:
        known = self.replacements.get(a)
        super()._set_replacement(a, tgt, msg)
        if self.replacements.get(a) is not known:
            self.specialization_causes[a] = self._cause("the traced code needed this concrete value")
