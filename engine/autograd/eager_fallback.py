"""Finishes a captured backward eagerly after one of its hooks changed its hooks.

The remaining nodes run one by one. Each runs the hooks that it has at that time, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.autograd import anomaly_mode, graph_ops, hooks
from engine.autograd.build_captured_graph import (
    CAPTURED_VALUES,
    RETURNING_KINDS,
    runs_users_code,
    step_arguments,
    step_target,
)
from engine.autograd.capture import (
    TENSOR_HOOK_KINDS,
    BackwardCapture,
    CapturedValue,
    NodeCall,
    NodeStep,
    map_captured,
    values_in,
)
from engine.autograd.hook_tracking import (
    ActiveBackward,
    PositionedHook,
    RemovedHook,
    active_backward,
    hooks_changed,
    read_hooks,
)
from engine.graph.codegen import EarlyExit
from engine.ir.aot.inlinable_backward import INLINABLE_ATTR

GRADIENT_ARGUMENT: Mapping[str, int] = {
    "function": 0,
    "opaque": 0,
    "python": 3,
    "accumulate": 1,
    "copy_slices_prologue": 0,
}
"""Argument index of the incoming gradients, by the kind of a node's first own step."""


class _Unused(Exception):
    """A value that was not computed because the captured graph did not need it."""


@dataclass(eq=False)
class EagerContinuation:
    """Rest of a backward after the step ``last_step``.

    ``values`` holds the values that are still alive, by the keys of ``build_captured_graph.CAPTURED_VALUES``.
    """

    captured: BackwardCapture
    execution_order: Sequence[int]
    last_step: NodeStep
    values: dict[Any, Any]
    active: ActiveBackward
    checks_anomalies: bool = False
    _results: dict[int, Any] = field(default_factory=dict)
    _sums: dict[CapturedValue, tuple[Any, tuple[CapturedValue, ...]]] = field(default_factory=dict)
    _inlined_calls: set[NodeCall] = field(default_factory=set)
    """Compiled calls that have run; a result without a value is an undefined gradient."""

    def run(self) -> tuple[Any, ...]:
        """Run the rest and return the results of the backward."""
        calls = [self.captured.calls[n] for n in self.execution_order]
        first = calls.index(self.last_step.call)
        self._inlined_calls = {
            c for c in calls[:first] if hasattr(getattr(c.context, "_forward_cls", None), INLINABLE_ATTR)
        }
        self._restore_sums()
        for call in calls[first:]:
            self._run_call(call, self.last_step if call is self.last_step.call else None)
            self._add_terms(call)
        return tuple(
            self._results[n] if n in self._results else None if v is None else self._value(v)
            for n, v in enumerate(self.captured.results)
        )

    # Values.

    def _value(self, value: Any) -> Any:
        """Replace captured values by their current values, also inside lists and tuples.

        Raises:
            _Unused: The captured graph did not compute one of them.
        """
        return map_captured(value, self._lookup, lambda run, args: run(*args))

    def _lookup(self, value: CapturedValue) -> Any:
        if value.terms:
            if value not in self._sums:
                raise _Unused
            return self._sums[value][0]
        for key in (value.source, (value.source, value.index)):
            if key in self.values:
                value_of_key = self.values[key]
                return value_of_key[value.index] if key is value.source and value.index is not None else value_of_key
        if value.step is not None and value.step.call in self._inlined_calls:
            return None
        raise _Unused

    def _restore_sums(self) -> None:
        for key in [k for k in self.values if isinstance(k, tuple) and k[0] == "sum"]:
            _, total, joined = key
            if len(joined) > len(self._sums.get(total, (None, ()))[1]):
                self._sums[total] = (self.values[key], joined)
        for call in self.captured.calls:
            for gradient in call.incoming_gradients or ():
                self._restore_sum(gradient)
        for result in self.captured.results:
            self._restore_sum(result)

    def _restore_sum(self, total: Any) -> None:
        """Restore a sum without additions from its one term that has a value."""
        if not isinstance(total, CapturedValue) or not total.terms or total in self._sums:
            return
        self._sums[total] = (None, ())
        for term in total.terms:
            try:
                self._sums[total] = (self._lookup(term), (term,))
            except _Unused:
                continue

    def _add_terms(self, call: NodeCall) -> None:
        """Add the results of a call to the sums that contain them."""
        for total, (so_far, joined) in list(self._sums.items()):
            for term in total.terms:
                if term in joined or term.step is None or term.step.call is not call:
                    continue
                so_far, joined = graph_ops.add(so_far, self._value(term)), (*joined, term)
            self._sums[total] = (so_far, joined)

    # Nodes.

    def _run_call(self, call: NodeCall, last: NodeStep | None) -> None:
        """Run a node, or only its steps after ``last``."""
        try:
            self._run_steps(call, last)
        except _Unused:
            if any(s.kind == "accumulate" for s in call.steps):
                raise RuntimeError(
                    f"a hook changed the hooks of this backward, and the gradient of {call.name} was not added to .grad"
                ) from None

    def _run_steps(self, call: NodeCall, last: NodeStep | None) -> None:
        node = self._autograd_node(call)
        at = -1 if last is None else call.steps.index(last)
        kind = "" if last is None else last.kind
        gradients = self._incoming_gradients(call)
        before = [self._value_or_none(g) for g in gradients]
        for step in call.steps[: at + 1]:
            if step.kind in TENSOR_HOOK_KINDS:
                before[step.position] = self._value_or_none(CapturedValue(step))
            elif step.kind == "pre_hook":
                before = [self._value_or_none(CapturedValue(step, n)) for n in range(len(before))]
        body = [s for s in call.steps if s.kind not in _HOOK_KINDS]
        if kind in ("", "tensor_pre_hook"):
            coming = list(before)
            before = self._run_tensor_hooks(call, before, last)
            self._note_results(call, coming if body else before)
        if kind in ("", "tensor_pre_hook", "pre_hook"):
            if not body and not _steps_of_kind(call, "pre_hook", "post_hook"):
                return
            before = list(self._run_pre_hooks(call, tuple(before), last))
            _, has_after = read_hooks(node.register_hook)
            outputs = self._run_own_steps(call, body, before, at=-1)
        else:
            has_after = bool(_steps_of_kind(call, "post_hook"))
            outputs = self._run_own_steps(call, body, None, at) if kind != "post_hook" else ()
        self._run_post_hooks(call, last, has_after, tuple(before), outputs)

    def _autograd_node(self, call: NodeCall) -> Any:
        assert self.active.nodes is not None
        return self.active.nodes[self.captured.calls.index(call)].node

    def _incoming_gradients(self, call: NodeCall) -> list[Any]:
        """Return the captured values of a node's incoming gradients.

        A node at the end of the backward without hooks has none; its gradients are results of the backward.
        """
        if call.incoming_gradients is not None:
            return list(call.incoming_gradients)
        gradients = {self.active.input_edges[n][1]: v for n, v in self._requested_gradients(call)}
        return [gradients.get(position) for position in range(max(gradients, default=-1) + 1)]

    def _requested_gradients(self, call: NodeCall) -> list[tuple[int, CapturedValue | None]]:
        """Return (index, value) of the results that are incoming gradients of a node."""
        node = self._autograd_node(call)
        requested = self.active.input_edges
        return [(n, v) for n, v in enumerate(self.captured.results) if n < len(requested) and requested[n][0] is node]

    def _value_or_none(self, value: Any) -> Any:
        if _is_zeros(value):
            return None
        try:
            return self._value(value)
        except _Unused:
            return None

    def _note_results(self, call: NodeCall, gradients: Sequence[Any]) -> None:
        for n, _ in self._requested_gradients(call):
            self._results[n] = gradients[self.active.input_edges[n][1]]

    # Hooks that run before the node.

    def _run_tensor_hooks(self, call: NodeCall, gradients: list[Any], last: NodeStep | None) -> list[Any]:
        steps = _steps_of_kind(call, "tensor_pre_hook")
        positions = list(dict.fromkeys(s.position for s in steps))
        if last is not None:
            positions = positions[positions.index(last.position) :]
            steps_left = steps[steps.index(last) + 1 :]
            for hook in [self._value(s.args[0]) for s in steps_left if s.position == last.position]:
                gradients[last.position] = self._run_hook(call, hooks.tensor_hook, hook, gradients[last.position])
            positions = positions[1:]
        positions += [p for p in range(len(gradients)) if p not in {s.position for s in steps}]
        for position in positions:
            for hook in self._hooks_of_tensor(call, position):
                gradients[position] = self._run_hook(call, hooks.tensor_hook, hook, gradients[position])
        for step in _steps_of_kind(call, "retain_grad"):
            self.values[step] = gradients[step.position] = step_target(step)(step.args[0], gradients[step.position])
        self._retain_gradients(call, gradients)
        return gradients

    def _retain_gradients(self, call: NodeCall, gradients: Sequence[Any]) -> None:
        """Set ``.grad`` of tensors that called ``retain_grad`` during this backward."""
        for node, position, ref in self.active.newly_retained:
            tensor, gradient = ref(), gradients[position] if node is self._autograd_node(call) else None
            if tensor is not None and gradient is not None:
                tensor.grad = gradient.clone() if tensor.grad is None else tensor.grad + gradient

    def _hooks_of_tensor(self, call: NodeCall, position: int) -> list[Any]:
        """Return the current hooks on one incoming gradient of a node."""
        node = self._autograd_node(call)
        leaf = getattr(node, "variable", None)
        registry = self.active.tensor_registries.get((node, position)) if leaf is None else leaf._backward_hooks or {}
        if registry is not None:
            return list(registry.values())
        steps = [s for s in _steps_of_kind(call, "tensor_pre_hook") if s.position == position]
        gone = self._removed_hook_steps()
        return [self._value(s.args[0]) for s in steps if s not in gone]

    def _removed_hook_steps(self) -> set[NodeStep]:
        """Return the steps of removed hooks on non-leaf tensors."""
        return {step for removed in self.active.removed_hooks if (step := self._removed_hook_step(removed)) is not None}

    def _removed_hook_step(self, removed: RemovedHook) -> NodeStep | None:
        """Return the step of a removed hook.

        If one function hooks several tensors, the tensors that still exist identify the step.
        Otherwise the order of registration does.
        """
        steps = [
            s
            for c in self.captured.calls
            for s in _steps_of_kind(c, "tensor_pre_hook")
            if self.active.captured_hooks[s.args[0].index] is removed.hook
            and not hasattr(self._autograd_node(c), "variable")
        ]
        if len(steps) < 2:
            return steps[0] if steps else None
        for node, position in self.active.edges_of_removed(removed):
            for step in steps:
                if self._autograd_node(step.call) is node and step.position == position:
                    return step
        rank, count = self.active.registration_rank(removed)
        if count == len(steps):
            return sorted(steps, key=lambda s: self._autograd_node(s.call)._sequence_nr())[rank]
        return next((s for s in steps if removed.removed_by_itself and s.call.index == removed.node_index), steps[0])

    def _run_pre_hooks(self, call: NodeCall, gradients: tuple[Any, ...], last: NodeStep | None) -> tuple[Any, ...]:
        if last is not None and last.kind == "pre_hook":
            steps_left = call.steps[call.steps.index(last) + 1 :]
            hooks_left = [self._value(s.args[0]) for s in steps_left if s.kind == "pre_hook"]
        else:
            hooks_left = list(read_hooks(self._autograd_node(call).register_prehook)[0].values())
        for hook in hooks_left:
            gradients = self._run_hook(call, hooks.pre_hook, hook, gradients)
        return gradients

    def _run_hook(self, call: NodeCall, run: Callable[..., Any], hook: Any, *values: Any) -> Any:
        return PositionedHook(call.index, run)(hook, *values)

    # The node's own steps, and hooks that run after them.

    def _run_own_steps(
        self, call: NodeCall, body: Sequence[NodeStep], gradients: Sequence[Any] | None, at: int
    ) -> tuple[Any, ...]:
        """Run the node's own steps after index ``at`` of all steps; return the node's outputs."""
        if self.checks_anomalies:
            anomaly_mode.set_running_node(call.index)
        for step in body:
            if call.steps.index(step) <= at:
                continue
            args = step_arguments(step)
            if gradients is not None and step.kind in GRADIENT_ARGUMENT:
                args = self._with_gradients(step, args, gradients)
                gradients = None
            self.values[step] = step_target(step)(*self._check_saved_versions(step, self._value(args)))
        if call.steps and any(s.kind == "accumulate" for s in body):
            self._run_post_accumulate_hooks(call, at)
        maker = _result_step(call, "post_hook")
        outputs = (
            ()
            if maker is None
            else tuple(self._value_or_none(CapturedValue(maker, n)) for n in range(maker.results or 0))
        )
        if self.checks_anomalies and call.index > 0:
            anomaly_mode.check_nan(outputs)
        return outputs

    def _with_gradients(self, step: NodeStep, args: tuple[Any, ...], gradients: Sequence[Any]) -> tuple[Any, ...]:
        argument = GRADIENT_ARGUMENT[step.kind]
        previous = args[argument]
        if not isinstance(previous, (list, tuple)):
            return (*args[:argument], gradients[0], *args[argument + 1 :])
        # An undefined gradient may have been captured as zeros.
        now = [g if g is not None else t if _is_zeros(t) else None for g, t in zip(gradients, previous, strict=True)]
        return (*args[:argument], type(previous)(now), *args[argument + 1 :])

    def _check_saved_versions(self, step: NodeStep, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check the versions of saved tensors, as the captured graph does; return the arguments.

        For a Python function, the versions are appended to the arguments.
        """
        if step.kind not in ("function", "opaque", "python") or "versions" not in self.values:
            return args
        saved = step.args[1] if step.kind == "python" else step.args[1:]
        saved_inputs = {v.index or 0: self._value(v) for v in values_in(saved) if v.source == "inputs"}
        versions, positions = self.values["versions"], tuple(saved_inputs)
        if step.kind == "python":
            is_plain = all(v.step is None for v in values_in(saved))
            return (*args, versions, positions) if saved_inputs and is_plain else args
        graph_ops.check_saved_versions(versions, positions, tuple(saved_inputs.values()))
        return args

    def _run_post_accumulate_hooks(self, call: NodeCall, at: int) -> None:
        steps = _steps_of_kind(call, "post_acc_grad_hook")
        variable = self._autograd_node(call).variable
        if at >= 0 and call.steps[at].kind == "post_acc_grad_hook":
            hooks_left = [self._value(s.args[0]) for s in steps if call.steps.index(s) > at]
        else:
            hooks_left = list((variable._post_accumulate_grad_hooks or {}).values())
        for hook in hooks_left:
            self._run_hook(call, hooks.post_acc_grad_hook, hook, variable)

    def _run_post_hooks(
        self, call: NodeCall, last: NodeStep | None, has_after: bool, before: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> None:
        steps = _steps_of_kind(call, "post_hook")
        if last is not None and last.kind == "post_hook":
            hooks_left = [self._value(s.args[0]) for s in steps[steps.index(last) + 1 :]]
            outputs = tuple(self._value_or_none(CapturedValue(last, n)) for n in range(last.results or 0))
        else:
            hooks_left = list(read_hooks(self._autograd_node(call).register_hook)[0].values())
        if steps and last is not None and last.kind not in ("tensor_pre_hook", "pre_hook"):
            before = tuple(map(self._value_or_none, steps[0].args[2]))
        if not has_after:  # the engine saves inputs for post hooks only if the node had some before it ran
            before = ()
        for hook in hooks_left:
            outputs = self._run_hook(call, hooks.post_hook, hook, outputs, before)
        maker = _result_step(call)
        if maker is not None:
            self.values[maker] = outputs


_HOOK_KINDS = frozenset({*TENSOR_HOOK_KINDS, "pre_hook", "post_hook", "post_acc_grad_hook"})


def _steps_of_kind(call: NodeCall, *kinds: str) -> list[NodeStep]:
    return [s for s in call.steps if s.kind in kinds]


def _result_step(call: NodeCall, *but: str) -> NodeStep | None:
    """Return the last step that produces the node's outputs, without the kinds ``but``."""
    return next((s for s in reversed(call.steps) if s.kind in RETURNING_KINDS and s.kind not in but), None)


def _is_zeros(value: Any) -> bool:
    return isinstance(value, CapturedValue) and value.is_zeros


def make_exit_hook(captured: BackwardCapture, order: Sequence[int], *, checks_anomalies: bool = False) -> EarlyExit:
    """Return the early-exit hook for ``generate_function``.

    After each step that runs user code, it runs the rest here if that code changed hooks.
    """

    def leave(
        node: torch.fx.Node, alive: Sequence[torch.fx.Node]
    ) -> tuple[Callable[[], bool], Callable[..., Any]] | None:
        step = next((k for k in node.meta.get(CAPTURED_VALUES, ()) if isinstance(k, NodeStep)), None)
        if step is None or not runs_users_code(step):
            return None
        keys = [n.meta.get(CAPTURED_VALUES, ()) for n in alive]

        def goes_on(values: Sequence[Any]) -> tuple[Any, ...]:
            results = {k: v for several, v in zip(keys, values, strict=True) for k in several}
            return EagerContinuation(captured, order, step, results, active_backward(), checks_anomalies).run()

        return hooks_changed, goes_on

    return leave
