"""Activation checkpoint trials: a recorded training call, compiled under other policies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from engine.editing.try_edits import Trial, calls_of, with_target
from engine.errors import BadArgument
from engine.forked_run import graphs_use_gpu, run_in_fork
from engine.records.aot import CheckpointTrial
from engine.records.base import from_jsonable
from engine.records.session import Session, SessionData
from engine.runtime.dispatch.recorded_arguments import ValueUnavailable, resolve_argument

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
"""Operators whose results are costly to compute again."""
_IMPORTS = "from torch.utils.checkpoint import checkpoint"
_SELECTIVE = """from functools import partial
{imports}, create_selective_checkpoint_contexts as contexts

saved = [{products}]
checkpoint({name}, ..., use_reentrant=False, context_fn=partial(contexts, saved))"""


def try_checkpoints(session: Session, compilation: str) -> list[CheckpointTrial]:
    """Compile a recorded training call under each policy, in forked processes.

    Inputs are new tensors of the recorded shapes. Results and gradients are compared with eager.

    Args:
        session: recorded in this process.
        compilation: id of the compilation ("0/0").

    Raises:
        BadArgument: there is no such compilation, or its call cannot be replayed.
    """
    try:
        dispatch, calls = calls_of(session, compilation)
        arguments = [{n: resolve_argument(v) for n, v in calls[-1].arguments.items()}]
    except ValueUnavailable as error:
        raise BadArgument(f"The call cannot be replayed: {error}.") from error
    trial = Trial(dispatch, calls[-1], arguments, with_target(dispatch.compiler.options))
    name = dispatch.function.__qualname__.rpartition("<locals>.")[2]
    products = ", ".join(f"torch.ops.aten.{p}.default" for p in _PRODUCTS)
    selective = _SELECTIVE.format(imports=_IMPORTS, products=products, name=name)
    policies: list[tuple[str, str, Mapping[str, Any]]] = [
        ("Recompute everything", f"{_IMPORTS}\n\ncheckpoint({name}, ..., use_reentrant=False)", {}),
        ("Save matrix products and convolutions, recompute the rest", selective, {"context_fn": _save_products}),
    ]
    return [_try_policy(session, trial, *policy) for policy in policies]


def _save_products() -> Any:
    return create_selective_checkpoint_contexts([getattr(torch.ops.aten, name).default for name in _PRODUCTS])


def _checkpointed(options: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*values: Any, **named: Any) -> Any:
        return checkpoint(function, *values, use_reentrant=False, **options, **named)

    return checkpointed


def _try_policy(session: Session, trial: Trial, policy: str, code: str, options: Mapping[str, Any]) -> CheckpointTrial:
    wrap = functools.partial(_checkpointed, options)
    result = run_in_fork(lambda: trial.run_wrapped(wrap), uses_gpu=graphs_use_gpu(session))
    problem = result.problem.partition("\n")[0] or result.value.get("problem", "")
    if problem:
        return CheckpointTrial(policy, code, problem=problem.rstrip("."))
    after = Session.from_data(from_jsonable(SessionData, result.value["after"], "after"))
    for compilation in reversed(after.compilations):
        partition = compilation.aot.partition if compilation.aot else None
        if partition is not None:
            peaks = tuple(record.peak_bytes for record in compilation.memory)
            saved = [v for v in partition.values if v.action == "saved" and v.bytes]
            largest = max(saved, key=lambda v: v.bytes, default=None)
            difference = result.value["difference"]
            return CheckpointTrial(policy, code, partition.saved_bytes, peaks, difference, largest=largest)
    return CheckpointTrial(policy, code, problem="no backward was compiled")
