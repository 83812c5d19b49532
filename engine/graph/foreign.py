"""Operators of somebody else's, told apart on disk by their schema and by all the Python code that decides what they become in a graph."""

from __future__ import annotations

import contextvars
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import torch
from torch._library import custom_ops, simple_registry
from torch._library.custom_ops import CustomOpDef

from engine.graph.code_text import NotFollowed, described
from engine.graph.made_by import replaced

Data = Any
_KERNELS_AT_RUN = re.compile(
    r"(?:CPU|CUDA|HIP|XPU|MPS|MTIA|XLA|IPU|HPU|VE|Lazy|PrivateUse[123]|(?:Sparse|Quantized|Nested)\w*)$"
)
"""Dispatch keys of kernels that only run with the graph: what they do is theirs, at each call."""
_OF_TORCH = re.compile(r"registered at \S*/torch/(?:library|_library/custom_ops)\.py:\d+ ")
_BY_DEFINITION = frozenset(
    {"Meta", "Autograd[alias]", "CompositeExplicitAutograd[alias]", "ADInplaceOrView", "BackendSelect"}
)
"""Kernels that an operator made by ``torch.library.custom_op`` has, and that follow from its definition."""
_BESIDE_A_FAKE = frozenset({"Meta", "CompositeExplicitAutograd[alias]"})
"""Kernels that tracing does not call where there is a fake."""
_open: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("open", default=())


def identity_of(operator: Any, plainly: Callable[[Any], Data]) -> str:
    """A digest of an overload, or of a packet of them, that is equal in any process where it would become the same in a graph.

    Raises:
        NotFollowed: something that decides it cannot be told from its code; the text says what.
    """
    if isinstance(operator, torch._ops.OpOverloadPacket):
        return ".".join(identity_of(getattr(operator, n), plainly) for n in sorted(operator.overloads()))
    name = operator.name()
    if name in _open.get():
        return f"again {name}"
    token = _open.set((*_open.get(), name))
    try:
        text = json.dumps(_definition(operator, plainly), sort_keys=True)
    except NotFollowed as error:
        raise NotFollowed(f"{name}: {error}") from None
    finally:
        _open.reset(token)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def traced_in_place() -> str:
    """An operator of ATen that graphs are traced through by somebody else's Python, which the dispatcher alone knows; empty when there is none."""
    found = (name.rpartition("/") for name in replaced())
    return next((f"aten::{name}" for name, _, key in found if not _KERNELS_AT_RUN.match(key)), "")


def operator_of(value: Any) -> Any:
    """The operator that a callable stands for; None when it is none."""
    if isinstance(value, CustomOpDef):
        return value._opoverload
    return value if isinstance(value, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else None


def _definition(operator: Any, plainly: Callable[[Any], Data]) -> Data:
    name = operator.name()
    entry = simple_registry.singleton.find(name)
    definition = custom_ops.OPDEFS.get(operator._schema.name)
    kernels = _kernels(name)
    fake = entry.fake_impl.kernel
    parts: dict[str, Data] = {
        "schema": str(operator._schema),
        "tags": sorted(map(str, operator.tags)),
        "keys": sorted(kernels),
        "effect": str(getattr(getattr(entry, "effect", None), "effect", None)),
    }
    if operator.py_kernels:
        raise NotFollowed(f"it has kernels of its own for {', '.join(sorted(map(str, operator.py_kernels)))}")
    if definition is not None:
        parts |= _made_by_definition(definition, kernels, plainly)
    else:
        parts["fake"] = _made_by_hand(kernels, fake, entry, plainly)
    return parts


def _made_by_definition(definition: CustomOpDef, kernels: dict[str, str], plainly: Callable[[Any], Data]) -> Data:
    for key, where in kernels.items():
        if not _KERNELS_AT_RUN.match(key) and not (key in _BY_DEFINITION and _OF_TORCH.match(where)):
            raise NotFollowed(f"the code of its {key} kernel cannot be read")
    rules = {str(cls): f for cls, f in definition._torch_dispatch_fns.items()}
    inside = [definition._init_fn if _is_decomposition(f) else f for f in rules.values()]
    functions = {
        "fake": definition._abstract_fn,
        "setup": definition._setup_context_fn,
        "backward": definition._backward_fn,
        "vmap": definition._vmap_fn,
        "rules": inside,
    }
    autocast = getattr(definition, "_autocast_dtype", {})
    return {
        "functions": {k: described(f, plainly) for k, f in functions.items()},
        "rules of": sorted(rules),
        "autocast": [[k, str(v)] for k, v in sorted(autocast.items())],
    }


def _is_decomposition(rule: Any) -> bool:
    """Whether a rule is torch's for operators that are traced into (``triton_op``)."""
    return getattr(rule, "__module__", "") == "torch._library.triton"


def _made_by_hand(kernels: dict[str, str], fake: Any, entry: Any, plainly: Callable[[Any], Data]) -> Data:
    if entry.torch_dispatch_rules._data:
        raise NotFollowed("it has rules for modes or subclasses")
    for key in kernels:
        if not (_KERNELS_AT_RUN.match(key) or (fake is not None and key in _BESIDE_A_FAKE)):
            raise NotFollowed(f"the code of its {key} kernel cannot be read")
    if fake is None:
        raise NotFollowed("no fake of it is known")
    return described(fake.func, plainly)


def _kernels(name: str) -> dict[str, str]:
    """The dispatch keys that an operator has kernels for, and where each was registered; not those that others took the place of."""
    lines = (line.partition(": ") for line in torch._C._dispatch_dump(name).splitlines())
    return {
        key: where
        for key, _, where in lines
        if where.startswith("registered at ") and key != "debug" and " " not in key
    }
