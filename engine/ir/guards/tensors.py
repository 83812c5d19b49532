"""Guards on tensors: one match object per tensor, expanded to one guard per property.

Each property guard is checked, displayed and explained by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch

from engine.ir.guards.base import Guard, KnownType, user_expr
from engine.ir.guards.python_values import TypeMatch
from engine.ir.introspection import describe_values
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.ir.sources.base import ConstName, Source
from engine.records.guards import Fix
from engine.torch_private.dispatch import DispatchKeySet, dispatch_key_parse
from engine.torch_private.dispatch import dispatch_keys as torch_dispatch_keys
from engine.torch_private.torch_function import DisableTorchFunction

PLAIN_TENSOR_TYPES: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)
"""Exact types whose attributes are read in C without overrides."""

_Tensor: Any = torch.Tensor


def dispatch_keys_of(tensor: Any) -> str:
    """Return the tensor's own dispatch keys as text, as in ``TensorMatch.dispatch_keys``."""
    return tensor.dispatch_keys if type(tensor) is TensorSpec else str(torch_dispatch_keys(tensor))


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


_dtype, _device, _layout, _requires_grad = (
    _tensor_property_reader("dtype"),
    _tensor_property_reader("device"),
    _tensor_property_reader("layout"),
    _tensor_property_reader("requires_grad"),
)
_ndim, _size, _stride = (
    _tensor_property_reader("ndim"),
    _tensor_property_reader("size"),
    _tensor_property_reader("stride"),
)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class TensorSubclassMatch(Guard):
    """Guard on the inner tensor names and the context of a traceable wrapper subclass.

    Both come from ``__tensor_flatten__``.
    """

    kind: ClassVar[str] = "tensor subclass"
    rank: ClassVar[int] = 58

    inner_names: tuple[str, ...]
    context: Any = field(hash=False)

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{const(self.test, 'comes_apart')}({expr})"

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
    if type(expected) is tuple and type(actual) is tuple and len(expected) == len(actual):
        return all(_context_items_match(e, g) for e, g in zip(expected, actual, strict=True))
    return bool(expected == actual)


def _context_items_match(expected: Any, actual: Any) -> bool:
    if type(expected) is type(actual) and _is_dtensor_meta(expected):
        return bool(expected.dtype == actual.dtype)
    return bool(expected == actual)


def _is_dtensor_meta(item: Any) -> bool:
    """Return True for torch's ``TensorMeta``: the shape, strides and dtype of a ``DTensor``."""
    return (type(item).__module__, type(item).__name__) == ("torch.distributed.tensor._dtensor_spec", "TensorMeta")


def tensor_properties(guards: Iterable[Guard]) -> dict[Source, list[TensorPropertyGuard]]:
    """Return the guards on one tensor property, by the tensor's source."""
    properties: dict[Source, list[TensorPropertyGuard]] = {}
    for guard in guards:
        if guard.is_tensor_property:
            properties.setdefault(guard.source, []).append(cast(TensorPropertyGuard, guard))
    return properties


@dataclass(frozen=True)
class TensorPropertyGuard(Guard):
    """Base of guards on one tensor property.

    ``attribute`` is read from plain tensors, ``reader`` is called for all others.
    """

    is_tensor_property: ClassVar[bool] = True
    attribute: ClassVar[str]
    reader: ClassVar[Any]
    """Reads the property from any value; raises TypeError if it is not a tensor."""

    def _read(self, expr: str, const: ConstName, known_type: KnownType) -> str:
        return (
            f"{expr}.{self.attribute}"
            if known_type in PLAIN_TENSOR_TYPES
            else f"{const(type(self).reader, type(self).reader.__name__)}({expr})"
        )

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        try:
            return self.value_text(type(self).reader(value))
        except (TypeError, RuntimeError):
            return describe_values.describe(value)

    def value_text(self, value: Any) -> str:
        """Format the property's value for display."""
        return str(value)


@dataclass(frozen=True)
class DispatchKeysMatch(TensorPropertyGuard):
    """Guard on the tensor's own dispatch keys.

    They differ for conjugate, inference, nested and wrapped tensors.
    """

    kind: ClassVar[str] = "dispatch keys"
    rank: ClassVar[int] = 49
    reader = staticmethod(dispatch_keys_of)

    keys: str

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        raw = _parse_dispatch_keys(self.keys)
        if raw is None:
            return f"{const(dispatch_keys_of, 'dispatch_keys_of')}({expr}) == {self.keys!r}"
        return f"{const(torch_dispatch_keys, 'dispatch_keys')}({expr}).raw_repr() == {raw}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        raw = _parse_dispatch_keys(self.keys)
        return dispatch_keys_of(value) == self.keys if raw is None else _dispatch_key_bits(value) == raw

    def expected_text(self) -> str:
        return self.value_text(self.keys)

    def value_text(self, value: Any) -> str:
        return str(value).removeprefix("DispatchKeySet(").removesuffix(")")

    def failure_message(self, actual: str) -> str:
        actual_parts, expected_parts = _tensor_kind(actual), _tensor_kind(self.expected_text())
        if actual_parts == expected_parts:
            return super().failure_message(actual)
        return f"{self.user_expr} is {actual_parts}; the compiled code was specialized for {expected_parts}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (Fix(f"Convert {self.user_expr} to an ordinary tensor", f"{self.user_expr} = {self.user_expr}.clone()"),)


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


@dataclass(frozen=True)
class DtypeMatch(TensorPropertyGuard):
    """Guard on the tensor's dtype."""

    kind: ClassVar[str] = "dtype"
    rank: ClassVar[int] = 44
    attribute = "dtype"
    reader = staticmethod(_dtype)

    dtype: torch.dtype

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{self._read(expr, const, known_type)} is {const(self.dtype, str(self.dtype).removeprefix('torch.'))}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return _dtype(value) is self.dtype

    def expected_text(self) -> str:
        return self.value_text(self.dtype)

    def value_text(self, value: Any) -> str:
        return describe_values.short_dtype(value)

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Convert {self.user_expr} before the call, so that one cache entry is enough",
                f"{self.user_expr} = {self.user_expr}.to({self.dtype})",
            ),
        )


@dataclass(frozen=True)
class DeviceMatch(TensorPropertyGuard):
    """Guard on the tensor's device."""

    kind: ClassVar[str] = "device"
    rank: ClassVar[int] = 46
    attribute = "device"
    reader = staticmethod(_device)

    device: torch.device

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{self._read(expr, const, known_type)} == {const(self.device, self.device.type)}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return bool(_device(value) == self.device)

    def expected_text(self) -> str:
        return str(self.device)

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Move {self.user_expr} before the call",
                f"{self.user_expr} = {self.user_expr}.to({str(self.device)!r})",
            ),
        )


@dataclass(frozen=True)
class LayoutMatch(TensorPropertyGuard):
    """Guard on the tensor's layout."""

    kind: ClassVar[str] = "layout"
    rank: ClassVar[int] = 48
    attribute = "layout"
    reader = staticmethod(_layout)

    layout: torch.layout

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{self._read(expr, const, known_type)} is {const(self.layout, str(self.layout).removeprefix('torch.'))}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return _layout(value) is self.layout

    def expected_text(self) -> str:
        return str(self.layout).removeprefix("torch.")

    def value_text(self, value: Any) -> str:
        return str(value).removeprefix("torch.")


@dataclass(frozen=True)
class RequiresGradMatch(TensorPropertyGuard):
    """Guard on the tensor's ``requires_grad``."""

    kind: ClassVar[str] = "requires_grad"
    rank: ClassVar[int] = 50
    attribute = "requires_grad"
    reader = staticmethod(_requires_grad)

    requires_grad: bool

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{self._read(expr, const, known_type)} is {self.requires_grad}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return _requires_grad(value) is self.requires_grad

    def expected_text(self) -> str:
        return str(self.requires_grad)

    def failure_message(self, actual: str) -> str:
        return (
            f"{self.user_expr}.requires_grad is {actual}; the compiled code was specialized for {self.expected_text()}."
        )

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if not self.requires_grad:
            return (
                Fix(
                    f"Detach {self.user_expr} if no gradient must flow through it",
                    f"{self.user_expr} = {self.user_expr}.detach()",
                ),
            )
        return (Fix(f"Set requires_grad of {self.user_expr} in every call", f"{self.user_expr}.requires_grad_(True)"),)


@dataclass(frozen=True)
class NdimMatch(TensorPropertyGuard):
    """Guard on the tensor's number of dimensions."""

    kind: ClassVar[str] = "ndim"
    rank: ClassVar[int] = 52
    attribute = "ndim"
    reader = staticmethod(_ndim)

    ndim: int

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return f"{self._read(expr, const, known_type)} == {self.ndim}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return bool(_ndim(value) == self.ndim)

    def expected_text(self) -> str:
        return str(self.ndim)

    def failure_message(self, actual: str) -> str:
        return f"{self.user_expr} has ndim {actual}; the compiled code was specialized for ndim {self.expected_text()}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Give {self.user_expr} the same number of dimensions in every call, for example with unsqueeze or reshape."
            ),
        )


@dataclass(frozen=True)
class ShapeMatch(TensorPropertyGuard):
    """Guard on the tensor's static sizes; None in symbolic dimensions."""

    kind: ClassVar[str] = "shape"
    rank: ClassVar[int] = 54
    reports_changed_dims: ClassVar[bool] = True
    attribute = "shape"
    reader = staticmethod(_size)

    sizes: tuple[int | None, ...]

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return _static_sizes_condition(self._read(expr, const, known_type), self.sizes)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return _static_sizes_match(_size(value), self.sizes)

    def expected_text(self) -> str:
        return _sizes_text(self.sizes)

    def value_text(self, value: Any) -> str:
        return _sizes_text(tuple(value))

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
        if any(sizes[d] in (0, 1) for d in dimensions):
            return (
                Fix(
                    "Accept this cache entry: sizes 0 and 1 are always specialized, because of broadcasting and empty tensors."
                ),
            )
        marks = "\n".join(f"engine.mark_dynamic({self.user_expr}, {d})" for d in dimensions)
        dimension_list = " and ".join(f"dimension {d}" for d in dimensions)
        mark = (
            (
                Fix(
                    f"Mark {dimension_list} of {self.user_expr} as dynamic before the first call: one cache entry then works for all sizes",
                    marks,
                ),
            )
            if dimensions
            else ()
        )
        return (*mark, Fix(f"Pad {self.user_expr} to a static shape"))

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        return _changed_numbers(value, _size, self.sizes)


@dataclass(frozen=True)
class StrideMatch(TensorPropertyGuard):
    """Guard on the tensor's static strides in elements; None for symbolic strides."""

    kind: ClassVar[str] = "stride"
    rank: ClassVar[int] = 56
    reports_changed_dims: ClassVar[bool] = True
    attribute = "stride()"
    reader = staticmethod(_stride)

    strides: tuple[int | None, ...]

    def condition(
        self, expr: str, const: ConstName, other_texts: tuple[str, ...] = (), known_type: KnownType = None
    ) -> str:
        return _static_sizes_condition(self._read(expr, const, known_type), self.strides)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return _static_sizes_match(_stride(value), self.strides)

    def expected_text(self) -> str:
        return _sizes_text(self.strides)

    def value_text(self, value: Any) -> str:
        return _sizes_text(tuple(value))

    def failure_message(self, actual: str) -> str:
        return f"{self.user_expr} has strides {actual}; the compiled code was specialized for {self.expected_text()}."

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return (
            Fix(
                f"Always pass {self.user_expr} with the same strides",
                f"{self.user_expr} = {self.user_expr}.contiguous()",
            ),
        )

    @property
    def dynamic_expr(self) -> str:
        return strides_expr(self.source)

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        return _changed_numbers(value, _stride, self.strides)


def strides_expr(source: Source) -> str:
    """Return the name under which changed strides of a tensor are noted."""
    return f"{source.expr}.stride()"


def _changed_numbers(value: Any, read: Callable[[Any], Any], expected: tuple[int | None, ...]) -> frozenset[int]:
    """Return the dimensions whose size or stride differs from the expected one."""
    try:
        actual = read(value)
    except (TypeError, RuntimeError):
        return frozenset()
    if len(actual) != len(expected):
        return frozenset()
    return frozenset(
        i
        for i, (f, s) in enumerate(zip(actual, expected, strict=True))
        if s is not None and (type(f) is not int or f != s)
    )


def _sizes_text(sizes: tuple[Any, ...]) -> str:
    return "[" + ", ".join("*" if s is None else str(s) for s in sizes) + "]"


def _static_sizes_condition(read: str, expected: tuple[int | None, ...]) -> str:
    """Return code that compares a size tuple with the static sizes in ``expected``."""
    if None not in expected:
        return f"{read} == {tuple(expected)!r}"
    static = [f"{read}[{i}] == {s}" for i, s in enumerate(expected) if s is not None]
    return " and ".join(static) or "True"


def _static_sizes_match(sizes: Any, expected: tuple[int | None, ...]) -> bool:
    if None not in expected:
        return bool(sizes == expected)
    return all(s is None or sizes[i] == s for i, s in enumerate(expected))


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


__all__ = [
    "PLAIN_TENSOR_TYPES",
    "DeviceMatch",
    "DispatchKeysMatch",
    "DtypeMatch",
    "LayoutMatch",
    "NdimMatch",
    "RequiresGradMatch",
    "ShapeMatch",
    "StrideMatch",
    "TensorPropertyGuard",
    "dispatch_keys_of",
    "expand_tensor_match",
    "strides_expr",
    "user_expr",
]  # fmt: skip
