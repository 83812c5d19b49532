"""Torch's C helpers: compare many tensors, or plain global state, in one call.

The helpers are optional. If a helper passes, every guard that it covers holds. If it fails, nothing is
known, because helpers also fail for calls that the guards accept (one tensor passed twice, another thread
count). The guards are then checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, call
from typing import Any, cast

import torch

from engine.ir.guards.base import Guard
from engine.ir.guards.tensors import (
    PLAIN_TENSOR_TYPES,
    DispatchKeysMatch,
    LayoutMatch,
    NdimMatch,
    ShapeMatch,
    StrideMatch,
    TensorPropertyGuard,
    is_dtensor_meta,
)
from engine.ir.introspection.python_objects import set_instance_dict
from engine.ir.sources.base import Source
from engine.torch_private.dispatch import DispatchKey, dispatch_tls_local_exclude_set
from engine.torch_private.entries import is_available
from engine.torch_private.guard_helpers import GlobalStateGuard, TensorGuards, dict_version
from engine.torch_private.torch_function import len_torch_function_stack

Sizes = tuple[int | None, ...]

HAS_C_HELPERS = is_available(TensorGuards) and is_available(GlobalStateGuard)
"""True if this torch has both helpers."""

HAS_DICT_VERSIONS = HAS_C_HELPERS and is_available(dict_version)
"""True if this torch exposes dict versions."""

_INLINE_VALUES = 1 << 2
"""Type flag of CPython 3.13+: instances store attribute values inline, not in their dict.

The dict is then only a view of these values.
"""


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
    """Make attribute writes on ``value`` change the version of ``space``, its dict.

    Deleting an attribute changes it too. CPython 3.13 does not change the version while attribute values are
    stored inline. Assigning the object's dict to it again moves the values into the dict; nothing else changes.
    """
    if not _ATTRIBUTE_WRITES_CHANGE_VERSION and type(value).__flags__ & _INLINE_VALUES:
        set_instance_dict(value, space)


HELPER_STATES = frozenset(
    ("grad_mode", "autocast", "torch_function_enabled", "default_dtype", "deterministic", "deterministic_warn_only")
)
"""Items of global state that the C helper compares."""
MIN_HELPER_STATES = frozenset(("grad_mode", "autocast", "default_dtype", "deterministic"))
"""With guards on all of these, the helper is faster than separate reads."""
STATES_IMPLIED_BY_DISPATCH_KEYS = frozenset((("inference_mode", False), ("functorch", None)))
"""Global state that is visible in the dispatch keys of any tensor with autograd keys.

The tensor helper compares these keys. It leaves out a ``FakeTensorMode``, so it does not replace the guard on dispatch modes.
"""


def batchable_tensors(
    in_order: Sequence[Guard], *, dtensors: bool = False
) -> dict[Source, tuple[TensorPropertyGuard, ...]]:
    """Return the tensors that the C helper can check, by source, with their property guards.

    These are plain strided tensors (or else ``DTensor`` instances) with guards on all properties, and otherwise only
    type, hasattr, layout and relational guards.
    """
    facets: dict[Source, list[TensorPropertyGuard]] = {}
    chosen: set[Source] = set()
    others: set[Source] = set()
    for guard in in_order:
        if guard.is_tensor_property:
            facets.setdefault(guard.source, []).append(cast(TensorPropertyGuard, guard))
        elif guard.is_dtensor_layout if dtensors else guard.is_type_test and guard.implied_type in PLAIN_TENSOR_TYPES:
            chosen.add(guard.source)
        elif guard.reads_value and not (
            guard.is_type_test or guard.is_attribute_test or guard.is_dtensor_layout or guard.is_relational
        ):
            others.add(guard.source)
    return {
        o: tuple(guards_of_tensor)
        for o, guards_of_tensor in facets.items()
        if o in chosen and o not in others and _has_all_properties(guards_of_tensor)
    }


def _has_all_properties(property_guards: list[TensorPropertyGuard]) -> bool:
    by_kind = _by_kind(property_guards)
    if len(by_kind) != len(property_guards) or not by_kind.keys() >= {LayoutMatch, DispatchKeysMatch, NdimMatch}:
        return False
    keys = by_kind[DispatchKeysMatch].expected
    return by_kind[LayoutMatch].expected is torch.strided and "Nested" not in keys and "Sparse" not in keys


def _by_kind(property_guards: Sequence[TensorPropertyGuard]) -> dict[type, Any]:
    """Return the property guards of one tensor by their class."""
    return dict(zip(map(type, property_guards), property_guards, strict=True))


def dispatch_keys_show_modes(tensors: Mapping[Source, tuple[TensorPropertyGuard, ...]]) -> bool:
    """Return True if a batched plain tensor has autograd keys.

    Modes then change its effective dispatch keys.
    """
    for guards in tensors.values():
        keys = _by_kind(guards)[DispatchKeysMatch].expected
        if "Autograd" in keys and "Python" not in keys:
            return True
    return False


def always_false(*values: Any) -> bool:
    """Return False; placeholder of a helper that is not built yet."""
    return False


def make_global_state_check() -> Callable[[], bool]:
    """Return a check that compares plain global state with its current value."""
    check: Callable[[], bool] = GlobalStateGuard().check
    return check


def make_tensor_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool] | None:
    """Return a check that compares tensors with these, which have just passed their guards.

    Return None if effective dispatch keys would not distinguish them.
    """
    if torch.is_inference_mode_enabled():
        # torch.is_inference would run the code of a torch-function mode.
        is_overridden = len_torch_function_stack() or not set(map(type, values)) <= set(PLAIN_TENSOR_TYPES)
        return None if is_overridden else _make_inference_check(values, facets)
    excluded: Any = dispatch_tls_local_exclude_set()
    if any(excluded.has(key) for key in _AUTOGRAD_KEYS):
        return None
    return _make_duplicate_safe_check(values, facets)


_dtensor_layout = attrgetter("_spec.placements", "_spec.shard_order", "_spec.tensor_meta.dtype", "_spec.mesh")


def make_layout_check(values: Sequence[Any], guards: Sequence[Guard]) -> Callable[..., bool]:
    """Return a check that ``DTensor`` instances are laid out like these.

    These have just passed the guards.
    """
    specs = [getattr(v, "_spec", v) if _is_compared_by_layout(type(v)) else None for v in values]
    if not all(is_dtensor_meta(getattr(spec, "tensor_meta", None)) for spec in specs):
        tests = [g.test for g in guards]
        return lambda *tensors: all(map(call, tests, tensors))
    expected = list(map(_dtensor_layout, values))
    return lambda *tensors: list(map(_dtensor_layout, tensors)) == expected


def _is_compared_by_layout(cls: type) -> bool:
    """Return True if no hook of a user compares layouts.

    That of ``DTensor`` compares the items of ``_dtensor_layout``.
    """
    hook = getattr(cls, "__metadata_guard__", None)
    return hook is None or getattr(hook, "__module__", "").startswith("torch.distributed.tensor.")


_AUTOGRAD_KEYS = tuple(getattr(DispatchKey, name) for name in ("AutogradCPU", "AutogradCUDA"))


def _make_inference_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    """Return a check that also compares ``is_inference`` of each tensor.

    In inference mode, effective dispatch keys do not show which tensors were created in it.
    """
    check = _make_duplicate_safe_check(values, facets)
    expected = [torch.is_inference(v) for v in values]

    def check_both(*tensors: Any) -> bool:
        return check(*tensors) and list(map(torch.is_inference, tensors)) == expected

    return check_both


def _make_duplicate_safe_check(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    """Return one helper, or several if a tensor occurs more than once.

    A single helper rejects duplicates.
    """
    if len(set(map(id, values))) == len(values):
        return _make_tensor_guards(values, facets)
    layers: list[list[int]] = []
    count: dict[int, int] = {}
    for index, value in enumerate(values):
        layer = count[id(value)] = count.get(id(value), -1) + 1
        if layer == len(layers):
            layers.append([])
        layers[layer].append(index)
    checks = [(_make_tensor_guards([values[i] for i in layer], [facets[i] for i in layer]), layer) for layer in layers]

    def check_layers(*tensors: Any) -> bool:
        return all(check(*[tensors[i] for i in layer]) for check, layer in checks)

    return check_layers


def _make_tensor_guards(
    values: Sequence[Any], facets: Sequence[tuple[TensorPropertyGuard, ...]]
) -> Callable[..., bool]:
    sizes = [list(_static_numbers(property_guards, ShapeMatch)) for property_guards in facets]
    strides = [list(_static_numbers(property_guards, StrideMatch)) for property_guards in facets]
    check: Callable[..., bool] = TensorGuards(*values, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def _static_numbers(property_guards: tuple[TensorPropertyGuard, ...], kind: type) -> Sizes:
    """Return the sizes or strides that a guard of this kind expects; None if symbolic."""
    by_kind = _by_kind(property_guards)
    symbolic: Sizes = (None,) * by_kind[NdimMatch].expected
    return by_kind[kind].expected if kind in by_kind else symbolic
