"""Operators that launch hand-written Triton kernels, one per kernel and constants.

A launch in traced code becomes a call of such an operator. Its schema names the kernel's parameters and says which
tensors it writes, so functional graphs can hold it like any custom operator.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.library

from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg, Size
from engine.records.kernels import LoopOp

LAUNCH_NAMESPACE = "triton_kernels"
_LIBRARY = torch.library.Library(LAUNCH_NAMESPACE, "FRAGMENT")
_MAX_INT32 = 2**31 - 1
_KEYS = dict.fromkeys((bool, int, float, str, type(None)), repr)
"""Function that identifies a constant of each type in a key; other constants by identity."""


@dataclass(frozen=True)
class LaunchParameter:
    """An argument that the graph computes, with its types in the schema and in Triton."""

    name: str
    schema_type: str
    triton_type: str

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, False for a number."""
        return self.schema_type.startswith("Tensor")


@dataclass(frozen=True)
class KernelLaunch:
    """A launch of a user-defined kernel.

    ``parameters`` are the arguments that the graph computes, the grid's sizes last. ``constants`` are all others, by
    name, with the launch options.
    """

    kernel: Any
    parameters: tuple[LaunchParameter, ...]
    constants: tuple[tuple[str, Any], ...]
    grid: tuple[Size, ...]
    """Sizes of the grid; the name of its parameter for a computed one."""

    @property
    def name(self) -> str:
        """Name of the kernel's function."""
        return jit_function_of(self.kernel)[0].__name__

    def generated_kernel(self, number: int, node: str, buffers: Mapping[str, str]) -> GeneratedKernel:
        """Return the kernel for display and compilation, with the buffers of its pointers."""
        function, configured = jit_function_of(self.kernel)
        text = kernel_module_text(function)
        constants = {**configured, **dict(self.constants)}
        computed = {p.name: p for p in self.parameters}
        args = tuple(
            _computed_argument(computed[name], buffers)
            if name in computed
            else _constant_argument(p, constants.get(name, p.default))
            for name, p in inspect.signature(function).parameters.items()
        )
        lines = text.splitlines()
        first = next((n for n, line in enumerate(lines) if line.startswith(f"def {function.__name__}(")), 0)
        return GeneratedKernel(
            id=f"u{number}",
            name=function.__name__,
            text=text,
            args=args,
            grid=self.grid,
            line_ops=tuple(("launch",) if n >= first else () for n in range(len(lines))),
            ops=(LoopOp("launch", f"launch of {function.__name__}", (node,)),),
            nodes=(node,),
            num_warps=int(constants.get("num_warps", 4)),
            num_stages=int(constants.get("num_stages", 3)),
        )


_LAUNCHES: dict[Any, KernelLaunch] = {}
_OPERATORS: dict[Any, Any] = {}


def launch_operator(run: Callable[..., Any], launch: KernelLaunch) -> Any:
    """Return the operator of a launch; ``run`` launches it on the computed arguments.

    Equal launches share an operator: torch never frees one.
    """
    constants = tuple((n, type(v), _KEYS.get(type(v), id)(v)) for n, v in launch.constants)
    key = (id(launch.kernel), launch.parameters, constants, launch.grid)
    if key not in _OPERATORS:
        name = launch.name
        used = sum(other.name == name for other in _LAUNCHES.values())
        operator = f"{name}_{used + 1}" if used else name
        while hasattr(getattr(torch.ops, LAUNCH_NAMESPACE), operator):  # a kernel whose name ends in a number
            operator += "_"
        schema = ", ".join(f"{p.schema_type} {p.name}" for p in launch.parameters)
        _LIBRARY.define(f"{operator}({schema}) -> ()", tags=(torch.Tag.needs_exact_strides,))
        _LIBRARY.impl(operator, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{LAUNCH_NAMESPACE}::{operator}", lambda *args: None, lib=_LIBRARY)
        _OPERATORS[key] = overload = getattr(getattr(torch.ops, LAUNCH_NAMESPACE), operator).default
        _LAUNCHES[overload] = launch
    return _OPERATORS[key]


def launch_of(operator: Any) -> KernelLaunch | None:
    """Return the launch that an operator stands for; None for any other operator."""
    return _LAUNCHES.get(operator)


def jit_function_of(kernel: Any) -> tuple[types.FunctionType, Mapping[str, Any]]:
    """Return the Python function of a kernel, and an autotuned one's first configuration."""
    configured: dict[str, Any] = {}
    while hasattr(kernel, "fn"):
        for config in getattr(kernel, "configs", ())[:1]:
            configured |= {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        kernel = kernel.fn
    function: types.FunctionType = kernel
    return function, configured


def kernel_module_text(function: types.FunctionType) -> str:
    """Return a module's text that defines a kernel, with what it reads from its own module."""
    imports = {"import triton": None, "import triton.language as tl": None}
    bodies: dict[str, str] = {}
    _collect(function, imports, bodies)
    body = "\n\n".join(bodies.values())
    return "\n".join(imports) + "\n\n\n" + body


def kernels_read_by(function: types.FunctionType) -> list[types.FunctionType]:
    """Return the functions of the user's kernels that a Python function names."""
    function = inspect.getclosurevars(function).nonlocals.get("fn", function)  # torch wraps it
    values = (getattr(v, "fn", v) if type(v).__name__ == "Autotuner" else v for _, v in _read_globals(function))
    return [jit_function_of(value)[0] for value in values if _is_user_kernel(value)]


def _collect(function: types.FunctionType, imports: dict[str, None], bodies: dict[str, str]) -> None:
    for name, value in _read_globals(function):
        if inspect.ismodule(value):
            imports[f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"] = None
        elif _is_user_kernel(value):
            if name not in bodies:
                bodies[name] = ""
                _collect(jit_function_of(value)[0], imports, bodies)
        elif (kind := type(value).__name__) == "constexpr":
            bodies[name] = f"{name} = tl.constexpr({value.value!r})\n"
        elif kind in ("bool", "int", "float", "str"):
            bodies[name] = f"{name} = {value!r}\n"
        elif module := getattr(value, "__module__", ""):
            imports[f"from {module} import {value.__name__} as {name}"] = None
    bodies.pop(function.__name__, None)
    source = inspect.cleandoc("\n" + inspect.getsource(function))
    definition = source[source.index("def ") :] if "def " in source else source
    bodies[function.__name__] = f"@triton.jit\n{definition.rstrip()}\n"


def _read_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    closed = inspect.getclosurevars(function)
    yield from sorted({**closed.globals, **closed.nonlocals}.items())


def _is_user_kernel(value: Any) -> bool:
    kind = type(value).__name__
    return kind in ("JITFunction", "InterpretedFunction") and not value.fn.__module__.startswith("triton.")


def _computed_argument(parameter: LaunchParameter, buffers: Mapping[str, str]) -> KernelArg:
    name, kind = parameter.name, parameter.triton_type
    if parameter.is_tensor:
        is_written = "!" in parameter.schema_type
        return KernelArg(name, "pointer", kind, buffer=buffers.get(name, name), is_written=is_written)
    return KernelArg(name, "size", kind, value=sympy.Symbol(name))


def _constant_argument(parameter: inspect.Parameter, value: Any) -> KernelArg:
    """Return a constant argument as Triton specializes it.

    Numbers other than one stay arguments, unless the parameter is a constexpr.
    """
    value = getattr(value, "value", value)
    make = None if "constexpr" in str(parameter.annotation) or value == 1 else _NUMBERS.get(type(value))
    return make(parameter.name, value) if make else KernelArg(parameter.name, "constexpr", "constexpr", value=value)


_NUMBERS: dict[type, Callable[[str, Any], KernelArg]] = {
    int: lambda name, value: KernelArg(name, "size", "i32" if abs(value) <= _MAX_INT32 else "i64", value=value),
    float: lambda name, value: KernelArg(name, "size", "fp32", value=sympy.Float(value)),
}
