"""Save, repair and roll back the state of an operation's fake tensors.

A failed operation may have resized its result. Fake tensors do not count all writes that real tensors count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.introspection.operator_facts import PYTHON_OPERATORS, facts_of
from engine.torch_private.autograd import unsafe_set_version_counter
from engine.torch_private.dispatch import AutoDispatchBelowAutograd
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.operators import OpOverload, OpOverloadPacket
from engine.torch_private.pytree import tree_leaves
from engine.trace.annotations import Tracer
from engine.trace.emit.operation import Operation, OperationArguments

_UNCOUNTED_IN_INFERENCE_MODE = frozenset(("requires_grad_", "share_memory_", *PYTHON_OPERATORS))
"""Targets that write to their tensor and do not bump its version in inference mode."""

TensorVersion = tuple[int, bool]
"""Version counter and ``requires_grad`` of a tensor."""


@dataclass(frozen=True, slots=True)
class FakeMetadata:
    """Sizes, strides, storage offset and version of a fake tensor before an operation."""

    fake: torch.Tensor
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    version: int

    @classmethod
    def of(cls, fake: torch.Tensor) -> FakeMetadata:
        """Return the metadata that the fake tensor has now."""
        return cls(fake, tuple(fake.shape), fake.stride(), fake.storage_offset(), fake._version)

    def restore(self, tx: Tracer) -> None:
        """Restore the metadata and the version of the fake tensor."""
        current = FakeMetadata.of(self.fake)
        if self._guard_free_layout() != current._guard_free_layout():
            with tx.symbols.fake_mode, torch.no_grad(), AutoDispatchBelowAutograd():
                self.fake.as_strided_(self.shape, self.stride, self.offset)
        if self.fake._version != self.version:
            unsafe_set_version_counter((self.fake,), (self.version,))

    def _guard_free_layout(self) -> list[Any]:
        """Return the layout in a form that can be compared without adding a guard."""
        sizes = (*self.shape, None, *self.stride, self.offset)
        return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


@dataclass(frozen=True, slots=True)
class FakeState:
    """State of the fake arguments of an operation before its run."""

    tensors: list[torch.Tensor]
    """All tensors among the arguments."""
    versions: list[TensorVersion] | None
    """Versions of all tensors; None if one is an inference tensor."""
    written_list: list[tuple[torch.Tensor, int]]
    """Tensors of a list that the operation writes to without counting it, with their versions."""
    resizable: list[FakeMetadata]
    """Metadata of the tensors that the operation may resize."""


def save_fake_state(operation: Operation, arguments: OperationArguments) -> FakeState:
    """Save what an operation may change of its fake arguments."""
    resizable = [
        FakeMetadata.of(t)
        for t in _writable_arguments(operation, arguments)
        if isinstance(t, FakeTensor) and t.layout is torch.strided and not t.is_inference()
    ]
    tensors = list(_tensors_in(arguments.all_fakes))
    return FakeState(tensors, _versions_of(tensors), _written_list(operation.target, arguments.fakes), resizable)


def roll_back(tx: Tracer, state: FakeState) -> None:
    """Restore the fake arguments of an operation that failed."""
    for metadata in state.resizable:
        metadata.restore(tx)


def repair_versions(operation: Operation, arguments: OperationArguments, state: FakeState, result: Any) -> None:
    """Bump the versions of written tensors where fake tensors do not count the write."""
    for fake in _custom_op_writes(operation.target, arguments):
        torch.autograd.graph.increment_version(fake)
    for fake in [fake for fake, version in state.written_list if fake._version == version]:
        torch.autograd.graph.increment_version(fake)  # each view in the list bumps the version once
    if _is_composite_write_in_inference_mode(operation.target, arguments, result) and any(
        m.fake is result and m.version == result._version for m in state.resizable
    ):
        torch.autograd.graph.increment_version(result)


def has_effect(operation: Operation, state: FakeState, result: Any) -> bool:
    """Return True if the operation does more than compute its result, or may do more."""
    own_callable = operation.own_callable
    return (
        (own_callable is not None and own_callable.changes_state)
        or state.versions is None
        or result is None
        or "out" in operation.kwargs  # a composite may write to a view that does not count it
        or state.versions != _versions_of(state.tensors)
    )


def _versions_of(tensors: list[torch.Tensor]) -> list[TensorVersion] | None:
    """Return the version and ``requires_grad`` of each tensor.

    Return None if one is an inference tensor: those have no version counter.
    """
    if True in [t.is_inference() for t in tensors]:
        return None
    return [(t._version, t.requires_grad) for t in tensors]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _writable_arguments(operation: Operation, arguments: OperationArguments) -> Iterator[torch.Tensor]:
    """Yield what the operation may write to; for a user function, all arguments."""
    if operation.own_callable is not None:
        return _tensors_in(arguments.all_fakes)
    writes_first = bool(arguments.fakes) and facts_of(operation.target).writes_first
    written = arguments.keyword_fakes.get("out", arguments.fakes[0] if writes_first else None)
    return iter(()) if written is None else _tensors_in(written)


def _written_list(target: Any, fakes: list[Any]) -> list[tuple[torch.Tensor, int]]:
    """Return the tensors that a ``_foreach_*_`` operator mutates, with their versions."""
    if not fakes or not facts_of(target).counts_list_writes:
        return []
    # Lists that a tensor subclass handles are not counted for real tensors either.
    if not all(isinstance(t, FakeTensor) for t in _tensors_in(fakes)):
        return []
    return [(t, t._version) for t in _tensors_in(fakes[0]) if not t.is_inference()]


def _custom_op_writes(target: Any, arguments: OperationArguments) -> Iterator[torch.Tensor]:
    """Yield the arguments that a custom operator's schema marks as mutated.

    The operator's fake implementation need not mutate them.
    """
    if isinstance(target, OpOverloadPacket):
        target = target.default if "default" in target.overloads() else None
    if not isinstance(target, OpOverload) or target.namespace == "aten":
        return
    for n, argument in enumerate(target._schema.arguments):
        if _is_written(argument):
            positional = arguments.fakes[n] if n < len(arguments.fakes) else None
            fakes = _tensors_in(arguments.keyword_fakes.get(argument.name, positional))
            yield from (t for t in fakes if not t.is_inference())


def _is_composite_write_in_inference_mode(target: Any, arguments: OperationArguments, result: Any) -> bool:
    """Return True if the operation returns the tensor that it writes to, in inference mode.

    Composite operators such as ``absolute_`` count this write for real tensors, but not for fake tensors.
    """
    if not torch.is_inference_mode_enabled() or not isinstance(result, torch.Tensor) or result.is_inference():
        return False
    in_place = bool(arguments.fakes) and target not in _UNCOUNTED_IN_INFERENCE_MODE and facts_of(target).writes_first
    return arguments.keyword_fakes.get("out", arguments.fakes[0] if in_place else None) is result
