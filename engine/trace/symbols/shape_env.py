"""torch's ShapeEnv, which here also notes the user's line at which it came to assume something of a symbol."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from engine.ir.guards.base import Cause
from engine.options import config


class RecordingShapeEnv(ShapeEnv):
    """``where`` says why and at which line of the user's code something is assumed now."""

    def __init__(self, where: Callable[[str], Cause]) -> None:
        super().__init__(
            allow_scalar_outputs=config.capture_scalar_outputs,
            allow_dynamic_output_shape_ops=config.capture_dynamic_output_shape_ops,
        )
        # Weak: fake tensors in the graph keep this alive, and must not keep the tracer with the arguments of the call.
        self._cause_method = weakref.WeakMethod(where)
        self.guard_causes: dict[Any, Cause] = {}
        """By relation."""
        self.specialization_causes: dict[Any, Cause] = {}
        """By symbol that was found to equal something else."""

    def _cause(self, why: str) -> Cause:
        method = self._cause_method()
        return Cause(reason=why) if method is None else method(why)

    def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
        self.guard_causes.setdefault(
            g, self._cause("a size or number is a symbol, and tracing took this relation for granted")
        )
        super()._log_guard(prefix, g, forcing_spec)

    def _set_replacement(self, a: sympy.Symbol, tgt: sympy.Expr, msg: str) -> None:
        known = self.replacements.get(a)
        super()._set_replacement(a, tgt, msg)
        if self.replacements.get(a) is not known:
            self.specialization_causes[a] = self._cause("a size or number had to be this very one")
