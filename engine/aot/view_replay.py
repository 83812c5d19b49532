"""Geometry of tensors over one storage, and views to regenerate at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from engine.aot.fallback_kinds import AotFallback
from engine.aot.version_counters import shares_version_counter
from engine.ir.aot.aot_metadata import CreationGradMode, DetachKind, IntOrSymInt, ViewSpec, is_same_size
from engine.ir.fallback import FallbackRequired
from engine.ir.static_sizes import static_size, static_sizes
from engine.torch_private.autograd import CreationMeta, get_creation_meta
from engine.torch_private.fx import disable_proxy_modes_tracing


def describe_view(name: str, base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> ViewSpec:
    """Describe how ``fake`` views the memory of ``base``, for a call ``in_grad_mode`` or not.

    Raises:
        FallbackRequired: no such view can be created outside the graph.
    """
    with disable_proxy_modes_tracing():  # arithmetic with sizes is no part of the graph
        view = _view_geometry(name, base, fake)
    if not fake._is_view() or fake.is_inference():
        return view
    history = view_grad_fn(name, fake) if base.requires_grad else None
    if history is not None and _crosses_no_grad_view(history, view_grad_fn(name, base)):
        raise FallbackRequired(
            AotFallback.VIEW_OF_NO_GRAD_VIEW, f"{name} is a view of a view that was created under no_grad"
        )
    is_unseen = base.requires_grad and history is None
    return replace(
        view,
        made_without_grad=is_unseen,
        is_from_custom_function=_creation_meta(fake) == _CUSTOM_FUNCTION_VIEW
        and _creation_meta(base) != _CUSTOM_FUNCTION_VIEW,
        is_multi_output=_becomes_multi_output_view(base, fake),
        creation_grad_mode="" if is_unseen else _grad_mode_at_creation(base, fake, in_grad_mode=in_grad_mode),
    )


_CreationMeta: Any = CreationMeta


_CUSTOM_FUNCTION_VIEW = _CreationMeta.IN_CUSTOM_FUNCTION


def _creation_meta(t: torch.Tensor) -> Any:
    return get_creation_meta(t) if t._is_view() and not t.is_inference() else _CreationMeta.DEFAULT


def creation_meta(t: torch.Tensor) -> str:
    """Return autograd's creation meta of a view; it decides how the view may be mutated."""
    return str(_creation_meta(t))


def _crosses_no_grad_view(history: Any, last: Any) -> bool:
    """Return True if gradients from here stop at a ``no_grad`` view before reaching ``last``."""
    while history is not last and history.next_functions:
        onwards = [n for n, _ in history.next_functions if n is not None]
        if not onwards:
            return True
        history = onwards[0]
    return False


def _grad_mode_at_creation(base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> CreationGradMode:
    """Return the grad mode in which a view was created, if it differs from the call's."""
    view_meta, base_meta = _creation_meta(fake), _creation_meta(base)
    if view_meta == _CreationMeta.NO_GRAD_MODE and in_grad_mode and base_meta != view_meta:
        return "no_grad"
    return "enable_grad" if view_meta == _CreationMeta.DEFAULT and not in_grad_mode else ""


def view_grad_fn(name: str, fake: torch.Tensor) -> Any:
    """Return the ``grad_fn`` of a view; None for a view created under ``no_grad``.

    Raises:
        FallbackRequired: an in-place change invalidated it, and eager raises whenever it is read.
    """
    try:
        return fake.grad_fn
    except RuntimeError as error:
        raise FallbackRequired(
            AotFallback.INVALIDATED_VIEW, f"{name} is a view whose grad_fn was invalidated by an in-place operation"
        ) from error


def is_view_from_custom_function(base: torch.Tensor | None, fake: torch.Tensor) -> bool:
    """Return True if a user-defined autograd function created this view of ``base``.

    Also True if it created a view between the two. Its backward defines the gradients.
    """
    if fake.is_inference() or not fake._is_view():
        return False
    node: Any = view_grad_fn("a view", fake)
    last = None if base is None else view_grad_fn("a view", base)
    return any(isinstance(n, torch.autograd.function.BackwardCFunction) for n in _history(node, last))


def _history(node: Any, end: Any) -> Iterator[Any]:
    """Yield the autograd nodes of a chain of views, from ``node`` back to before ``end``."""
    while node is not None and node is not end:
        yield node
        node = node.next_functions[0][0] if node.next_functions else None


def _becomes_multi_output_view(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Return True if an operator after ``base`` makes the view one of several outputs.

    A view of a multi-output view inherits the property; that alone does not count.
    """
    if not _is_multi_output_view(fake):
        return False
    if not base._is_view() or not _is_multi_output_view(base):
        return True
    return any(len(node._input_metadata) > 1 for node in _history(fake.grad_fn, base.grad_fn))


def _is_multi_output_view(fake: torch.Tensor) -> bool:
    return bool(_creation_meta(fake) == _CreationMeta.MULTI_OUTPUT_NODE)


def _view_geometry(name: str, base: torch.Tensor, fake: torch.Tensor) -> ViewSpec:
    detached: DetachKind = "" if fake._is_view() else "detach" if shares_version_counter(base, fake) else "data"
    sizes, strides = tuple(fake.shape), tuple(fake.stride())
    flips = _lazy_conj_neg(base, fake)
    ratio, remainder = divmod(base.element_size(), fake.element_size())
    if base.dtype != fake.dtype and base.element_size() != fake.element_size():
        if remainder and fake.element_size() % base.element_size():
            raise FallbackRequired(
                AotFallback.DTYPE_VIEW_RETURNED, f"{name} views its memory as a dtype of another element size"
            )
        return ViewSpec(
            sizes,
            strides,
            _offset_in_view_dtype(name, base, fake, ratio),
            detached,
            fake.dtype,
            _span_in_elements(base, name),
            flips,
        )
    offset = fake.storage_offset() - base.storage_offset()
    dtype = None if base.dtype == fake.dtype else fake.dtype
    plain = dtype is None and is_same_size(offset, 0) and _is_contiguous(base) and _is_contiguous(fake)
    return ViewSpec(
        sizes, strides, offset, detached, dtype, None, flips, plain and is_same_size(base.numel(), fake.numel())
    )


def _offset_in_view_dtype(name: str, base: torch.Tensor, fake: torch.Tensor, ratio: int) -> IntOrSymInt:
    start = base.storage_offset()
    if ratio:
        return fake.storage_offset() - start * ratio
    per = fake.element_size() // base.element_size()
    static_start = static_size(start)
    if static_start is None or static_start % per:
        raise FallbackRequired(
            AotFallback.DTYPE_VIEW_RETURNED,
            f"{name} views its memory as a wider dtype, and its offset is not aligned to that dtype",
        )
    return fake.storage_offset() - static_start // per


def _span_in_elements(t: torch.Tensor, name: str) -> int:
    sizes = [*t.shape, *t.stride()]
    if static_sizes(sizes) is None:
        raise FallbackRequired(
            AotFallback.DTYPE_VIEW_RETURNED, f"{name} views memory of symbolic size as a dtype of another element size"
        )
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _is_contiguous(t: torch.Tensor) -> bool:
    """Return True if the elements are contiguous; adds no guard."""
    expected: Any = 1
    for n, s in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not is_same_size(s, expected):
            return False
        expected = expected * n
    return True


def _lazy_conj_neg(base: torch.Tensor, fake: torch.Tensor) -> tuple[str, ...]:
    conj = ("conj",) if base.is_conj() != fake.is_conj() else ()
    return (*conj, "neg") if base.is_neg() != fake.is_neg() else conj
