"""Random ops as functions of an explicit RNG state.

A backward that recomputes them then samples the same numbers as the forward. This happens in activation checkpoints,
and elsewhere with ``options={"recompute_random": True}``. Otherwise masks are saved, one byte per element: sampling a
mask again takes many times as long as reading it.

The idea is from torch: AOTAutograd's functionalized RNG ops, with seed and offset.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_node, facts_of_overload
from engine.ir.node_metadata import checkpoint_of
from engine.ir.node_values import called_overload, results_of
from engine.torch_private.operators import OpOverload

Node = torch.fx.Node

_ORIGINAL_OPS: dict[Any, tuple[OpOverload, bool]] = {}
"""Random ops by their variant that takes an RNG state; True if they fill new memory."""


_VARIANTS: dict[Any, tuple[OpOverload, bool, int]] = {}
"""Both variants of random ops: (op, True if it fills new memory, variant number)."""


def is_random(node: Node) -> bool:
    """Return True if a node samples from a random generator that outlives the call."""
    called = called_overload(node.target)
    return called is not None and facts_of_overload(called).draws_random


def get_rng_states(devices: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return the RNG states of devices: the full state of a CPU, seed and offset of a GPU."""
    return tuple(torch.get_rng_state() if d == "cpu" else torch.cuda.get_rng_state(d) for d in devices)


def set_rng_states(devices: Sequence[str], states: Sequence[torch.Tensor]) -> None:
    """Set the RNG states of CPU and CUDA devices."""
    for device, state in zip(devices, states, strict=True):
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


@contextlib.contextmanager
def with_rng_states(devices: Sequence[str], states: Sequence[torch.Tensor]) -> Iterator[None]:
    """Set RNG states inside the context, and restore the previous states after it."""
    now = get_rng_states(devices)
    set_rng_states(devices, states)
    try:
        yield
    finally:
        set_rng_states(devices, now)


@functools.cache
def _library() -> torch.library.Library:
    library = torch.library.Library("engine", "FRAGMENT")
    library.define("random_state(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl("random_state", lambda device: get_rng_states((str(device),))[0], "CompositeExplicitAutograd")
    fake = functools.partial(_fake_rng_state, torch.get_rng_state().numel())
    torch.library.register_fake("engine::random_state", fake, lib=library)
    return library


def _fake_rng_state(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size if device.type == "cpu" else 16, dtype=torch.uint8)


@functools.cache
def _rng_state_variants(target: OpOverload, is_filled: bool) -> tuple[Any, Any]:
    """Return two variants of a random op: one takes an RNG state, one also returns its state."""
    library = _library()
    name, _, text = str(target._schema).partition("(")
    name = name.replace("::", "_").replace(".", "_") + ("_in_place" if is_filled else "")
    run = bernoulli_into_new if is_filled else target
    parameters, _, results = text.rpartition(") -> ")
    state = "Tensor engine_state, " if parameters else "Tensor engine_state"
    several = f"{results[1:-1]}" if results.startswith("(") else results
    again, drawing = f"again_{name}", f"drawing_{name}"

    def run_again(state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with with_rng_states(_devices(args, kwargs), (state,)):
            return run(*args, **kwargs)

    def run_drawing(*args: Any, **kwargs: Any) -> Any:
        (state,) = get_rng_states(_devices(args, kwargs))
        result = run(*args, **kwargs)
        return (state, *result) if isinstance(result, tuple) else (state, result)

    def fake_drawing(*args: Any, **kwargs: Any) -> Any:
        result = target(*args, **kwargs)
        state = _fake_rng_state(torch.get_rng_state().numel(), torch.device(_devices(args, kwargs)[0]))
        return (state, *result) if isinstance(result, tuple) else (state, result)

    library.define(f"{again}({state}{parameters}) -> {results}")
    library.impl(again, run_again, "CompositeExplicitAutograd")
    torch.library.register_fake(f"engine::{again}", lambda _, *args, **kwargs: target(*args, **kwargs), lib=library)
    library.define(f"{drawing}({parameters}) -> (Tensor, {several})", tags=(torch.Tag.nondeterministic_seeded,))
    library.impl(drawing, run_drawing, "CompositeExplicitAutograd")
    torch.library.register_fake(f"engine::{drawing}", fake_drawing, lib=library)
    forms = getattr(torch.ops.engine, again).default, getattr(torch.ops.engine, drawing).default
    _ORIGINAL_OPS[forms[0]] = (target, is_filled)
    for number, form in enumerate(forms):
        _VARIANTS[form] = (target, is_filled, number)
    return forms


def bernoulli_into_new(tensor: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """Return ``tensor.bernoulli_(p)`` in new memory, sampled in memory order.

    ATen's functional form samples in another order.
    """
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


def _fills_new_memory(node: Node) -> bool:
    fills = node.target is torch.ops.aten.bernoulli.p
    return fills and node.all_input_nodes[0].target is torch.ops.aten.empty_like.default


def _devices(args: Any, kwargs: Any) -> tuple[str, ...]:
    """Return the device whose generator an op uses, as a tuple."""
    devices: list[torch.device] = []
    torch.fx.node.map_aggregate((args, kwargs), lambda v: devices.append(_device(v)) if _has_device(v) else None)
    return (str(devices[0]) if devices else "cpu",)


def _has_device(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.device))


def _device(value: Any) -> torch.device:
    return value if isinstance(value, torch.device) else value.device


def _supports_explicit_state(node: Node) -> bool:
    """Return True if a random op uses a default generator and returns only tensors."""
    schema = node.target._schema  # type: ignore[union-attr]
    if node.target.namespace == "engine" or facts_of_node(node).writes:  # type: ignore[union-attr]
        return False
    plain = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
    generators = [node.kwargs.get("generator"), *(a for a in node.args if isinstance(a, torch.Generator))]
    return plain and bool(schema.returns) and not any(g is not None for g in generators)


def make_rng_state_explicit(graph: torch.fx.Graph, *, outside_checkpoints_too: bool = False) -> int:
    """Make random ops take an RNG state that is read right before them; return their number.

    This applies to activation checkpoints, or to all ops with ``outside_checkpoints_too``.
    """
    count = 0
    for node in list(graph.nodes):
        if (
            not (outside_checkpoints_too or checkpoint_of(node) is not None)
            or not node.users
            or not is_random(node)
            or not _supports_explicit_state(node)
        ):
            continue
        again, _ = _rng_state_variants(node.target, _fills_new_memory(node))
        values = [n.meta.get("val") for n in node.all_input_nodes]
        device = torch.device(_devices((values, node.args), node.kwargs)[0])
        with graph.inserting_before(node):
            state = graph.create_node("call_function", _rng_state_op(), (device,), name="random_state")
            both = graph.call_function(again, (state, *node.args), dict(node.kwargs))
        state.meta = {"val": _rng_state_value(node, device)}
        both.meta = dict(node.meta)
        node.replace_all_uses_with(both)
        graph.erase_node(node)
        both._rename(node.name)
        count += 1
    return count


def _rng_state_op() -> Any:
    _library()
    return torch.ops.engine.random_state.default


def _rng_state_value(node: Node, device: torch.device) -> torch.Tensor:
    with results_of(node.meta["val"])[0].fake_mode:
        return _fake_rng_state(torch.get_rng_state().numel(), device)


def reads_rng_state(node: Node) -> bool:
    """Return True if a node reads an RNG state for the op that follows."""
    return node.target is _rng_state_op()


def takes_rng_state(node: Node) -> bool:
    """Return True if a node is a random op that takes an RNG state."""
    return node.target in _ORIGINAL_OPS


def save_rng_states(module: torch.fx.GraphModule) -> None:
    """Merge each RNG state read of a forward with its random op: the generator then advances."""
    graph = module.graph
    states = [n for n in graph.nodes if reads_rng_state(n)]
    for state in states:
        drawn = next(u for u in state.users if u.op == "call_function")
        original = _ORIGINAL_OPS[drawn.target]
        drawn.args = drawn.args[1:]
        if not state.users:  # nothing recomputes this op
            drawn.target = original[0]
        else:
            _return_rng_state(graph, state, drawn, _rng_state_variants(*original)[1])
        if not state.users:
            graph.erase_node(state)
    if states:
        module.recompile()


def _return_rng_state(graph: torch.fx.Graph, state: Node, drawn: Node, drawing: Any) -> None:
    value = drawn.meta["val"]
    is_several = isinstance(value, (tuple, list))
    with graph.inserting_before(drawn):
        both = graph.call_function(drawing, drawn.args, dict(drawn.kwargs))
        first = graph.call_function(operator.getitem, (both, 0))
    both.meta = {**drawn.meta, "val": (state.meta["val"], *value) if is_several else (state.meta["val"], value)}
    first.meta = dict(state.meta)
    state.replace_all_uses_with(first)
    if is_several:
        for item in list(drawn.users):
            assert item.target is operator.getitem
            item.args = (both, item.args[1] + 1)  # type: ignore[operator]
    else:
        with graph.inserting_before(drawn):
            result = graph.call_function(operator.getitem, (both, 1))
        result.meta = dict(drawn.meta)
        drawn.replace_all_uses_with(result)
    graph.erase_node(drawn)


def variant_name(target: Any) -> str:
    """Return the name of a variant that takes or returns an RNG state; empty for other ops."""
    variants = _VARIANTS.get(target)
    if variants is None:
        return "state" if str(target) == "engine.random_state.default" else ""
    original, is_filled, number = variants
    return f"form {number}{int(is_filled)} {original._schema.name}.{original._overloadname}"


def variant_by_name(name: str, find: Callable[[str], Any]) -> Any:
    """Return the variant with this name; None for other names.

    ``find`` returns a random op by name.
    """
    if name == "state":
        return _rng_state_op()
    if not name.startswith("form "):
        return None
    _, numbers, original = name.split(" ")
    return _rng_state_variants(find(original), numbers[1] == "1")[int(numbers[0])]
