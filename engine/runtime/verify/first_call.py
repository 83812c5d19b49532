"""First-call verification: compare a compiled graph's first call with eager.

Enabled by ``engine.config.verify_correctness``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import Run, graph_callable_of
from engine.ir.introspection.autograd_nodes import autograd_nodes
from engine.ir.node_values import copy_leaf, tensors_by_position, tensors_in
from engine.process_state import make_lock
from engine.runtime.workers.fork import is_fork_backward_error
from engine.torch_private.pytree import tree_leaves

RELATIVE_TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float64: 1e-7, torch.complex128: 1e-7}
"""Tolerance relative to the largest value, by dtype; 1e-4 for dtypes not listed."""


def verify_first_call(run: Run, graph: torch.fx.GraphModule, eager: Run, report: Callable[[str], None]) -> Run:
    """Return ``run`` with its first call verified against ``eager`` on copies of the inputs.

    Gradients are compared too. If the results differ, ``eager`` runs this call and all later ones.
    ``report`` is called once: with the difference, with the reason why the graph cannot be verified, or with ""
    if all results agree.
    """
    return _FirstCallVerifier(run, graph, eager, report)


def compare_on_copies(before: torch.fx.GraphModule, after: torch.fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Run two graphs on copies of inputs; return the first difference of their values, or "".

    Also "" if the first one raises, or if a graph must not be run twice.
    """
    if _why_not_verifiable(before, inputs) or _why_not_verifiable(after, inputs):
        return ""
    forwards = [types.MethodType(type(m).forward, m) for m in (before, after)]
    return _FirstCallVerifier(forwards[1], after, forwards[0], lambda _: None).difference(tuple(inputs))


def difference_of_calls(
    eager: Run, run: Run, make_inputs: Callable[[], Sequence[Any]], names: Sequence[str] = ()
) -> str:
    """Call two functions on equal new inputs; return the first difference, or "".

    Results, inputs after the call and gradients are compared. Results and inputs may be nested. ``make_inputs`` seeds the random numbers, too.
    ``names`` are those of the inputs, for the message.

    Raises:
        RuntimeError: this process is a fork in which torch runs no backward.
    """
    inputs = make_inputs(), make_inputs()
    expected, error = _values_or_error(eager, inputs[0], make_inputs)
    if error is not None and is_fork_backward_error(error):
        raise error
    results, failure = _values_or_error(run, inputs[1], make_inputs)
    if error.__class__ is not failure.__class__:
        return (
            f"it raised {failure!r}, unlike eager"
            if failure is not None
            else f"it did not raise {error!r}, unlike eager"
        )
    if len(expected) != len(results):
        return f"the call returns {len(results)} values, but {len(expected)} in eager"
    leaves = [tree_leaves(list(call_inputs)) for call_inputs in inputs]
    named = _names_by_id(inputs[0], names)
    first = next(_differences((*expected, *leaves[0]), (*results, *leaves[1]), len(expected), named), "")
    if not first:
        expected_leaves = _leaves_of(expected, leaves[0])
        ours, theirs = (*leaves[0], *expected_leaves), (*leaves[1], *expected_leaves)
        if _has_gradients(expected, ours):
            first = _gradient_difference((expected, ours), (results, theirs), named)
    return first


def _values_or_error(run: Run, inputs: Sequence[Any], seed: Callable[[], object]) -> tuple[list[Any], Exception | None]:
    """Return the values in a call's result, or its error."""
    seed()
    try:
        return tree_leaves(run(*inputs)), None
    except Exception as error:
        return [], error


def _leaves_of(results: Sequence[Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return the leaves in the autograd graph of the results, except inputs: parameters."""
    leaves = {}
    input_ids = {id(v) for v in inputs}
    for node in autograd_nodes(v.grad_fn for _, v in _requiring_grad(results)):
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in input_ids:
            leaves[id(leaf)] = leaf
    return list(leaves.values())


class _FirstCallVerifier:
    def __init__(self, run: Run, graph: torch.fx.GraphModule, plain: Run, tell: Callable[[str], None]) -> None:
        self._run = run
        self._graph = graph
        self._eager = plain
        self._report = tell
        self._lock = make_lock()
        self._is_done = False

    def __call__(self, *inputs: Any) -> Any:
        if self._is_done or not self._lock.acquire(blocking=False):
            return self._run(*inputs)
        try:
            return self._run(*inputs) if self._is_done else self._verify_and_run(inputs)
        finally:
            self._is_done = True
            self._lock.release()

    def _verify_and_run(self, inputs: tuple[Any, ...]) -> Any:
        if reason := _why_not_verifiable(self._graph, inputs):
            self._report(f"not verifiable: {reason}")
            return self._run(*inputs)
        difference = self.difference(inputs)
        if difference:
            self._run = self._eager
        self._report(difference)
        return self._run(*inputs)

    def difference(self, inputs: tuple[Any, ...]) -> str:
        """Run both on copies of the inputs; return the first difference, or nothing."""
        copies, compiled_copies = tuple(map(_copy_input, inputs)), tuple(map(_copy_input, inputs))
        expected, error = self._results_or_error(self._eager, copies)
        results, failure = self._results_or_error(self._run, compiled_copies)
        if error is not None:  # a user error, which the compiled graph must raise too
            return f"the compiled graph did not raise {type(error).__name__}" if failure is None else ""
        if failure is not None:
            return f"the compiled graph raised {type(failure).__name__}: {failure}"
        named = _names_by_id(copies, [n.name for n in self._graph.graph.nodes if n.op == "placeholder"])
        difference = next(_differences((*expected, *copies), (*results, *compiled_copies), len(expected), named), "")
        if not difference and _has_gradients(expected, copies):
            difference = _gradient_difference((expected, copies), (results, compiled_copies), named)
        return difference

    @staticmethod
    def _results_or_error(run: Run, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], Exception | None]:
        with _fork_rng(inputs):
            try:
                return tuple(run(*inputs)), None
            except Exception as error:
                return (), error


def _why_not_verifiable(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Return the reason why the graph cannot be run twice; empty if it can."""
    for node in graph.graph.nodes:
        called = graph_callable_of(node)
        if called.changes_state or called.runs_user_python:
            return f"{node.name} {called.effect_description if called.changes_state else 'calls a Python function'}"
    tensors = tensors_in(inputs)
    if any(
        type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout != torch.strided or t.is_quantized
        for t in tensors
    ):
        return "an input is not a strided tensor, or is a subclass"
    storages = [t.untyped_storage()._cdata for t in tensors]
    return "two inputs share memory" if len(set(storages)) != len(storages) else ""


def _copy_input(value: Any) -> Any:
    """Return a copy with the same strides; a leaf if the original is a leaf, else a non-leaf."""
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if not isinstance(value, torch.Tensor):
        return value
    copied = copy_leaf(value)
    if value.is_leaf:
        return copied
    with torch.enable_grad():
        return copied.view_as(copied)


def _fork_rng(inputs: Sequence[Any]) -> Any:
    """Fork the RNG state, so that both runs sample the random numbers of the call itself."""
    return torch.random.fork_rng(sorted({x.device.index for x in tensors_in(inputs) if x.is_cuda}))


def _requiring_grad(values: Sequence[Any]) -> list[tuple[int, torch.Tensor]]:
    return [(n, v) for n, v in tensors_by_position(values).items() if v.requires_grad]


def _has_gradients(results: Sequence[Any], inputs: Sequence[Any]) -> bool:
    return bool(_requiring_grad(results) and _requiring_grad(inputs))


def _names_by_id(inputs: Sequence[Any], names: Sequence[str]) -> dict[int, str]:
    """Return the names of the inputs' tensors, and of parameters of modules among them."""
    named: dict[int, str] = {}
    for name, value in zip(names, inputs, strict=False):
        named |= {id(leaf): name for leaf in tree_leaves(value) if id(leaf) not in named}
        named |= {id(p): f"{name}.{path}" for path, p in getattr(value, "named_parameters", tuple)()}
    return named


def _gradient_difference(plain: tuple[Any, Any], compiled: tuple[Any, Any], names: dict[int, str]) -> str:
    """Return the first difference between the gradients of two runs, for tangents of ones.

    Empty if there is none, or if the eager backward raises.
    """
    try:
        expected = _gradients(*plain)
    except RuntimeError as error:
        if is_fork_backward_error(error):
            raise
        return ""  # a user error in the backward
    try:
        gradients = _gradients(*compiled)
    except RuntimeError as error:
        return f"the compiled backward raised {error}"
    for value, a, b in zip((v for _, v in _requiring_grad(plain[1])), expected, gradients, strict=True):
        name = names.get(id(value), f"a parameter of shape {list(value.shape)}")
        if (a is None) != (b is None):
            return f"{name} gets {'no' if b is None else 'a'} gradient, unlike in eager"
        if a is not None and b is not None and (worst := _max_difference(a, b)):
            return f"the gradient of {name} differs from eager's by up to {worst:.3g}"
    return ""


def _gradients(results: Sequence[Any], inputs: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    outputs = [v for _, v in _requiring_grad(results)]
    with torch.enable_grad():
        tangents = [torch.ones_like(v) for v in outputs]
        return torch.autograd.grad(outputs, [v for _, v in _requiring_grad(inputs)], tangents, allow_unused=True)


def _differences(expected: Sequence[Any], actual: Sequence[Any], results: int, names: dict[int, str]) -> Iterator[str]:
    """Yield the differences between two runs: results first, then inputs after the call."""
    for number, (a, b) in enumerate(zip(expected, actual, strict=True)):
        name = f"result {number}"
        if number >= results:
            name = f"{names.get(id(a), f'input {number - results}')} after the call"
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (isinstance(a, (bool, int, str)) and a != b):
                yield f"{name} is {b!r}, but {a!r} in eager"
            continue
        if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
            yield f"{name} is {b.dtype}{tuple(b.shape)}, but {a.dtype}{tuple(a.shape)} in eager"
        elif a.requires_grad != b.requires_grad:
            yield f"{name} {'requires' if b.requires_grad else 'does not require'} grad, unlike in eager"
        elif worst := _max_difference(a.detach(), b.detach()):
            yield f"{name} differs from eager by up to {worst:.3g}"


def _max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest absolute difference if it exceeds the tolerance, else 0."""
    if a.numel() == 0 or a.is_meta:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return 0.0 if torch.equal(a, b) else float((a.double() - b.double()).abs().max())
    allowed = RELATIVE_TOLERANCES.get(a.dtype, 1e-4)
    a, b = a.to(torch.complex128), b.to(torch.complex128)
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return float("inf")
    is_known = a.isfinite()
    a, b = a[is_known], b[is_known]
    if a.numel() == 0:
        return 0.0
    worst = float((a - b).abs().max())
    return worst if worst > allowed * max(1.0, float(a.abs().max())) else 0.0
