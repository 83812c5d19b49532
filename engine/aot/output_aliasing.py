"""Output alias analysis: each output is a result, an input, or a regenerated view."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.functional_results import FunctionalResults, TracedValues
from engine.aot.layout_mutation import is_layout_mutated
from engine.aot.node_properties import example_tensors
from engine.aot.storage_geometry import has_internal_overlap, storage_id
from engine.aot.version_counters import shares_version_counter, write_count
from engine.aot.view_replay import describe_view, is_view_from_custom_function
from engine.ir.aot.aot_metadata import OutputAliasInfo, ViewSpec
from engine.ir.fallback import FallbackRequired
from engine.ir.introspection.symbols import has_unbacked_symbols, is_symbolic
from engine.ir.node_values import example_tensor, nodes_in
from engine.ir.traced_frame import GraphInput
from engine.torch_private.functionalization import FunctionalTensor


class OutputAliasAnalyzer:
    """Alias analysis of a graph's outputs, one output at a time.

    ``results`` are the tensors that the functional graph must return; ``roots`` are the detached bases to create.
    ``in_grad_mode``: the call runs in grad mode.
    """

    def __init__(
        self,
        inputs: Sequence[GraphInput],
        args: Sequence[Any],
        by_fake: Mapping[int, Any],
        graph: torch.fx.Graph,
        *,
        in_grad_mode: bool,
    ) -> None:
        self._inputs = inputs
        self._describe_view = functools.partial(describe_view, in_grad_mode=in_grad_mode)
        self._functional_by_fake = by_fake
        self._traced = TracedValues.of(graph)
        self._output_by_fake: dict[int, OutputAliasInfo] = {}
        self._roots_by_id: dict[int, int] = {}
        self._root_fakes: list[torch.Tensor] = []
        self.outputs: list[OutputAliasInfo] = []
        self.roots: list[OutputAliasInfo] = []
        self.results = FunctionalResults(args, self._traced)

    @property
    def detached_results(self) -> frozenset[int]:
        """Results that the caller sees only through detached tensors; no gradient flows back."""
        attached = {p.index for p in self.outputs if p.kind in ("result", "alias of result")}
        return frozenset(position for _, position in self.results.fakes) - attached

    def add(self, node: Any, value: Any) -> None:
        """Analyze one output.

        ``node`` is the node or constant that the traced graph returns; ``value`` is its value in the functional run.
        """
        self.outputs.append(self._analyze_output(repr(node), node, value))

    def analyze_alias_of_inputs(self, node: Any, inputs: Container[int]) -> OutputAliasInfo | None:
        """Return the alias info of an output that is or aliases one of ``inputs``; else None."""
        fake = example_tensor(node)
        if fake is None:
            return None
        if id(fake) not in self._output_by_fake:
            sharing = [n for n in self._inputs_sharing_storage(node, fake) if n in inputs]
            if not sharing:
                return None
            same = next((n for n in sharing if self._inputs[n].fake is fake), None)
            self._output_by_fake[id(fake)] = (
                self._alias_of_input(node.name, fake, sharing)
                if same is None
                else OutputAliasInfo(node.name, "input", same)
            )
        return self._output_by_fake[id(fake)]

    def _inputs_sharing_storage(self, node: torch.fx.Node, fake: torch.Tensor) -> list[int]:
        """Return the inputs that share the tensor's storage, first the one that it is a view of.

        The other inputs may have different storages in the next call.
        """
        sharing = [n for n, i in enumerate(self._inputs) if i.is_tensor and storage_id(i.fake) == storage_id(fake)]
        if len(sharing) < 2:
            return sharing
        source = _input_viewed_by(node, storage_id(fake))

        def is_far(n: int) -> tuple[bool, bool]:
            graph_input = self._inputs[n]
            return not shares_version_counter(graph_input.fake, fake), graph_input.name != source

        return sorted(sharing, key=is_far)

    def _analyze_output(self, name: str, node: Any, value: Any) -> OutputAliasInfo:
        if not isinstance(node, torch.fx.Node):
            return OutputAliasInfo(name, "constant", constant=value)
        if is_symbolic(value):
            return OutputAliasInfo(name, "result", self.results.add(value, value))
        if not isinstance(value, torch.Tensor):
            return OutputAliasInfo(name, "constant", constant=value)
        fake = example_tensor(node)
        if not isinstance(value, FunctionalTensor) or fake is None:
            raise FallbackRequired(AotFallback.PARTIAL_STORAGE_RESULT, f"{name} is a tensor that was not traced")
        if id(fake) not in self._output_by_fake:
            functional = self._output_by_fake[id(fake)] = self._tensor(node, fake, value)
            if functional.kind not in ("input", "result") and has_unbacked_symbols(fake):
                raise FallbackRequired(AotFallback.UNBACKED_VIEW_RETURNED, f"{name} is a view with an unbacked size")
        return self._output_by_fake[id(fake)]

    def _tensor(self, node: torch.fx.Node, fake: torch.Tensor, value: FunctionalTensor) -> OutputAliasInfo:
        name = node.name
        for n, i in enumerate(self._inputs):
            if i.fake is fake:
                return OutputAliasInfo(name, "input", n)
        sharing = self._inputs_sharing_storage(node, fake)
        if sharing:
            return self._alias_of_input(name, fake, sharing)
        return self._alias_of_result(name, fake, value)

    # Outputs that share memory with inputs.

    def _alias_of_input(self, name: str, fake: torch.Tensor, sharing: Sequence[int]) -> OutputAliasInfo:
        base = fake._base
        for n in sharing:
            fake_input = self._inputs[n].fake
            if base is not None and (fake_input is base or fake_input._base is base):
                return self._view_of_input(name, n, fake)
        n = sharing[0]
        fake_input = self._inputs[n].fake
        return self._alias_of_root(
            name, fake, fake_input, lambda root, view: OutputAliasInfo(name, "alias of input", n, view)
        )

    def _view_of_input(self, name: str, n: int, fake: torch.Tensor) -> OutputAliasInfo:
        fake_input = self._inputs[n].fake
        if is_view_from_custom_function(fake_input, fake):
            raise FallbackRequired(
                AotFallback.CUSTOM_FUNCTION_VIEW,
                f"{name} is a view of an input, created by a user-defined autograd.Function",
            )
        view = self._describe_view(name, fake_input, fake)
        if fake_input.requires_grad and has_internal_overlap(fake_input) and not view.is_contiguous_view:
            raise FallbackRequired(
                AotFallback.VIEW_OF_OVERLAPPING_INPUT,
                f"{name} is a view of an input whose elements overlap in memory, and gradients are needed",
            )
        if is_layout_mutated(fake_input, self._inputs[n].example_value):
            return OutputAliasInfo(name, "alias of input", n, replace(view, is_contiguous_view=False))
        return OutputAliasInfo(name, "alias of input", n, view, taken_before_mutation=self._traced.was_mutated(fake))

    def _alias_of_root(
        self,
        name: str,
        fake: torch.Tensor,
        tensor: torch.Tensor,
        make: Callable[[torch.Tensor, ViewSpec], OutputAliasInfo],
    ) -> OutputAliasInfo:
        """Analyze a tensor that shares the memory of ``tensor`` but is not a view of it.

        It is a detached base, or a view of one. Each detached base is created once.
        """
        root = fake if fake._base is None else fake._base
        if id(root) not in self._roots_by_id:
            self.roots.append(self._new_root(name, root, tensor, make))
            self._root_fakes.append(root)
            self._roots_by_id[id(root)] = len(self.roots) - 1
        index = self._roots_by_id[id(root)]
        if root is fake:
            return OutputAliasInfo(name, "root", index)
        return OutputAliasInfo(name, "alias of root", index, self._describe_view(name, root, fake))

    def _new_root(
        self,
        name: str,
        root: torch.Tensor,
        tensor: torch.Tensor,
        make: Callable[[torch.Tensor, ViewSpec], OutputAliasInfo],
    ) -> OutputAliasInfo:
        view = self._describe_view(name, tensor, root)
        if view.detach_kind != "data":
            return make(root, view)
        for n, other_root in enumerate(self._root_fakes):
            if shares_version_counter(other_root, root):
                return OutputAliasInfo(name, "alias of root", n, self._describe_view(name, other_root, root))
        return replace(make(root, view), version_bumps=write_count(root))

    # Outputs in memory that the graph allocated.

    def _alias_of_result(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> OutputAliasInfo:
        maker = self._traced.creators.get(storage_id(fake))
        creator = fake if maker is None else maker.meta["example_value"]
        functional = value if creator is fake else self._functional_by_fake.get(id(creator))
        if not isinstance(functional, FunctionalTensor):
            raise FallbackRequired(
                AotFallback.PARTIAL_STORAGE_RESULT, f"{name} shares memory with a tensor inside an operator"
            )
        if is_view_from_custom_function(creator, fake):
            return self._view_from_custom_function(name, fake, value)
        whole = self.results.result_for(name, creator, functional)
        if fake is creator:
            # An operator may return a view of a tensor that is visible nowhere else.
            return (
                whole if not self._traced.is_view_in_eager(fake) else self._view_of_result(name, whole, creator, fake)
            )
        base = fake._base
        if base is not None and (base is creator or base is creator._base):
            return self._view_of_result(name, whole, creator, fake)
        if base is not None and storage_id(base) != storage_id(creator):
            raise FallbackRequired(
                AotFallback.PARTIAL_STORAGE_RESULT, f"{name} is a view of a tensor inside an operator"
            )
        index = whole.index
        self.results.strides[index] = tuple(creator.stride())
        return self._alias_of_root(
            name, fake, creator, lambda root, view: OutputAliasInfo(name, "alias of result", index, view)
        )

    def _view_from_custom_function(self, name: str, fake: torch.Tensor, value: FunctionalTensor) -> OutputAliasInfo:
        """Analyze a view that a user-defined autograd function returns.

        No other output may share its memory. Gradients enter at the view and flow through the user's function.
        """
        if self._traced.num_outputs[storage_id(fake)] > 1:
            raise FallbackRequired(
                AotFallback.CUSTOM_FUNCTION_VIEW,
                f"{name} is a view that a user-defined autograd.Function returns, and another output shares its memory",
            )
        base = self.results.result_for(name, fake, value)
        return replace(
            self._view_of_result(name, base, fake, fake),
            view=replace(self._describe_view(name, fake, fake), is_from_custom_function=True),
        )

    def _view_of_result(
        self, name: str, base: OutputAliasInfo, creator: torch.Tensor, fake: torch.Tensor
    ) -> OutputAliasInfo:
        self.results.strides[base.index] = tuple(creator.stride())
        return OutputAliasInfo(name, "alias of result", base.index, self._describe_view(name, creator, fake))


def _input_viewed_by(node: torch.fx.Node, storage: int) -> str:
    """Return the name of the input that a tensor is a view of; empty if there is none."""
    *_, first = view_chain(node, storage)
    return first.name if first.op == "placeholder" else ""


def view_chain(node: torch.fx.Node, storage: int) -> Iterator[torch.fx.Node]:
    """Yield a node and then the nodes that its tensor is a view of, within one storage."""
    yield node
    item = None
    while node.op != "placeholder":
        before = [n for n in node.all_input_nodes if storage in map(storage_id, example_tensors(n))]
        if not before:
            return
        same = _operand_of_result(node, item)
        item = node.args[1] if node.target is operator.getitem else None
        node = same if same in before else before[0]
        yield node


def _operand_of_result(node: torch.fx.Node, item: Any) -> torch.fx.Node | None:
    """Return the operand that one result of a multi-output operator is a view of.

    None unless the operator returns one result per operand (``broadcast_tensors``).
    """
    operands = nodes_in((node.args, node.kwargs))
    result = node.meta.get("example_value")
    return (
        operands[item]
        if isinstance(item, int) and isinstance(result, (tuple, list)) and len(result) == len(operands)
        else None
    )
