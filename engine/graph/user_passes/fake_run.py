"""Run a graph on fake tensors, and describe its results: layouts, aliases, mutations."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.graph.verify import is_body
from engine.ir.introspection.symbols import has_unbacked_symbols, symbolic_numbers_in
from engine.ir.node_values import fake_tensors, first_fake_tensor, results_of, tensors_in
from engine.process_state import FAKE_TENSOR_LOGGER, silence_logger
from engine.torch_private.autograd import set_grad_enabled
from engine.torch_private.dispatch import enable_python_dispatcher
from engine.torch_private.fake_tensors import FakeTensorMode


@dataclass(frozen=True)
class GraphFacts:
    """Facts needed to run a stage's graphs on fake tensors.

    ``value_key``: key of fake values in ``node.meta``. ``make_inputs`` returns new fake inputs for each run.
    """

    mode: FakeTensorMode
    value_key: str
    make_inputs: Callable[[], Sequence[Any]]


@dataclass(frozen=True)
class GraphOutcome:
    """Results of a graph as its caller sees them, as text that can be compared."""

    results: tuple[tuple[tuple[str, str], ...], ...]
    """For each result, facts as (name, value)."""
    inputs: tuple[tuple[tuple[str, str], ...], ...]
    values: dict[torch.fx.Node, Any]
    """The fake value of each node."""


def run_on_fakes(module: torch.fx.GraphModule, facts: GraphFacts, unchanged: Collection[str]) -> GraphOutcome:
    """Run a graph on fake inputs.

    ``unchanged``: names of nodes whose recorded values are used if they create symbols, or take graphs as arguments.
    """
    grad = torch.is_grad_enabled()
    try:
        with facts.mode, silence_logger(FAKE_TENSOR_LOGGER):
            inputs = list(facts.make_inputs())
            versions = [_version(i) for i in inputs]
            dispatcher = enable_python_dispatcher() if symbolic_numbers_in(inputs) else contextlib.nullcontext()
            with dispatcher:
                runner = _FakeInterpreter(module, facts, frozenset(unchanged))
                results = results_of(runner.run(*inputs))
    finally:
        set_grad_enabled(grad)
    storages: dict[int, str] = {}
    for number, value in enumerate(inputs):
        for tensor in tensors_in(value):
            storages.setdefault(_storage(tensor), f"input {number}")
    described = []
    for number, value in enumerate(results):
        described.append(_describe(value, storages))
        for tensor in tensors_in(value):
            storages.setdefault(_storage(tensor), f"result {number}")
    after = [
        (*_layout(i), ("mutations", str(_version(i) > version))) for i, version in zip(inputs, versions, strict=True)
    ]
    return GraphOutcome(tuple(described), tuple(after), runner.values)


class _FakeInterpreter(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, facts: GraphFacts, unchanged: frozenset[str]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._facts = facts
        self._unchanged = unchanged
        self.values: dict[torch.fx.Node, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        stored = n.meta.get(self._facts.value_key)
        if n.name in self._unchanged and (any(map(is_body, n.all_input_nodes)) or creates_symbols(n, stored)):
            result = stored
        elif n.op == "get_attr" and not is_body(n):
            result = stored if fake_tensors(stored) else self._fake(super().run_node(n))
        else:
            result = super().run_node(n)
        self.values[n] = result
        return result

    def _fake(self, value: Any) -> Any:
        return self._facts.mode.from_tensor(value, static_shapes=True) if tensors_in(value) else value


def creates_symbols(node: torch.fx.Node, value: Any) -> bool:
    """Return True if a node's value has unbacked symbols that its inputs do not have."""
    read = [i.meta.get("val", i.meta.get("example_value")) for i in node.all_input_nodes]
    return has_unbacked_symbols(value) and not has_unbacked_symbols(read)


def _version(value: Any) -> int:
    """Return how often the tensors of a value were mutated."""
    return sum(t._version for t in tensors_in(value) if not t.is_inference())


def _storage(tensor: torch.Tensor) -> int:
    """Return the id of a tensor's storage; of a tensor without one, the tensor's own."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def _describe(value: Any, storages: dict[int, str]) -> tuple[tuple[str, str], ...]:
    aliases = sorted({storages[_storage(t)] for t in tensors_in(value) if _storage(t) in storages})
    return (*_layout(value), ("memory", f"that of {', '.join(aliases)}" if aliases else "its own"))


@functools.singledispatch
def _layout(value: Any) -> tuple[tuple[str, str], ...]:
    return (("type", type(value).__name__), ("value", str(value)))


@_layout.register
def _layout_of_tensor(value: torch.Tensor) -> tuple[tuple[str, str], ...]:
    return (
        ("shape", _sizes(value.shape)),
        ("dtype", str(value.dtype)),
        ("strides", _sizes(value.stride()) if value.layout == torch.strided else str(value.layout)),
        ("device", str(value.device)),
        ("requires_grad", str(value.requires_grad)),
    )


@_layout.register(tuple)
@_layout.register(list)
def _layout_of_sequence(value: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    return (("type", f"{type(value).__name__} of {len(value)}"), *(part for v in value for part in _layout(v)))


def _sizes(values: Sequence[Any]) -> str:
    return f"({', '.join(map(str, values))})"


def has_same_layout(first: Any, second: Any) -> bool:
    """Return True if two fake values have the same types, shapes, dtypes, strides and devices."""
    return _layout(first) == _layout(second)


def number_of_assumptions(mode: FakeTensorMode) -> int:
    """Return how many assumptions about symbolic sizes there are."""
    return 0 if mode.shape_env is None else len(mode.shape_env.guards)


def mode_of(module: torch.fx.GraphModule, key: str) -> FakeTensorMode | None:
    """Return the fake mode of a graph's values; None if it has no tensors."""
    fake = first_fake_tensor(n.meta.get(key) for n in module.graph.nodes)
    return None if fake is None else fake.fake_mode
