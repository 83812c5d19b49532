"""How a tensor subclass is taken apart into plain tensors and put together again, also where autograd looks on.

The protocol is torch's for traceable wrapper subclasses (``__tensor_flatten__``, ``__tensor_unflatten__``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

from engine.aot.views import CannotFunctionalize
from engine.aot.wrappers.again import DoubleBackwardUnsupported, EagerRerun
from engine.graph.randomness import get_rng_states

UNEXPECTED_TANGENT_MESSAGE = (
    "The gradient of an output of this compiled graph came back as a {}, which is not what the output is; the call cannot be run again "
    "to follow it: {}. Compile with backend='eager', or leave this part uncompiled (engine.disable)."
)


@dataclass(frozen=True)
class SubclassSpec:
    """How a subclass is put together; parts that are subclasses themselves are nested."""

    type: Any
    inner_names: tuple[str, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    """Numbers, or expressions over the sizes of a call's inputs: see ``at``."""
    inner_specs: tuple[SubclassSpec | None, ...]
    """Per name: the parts of the part, None for a plain tensor."""
    constant_attrs: tuple[tuple[str, Any], ...] = ()
    """What else it is made of, by name: a mesh of devices, say."""
    is_dynamic: bool = False
    """Whether there are symbols in its sizes, or in those of what is inside of it."""

    @classmethod
    def from_tensor(cls, name: str, whole: Any) -> SubclassSpec:
        """How ``whole`` is put together.

        Raises:
            NotFunctional: its sizes vary, and it says more of itself than can be followed.
        """
        names, context = _tensor_flatten(whole)
        varies = bool(whole._has_symbolic_sizes_strides)
        if varies and (whole.is_nested or not all(map(_is_symbol_free, tree_leaves(context)))):
            raise CannotFunctionalize(f"{name} is a {type(whole).__name__} whose sizes vary")
        parts: list[tuple[str, Any]] = [(n, getattr(whole, n)) for n in names]
        tensors: list[tuple[str, Any]] = [(n, p) for n, p in parts if isinstance(p, torch.Tensor)]
        inside = tuple(cls.from_tensor(name, p) if is_traceable_wrapper_subclass(p) else None for _, p in tensors)
        fixed = tuple((n, p) for n, p in parts if not isinstance(p, torch.Tensor))
        plain = tuple(n for n, _ in tensors)
        varies = varies or any(i is not None and i.is_dynamic for i in inside)
        return cls(type(whole), plain, context, tuple(whole.shape), tuple(whole.stride()), inside, fixed, varies)

    def with_sizes(self, known: Mapping[sympy.Symbol, int]) -> SubclassSpec:
        """The same with numbers for sizes, as they are in one call; ``known`` has each of ``symbols``."""
        if not self.is_dynamic:
            return self

        def number(size: Any) -> Any:
            return _number(size, known)

        return replace(
            self,
            context=tree_map(number, self.context),
            size=tuple(map(number, self.size)),
            stride=tuple(map(number, self.stride)),
            inner_specs=tuple(i if i is None else i.with_sizes(known) for i in self.inner_specs),
            is_dynamic=False,
        )

    def symbols(self) -> set[sympy.Symbol]:
        """What sizes are expressions over."""
        sizes = [*self.size, *self.stride]
        for leaf in tree_leaves(self.context):
            sizes += leaf if isinstance(leaf, torch.Size) else [leaf]
        own = {symbol for s in sizes if isinstance(s, torch.SymInt) for symbol in s.node.expr.free_symbols}
        return own.union(*(i.symbols() for i in self.inner_specs if i is not None))

    def flatten(self, whole: Any) -> Iterator[Any]:
        """The plain tensors inside, in order."""
        for name, inside in zip(self.inner_names, self.inner_specs, strict=True):
            part = getattr(whole, name)
            if inside is None:
                yield part
            else:
                yield from inside.flatten(part)

    def inner_paths(self) -> Iterator[tuple[str, ...]]:
        """How each plain tensor is reached."""
        for name, inside in zip(self.inner_names, self.inner_specs, strict=True):
            for rest in ((),) if inside is None else inside.inner_paths():
                yield (name, *rest)

    def unflatten(self, *plain: Any) -> Any:
        """The subclass around plain tensors."""
        return self._build(iter(plain))

    def _build(self, plain: Iterator[Any]) -> Any:
        parts = {
            name: next(plain) if inside is None else inside._build(plain)
            for name, inside in zip(self.inner_names, self.inner_specs, strict=True)
        }
        return self.type.__tensor_unflatten__(parts | dict(self.constant_attrs), self.context, self.size, self.stride)

    def matches(self, value: Any) -> bool:
        """Whether ``value`` is put together in this way, whatever its strides are."""
        return self._matches(value, of_same_context=True)

    def matches_except_context(self, value: Any) -> bool:
        """Whether ``value`` is of the same class and sizes, and made of parts by the same names, whatever else it says of itself."""
        return self._matches(value, of_same_context=False)

    def _matches(self, value: Any, *, of_same_context: bool) -> bool:
        if type(value) is not self.type or not _is_shape(value.shape, self.size):
            return False
        names, context = _tensor_flatten(value)
        if of_same_context and context != self.context:
            return False
        fixed = dict(self.constant_attrs)
        if sorted(names) != sorted((*self.inner_names, *fixed)) or any(
            getattr(value, n) is not f for n, f in fixed.items()
        ):
            return False
        pairs = zip(self.inner_names, self.inner_specs, strict=True)
        return all(
            not is_traceable_wrapper_subclass(getattr(value, n))
            if i is None
            else i._matches(getattr(value, n), of_same_context=of_same_context)
            for n, i in pairs
        )


_SYMBOL_FREE_TYPES = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.SymInt,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    enum.Enum,
)


def _is_symbol_free(leaf: Any) -> bool:
    """Whether no symbol can be hidden in a part of a context. What torch's ``DTensor`` hides there it does not read."""
    return isinstance(leaf, _SYMBOL_FREE_TYPES) or type(leaf).__module__.startswith("torch.distributed.")


def _number(size: Any, known: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(size, torch.Size):
        return torch.Size([_number(s, known) for s in size])
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    return known[expression] if isinstance(expression, sympy.Symbol) else int(expression.xreplace(known))


def _is_shape(given: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether a shape is the expected one, as far as this is known without a call."""
    if len(given) != len(expected):
        return False
    pairs = zip(given, expected, strict=True)
    return all(
        isinstance(e, torch.SymInt) if isinstance(e, torch.SymInt) != isinstance(g, torch.SymInt) else _same(g, e)
        for g, e in pairs
    )


def _same(left: Any, right: Any) -> bool:
    return left == right if isinstance(left, int) else statically_known_true(left == right)


def _tensor_flatten(whole: Any) -> tuple[list[str], Any]:
    """Names of the parts, and the context that holds for the tensor whether or not it requires grad."""
    names, context = (whole.detach() if whole.requires_grad else whole).__tensor_flatten__()
    return names, context


@dataclass
class SubclassGradient:
    """How the gradient of an input that is a subclass is put together: known once the backward is traced."""

    name: str
    input_spec: SubclassSpec
    grad_spec: SubclassSpec | None = None
    is_saved_for_backward: bool = True
    """Whether the backward reads what is inside of the input: then it must not have been written to since."""

    def unflatten_input(self, *plain: Any) -> Any:
        """In the traced graph: the input around its parts, from which gradients flow back into the parts."""
        return _UnflattenFunction.apply(self.input_spec, self._record_grad_spec, *plain)  # type: ignore[no-untyped-call]

    def _record_grad_spec(self, gradient: Any) -> SubclassSpec:
        if not (
            self.input_spec.matches_except_context(gradient)
            if self.grad_spec is None
            else self.grad_spec.matches(gradient)
        ):
            kind = type(gradient).__name__
            other = f"{kind} of other parts" if type(gradient) is self.input_spec.type else kind
            raise CannotFunctionalize(
                f"the gradient of {self.name}, a {self.input_spec.type.__name__}, would be a {other}"
            )
        if self.grad_spec is None:  # later ones are of calls that are run again
            self.grad_spec = SubclassSpec.from_tensor(self.name, gradient)
        return self.grad_spec

    def flatten_input(self, whole: Any, known: Mapping[sympy.Symbol, int]) -> tuple[Any, ...]:
        """Around the compiled graph: the parts of the input, whose gradients become one of the whole; ``known`` are the sizes of the call."""
        given = self.input_spec.with_sizes(known)
        found = given if self.grad_spec is None else self.grad_spec.with_sizes(known)
        taken: tuple[Any, ...] = _FlattenFunction.apply(given, found, whole, self.is_saved_for_backward)  # type: ignore[no-untyped-call]
        return taken


def flatten_with_grad(parts: SubclassSpec, whole: Any) -> tuple[Any, ...]:
    """The parts of what is put together inside a graph, whose gradients become one of the whole."""
    taken: tuple[Any, ...] = _FlattenFunction.apply(parts, parts, whole, True)  # type: ignore[no-untyped-call]
    return taken


def _spec_of_gradient(gradient: Any) -> SubclassSpec:
    return SubclassSpec.from_tensor("a gradient", gradient)


class _FlattenFunction(torch.autograd.Function):
    """A subclass to its parts; back, gradients of parts to one of the subclass."""

    @staticmethod
    def forward(ctx: Any, parts: SubclassSpec, gradient: SubclassSpec, whole: Any, is_read: bool) -> tuple[Any, ...]:
        ctx.set_materialize_grads(False)
        plain = tuple(p.detach() for p in parts.flatten(whole))
        ctx.gradient, ctx.like = gradient, tuple((p.shape, p.dtype, p.device) for p in plain)
        ctx.whole, ctx.version = (whole, whole._version) if is_read else (None, 0)
        return plain

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if all(g is None for g in grads):
            return None, None, None, None
        if ctx.whole is not None:
            _check_version(ctx.whole, ctx.version)
        pairs = zip(grads, ctx.like, strict=True)
        filled = [torch.zeros(size, dtype=d, device=on) if g is None else g for g, (size, d, on) in pairs]
        return None, None, _UnflattenFunction.apply(ctx.gradient, _spec_of_gradient, *filled), None  # type: ignore[no-untyped-call]


def _check_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{type(tensor).__name__} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
        )


class _UnflattenFunction(torch.autograd.Function):
    """Parts to the subclass around them; back, a gradient of the subclass to those of its parts."""

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
    """One call as it was, for gradients that come back as another kind of tensor than the compiled backward knows."""

    rerun: EagerRerun
    inputs: tuple[Any, ...]
    versions: tuple[int, ...]
    rng_state: tuple[torch.Tensor, ...]

    @classmethod
    def capture(cls, again: EagerRerun, inputs: tuple[Any, ...]) -> RerunContext:
        """The call that is about to be made."""
        tensors = [isinstance(i, torch.Tensor) and not i.is_inference() for i in inputs]
        versions = tuple(i._version if t else 0 for i, t in zip(inputs, tensors, strict=True))
        return cls(again, inputs, versions, get_rng_states(again.rng_devices))

    def unflatten_output(self, number: int, parts: SubclassSpec, plain: Sequence[Any]) -> Any:
        """Output ``number`` of the call."""
        needing = [self.inputs[n] for n in self.rerun.grad_inputs]
        return _UnflattenOutputFunction.apply(self, number, parts, len(plain), *plain, *needing)  # type: ignore[no-untyped-call]

    def gradients(self, number: int, tangent: Any) -> Sequence[Any]:
        """Gradients of the inputs that need one, for a gradient of output ``number``."""
        for n, (given, version) in enumerate(zip(self.inputs, self.versions, strict=True)):
            if n not in self.rerun.mutated_inputs and isinstance(given, torch.Tensor) and not given.is_inference():
                _check_version(given, version)
        tangents = [tangent if n == number else None for n in range(len(self.rerun.output_nodes))]
        try:
            with torch.enable_grad():
                found = self.rerun.gradients(self.inputs, self.versions, self.rng_state, tangents)
        except DoubleBackwardUnsupported as error:
            raise RuntimeError(UNEXPECTED_TANGENT_MESSAGE.format(type(tangent).__name__, error)) from None
        if torch.is_grad_enabled():
            return found
        return [None if g is None else g.detach() for g in found]


class _UnflattenOutputFunction(torch.autograd.Function):
    """Parts to an output; back, its gradient to those of the parts, or straight to the inputs where it is of another kind."""

    @staticmethod
    def forward(ctx: Any, born: RerunContext, number: int, parts: SubclassSpec, count: int, *given: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.born, ctx.number, ctx.parts, ctx.count = born, number, parts, count
        return parts.unflatten(*(p.detach() for p in given[:count]))

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        inputs = len(ctx.born.rerun.grad_inputs)
        none = (None,) * 4
        if tangent is None:
            return none + (None,) * (ctx.count + inputs)
        if ctx.parts.matches(tangent):
            return *none, *flatten_with_grad(ctx.parts, tangent), *((None,) * inputs)
        return *none, *((None,) * ctx.count), *ctx.born.gradients(ctx.number, tangent)
