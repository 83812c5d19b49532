"""A PyTorch compiler one can watch: trace, guard, functionalize, lower to Triton, record."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from engine import process_state  # noqa: F401 -- a fork from now on waits for imports
from engine.supported_versions import check_python

if TYPE_CHECKING:
    from engine.api import (
        bisect_accuracy,
        compile,
        compiled_autograd,
        doctor,
        expect,
        explain,
        explain_call,
        guards_of,
        list_backends,
        mark_dynamic,
        mark_static,
        measure_guards,
        measure_kernels,
        record,
        record_tensor_values,
        register_backend,
        reset,
        try_fixes,
        verify,
        wait,
    )
    from engine.editing.edit_graphs import edited, graph_text
    from engine.editing.minimize_graphs import minimize
    from engine.editing.tune_kernels import Tuning, tune
    from engine.errors import (
        BackendError,
        ConstraintViolation,
        EngineError,
        GraphBreak,
        NotATrace,
        PlanFailed,
        RecompileLimit,
        Unavailable,
        UnknownBackend,
        UnknownTarget,
    )
    from engine.ir.annotations import allow_in_graph, disable, graph_break, while_tracing
    from engine.ir.introspection.tensor_spec import TensorSpec
    from engine.observe.load_torch_trace import load_torch_trace
    from engine.observe.observe_torch import observe_torch
    from engine.observe.ranks.load_ranks import load_ranks
    from engine.options import config
    from engine.planning.plan_step import plan
    from engine.records.plan import Plan
    from engine.records.ranks.groups import RankGroups
    from engine.records.session import Session
    from engine.reproducers import reproducer
    from engine.user_passes import register_pass, replace_pattern

check_python()

_HOMES = {
    "engine.api": (
        "bisect_accuracy", "compile", "compiled_autograd", "doctor", "expect", "explain", "explain_call", "guards_of", "list_backends", "mark_dynamic", "mark_static", "measure_guards", "measure_kernels", "record_tensor_values",
        "record", "register_backend", "reset", "try_fixes", "verify", "wait",
    ),
    "engine.editing.edit_graphs": ("edited", "graph_text"),
    "engine.errors": (
        "BackendError", "ConstraintViolation", "EngineError", "GraphBreak", "NotATrace", "PlanFailed", "RecompileLimit", "Unavailable", "UnknownBackend", "UnknownTarget",
    ),
    "engine.ir.annotations": ("allow_in_graph", "disable", "graph_break", "while_tracing"),
    "engine.ir.introspection.tensor_spec": ("TensorSpec",),
    "engine.editing.minimize_graphs": ("minimize",),
    "engine.editing.tune_kernels": ("Tuning", "tune"),
    "engine.observe.observe_torch": ("observe_torch",),
    "engine.observe.load_torch_trace": ("load_torch_trace",),
    "engine.options": ("config",),
    "engine.planning.plan_step": ("plan",),
    "engine.observe.ranks.load_ranks": ("load_ranks",),
    "engine.records.plan": ("Plan",),
    "engine.records.ranks.groups": ("RankGroups",),
    "engine.records.session": ("Session",),
    "engine.user_passes": ("register_pass", "replace_pattern"),
    "engine.reproducers": ("reproducer",),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BackendError", "ConstraintViolation", "EngineError", "GraphBreak", "NotATrace", "Plan", "PlanFailed",
    "RankGroups", "RecompileLimit", "Session", "TensorSpec", "Tuning", "Unavailable", "UnknownBackend",
    "UnknownTarget", "allow_in_graph", "bisect_accuracy", "compile", "compiled_autograd", "config", "disable",
    "doctor", "edited", "expect", "explain", "explain_call", "graph_break", "graph_text", "guards_of",
    "list_backends", "load_ranks", "load_torch_trace", "mark_dynamic", "mark_static", "measure_guards",
    "measure_kernels", "minimize", "observe_torch", "plan", "record", "record_tensor_values", "register_backend",
    "register_pass", "replace_pattern", "reproducer", "reset", "try_fixes", "tune", "verify", "wait", "while_tracing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name on first use: loading a saved session does not import torch."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
