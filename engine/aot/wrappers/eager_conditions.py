"""Run the traced graph in eager mode in calls that compiled code does not support.

Functorch transforms, forward-mode AD and user-defined hooks must see the original operators. Mutating a leaf that requires grad must raise eager's error.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch.autograd import forward_ad

from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode
from engine.ir.aot.aot_metadata import AotMetadata
from engine.torch_private.autograd import top_saved_tensors_default_hooks
from engine.torch_private.functorch import are_functorch_transforms_active

NAME = ""
NEEDS = attrgetter("requires_grad")

_LOSSLESS_HOOK_MODULES = ("torch.", "engine.")
"""Packages whose saved tensor hooks return exactly what was saved.

Examples are checkpoints and ``save_on_cpu``.
"""


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return the conditions, as expressions."""
    plan = call.metadata
    # A gradient that the graph computes calls them.
    hooks = [f"i{n}._backward_hooks" for n, i in enumerate(plan.inputs) if plan.calls_autograd and i.is_tensor]
    if call.autograd is None:
        leaves = [n for n, i in enumerate(plan.inputs) if i.metadata_mutation_seen_by_autograd]
        return PreCompileResult(call, (), hooks + [f"(i{n}.is_leaf and i{n}.requires_grad)" for n in leaves])
    conditions = [
        "backward.runs_as_traced and not saving_hooks(False)",  # a checkpoint must save the same tensors again
        *hooks,
        "transforms()",
        "forward_ad._current_level >= 0",
        "saving_hooks(False) and is_seen_by_users(saving_hooks)",
    ]
    return PreCompileResult(
        call, (), conditions + [f"i{n}.is_leaf" for n in call.autograd.grad_inputs if _is_written(plan, n)]
    )


def _is_written(plan: AotMetadata, n: int) -> bool:
    i = plan.inputs[n]
    return i.metadata_mutation_seen_by_autograd or (i.is_mutated and not i.mutation_hidden_from_autograd)


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return code that runs the traced graph if a condition is true.

    A call without a backward runs under ``no_grad``.
    """
    conditions: list[str] = change.runtime_metadata
    names: dict[str, Any] = {
        "as_traced": change.call.run_eager,
        "backward": change.call.backward,
        "transforms": are_functorch_transforms_active,
        "forward_ad": forward_ad,
        "saving_hooks": top_saved_tensors_default_hooks,
        "is_seen_by_users": _has_user_saved_tensor_hooks,
    }
    run_eager = f"    return as_traced({', '.join(f'i{n}' for n in range(len(change.call.input_names)))})"
    return WrapperCode(
        before=(f"if {' or '.join(conditions)}:", run_eager) if conditions else (),
        disables_grad=change.call.autograd is None,
        namespace=names,
    )


def _has_user_saved_tensor_hooks(saving_hooks: Callable[[bool], Any]) -> bool:
    """Return True if user-defined saved tensor hooks are active.

    They may return something else, and a compiled graph saves other tensors than eager.
    """
    return any(not str(getattr(h, "__module__", "")).startswith(_LOSSLESS_HOOK_MODULES) for h in saving_hooks(False))
