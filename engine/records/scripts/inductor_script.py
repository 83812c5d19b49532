"""Python text that runs one kernel of Inductor without this project.

C++ kernels need torch alone; Triton kernels need torch, Triton and a GPU.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.records.scripts.graph_script import CannotWrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.records.kernels import KernelRecord
    from engine.records.session import CompilationRecord

_KERNEL_LINE = re.compile(r"^(\w+) = async_compile\..*$", re.MULTILINE)
_PARAMETERS = re.compile(r"\bkernel\((.*?)\)\s*\{", re.DOTALL)
_SIGNATURE = re.compile(r"'signature': (\{[^{}]*\})")
_CHANGED = re.compile(r"'mutated_arg_names': (\[[^\[\]]*\])")
_STREAM = "torch.cuda.current_stream().cuda_stream"
_DTYPES = {
    "fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "i1": "bool", "u8": "uint8", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2",
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "at::Half": "float16", "at::BFloat16": "bfloat16",
    "c10::Half": "float16", "c10::BFloat16": "bfloat16", "bool": "bool", "uint8_t": "uint8", "int8_t": "int8", "int16_t": "int16",
    "int32_t": "int32", "int64_t": "int64", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
}  # fmt: skip


@dataclass(frozen=True)
class _Parameter:
    """A parameter of a kernel.

    ``dtype`` is that of the memory that a pointer addresses, empty for numbers.
    """

    dtype: str
    is_written: bool = False


def inductor_kernel_program(record: CompilationRecord, kernel: KernelRecord, seed: int) -> str:
    """Return statements that make the kernel's arguments, compile it and run it.

    Afterwards ``results`` holds the tensors that it wrote. Memory that operators before the kernel would have
    filled has seeded values, as inputs have.

    Raises:
        CannotWrite: the program that calls the kernel was not recorded or is not understood.
    """
    if "'''" in kernel.text:
        raise CannotWrite("the text of the kernel cannot be quoted")
    is_triton = kernel.language == "triton"
    parameters = _triton_parameters(kernel.text) if is_triton else _cpp_parameters(kernel.text)
    try:
        module, name = _calling_module(record, kernel)
        device = "cuda" if is_triton else "cpu"
        arguments, statements = _ArgumentStatements(name, parameters, device, seed).write(module)
    except CannotWrite:
        raise
    except (SyntaxError, ValueError, IndexError) as error:  # a damaged log, or another torch
        raise CannotWrite("the program that calls this kernel could not be parsed") from error
    written = [a for a, parameter in zip(arguments, parameters, strict=True) if parameter.is_written]
    if is_triton:
        maker, run = f"triton({name!r}, TEXT)", f"kernel.run({', '.join(arguments)}, stream={_STREAM})"
    else:
        maker, run = f"cpp_pybinding({_cpp_types(kernel.text)!r}, TEXT)", f"kernel({', '.join(arguments)})"
    return f"""\
TEXT = r'''{kernel.text}'''

compiler = AsyncCompile()
kernel = compiler.{maker}
compiler.wait(globals())

{chr(10).join(statements)}
{run}
results = ({"".join(f"{a}, " for a in written)})
"""


def _cpp_types(text: str) -> list[str]:
    match = _PARAMETERS.search(text)
    if match is None:
        raise CannotWrite("the parameters of the kernel could not be parsed")
    return [" ".join(p.split()[:-1]) for p in match[1].split(",")]


def _cpp_parameters(text: str) -> list[_Parameter]:
    return [
        _Parameter(
            _DTYPES.get(kind.removeprefix("const ").rstrip("* "), ""),
            kind.endswith("*") and not kind.startswith("const"),
        )
        for kind in _cpp_types(text)
    ]


def _triton_parameters(text: str) -> list[_Parameter]:
    """Read the parameters that a call gives: all but the compile-time ones at the end."""
    try:
        functions: list[Any] = [n for n in ast.parse(text).body if hasattr(n, "decorator_list")]
        signature = ast.literal_eval(_SIGNATURE.findall(text)[0])
        changed = ast.literal_eval(_CHANGED.findall(text)[0])
        names = [a.arg for a in functions[-1].args.args if a.annotation is None]
    except (SyntaxError, ValueError, IndexError, TypeError) as error:
        raise CannotWrite("the parameters of the kernel could not be parsed") from error
    return [
        _Parameter(
            _DTYPES.get(signature.get(n, "").removeprefix("*"), "") if signature.get(n, "").startswith("*") else "",
            n in changed or n.startswith(("out_ptr", "in_out_ptr")),
        )
        for n in names
    ]


def _calling_module(record: CompilationRecord, kernel: KernelRecord) -> tuple[ast.Module, str]:
    """Return the program that defines a kernel, forward or backward, and its name there."""
    number = [k.id for k in record.kernels].index(kernel.id)
    text = record.lowering.wrapper_text if record.lowering is not None else ""
    for part in text.split("async_compile = AsyncCompile()")[1:]:
        names = _KERNEL_LINE.findall(part)
        if number < len(names):
            return ast.parse(_KERNEL_LINE.sub("", part)), names[number]
        number -= len(names)
    raise CannotWrite("the program that calls this kernel was not recorded")


class _ArgumentStatements(ast.NodeVisitor):
    """The statements of a program that make one kernel's arguments, without operators."""

    def __init__(self, kernel: str, parameters: list[_Parameter], device: str, seed: int) -> None:
        self._kernel, self._parameters, self._device, self._seed = kernel, parameters, device, seed
        self._arguments: list[ast.expr] = []
        """Those of the kernel's first call, once it is seen."""
        self._made: dict[str, tuple[str, set[str]]] = {}
        """By name, in order: the expression that makes it and the names that it reads.

        What an operator returns has no expression.
        """
        self._layouts: dict[str, list[ast.expr]] = {}
        """Asserted shapes and strides of what operators return."""
        self._views: dict[str, str] = {}
        """Names of views and second names, and what they view."""

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note what makes a name."""
        name, value = getattr(node.targets[0], "id", ""), node.value
        if not name or self._arguments:
            return
        text, reads, called, arguments = (
            ast.unparse(value),
            _names(value),
            _called_name(value),
            getattr(value, "args", []),
        )
        if called == "rand_strided":
            text = self._buffer(*arguments, *(o.value for o in getattr(value, "keywords", ()) if o.arg == "dtype"))
        elif called in ("empty_strided_cpu", "empty_strided_cuda"):
            text = self._buffer(*arguments)
        elif called == "reinterpret_tensor":
            text = f"torch.as_strided({', '.join(map(ast.unparse, arguments))})"
            self._views[name] = ast.unparse(arguments[0])
        elif hasattr(value, "id"):
            self._views[name] = text
        elif hasattr(value, "func") or hasattr(value, "slice"):
            text, reads = "", set()
        self._made[name] = text, reads

    def visit_Expr(self, node: ast.Expr) -> None:
        """Note an asserted layout, or the kernel's call."""
        called, arguments = _called_name(node.value), getattr(node.value, "args", [])
        if called in ("assert_size_stride", "assert_tensor_metadata"):  # the latter since torch 2.15
            name = ast.unparse(arguments[0])
            while self._made.get(name, ("", set()))[0] in self._made:  # a second name
                name = self._made[name][0]
            self._layouts[name] = arguments[1:3]
        elif called == self._kernel and not self._arguments:
            self._arguments = arguments

    def write(self, module: ast.Module) -> tuple[list[str], list[str]]:
        """Return the arguments of the kernel's first call, and the statements that make them."""
        functions = {n.name: n for n in ast.walk(module) if hasattr(n, "name")}
        for name in ("get_args", "benchmark_compiled_module", "call"):
            if name in functions:
                self.visit(functions[name])
        if not self._arguments:
            raise CannotWrite("the program that calls this kernel was not recorded")
        names = [ast.unparse(a) for a in self._arguments]
        for name, parameter in zip(names, self._parameters, strict=True):
            self._make_result(name, parameter.dtype)
        return names, list(self._needed_statements())

    def _buffer(self, *layout: ast.expr) -> str:
        self._seed += 1
        device = "" if self._device == "cpu" else f', "{self._device}"'
        return f"make({', '.join(map(ast.unparse, layout))}{device}, seed={self._seed})"

    def _make_result(self, name: str, dtype: str) -> None:
        """Make what an operator returned, from its layout and the type of the kernel's parameter."""
        while name in self._views:
            name = self._views[name]
        layout = self._layouts.get(name)
        if self._made.get(name) == ("", set()) and dtype and layout is not None:
            statement = self._buffer(*layout, ast.parse(f"torch.{dtype}", mode="eval").body)
            self._made[name] = statement, {n for part in layout for n in _names(part)}

    def _needed_statements(self) -> Iterator[str]:
        """Yield the statements that the arguments need, in the program's order."""
        missing = {n for value in self._arguments for n in _names(value)}
        kept: list[str] = []
        for name, (text, reads) in reversed(self._made.items()):
            if name in missing and text:
                missing = (missing - {name}) | (reads & self._made.keys())
                kept.append(f"{name} = {text}")
        if missing:
            raise CannotWrite(f"{min(missing)} is the result of an operator whose type was not recorded")
        yield from reversed(kept)


def _called_name(value: ast.expr) -> str:
    """Return the name of the function or kernel that an expression calls; empty for others."""
    function: Any = getattr(value, "func", None)
    is_launch = getattr(function, "attr", "") == "run"
    return str(getattr(function.value if is_launch else function, "id", ""))


def _names(value: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(value) if hasattr(n, "id")}
