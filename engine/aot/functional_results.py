"""Results that a functional graph must return so that its outputs can be regenerated."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import output_args
from engine.aot.storage_geometry import is_dense, offset_of, storage_id, with_hint_sizes
from engine.aot.version_counters import write_count
from engine.ir.aot.aot_metadata import IntOrSymInt, OutputAliasInfo, is_same_layout, is_same_size
from engine.ir.fallback import FallbackRequired
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.introspection.symbols import symbols_in
from engine.ir.node_values import example_tensor, tensors_in
from engine.ir.static_sizes import static_sizes
from engine.torch_private.dispatch import DisablePythonDispatcher, disable_current_modes
from engine.torch_private.functionalization import FunctionalTensor, from_functional_tensor, sync_functional

_MUTATING_THEIR_RESULT = frozenset({"linear", "matmul"})
"""Operators whose native form mutates its own result; the form for fake tensors may not."""


@dataclass(frozen=True, slots=True)
class TracedValues:
    """Storages and versions of the values of a traced graph.

    The fake values have eager's aliasing: storages, ``_base`` and layouts.
    """

    creators: Mapping[int, torch.fx.Node]
    """By storage, the node that created the first tensor over it."""
    num_outputs: Mapping[int, int]
    """By storage, the number of outputs over it; one that is returned twice counts once."""
    first_versions: Mapping[int, int]
    """By id of a fake value, its version when it was created."""
    factory_versions: Mapping[int, int]
    """Versions of results of factory calls, which count as writes over fake tensors only."""

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> TracedValues:
        """Collect the values of a graph."""
        creators: dict[int, torch.fx.Node] = {}
        for node in graph.nodes:
            value = example_tensor(node) if node.op not in ("placeholder", "output") else None
            if value is not None:
                creators.setdefault(storage_id(value), node)
        storages = {id(f): storage_id(f) for n in output_args(graph) if (f := example_tensor(n)) is not None}
        versioned = [n for n in graph.nodes if "version" in n.meta]
        return cls(
            creators,
            Counter(storages.values()),
            {id(n.meta.get("example_value")): n.meta["version"] for n in versioned},
            {id(n.meta["example_value"]): n.meta["version"] for n in versioned if not n.all_input_nodes},
        )

    def is_view_in_eager(self, fake: torch.Tensor) -> bool:
        """Return True if eager's tensor is a view.

        Once a trace has symbols, operators run in torch's Python forms, which return views where the native ones do
        not.
        """
        if not fake._is_view():
            return False
        eager = self._result_at_hint_sizes(fake)
        return eager is None or eager._is_view()

    def version_in_eager(self, fake: torch.Tensor) -> int:
        """Return how often eager mutates a tensor, including inside the operator that creates it."""
        writes = write_count(fake)
        maker = self.creators.get(storage_id(fake))
        if maker is None or facts_of_node(maker).name not in _MUTATING_THEIR_RESULT:
            return writes - self.factory_versions.get(id(fake), 0)
        eager = self._result_at_hint_sizes(fake)
        return writes if eager is None else eager._version + writes - self.first_versions.get(id(fake), writes)

    def _result_at_hint_sizes(self, fake: torch.Tensor) -> torch.Tensor | None:
        """Return what the operator that created a tensor returns at the hinted sizes, if known."""
        maker = self.creators.get(storage_id(fake))
        if maker is None or maker.meta["example_value"] is not fake:
            return None
        return _run_at_hint_sizes(maker)

    def was_mutated(self, fake: torch.Tensor) -> bool:
        """Return True if a tensor was mutated after it was created."""
        return not fake.is_inference() and self.first_versions.get(id(fake), fake._version) != fake._version


class FunctionalResults:
    """The results that the functional graph must return, created as outputs need them."""

    def __init__(self, args: Sequence[Any], traced: TracedValues) -> None:
        self._traced = traced
        self._storages = {storage_id(a) for a in tensors_in(args)}
        """Storages of inputs and of earlier results, which no other result may share."""
        self._by_fake: dict[int, OutputAliasInfo] = {}
        self.values: list[Any] = []
        self.tensors: list[Any] = []
        """For each result, the functional tensor it is the value of, or the non-tensor itself."""
        self.fakes: list[tuple[torch.Tensor, int]] = []
        """Traced fake values that the results hold, each with the position of its result."""
        self.write_counts: list[tuple[int, int]] = []
        self.non_views: set[int] = set()
        """Results that are not views."""
        self.strides: dict[int, tuple[IntOrSymInt, ...]] = {}
        """Strides of results that views are created from, or that may have others than in eager."""

    def add(self, value: Any, source: Any) -> int:
        """Add a result with its functional tensor or non-tensor; return its position."""
        self.values.append(value)
        self.tensors.append(source)
        return len(self.values) - 1

    def result_for(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> OutputAliasInfo:
        """Return the result that holds this tensor in eager's layout; it is created only once."""
        if id(fake) not in self._by_fake:
            self._by_fake[id(fake)] = self._new_result(name, fake, value)
        return self._by_fake[id(fake)]

    def _new_result(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> OutputAliasInfo:
        plain = self._in_layout_of(name, fake, value)
        self._storages.add(storage_id(plain))
        index = self.add(plain, value)
        self.fakes.append((fake, index))
        if not _is_stride_certain(plain, fake):
            self.strides[index] = tuple(fake.stride())
        if not self._traced.is_view_in_eager(fake):
            self.non_views.add(index)
        if not fake.is_inference():
            self.write_counts.append((index, self._traced.version_in_eager(fake)))
        return OutputAliasInfo(name, "result", index)

    def _in_layout_of(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> torch.Tensor:
        """Return a value in the layout of eager's tensor, in a storage that it does not share.

        Raises:
            FallbackRequired: it has another dtype or no such layout.
        """
        sync_functional(value)
        plain: torch.Tensor = from_functional_tensor(value.elem)
        if plain.dtype != fake.dtype or plain.is_conj() or plain.is_neg():
            raise FallbackRequired(
                AotFallback.RESULT_REPRESENTATION_DIFFERS,
                f"{name} would have another dtype than in eager, or would be lazily conjugated",
            )
        if not _covers_storage(fake):
            raise FallbackRequired(AotFallback.PARTIAL_STORAGE_RESULT, f"{name} covers only a part of its storage")
        if not is_same_layout(plain, fake):
            empty = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            plain = torch.ops.aten.copy.default(empty, plain)
        elif storage_id(plain) in self._storages or not _covers_storage(plain):
            plain = plain.clone()
        if not is_same_layout(plain, fake):
            raise FallbackRequired(
                AotFallback.RESULT_REPRESENTATION_DIFFERS, f"{name} would have other strides than in eager"
            )
        return plain


def _is_stride_certain(plain: torch.Tensor, fake: torch.Tensor) -> bool:
    """Return True if compiled code returns ``plain`` with the strides of ``fake``.

    The two have the same layout. In-place operators preserve strides in dimensions of size 1, their functional forms
    may not. Kernels use no symbol that only a stride has, and write results with symbolic sizes without gaps.
    """
    if not all(map(is_same_size, plain.stride(), fake.stride())):
        return False
    if not fake._has_symbolic_sizes_strides:
        return True
    at_hints = with_hint_sizes(fake)
    return symbols_in(list(fake.stride())) <= symbols_in(list(fake.shape)) and (
        at_hints._has_symbolic_sizes_strides or is_dense(at_hints)
    )


def _run_at_hint_sizes(node: torch.fx.Node) -> torch.Tensor | None:
    """Return a meta tensor: what a torch operator returns for operands with the hinted sizes.

    None if that is not known.
    """
    is_method = node.op == "call_method"
    if not is_method and getattr(node.target, "__module__", "") not in ("_operator", "torch", "torch._C._nn"):
        return None
    at_hints = {n: with_hint_sizes(f) for n in node.all_input_nodes if (f := example_tensor(n)) is not None}
    if len(at_hints) < len(node.all_input_nodes) or any(h._has_symbolic_sizes_strides for h in at_hints.values()):
        return None
    with disable_current_modes(), DisablePythonDispatcher(), torch.no_grad():
        inputs = {
            n: torch.empty_strided(h.shape, h.stride(), dtype=h.dtype, device="meta") for n, h in at_hints.items()
        }
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), inputs.__getitem__)
        call: Any = operator.methodcaller(str(node.target), *args[1:], **kwargs) if is_method else node.target
        try:
            result = call(args[0]) if is_method else call(*args, **kwargs)
        except RuntimeError:  # the layout of an operand has changed since
            return None
    return result if isinstance(result, torch.Tensor) else None


def _covers_storage(t: torch.Tensor) -> bool:
    """Return True if a tensor covers its whole storage, or if its sizes are unknown."""
    sizes = static_sizes((t.untyped_storage().nbytes(), t.numel(), offset_of(t)))
    if sizes is None:
        return True
    num_bytes, numel, _ = sizes
    return bool(t.storage_offset() == 0 and (numel == 0 or num_bytes <= _span_in_elements(t) * t.element_size()))


def _span_in_elements(t: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
