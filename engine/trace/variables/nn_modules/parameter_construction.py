"""``nn.Parameter`` created in traced code, ``tensor.data = ...`` and ``Tensor.set_``.

They become opaque graph nodes, which run as traced, because they change more than tensor elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.ir.graph_callable import GraphCallable
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.tensors.tensor import TensorVariable

if TYPE_CHECKING:
    import torch.fx


class NewParameterVariable(TensorVariable):
    """A parameter created by the traced code."""

    def python_type(self) -> type:
        return torch.nn.Parameter


def _new_parameter(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad)


_NEW_PARAMETER = GraphCallable("parameter", _new_parameter, changes_state=True)


@register_rule(torch.nn.Parameter)
def _parameter(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    data = realize(tx, given.get("data", NONE))
    wanted = realize(tx, given.get("requires_grad", ConstantVariable(True)))
    if (
        type(data) is not TensorVariable
        or not wanted.is_constant
        or data.python_type() not in (torch.Tensor, torch.nn.Parameter)
        or tx.in_subgraph()
    ):
        raise Unsupported("module-creation", "torch.nn.parameter.Parameter is created")
    return _emit_parameter(tx, data, bool(wanted.constant))


def _emit_parameter(tx: Tracer, data: TensorVariable, requires_grad: bool) -> Variable:
    def over_fakes(fake: torch.Tensor, wanted: bool) -> torch.Tensor:
        return fake.detach().requires_grad_(wanted)

    fake = evaluate_on_fakes(tx, "call_function", _NEW_PARAMETER, [data.fake, requires_grad], {}, over_fakes)
    node = tx.graph.create_node(
        "call_function", _NEW_PARAMETER, (data.node(tx), requires_grad), {}, tx.node_provenance()
    )
    tx.fallback.update_op_in_try_block()
    node.meta["example_value"] = fake
    node.meta["version"] = 0 if fake.is_inference() else fake._version
    return NewParameterVariable(node, fake)
