"""Check each address in Triton's interpreter, which checks none itself."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

POINTER_POSITIONS = {
    "create_masked_load": (0, 1),
    "create_masked_store": (0, 2),
    "create_atomic_rmw": (1, 3),
    "create_atomic_cas": (0, None),
}
"""Positions of the pointers and of the mask among the arguments of the builder's accesses."""


class OutOfArguments(Exception):
    """An access that is in no argument of the kernel."""


@contextlib.contextmanager
def checked_accesses(buffers: Mapping[str, range], written: frozenset[str]) -> Iterator[None]:
    """Check the accesses of kernels that run inside.

    ``buffers`` are addresses by name; those in ``written`` may be written.

    An access outside raises ``OutOfArguments`` before it happens.
    """
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    before = {name: getattr(builder, name) for name in POINTER_POSITIONS}
    for name, positions in POINTER_POSITIONS.items():
        allowed = {n: r for n, r in buffers.items() if name == "create_masked_load" or n in written}
        verb = "reads" if name == "create_masked_load" else "writes"
        setattr(builder, name, _wrap_access(before[name], positions, allowed, verb))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(builder, name, method)


def _wrap_access(access: Any, positions: tuple[int, int | None], allowed: Mapping[str, range], verb: str) -> Any:
    pointer_position, mask_position = positions

    def call(builder: Any, *arguments: Any) -> Any:
        pointers = arguments[pointer_position]
        mask = None if mask_position is None else arguments[mask_position]
        _check(pointers, None if mask is None else mask.data, allowed, verb)
        return access(builder, *arguments)

    return call


def _check(pointers: Any, mask: Any, allowed: Mapping[str, range], verb: str) -> None:
    """Check the addresses of one access.

    Raises:
        OutOfArguments: one of them is in no argument.
    """
    import numpy as np

    starts = np.asarray(pointers.data).astype(np.int64)
    if mask is not None:
        starts = starts[np.broadcast_to(np.asarray(mask, dtype=bool), starts.shape)]
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    is_inside = np.zeros(starts.shape, dtype=bool)
    for addresses in allowed.values():
        is_inside |= (starts >= addresses.start) & (starts + size <= addresses.stop)
    if not is_inside.all():
        raise OutOfArguments(describe_access(int(starts[~is_inside].reshape(-1)[0]), allowed, verb))


def describe_access(address: int, buffers: Mapping[str, range], verb: str) -> str:
    """Return what an access does, by the argument that is nearest to its address."""
    nearest = min(buffers, default="", key=lambda n: max(buffers[n].start - address, address - buffers[n].stop, 0))
    if not nearest:
        return f"it {verb} memory that belongs to no argument"
    near = buffers[nearest]
    if address < near.start:
        return f"it {verb} {near.start - address} bytes before the start of {nearest}"
    if address > near.stop:
        return f"it {verb} {address - near.stop} bytes past the end of {nearest}"
    return f"it {verb} past the end of {nearest}"
