"""Guards on tensors: one match object per tensor, expanded to one guard per property.

Each property guard is checked, displayed and explained by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, ClassVar, cast

import torch

from engine.group_pairs import group_pairs
from engine.ir.guards.base import Guard, ValueCode
from engine.ir.guards.python_values import TypeMatch
from engine.ir.introspection import describe_values
from engine.ir.introspection.tensor_spec import TensorSpec, is_spec
from engine.ir.sources.base import Source
from engine.records.guards import NO_FIX, Fix
from engine.torch_private.dispatch import DispatchKeySet, dispatch_key_parse
from engine.torch_private.dispatch import dispatch_keys as torch_dispatch_keys
from engine.torch_private.torch_function import DisableTorchFunction

PLAIN_TENSOR_TYPES: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
"""Exact types whose attributes are read in C without overrides."""

_Tensor: Any = torch.Tensor


def dispatch_keys_of(tensor: Any) -> str:
    """Return the tensor's own dispatch keys as text, as in ``TensorMatch.dispatch_keys``."""
    return tensor.dispatch_keys if is_spec(tensor) else str(torch_dispatch_keys(tensor))


def _dispatch_key_bits(tensor: Any) -> int:
    if type(tensor) is TensorSpec:
        return _parse_dispatch_keys(tensor.dispatch_keys) or 0
    return int(torch_dispatch_keys(tensor).raw_repr())


def _tensor_property_reader(name: str) -> Callable[[Any], Any]:
    """Return a function that reads a tensor attribute; bypass overrides.

    Of a ``TensorSpec`` it reads the field.

    The function raises TypeError if the value is not a tensor, and RuntimeError if the tensor lacks the
    property.
    """
    descriptor = getattr(_Tensor, name)
    get = descriptor.__get__ if hasattr(type(descriptor), "__set__") else None

    def read(value: Any) -> Any:
        if type(value) is TensorSpec:
            attribute = getattr(value, name)
            return attribute() if name in ("size", "stride") else attribute
        with DisableTorchFunction():
            return descriptor(value) if get is None else get(value)

    read.__name__ = f"{name}_of"
    return read


_size = _tensor_property_reader("size")


class TensorMatch(Guard):
    """Tensor properties that tracing used.

    ``expand_tensor_match`` splits it into one guard per property before the guards are ordered. ``sizes`` and
    ``strides`` are None in symbolic dimensions.
    """

    kind: ClassVar[str] = "tensor"

    type: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    dispatch_keys: str

    def expand(self) -> tuple[Guard, ...]:
        return expand_tensor_match(self)


class TensorSubclassMatch(Guard):
    """Guard on the inner tensor names and the context of a traceable wrapper subclass.

    Both come from ``__tensor_flatten__``.
    """

    kind: ClassVar[str] = "tensor subclass"
    rank: ClassVar[int] = 58

    inner_names: tuple[str, ...]
    context: Any = field(hash=False)

    @property
    def is_dtensor_layout(self) -> bool:
        return "_local_tensor" in self.inner_names

    def condition(self, code: ValueCode) -> str:
        return code.call(self.test, "comes_apart", code.expr)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        names, context = value.__tensor_flatten__()
        return tuple(names) == self.inner_names and _contexts_match(type(value), self.context, context)

    def expected_text(self) -> str:
        return f"{', '.join(self.inner_names)} and {self.context!r}"

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        if not hasattr(value, "__tensor_flatten__"):
            return describe_values.describe(value)
        names, context = value.__tensor_flatten__()
        return f"{', '.join(names)} and {context!r}"


def _contexts_match(cls: type, expected: Any, actual: Any) -> bool:
    """Return True if code traced for one subclass context is valid for another one.

    Uses the class's ``__metadata_guard__`` if there is one, else equality. The context of a ``DTensor`` repeats
    its shape; only the dtype is compared there, because the shape is guarded as the tensor's own and may be
    dynamic.
    """
    own = getattr(cls, "__metadata_guard__", None)
    if own is not None:
        return bool(own(expected, actual))
    if type(expected) is type(actual) is tuple and len(expected) == len(actual):
        return all(_context_items_match(e, g) for e, g in zip(expected, actual, strict=True))
    return bool(expected == actual)


def _context_items_match(expected: Any, actual: Any) -> bool:
    if type(expected) is type(actual) and is_dtensor_meta(expected):
        return bool(expected.dtype == actual.dtype)
    return bool(expected == actual)


def is_dtensor_meta(item: Any) -> bool:
    """Return True for torch's ``TensorMeta``: the shape, strides and dtype of a ``DTensor``."""
    return (type(item).__module__, type(item).__name__) == ("torch.distributed.tensor._dtensor_spec", "TensorMeta")


def tensor_properties(guards: Iterable[Guard]) -> dict[Source, list[TensorPropertyGuard]]:
    """Return the guards on one tensor property, by the tensor's source."""
    return group_pairs((g.source, cast(TensorPropertyGuard, g)) for g in guards if g.is_tensor_property)


class TensorPropertyGuard(Guard):
    """Base of guards that one tensor property has the value ``expected``.

    ``attribute`` is read from plain tensors, ``reader`` is called for all others.
    """

    is_tensor_property: ClassVar[bool] = True
    attribute: ClassVar[str]
    reader: ClassVar[Any]
    """Reads the property from any value; raises TypeError if it is not a tensor."""
    comparison: ClassVar[str] = "is"
    is_literal: ClassVar[bool] = False
    """True if generated code can hold the expected value as a literal."""

    expected: Any

    def _read(self, code: ValueCode) -> str:
        return (
            f"{code.expr}.{self.attribute}"
            if code.known_type in PLAIN_TENSOR_TYPES
            else code.call(type(self).reader, type(self).reader.__name__, code.expr)
        )

    def condition(self, code: ValueCode) -> str:
        text = str(self.expected).removeprefix("torch.")
        expected = text if self.is_literal else code.const(self.expected, text.partition(":")[0])
        return f"{self._read(code)} {self.comparison} {expected}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return bool(type(self).reader(value) == self.expected)

    def expected_text(self) -> str:
        return self.value_text(self.expected)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        try:
            return self.value_text(type(self).reader(value))
        except (TypeError, RuntimeError):
            return describe_values.describe(value)

    def value_text(self, value: Any) -> str:
        """Format the property's value for display."""
        return str(value)


class DispatchKeysMatch(TensorPropertyGuard):
    """Guard on the tensor's own dispatch keys.

    They differ for conjugate, inference, nested and wrapped tensors.
    """

    kind: ClassVar[str] = "dispatch keys"
    rank: ClassVar[int] = 49
    reader = staticmethod(dispatch_keys_of)

    def condition(self, code: ValueCode) -> str:
        raw = _parse_dispatch_keys(self.expected)
        if raw is None:
            return f"{code.call(dispatch_keys_of, 'dispatch_keys_of', code.expr)} == {self.expected!r}"
        return f"{code.call(torch_dispatch_keys, 'dispatch_keys', code.expr)}.raw_repr() == {raw}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        raw = _parse_dispatch_keys(self.expected)
        return super().test(value) if raw is None else _dispatch_key_bits(value) == raw

    def value_text(self, value: Any) -> str:
        return str(value).removeprefix("DispatchKeySet(").removesuffix(")")

    def failure_message(self, actual: str) -> str:
        actual_parts, expected_parts = _tensor_kind(actual), _tensor_kind(self.expected_text())
        if actual_parts == expected_parts:
            return super().failure_message(actual)
        return f"{self.user_expr} is {actual_parts}; the compiled code was specialized for {expected_parts}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return self.fix_by_method(f"Convert {self.user_expr} to an ordinary tensor", "clone()")


_KINDS_BY_KEY = {
    "Conjugate": "a conjugated view",
    "Negative": "a negated view",
    "NestedTensor": "a nested tensor",
    "Python": "a tensor subclass",
}


def _tensor_kind(keys: str) -> str:
    """Name the kind of tensor that has these dispatch keys."""
    names = keys.split(", ")
    plain = "an ordinary tensor" if "ADInplaceOrView" in names else "an inference tensor"
    return next((kind for key, kind in _KINDS_BY_KEY.items() if key in names), plain)


@functools.lru_cache(maxsize=256)
def _parse_dispatch_keys(text: str) -> int | None:
    """Return the bits of a dispatch key set, or None if its text is not complete."""
    names = [n for n in text.removeprefix("DispatchKeySet(").removesuffix(")").split(", ") if n]
    try:
        keys = DispatchKeySet.from_raw_repr(0)
        for name in names:
            keys = keys.add(dispatch_key_parse(name))
    except (RuntimeError, TypeError, AttributeError):
        return None
    return int(keys.raw_repr()) if str(keys) == text else None


class DtypeMatch(TensorPropertyGuard):
    """Guard on the tensor's dtype."""

    kind: ClassVar[str] = "dtype"
    rank: ClassVar[int] = 44
    attribute = "dtype"
    reader = staticmethod(_tensor_property_reader("dtype"))

    def value_text(self, value: Any) -> str:
        return describe_values.short_dtype(value)

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        text = f"Convert {self.user_expr} before the call, so that one cache entry is enough"
        return self.fix_by_method(text, f"to({self.expected})")


class DeviceMatch(TensorPropertyGuard):
    """Guard on the tensor's device."""

    kind: ClassVar[str] = "device"
    rank: ClassVar[int] = 46
    attribute = "device"
    reader = staticmethod(_tensor_property_reader("device"))
    comparison = "=="

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return self.fix_by_method(f"Move {self.user_expr} before the call", f"to({str(self.expected)!r})")


class LayoutMatch(TensorPropertyGuard):
    """Guard on the tensor's layout."""

    kind: ClassVar[str] = "layout"
    rank: ClassVar[int] = 48
    attribute = "layout"
    reader = staticmethod(_tensor_property_reader("layout"))

    def value_text(self, value: Any) -> str:
        return str(value).removeprefix("torch.")


class RequiresGradMatch(TensorPropertyGuard):
    """Guard on the tensor's ``requires_grad``."""

    kind: ClassVar[str] = "requires_grad"
    rank: ClassVar[int] = 50
    attribute = "requires_grad"
    reader = staticmethod(_tensor_property_reader("requires_grad"))
    is_literal = True
    message: ClassVar[str] = "{value}.requires_grad is {actual}; the compiled code was specialized for {expected}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if not self.expected:
            return self.fix_by_method(f"Detach {self.user_expr} if no gradient must flow through it", "detach()")
        return (Fix(f"Set requires_grad of {self.user_expr} in every call", f"{self.user_expr}.requires_grad_(True)"),)


class NdimMatch(TensorPropertyGuard):
    """Guard on the tensor's number of dimensions."""

    kind: ClassVar[str] = "ndim"
    rank: ClassVar[int] = 52
    attribute = "ndim"
    reader = staticmethod(_tensor_property_reader("ndim"))
    comparison = "=="
    is_literal = True
    message: ClassVar[str] = "{value} has ndim {actual}; the compiled code was specialized for ndim {expected}."
    advice: ClassVar[str] = (
        "Give {value} the same number of dimensions in every call, for example with unsqueeze or reshape."
    )


class DimensionsGuard(TensorPropertyGuard):
    """Base of guards on one number per dimension; None in symbolic dimensions."""

    reports_changed_dims: ClassVar[bool] = True

    def condition(self, code: ValueCode) -> str:
        read = self._read(code)
        if None not in self.expected:
            return f"{read} == {tuple(self.expected)!r}"
        static = [f"{read}[{i}] == {s}" for i, s in enumerate(self.expected) if s is not None]
        return " and ".join(static) or "True"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        if None not in self.expected:
            return super().test(value)
        numbers = type(self).reader(value)
        return all(s is None or numbers[i] == s for i, s in enumerate(self.expected))

    def value_text(self, value: Any) -> str:
        return "[" + ", ".join("*" if s is None else str(s) for s in tuple(value)) + "]"

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        try:
            actual = type(self).reader(value)
        except (TypeError, RuntimeError):
            return frozenset()
        if len(actual) != len(self.expected):
            return frozenset()
        return frozenset(
            i
            for i, (f, s) in enumerate(zip(actual, self.expected, strict=True))
            if s is not None and (type(f) is not int or f != s)
        )


class ShapeMatch(DimensionsGuard):
    """Guard on the tensor's static sizes."""

    kind: ClassVar[str] = "shape"
    rank: ClassVar[int] = 54
    attribute = "shape"
    reader = staticmethod(_size)

    def failure_message(self, actual: str) -> str:
        actual_parts, expected_parts = actual.strip("[]").split(", "), self.expected_text().strip("[]").split(", ")
        differing = [i for i, (f, w) in enumerate(zip(actual_parts, expected_parts, strict=False)) if w not in ("*", f)]
        if len(actual_parts) != len(expected_parts) or len(differing) != 1:
            return f"{self.user_expr} has shape {actual}; the compiled code was specialized for {self.expected_text()}."
        at = differing[0]
        return f"{self.user_expr} has size {actual_parts[at]} in dimension {at}; the compiled code was specialized for size {expected_parts[at]}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        dimensions = sorted(self.changed_dims(value))
        sizes = _size(value) if dimensions else ()
        if any(sizes[d] in (0, 1) or self.expected[d] in (0, 1) for d in dimensions):
            return (Fix(f"{NO_FIX}: sizes 0 and 1 are always specialized, because of broadcasting and empty tensors."),)
        pad = Fix(f"Pad {self.user_expr} to a static shape")
        if not dimensions:
            return (pad,)
        marks = "\n".join(f"engine.mark_dynamic({self.user_expr}, {d})" for d in dimensions)
        marked = f"{' and '.join(f'dimension {d}' for d in dimensions)} of {self.user_expr}"
        effect = "one cache entry then works for all sizes"
        return (Fix(f"Mark {marked} as dynamic before the first call: {effect}", marks), pad)


class StrideMatch(DimensionsGuard):
    """Guard on the tensor's static strides in elements."""

    kind: ClassVar[str] = "stride"
    rank: ClassVar[int] = 56
    attribute = "stride()"
    reader = staticmethod(_tensor_property_reader("stride"))
    message: ClassVar[str] = "{value} has strides {actual}; the compiled code was specialized for {expected}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return self.fix_by_method(f"Always pass {self.user_expr} with the same strides", "contiguous()")

    @property
    def dynamic_expr(self) -> str:
        return strides_expr(self.source)


def strides_expr(source: Source) -> str:
    """Return the name under which changed strides of a tensor are noted."""
    return f"{source.expr}.stride()"


def expand_tensor_match(match: TensorMatch) -> tuple[Guard, ...]:
    """Expand a tensor match to one guard per property, in executed order.

    Sizes or strides that are all symbolic need no guard.
    """
    o, cause = match.source, match.cause
    sized = any(s is not None for s in match.sizes) or not match.sizes
    strided = any(s is not None for s in match.strides)
    return (
        TypeMatch(o, match.type, cause=cause),
        DtypeMatch(o, match.dtype, cause=cause),
        DeviceMatch(o, match.device, cause=cause),
        LayoutMatch(o, match.layout, cause=cause),
        DispatchKeysMatch(o, match.dispatch_keys, cause=cause),
        RequiresGradMatch(o, match.requires_grad, cause=cause),
        NdimMatch(o, len(match.sizes), cause=cause),
        *((ShapeMatch(o, match.sizes, cause=cause),) if sized and match.sizes else ()),
        *((StrideMatch(o, match.strides, cause=cause),) if strided else ()),
    )
