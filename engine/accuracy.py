"""Search for the first operator whose compiled result or gradient is wrong."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import Run
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_metadata import provenance_of
from engine.ir.node_values import copy_leaf, example_tensor, map_tensors, tensors_in
from engine.records.bytecode import Span

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class NodeAccuracy:
    """One operator's result in both runs.

    ``stage`` is "forward", or "backward" for its gradient, which the backward of ``gradient_from`` computed.
    ``max_error``: largest absolute difference. Hashes are of the bytes of the values.
    """

    stage: str
    name: str
    text: str
    span: Span | None
    is_close: bool
    max_error: float
    eager_hash: str
    compiled_hash: str
    gradient_from: tuple[str, ...] = ()
    """Operators whose backward computes the gradient, with their lines: they use the result."""

    @property
    def place(self) -> str:
        """File and line of the user's expression; empty if unknown."""
        return f"{self.span.file}:{self.span.line}" if self.span else ""


class AccuracyReport:
    """Result of ``bisect_accuracy``: ``first`` is the first wrong operator, or None.

    ``nodes`` are all compared operators, forward in order, then gradients in the order of the backward.
    """

    def __init__(self, nodes: Sequence[NodeAccuracy], problems: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.problems = tuple(problems)

    @property
    def first(self) -> NodeAccuracy | None:
        """The first operator whose result, or whose gradient, leaves tolerance."""
        return next((n for n in self.nodes if not n.is_close), None)

    def __bool__(self) -> bool:
        """Return True if a result leaves tolerance."""
        return self.first is not None

    def __repr__(self) -> str:
        mismatch = self.first
        notes = "".join(f"\n  not compared: {p}" for p in self.problems)
        if not self.nodes:
            return f"Nothing could be compared.{notes}"
        if mismatch is None:
            return f"All {len(self.nodes):,} compared results are within tolerance.{notes}"
        subject = "gradient of the result" if mismatch.stage == "backward" else "result"
        location = f" ({mismatch.place})" if mismatch.place else ""
        users = " or ".join(mismatch.gradient_from)
        cause = f"\n  The backward of {users} computed it." if users else ""
        return f"The {subject} of {mismatch.text}{location} leaves tolerance: largest difference {mismatch.max_error:.3g}.{cause}{notes}"


class AccuracyBisector:
    """Backend that runs each traced graph in both ways, with all values as results."""

    def __init__(self, compile: Compile, rtol: float | None, atol: float | None) -> None:
        self.compile, self.rtol, self.atol = compile, rtol, atol
        self.nodes: list[NodeAccuracy] = []
        self.problems: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Run:
        """Return a run that compares on copies of the inputs, and computes the results in eager."""
        is_compared = False

        def run(*inputs: Any) -> Any:
            nonlocal is_compared
            if not is_compared:
                is_compared = True
                state = torch.get_rng_state()
                try:
                    with torch.random.fork_rng(enabled=True):
                        self._compare(graph, inputs, state)
                except Exception as error:
                    self.problems.append(f"a graph could not be compared ({type(error).__name__}: {error})")
            return graph(*inputs)

        return run

    def _compare(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], state: torch.Tensor) -> None:
        tapped = TappedGraph(
            graph, has_taps=torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(inputs))
        )
        runs = []
        for way in (lambda run: run, self.compile):
            torch.set_rng_state(state)
            runs.append(tapped.run(way, inputs))
        for (node, stage), eager, compiled in zip(tapped.rows(*map(len, runs[0])), *map(_joined, runs), strict=True):
            if torch.is_tensor(eager) and torch.is_tensor(compiled):
                self.nodes.append(self._row(node, stage, eager, compiled))

    def _row(self, node: torch.fx.Node, stage: str, eager: torch.Tensor, compiled: torch.Tensor) -> NodeAccuracy:
        is_close = True
        try:
            torch.testing.assert_close(compiled, eager, rtol=self.rtol, atol=self.atol, equal_nan=True)
        except AssertionError:
            is_close = False
        span = provenance_of(node).span
        error = _max_error(eager, compiled)
        users = [n for n in node.users if n.op != "output"] if stage == "backward" else []
        gradient_from = tuple(map(_text_with_line, users))
        return NodeAccuracy(
            stage, node.name, _text(node), span, is_close, error, _hash(eager), _hash(compiled), gradient_from
        )


class TappedGraph:
    """A graph that also returns each value, and adds a zero to it.

    The gradient of the zero is the value's.
    Zeros are only added to graphs without writes in place, which would write the sum.
    """

    def __init__(self, graph: torch.fx.GraphModule, *, has_taps: bool) -> None:
        self.values: list[torch.fx.Node] = []
        self.taps: list[torch.fx.Node] = []
        self.tap_types: list[torch.Tensor] = []
        module = copy.deepcopy(graph)
        self.originals = {n.name: n for n in graph.graph.nodes}
        self._instrument(module.graph, has_taps and not any(map(_writes_operand, module.graph.nodes)))
        module.recompile()
        self.module = module

    def _instrument(self, graph: torch.fx.Graph, has_taps: bool) -> None:
        copies: list[torch.fx.Node] = []
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        for node in list(graph.nodes):
            value = example_tensor(node)
            if value is None or node.op not in ("call_function", "call_method", "call_module"):
                continue
            tapped = node
            with graph.inserting_after(node):
                if has_taps and value.is_floating_point():
                    with graph.inserting_after(inputs[-1]):
                        tap = graph.placeholder(f"tap_{node.name}")
                    inputs.append(tap)
                    tapped = graph.call_function(torch.add, (node, tap))
                    node.replace_all_uses_with(tapped, delete_user_cb=lambda user, tapped=tapped: user is not tapped)
                    self.taps.append(self.originals[node.name])
                    self.tap_types.append(value)
            with graph.inserting_after(tapped):
                copies.append(graph.call_function(torch.clone, (tapped,)))
            self.values.append(self.originals[node.name])
        (output,) = [n for n in graph.nodes if n.op == "output"]
        output.args = ((output.args[0], tuple(copies)),)

    def run(self, compile_graph: Compile, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Run the graph on copies; return its values, and their gradients in the backward's order."""
        copies = map_tensors(copy_leaf, inputs)
        taps = [
            torch.zeros(tuple(map(int, t.shape)), dtype=t.dtype, device=t.device).requires_grad_()
            for t in self.tap_types
        ]
        module = self.module

        def forward(*values: Any) -> Any:
            return module(*values)

        results, values = compile_graph(forward)(*copies, *taps)
        losses = [r.sum() for r in tensors_in(results) if r.requires_grad and r.is_floating_point()]
        if not taps or not losses:
            return [v.detach() for v in values], []
        total = torch.stack([x.to(torch.float64) for x in losses]).sum()
        gradients = torch.autograd.grad(total, taps, allow_unused=True)
        return [v.detach() for v in values], list(reversed(gradients))

    def rows(self, values: int, gradients: int) -> Iterator[tuple[torch.fx.Node, str]]:
        """Yield node and stage of each compared tensor."""
        yield from ((n, "forward") for n in self.values[:values])
        yield from ((n, "backward") for n in list(reversed(self.taps))[:gradients])


def _text(node: torch.fx.Node) -> str:
    name = getattr(node.target, "__name__", str(node.target))
    return f"{node.name} = {name}({', '.join(map(str, node.args))})"


def _text_with_line(node: torch.fx.Node) -> str:
    span = provenance_of(node).span
    return f"{_text(node)} ({span.file}:{span.line})" if span else _text(node)


def _joined(lists: tuple[list[Any], list[Any]]) -> list[Any]:
    return [*lists[0], *lists[1]]


def _writes_operand(node: torch.fx.Node) -> bool:
    return facts_of_node(node).writes_first or node.kwargs.get("inplace") is True


def _max_error(first: torch.Tensor, second: torch.Tensor) -> float:
    if first.shape != second.shape or first.dtype != second.dtype:
        return float("inf")
    if not first.numel():
        return 0.0
    wide = torch.complex128 if first.is_complex() else torch.float64
    same = (first == second) | (first.isnan() & second.isnan())
    return float(torch.where(same, 0.0, (first.to(wide) - second.to(wide)).abs()).max())


def _hash(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
