"""The ``ctx`` that autograd itself hands to an ``autograd.Function`` whose forward runs as a frame of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction, FunctionCtx

from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.objects import ObjectValue
from engine.trace.values.sequences import TupleValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

_KEPT_AS = {
    "save_for_backward": "to_save",
    "save_for_forward": "saved_for_forward",
    "mark_dirty": "dirty_tensors",
    "mark_non_differentiable": "non_differentiable",
}
"""The methods that keep their arguments, which autograd looks at when the forward has returned, and under which name."""


class RealContext(ObjectValue):
    """A context from outside: what is set on it is set after the graph, before the forward returns."""

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in _KEPT_AS or name == "set_materialize_grads":
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or (name not in _KEPT_AS and name != "set_materialize_grads"):
            return super().call_method(tx, name, args, kwargs)
        kept = TupleValue([force(tx, a) for a in args]) if name in _KEPT_AS else args[0]
        self.write(tx, _KEPT_AS.get(name, "materialize_grads"), kept)
        return NONE

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        if name in (*_KEPT_AS.values(), "materialize_grads"):
            raise Unsupported("unsupported-operation", f"setting {name} of an autograd.Function's context")
        super().set_plainly(tx, name, value)

    def has_no_dict(self) -> bool:
        return False


def _is_context(real: object) -> bool:
    methods = (*_KEPT_AS, "set_materialize_grads")
    return isinstance(real, BackwardCFunction) and all(
        getattr(type(real), name) is getattr(FunctionCtx, name) for name in methods
    )


@wraps_if(54, _is_context)
def _context(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it is the context of an autograd.Function")
    return RealContext(type(real), origin, real)
