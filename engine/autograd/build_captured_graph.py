"""Builds the FX graph of a captured backward in eager order.

Inputs are lists of tensors, sizes, scalars, hooks and packed data. Outputs are gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from engine.autograd import anomaly_mode, cpp_engine_adapter, graph_ops, hooks
from engine.autograd.capture import (
    BackwardCapture,
    CapturedValue,
    NodeCall,
    NodeStep,
    map_captured,
    short_name,
    values_in,
)
from engine.autograd.hook_tracking import PositionedHook
from engine.ir.aot.inlinable_backward import INLINABLE_ATTR
from engine.ir.graph_callable import NO_CALLABLE, GraphCallable, graph_callable_of
from engine.ir.node_metadata import NodeProvenance, set_provenance

PLACEHOLDERS = ("inputs", "sizes", "scalars", "hooks", "packed_data")
"""Lists that a captured graph takes as inputs."""

STEP_KIND = "autograd_kind"
"""Key of ``node.meta``: the kind of step that the node computes."""

NODE_CALL = "autograd_call"
"""Key of ``node.meta``: walk index of the autograd node that the node belongs to."""

INPUT_DEVICE = "autograd_device"
"""Key of ``node.meta``: device of an input tensor."""

AUTOGRAD_FUNCTION = "autograd_function"
"""Key of ``node.meta``: autograd.Function class whose backward the node calls."""

CAPTURED_VALUES = "autograd_values"
"""Key of ``node.meta``: keys of the captured values that the node computes.

A key is a step, (source, index), or ("sum", the sum, terms added so far).
"""

USER_CODE_KINDS = frozenset(
    {"tensor_pre_hook", "pre_hook", "post_hook", "post_acc_grad_hook", "unpack_hook", "python", "opaque"}
)
"""Kinds that run user code; other steps are not moved across them."""

EFFECTFUL_KINDS = USER_CODE_KINDS | {"accumulate", "retain_grad", "let_go", "check", "open"}
"""Kinds that have side effects."""


RETURNING_KINDS = frozenset({"function", "opaque", "python", "copy_slices_epilogue", "validate", "post_hook"})
"""Kinds that produce a node's outputs; the last such step of a node is final."""


@dataclass
class CapturedGraphBuilder:
    """Builder of one captured graph.

    ``execution_order``: indexes of the calls in graph order.
    ``checks_anomalies``: add a NaN check of the outputs of each call.
    """

    captured: BackwardCapture
    execution_order: Sequence[int]
    checks_anomalies: bool = False
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    _nodes: dict[Any, Any] = field(default_factory=dict)
    _sums: dict[CapturedValue, list[CapturedValue]] = field(default_factory=dict)
    _summed_terms: dict[CapturedValue, tuple[CapturedValue, ...]] = field(default_factory=dict)
    _has_run_users_code: bool = False

    def build(self) -> torch.fx.GraphModule:
        """Build the graph, with gradients summed in eager's order."""
        for name in PLACEHOLDERS:
            self._nodes[name] = self.graph.placeholder(name)
        calls = [self.captured.calls[n] for n in self.execution_order]
        self._read_inputs(calls)
        self._plan_sums(calls)
        for term in [t for t in self._sums if t.step is None]:
            self._add_to_sums(term, None)
        for call in calls:
            self._add_call(call)
        self.graph.output(tuple(None if v is None else self._value(v) for v in self.captured.results))
        self._eliminate_dead_code()
        self.graph.lint()
        return torch.fx.GraphModule(torch.nn.Module(), self.graph, "CapturedBackward")

    def _read_inputs(self, calls: Sequence[NodeCall]) -> None:
        """Read all lists first and empty ``inputs``: each input is freed after its last use."""
        first: dict[tuple[str, int], NodeCall] = {}
        for call in calls:
            for step in call.steps:
                for value in self._input_values(step.args):
                    first.setdefault((str(value.source), value.index or 0), call)
        for value in self._input_values(self.captured.results):
            first.setdefault((str(value.source), value.index or 0), calls[-1])
        for (source, index), call in sorted(first.items(), key=lambda i: (PLACEHOLDERS.index(i[0][0]), i[0][1])):
            node = self._create_node(operator.getitem, (self._nodes[source], index), f"{source}_{index}", call, "input")
            self._nodes[source, index] = node
            node.meta[CAPTURED_VALUES] = ((source, index),)
            if source == "inputs":
                node.meta["val"] = self.captured.inputs[index]
                node.meta[INPUT_DEVICE] = self.captured.devices[index]
        if any(runs_users_code(s) for c in calls for s in c.steps):
            versions_of = named_target("versions_of", graph_ops.read_versions)
            self._nodes["versions"] = self._create_node(
                versions_of, (self._nodes["inputs"],), "versions", None, "input"
            )
            self._nodes["versions"].meta[CAPTURED_VALUES] = ("versions",)
        let_go = named_target("let_go", graph_ops.release_inputs)
        self._create_node(let_go, (self._nodes["inputs"],), "let_go", None, "let_go")

    def _input_values(self, thing: Any) -> Sequence[CapturedValue]:
        values = []
        for value in values_in(thing):
            parts = value.terms or (value,)
            values += [p for p in parts if p.step is None]
        return values

    def _plan_sums(self, calls: Sequence[NodeCall]) -> None:
        """Find the sums that are read, by term: each term is added once computed, as in eager."""
        read = [v for c in calls for s in c.steps for v in values_in(s.args)]
        read += [v for v in self.captured.results if v is not None]
        for value in read:
            if value.terms and value not in self._nodes:
                self._nodes[value] = None
                for term in value.terms:
                    self._sums.setdefault(term, []).append(value)

    def _add_call(self, call: NodeCall) -> None:
        if self.checks_anomalies:
            self._create_node(
                named_target("reached", anomaly_mode.set_running_node), (call.index,), "reached", call, "check"
            )
        for step in call.steps:
            target, args = step_target(step), tuple(map(self._argument, step_arguments(step)))
            if self._has_run_users_code:
                args = self._add_version_check(step, args)
            self._nodes[step] = node = self._create_node(target, args, step.name, call, step.kind)
            node.meta[CAPTURED_VALUES] = (step,)
            if step.kind == "python":
                node.meta[AUTOGRAD_FUNCTION] = getattr(type(call.context), "_forward_cls", None)
            self._has_run_users_code = self._has_run_users_code or runs_users_code(step)
        if self.checks_anomalies:
            self._add_nan_check(call)
        for term in [t for t in self._sums if t.step is not None and t.step.call is call]:
            self._add_to_sums(term, call)

    def _add_nan_check(self, call: NodeCall) -> None:
        """Check the outputs of a call for NaN.

        Eager has no node for the graph root unless several gradients start there.
        """
        makers = [s for s in call.steps if s.kind in RETURNING_KINDS]
        if not makers or (call.index == 0 and (makers[-1].results or 0) < 2):
            return
        outputs = [self._value(CapturedValue(makers[-1], n)) for n in range(makers[-1].results or 0)]
        self._create_node(
            named_target("look_for_nan", anomaly_mode.check_nan), (outputs,), "look_for_nan", call, "check"
        )

    def _add_version_check(self, step: NodeStep, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check that the saved tensors of a step are unchanged if user code ran before it.

        Eager makes this check when it unpacks a saved tensor.
        """
        if step.kind not in ("function", "opaque", "python"):
            return args
        saved = step.args[1] if step.kind == "python" else step.args[1:]
        saved_inputs = {v.index: v for v in values_in(saved) if v.source == "inputs"}
        if not saved_inputs:
            return args
        versions, positions = self._nodes["versions"], tuple(saved_inputs)
        if step.kind == "python":
            return (*args, versions, positions) if all(v.step is None for v in values_in(saved)) else args
        unchanged = named_target("unchanged", graph_ops.check_saved_versions)
        self._create_node(
            unchanged,
            (versions, positions, tuple(map(self._value, saved_inputs.values()))),
            "unchanged",
            step.call,
            "check",
        )
        return args

    def _add_to_sums(self, term: CapturedValue, call: NodeCall | None) -> None:
        """Add a term to each sum that waits for it; the first term is the sum so far."""
        for whole in self._sums.pop(term):
            value, so_far = self._value(term), self._nodes[whole]
            self._summed_terms[whole] = joined = (*self._summed_terms.get(whole, ()), term)
            if so_far is None:
                self._nodes[whole] = value
                continue
            self._nodes[whole] = node = self._create_node(
                named_target("add", graph_ops.add), (so_far, value), "add", call, "add"
            )
            node.meta[CAPTURED_VALUES] = (("sum", whole, joined),)

    def _argument(self, value: Any) -> Any:
        return map_captured(value, self._value, lambda run, args: self._create_node(run, args, "size", None, "size"))

    def _value(self, value: CapturedValue) -> Any:
        step = value.step
        if step is None:
            return self._nodes[value.source, value.index]
        if value.terms:
            return self._nodes[value]
        if value.index is None:
            return self._nodes[value.source]
        key = (value.source, value.index)
        if key not in self._nodes:
            node = self._nodes[value.source]
            # Take items right after their list is computed: an unused list must not hold the other items.
            with self.graph.inserting_after(node):
                self._nodes[key] = self._create_node(
                    operator.getitem, (node, value.index), f"{step.name}_{value.index}", step.call, "item"
                )
                self._nodes[key].meta[CAPTURED_VALUES] = (key,)
        return self._nodes[key]

    def _create_node(
        self, target: Any, args: tuple[Any, ...], name: str, call: NodeCall | None, kind: str
    ) -> torch.fx.Node:
        node = self.graph.create_node("call_function", target, args, {}, name=short_name(name))
        node.meta[STEP_KIND] = kind
        set_provenance(node, origin_of_call(call))
        if call is not None:
            node.meta[NODE_CALL] = call.index
        return node

    def _eliminate_dead_code(self) -> None:
        """Remove nodes without users and side effects."""
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users and node.meta[STEP_KIND] not in EFFECTFUL_KINDS:
                self.graph.erase_node(node)


def named_target(
    name: str, run: Callable[..., Any], *, changes_state: bool = False, is_python: bool = False
) -> GraphCallable:
    """Return a callable with the name that the graph shows."""
    target = GraphCallable(short_name(name), run, changes_state=changes_state, is_python=is_python)
    target.__module__ = "autograd"
    return target


def step_target(step: NodeStep) -> GraphCallable:
    """Return the call target that computes a step."""
    if step.kind in ("function", "opaque"):
        return named_target(step.name, cpp_engine_adapter.formula(step.name))
    if step.kind == "validate":
        return named_target(step.name, graph_ops.ValidateOutputs(step.call.name, step.args[2]))
    if step.kind == "retain_grad":
        assert cpp_engine_adapter.CALL_CPP_TENSOR_PRE_HOOK is not None
        return named_target(step.kind, cpp_engine_adapter.CALL_CPP_TENSOR_PRE_HOOK)
    if step.kind == "accumulate":
        return named_target(step.name, graph_ops.accumulate_grad, changes_state=True)
    if step.kind == "python" or step.kind in hooks.HOOK_RUNNERS:
        run = PositionedHook(step.call.index, hooks.HOOK_RUNNERS.get(step.kind, hooks.python_backward))
        return named_target(step.name, run, is_python=True)
    return named_target(step.name, getattr(graph_ops, step.kind))


def step_arguments(step: NodeStep) -> tuple[Any, ...]:
    """Return the arguments of a step's call target."""
    return step.args[:2] if step.kind == "validate" else step.args


def runs_users_code(step: NodeStep) -> bool:
    """Return True if a step may change saved tensors or hooks."""
    if step.kind == "python" and hasattr(getattr(step.call.context, "_forward_cls", None), INLINABLE_ATTR):
        return False
    return step.kind in USER_CODE_KINDS


def origin_of_call(call: NodeCall | None) -> NodeProvenance:
    """Return the provenance of a graph node for display."""
    if call is None:
        return NodeProvenance(note="generated: reads the list arguments")
    return NodeProvenance(note=f"{short_name(call.name)} (NodeCall {call.index})")


def node_call_index(node: torch.fx.Node) -> int | None:
    """Return the walk index of a graph node's autograd node; None if the node is generated."""
    return node.meta.get(NODE_CALL)


def captured_node_callable(node: torch.fx.Node) -> Any:
    """Return the function in a node's ``GraphCallable``, or the target of another node."""
    called = graph_callable_of(node)
    return node.target if called is NO_CALLABLE else called.fn
