"""The functional ATen graph of a traced graph, with what it mutated and what its outputs are.

The idea of wrapping every tensor in a functional one while tracing is torch's (functorch's functionalisation, ``FunctionalTensorMode``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx
import torch.fx.traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from engine.graph.composites import keep_composites
from engine.ir.frame import GraphInput
from engine.ir.graph import node_id, origin_of, set_origin
from engine.ir.plan import OutputPlan, Plan


class NotFunctional(Exception):
    """The graph cannot be made functional without changing what a person could notice; the text says why."""


@dataclass(frozen=True)
class Functional:
    """The functional graph, the fake inputs that it was traced with, and the plan to call it by."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    plan: Plan


def functionalize(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], compilation: str) -> Functional:
    """Trace ``graph`` to functional ATen under its own fake mode, without gradients.

    Raises:
        NotFunctional: an input's metadata is mutated, outputs alias in a way that cannot be rebuilt, or a value is of an unknown kind.
    """
    mode = fake_mode_of(inputs)
    with mode, torch.no_grad():
        fakes = tuple(_fresh(i) for i in inputs)
    tracing = _Tracing(_labelled(graph, compilation), fakes)
    with torch.no_grad(), mode, torch.fx.traceback.preserve_node_meta():
        module = make_fx(tracing.run, tracing_mode="real", record_module_stack=False)(*fakes)
    _name_inputs(module, inputs)
    _drop_dead(module.graph)
    module.recompile()
    plan = Plan(tuple(i.name for i in inputs), tuple(tracing.mutated), tuple(tracing.outputs))
    _check_layouts(graph, plan, module)
    return Functional(module, fakes, plan)


def fake_mode_of(inputs: Sequence[GraphInput]) -> FakeTensorMode:
    """The fake mode that the graph was traced under; a new one when no input is a tensor."""
    for i in inputs:
        if isinstance(i.fake, FakeTensor):
            return i.fake.fake_mode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv())


def _fresh(i: GraphInput) -> Any:
    if not isinstance(i.fake, torch.Tensor):
        return i.fake
    if not isinstance(i.fake, FakeTensor) or i.fake.layout != torch.strided or i.fake.is_quantized:
        raise NotFunctional(f"{i.name} is not a plain strided tensor")
    fresh = i.fake.detach()
    if isinstance(i.real, torch.Tensor) and _changed_metadata(i.fake, i.real):
        raise NotFunctional(f"the shape or layout of {i.name} is changed in place")
    return fresh


def _changed_metadata(fake: torch.Tensor, real: torch.Tensor) -> bool:
    """Whether tracing changed an input's sizes, strides or offset (``t_``, ``resize_``, ``set_``): static dimensions tell."""
    if fake.ndim != real.ndim:
        return True
    pairs = [*zip(fake.shape, real.shape, strict=True), *zip(fake.stride(), real.stride(), strict=True)]
    return any(isinstance(a, int) and a != b for a, b in pairs)


def _labelled(graph: torch.fx.GraphModule, compilation: str) -> torch.fx.GraphModule:
    """A copy whose nodes' origins name the nodes themselves, so that what they become points back at them."""
    copied = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    result = copied.graph_copy(graph.graph, values)
    for old, new in values.items():
        if isinstance(new, torch.fx.Node):
            set_origin(new, replace(origin_of(old), nodes=(node_id("fx", compilation, old),)))
    copied.output(result)
    keep_composites(copied)
    return torch.fx.GraphModule(graph, copied)


class _Interpreter(torch.fx.Interpreter):
    """Runs the traced graph so that ATen nodes made meanwhile inherit the running node's origin."""

    def run_node(self, n: torch.fx.Node) -> Any:
        with torch.fx.traceback.set_current_meta(n):
            return super().run_node(n)


class _Tracing:
    """One run of the graph over functional tensors; fills ``mutated`` and ``outputs``."""

    def __init__(self, graph: torch.fx.GraphModule, fakes: tuple[Any, ...]) -> None:
        self._graph = graph
        self._fakes = fakes
        self.mutated: list[int] = []
        self.outputs: list[OutputPlan] = []

    def run(self, *args: Any) -> tuple[Any, ...]:
        """The functional graph's results: new values of mutated inputs, then fresh outputs."""
        self.mutated, self.outputs = [], []
        with FunctionalTensorMode():
            wrapped = [FunctionalTensor.to_functional(a) if isinstance(a, torch.Tensor) else a for a in args]
            results = _Interpreter(self._graph).run(*wrapped)
        new = self._mutations(args, wrapped)
        return (*new, *self._plan_outputs(results, wrapped))

    def _mutations(self, args: Sequence[Any], wrapped: Sequence[Any]) -> list[Any]:
        new = []
        for n, (arg, wrapper) in enumerate(zip(args, wrapped, strict=True)):
            if not isinstance(arg, torch.Tensor):
                continue
            value = unwrap(wrapper)
            if value is arg:
                continue
            if value.shape != arg.shape or value.stride() != arg.stride() or value.dtype != arg.dtype:
                raise NotFunctional(f"the shape or layout of {self._name(n)} is changed in place")
            self.mutated.append(n)
            new.append(value)
        return new

    def _name(self, n: int) -> str:
        return str([p.name for p in self._graph.graph.nodes if p.op == "placeholder"][n])

    def _plan_outputs(self, results: Any, wrapped: Sequence[Any]) -> list[Any]:
        fresh: list[Any] = []
        known = {id(w): n for n, w in enumerate(wrapped) if isinstance(w, torch.Tensor)}
        storages = {storage_key(w): n for n, w in reversed(list(enumerate(wrapped))) if isinstance(w, torch.Tensor)}
        first: dict[int, int] = {}
        for position, result in enumerate(results):
            self.outputs.append(self._plan_output(position, result, known, storages, first, fresh))
        return fresh

    def _plan_output(
        self,
        position: int,
        result: Any,
        known: dict[int, int],
        storages: dict[int, int],
        first: dict[int, int],
        fresh: list[Any],
    ) -> OutputPlan:
        if not isinstance(result, FunctionalTensor):
            if isinstance(result, torch.Tensor):
                raise NotFunctional("an output is a tensor that tracing did not follow")
            if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                fresh.append(result)
                return OutputPlan("fresh", len(fresh) - 1)
            return OutputPlan("constant", value=result)
        if id(result) in known:
            return OutputPlan("input", known[id(result)])
        if id(result) in first:
            return OutputPlan("same", first[id(result)])
        first[id(result)] = position
        base = storages.get(storage_key(result))
        if base is None:
            fresh.append(unwrap(result))
            return OutputPlan("fresh", len(fresh) - 1)
        if self._fakes[base].dtype != result.dtype or result.is_conj() or result.is_neg():
            raise NotFunctional("an output views an input under another dtype")
        return OutputPlan(
            "view",
            base,
            tuple(result.shape),
            tuple(result.stride()),
            result.storage_offset(),
            self._is_detached(position),
        )

    def _is_detached(self, position: int) -> bool:
        """Whether eager's result is no view to autograd (``detach``), told by the traced fake value."""
        node = output_args(self._graph.graph)[position]
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
        return isinstance(value, torch.Tensor) and not value._is_view()


def storage_key(t: Any) -> int:
    """Functional tensors that are views of one another share this."""
    return int(t.elem.untyped_storage()._cdata)


def unwrap(t: FunctionalTensor) -> torch.Tensor:
    """The plain (traced) value of a functional tensor, with pending mutations applied."""
    torch._sync(t)  # type: ignore[attr-defined, no-untyped-call]
    return torch._from_functional_tensor(t.elem)


def output_args(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """What the output node returns, as a flat tuple."""
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _name_inputs(module: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    taken = {n.name for n in module.graph.nodes}
    for node, i in zip(placeholders, inputs, strict=True):
        if node.name != i.name and i.name in taken:
            clash = next(n for n in module.graph.nodes if n.name == i.name)
            clash._rename(f"{i.name}_value")
        node._rename(i.name)
        node.target = node.name
        set_origin(node, replace(origin_of(node), note=i.origin.expr))


def _drop_dead(graph: torch.fx.Graph) -> None:
    """Remove what nothing reads; random operators stay, since they move the generator's state."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("placeholder", "output") or node.users:
            continue
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if (
                torch.Tag.nondeterministic_seeded in target.tags
                or target._schema.is_mutable
                or not target._schema.returns
            ):
                continue
        elif node.is_impure():
            continue
        graph.erase_node(node)


def _check_layouts(graph: torch.fx.GraphModule, plan: Plan, module: torch.fx.GraphModule) -> None:
    """Fresh outputs must have eager's strides, and alias one another as eager's do."""
    returned = output_args(module.graph)[len(plan.mutated) :]
    expected = output_args(graph.graph)
    eager: dict[int, int] = {}
    functional: dict[int, int] = {}
    for o, node in zip(plan.outputs, expected, strict=True):
        if o.kind != "fresh" or not isinstance(node, torch.fx.Node):
            continue
        want = node.meta.get("example_value")
        have = returned[o.index].meta.get("val") if isinstance(returned[o.index], torch.fx.Node) else None
        if not isinstance(want, torch.Tensor) or not isinstance(have, torch.Tensor):
            continue
        if is_view(returned[o.index]) and not want._is_view():
            raise NotFunctional(f"the result {node.name} would be a view, which in eager mode it is not")
        if not _same_layout(want, have):
            raise NotFunctional(f"the result {node.name} would have another layout")
        one = eager.setdefault(want.untyped_storage()._cdata, o.index)
        other = functional.setdefault(have.untyped_storage()._cdata, o.index)
        if one != other:
            raise NotFunctional(
                f"the result {node.name} shares memory with another result in a way that cannot be rebuilt"
            )


def is_view(node: torch.fx.Node) -> bool:
    """Whether the operator at a node returns a view of its argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _same_layout(want: torch.Tensor, have: torch.Tensor) -> bool:
    if want.dtype != have.dtype or len(want.shape) != len(have.shape):
        return False
    sizes = tuple(want.shape)
    pairs = list(zip(want.stride(), have.stride(), strict=True))
    return all(str(a) == str(b) or (isinstance(s, int) and s <= 1) for s, (a, b) in zip(sizes, pairs, strict=True))
