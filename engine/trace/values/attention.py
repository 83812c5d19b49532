"""The arguments of a call of attention as one object, and torch's switches for the kernels that compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.backends.cuda
from torch.backends.cuda import SDPAParams

from engine.ir.global_state import ATTENTION_KERNELS, attention_kernels
from engine.ir.origin import Attr, Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, HeldValue, Value, force
from engine.trace.values.random_state import switches
from engine.trace.values.rules import special
from engine.trace.values.tensor import TensorValue
from engine.trace.values.torch_functions import guard_state
from engine.trace.values.torch_state import query
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]

_FIELDS = ("query", "key", "value", "attn_mask", "dropout", "is_causal", "enable_gqa")


class AttentionArguments(Value):
    """A ``SDPAParams`` that the traced code made."""

    def __init__(self, fields: dict[str, Value]) -> None:
        self.fields = fields

    def type(self) -> type:
        return SDPAParams

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return self.fields[name] if name in self.fields else super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return list(self.fields.values())

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(SDPAParams))
        cg.load_all(self.children())
        cg.out.call(len(self.fields))


@special(SDPAParams)
def _made(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if kwargs or len(args) != len(_FIELDS):
        raise Unsupported("unknown-call", "SDPAParams is created")
    return AttentionArguments(dict(zip(_FIELDS, args, strict=True)))


class GivenArguments(HeldValue):
    """One that came from outside: what it holds cannot be changed."""

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name not in _FIELDS or not hasattr(self.held, name) or self.origin is None:
            return super().get_attr(tx, name)
        return tx.wrap(getattr(self.held, name), Attr(self.origin, name))


@wraps(SDPAParams)
def _given(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "what it holds is read")
    return GivenArguments(real, origin)


def _possible(ask: Any) -> None:
    """Whether a kind of kernel can compute a call, told by what the arguments are."""

    @special(ask)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        given = force(tx, args[0] if args else kwargs["params"])
        if not isinstance(given, AttentionArguments):
            raise Unsupported("unknown-call", f"{ask.__name__} is called")
        guard_state(tx, "attention_kernels", attention_kernels())
        debug = tx.constants([*args[1:], *(v for k, v in kwargs.items() if k == "debug")])
        real = SDPAParams(*(_as_given(tx, force(tx, f)) for f in given.fields.values()))
        return Const(bool(ask(real, *debug)))


def _as_given(tx: Tracer, of: Value) -> Any:
    if not isinstance(of, TensorValue):
        return of.python(tx)
    if of.held is None or not all(isinstance(s, int) for s in (*of.fake.shape, *of.fake.stride())):
        raise Unsupported("unknown-call", "a question about kernels for tensors that only the graph has")
    return of.held


for _kind in ("flash", "efficient", "cudnn"):
    if hasattr(torch.backends.cuda, f"can_use_{_kind}_attention"):
        _possible(getattr(torch.backends.cuda, f"can_use_{_kind}_attention"))


for _name in ATTENTION_KERNELS:
    query(getattr(torch._C, f"_get_{_name}_sdp_enabled"), "attention_kernels")
    switches(getattr(torch._C, f"_set_sdp_use_{_name}"))
    if hasattr(torch.backends.cuda, f"enable_{_name}_sdp"):
        query(getattr(torch.backends.cuda, f"{_name}_sdp_enabled"), "attention_kernels")
        switches(getattr(torch.backends.cuda, f"enable_{_name}_sdp"))


def _order(tx: Tracer, args: Args, kwargs: Words) -> Value:
    guard_state(tx, "attention_kernels", attention_kernels())
    return tx.fold(torch._C._get_sdp_priority_order)


if hasattr(torch._C, "_get_sdp_priority_order"):
    special(torch._C._get_sdp_priority_order)(_order)
    switches(torch._C._set_sdp_priority_order)
