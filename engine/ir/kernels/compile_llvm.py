"""Compiles LLVM IR to machine code in this process, with llvmlite."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.kernels.launch_stub import launch_stub
from engine.ir.kernels.llvm_machine import (
    function_attributes,
    host_unit,
    llvm,
    optimize,
    parse_module,
    target_machine,
)
from engine.process_state import make_lock

LOCK = make_lock()
"""LLVM's context and the symbol table belong to the process."""
_PYTHON_SYMBOLS = (
    "PyLong_AsLongLong",
    "PyFloat_AsDouble",
    "PyLong_FromLong",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
_METH_FASTCALL = 0x80


class CannotCompile(Exception):
    """LLVM rejects a kernel."""


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_is_forked = ctypes.c_int(0)
_kept: list[Any] = []
"""Engines and method definitions: compiled code lives as long as the process."""


@functools.cache
def _add_symbols() -> None:
    """Register the addresses of the functions that kernels call."""
    for name in _PYTHON_SYMBOLS:
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    llvm.add_symbol("engine_is_forked", ctypes.addressof(_is_forked))
    os.register_at_fork(after_in_child=_note_fork)
    for name, address in _library_symbols().items():
        llvm.add_symbol(name, address)


def _note_fork() -> None:
    """Run kernels on one thread in a forked process, which lacks the pool's threads."""
    _is_forked.value = 1


def _library_symbols() -> dict[str, int]:
    """Return the addresses of the thread pool's functions that torch uses."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    found: dict[str, int] = {}
    for path in sorted(folder.glob("libtorch_cpu*")):
        llvm.load_library_permanently(str(path))
    for path in sorted(folder.glob("libgomp*")):
        library = ctypes.CDLL(str(path))
        for function in (
            "omp_get_max_threads",
            "omp_get_num_threads",
            "omp_get_thread_num",
            "omp_in_parallel",
            "GOMP_parallel",
        ):
            found[function] = ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
    return found


def compile_function(name: str, text: str, kinds: Sequence[str], *, chunk: int) -> Callable[..., int]:
    """Compile a kernel; return the function of Python numbers that runs it.

    Raises:
        CannotCompile: LLVM rejects the kernel.
    """
    with LOCK:
        _add_symbols()
        stub = launch_stub(name, kinds, chunk)
        whole = _merge_declarations(text + stub) + function_attributes(host_unit().bits)
        try:
            machine = target_machine()
            module = parse_module(whole, llvm.get_default_triple(), machine)
            optimize(module, machine)
            engine = llvm.create_mcjit_compiler(module, machine)
            engine.finalize_object()
            address = engine.get_function_address(f"{name}_from_python")
        except RuntimeError as error:
            raise CannotCompile(f"LLVM rejects {name}: {str(error).strip().splitlines()[0]}") from error
        _kept.append(engine)
    return _python_function(name, address)


def _merge_declarations(text: str) -> str:
    seen: set[str] = set()
    lines = []
    for line in text.split("\n"):
        if line.startswith("declare"):
            if line in seen:
                continue
            seen.add(line)
        lines.append(line)
    return "\n".join(lines)


def _python_function(name: str, address: int) -> Callable[..., int]:
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
    _kept.append(definition)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[..., int] = make(ctypes.addressof(definition), None, None)
    return made
