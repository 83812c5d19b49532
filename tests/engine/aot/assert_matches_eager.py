"""Compare a compiled graph with eager: values, layouts, identity, aliasing and mutations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def message(run: Callable[..., Any], *args: Any) -> str:
    """What a call raises, with its type; empty when it does not raise."""
    try:
        run(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def clones(args: Sequence[Any]) -> list[Any]:
    """Clone the inputs with equal strides and offsets, and keep their storage sharing."""
    storages: dict[int, torch.UntypedStorage] = {}
    return [_clone(a, storages) if isinstance(a, torch.Tensor) else a for a in args]


def _clone(t: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    storage = t.untyped_storage()
    own = storages.setdefault(storage._cdata, storage.clone())
    new = torch.empty(0, dtype=t.dtype).set_(own, t.storage_offset(), t.size(), t.stride())
    return new.requires_grad_(t.requires_grad)


def assert_matches_eager(fn: Callable[..., Any], run: Callable[..., Any], args: Sequence[Any], seed: int = 0) -> None:
    """Call both on equal inputs with the same seed; nothing that can be seen may differ."""
    eager_args, our_args = clones(args), clones(args)
    torch.manual_seed(seed)
    eager = fn(*eager_args)
    eager_random = torch.get_rng_state()
    torch.manual_seed(seed)
    ours = run(*our_args)
    assert torch.equal(torch.get_rng_state(), eager_random), "another amount of random numbers was drawn"
    assert isinstance(ours, tuple)
    assert len(ours) == len(eager)
    for one, other in zip((*eager_args, *eager), (*our_args, *ours), strict=True):
        _assert_same_value(one, other)
    _assert_same_relations((*eager_args, *eager), (*our_args, *ours))
    written = [a._version > 0 for a in eager_args if isinstance(a, torch.Tensor)]
    assert [a._version > 0 for a in our_args if isinstance(a, torch.Tensor)] == written


def _assert_same_value(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if not isinstance(one, torch.Tensor):
        assert one == other
        return
    facts = [
        (t.dtype, t.shape, t.storage_offset() if t._is_view() else 0, t.requires_grad, t.is_leaf) for t in (one, other)
    ]
    assert facts[0] == facts[1]
    strides = [[s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (one, other)]
    assert strides[0] == strides[1]
    assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)), "not equal to the bit"


def _assert_same_relations(eager: Sequence[Any], ours: Sequence[Any]) -> None:
    for n, (a, x) in enumerate(zip(eager, ours, strict=True)):
        for m, (b, y) in enumerate(zip(eager[:n], ours[:n], strict=True)):
            if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
                continue
            assert (x is y) == (a is b), f"identity of {n} and {m}"
            assert (x._base is y) == (a._base is b), f"_base of {n} is {m}"
            assert (y._base is x) == (b._base is a), f"_base of {m} is {n}"
            assert _shares(x, y) == _shares(a, b), f"shared memory of {n} and {m}"
            if _shares(a, b) and a.numel() and b.numel():
                assert x.data_ptr() - y.data_ptr() == a.data_ptr() - b.data_ptr(), f"offset of {n} and {m}"


def _shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata
