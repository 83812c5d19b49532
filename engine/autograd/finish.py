"""Ends a backward whose hooks one of its own hooks changed: node by node, each with the hooks that it has when its turn comes, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.autograd import anomaly, hooks, targets
from engine.autograd.capture import TENSOR_HOOKS, Call, Captured, Step, Value, values_in
from engine.autograd.program import RETURNING, VALUES, arguments_of, runs_users_code, target_of
from engine.autograd.registries import At, Removed, Running, hooks_of, is_changed, running_here
from engine.autograd.sizes import Arithmetic
from engine.graph.straight import Leave
from engine.ir.inlined import INLINED

TAKES_GRADIENTS: Mapping[str, int] = {"function": 0, "opaque": 0, "python": 3, "accumulate": 1, "slices_before": 0}
"""By kind of a node's first step that computes: which of its arguments are the gradients that came in."""


class _Gone(Exception):
    """A value that nothing needs."""


@dataclass(eq=False)
class Rest:
    """What is left of a backward after the step ``last``. ``values``: those that are still needed, by ``program.VALUES``."""

    captured: Captured
    order: Sequence[int]
    last: Step
    values: dict[Any, Any]
    running: Running
    is_watched: bool = False
    _results: dict[int, Any] = field(default_factory=dict)
    _sums: dict[Value, tuple[Any, tuple[Value, ...]]] = field(default_factory=dict)
    _inlined: set[Call] = field(default_factory=set)
    """Compiled calls that have run: of what they returned, there is a value for all but what is undefined."""

    def run(self) -> tuple[Any, ...]:
        """The backward's results."""
        calls = [self.captured.calls[n] for n in self.order]
        first = calls.index(self.last.call)
        self._inlined = {c for c in calls[:first] if hasattr(getattr(c.owner, "_forward_cls", None), INLINED)}
        self._begin_sums()
        for call in calls[first:]:
            self._call(call, self.last if call is self.last.call else None)
            self._join(call)
        return tuple(
            self._results[n] if n in self._results else None if v is None else self._value(v)
            for n, v in enumerate(self.captured.results)
        )

    # Values.

    def _value(self, thing: Any) -> Any:
        """Values replaced by what they are now.

        Raises:
            _Gone: one of them was needed by nothing that the captured graph does.
        """
        if isinstance(thing, Value):
            return self._found(thing)
        if isinstance(thing, Arithmetic):
            return thing.run(*map(self._value, thing.args))
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(self._value, thing))
        return thing

    def _found(self, value: Value) -> Any:
        if value.terms:
            if value not in self._sums:
                raise _Gone
            return self._sums[value][0]
        for key in (value.source, (value.source, value.index)):
            if key in self.values:
                found = self.values[key]
                return found[value.index] if key is value.source and value.index is not None else found
        if isinstance(value.source, Step) and value.source.call in self._inlined:
            return None
        raise _Gone

    def _begin_sums(self) -> None:
        for key in [k for k in self.values if isinstance(k, tuple) and k[0] == "sum"]:
            _, whole, joined = key
            if len(joined) > len(self._sums.get(whole, (None, ()))[1]):
                self._sums[whole] = (self.values[key], joined)
        for call in self.captured.calls:
            for gradient in call.gradients or ():
                self._begin_sum(gradient)
        for result in self.captured.results:
            self._begin_sum(result)

    def _begin_sum(self, whole: Any) -> None:
        """With the one term that is there, where none were added yet."""
        if not isinstance(whole, Value) or not whole.terms or whole in self._sums:
            return
        self._sums[whole] = (None, ())
        for term in whole.terms:
            try:
                self._sums[whole] = (self._found(term), (term,))
            except _Gone:
                continue

    def _join(self, call: Call) -> None:
        """Add what a call returned to the sums that it is part of."""
        for whole, (so_far, joined) in list(self._sums.items()):
            for term in whole.terms:
                if term in joined or not isinstance(term.source, Step) or term.source.call is not call:
                    continue
                so_far, joined = targets.add(so_far, self._value(term)), (*joined, term)
            self._sums[whole] = (so_far, joined)

    # Nodes.

    def _call(self, call: Call, last: Step | None) -> None:
        """Run a node, or what is left of it after its step ``last``."""
        try:
            self._steps(call, last)
        except _Gone:
            if any(s.kind == "accumulate" for s in call.steps):
                raise RuntimeError(
                    f"a gradient that {call.name} adds to .grad was lost when a hook changed the hooks of this backward"
                ) from None

    def _steps(self, call: Call, last: Step | None) -> None:
        node = self._node(call)
        at = -1 if last is None else call.steps.index(last)
        kind = "" if last is None else last.kind
        gradients = self._coming(call)
        before = [self._if_there(g) for g in gradients]
        for step in call.steps[: at + 1]:
            if step.kind in TENSOR_HOOKS:
                before[step.position] = self._if_there(Value(step))
            elif step.kind == "pre_hook":
                before = [self._if_there(Value(step, n)) for n in range(len(before))]
        body = [s for s in call.steps if s.kind not in _HOOKS]
        if kind in ("", "tensor_pre_hook"):
            coming = list(before)
            before = self._run_tensor_hooks(call, before, last)
            self._note_results(call, coming if body else before)
        if kind in ("", "tensor_pre_hook", "pre_hook"):
            if not body and not _of(call, "pre_hook", "post_hook"):
                return
            before = list(self._run_pre_hooks(call, tuple(before), last))
            _, has_after = hooks_of(node.register_hook)
            outputs = self._compute(call, body, before, at=-1)
        else:
            has_after = bool(_of(call, "post_hook"))
            outputs = self._compute(call, body, None, at) if kind != "post_hook" else ()
        self._after(call, last, has_after, tuple(before), outputs)

    def _node(self, call: Call) -> Any:
        assert self.running.nodes is not None
        return self.running.nodes[self.captured.calls.index(call)].node

    def _coming(self, call: Call) -> list[Any]:
        """Values of the gradients that come in; of a node where the way ends and no hook was, those that are results."""
        if call.gradients is not None:
            return list(call.gradients)
        found = {self.running.wanted[n][1]: v for n, v in self._wanted_of(call)}
        return [found.get(position) for position in range(max(found, default=-1) + 1)]

    def _wanted_of(self, call: Call) -> list[tuple[int, Value | None]]:
        """Which results are gradients that come into a node."""
        node = self._node(call)
        wanted = self.running.wanted
        return [(n, v) for n, v in enumerate(self.captured.results) if n < len(wanted) and wanted[n][0] is node]

    def _if_there(self, value: Any) -> Any:
        if isinstance(value, Value) and isinstance(value.source, Step) and value.source.kind == "zeros":
            return None
        try:
            return self._value(value)
        except _Gone:
            return None

    def _note_results(self, call: Call, gradients: Sequence[Any]) -> None:
        for n, _ in self._wanted_of(call):
            self._results[n] = gradients[self.running.wanted[n][1]]

    # Hooks before.

    def _run_tensor_hooks(self, call: Call, gradients: list[Any], last: Step | None) -> list[Any]:
        steps = _of(call, "tensor_pre_hook")
        positions = list(dict.fromkeys(s.position for s in steps))
        if last is not None:
            positions = positions[positions.index(last.position) :]
            rest = steps[steps.index(last) + 1 :]
            for hook in [self._value(s.args[0]) for s in rest if s.position == last.position]:
                gradients[last.position] = self._hook(call, hooks.tensor_hook, hook, gradients[last.position])
            positions = positions[1:]
        positions += [p for p in range(len(gradients)) if p not in {s.position for s in steps}]
        for position in positions:
            for hook in self._hooks_of_tensor(call, position):
                gradients[position] = self._hook(call, hooks.tensor_hook, hook, gradients[position])
        for step in _of(call, "retain_grad"):
            self.values[step] = gradients[step.position] = target_of(step)(step.args[0], gradients[step.position])
        self._keep(call, gradients)
        return gradients

    def _keep(self, call: Call, gradients: Sequence[Any]) -> None:
        """Gradients for tensors that were told only now to keep them."""
        for node, position, ref in self.running.keeps:
            tensor, gradient = ref(), gradients[position] if node is self._node(call) else None
            if tensor is not None and gradient is not None:
                tensor.grad = gradient.clone() if tensor.grad is None else tensor.grad + gradient

    def _hooks_of_tensor(self, call: Call, position: int) -> list[Any]:
        """The hooks on one of a node's gradients, as they are now."""
        node = self._node(call)
        leaf = getattr(node, "variable", None)
        registry = self.running.known.get((node, position)) if leaf is None else leaf._backward_hooks or {}
        if registry is not None:
            return list(registry.values())
        steps = [s for s in _of(call, "tensor_pre_hook") if s.position == position]
        gone = self._gone_steps()
        return [self._value(s.args[0]) for s in steps if s not in gone]

    def _gone_steps(self) -> set[Step]:
        """Hooks of tensors that are no leaves which were removed since."""
        return {step for removed in self.running.removed if (step := self._gone_step(removed)) is not None}

    def _gone_step(self, removed: Removed) -> Step | None:
        """What a hook that was removed stands for; where one function hooks many tensors, what is left of those tells, or their order."""
        steps = [
            s
            for c in self.captured.calls
            for s in _of(c, "tensor_pre_hook")
            if self.running.hooks[s.args[0].index] is removed.hook and not hasattr(self._node(c), "variable")
        ]
        if len(steps) < 2:
            return steps[0] if steps else None
        for node, position in self.running.places_of(removed):
            for step in steps:
                if self._node(step.call) is node and step.position == position:
                    return step
        rank, count = self.running.rank_of(removed)
        if count == len(steps):
            return sorted(steps, key=lambda s: self._node(s.call)._sequence_nr())[rank]
        return next((s for s in steps if removed.is_own and s.call.index == removed.place), steps[0])

    def _run_pre_hooks(self, call: Call, gradients: tuple[Any, ...], last: Step | None) -> tuple[Any, ...]:
        if last is not None and last.kind == "pre_hook":
            rest = call.steps[call.steps.index(last) + 1 :]
            found = [self._value(s.args[0]) for s in rest if s.kind == "pre_hook"]
        else:
            found = list(hooks_of(self._node(call).register_prehook)[0].values())
        for hook in found:
            gradients = self._hook(call, hooks.pre_hook, hook, gradients)
        return gradients

    def _hook(self, call: Call, run: Callable[..., Any], hook: Any, *values: Any) -> Any:
        return At(call.index, run)(hook, *values)

    # What the node itself does, and hooks after.

    def _compute(self, call: Call, body: Sequence[Step], gradients: Sequence[Any] | None, at: int) -> tuple[Any, ...]:
        """Run the steps of a node's own that come after the one at the place ``at`` of all; what it returns."""
        if self.is_watched:
            anomaly.reached(call.index)
        for step in body:
            if call.steps.index(step) <= at:
                continue
            args = arguments_of(step)
            if gradients is not None and step.kind in TAKES_GRADIENTS:
                args = self._with_gradients(step, args, gradients)
                gradients = None
            self.values[step] = target_of(step)(*self._checked(step, self._value(args)))
        if call.steps and any(s.kind == "accumulate" for s in body):
            self._run_after_accumulation(call, at)
        maker = _maker(call, "post_hook")
        outputs = () if maker is None else tuple(self._if_there(Value(maker, n)) for n in range(maker.results or 0))
        if self.is_watched and call.index > 0:
            anomaly.look_for_nan(outputs)
        return outputs

    def _with_gradients(self, step: Step, args: tuple[Any, ...], gradients: Sequence[Any]) -> tuple[Any, ...]:
        place = TAKES_GRADIENTS[step.kind]
        told = args[place]
        if not isinstance(told, (list, tuple)):
            return (*args[:place], gradients[0], *args[place + 1 :])
        # What is undefined may have been told as zeros.
        now = [g if g is not None else t if _is_zeros(t) else None for g, t in zip(gradients, told, strict=True)]
        return (*args[:place], type(told)(now), *args[place + 1 :])

    def _checked(self, step: Step, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """See that what was saved is as it was, as the captured graph does."""
        if step.kind not in ("function", "opaque", "python") or "versions" not in self.values:
            return args
        saved = step.args[1] if step.kind == "python" else step.args[1:]
        found = {v.index or 0: self._value(v) for v in values_in(saved) if v.source == "inputs"}
        versions, places = self.values["versions"], tuple(found)
        if step.kind == "python":
            is_plain = all(isinstance(v.source, str) for v in values_in(saved))
            return (*args, versions, places) if found and is_plain else args
        targets.unchanged(versions, places, tuple(found.values()))
        return args

    def _run_after_accumulation(self, call: Call, at: int) -> None:
        steps = _of(call, "post_acc_grad_hook")
        variable = self._node(call).variable
        if at >= 0 and call.steps[at].kind == "post_acc_grad_hook":
            found = [self._value(s.args[0]) for s in steps if call.steps.index(s) > at]
        else:
            found = list((variable._post_accumulate_grad_hooks or {}).values())
        for hook in found:
            self._hook(call, hooks.post_acc_grad_hook, hook, variable)

    def _after(
        self, call: Call, last: Step | None, has_after: bool, before: tuple[Any, ...], outputs: tuple[Any, ...]
    ) -> None:
        steps = _of(call, "post_hook")
        if last is not None and last.kind == "post_hook":
            found = [self._value(s.args[0]) for s in steps[steps.index(last) + 1 :]]
            outputs = tuple(self._if_there(Value(last, n)) for n in range(last.results or 0))
        else:
            found = list(hooks_of(self._node(call).register_hook)[0].values())
        if steps and last is not None and last.kind not in ("tensor_pre_hook", "pre_hook"):
            before = tuple(map(self._if_there, steps[0].args[2]))
        if not has_after:  # the engine keeps for hooks what came in only where it knows of hooks before the node runs
            before = ()
        for hook in found:
            outputs = self._hook(call, hooks.post_hook, hook, outputs, before)
        maker = _maker(call)
        if maker is not None:
            self.values[maker] = outputs


_HOOKS = frozenset({*TENSOR_HOOKS, "pre_hook", "post_hook", "post_acc_grad_hook"})


def _of(call: Call, *kinds: str) -> list[Step]:
    return [s for s in call.steps if s.kind in kinds]


def _maker(call: Call, *but: str) -> Step | None:
    """The step that makes what a node returns."""
    return next((s for s in reversed(call.steps) if s.kind in RETURNING and s.kind not in but), None)


def _is_zeros(value: Any) -> bool:
    return isinstance(value, Value) and isinstance(value.source, Step) and value.source.kind == "zeros"


def leaving(captured: Captured, order: Sequence[int], *, is_watched: bool = False) -> Leave:
    """For ``straight_line``: after each step that runs code of the user's, the rest is run here if that changed hooks."""

    def leave(
        node: torch.fx.Node, alive: Sequence[torch.fx.Node]
    ) -> tuple[Callable[[], bool], Callable[..., Any]] | None:
        step = next((k for k in node.meta.get(VALUES, ()) if isinstance(k, Step)), None)
        if step is None or not runs_users_code(step):
            return None
        keys = [n.meta.get(VALUES, ()) for n in alive]

        def goes_on(values: Sequence[Any]) -> tuple[Any, ...]:
            found = {k: v for several, v in zip(keys, values, strict=True) for k in several}
            return Rest(captured, order, step, found, running_here(), is_watched).run()

        return is_changed, goes_on

    return leave
