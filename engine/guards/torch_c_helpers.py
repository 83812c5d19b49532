"""The seam to torch's C helpers: many tensors, and plain global state, compared in one call. Optional, and never the last word.

A helper's "yes" means that every guard it stands for holds; its "no" means nothing, because it also refuses what guards allow (one
tensor twice, another thread count). After a "no" the guards are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.guards.base import Guard
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.guards.python_values import HasAttrGuard, TypeMatch
from engine.ir.guards.tensors import (
    PLAIN_TENSOR_TYPES,
    DispatchKeysMatch,
    LayoutMatch,
    NdimMatch,
    ShapeMatch,
    StrideMatch,
    TensorPropertyGuard,
)
from engine.ir.introspection.python_objects import set_instance_dict
from engine.ir.sources.base import Source

Sizes = tuple[int | None, ...]

_helpers: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
HAS_C_HELPERS = hasattr(_helpers, "TensorGuards") and hasattr(_helpers, "GlobalStateGuard")
"""Whether this torch has both helpers."""

dict_version: Any = getattr(_helpers, "dict_version", None)
"""A number that differs once a dictionary was written to, and is no other dictionary's."""
HAS_DICT_VERSIONS = HAS_C_HELPERS and dict_version is not None
"""Whether this torch tells versions of dictionaries."""

_INLINE_VALUES = 1 << 2
"""The flag of classes, from CPython 3.13 on, whose instances hold their attributes' values themselves while their dictionary only looks at them."""


def _attribute_writes_change_version() -> bool:
    class Probe:
        held = 0

    probe = Probe()
    probe.held = 1
    before = dict_version(probe.__dict__)
    probe.held = 2
    return bool(dict_version(probe.__dict__) != before)


_ATTRIBUTE_WRITES_CHANGE_VERSION = HAS_DICT_VERSIONS and _attribute_writes_change_version()


def track_attribute_writes(value: Any, space: dict[str, Any]) -> None:
    """Let the version of ``space``, the dictionary of ``value``, move with each attribute that is assigned or deleted.

    CPython 3.13 writes attributes past the version as long as the values lie in the object itself. Given its own dictionary once more, the object
    leaves the values to it; nothing else changes.
    """
    if not _ATTRIBUTE_WRITES_CHANGE_VERSION and type(value).__flags__ & _INLINE_VALUES:
        set_instance_dict(value, space)


HELPER_STATES = frozenset(
    ("grad_mode", "autocast", "torch_function_enabled", "default_dtype", "deterministic", "deterministic_warn_only")
)
"""Pieces of global state that the state helper compares."""
MIN_HELPER_STATES = frozenset(("grad_mode", "autocast", "default_dtype", "deterministic"))
"""With guards on all of these the helper is quicker than reading them one by one."""
STATES_IMPLIED_BY_DISPATCH_KEYS = frozenset((("inference_mode", False), ("dispatch_modes", ()), ("functorch", None)))
"""Global state that shows in the dispatch keys of any tensor that autograd may see, with which the tensor helper compares."""


def batchable_tensors(in_order: Sequence[Guard]) -> dict[Source, tuple[TensorPropertyGuard, ...]]:
    """Origins whose tensors the helper can check, with their facets: plain strided tensors all of whose facets are guarded."""
    facets: dict[Source, list[TensorPropertyGuard]] = {}
    for guard in in_order:
        if isinstance(guard, TensorPropertyGuard):
            facets.setdefault(guard.source, []).append(guard)
    plain = {g.source for g in in_order if isinstance(g, TypeMatch) and g.type in PLAIN_TENSOR_TYPES}
    others = {
        g.source
        for g in in_order
        if not isinstance(g, (TensorPropertyGuard, TypeMatch, GlobalStateMatch, HasAttrGuard))
    }
    return {
        o: tuple(found) for o, found in facets.items() if o in plain and o not in others and _has_all_properties(found)
    }


def _has_all_properties(found: list[TensorPropertyGuard]) -> bool:
    kinds = [type(f) for f in found]
    if len(set(kinds)) != len(kinds):
        return False
    is_strided = any(isinstance(f, LayoutMatch) and f.layout is torch.strided for f in found)
    is_dense = any(
        isinstance(f, DispatchKeysMatch) and "Nested" not in f.keys and "Sparse" not in f.keys for f in found
    )
    return is_strided and is_dense and any(isinstance(f, NdimMatch) for f in found)


def dispatch_keys_show_modes(tensors: dict[Source, tuple[TensorPropertyGuard, ...]]) -> bool:
    """Whether one of the batched tensors has autograd keys, so that modes change its effective keys."""
    return any(isinstance(f, DispatchKeysMatch) and "Autograd" in f.keys for found in tensors.values() for f in found)


def new_guard_tree() -> Any:
    """An empty tree of guards on one value.

    Raises:
        AttributeError: this torch has none.
    """
    return _helpers.RootGuardManager()


def always_false(*values: Any) -> bool:
    """Stands for a helper that has learned nothing yet."""
    return False


def make_global_state_check() -> Callable[[], bool]:
    """Compares plain global state with what it is now."""
    check: Callable[[], bool] = _helpers.GlobalStateGuard().check
    return check


def make_tensor_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool] | None:
    """Compares tensors with these, which have just passed their guards; None where effective dispatch keys would not tell them apart."""
    if torch.is_inference_mode_enabled():
        # torch.is_inference would run a torch-function mode's code.
        return None if torch._C._len_torch_function_stack() else _make_inference_check(values, facets)
    excluded: Any = torch._C._dispatch_tls_local_exclude_set()
    if any(excluded.has(key) for key in _AUTOGRAD_KEYS):
        return None
    return _make_duplicate_safe_check(values, facets)


_AUTOGRAD_KEYS = tuple(getattr(torch._C.DispatchKey, name) for name in ("AutogradCPU", "AutogradCUDA"))


def _make_inference_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    """In inference mode effective keys hide which tensors were made in it, so that is asked too."""
    check = _make_duplicate_safe_check(values, facets)
    expected = [torch.is_inference(v) for v in values]

    def check_both(*found: Any) -> bool:
        return check(*found) and list(map(torch.is_inference, found)) == expected

    return check_both


def _make_duplicate_safe_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    """One helper; several when a tensor appears more than once, which a single helper refuses."""
    layers: list[list[int]] = []
    count: dict[int, int] = {}
    for index, value in enumerate(values):
        layer = count[id(value)] = count.get(id(value), -1) + 1
        if layer == len(layers):
            layers.append([])
        layers[layer].append(index)
    checks = [(_make_tensor_guards([values[i] for i in layer], [facets[i] for i in layer]), layer) for layer in layers]
    if len(checks) == 1:
        return checks[0][0]

    def check_layers(*found: Any) -> bool:
        return all(check(*[found[i] for i in layer]) for check, layer in checks)

    return check_layers


def _make_tensor_guards(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    sizes = [list(_sizes(found)) for found in facets]
    strides = [list(_strides(found)) for found in facets]
    check: Callable[..., bool] = _helpers.TensorGuards(
        *values, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


def _sizes(found: tuple[TensorPropertyGuard, ...]) -> Sizes:
    return next((f.sizes for f in found if isinstance(f, ShapeMatch)), (None,) * _dimensions(found))


def _strides(found: tuple[TensorPropertyGuard, ...]) -> Sizes:
    return next((f.strides for f in found if isinstance(f, StrideMatch)), (None,) * _dimensions(found))


def _dimensions(found: tuple[TensorPropertyGuard, ...]) -> int:
    return next(f.ndim for f in found if isinstance(f, NdimMatch))
