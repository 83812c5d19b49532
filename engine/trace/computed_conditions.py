"""Conditions and numbers that small state tensors decide: evaluated and guarded.

Without this, the graph would break where Python needs the value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx

from engine.graph.pure_nodes import counts_writes, is_pure_node
from engine.ir.guards.base import user_expr
from engine.ir.guards.computed_condition import (
    ComputedCondition,
    ConditionOp,
    NumberProgram,
    ValueRef,
    evaluate_condition,
    evaluate_number,
    run_steps,
)
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.symbols import symbolic_sizes_in
from engine.ir.node_values import tensors_in
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import FrameScope, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.stdlib import ArgumentPath, ArgumentsSource, ComputedNumberSource, RandomDrawSource
from engine.ir.sources.tensors import TensorItemSource
from engine.ir.traced_frame import GraphInput
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.torch_private.sympy_functions import FloorDiv
from engine.trace.annotations import Tracer
from engine.trace.variables.base import Variable

_MAX_OPS = 40
"""Maximum number of operations in a guard."""
_MAX_CONSTANT_ELEMENTS = 1 << 24
"""Maximum size of a constant that tracing computes, such as a causal mask."""
_INPLACE_OPS = frozenset((operator.iadd, operator.isub, operator.imul, "add_", "sub_", "mul_", "masked_fill_"))
_FACTORY_OPS = frozenset((torch.ones, torch.zeros, torch.zeros_like, torch.full, torch.tensor))
_CONSTANT_TYPES = (int, float, bool, str, type(None), torch.dtype, torch.device)


class _NotComputable(Exception):
    """The condition depends on something that a guard cannot compute."""


@dataclass
class _SizeInput:
    """A symbolic size of an input tensor."""

    source: Source
    example_value: int
    initial_version: int = 0


@dataclass
class _BackwardSlice:
    """Backward slice of a condition: the inputs and nodes that it depends on."""

    takes_sizes: bool = False
    inputs: dict[torch.fx.Node, Any] = field(default_factory=dict)
    nodes: set[torch.fx.Node] = field(default_factory=set)
    write_counts: dict[torch.fx.Node, int] = field(default_factory=dict)
    """Number of in-place writes of the slice to each of its input and new tensors."""
    steps: tuple[ConditionOp, ...] = ()
    """The nodes as operations of a guard, in graph order."""

    @property
    def example_values(self) -> list[Any]:
        """Values of the inputs in this call."""
        return [graph_input.example_value for graph_input in self.inputs.values()]

    @property
    def sources(self) -> list[Source]:
        """Sources of the inputs."""
        return [graph_input.source for graph_input in self.inputs.values()]


def fold_condition(tx: Tracer, node: torch.fx.Node) -> bool | None:
    """Evaluate a condition that depends only on small state tensors, and guard its value.

    The tensors have their values from the start of the call; the guard computes the condition again at each call.
    Return None if the condition depends on anything else.
    """
    program = _slice_of(tx, node)
    if program is None:
        return None
    outcome = evaluate_condition(program.steps, *program.example_values)
    if outcome is None or not program.inputs:
        return outcome
    first, *other_sources = program.sources
    cause = tx.guard_cause("its value decided a branch")
    tx.guards.add(ComputedCondition(first, tuple(other_sources), program.steps, outcome, cause=cause))
    return outcome


def fold_number(tx: Tracer, node: torch.fx.Node) -> Any:
    """Return the number in a tensor of constants and small integer buffers; guard them.

    Return None if it depends on anything else, or if a buffer is written or known to change between calls.
    """
    program = _slice_of(tx, node)
    if program is None or any(program.write_counts.get(node) for node in program.inputs):
        return None
    if not all(_is_integer_buffer(tx, graph_input) for graph_input in program.inputs.values()):
        return None
    for buffer in program.inputs.values():
        why = "its value decided what was traced"
        tx.guard(EqualsMatch, TensorItemSource(buffer.source), int(buffer.example_value), why=why)
    return evaluate_number(program.steps, *program.example_values)


def fold_zero(tx: Tracer, node: torch.fx.Node) -> float:
    """Return 0.0 or -0.0, as Python computes it; guard the numbers that decide."""
    program = _slice_of(tx, node)
    if program is None or any(type(value) not in (int, float) for value in program.example_values):
        return 0.0
    for number in program.inputs.values():
        tx.guard(EqualsMatch, number.source, number.example_value, why="it decided the sign of a zero")
    outcome = run_steps(program.steps, program.example_values)
    return 0.0 if outcome is None else math.copysign(0.0, outcome)


def compute_before_graph(tx: Tracer, fn: Callable[..., Any] | None, args: list[Any]) -> tuple[Any, Source] | None:
    """Return a function's result, and the source that computes it before the graph runs.

    Its arguments are nodes and constants; without a function, the result is the only node. The result may vary between calls like any input. Return None if an input
    that is not a number or a size decides it, or if the function raises.
    """
    program = _slice_of(tx, *(arg for arg in args if isinstance(arg, torch.fx.Node)), takes_sizes=True)
    if program is None or not program.inputs:
        return None
    sources, positions = program.sources, _value_positions(tx, program)
    operands = tuple(ValueRef(positions[arg]) if isinstance(arg, torch.fx.Node) else arg for arg in args)
    steps = program.steps if fn is None else (*program.steps, ConditionOp(fn, operands))
    has_one_input = len(sources) == 1
    text = _text([source.expr if has_one_input else user_expr(source) for source in sources], steps)
    base, paths = (sources[0], ()) if has_one_input else _argument_paths(tx, sources)
    if base is None:
        return None
    source = ComputedNumberSource(base, NumberProgram(steps, paths), text)
    real = run_steps(steps, program.example_values)
    if real is None:
        return None
    tx.symbols.known_dynamic_sources.add(source)
    return real, source


def compute_numbers(tx: Tracer, fn: Callable[..., Any], values: list[Variable]) -> Variable | None:
    """Return a function's result on symbols and constants; None if the graph must compute it."""
    if not (any(v.is_symbolic for v in values) and all(v.is_symbolic or v.is_constant for v in values)):
        return None
    computed = compute_before_graph(tx, fn, [v.as_node_arg(tx)[0] for v in values])
    return None if computed is None else tx.wrap(*computed)


def _argument_paths(tx: Tracer, sources: list[Source]) -> tuple[Source | None, tuple[ArgumentPath, ...]]:
    """Return a source of the arguments that hold these numbers, and the paths to them.

    The source is None if one of the numbers is not in an argument.
    """
    chains = [source.chain() for source in sources]
    root_names = [getattr(root, "names", (root.parameter_name,)) for root, *_ in chains]
    names = tuple(dict.fromkeys(name for names_of_root in root_names for name in names_of_root))
    if not all(map(str.isidentifier, names)):
        return None, ()
    paths = []
    for (root, *links), own_names in zip(chains, root_names, strict=True):
        value, typed = root.read(FrameScope(tx.request.arguments)), []
        for link in links:
            typed.append((link, type(value)))
            value = link.read(value)
        start = tuple(map(names.index, own_names))
        paths.append(ArgumentPath(start, not root.parameter_name, tuple(typed)))
    return ArgumentsSource(names), tuple(paths)


def _text(texts: list[str], steps: tuple[ConditionOp, ...]) -> str:
    """Return the operations as one expression, which has all constants as Python writes them."""
    for step in steps:
        args = (texts[a.index] if type(a) is ValueRef else repr(a) for a in step.args)
        texts.append(f"{getattr(step.target, '__name__', step.target)}({', '.join(args)})")
    return texts[-1]


def _slice_of(tx: Tracer, *nodes: torch.fx.Node, takes_sizes: bool = False) -> _BackwardSlice | None:
    """Return the slice of nodes; None if a guard cannot compute it.

    With ``takes_sizes``, symbolic sizes of input tensors are inputs of the slice.
    """
    if tx.in_subgraph():
        return None
    program = _BackwardSlice(takes_sizes=takes_sizes)
    try:
        _collect_slice(tx, program, nodes)
        _check_no_other_writes(tx, program)
        program.steps = _to_guard_steps(tx, program)
    except (_NotComputable, RuntimeError):  # the storage of a functorch wrapper cannot be read
        return None
    return program


def _is_integer_buffer(tx: Tracer, graph_input: GraphInput) -> bool:
    real = graph_input.example_value
    return (
        graph_input.source.member_table == "_buffers"
        and not real.is_floating_point()
        and -1 not in tx.request.dynamic_dims.get(TensorItemSource(graph_input.source).expr, frozenset())
    )


def _collect_slice(tx: Tracer, program: _BackwardSlice, nodes: tuple[torch.fx.Node, ...]) -> None:
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node in program.nodes or node in program.inputs:
            continue
        if len(program.nodes) > _MAX_OPS:
            raise _NotComputable
        if program.takes_sizes and (size := _size_input(tx, node)) is not None:
            program.inputs[node] = size
            continue
        if node.op == "placeholder":
            graph_input = next((i for i in tx.graph.inputs if i.name == node.name), None)
            if graph_input is None or not _is_state_input(graph_input):
                raise _NotComputable
            program.inputs[node] = graph_input
            if graph_input.has_real_tensor:
                program.write_counts.setdefault(node, 0)
                todo += _writes_to(node)
            continue
        program.nodes.add(node)
        if _is_inplace_write(node):
            root = _mutated_base(node)
            program.write_counts[root] = program.write_counts.get(root, 0) + 1
            todo += _writes_to(node)
        elif node.target in _FACTORY_OPS and _is_plain_tensor(node.meta["example_value"]):
            program.write_counts.setdefault(node, 0)
            todo += _writes_to(node)
        elif node.op not in ("call_function", "call_method") or not is_pure_node(node):
            raise _NotComputable
        todo += node.all_input_nodes
    is_computable = _is_cheap_for_guards if program.inputs else _is_cheap_constant
    if not all(is_computable(t) for node in program.nodes for t in tensors_in([node.meta.get("example_value")])):
        raise _NotComputable


def _is_cheap_constant(tensor: torch.Tensor) -> bool:
    """Return True if tracing may compute a tensor; adds no guards on symbolic sizes."""
    return not symbolic_sizes_in(tensor) and tensor.numel() <= _MAX_CONSTANT_ELEMENTS


def _is_cheap_for_guards(tensor: torch.Tensor) -> bool:
    """Return True if a guard may compute a tensor at each call."""
    return tensor.device.type == "cpu" and not symbolic_sizes_in(tensor) and tensor.numel() == 1


def _size_input(tx: Tracer, node: torch.fx.Node) -> _SizeInput | None:
    """Return the size of inputs, or computed from them, that the node is; None if none."""
    value: Any = node.meta.get("example_value")
    expr = getattr(getattr(value, "node", None), "expr", None)
    if expr is None or not value.node.has_hint():
        return None
    if expr.is_Symbol:
        source = _source_of_size(tx, expr)
    elif any(tensors_in([n.meta.get("example_value")]) for n in node.all_input_nodes):
        source = _source_of_computed_size(tx, expr)
    else:
        return None
    return None if source is None else _SizeInput(source, value.node.hint)


def _source_of_size(tx: Tracer, symbol: sympy.Basic) -> Source | None:
    for tensor, _ in tx.inputs.input_tensors:
        if tensor.source is not None and tensor.python_type() in (torch.Tensor, torch.nn.Parameter):
            at_entry = tx.inputs.input_layouts.get(id(tensor.fake))
            for dim, size in enumerate(tensor.fake.shape if at_entry is None else at_entry[0]):
                if getattr(getattr(size, "node", None), "expr", None) == symbol:
                    return GetItemSource(AttrSource(tensor.source, "shape"), dim)
    return None


_INTEGER_OPS: dict[type, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv,
}


def _source_of_computed_size(tx: Tracer, expr: sympy.Expr) -> Source | None:
    """Return the source of a result's size, which is an expression of sizes of inputs."""
    symbols = sorted(expr.free_symbols, key=str)
    sources = [source for s in symbols if (source := _source_of_size(tx, s)) is not None]
    if not symbols or len(sources) < len(symbols):
        return None
    steps: list[ConditionOp] = []

    def operand(part: Any) -> Any:
        if part.is_Symbol:
            return ValueRef(symbols.index(part))
        if part.is_Integer:
            return int(part)
        result, *others = map(operand, part.args) if type(part) in _INTEGER_OPS else (None,)
        if result is None:
            raise _NotComputable
        for other in others:
            steps.append(ConditionOp(_INTEGER_OPS[type(part)], (result, other)))
            result = ValueRef(len(symbols) + len(steps) - 1)
        return result

    operand(expr)
    base, paths = (sources[0], ()) if len(sources) == 1 else _argument_paths(tx, sources)
    return base and ComputedNumberSource(
        base, NumberProgram(tuple(steps), paths), _text([s.expr for s in sources], tuple(steps))
    )


def _is_inplace_write(node: torch.fx.Node) -> bool:
    return node.target in _INPLACE_OPS and isinstance(node.meta["example_value"], torch.Tensor)


def _writes_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [user for user in node.users if _is_inplace_write(user) and user.args[0] is node]


def _mutated_base(node: torch.fx.Node) -> torch.fx.Node:
    """Return the input or new tensor that this in-place node mutates."""
    while node.target in _INPLACE_OPS:
        node = node.all_input_nodes[0]
    if node.op != "placeholder" and node.target not in _FACTORY_OPS:
        raise _NotComputable
    return node


def _is_state_input(graph_input: GraphInput) -> bool:
    """Return True for a number, or a small tensor that is not itself an argument of the call.

    Arguments differ between calls, and so do random numbers sampled in Python.
    """
    real: Any = graph_input.example_value
    source: Source | None = graph_input.source
    if source is None or isinstance(source, RandomDrawSource):
        return False
    return type(real) in (int, float) or (
        (source.parent is not None or not source.is_argument_link)
        and type(real) is torch.Tensor
        and real.numel() == 1
        and real.device.type == "cpu"
        and _is_plain_tensor(real)
    )


def _is_plain_tensor(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not (tensor.is_complex() or tensor.is_quantized or tensor.requires_grad or tensor.is_inference())
        and not is_functorch_wrapped_tensor(tensor)
    )


def _check_no_other_writes(tx: Tracer, program: _BackwardSlice) -> None:
    """Raise if a tensor of the slice was, or may have been, mutated by other operations."""
    if any(not alias._is_view() for alias in _aliases(program)):  # the version counter of ``t.data`` is its own
        raise _NotComputable
    for root, times in program.write_counts.items():
        fake = root.meta["example_value"]
        graph_input = program.inputs.get(root)
        if fake._version != times + (0 if graph_input is None else graph_input.initial_version):
            raise _NotComputable
        storage = _storage(fake)
        names = [root, *(n for n in program.nodes if _is_inplace_write(n) and _mutated_base(n) is root)]
        for user in {u for name in names for u in name.users} - program.nodes:
            result = user.meta.get("example_value")
            is_view = isinstance(result, torch.Tensor) and result.untyped_storage()._cdata == storage
            if is_view or not counts_writes(user):
                raise _NotComputable
        if graph_input is not None and _is_written_through_alias(tx, fake, graph_input):
            raise _NotComputable


def _aliases(program: _BackwardSlice) -> Iterator[torch.Tensor]:
    """Yield the other tensors of the graph that share memory with a tensor of the slice."""
    computed = {*program.nodes, *program.inputs}
    results = [t for node in computed for t in _strided_results(node)]
    ids, storages = set(map(id, results)), set(map(_storage, results))
    todo, seen = list(computed), set(computed)
    while todo:
        for user in todo.pop().users.keys() - seen:
            seen.add(user)
            shared = [t for t in _strided_results(user) if _storage(t) in storages and id(t) not in ids]
            if shared:
                todo.append(user)
            yield from shared


def _strided_results(node: torch.fx.Node) -> list[torch.Tensor]:
    return [t for t in tensors_in([node.meta.get("example_value")]) if t.layout is torch.strided]


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_written_through_alias(tx: Tracer, fake: torch.Tensor, graph_input: GraphInput) -> bool:
    """Return True if the graph mutates another input that shares this input's storage."""
    storage = graph_input.example_value.untyped_storage()._cdata
    return any(
        other_input.fake is not fake
        and other_input.fake._version != version
        and other_input.real_object is not None
        and other_input.real_object.untyped_storage()._cdata == storage
        for other_input, version in tx.inputs.input_tensors
    )


def _to_guard_steps(tx: Tracer, program: _BackwardSlice) -> tuple[ConditionOp, ...]:
    """Convert the slice to guard operations, in graph order."""
    positions = _value_positions(tx, program)
    steps: list[ConditionOp] = []

    def part(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return ValueRef(positions[arg])
        if any(type(a) not in _CONSTANT_TYPES for a in (arg if isinstance(arg, tuple) else (arg,))):
            raise _NotComputable
        return arg

    for node in tx.graph.graph.nodes:
        if node in program.nodes:
            args = tuple(part(a) for a in node.args)
            steps.append(ConditionOp(node.target, args, tuple((k, part(a)) for k, a in node.kwargs.items())))
    return tuple(steps)


def _value_positions(tx: Tracer, program: _BackwardSlice) -> dict[torch.fx.Node, int]:
    """Return the index of each value: the inputs, then the nodes in graph order."""
    ordered = (node for node in tx.graph.graph.nodes if node in program.nodes)
    return {node: n for n, node in enumerate((*program.inputs, *ordered))}
