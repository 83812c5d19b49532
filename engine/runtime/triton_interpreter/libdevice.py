"""``libdevice`` for Triton's interpreter on the CPU, implemented by torch functions."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

_SAME_NAME = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "erfinv",
    "exp", "exp2", "expm1", "floor", "fmod", "hypot", "lgamma", "log", "log10", "log1p", "log2", "nextafter", "pow", "rsqrt", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_MODULES = ("libdevice", "cuda.libdevice", "hip.libdevice")

TORCH_EQUIVALENTS: Mapping[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "rint": torch.round,  # both round half to even
    "nearbyint": torch.round,
    "round": lambda x: torch.copysign(torch.floor(x.abs() + 0.5), x),  # C semantics: rounds half away from zero
    "llrint": lambda x: torch.round(x).to(torch.int64),
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    **{name: getattr(torch.special, f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")},
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "erfcx": torch.special.erfcx,
    "cbrt": lambda x: torch.copysign(x.abs().double().pow(1 / 3).to(x.dtype), x),
    "fma": lambda x, y, z: torch.addcmul(z.double(), x.double(), y.double()).to(x.dtype),
    "fdim": lambda x, y: torch.clamp(x - y, min=0),
    "ldexp": torch.ldexp,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "finitef": torch.isfinite,
    "isfinited": torch.isfinite,
    "signbit": lambda x: torch.signbit(x).to(torch.int32),
    **{f"fast_{name}f": getattr(torch, name) for name in ("exp", "sin", "cos", "log", "tan")},
    "fast_dividef": torch.div,
    "div_rn": torch.div,
    "sqrt_rn": torch.sqrt,
}


@functools.cache
def install_libdevice() -> None:
    """Replace the functions of Triton's ``libdevice`` modules, once per process.

    A function without an equivalent in ``TORCH_EQUIVALENTS`` raises NotImplementedError when it is called.
    """
    for path in _MODULES:
        try:
            module = importlib.import_module(f"triton.language.extra.{path}")
        except ImportError:
            continue
        _replace_functions(module)


def _replace_functions(module: ModuleType) -> None:
    for name, member in inspect.getmembers(module, callable):
        if name.startswith("_") or inspect.isclass(member):
            continue
        equivalent = TORCH_EQUIVALENTS.get(name)
        setattr(module, name, _elementwise(equivalent) if equivalent else _missing(name))


def _missing(name: str) -> Callable[..., Any]:
    def call(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError(f"the interpreter has no libdevice.{name}")

    return call


def _elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Apply a torch function to the interpreter's tensors, which hold numpy arrays."""

    def call(*arguments: Any, _semantic: object = None) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        is_block = any(isinstance(a, tl.tensor) and a.type.is_block() for a in arguments)
        first = next(a.handle.data for a in arguments if isinstance(a, tl.tensor))
        arrays = [
            a.handle.data if isinstance(a, tl.tensor) else np.asarray(getattr(a, "value", a), dtype=first.dtype)
            for a in arguments
        ]
        arrays = [np.ascontiguousarray(a) for a in np.broadcast_arrays(*arrays)]
        result = function(*(torch.from_numpy(a.copy()) for a in arrays)).numpy()
        scalar = _types(tl)[result.dtype.name]
        kind = tl.block_type(scalar, list(result.shape)) if is_block else scalar
        return tl.tensor(TensorHandle(result, scalar), kind)

    return call


def _types(tl: Any) -> dict[str, Any]:
    return {
        "float16": tl.float16,
        "float32": tl.float32,
        "float64": tl.float64,
        "bool": tl.int1,
        "int32": tl.int32,
        "int64": tl.int64,
    }
