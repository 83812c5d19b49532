"""The ``ctx`` of an ``autograd.Function`` whose forward is a frame of its own."""

from __future__ import annotations

from typing import Any

from torch.autograd.function import BackwardCFunction, FunctionCtx

from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Variable, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

_CTX_ATTRIBUTES = {
    "save_for_backward": "to_save",
    "save_for_forward": "saved_for_forward",
    "mark_dirty": "dirty_tensors",
    "mark_non_differentiable": "non_differentiable",
}
"""Methods that store their arguments on ctx, and the attribute that autograd reads later."""


class RealAutogradContextVariable(UserDefinedObjectVariable):
    """A real ctx. Its attributes are set after the graph, before the forward returns."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in _CTX_ATTRIBUTES or name == "set_materialize_grads":
            return BuiltinMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if kwargs or (name not in _CTX_ATTRIBUTES and name != "set_materialize_grads"):
            return super().call_method(tx, name, args, kwargs)
        kept = TupleVariable([realize(tx, a) for a in args]) if name in _CTX_ATTRIBUTES else args[0]
        self.write_attr(tx, _CTX_ATTRIBUTES.get(name, "materialize_grads"), kept)
        return NONE

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        if name in (*_CTX_ATTRIBUTES.values(), "materialize_grads"):
            raise Unsupported("autograd-function-ctx", f"setting {name} of an autograd.Function's context")
        super().generic_set_attr(tx, name, value)

    def has_no_dict(self) -> bool:
        return False


def _is_autograd_ctx(real: object) -> bool:
    methods = (*_CTX_ATTRIBUTES, "set_materialize_grads")
    return isinstance(real, BackwardCFunction) and all(
        getattr(type(real), name) is getattr(FunctionCtx, name) for name in methods
    )


@register_builder_if(54, _is_autograd_ctx)
def _build_autograd_ctx(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard_type(real, source, "it is the context of an autograd.Function")
    return RealAutogradContextVariable(type(real), source, real)
