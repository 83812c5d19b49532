"""Build the variable of an input tensor: fakeify it and guard its metadata."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from engine.ir.guards.python_values import TypeMatch
from engine.ir.guards.tensors import TensorMatch, TensorSubclassMatch
from engine.ir.introspection.fakeable_tensors import (
    as_fakeable,
    as_plain_tensor,
    is_jagged,
    is_plain_wrapper_subclass,
    plain_like_functorch_tensor,
)
from engine.ir.introspection.stale_view_grad_fn import preserve_stale_grad_fn
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.torch_private.autograd import CreationMeta, get_creation_meta
from engine.torch_private.dispatch import disabled_torch_dispatch_impl, dispatch_keys
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.functionalization import is_functional_tensor
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.torch_private.torch_function import DisableTorchFunctionSubclass, disabled_torch_function_impl
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import Variable
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.tensors.automatic_dynamic import (
    follow_specializations,
    may_be_marked,
    symbolic_context,
    unify_inner_shapes,
)
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.torch_function_protocol import build_subclass_input
from engine.trace.variables.torch_api.collectives import is_group_or_mesh


@register_builder_if(0, lambda real: isinstance(real, torch.Tensor))
def _tensor(tx: Tracer, real: torch.Tensor, source: Source) -> Variable:
    with DisableTorchFunctionSubclass():
        return _build_tensor(tx, real, source)


def _build_tensor(tx: Tracer, real: torch.Tensor, source: Source) -> Variable:
    is_wrapper = is_plain_wrapper_subclass(real)
    plain = type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or is_wrapper
    has_protocol = not plain and type(real).__torch_function__ is not disabled_torch_function_impl
    if isinstance(real, FakeTensor):
        tx.guard(TypeMatch, source, FakeTensor, why="fake tensors run as plain Python")
        raise SkipFrame("fake-tensor", f"{source.expr} is a fake tensor")
    if not is_wrapper and type(real).__torch_dispatch__ is not disabled_torch_dispatch_impl:
        raise Unsupported("tensor-subclass", f"a tensor of the subclass {type(real).__name__}")
    if is_jagged(real):
        tx.guard_type(real, source, "it is a jagged tensor")
    elif (
        real.layout is not torch.strided
        or real.is_quantized
        or real.is_nested
        or (is_functional_tensor(real) and tx.torch_state.entry_global_state["functorch"] is None)
    ):
        kind = "nested tensor" if real.is_nested else "quantized tensor" if real.is_quantized else "tensor"
        raise Unsupported("tensor-layout", f"a {kind} of layout {real.layout}")
    if real.requires_grad and not (real.is_floating_point() or real.is_complex()):
        raise Unsupported("tensor-layout", f"a tensor of {real.dtype} that requires gradients")
    if is_functorch_wrapped_tensor(real) and tx.torch_state.entry_global_state["functorch"] is None:
        raise Unsupported("functorch-state", "a tensor of a torch.func transform that has ended")
    if is_wrapper:
        _check_inner_tensors(real)
        _check_view_replay(tx, real)
    fake = fakeify(tx, real if plain else as_plain_tensor(real), source)
    tx.inputs.saw_tensor = True
    tx.inputs.may_be_marked |= may_be_marked(real)
    _guard_tensor(tx, real, fake, source)
    value = build_subclass_input(tx, real, fake, source) if has_protocol else TensorVariable(None, fake, source, real)
    tx.inputs.input_tensors.append((value, fake._version if not fake.is_inference() else 0))
    tx.inputs.input_layouts[id(value.fake)] = symbolic_layout(fake)
    return value


def fakeify(tx: Tracer, tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Return the fake tensor of an input.

    It is an inference tensor only if the input is one, whatever mode the tracer is in.
    """
    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):
            return fakeify(tx, tensor, source)
    with preserve_stale_grad_fn(tensor) if tensor.requires_grad else nullcontext():
        plain = plain_like_functorch_tensor(tensor) if is_functorch_wrapped_tensor(tensor) else as_fakeable(tensor)
        context = symbolic_context(tx, plain, source)
        if context is None:
            return tx.symbols.fake_mode.from_tensor(plain, static_shapes=True, source=source)
        fake = tx.symbols.fake_mode.from_tensor(plain, source=source, symbolic_context=context)
        unify_inner_shapes(fake, plain)
        follow_specializations(tensor, fake)
        return fake


def _check_inner_tensors(real: Any) -> None:
    try:
        parts = [getattr(real, n) for n in real.__tensor_flatten__()[0]]
    except AttributeError as error:
        text = f"a {type(real).__name__} that is not initialized: {error}"
        raise Unsupported("tensor-subclass", text) from error
    other = [type(p).__name__ for p in parts if not isinstance(p, torch.Tensor) and not is_group_or_mesh(p)]
    if other:
        text = f"a {type(real).__name__} with an inner value of type {other[0]}"
        raise Unsupported("tensor-subclass", text)


def _check_view_replay(tx: Tracer, real: torch.Tensor) -> None:
    """Break at views of a base that got another shape since.

    Torch replays the view on the fake base, and reads outputs of ``split`` that may not exist there.
    """
    if not real._is_view():
        return
    layouts = tx.inputs.input_layouts
    fakes = [v.fake for v, _ in tx.inputs.input_tensors if v.real_object is real._base]
    is_reshaped = any(str(layouts[id(fake)]) != str(symbolic_layout(fake)) for fake in fakes)
    may_be_reshaped = get_creation_meta(real) != CreationMeta.DEFAULT and real._version > 0
    if is_reshaped or may_be_reshaped:
        raise Unsupported("tensor-subclass", f"a view of a {type(real).__name__} whose base may have another shape now")


def _guard_tensor(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, source: Source) -> None:
    tx.guards.add(_tensor_match(tx, real, fake, source))
    if not is_plain_wrapper_subclass(real):
        return
    wrapper: Any = real
    names, context = wrapper.__tensor_flatten__()
    tx.guard(TensorSubclassMatch, source, tuple(names), context, why="the tensor subclass was unwrapped")
    for name in names:
        part = getattr(real, name)
        if isinstance(part, torch.Tensor):
            _guard_tensor(tx, part, getattr(fake, name), AttrSource(source, name))
        else:
            tx.guard_identity(part, AttrSource(source, name), f"the tensor was created with this {type(part).__name__}")


def _tensor_match(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, source: Source) -> TensorMatch:
    sizes, strides = (tuple(n if isinstance(n, int) else None for n in each) for each in (fake.shape, fake.stride()))
    return TensorMatch(
        source,
        type(real),
        real.dtype,
        real.device,
        real.layout,
        real.requires_grad,
        sizes,
        strides,
        str(dispatch_keys(real)),
        cause=tx.guard_cause("the tensor is used in the graph"),
    )


def symbolic_layout(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Return sizes, strides and storage offset, with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0
