"""Cache fingerprints of custom operators.

They cover the schema and all Python code that determines the operator's form in a graph.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from engine.cache.environment_key import overridden_aten_kernels
from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.cache.function_key import function_fingerprint
from engine.torch_private.dispatch import dispatch_dump
from engine.torch_private.operators import CustomOpDef, OpOverload, OpOverloadPacket, custom_ops, simple_registry

Data = Any
_RUNTIME_KEYS = re.compile(
    r"(?:CPU|CUDA|HIP|XPU|MPS|MTIA|XLA|IPU|HPU|VE|Lazy|PrivateUse[123]|(?:Sparse|Quantized|Nested)\w*)$"
)
"""Dispatch keys of kernels that run only at run time; graphs do not depend on them."""
_OF_TORCH = re.compile(r"registered at \S*/torch/(?:library|_library/custom_ops)\.py:\d+ ")
_CUSTOM_OP_KEYS = frozenset(
    {"Meta", "Autograd[alias]", "CompositeExplicitAutograd[alias]", "ADInplaceOrView", "BackendSelect"}
)
"""Dispatch keys of kernels that ``torch.library.custom_op`` derives from the definition."""
_KEYS_UNUSED_WITH_FAKE = frozenset({"Meta", "CompositeExplicitAutograd[alias]"})
"""Dispatch keys of kernels that tracing does not call if a fake implementation exists."""
_in_progress: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("open", default=())


def custom_op_fingerprint(operator: Any, plainly: Callable[[Any], Data]) -> str:
    """Return a digest of an operator overload or of a packet of overloads.

    Digests are equal in any process in which the operator has the same form in a graph.

    Raises:
        NotCached: Something that determines the form cannot be read from code; the text says what.
    """
    if isinstance(operator, OpOverloadPacket):
        return ".".join(custom_op_fingerprint(getattr(operator, n), plainly) for n in sorted(operator.overloads()))
    name = operator.name()
    if name in _in_progress.get():
        return f"again {name}"
    token = _in_progress.set((*_in_progress.get(), name))
    try:
        text = json.dumps(_op_description(operator, plainly), sort_keys=True)
    except NotCached as error:
        raise NotCached(error.fallback.kind, f"{name}: {error}") from None
    finally:
        _in_progress.reset(token)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def find_python_aten_override() -> str:
    """Return an ATen op whose tracing is overridden by Python outside of torch; empty if none.

    Only the dispatcher knows of such an override.
    """
    overrides = (name.rpartition("/") for name in overridden_aten_kernels())
    return next((f"aten::{name}" for name, _, key in overrides if not _RUNTIME_KEYS.match(key)), "")


def op_overload_of(value: Any) -> Any:
    """Return the operator behind a callable; None if it is no operator."""
    if isinstance(value, CustomOpDef):
        return value._opoverload
    return value if isinstance(value, (OpOverload, OpOverloadPacket)) else None


def _op_description(operator: Any, plainly: Callable[[Any], Data]) -> Data:
    name = operator.name()
    entry = simple_registry.singleton.find(name)
    definition = custom_ops.OPDEFS.get(operator._schema.name)
    kernels = _registered_kernels(name)
    fake = entry.fake_impl.kernel
    parts: dict[str, Data] = {
        "schema": str(operator._schema),
        "tags": sorted(map(str, operator.tags)),
        "keys": sorted(kernels),
        "effect": str(getattr(getattr(entry, "effect", None), "effect", None)),
    }
    if operator.py_kernels:
        raise NotCached(
            CacheFallback.CODE_NOT_DETERMINED,
            f"it has Python kernels for {', '.join(sorted(map(str, operator.py_kernels)))}",
        )
    if definition is not None:
        parts |= _describe_custom_op(definition, kernels, plainly)
    else:
        parts["fake"] = _describe_registered_op(kernels, fake, entry, plainly)
    return parts


def _describe_custom_op(definition: CustomOpDef, kernels: dict[str, str], plainly: Callable[[Any], Data]) -> Data:
    for key, where in kernels.items():
        if not _RUNTIME_KEYS.match(key) and not (key in _CUSTOM_OP_KEYS and _OF_TORCH.match(where)):
            raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"the code of its {key} kernel cannot be read")
    rules = {str(cls): f for cls, f in definition._torch_dispatch_fns.items()}
    inside = [definition._init_fn if is_triton_op_rule(f) else f for f in rules.values()]
    functions = {
        "fake": definition._abstract_fn,
        "setup": definition._setup_context_fn,
        "backward": definition._backward_fn,
        "vmap": definition._vmap_fn,
        "rules": inside,
    }
    autocast = getattr(definition, "_autocast_dtype", {})
    return {
        "functions": {k: function_fingerprint(f, plainly) for k, f in functions.items()},
        "rules of": sorted(rules),
        "autocast": [[k, str(v)] for k, v in sorted(autocast.items())],
    }


def is_triton_op_rule(rule: Any) -> bool:
    """Return True for torch's dispatch rule of operators that are traced into (``triton_op``)."""
    return getattr(rule, "__module__", "") == "torch._library.triton"


def _describe_registered_op(kernels: dict[str, str], fake: Any, entry: Any, plainly: Callable[[Any], Data]) -> Data:
    if entry.torch_dispatch_rules._data:
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, "it has dispatch rules for modes or subclasses")
    for key in kernels:
        if not (_RUNTIME_KEYS.match(key) or (fake is not None and key in _KEYS_UNUSED_WITH_FAKE)):
            raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"the code of its {key} kernel cannot be read")
    if fake is None:
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, "it has no fake kernel")
    return function_fingerprint(fake.func, plainly)


def _registered_kernels(name: str) -> dict[str, str]:
    """Return the dispatch keys of an operator's kernels and where each was registered.

    Kernels that others have replaced are not included.
    """
    lines = (line.partition(": ") for line in dispatch_dump(name).splitlines())
    return {
        key: where
        for key, _, where in lines
        if where.startswith("registered at ") and key != "debug" and " " not in key
    }
