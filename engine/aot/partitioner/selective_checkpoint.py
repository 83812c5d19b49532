"""Selective activation checkpoints: query the user's policy once per operator.

The protocol is torch's (``torch.utils.checkpoint.create_selective_checkpoint_contexts``): a function of a context,
an operator and its arguments.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from engine.ir.node_metadata import policy_of
from engine.ir.node_values import called_overload

_SAVED = {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE}

_POLICY_RESULT_KEY = "engine_is_to_be_saved"


def policy_saves(node: torch.fx.Node) -> bool:
    """Return True if the policy of the node's checkpoint saves its result.

    The policy runs once per node. Its exceptions propagate.
    """
    if _POLICY_RESULT_KEY not in node.meta:
        node.meta[_POLICY_RESULT_KEY] = _evaluate_policy(node)
    return bool(node.meta[_POLICY_RESULT_KEY])


def _evaluate_policy(node: torch.fx.Node) -> bool:
    policy = policy_of(node)
    if policy is None or called_overload(node.target) is None:
        return False
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: n.meta.get("val"))
    facts: dict[str, Any] = {"is_recompute": False, "op_output": node.meta.get("val")}
    accepted = inspect.signature(SelectiveCheckpointContext).parameters
    context: Any = SelectiveCheckpointContext(**{k: v for k, v in facts.items() if k in accepted})
    answer = policy(context, node.target, *args, **kwargs)
    return bool(answer) if isinstance(answer, bool) else answer in _SAVED
