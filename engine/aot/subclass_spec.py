"""Flatten/unflatten specs of tensor subclasses, and autograd functions around them.

The protocol is torch's for traceable wrapper subclasses (``__tensor_flatten__``, ``__tensor_unflatten__``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import FallbackRequired
from engine.ir.introspection.symbols import symbols_in
from engine.ir.static_sizes import static_size
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.pytree import tree_leaves, tree_map
from engine.torch_private.symbolic_shapes import statically_known_true


@dataclass(frozen=True)
class SubclassSpec:
    """Flatten/unflatten spec of a tensor subclass; inner subclasses have nested specs."""

    type: Any
    inner_names: tuple[str, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    """Numbers, or expressions over the sizes of a call's inputs: see ``with_sizes``."""
    inner_specs: tuple[SubclassSpec | None, ...]
    """Per name, the spec of the inner tensor; None for a plain tensor."""
    constant_attrs: tuple[tuple[str, Any], ...] = ()
    """Attributes by name that are not tensors, for instance a device mesh."""
    is_dynamic: bool = False
    """True if sizes have symbols, here or in an inner spec."""
    placement_specs: list[Any] = field(default_factory=list, repr=False, compare=False)
    """Placements, sizes and mesh of the first ``DTensor`` built; later ones share them."""

    @classmethod
    def from_tensor(cls, name: str, tensor: Any) -> SubclassSpec:
        """Return the spec of a tensor subclass instance.

        Raises:
            FallbackRequired: its sizes are symbolic, and it is nested or its context may hide symbols.
        """
        names, context = _tensor_flatten(tensor)
        varies = bool(tensor._has_symbolic_sizes_strides)
        if varies and (tensor.is_nested or not all(map(_is_symbol_free, tree_leaves(context)))):
            raise FallbackRequired(
                AotFallback.SUBCLASS_DYNAMIC, f"{name} is a {type(tensor).__name__} with symbolic sizes"
            )
        parts: list[tuple[str, Any]] = [(n, getattr(tensor, n)) for n in names]
        tensors: list[tuple[str, Any]] = [(n, p) for n, p in parts if isinstance(p, torch.Tensor)]
        inside = tuple(cls.from_tensor(name, p) if is_traceable_wrapper_subclass(p) else None for _, p in tensors)
        plain = tuple(n for n, _ in tensors)
        fixed = tuple((n, p) for n, p in parts if n not in plain)
        varies = varies or any(i is not None and i.is_dynamic for i in inside)
        return cls(type(tensor), plain, context, tuple(tensor.shape), tuple(tensor.stride()), inside, fixed, varies)

    def with_sizes(self, sizes: Mapping[sympy.Symbol, int]) -> SubclassSpec:
        """Return the spec with the sizes of one call; ``sizes`` has each of ``symbols``."""
        if not self.is_dynamic:
            return self

        def number(size: Any) -> Any:
            return _substitute_symbols(size, sizes)

        return replace(
            self,
            context=tree_map(number, self.context),
            size=tuple(map(number, self.size)),
            stride=tuple(map(number, self.stride)),
            inner_specs=tuple(i if i is None else i.with_sizes(sizes) for i in self.inner_specs),
            is_dynamic=False,
            placement_specs=[],
        )

    def symbols(self) -> set[sympy.Symbol]:
        """Return the symbols in sizes, strides and context, of inner tensors too."""
        own = symbols_in([*self.size, *self.stride, *tree_leaves(self.context)])
        return own.union(*(i.symbols() for i in self.inner_specs if i is not None))

    def flatten(self, tensor: Any) -> Iterator[Any]:
        """Yield the plain inner tensors, in order."""
        for name, inside in zip(self.inner_names, self.inner_specs, strict=True):
            part = getattr(tensor, name)
            if inside is None:
                yield part
            else:
                yield from inside.flatten(part)

    def inner_paths(self) -> Iterator[tuple[str, ...]]:
        """Yield the attribute path of each plain inner tensor."""
        for name, inside in zip(self.inner_names, self.inner_specs, strict=True):
            for path in ((),) if inside is None else inside.inner_paths():
                yield (name, *path)

    def count_inner(self) -> int:
        """Return the number of plain inner tensors."""
        return sum(1 if inside is None else inside.count_inner() for inside in self.inner_specs)

    def unflatten(self, *plain: Any) -> Any:
        """Return the subclass instance built from plain tensors."""
        return self._build(iter(plain))

    def _build(self, plain: Iterator[Any]) -> Any:
        parts = {
            name: next(plain) if inside is None else inside._build(plain)
            for name, inside in zip(self.inner_names, self.inner_specs, strict=True)
        }
        if self.placement_specs:
            return self.type(*parts.values(), self.placement_specs[0], requires_grad=False)
        subclass = self.type.__tensor_unflatten__(
            parts | dict(self.constant_attrs), self.context, self.size, self.stride
        )
        if _is_dtensor(self.type) and not self.is_dynamic and not subclass.requires_grad:
            self.placement_specs.append(subclass._spec)
        return subclass

    def matches(self, value: Any) -> bool:
        """Return True if ``value`` has this spec; its strides may differ."""
        return self._matches(value, of_same_context=True)

    def matches_except_context(self, value: Any) -> bool:
        """Return True if ``value`` has this class, shape and inner names; its context may differ."""
        return self._matches(value, of_same_context=False)

    def _matches(self, value: Any, *, of_same_context: bool) -> bool:
        if type(value) is not self.type or not _shape_matches(value.shape, self.size):
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
    *(int, float, bool, str, type(None), enum.Enum),
    *(torch.SymInt, torch.Size, torch.dtype, torch.device, torch.layout),
)


def _is_symbol_free(leaf: Any) -> bool:
    """Return True if a leaf of a context contains no symbol that is ever read.

    The context of a ``DTensor`` may contain symbols, but nothing reads them.
    """
    return isinstance(leaf, _SYMBOL_FREE_TYPES) or type(leaf).__module__.startswith("torch.distributed.")


def _substitute_symbols(size: Any, sizes: Mapping[sympy.Symbol, int]) -> Any:
    if isinstance(size, torch.Size):
        return torch.Size([_substitute_symbols(s, sizes) for s in size])
    if not isinstance(size, torch.SymInt):
        return size
    expression: Any = size.node.expr
    return sizes[expression] if expression.is_Symbol else int(expression.xreplace(sizes))


def _shape_matches(shape: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return True if a shape equals the expected one. Sizes known only at a call are skipped."""
    if len(shape) != len(expected):
        return False
    return all(_size_matches(g, e) for g, e in zip(shape, expected, strict=True))


def _is_dtensor(cls: type) -> bool:
    return cls.__name__ == "DTensor" and cls.__module__ == "torch.distributed.tensor"


def _size_matches(actual: Any, expected: Any) -> bool:
    if (static_size(actual) is None) != (static_size(expected) is None):
        return static_size(expected) is None
    return statically_known_true(actual == expected)


def _tensor_flatten(tensor: Any) -> tuple[list[str], Any]:
    """Return inner names and context; the context does not depend on ``requires_grad``."""
    names, context = (tensor.detach() if tensor.requires_grad else tensor).__tensor_flatten__()
    return names, context
