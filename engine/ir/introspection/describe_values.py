"""Short text for a value, a type, a dtype or arguments."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from engine.ir.introspection.python_objects import (
    SINGLETON_TYPES,
    builtin_base,
    builtin_len,
    class_dict,
    instance_dict,
    is_dtensor_placement,
)
from engine.ir.introspection.tensor_spec import TensorSpec
from engine.ir.sources.base import STACK_PARAM_PREFIX
from engine.torch_private.torch_function import DisableTorchFunction

SHORT_DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
"""dtype -> short name; other dtypes print without the "torch." prefix."""


def short_dtype(dtype: torch.dtype) -> str:
    """Return the short name of a dtype: ``f32`` for ``torch.float32``."""
    return SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def describe(value: Any, depth: int = 0) -> str:
    """Describe a value in a few words: ``f32[4, 16]``, ``5``, ``'abc'``, ``list of 3``.

    Runs no user ``__repr__``.
    """
    kind = type(value)
    if kind in (int, float, bool, type(None)):
        return repr(value)
    if kind is TensorSpec:
        return _tensor_text(value.dtype, value.shape, value.device)
    if builtin_base(kind, (torch.Tensor,)) is not None:
        return _describe_tensor(value)
    if (
        kind in (int, float, complex, bool, type(None), type(Ellipsis), slice, range)
        or kind in SINGLETON_TYPES
        or kind is torch.device
        or is_dtensor_placement(value)
    ):
        return repr(value)
    if kind in (str, bytes):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"
    if kind in (tuple, torch.Size) and len(value) <= 8 and depth < 2:
        inner = ", ".join(describe(v, depth + 1) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if builtin_base(kind, (list, tuple, dict, set, frozenset)) is not None:
        count = builtin_len(value)
        return f"{kind.__name__} of {count}" if count else f"empty {kind.__name__}"
    if builtin_base(kind, (enum.Enum,)) is not None:
        return f"{kind.__name__}.{instance_dict(value).get('_name_', '?')}"
    if kind is types.FunctionType:
        return f"function {value.__qualname__}"
    if kind is types.ModuleType:
        return f"module {value.__dict__.get('__name__', '?')}"
    if issubclass(kind, type):
        return f"class {type_name(value)}"
    if kind is np.ndarray:
        return f"ndarray {value.dtype.name}[{', '.join(map(str, value.shape))}]"
    return f"{kind.__name__} object" if builtin_base(kind, (torch.nn.Module,)) is None else kind.__name__


def _describe_tensor(value: Any) -> str:
    try:
        with DisableTorchFunction():
            dtype: Any = torch.Tensor.dtype.__get__(value)  # type: ignore[attr-defined]
            return _tensor_text(dtype, torch.Tensor.size(value), torch.Tensor.device.__get__(value))
    except RuntimeError:
        return type(value).__name__


def type_name(cls: type) -> str:
    """Return the qualified class name, unqualified for builtins and ``__main__``.

    Examples: ``torch.Tensor``, ``int``, ``MyModule``.
    """
    space = class_dict(cls)
    module = space.get("__module__", "builtins")
    name = type.__dict__["__qualname__"].__get__(cls)
    return str(name) if module in ("builtins", "__main__") or not isinstance(module, str) else f"{module}.{name}"


MAX_DICT_ITEMS = 8
"""Maximum number of dict items that are described one by one."""


def describe_arguments(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Describe the arguments of a frame.

    Stack values passed to a resume function have generated names and are left out.
    """
    return {
        name: _describe_argument(value) for name, value in arguments.items() if not name.startswith(STACK_PARAM_PREFIX)
    }


_IMMUTABLE = {int, float, bool, type(None)}


def snapshot(value: Any) -> Any:
    """Return what ``describe_snapshots`` needs to describe an argument later; holds no tensor."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        try:
            return (value.dtype, value.shape, value.device)
        except RuntimeError:  # a nested tensor has no shape
            return _describe_tensor(value)
    return value if kind in _IMMUTABLE else _describe_argument(value)


def describe_snapshots(names: Sequence[str], snapshots: Sequence[Any]) -> dict[str, str]:
    """Describe arguments by their snapshots, as ``describe_arguments`` describes them."""
    return {
        name: _SNAPSHOT_TEXTS.get(type(snapshot), describe)(snapshot)
        for name, snapshot in zip(names, snapshots, strict=True)
        if not name.startswith(STACK_PARAM_PREFIX)
    }


def _tensor_text(dtype: torch.dtype, shape: Sequence[Any], device: torch.device) -> str:
    text = f"{short_dtype(dtype)}[{', '.join(map(str, shape))}]"
    return text if device.type == "cpu" else f"{text} {device}"


_SNAPSHOT_TEXTS: dict[type, Callable[[Any], str]] = {tuple: lambda fields: _tensor_text(*fields), str: str}


def _describe_argument(value: Any) -> str:
    """Describe a value; a small dict such as ``**kwargs`` with its items."""
    if type(value) is not dict or not 0 < len(value) <= MAX_DICT_ITEMS or any(type(k) is not str for k in value):
        return describe(value)
    return f"{{{', '.join(f'{k!r}: {describe(v, 1)}' for k, v in value.items())}}}"
