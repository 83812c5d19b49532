"""Dtype errors that eager raises and fake tensors miss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.node_values import tensors_in
from engine.torch_private.pytree import tree_leaves


def _with_list_forms(names: str) -> frozenset[str]:
    """Return names of operators, and of their forms for lists of tensors."""
    return frozenset(f"{prefix}{name}" for prefix in ("", "_foreach_") for name in names.split())


_PROMOTING = _with_list_forms(
    "add sub mul div subtract multiply divide true_divide floor_divide remainder fmod pow addcmul addcdiv lerp"
)
"""Operators whose in-place form computes in the promoted type of all operands."""


_TRUE_DIVISION_OPS = _with_list_forms("div divide true_divide")
"""Those of them that return fractions for integers too."""


_COMPARISON_OPS = frozenset(
    "gt lt ge le greater less greater_equal less_equal maximum minimum fmax fmin clamp clip".split()
)
"""Operators that compare by order; complex numbers have none."""


_OPERAND_TYPES = (torch.Tensor, bool, int, float, complex, torch.SymInt, torch.SymFloat)
"""Tensors and numbers, which may be symbolic."""


def check_dtype_errors(call: CheckedCall) -> Fallback | None:
    """Return a fallback if eager would raise a dtype error that fake tensors do not raise.

    Eager does not store values that the target dtype cannot hold, and does not order complex numbers. Dead code
    elimination would also remove the error.
    """
    return next((fallback for node in call.graph.graph.nodes if (fallback := _check_node(node)) is not None), None)


def _check_node(node: torch.fx.Node) -> Fallback | None:
    facts = facts_of_node(node)
    values = torch.fx.map_arg(node.args, lambda n: n.meta.get("example_value"))
    if facts.name in _COMPARISON_OPS and any(t.is_complex() for t in tensors_in(values)):
        return Fallback.for_node(
            node, AotFallback.COMPLEX_COMPARISON, "compares complex numbers, and eager raises an error"
        )
    if not facts.writes_first or facts.name not in _PROMOTING:
        return None
    fractions = facts.name in _TRUE_DIVISION_OPS and not node.kwargs.get("rounding_mode")
    for into, other in _promoted_operands(values):
        wide = torch.result_type(into, other)
        if fractions and not (wide.is_floating_point or wide.is_complex):
            wide = torch.get_default_dtype()
        if not torch.can_cast(wide, into.dtype):
            return Fallback.for_node(
                node, AotFallback.UNCASTABLE_WRITE, "writes a dtype that cannot be cast to the dtype of its target"
            )
    return None


def _promoted_operands(values: Sequence[Any]) -> Iterator[tuple[torch.Tensor, Any]]:
    """Yield each written tensor with each tensor or number that is promoted with it.

    A list pairs with the written tensors one by one; a single operand is promoted with all of them.
    """
    written = tensors_in(values[:1])
    for leaves in map(tree_leaves, values[1:]):
        operands = leaves * len(written) if len(leaves) == 1 else leaves
        for into, operand in zip(written, operands, strict=False):
            if isinstance(operand, _OPERAND_TYPES):
                yield into, operand
