"""Order of effectful operators: none is removed, duplicated or reordered.

Operators that only have effects pass tokens to each other (effect tokens). Others may have effects as well; a check
of the forward and backward graph verifies their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import torch.fx

from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode
from engine.graph.functionalize_rng import is_random
from engine.graph.passes.eliminate_dead_code import has_effect
from engine.graph.verify import GraphVerificationError
from engine.records.aot import WrapperAction

NAME = "effects in order"
NEEDS = attrgetter("metadata.effectful_ops")


def has_effects(node: torch.fx.Node) -> bool:
    """Return True if an operator may do more than return results and sample random numbers."""
    return node.op == "call_function" and has_effect(node) and not is_random(node)


def effectful_ops(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Return the names of the effectful operators, in order."""
    return tuple(n.name for n in module.graph.nodes if has_effects(n))


def check_effect_order(joint: torch.fx.GraphModule, halves: Iterable[torch.fx.GraphModule], title: str) -> None:
    """Check that the parts of a graph have its effects, each once and in the graph's order.

    Raises:
        GraphVerificationError: they do not.
    """
    expected = effectful_ops(joint)
    effects = [effectful_ops(half) for half in halves]
    in_order = all(list(names) == [n for n in expected if n in names] for names in effects)
    if not in_order or sorted(expected) != sorted(n for names in effects for n in names):
        raise GraphVerificationError(title, ("forward and backward do not have its side effects in its order",))


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return one action per effectful operator."""
    names = call.metadata.effectful_ops
    why = "it may have side effects: they must happen once, in program order"
    actions = tuple(WrapperAction(name, f"runs as effect {n + 1} of {len(names)}", why) for n, name in enumerate(names))
    return PreCompileResult(call, actions)


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return no code: this wrapper does nothing at run time."""
    return WrapperCode()
