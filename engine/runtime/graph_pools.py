"""Memory pools of CUDA graphs: a backward reuses the memory of saved tensors.

A forward's recording keeps the results that the user sees. What only the backward reads is lent to autograd: the first
backward that is recorded takes it over, frees each saved tensor after its last use, and allocates from the same pool.
Gradients get a pool of their own, as they may outlive the next forward.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, Protocol

import torch

from engine.ir.node_values import tensors_in
from engine.torch_private.cuda import allocate_to_pool, release_pool, stop_allocating_to_pool
from engine.torch_private.tensors import storage_Use_Count, tensor_use_count


class OutputInSharedPool(Exception):
    """An output is in the pool of another recording, whose next replay would overwrite it."""


class GraphPool(Protocol):
    """Memory of a recording, from which a later recording can allocate."""

    def lend(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory as a storage that keeps the pool, but not this part of it."""
        ...


@dataclass(eq=False)
class SavedMemory:
    """Memory of a recorded forward that only its backward reads."""

    pool: GraphPool
    owners: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    """Storages that own the memory, by the identity of the lent storage."""
    counts: dict[int, int] = field(default_factory=dict)
    """Use counts of lent storages while the caller holds none."""
    is_taken: bool = False
    """True if a backward was recorded in the pool."""

    def lend(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the storage that autograd gets."""
        lent = self.pool.lend(storage)
        self.owners[lent._cdata] = storage
        _saved[lent._cdata] = self
        return lent

    def take(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return equal tensors that own their memory; this object no longer does."""
        self.is_taken = True
        taken = {}
        for n, tensor in tensors.items():
            owner = self.owners[tensor.untyped_storage()._cdata]
            taken[n] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            taken[n].set_(owner, tensor.storage_offset(), tensor.shape, tensor.stride())
        for tensor in tensors.values():
            self.owners.pop(tensor.untyped_storage()._cdata, None)
        return taken


_saved: weakref.WeakValueDictionary[int, SavedMemory] = weakref.WeakValueDictionary()
"""Saved memory by the identity of its lent storages."""


@dataclass(frozen=True)
class ConsumedInputs:
    """Inputs of a recorded backward whose memory each replay overwrites."""

    saved: SavedMemory
    positions: tuple[int, ...]
    use_counts: tuple[tuple[int, int], ...]
    """Lent storages and their use counts while only these inputs hold them."""

    def are_unshared(self, inputs: Sequence[Any]) -> bool:
        """Return True if nobody else holds these inputs: neither Python, nor autograd, nor a view."""
        tensors = [inputs[n] for n in self.positions]
        return (
            set(map(sys.getrefcount, tensors)) == _REFERENCES
            and set(map(_use_count, tensors)) == {1}
            and all(storage_Use_Count(storage) == count for storage, count in self.use_counts)
        )


_use_count = methodcaller(tensor_use_count.__name__)


def _references_of_unshared() -> set[int]:
    inputs: Sequence[Any] = [object()]
    tensors = [inputs[n] for n in (0,)]
    return set(map(sys.getrefcount, tensors))


_REFERENCES = _references_of_unshared()
"""Reference count of an object that only one list holds, as ``are_unshared`` sees it."""


def find_consumed_inputs(inputs: Sequence[Any], copied: set[int]) -> ConsumedInputs | None:
    """Return the inputs that a recorded backward may overwrite; None if it must not.

    They are in the pool of one forward, which no other backward has taken over. ``copied`` inputs are not read in
    place.
    """
    storages = {
        n: value.untyped_storage()._cdata
        for n, value in enumerate(inputs)
        if isinstance(value, torch.Tensor) and n not in copied
    }
    memory = {n: saved for n, s in storages.items() if (saved := _saved.get(s)) is not None and s in saved.owners}
    if len(set(memory.values())) != 1:
        return None
    (saved,) = set(memory.values())
    held = Counter(storages[n] for n in memory)
    consumed = ConsumedInputs(saved, tuple(memory), tuple((s, saved.counts[s] + count) for s, count in held.items()))
    return consumed if not saved.is_taken and consumed.are_unshared(inputs) else None


class OutputPool:
    """Pool of CUDA memory, which exists until this object is freed.

    ``torch.cuda.MemPool`` ends the process if it is freed while a capture is active, also after one that failed.
    """

    def __init__(self, device: int) -> None:
        self._key = device, torch.cuda.graph_pool_handle()
        allocate_to_pool(*self._key)
        stop_allocating_to_pool(*self._key)
        release = functools.partial(release_pool, *self._key)
        weakref.finalize(self, release).atexit = False

    @contextlib.contextmanager
    def allocations(self) -> Iterator[None]:
        """Inside the block, this thread allocates from the pool."""
        allocate_to_pool(*self._key)
        try:
            yield
        finally:
            stop_allocating_to_pool(*self._key)
            release_pool(*self._key)


class CudaGraphPool:
    """Private pool of a CUDA graph; ``output_pool`` has the outputs of one in another's pool."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output_pool: OutputPool | None = None) -> None:
        self.graph = graph
        self._output_pool = output_pool

    def lend(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory as a storage that keeps the graph and thus its pool."""
        return torch.as_tensor(_Lent(self.graph, storage), device=storage.device).untyped_storage()

    def check_outputs(self, outputs: Sequence[Any]) -> None:
        """Raise ``OutputInSharedPool`` if an output is in this pool."""
        pool = self.graph.pool()
        segments = [
            (segment["address"], segment["address"] + segment["total_size"])
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) == tuple(pool)
        ]
        for out in tensors_in(outputs):
            if any(start <= out.data_ptr() < end for start, end in segments):
                raise OutputInSharedPool


class _Lent:
    """Describes memory to torch without owning it; keeps the graph in whose pool it is."""

    def __init__(self, graph: torch.cuda.CUDAGraph, storage: torch.UntypedStorage) -> None:
        self.graph = graph
        self.__cuda_array_interface__ = {
            "data": (storage.data_ptr(), False),
            "shape": (storage.nbytes(),),
            "typestr": "|u1",
            "version": 2,
        }


class _CurrentOutputPool(threading.local):
    """Pool for the outputs of the graph that this thread records; None for the graph's own."""

    pool: OutputPool | None = None


_current = _CurrentOutputPool()
_SAME_POOL: AbstractContextManager[None] = contextlib.nullcontext()


@contextlib.contextmanager
def outputs_in(pool: OutputPool | None) -> Iterator[None]:
    """Inside the block, ``output_memory`` allocates from the pool."""
    _current.pool = pool
    try:
        yield
    finally:
        _current.pool = None


def output_memory() -> AbstractContextManager[Any]:
    """Return a context in which a program allocates its outputs."""
    pool = _current.pool
    return _SAME_POOL if pool is None else pool.allocations()


def copied_to_output_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in the memory of outputs; the tensor itself if that is the graph's own."""
    if _current.pool is None:
        return tensor
    with _current.pool.allocations():
        return tensor.clone()
