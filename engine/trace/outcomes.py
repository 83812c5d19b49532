"""Decisions that follow from the numbers in small tensors of the program's state: worked out while tracing and guarded, where the graph would end."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.origin import Drawn, Local, Origin
from engine.ir.outcome_guard import ComesTo, Given, Step, comes_to
from engine.trace.settled import is_pure

if TYPE_CHECKING:
    from engine.ir.frame import GraphInput
    from engine.trace.state import Tracer

_MOST = 40
"""How many operations a guard does at most."""
_WRITES = frozenset((operator.iadd, operator.isub, operator.imul, "add_", "sub_", "mul_"))
_MAKERS = frozenset((torch.ones, torch.zeros, torch.full))
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_READERS = ("torch", "None", "_operator", "builtins", "math")


class _NotKnown(Exception):
    """The decision follows from something else."""


@dataclass
class _Program:
    """What a decision follows from, gathered backwards."""

    inputs: dict[torch.fx.Node, GraphInput] = field(default_factory=dict)
    nodes: set[torch.fx.Node] = field(default_factory=set)
    written: dict[torch.fx.Node, int] = field(default_factory=dict)
    """How often the program writes to each tensor that is there before it, or that it makes."""


def outcome(tx: Tracer, node: torch.fx.Node) -> bool | None:
    """The truth of a node where it follows from what small tensors held when the call began; None where it does not."""
    if tx.is_nested():
        return None
    program = _Program()
    try:
        _gather(tx, program, node)
        _check_writes(tx, program)
        steps = _steps(tx, program)
    except _NotKnown:
        return None
    given = list(program.inputs.values())
    found = comes_to(steps, *(g.real for g in given))
    if found is None or not given:
        return found
    first, *others = (g.origin for g in given)
    cause = tx.cause("what it holds decided which way the code went")
    tx.guard(ComesTo(first, tuple(others), steps, found, cause=cause))
    return found


def _gather(tx: Tracer, program: _Program, node: torch.fx.Node) -> None:
    todo = [node]
    while todo:
        node = todo.pop()
        if node in program.nodes or node in program.inputs:
            continue
        if len(program.nodes) > _MOST:
            raise _NotKnown
        if node.op == "placeholder":
            given = next((i for i in tx.graph.inputs if i.name == node.name), None)
            if given is None or not _is_state(given):
                raise _NotKnown
            program.inputs[node] = given
            if isinstance(given.real, torch.Tensor):
                program.written.setdefault(node, 0)
                todo += _writes_to(node)
            continue
        program.nodes.add(node)
        if _is_write(node):
            root = _root(node)
            program.written[root] = program.written.get(root, 0) + 1
            todo += _writes_to(node)
        elif node.target in _MAKERS and _is_small(node.meta["example_value"]):
            program.written.setdefault(node, 0)
            todo += _writes_to(node)
        elif node.op not in ("call_function", "call_method") or not is_pure(node):
            raise _NotKnown
        todo += node.all_input_nodes


def _is_write(node: torch.fx.Node) -> bool:
    return node.target in _WRITES and isinstance(node.meta["example_value"], torch.Tensor)


def _writes_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user in node.users if _is_write(user) and user.args[0] is node]


def _root(node: torch.fx.Node) -> torch.fx.Node:
    """The node that the tensor comes from to which this one writes."""
    while node.target in _WRITES:
        written = node.args[0]
        if not isinstance(written, torch.fx.Node):
            raise _NotKnown
        node = written
    if node.op != "placeholder" and node.target not in _MAKERS:
        raise _NotKnown
    return node


def _is_state(given: GraphInput) -> bool:
    """Whether it is a number, or a small tensor that no argument of the call is itself: those differ from call to call, as numbers that Python draws do."""
    real: Any = given.real
    origin: Origin | None = given.origin
    if origin is None or isinstance(origin, Drawn):
        return False
    return type(real) in (int, float) or (
        not isinstance(origin, Local) and type(real) is torch.Tensor and _is_small(real)
    )


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        tensor.numel() == 1
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_complex() or tensor.is_quantized or tensor.requires_grad or tensor.is_inference())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _check_writes(tx: Tracer, program: _Program) -> None:
    """Refuse where a tensor was written to otherwise, or may have been."""
    for root, times in program.written.items():
        fake = root.meta["example_value"]
        given = program.inputs.get(root)
        if fake._version != times + (0 if given is None else given.version):
            raise _NotKnown
        storage = fake.untyped_storage()._cdata
        names = [root, *(n for n in program.nodes if _is_write(n) and _root(n) is root)]
        for user in {u for name in names for u in name.users} - program.nodes:
            made = user.meta.get("example_value")
            is_view = isinstance(made, torch.Tensor) and made.untyped_storage()._cdata == storage
            if is_view or not _only_reads(user):
                raise _NotKnown
        if given is not None and _is_written_beside(tx, fake, given):
            raise _NotKnown


def _only_reads(user: torch.fx.Node) -> bool:
    """Whether an operation of torch's counts what it writes, as all do but those that keep statistics."""
    if user.op == "call_method":
        return True
    home = str(getattr(user.target, "__module__", None)).partition(".")[0]
    return home in _READERS and "norm" not in str(getattr(user.target, "__name__", ""))


def _is_written_beside(tx: Tracer, fake: torch.Tensor, given: GraphInput) -> bool:
    """Whether the graph writes to another input that lies over the same memory."""
    storage = given.real.untyped_storage()._cdata
    return any(
        other.fake is not fake
        and other.fake._version != version
        and other.held is not None
        and other.held.untyped_storage()._cdata == storage
        for other, version in tx.input_tensors
    )


def _steps(tx: Tracer, program: _Program) -> tuple[Step, ...]:
    """The operations in the order of the graph."""
    places = {node: n for n, node in enumerate(program.inputs)}
    steps: list[Step] = []

    def part(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Given(places[arg])
        if isinstance(arg, tuple) and all(type(a) in _PLAIN for a in arg):
            return arg
        if type(arg) not in _PLAIN:
            raise _NotKnown
        return arg

    for node in tx.graph.graph.nodes:
        if node in program.nodes:
            args = tuple(part(a) for a in node.args)
            steps.append(Step(node.target, args, tuple((k, part(a)) for k, a in node.kwargs.items())))
            places[node] = len(places)
    return tuple(steps)
