"""Dtype errors that eager raises and fake tensors miss."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import example_tensor, tensors_in

_PROMOTING = frozenset(
    (
        "add sub mul div subtract multiply divide true_divide floor_divide remainder fmod pow addcmul addcdiv lerp"
    ).split()
)
"""Operators whose in-place form computes in the promoted type of all operands."""


_TRUE_DIVISION_OPS = frozenset(("div", "divide", "true_divide"))
"""Those of them that return fractions for integers too."""


_COMPARISON_OPS = frozenset(
    "gt lt ge le greater less greater_equal less_equal maximum minimum fmax fmin clamp clip".split()
)
"""Operators that compare by order; complex numbers have none."""


def check_dtype_errors(call: CheckedCall) -> Fallback | None:
    """Return a fallback if eager would raise a dtype error that fake tensors do not raise.

    Eager does not store values that the target dtype cannot hold, and does not order complex numbers. Dead code
    elimination would also remove the error.
    """
    return next((found for node in call.graph.graph.nodes if (found := _check_node(node)) is not None), None)


def _check_node(node: torch.fx.Node) -> Fallback | None:
    facts = facts_of_node(node)
    values = torch.fx.map_arg(node.args, example_tensor)
    if facts.name in _COMPARISON_OPS and any(t.is_complex() for t in tensors_in(values)):
        return Fallback.for_node(
            node, AotFallback.COMPLEX_COMPARISON, "compares complex numbers, and eager raises an error"
        )
    into = example_tensor(node.args[0]) if node.args else None
    if into is None or not facts.writes_first or facts.name not in _PROMOTING:
        return None
    fractions = facts.name in _TRUE_DIVISION_OPS and not node.kwargs.get("rounding_mode")
    for other in (v for v in values[1:] if isinstance(v, (torch.Tensor, bool, int, float, complex))):
        wide = torch.result_type(into, other)
        if fractions and not (wide.is_floating_point or wide.is_complex):
            wide = torch.get_default_dtype()
        if not torch.can_cast(wide, into.dtype):
            return Fallback.for_node(
                node, AotFallback.UNCASTABLE_WRITE, "writes a dtype that cannot be cast to the dtype of its target"
            )
    return None
