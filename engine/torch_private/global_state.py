"""Queries of global state; switches of ``torch.compile`` that users set."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._C import _get_cudnn_sdp_enabled as get_cudnn_sdp_enabled
    from torch._C import _get_deterministic_algorithms_warn_only as get_deterministic_algorithms_warn_only
    from torch._C import _get_flash_sdp_enabled as get_flash_sdp_enabled
    from torch._C import _get_float32_matmul_precision as get_float32_matmul_precision
    from torch._C import _get_math_sdp_enabled as get_math_sdp_enabled
    from torch._C import _get_mem_efficient_sdp_enabled as get_mem_efficient_sdp_enabled
    from torch._C import _get_mkldnn_enabled as get_mkldnn_enabled
    from torch._C import _get_overrideable_sdp_enabled as get_overrideable_sdp_enabled
    from torch._C import _get_sdp_priority_order as get_sdp_priority_order
    from torch._C import _get_tracing_state as get_tracing_state
    from torch._C import _is_tracing as is_tracing
    from torch._C import _set_sdp_priority_order as set_sdp_priority_order
    from torch._C import _set_sdp_use_cudnn as set_sdp_use_cudnn
    from torch._C import _set_sdp_use_flash as set_sdp_use_flash
    from torch._C import _set_sdp_use_math as set_sdp_use_math
    from torch._C import _set_sdp_use_mem_efficient as set_sdp_use_mem_efficient
    from torch._C import _set_sdp_use_overrideable as set_sdp_use_overrideable
    from torch._compile import _disable_dynamo as disable_dynamo
    from torch._utils import is_compiling
    from torch.fx import _symbolic_trace as symbolic_trace_queries

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, traced code that calls it breaks the graph:
    function torch.jit:_unwrap_optional -- Traced check for None of TorchScript.
    function torch._C:_get_deterministic_algorithms_warn_only -- Traced query of global state.
    function torch._utils:is_compiling -- Traced query.
If missing, calls under ``torch.jit.trace`` would run compiled (COMPILATION):
    function torch._C:_get_tracing_state () -- Asks if ``torch.jit.trace`` is active.
If missing, a change of the precision would be missed (COMPILATION):
    function torch._C:_get_float32_matmul_precision -- Precision of float32 products, for guards.
If missing, nothing is stored on disk (DISK_CACHE):
    function torch._C:_get_mkldnn_enabled () -- Asks if oneDNN is used, part of cache keys.
If missing, the order is not guarded:
    function torch._C:_get_sdp_priority_order -- Order in which attention kernels are tried.
If missing, the order is not restored:
    function torch._C:_set_sdp_priority_order (a) -- Sets the order in which attention kernels are tried.
If missing, the kernel is not guarded:
    function torch._C:_get_flash_sdp_enabled -- Asks if an attention kernel is enabled.
    function torch._C:_get_mem_efficient_sdp_enabled -- Asks if an attention kernel is enabled.
    function torch._C:_get_math_sdp_enabled -- Asks if an attention kernel is enabled.
    function torch._C:_get_cudnn_sdp_enabled -- Asks if an attention kernel is enabled.
    function torch._C:_get_overrideable_sdp_enabled -- Asks if an attention kernel is enabled.
If missing, the kernel is not restored:
    function torch._C:_set_sdp_use_flash -- Enables an attention kernel.
    function torch._C:_set_sdp_use_mem_efficient -- Enables an attention kernel.
    function torch._C:_set_sdp_use_math -- Enables an attention kernel.
    function torch._C:_set_sdp_use_cudnn -- Enables an attention kernel.
    function torch._C:_set_sdp_use_overrideable -- Enables an attention kernel.
If missing, modules break the graph:
    function torch._C:_is_tracing -- Traced query that calls of modules make since torch 2.14.
If missing, such functions break the graph:
    function torch._compile:_disable_dynamo -- Wrapper around functions of torch that Dynamo skips.
If missing, TORCH_LOGS prints nothing of the engine:
    function torch._logging:getArtifactLogger (module, artifact) alias=get_artifact_logger
        -- Logger of an artifact that ``TORCH_LOGS`` may name.
If missing, traced code that calls them breaks the graph:
    module torch.fx:_symbolic_trace alias=symbolic_trace_queries -- Module with the queries of fx tracing.
""")


DYNAMO_MODULES = frozenset(
    (
        "callback compiled_autograd config decorators eval_frame exc symbolic_convert trace_rules utils "
        "variables.functions"
    ).split()
)
"""Modules of Dynamo whose state the engine reads if the program loaded them."""


def loaded_dynamo_module(name: str) -> Any:
    """Return a module of Dynamo, or None if the program did not load it."""
    if name not in DYNAMO_MODULES:
        raise KeyError(name)
    return sys.modules.get(f"torch._dynamo.{name}")


STANCE_ATTR = "_stance"
"""Attribute of ``stance_module()`` that ``torch.compiler.set_stance`` replaces."""
DYNAMIC_SPEC_ATTR = "_dynamic_spec"
"""Attribute of a function that has torch's decorator ``dynamic_spec`` (since 2.15)."""
STATIC_DIMS_ATTR = "_dynamo_static_indices"
"""Attribute of a tensor: the dimensions that ``torch._dynamo.mark_static`` marked."""
DEFAULTS: Mapping[str, Any] = {
    "accumulated_recompile_limit": 256,
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": True,
    "capture_dynamic_output_shape_ops": False,
    "capture_scalar_outputs": False,
    "compiled_autograd": False,
    "error_on_recompile": False,
    "fail_on_recompile_limit_hit": False,
    "recompile_limit": 8,
    "specialize_float": False,
    "specialize_int": False,
    "suppress_errors": False,
    "verify_correctness": False,
}
"""Settings of ``torch._dynamo.config`` that the engine honors, with torch's defaults."""


def changed_setting(name: str) -> Any:
    """Return a setting of ``torch._dynamo.config``, or None if it is torch's default."""
    setting = getattr(loaded_dynamo_module("config"), name, DEFAULTS[name])
    return None if setting == DEFAULTS[name] else setting


def is_compiling_disabled() -> bool:
    """Return True if ``torch._dynamo.config.disable`` or ``TORCH_COMPILE_DISABLE`` is set."""
    by_environment = os.environ.get("TORCH_COMPILE_DISABLE", "0") == "1"
    return bool(getattr(loaded_dynamo_module("config"), "disable", by_environment))


def is_listed_as_static(source: str, dim: int | None = None) -> bool:
    """Return True if the user listed a source, or one dimension of it, in ``static_sources``.

    The setting came with torch 2.15.
    """
    return _matches(_compiler_setting("static_sources"), source, dim)


def is_listed_as_dynamic(source: str, listed: Sequence[str] = (), dim: int | None = None) -> bool:
    """Return True if the user listed a source, or one dimension of it, as dynamic.

    ``dynamic_sources`` and ``unbacked_sources`` of ``torch.compiler.config`` are searched, and ``listed``.
    """
    stock = [*_compiler_setting("dynamic_sources"), *_compiler_setting("unbacked_sources")]
    return _matches([*listed, *stock], source, dim)


def lists_dynamic_sources() -> bool:
    """Return True if the user listed any source in ``torch.compiler.config`` as dynamic."""
    config = sys.modules.get("torch.compiler.config")
    return bool(getattr(config, "dynamic_sources", "") or getattr(config, "unbacked_sources", ""))


def listed_range(
    source: str, listed: Sequence[tuple[str, int | None, int | None]], dim: int | None = None
) -> tuple[int | None, int | None]:
    """Return the bounds that the user gave for a source, or for one dimension of it."""
    return next(((low, high) for pattern, low, high in listed if _matches([pattern], source, dim)), (None, None))


def _compiler_setting(name: str) -> list[str]:
    """Return the entries of a setting of ``torch.compiler.config``, separated by commas."""
    text = str(getattr(sys.modules.get("torch.compiler.config"), name, "") or "")
    return [entry for entry in text.replace(" ", "").split(",") if entry]


def _matches(entries: Sequence[str], source: str, dim: int | None) -> bool:
    """Return True if an entry is a pattern for the source; ``pattern:0`` is for one dimension."""
    for entry in entries:
        pattern, colon, digits = entry.rpartition(":")
        is_for_one = bool(colon) and digits.isdigit()
        pattern = pattern if is_for_one else entry
        if (not is_for_one or dim in (None, int(digits))) and (pattern == source or re.match(pattern, source)):
            return True
    return False


def stance_module() -> Any:
    """Return the module with the attribute ``STANCE_ATTR``; None if it is not loaded."""
    module = loaded_dynamo_module("eval_frame")
    return module if hasattr(module, STANCE_ATTR) else None


def lookup_torch_backend(name: str) -> Callable[..., Any] | None:
    """Return the backend that torch knows by this name, or None."""
    registry = importlib.import_module("torch._dynamo.backends.registry")
    if name not in registry.list_backends(exclude_tags=()):
        return None
    backend: Callable[..., Any] = registry.lookup_backend(name)
    return backend


def compile_callbacks(compile_id: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context that runs the user's callbacks before and after a compilation."""
    module = loaded_dynamo_module("callback")
    handler = getattr(module, "callback_handler", None)
    if handler is None or not (handler.start_callbacks or handler.end_callbacks):
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = handler.install_callbacks(module.CallbackTrigger.DYNAMO, compile_id)
    return scope


class _ResetToken:
    """An object that only a table of Dynamo holds: ``torch.compiler.reset`` clears the table."""

    __slots__ = ("__weakref__",)


_tokens: weakref.WeakSet[_ResetToken] = weakref.WeakSet()


def call_at_reset(reset: Callable[[], None]) -> None:
    """Call ``reset`` once, when ``torch.compiler.reset`` is called next."""
    table = getattr(loaded_dynamo_module("utils"), "guard_failures", None)
    if table is None or _tokens:
        return
    token = _ResetToken()
    table[token] = []
    _tokens.add(token)
    weakref.finalize(token, reset).atexit = False
