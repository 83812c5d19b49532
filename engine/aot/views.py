"""How one tensor sees the memory of another: storages, offsets, and the view to be made again at run time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.ir.frame import GraphInput
from engine.ir.plan import CreationGradMode, DetachKind, IntOrSymInt, ViewSpec, is_same_size


class CannotFunctionalize(Exception):
    """The graph cannot be made functional without changing what a person could notice; the text says why."""


def storage_id(t: torch.Tensor) -> int:
    """Identity of a tensor's storage."""
    return int(t.untyped_storage()._cdata)


def offset_of(t: torch.Tensor) -> IntOrSymInt:
    """Where it starts in its storage, in elements."""
    return t.storage_offset()


def end_byte(t: torch.Tensor) -> int:
    """Where the memory that it sees ends, in bytes from the start of its storage; for static sizes."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return int(t.storage_offset() + reach) * t.element_size()


def start_byte(t: torch.Tensor) -> int:
    """Where it starts, in bytes from the start of its storage; for static sizes."""
    return int(t.storage_offset()) * t.element_size()


def is_dense(t: torch.Tensor) -> bool:
    """Whether it sees every element between its first and its last once; for static sizes."""
    return not has_internal_overlap(t) and (end_byte(t) - start_byte(t)) == t.numel() * t.element_size()


def is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage see the same elements by the same strides, as eager compares them before it writes."""
    return (a.dtype, a.shape, a.stride(), start_byte(a)) == (b.dtype, b.shape, b.stride(), start_byte(b))


_MAX_ENUMERATED_ELEMENTS = 1 << 16
"""Elements of which each is looked at."""


def is_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage surely share no element; sizes with symbols are taken for what they are in this call."""
    a, b = with_hint_sizes(a), with_hint_sizes(b)
    if a._has_symbolic_sizes_strides or b._has_symbolic_sizes_strides:
        return False
    if not a.numel() or not b.numel() or end_byte(a) <= start_byte(b) or end_byte(b) <= start_byte(a):
        return True
    if (
        a.element_size() != b.element_size()
        or max(end_byte(a), end_byte(b)) > _MAX_ENUMERATED_ELEMENTS * a.element_size()
    ):
        return False
    return not (_element_offsets(a) & _element_offsets(b))


def _element_offsets(t: torch.Tensor) -> set[int]:
    """Where the elements lie in the storage."""
    places = {int(t.storage_offset())}
    for n, s in zip(t.shape, t.stride(), strict=True):
        places = {p + k * s for p in places for k in range(n)}
    return places


def size_hint(size: Any) -> int | None:
    """A size in the call that is being compiled, asking for no guard; None where only the running graph knows."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return None if hint is None else int(hint)


def with_hint_sizes(t: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as one with symbols is in this call, over no memory; one without symbols, or with unknown ones, itself."""
    if not t._has_symbolic_sizes_strides:
        return t
    place = [size_hint(s) for s in (*t.shape, *t.stride(), t.storage_offset())]
    known = [s for s in place if s is not None]
    if len(known) != len(place):
        return t
    sizes, strides, offset = known[: t.dim()], known[t.dim() : -1], known[-1]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return torch.empty(max(reach, offset), dtype=t.dtype, device="meta").as_strided(sizes, strides, offset)


def write_count(fake: torch.Tensor) -> int:
    """How often traced code wrote to the tensor's memory in place."""
    return 0 if fake.is_inference() else fake._version


def describe_view(name: str, base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> ViewSpec:
    """How ``fake`` sees what ``base`` sees, made again by a call ``in_grad_mode`` or without gradients.

    Raises:
        NotFunctional: no view can be made from the outside that does so.
    """
    view = _view_geometry(name, base, fake)
    if not fake._is_view() or fake.is_inference():
        return view
    history = view_grad_fn(name, fake) if base.requires_grad else None
    if history is not None and _crosses_no_grad_view(history, view_grad_fn(name, base)):
        raise CannotFunctionalize(f"{name} is a view of a view that was made under no_grad")
    is_unseen = base.requires_grad and history is None
    return replace(
        view,
        made_without_grad=is_unseen,
        is_from_custom_function=_creation_meta(fake) == _CUSTOM_FUNCTION_VIEW
        and _creation_meta(base) != _CUSTOM_FUNCTION_VIEW,
        is_multi_output=_becomes_multi_output_view(base, fake),
        creation_grad_mode="" if is_unseen else _grad_mode_at_creation(base, fake, in_grad_mode=in_grad_mode),
    )


_CreationMeta: Any = torch._C._autograd.CreationMeta
_CUSTOM_FUNCTION_VIEW = _CreationMeta.IN_CUSTOM_FUNCTION


def _creation_meta(t: torch.Tensor) -> Any:
    return torch._C._autograd._get_creation_meta(t) if t._is_view() and not t.is_inference() else _CreationMeta.DEFAULT


def creation_meta(t: torch.Tensor) -> str:
    """How autograd remembers that a view was made, which decides what may be done to it."""
    return str(_creation_meta(t))


def _crosses_no_grad_view(history: Any, last: Any) -> bool:
    """Whether gradients that flow from here, and not through ``last``, end where a view was made under ``no_grad``."""
    while history is not last and history.next_functions:
        onwards = [n for n, _ in history.next_functions if n is not None]
        if not onwards:
            return True
        history = onwards[0]
    return False


def _grad_mode_at_creation(base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> CreationGradMode:
    """The grad mode that a view was made in, where that is not the mode of the call."""
    made, whole = _creation_meta(fake), _creation_meta(base)
    if made == _CreationMeta.NO_GRAD_MODE and in_grad_mode and whole != made:
        return "no_grad"
    return "enable_grad" if made == _CreationMeta.DEFAULT and not in_grad_mode else ""


def view_grad_fn(name: str, fake: torch.Tensor) -> Any:
    """What autograd made a view by; None for a view made under ``no_grad``.

    Raises:
        NotFunctional: its history was spoilt, and eager says so whenever it is asked for.
    """
    try:
        return fake.grad_fn
    except RuntimeError as error:
        raise CannotFunctionalize(f"{name} is a view whose history is spoilt by a change in place") from error


def is_view_from_custom_function(base: torch.Tensor | None, fake: torch.Tensor) -> bool:
    """Whether the user's own autograd function, whose backward says what gradients are, made a view of ``base``, or what it is a view of."""
    if fake.is_inference() or not fake._is_view():
        return False
    node: Any = view_grad_fn("a view", fake)
    last = None if base is None else view_grad_fn("a view", base)
    while node is not None and node is not last:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _becomes_multi_output_view(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether it is what was done to ``base`` that makes a view one of several: what ``base`` is itself, its views inherit."""
    if not _is_multi_output_view(fake):
        return False
    if not base._is_view() or not _is_multi_output_view(base):
        return True
    node: Any = fake.grad_fn
    while node is not None and node is not base.grad_fn:
        if len(node._input_metadata) > 1:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _is_multi_output_view(fake: torch.Tensor) -> bool:
    return bool(_creation_meta(fake) == _CreationMeta.MULTI_OUTPUT_NODE)


def _view_geometry(name: str, base: torch.Tensor, fake: torch.Tensor) -> ViewSpec:
    detached: DetachKind = "" if fake._is_view() else "detach" if shares_version_counter(base, fake) else "data"
    sizes, strides = tuple(fake.shape), tuple(fake.stride())
    flips = _lazy_conj_neg(base, fake)
    ratio, rest = divmod(base.element_size(), fake.element_size())
    if base.dtype != fake.dtype and base.element_size() != fake.element_size():
        if rest and fake.element_size() % base.element_size():
            raise CannotFunctionalize(f"{name} sees its memory as elements of another width")
        return ViewSpec(
            sizes,
            strides,
            _offset_in_view_dtype(name, base, fake, ratio),
            detached,
            fake.dtype,
            _reach(base, name),
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
    if not isinstance(start, int) or start % per:
        raise CannotFunctionalize(f"{name} sees its memory as wider elements that do not start where it does")
    return fake.storage_offset() - start // per


def _reach(t: torch.Tensor, name: str) -> int:
    sizes = [*t.shape, *t.stride()]
    if not all(isinstance(s, int) for s in sizes):
        raise CannotFunctionalize(f"{name} sees memory of a size that varies as elements of another width")
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _is_contiguous(t: torch.Tensor) -> bool:
    """Whether the elements lie one after another, asking for no guard."""
    expected: Any = 1
    for n, s in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not is_same_size(s, expected):
            return False
        expected = expected * n
    return True


def _lazy_conj_neg(base: torch.Tensor, fake: torch.Tensor) -> tuple[str, ...]:
    conj = ("conj",) if base.is_conj() != fake.is_conj() else ()
    return (*conj, "neg") if base.is_neg() != fake.is_neg() else conj


def shares_version_counter(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether two tensors over one memory count their writes together (``detach``) or apart (``data``): tried out, and put back."""
    if base.is_inference() or fake.is_inference():
        return True
    if storage_id(base) != storage_id(fake):
        return False
    before, other = base._version, fake._version
    set_version = torch._C._autograd._unsafe_set_version_counter
    set_version((base,), (before + 1000,))
    together = fake._version != other
    set_version((base,), (before,))
    return together


def mutated_layout(i: GraphInput) -> ViewSpec:
    """The layout that an input is given in place. Where it starts may be a symbol too: it is compared with where it started, symbol or not."""
    started = i.example_value.storage_offset() if i.original_layout is None else i.original_layout[2]
    return ViewSpec(tuple(i.fake.shape), tuple(i.fake.stride()), i.fake.storage_offset() - started)


def has_internal_overlap(t: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be the same memory; errs towards yes. Symbols are taken for what they are in this call."""
    here = [(size_hint(s), size_hint(n)) for n, s in zip(t.shape, t.stride(), strict=True) if not is_same_size(n, 1)]
    pairs = [(s, n) for s, n in here if s is not None and n is not None and n != 1]
    if any(s is None or n is None for s, n in here):  # known to the running graph only
        return any(s == 0 for s, _ in here)
    if any(n == 0 for _, n in pairs):
        return False
    reach = 0
    for s, n in sorted(pairs):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False
