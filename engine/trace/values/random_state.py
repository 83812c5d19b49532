"""torch's random numbers: generators as inputs of the graph, seeds and states set and read by nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.global_state import GLOBAL_STATES
from engine.ir.in_graph import InGraph
from engine.ir.origin import Fixed, Origin
from engine.trace.checkpoint import TorchState
from engine.trace.graph_builder import evaluate
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.tensor import TensorValue
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def effect(tx: Tracer, name: str, run: Callable[..., Any], args: Args, example: Any = None) -> torch.fx.Node:
    """A node that changes or reads torch's state when the graph runs, and is not run while tracing."""
    nodes = tuple(force(tx, a).graph_arg(tx)[0] for a in args)
    node = tx.graph.add("call_function", InGraph(name, run, changes_state=True), nodes, {}, tx.node_origin())
    tx.note_handlers()
    node.meta["example_value"] = example
    return node


class GeneratorObject(Value):
    """A ``torch.Generator``: an input of the graph, or made by a node."""

    is_mutable = True

    def __init__(self, held: torch.Generator | None, origin: Origin | None, node: torch.fx.Node | None = None) -> None:
        self.held = held
        self.origin = origin
        self._node = node
        self.device = torch.device("cpu") if held is None else held.device

    def type(self) -> type:
        return torch.Generator

    def real(self) -> Any:
        return NotImplemented if self.held is None else self.held

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # Fakes draw nothing: they know no generator.
        return self.node(tx), None

    def node(self, tx: Tracer) -> torch.fx.Node:
        """The node that makes it, or the input."""
        if self._node is None:
            assert self.origin is not None
            self._node = tx.graph.placeholder(self.origin, None, self.held)
        return self._node

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "device":
            return Const(self.device)
        if not hasattr(torch.Generator, name):
            tx.raise_error(AttributeError, f"'torch._C.Generator' object has no attribute '{name}'")
        return MethodOf(self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        given = [*args, *kwargs.values()]
        match name:
            case "manual_seed":
                effect(tx, "manual_seed", torch.Generator.manual_seed, [self, *given])
                return self
            case "get_state":
                return _state_tensor(tx, effect(tx, "get_state", torch.Generator.get_state, [self]), self._state())
            case "set_state":
                effect(tx, "set_state", torch.Generator.set_state, [self, *given])
                return self
        raise Unsupported("unknown-call", f"Generator.{name} is called")

    def _state(self) -> torch.Tensor:
        return (self.held or torch.Generator(self.device)).get_state()

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node(cg.tx))


def _state_tensor(tx: Tracer, node: torch.fx.Node, real: torch.Tensor) -> Value:
    fake = evaluate(tx, "call_function", lambda: torch.empty(real.shape, dtype=real.dtype), [], {})
    node.meta["example_value"] = fake
    return TensorValue(node, fake)


@wraps(torch.Generator)
def _generator(tx: Tracer, real: torch.Generator, origin: Origin) -> Value:
    tx.guard_type(real, origin, "random numbers are drawn from it")
    return GeneratorObject(real, origin)


@special(torch.Generator)
def _make_generator(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = tx.constants([*args, *kwargs.values()])
    device = torch.device(given[0]) if given else torch.device("cpu")
    if device.type != "cpu":
        raise Unsupported("unknown-call", "a generator of an accelerator is made")
    return GeneratorObject(None, None, effect(tx, "Generator", torch.Generator, []))


@special(torch.manual_seed)
def _manual_seed(tx: Tracer, args: Args, kwargs: Words) -> Value:
    seed = args[0] if args else kwargs["seed"]
    effect(tx, "manual_seed", torch.manual_seed, [seed])
    default = torch.default_generator
    return GeneratorObject(default, Fixed(default, "torch.default_generator"))


@special(torch.get_rng_state)
def _get_rng_state(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _state_tensor(tx, effect(tx, "get_rng_state", torch.get_rng_state, []), torch.get_rng_state())


@special(torch.set_rng_state)
def _set_rng_state(tx: Tracer, args: Args, kwargs: Words) -> Value:
    effect(tx, "set_rng_state", torch.set_rng_state, [args[0] if args else kwargs["new_state"]])
    return NONE


class _AsBefore:
    """torch's global state as it was, to be put back when tracing ends."""

    def __init__(self) -> None:
        self._before = TorchState.now()

    def __exit__(self, *_: object) -> None:
        self._before.restore()


_SWITCHED = (
    "default_dtype",
    "deterministic",
    "deterministic_warn_only",
    "float32_matmul_precision",
    "attention_kernels",
)
"""Pieces of that state which the functions below set: the graph holds for what they were at the entry."""


def switches(switch: Callable[..., None]) -> None:
    """A function that sets a piece of torch's global state to a constant: at once for the rest of the trace, and in the graph."""

    @special(switch)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        given, named = tx.constants(args), dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        for state in _SWITCHED:
            tx.entry_state.setdefault(state, GLOBAL_STATES[state].read())
        tx.undo_at_end.append(_AsBefore())
        tx.fold(switch, *given, **named)
        effect(tx, switch.__name__, functools.partial(switch, *given, **named), [])
        return NONE


for _switch in (
    torch.set_default_dtype,
    torch.use_deterministic_algorithms,
    torch.set_deterministic_debug_mode,
    torch.set_float32_matmul_precision,
):
    switches(_switch)
