"""How one tensor sees the memory of another: storages, offsets, and the view to be made again at run time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine.ir.frame import GraphInput
from engine.ir.plan import Detachment, MadeWhere, Size, View, is_same_size


class NotFunctional(Exception):
    """The graph cannot be made functional without changing what a person could notice; the text says why."""


def storage_of(t: torch.Tensor) -> int:
    """Identity of a tensor's storage."""
    return int(t.untyped_storage()._cdata)


def offset_of(t: torch.Tensor) -> Size:
    """Where it starts in its storage, in elements."""
    return t.storage_offset()


def end_of(t: torch.Tensor) -> int:
    """Where the memory that it sees ends, in bytes from the start of its storage; for static sizes."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return int(t.storage_offset() + reach) * t.element_size()


def start_of(t: torch.Tensor) -> int:
    """Where it starts, in bytes from the start of its storage; for static sizes."""
    return int(t.storage_offset()) * t.element_size()


def is_dense(t: torch.Tensor) -> bool:
    """Whether it sees every element between its first and its last once; for static sizes."""
    return not overlaps(t) and (end_of(t) - start_of(t)) == t.numel() * t.element_size()


def is_same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage see the same elements by the same strides, as eager compares them before it writes."""
    return (a.dtype, a.shape, a.stride(), start_of(a)) == (b.dtype, b.shape, b.stride(), start_of(b))


_FEW = 1 << 16
"""Elements of which each is looked at."""


def is_apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage surely share no element; sizes with symbols are taken for what they are in this call."""
    a, b = at_hand(a), at_hand(b)
    if a._has_symbolic_sizes_strides or b._has_symbolic_sizes_strides:
        return False
    if not a.numel() or not b.numel() or end_of(a) <= start_of(b) or end_of(b) <= start_of(a):
        return True
    if a.element_size() != b.element_size() or max(end_of(a), end_of(b)) > _FEW * a.element_size():
        return False
    return not (_places(a) & _places(b))


def _places(t: torch.Tensor) -> set[int]:
    """Where the elements lie in the storage."""
    places = {int(t.storage_offset())}
    for n, s in zip(t.shape, t.stride(), strict=True):
        places = {p + k * s for p in places for k in range(n)}
    return places


def here_of(size: Any) -> int | None:
    """A size in the call that is being compiled, asking for no guard; None where only the running graph knows."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return None if hint is None else int(hint)


def at_hand(t: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as one with symbols is in this call, over no memory; one without symbols, or with unknown ones, itself."""
    if not t._has_symbolic_sizes_strides:
        return t
    place = [here_of(s) for s in (*t.shape, *t.stride(), t.storage_offset())]
    known = [s for s in place if s is not None]
    if len(known) != len(place):
        return t
    sizes, strides, offset = known[: t.dim()], known[t.dim() : -1], known[-1]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return torch.empty(max(reach, offset), dtype=t.dtype, device="meta").as_strided(sizes, strides, offset)


def writes_to(fake: torch.Tensor) -> int:
    """How often traced code wrote to the tensor's memory in place."""
    return 0 if fake.is_inference() else fake._version


def view_of(name: str, base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> View:
    """How ``fake`` sees what ``base`` sees, made again by a call ``in_grad_mode`` or without gradients.

    Raises:
        NotFunctional: no view can be made from the outside that does so.
    """
    view = _view_of(name, base, fake)
    if not fake._is_view() or fake.is_inference():
        return view
    history = history_of(name, fake) if base.requires_grad else None
    if history is not None and _ends_in_the_dark(history, history_of(name, base)):
        raise NotFunctional(f"{name} is a view of a view that was made under no_grad")
    is_unseen = base.requires_grad and history is None
    return replace(
        view,
        is_unseen=is_unseen,
        is_made_by_hand=_creation_of(fake) == _BY_HAND and _creation_of(base) != _BY_HAND,
        is_one_of_several=_becomes_one_of_several(base, fake),
        made_where="" if is_unseen else _made_where(base, fake, in_grad_mode=in_grad_mode),
    )


_CreationMeta: Any = torch._C._autograd.CreationMeta
_BY_HAND = _CreationMeta.IN_CUSTOM_FUNCTION


def _creation_of(t: torch.Tensor) -> Any:
    return torch._C._autograd._get_creation_meta(t) if t._is_view() and not t.is_inference() else _CreationMeta.DEFAULT


def made_as(t: torch.Tensor) -> str:
    """How autograd remembers that a view was made, which decides what may be done to it."""
    return str(_creation_of(t))


def _ends_in_the_dark(history: Any, last: Any) -> bool:
    """Whether gradients that flow from here, and not through ``last``, end where a view was made under ``no_grad``."""
    while history is not last and history.next_functions:
        onwards = [n for n, _ in history.next_functions if n is not None]
        if not onwards:
            return True
        history = onwards[0]
    return False


def _made_where(base: torch.Tensor, fake: torch.Tensor, *, in_grad_mode: bool) -> MadeWhere:
    """The grad mode that a view was made in, where that is not the mode of the call."""
    made, whole = _creation_of(fake), _creation_of(base)
    if made == _CreationMeta.NO_GRAD_MODE and in_grad_mode and whole != made:
        return "no_grad"
    return "enable_grad" if made == _CreationMeta.DEFAULT and not in_grad_mode else ""


def history_of(name: str, fake: torch.Tensor) -> Any:
    """What autograd made a view by; None for a view made under ``no_grad``.

    Raises:
        NotFunctional: its history was spoilt, and eager says so whenever it is asked for.
    """
    try:
        return fake.grad_fn
    except RuntimeError as error:
        raise NotFunctional(f"{name} is a view whose history is spoilt by a change in place") from error


def is_made_by_hand(base: torch.Tensor | None, fake: torch.Tensor) -> bool:
    """Whether the user's own autograd function, whose backward says what gradients are, made a view of ``base``, or what it is a view of."""
    if fake.is_inference() or not fake._is_view():
        return False
    node: Any = history_of("a view", fake)
    last = None if base is None else history_of("a view", base)
    while node is not None and node is not last:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _becomes_one_of_several(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether it is what was done to ``base`` that makes a view one of several: what ``base`` is itself, its views inherit."""
    if not _is_one_of_several(fake):
        return False
    if not base._is_view() or not _is_one_of_several(base):
        return True
    node: Any = fake.grad_fn
    while node is not None and node is not base.grad_fn:
        if len(node._input_metadata) > 1:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _is_one_of_several(fake: torch.Tensor) -> bool:
    return bool(_creation_of(fake) == _CreationMeta.MULTI_OUTPUT_NODE)


def _view_of(name: str, base: torch.Tensor, fake: torch.Tensor) -> View:
    detached: Detachment = "" if fake._is_view() else "detach" if counts_with(base, fake) else "data"
    sizes, strides = tuple(fake.shape), tuple(fake.stride())
    flips = _flips(base, fake)
    ratio, rest = divmod(base.element_size(), fake.element_size())
    if base.dtype != fake.dtype and base.element_size() != fake.element_size():
        if rest and fake.element_size() % base.element_size():
            raise NotFunctional(f"{name} sees its memory as elements of another width")
        return View(sizes, strides, _rescaled(name, base, fake, ratio), detached, fake.dtype, _reach(base, name), flips)
    offset = fake.storage_offset() - base.storage_offset()
    dtype = None if base.dtype == fake.dtype else fake.dtype
    plain = dtype is None and is_same_size(offset, 0) and _is_row(base) and _is_row(fake)
    return View(
        sizes, strides, offset, detached, dtype, None, flips, plain and is_same_size(base.numel(), fake.numel())
    )


def _rescaled(name: str, base: torch.Tensor, fake: torch.Tensor, ratio: int) -> Size:
    start = base.storage_offset()
    if ratio:
        return fake.storage_offset() - start * ratio
    per = fake.element_size() // base.element_size()
    if not isinstance(start, int) or start % per:
        raise NotFunctional(f"{name} sees its memory as wider elements that do not start where it does")
    return fake.storage_offset() - start // per


def _reach(t: torch.Tensor, name: str) -> int:
    sizes = [*t.shape, *t.stride()]
    if not all(isinstance(s, int) for s in sizes):
        raise NotFunctional(f"{name} sees memory of a size that varies as elements of another width")
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0


def _is_row(t: torch.Tensor) -> bool:
    """Whether the elements lie one after another, asking for no guard."""
    expected: Any = 1
    for n, s in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not is_same_size(s, expected):
            return False
        expected = expected * n
    return True


def _flips(base: torch.Tensor, fake: torch.Tensor) -> tuple[str, ...]:
    conj = ("conj",) if base.is_conj() != fake.is_conj() else ()
    return (*conj, "neg") if base.is_neg() != fake.is_neg() else conj


def counts_with(base: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether two tensors over one memory count their writes together (``detach``) or apart (``data``): tried out, and put back."""
    if base.is_inference() or fake.is_inference():
        return True
    if storage_of(base) != storage_of(fake):
        return False
    before, other = base._version, fake._version
    set_version = torch._C._autograd._unsafe_set_version_counter
    set_version((base,), (before + 1000,))
    together = fake._version != other
    set_version((base,), (before,))
    return together


def view_in_place(i: GraphInput) -> View:
    """The layout that an input is given in place. Where it starts may be a symbol too: it is compared with where it started, symbol or not."""
    started = i.real.storage_offset() if i.came is None else i.came[2]
    return View(tuple(i.fake.shape), tuple(i.fake.stride()), i.fake.storage_offset() - started)


def overlaps(t: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be the same memory; errs towards yes. Symbols are taken for what they are in this call."""
    here = [(here_of(s), here_of(n)) for n, s in zip(t.shape, t.stride(), strict=True) if not is_same_size(n, 1)]
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
