"""Snapshot of global state, to compare before and after a compilation that failed."""

from __future__ import annotations

import builtins
import gc
import hashlib
import logging
import os
import pathlib
import random
import signal
import sys
import threading
import warnings
from typing import Any

import numpy as np
import torch

from engine.ir.current_session import current_session, slow_dispatch_tokens
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.runtime.dispatch import dispatcher
from engine.torch_private.dispatch import dispatch_tls_local_exclude_set, dispatch_tls_local_include_set
from engine.torch_private.fake_tensors import TracingContext

_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_module_registration_hooks",
)


def global_state() -> dict[str, Any]:
    """Return what a compilation must leave as it found it, by name."""
    return {**_python_state(), **_torch_state(), **_engine_state()}


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two snapshots."""
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def _python_state() -> dict[str, Any]:
    loggers = [n for n, found in logging.Logger.manager.loggerDict.items() if isinstance(found, logging.Logger)]
    return {
        "recursion limit": sys.getrecursionlimit(),
        "signal handlers": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "loggers": {n: _logger_state(logging.getLogger(n)) for n in sorted(loggers)},
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
        "import": (builtins.__import__, tuple(sys.meta_path), tuple(sys.path)),
        "modules": frozenset(sys.modules),
        "garbage collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "environment": dict(os.environ),
        "folder": pathlib.Path.cwd(),
        "random": hash(random.getstate()),
        "numpy random": _digest(np.random.get_state()[1].tobytes()),  # noqa: NPY002 -- the global generator is the state
        "streams": (sys.stdout, sys.stderr, sys.stdin),
    }


def _logger_state(logger: logging.Logger) -> tuple[Any, ...]:
    return logger.disabled, logger.level, logger.propagate, tuple(logger.handlers), tuple(logger.filters)


def _torch_state() -> dict[str, Any]:
    return {
        **{name: repr(state.read()) for name, state in GLOBAL_STATES.items() if name != "handling"},
        "anomaly with checks": torch.is_anomaly_check_nan_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "threads": torch.get_num_threads(),
        "torch random": _digest(torch.get_rng_state().numpy().tobytes()),
        "module hooks": [len(getattr(torch.nn.modules.module, name)) for name in _HOOKS],
        "dispatch keys": (str(dispatch_tls_local_include_set()), str(dispatch_tls_local_exclude_set())),
        "fx": (torch.fx.traceback.has_preserved_node_meta(), repr(torch.fx.traceback.get_current_meta())),
        "tracing context": TracingContext.try_get(),
    }


def _engine_state() -> dict[str, Any]:
    return {
        "compiling": dispatcher._compiling.is_compiling,
        "slow dispatch": len(slow_dispatch_tokens),
        "session": current_session(),
        "locks": (dispatcher.COMPILE_LOCK._is_owned(), dispatcher._order_lock.locked()),  # type: ignore[attr-defined]
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
