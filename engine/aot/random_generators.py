"""Give random ops the ``torch.Generator`` that the traced call passes.

Fake tensors sample nothing, so the graph is traced without generators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.graph.functionalize_rng import is_random
from engine.ir.fallback import FallbackRequired
from engine.ir.node_metadata import checkpoint_of, provenance_of
from engine.ir.traced_frame import GraphInput
from engine.torch_private.operators import OpOverload


def generator_positions(inputs: Sequence[GraphInput]) -> tuple[int, ...]:
    """Return the positions of ``torch.Generator`` inputs; the functional graph has none."""
    return tuple(n for n, i in enumerate(inputs) if isinstance(i.example_value, torch.Generator))


def pass_generators(traced: torch.fx.Graph, functional: torch.fx.Graph, inputs: Sequence[GraphInput]) -> None:
    """Pass generators to the random ops of ``functional``, as ``traced`` does.

    The nodes of ``functional`` have the provenance of the traced nodes that they are derived from.

    Raises:
        FallbackRequired: a generator has another use than to sample from it.
    """
    traced_inputs, own = traced.find_nodes(op="placeholder"), functional.find_nodes(op="placeholder")
    for position in generator_positions(inputs):
        own[position].meta["val"] = None
        for user in traced_inputs[position].users:
            if checkpoint_of(user) is not None:
                raise FallbackRequired(
                    AotFallback.GENERATOR_INPUT, f"{user.name} samples from a torch.Generator in a checkpoint"
                )
            origin = provenance_of(user).nodes
            draws = [n for n in functional.nodes if is_random(n) and provenance_of(n).nodes == origin]
            variants = [_variant_with_generator(n.target) for n in draws]
            if user.op == "output" or not variants or None in variants:
                raise FallbackRequired(
                    AotFallback.GENERATOR_INPUT,
                    f"{traced_inputs[position].name} is a torch.Generator, and not only sampled from",
                )
            for node, variant in zip(draws, variants, strict=True):
                node.target = variant
                node.update_kwarg("generator", own[position])


def _variant_with_generator(op: OpOverload) -> OpOverload | None:
    """Return the overload with the same parameters and a generator; None without one."""
    parameters = _parameters(op)
    packet = op.overloadpacket
    overloads = (getattr(packet, name) for name in packet.overloads())
    return next((o for o in overloads if _takes_generator(o) and _parameters(o) == parameters), None)


def _takes_generator(op: OpOverload) -> bool:
    return any(a.name == "generator" for a in op._schema.arguments)


def _parameters(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in op._schema.arguments if a.name != "generator"]
