"""``SDPAParams`` and the flags of scaled dot product attention kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.backends.cuda
from torch.backends.cuda import SDPAParams

from engine.ir.introspection.torch_global_state import SDPA_BACKENDS, sdpa_backends
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.torch_private import global_state
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.global_state import register_state_query, register_state_setter
from engine.trace.variables.torch_api.torch_functions import guard_global_state

_SDPA_FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


class SDPAParamsVariable(Variable):
    """An ``SDPAParams`` created in traced code."""

    __slots__ = ("fields",)
    cls = SDPAParams

    def __init__(self, fields: dict[str, Variable]) -> None:
        self.fields = fields

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return self.fields[name] if name in self.fields else super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return list(self.fields.values())

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(SDPAParams, *self.child_variables())


@register_rule(SDPAParams)
def _new_sdpa_params(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if kwargs or len(args) != len(_SDPA_FIELDS):
        raise Unsupported("torch-internals", "SDPAParams is created")
    return SDPAParamsVariable(dict(zip(_SDPA_FIELDS, args, strict=True)))


class ExternalSDPAParamsVariable(RealObjectVariable):
    """An ``SDPAParams`` from outside. It is immutable."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name not in _SDPA_FIELDS or not hasattr(self.real_object, name) or self.source is None:
            return super().get_attr(tx, name)
        return tx.wrap(getattr(self.real_object, name), AttrSource(self.source, name))


@register_builder(SDPAParams)
def _build_sdpa_params(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "its value is read")
    return ExternalSDPAParamsVariable(real, origin)


def _register_can_use(ask: Any) -> None:
    """Register ``can_use_*_attention``, which is computed while tracing on the real inputs."""

    @register_rule(ask)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        given = realize(tx, args[0] if args else kwargs["params"])
        if not isinstance(given, SDPAParamsVariable):
            raise Unsupported("torch-internals", f"{ask.__name__} is called")
        guard_global_state(tx, "attention_kernels", sdpa_backends())
        debug = tx.as_python_constants([*args[1:], *(v for k, v in kwargs.items() if k == "debug")])
        real = SDPAParams(*(_real_argument(tx, realize(tx, f)) for f in given.fields.values()))
        return ConstantVariable(bool(ask(real, *debug)))


def _real_argument(tx: Tracer, of: Variable) -> Any:
    if of.fake is None:
        return of.as_python_constant(tx)
    if of.as_python_object() is NotImplemented or of.fake._has_symbolic_sizes_strides:
        raise Unsupported("torch-internals", "a query about attention kernels for tensors that exist only in the graph")
    return of.as_python_object()


for _kind in ("flash", "efficient", "cudnn"):
    if hasattr(torch.backends.cuda, f"can_use_{_kind}_attention"):
        _register_can_use(getattr(torch.backends.cuda, f"can_use_{_kind}_attention"))


for _name in SDPA_BACKENDS:
    register_state_query(getattr(global_state, f"get_{_name}_sdp_enabled"), "attention_kernels")
    register_state_setter(getattr(global_state, f"set_sdp_use_{_name}"))
    if hasattr(torch.backends.cuda, f"enable_{_name}_sdp"):
        register_state_query(getattr(torch.backends.cuda, f"{_name}_sdp_enabled"), "attention_kernels")
        register_state_setter(getattr(torch.backends.cuda, f"enable_{_name}_sdp"))


register_state_query(global_state.get_sdp_priority_order, "attention_kernels")
register_state_setter(global_state.set_sdp_priority_order)
