"""torch's random number generators: graph inputs; nodes read and write seeds and states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.tensors.tensor import TensorVariable


def _emit_state_effect(tx: Tracer, name: str, run: Callable[..., Any], args: Args) -> torch.fx.Node:
    """Emit a node that reads or writes a generator at run time, not while tracing."""
    nodes = [realize(tx, a).as_node_arg(tx)[0] for a in args]
    return emit_effect(tx, GraphCallable(name, run, changes_state=True), nodes)


class TorchGeneratorVariable(Variable):
    """A ``torch.Generator``: a graph input or the result of a node."""

    real_object: torch.Generator | None
    source: Source | None
    _node: torch.fx.Node | None = None
    cls = torch.Generator
    is_mutable = True

    @property
    def device(self) -> torch.device:
        """The generator's device; traced code creates generators for the CPU only."""
        return torch.device("cpu") if self.real_object is None else self.real_object.device

    def as_python_object(self) -> Any:
        return NotImplemented if self.real_object is None else self.real_object

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # fake tensors sample no numbers and need no generator
        return self.node(tx), None

    def node(self, tx: Tracer) -> torch.fx.Node:
        """Return the node that creates the generator, or its placeholder."""
        if self._node is None:
            assert self.source is not None
            self._node = tx.graph.placeholder(self.source, None, self.real_object)
        return self._node

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "device":
            return ConstantVariable(self.device)
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        arguments = [*args, *kwargs.values()]
        match name:
            case "manual_seed":
                _emit_state_effect(tx, "manual_seed", torch.Generator.manual_seed, [self, *arguments])
                return self
            case "get_state":
                return _state_tensor(
                    tx, _emit_state_effect(tx, "get_state", torch.Generator.get_state, [self]), self._state()
                )
            case "set_state":
                _emit_state_effect(tx, "set_state", torch.Generator.set_state, [self, *arguments])
                return self
        raise Unsupported("random-generator", f"Generator.{name} is called")

    def _state(self) -> torch.Tensor:
        return (self.real_object or torch.Generator(self.device)).get_state()

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node(cg.tx))


def _state_tensor(tx: Tracer, node: torch.fx.Node, real: torch.Tensor) -> Variable:
    fake = evaluate_on_fakes(tx, "call_function", lambda: torch.empty(real.shape, dtype=real.dtype), [], {})
    node.meta["example_value"] = fake
    return TensorVariable(node, fake)


register_builder(torch.Generator)(
    guarded_builder(TorchGeneratorVariable, "random numbers are generated from it", by_type=True)
)


@register_rule(torch.Generator)
def _make_generator(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    constants = tx.as_python_constants([*args, *kwargs.values()])
    device = torch.device(constants[0]) if constants else torch.device("cpu")
    if device.type != "cpu":
        raise Unsupported("random-generator", "a generator for an accelerator is created")
    return TorchGeneratorVariable(None, None, _emit_state_effect(tx, "Generator", torch.Generator, []))


@register_bound_rule(torch.manual_seed)
def _manual_seed(tx: Tracer, seed: Variable) -> Variable:
    _emit_state_effect(tx, "manual_seed", torch.manual_seed, [seed])
    default = torch.default_generator
    return TorchGeneratorVariable(default, ConstantSource(default, "torch.default_generator"))


@register_rule(torch.get_rng_state)
def _get_rng_state(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return _state_tensor(tx, _emit_state_effect(tx, "get_rng_state", torch.get_rng_state, []), torch.get_rng_state())


@register_bound_rule(torch.set_rng_state)
def _set_rng_state(tx: Tracer, new_state: Variable) -> Variable:
    _emit_state_effect(tx, "set_rng_state", torch.set_rng_state, [new_state])
    return NONE
