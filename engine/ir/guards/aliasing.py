"""Guards between values: same or distinct objects, storage overlap, size relations."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from itertools import compress
from typing import Any, ClassVar

import torch

from engine.ir.guards.base import Guard, RelationalGuard, ValueCode, user_expr
from engine.ir.introspection.tensor_spec import is_spec
from engine.ir.sources.base import Source
from engine.records.guards import Fix
from engine.torch_private.torch_function import DisableTorchFunction

SHARED_TENSORS = "shared tensors"
"""Name under which it is noted that other sources reach one tensor than before."""


class SameObject(Guard):
    """Guard that two sources reach the same object (``expect_same``) or different objects."""

    kind: ClassVar[str] = "same object"
    rank: ClassVar[int] = 30
    is_relational: ClassVar[bool] = True
    reports_changed_dims: ClassVar[bool] = True
    message: ClassVar[str] = "{value} is {actual}; the compiled code expects {expected}."

    other: Source
    expect_same: bool

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.source, self.other)

    @property
    def same_object(self) -> Source | None:
        return self.other if self.expect_same else None

    def condition(self, code: ValueCode) -> str:
        return f"{code.expr} is {'' if self.expect_same else 'not '}{code.others[0]}"

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return (value is other_values[0]) is self.expect_same

    def expected_text(self) -> str:
        return f"{'the same object as' if self.expect_same else 'a different object than'} {user_expr(self.other)}"

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        return (
            f"{'the same object as' if value is other_values[0] else 'a different object than'} {user_expr(self.other)}"
        )

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if self.expect_same:
            return (Fix(f"Pass the same object as {self.user_expr} and {user_expr(self.other)} in every call."),)
        text = f"Pass a copy, so that {self.user_expr} and {user_expr(self.other)} are never the same object"
        return self.fix_by_method(text, "clone()")

    @property
    def dynamic_expr(self) -> str:
        return SHARED_TENSORS

    def changed_dims(self, value: Any, other_values: tuple[Any, ...] = ()) -> frozenset[int]:
        return frozenset((-1,)) if torch.is_tensor(value) and not self.test(value, other_values) else frozenset()


class NoAliasing(RelationalGuard):
    """Base of no-aliasing guards; ``are_disjoint`` is called with all their values at once."""

    rank: ClassVar[int] = 80
    copy_purpose: ClassVar[str]

    @staticmethod
    def are_disjoint(*values: Any) -> bool:
        """Return True if the values do not alias in the way that the compiled code excludes."""
        raise NotImplementedError

    def condition(self, code: ValueCode) -> str:
        return code.call(self.are_disjoint, self.are_disjoint.__name__, code.expr, *code.others)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return self.are_disjoint(value, *other_values)

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        return self.fix_by_method(f"Pass a copy of one of them, so that {self.copy_purpose}", "clone()")


def has_disjoint_storage(tensor: Any, *other_values: Any) -> bool:
    """Return True if the first tensor's storage shares no byte with the others' storages.

    Several storages may use the memory of one array, so addresses are compared.
    """
    start, end, storage = _storage_range(tensor)
    for other_value in other_values:
        first, last, its = _storage_range(other_value)
        if its == storage or (first < end and start < last):
            return False
    return True


def first_are_distinct(count: int, *values: Any) -> bool:
    """Return True if each of the first ``count`` objects differs from all others."""
    if len(set(map(id, values))) == len(values):
        return True
    ids = list(map(id, values))
    first = set(ids[:count])
    return len(first) == count and first.isdisjoint(ids[count:])


def mutated_storages_are_disjoint(num_mutated: int, *tensors: Any) -> bool:
    """Return True if none of the first ``num_mutated`` tensors shares a byte with another one.

    The other tensors may share memory with each other.
    """
    ranges = _memory_ranges(tensors, num_mutated)
    if ranges is not None and _are_disjoint(*ranges):
        return True
    storages: dict[int, bool] = {}
    spans: list[tuple[int, int, bool]] = []
    for n, tensor in enumerate(tensors):
        start, end, storage = _storage_range(tensor)
        is_written = n < num_mutated
        if storage in storages and (is_written or storages[storage]):
            return False
        storages[storage] = is_written
        if start < end:
            spans.append((start, end, is_written))
    reach = reach_of_written = 0
    for start, end, is_written in sorted(spans):
        if start < reach_of_written or (is_written and start < reach):
            return False
        reach = max(reach, end)
        if is_written:
            reach_of_written = end
    return True


def _memory_ranges(tensors: Iterable[Any], num_mutated: int) -> tuple[list[int], list[int]] | None:
    """Return where the storages of tensors start and end; None if one has no memory.

    A storage that several of the other tensors share, as gradients in one buffer do, is listed once.
    """
    with DisableTorchFunction():
        try:
            storages = list(map(torch.Tensor.untyped_storage, tensors))
            starts = list(map(torch.UntypedStorage.data_ptr, storages))
            sizes = list(map(torch.UntypedStorage.nbytes, storages))
        except (RuntimeError, TypeError):  # fake tensors and tensor specs
            return None
    if not (all(starts) and all(sizes)):
        return None
    ranges = list(zip(starts, map(operator.add, starts, sizes), strict=True))
    ranges[num_mutated:] = set(ranges[num_mutated:])
    return [start for start, _ in ranges], [end for _, end in ranges]


def _are_disjoint(starts: list[int], ends: list[int]) -> bool:
    """Return True if each range ends before the next one in order starts."""
    return all(map(operator.le, sorted(ends), sorted(starts)[1:]))


class MutatedStorageCheck:
    """Checks storage overlap; finds only the storages of tensors that are new at each call.

    A training step has hundreds of tensors, and finding each storage costs more than all its other guards. Only its
    batch and its gradients are new at each call.
    """

    __slots__ = ("_last", "_num_mutated")

    def __init__(self, num_mutated: int) -> None:
        self._num_mutated = num_mutated
        self._last: tuple[list[weakref.ref[Any]], _StableTensors | None] = [], None
        """The tensors of the last check of all storages.

        Beside them, those among them that were also in the check before, once there are two.
        """

    def __call__(self, *tensors: Any) -> bool:
        references, stable = self._last
        try:
            with DisableTorchFunction():
                pointers = list(map(torch.Tensor.data_ptr, tensors))
        except RuntimeError:  # fake tensors have no address
            return mutated_storages_are_disjoint(self._num_mutated, *tensors)
        same = list(map(operator.is_, map(operator.call, references), tensors))
        if stable is not None:
            are_stable, are_new, addresses, starts, ends = stable
            if pointers == addresses and all(same):
                return True
            if all(compress(same, are_stable)) and list(compress(pointers, are_stable)) == addresses:
                if len(addresses) == len(tensors):
                    return True
                ranges = _memory_ranges(compress(tensors, are_new), sum(are_new[: self._num_mutated]))
                if ranges is not None and _are_disjoint(starts + ranges[0], ends + ranges[1]):
                    return True
        is_disjoint = mutated_storages_are_disjoint(self._num_mutated, *tensors)
        ranges = _memory_ranges(compress(tensors, same), sum(same[: self._num_mutated]))
        is_repeated = is_disjoint and stable is None and len(same) == len(tensors)
        stable = None
        if is_repeated and ranges is not None and all(pointers):  # an empty tensor has no address
            stable = same, list(map(operator.not_, same)), list(compress(pointers, same)), *ranges
        self._last = list(map(weakref.ref, tensors)), stable
        return is_disjoint


_StableTensors = tuple[list[bool], list[bool], list[int], list[int], list[int]]
"""Flags of the tensors that did not change, and of the others.

Then the addresses of the former, and where their storages start and end.
"""


class DisjointStorage(NoAliasing):
    """Guard that this tensor shares no storage with the others.

    Needed only if a mutation of it would be visible through one of them. With ``num_mutated`` > 1 the guard
    covers that many tensors, this one first: one guard for all tensors that a call mutates.
    """

    kind: ClassVar[str] = "no overlap"
    copy_purpose: ClassVar[str] = "a write to one does not change the other"
    message: ClassVar[str] = (
        "Memory is {actual}; the compiled code writes to one of the tensors and expects no storage overlap."
    )
    are_disjoint = staticmethod(has_disjoint_storage)

    num_mutated: int = 1

    def condition(self, code: ValueCode) -> str:
        if self.num_mutated == 1:
            return super().condition(code)
        check = MutatedStorageCheck(self.num_mutated)
        return code.call(check, "mutated_storages_are_disjoint", code.expr, *code.others)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return (
            mutated_storages_are_disjoint(self.num_mutated, value, *other_values)
            if self.num_mutated > 1
            else super().test(value, other_values)
        )

    def expected_text(self) -> str:
        return "no memory shared with " + ", ".join(user_expr(o) for o in self.others)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        named = [(user_expr(o), t) for o, t in zip(self.sources, (value, *other_values), strict=True)]
        for n, (name, tensor) in enumerate(named[: self.num_mutated]):
            for other_name, its in named[n + 1 :]:
                if not has_disjoint_storage(tensor, its):
                    return f"shared by {name} and {other_name}"
        return "no memory shared"


class DistinctObjects(NoAliasing):
    """Guard that the first ``count`` objects differ from each other and from the rest.

    Needed only if an attribute set on one would be found on another, or if they are dict keys.
    """

    kind: ClassVar[str] = "distinct"
    copy_purpose: ClassVar[str] = "they are different objects"

    count: int

    def condition(self, code: ValueCode) -> str:
        return code.call(first_are_distinct, "first_are_distinct", str(self.count), code.expr, *code.others)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return first_are_distinct(self.count, value, *other_values)

    def expected_text(self) -> str:
        return "a different object than each of " + ", ".join(user_expr(o) for o in self.others)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        first: dict[int, int] = {}
        for n, argument in enumerate((value, *other_values)):
            if (first_index := first.setdefault(id(argument), n)) < min(n, self.count):
                return f"{user_expr(self.sources[n])} and {user_expr(self.sources[first_index])} are the same object"
        return "all are different objects"

    def failure_message(self, actual: str) -> str:
        return f"{actual[0].upper()}{actual[1:]}; the compiled code expects different objects."


def _storage_id(tensor: Any) -> int:
    if is_spec(tensor):
        return id(tensor)
    with DisableTorchFunction():
        return int(torch.Tensor.untyped_storage(tensor)._cdata)


def _storage_range(tensor: Any) -> tuple[int, int, int]:
    """Return start address, end address and id of a tensor's storage.

    Start and end are 0 for a tensor without memory.
    """
    if is_spec(tensor):
        return 0, 0, id(tensor)
    with DisableTorchFunction():
        storage = torch.Tensor.untyped_storage(tensor)
    try:
        start = storage.data_ptr()
    except RuntimeError:  # Fake tensors have no data pointer.
        start = 0
    return start, start + (storage.nbytes() if start else 0), storage._cdata


class SharedStorage(RelationalGuard):
    """Guard that tensors share one storage of at least ``min_storage_bytes`` bytes.

    ``byte_offsets`` holds each tensor's start in that storage.
    """

    kind: ClassVar[str] = "shared memory"
    rank: ClassVar[int] = 80
    message: ClassVar[str] = (
        "The tensors share memory as {actual}; the compiled code writes to it and expects {expected}."
    )
    advice: ClassVar[str] = "Pass tensors that share memory in the same way in every call, or pass copies."

    byte_offsets: tuple[int, ...]
    min_storage_bytes: int = 0

    def condition(self, code: ValueCode) -> str:
        offsets = code.call(byte_offsets_in_storage, "starts_in_one", code.expr, *code.others)
        text = f"{offsets} == {self.byte_offsets!r}"
        return (
            f"{text} and {code.call(_storage_bytes, 'bytes_held', code.expr)} >= {self.min_storage_bytes}"
            if self.min_storage_bytes
            else text
        )

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return byte_offsets_in_storage(value, *other_values) == self.byte_offsets and (
            not self.min_storage_bytes or _storage_bytes(value) >= self.min_storage_bytes
        )

    def expected_text(self) -> str:
        return self._layout_text(self.byte_offsets, f"at least {self.min_storage_bytes}")

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        return self._layout_text(byte_offsets_in_storage(value, *other_values), str(_storage_bytes(value)))

    def _layout_text(self, starts: tuple[int | None, ...], layout: str) -> str:
        names = map(user_expr, self.sources)
        pairs = zip(names, starts, strict=True)
        text = ", ".join(f"{n} in another storage" if s is None else f"{n} from byte {s}" for n, s in pairs)
        return f"{text} of {layout}" if self.min_storage_bytes else text


def byte_offsets_in_storage(first: Any, *other_values: Any) -> tuple[int | None, ...]:
    """Return each tensor's start byte in the first one's storage; None for another storage."""
    storage = _storage_id(first)
    return (_start_byte(first), *(_start_byte(t) if _storage_id(t) == storage else None for t in other_values))


def _storage_bytes(tensor: Any) -> int:
    with DisableTorchFunction():
        return int(torch.Tensor.untyped_storage(tensor).nbytes())


def _start_byte(tensor: Any) -> int:
    with DisableTorchFunction():
        return int(torch.Tensor.storage_offset(tensor)) * int(torch.Tensor.element_size(tensor))
