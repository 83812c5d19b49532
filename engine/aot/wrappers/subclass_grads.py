"""Gradients through the flattening of tensor subclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch

from engine.aot.fallback_kinds import AotFallback
from engine.aot.subclass_spec import SubclassSpec
from engine.aot.wrappers.double_backward import EagerRerun
from engine.graph.functionalize_rng import get_rng_states
from engine.ir.fallback import FallbackRequired
from engine.ir.node_values import tensors_by_position

UNEXPECTED_TANGENT_MESSAGE = (
    "The gradient of an output of this compiled graph came back as a {}, which is not the type of the output, and the call cannot be run again "
    "under eager autograd: {}. Compile with backend='eager', or leave this part uncompiled (engine.disable)."
)


FlattenSpecs = tuple[SubclassSpec, SubclassSpec, bool]
"""Specs of an instance and of its gradient; True if the backward reads the instance."""


@dataclass
class SubclassGradient:
    """Spec of the gradient of a subclass input; known once the backward is traced."""

    name: str
    input_spec: SubclassSpec
    grad_spec: SubclassSpec | None = None
    is_saved_for_backward: bool = True
    """True if the backward reads the inner tensors; then they must not be mutated before."""

    def unflatten_input(self, *plain: Any) -> Any:
        """Build the input from its inner tensors in the traced graph; gradients flow into them."""
        sizes = [list(p.shape) for p in plain]
        return _UnflattenFunction.apply(self.input_spec, partial(self._record_grad_spec, sizes), *plain)  # type: ignore[no-untyped-call, unused-ignore]

    def _record_grad_spec(self, sizes: list[Any], gradient: Any) -> SubclassSpec:
        if not (
            self.input_spec.matches_except_context(gradient)
            if self.grad_spec is None
            else self.grad_spec.matches(gradient)
        ):
            kind = type(gradient).__name__
            description = f"{kind} with other inner tensors" if type(gradient) is self.input_spec.type else kind
            raise FallbackRequired(
                AotFallback.SUBCLASS_GRADIENT_DIFFERS,
                f"the gradient of {self.name}, a {self.input_spec.type.__name__}, would be a {description}",
            )
        if self.grad_spec is None:  # later gradients come from reruns
            self.grad_spec = SubclassSpec.from_tensor(self.name, gradient)
            # Such as a DTensor's on which an operator inserts a redistribution: autograd rejects the inner gradient.
            inner = [list(p.shape) for p in self.grad_spec.flatten(gradient)]
            if inner != sizes:
                raise FallbackRequired(
                    AotFallback.SUBCLASS_GRADIENT_DIFFERS,
                    f"the gradient of {self.name}, a {self.input_spec.type.__name__}, has inner sizes {inner}, not {sizes}",
                )
        return self.grad_spec

    def specs(self, sizes: Mapping[sympy.Symbol, int]) -> FlattenSpecs:
        """Return the specs of the input and of its gradient, and True if the backward reads it.

        ``sizes`` are those of the call.
        """
        input_spec = self.input_spec.with_sizes(sizes)
        grad_spec = input_spec if self.grad_spec is None else self.grad_spec.with_sizes(sizes)
        return input_spec, grad_spec, self.is_saved_for_backward


def flatten_inputs(
    gradients: Sequence[SubclassGradient], wholes: Sequence[Any], sizes: Mapping[sympy.Symbol, int]
) -> tuple[Any, ...]:
    """Return the inner tensors of inputs that require grad, outside of the compiled graph.

    The gradients of one input's inner tensors become one subclass gradient. All inputs share one autograd node.
    """
    inner: tuple[Any, ...] = _FlattenFunction.apply([g.specs(sizes) for g in gradients], *wholes)  # type: ignore[no-untyped-call, unused-ignore]
    return inner


def flatten_with_grad(parts: SubclassSpec, tensor: Any) -> tuple[Any, ...]:
    """Return the inner tensors of a subclass built inside a graph.

    Their gradients become one subclass gradient.
    """
    inner: tuple[Any, ...] = _FlattenFunction.apply([(parts, parts, True)], tensor)  # type: ignore[no-untyped-call, unused-ignore]
    return inner


def _spec_of_gradient(gradient: Any) -> SubclassSpec:
    return SubclassSpec.from_tensor("a gradient", gradient)


class _FlattenFunction(torch.autograd.Function):
    """Flattens subclass instances; the backward unflattens the gradients of the inner tensors."""

    @staticmethod
    def forward(ctx: Any, specs: Sequence[FlattenSpecs], *wholes: Any) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        ctx.inputs, flat = [], []
        for (parts, gradient, is_read), tensor in zip(specs, wholes, strict=True):
            plain = [p.detach() for p in parts.flatten(tensor)]
            flat += plain
            like = tuple((p.shape, p.dtype, p.device) for p in plain)
            ctx.inputs.append((gradient, like, tensor if is_read else None, tensor._version if is_read else 0))
        return tuple(flat)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        remaining = iter(grads)
        inputs = (
            _join_inner_gradients(spec, like, tensor, version, [next(remaining) for _ in like])
            for spec, like, tensor, version in ctx.inputs
        )
        return None, *inputs


def _join_inner_gradients(
    spec: SubclassSpec, like: Sequence[Any], tensor: Any, version: int, grads: Sequence[Any]
) -> Any:
    """Return the gradient of one subclass input; None if no inner tensor has a gradient."""
    if all(g is None for g in grads):
        return None
    if tensor is not None:
        _check_version(tensor, version)
    pairs = zip(grads, like, strict=True)
    filled = [torch.zeros(size, dtype=d, device=on) if g is None else g for g, (size, d, on) in pairs]
    if torch.is_grad_enabled():
        return _UnflattenFunction.apply(spec, _spec_of_gradient, *filled)  # type: ignore[no-untyped-call, unused-ignore]
    return spec.unflatten(*(g.detach() for g in filled))


def _check_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{type(tensor).__name__} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
        )


class _UnflattenFunction(torch.autograd.Function):
    """Unflattens a subclass; the backward flattens its gradient."""

    @staticmethod
    def forward(ctx: Any, parts: SubclassSpec, note: Any, *plain: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.note, ctx.count = note, len(plain)
        return parts.unflatten(*(p.detach() for p in plain))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return (None, None) + (None,) * ctx.count
        return None, None, *flatten_with_grad(ctx.note(gradient), gradient)


@dataclass(frozen=True)
class RerunContext:
    """State of one call, for tangents of a class that the compiled backward does not support."""

    rerun: EagerRerun
    inputs: tuple[Any, ...]
    versions: tuple[int, ...]
    rng_state: tuple[torch.Tensor, ...]

    @classmethod
    def capture(cls, again: EagerRerun, inputs: tuple[Any, ...]) -> RerunContext:
        """Capture the state of a call that is about to run."""
        tensors = tensors_by_position(inputs)
        versions = tuple(
            tensors[n]._version if n in tensors and not i.is_inference() else 0 for n, i in enumerate(inputs)
        )
        return cls(again, inputs, versions, get_rng_states(again.rng_devices))

    def unflatten_output(self, number: int, parts: SubclassSpec, plain: Sequence[Any]) -> Any:
        """Return output ``number`` of the call, built from its inner tensors."""
        needing = [self.inputs[n] for n in self.rerun.grad_inputs]
        return _UnflattenOutputFunction.apply(self, number, parts, len(plain), *plain, *needing)  # type: ignore[no-untyped-call, unused-ignore]

    def gradients(self, number: int, tangent: Any) -> Sequence[Any]:
        """Return gradients of the inputs that require grad, for a tangent of output ``number``."""
        for n, value in tensors_by_position(self.inputs).items():
            if n not in self.rerun.mutated_inputs and not value.is_inference():
                _check_version(value, self.versions[n])
        tangents = [tangent if n == number else None for n in range(len(self.rerun.output_nodes))]
        try:
            with torch.enable_grad():
                gradients = self.rerun.gradients(self.inputs, self.versions, self.rng_state, tangents)
        except FallbackRequired as error:
            raise RuntimeError(UNEXPECTED_TANGENT_MESSAGE.format(type(tangent).__name__, error)) from None
        if torch.is_grad_enabled():
            return gradients
        return [None if g is None else g.detach() for g in gradients]


class _UnflattenOutputFunction(torch.autograd.Function):
    """Unflattens an output; the backward flattens its tangent.

    For a tangent of another class, an eager rerun computes the gradients of the inputs.
    """

    @staticmethod
    def forward(ctx: Any, born: RerunContext, number: int, parts: SubclassSpec, count: int, *inner: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.born, ctx.number, ctx.parts, ctx.count = born, number, parts, count
        return parts.unflatten(*(p.detach() for p in inner[:count]))

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        inputs = len(ctx.born.rerun.grad_inputs)
        none = (None,) * 4
        if tangent is None:
            return none + (None,) * (ctx.count + inputs)
        if ctx.parts.matches(tangent):
            return *none, *flatten_with_grad(ctx.parts, tangent), *((None,) * inputs)
        return *none, *((None,) * ctx.count), *ctx.born.gradients(ctx.number, tangent)
