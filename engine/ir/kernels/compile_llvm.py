"""Compiles LLVM IR to machine code in this process, with llvmlite."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.errors import error_line
from engine.ir.kernels.launch_stub import LAUNCH_STUB, STUB_NAME
from engine.ir.kernels.llvm_machine import (
    function_attributes,
    host_unit,
    llvm,
    new_target_machine,
    optimize,
    parse_module,
    target_machine,
)

LOCK = threading.RLock()
"""Guards LLVM's context and symbol table. A fork waits for it.

So LLVM's own locks are free in the child.
"""
_PYTHON_SYMBOLS = tuple(
    (
        "PyLong_AsVoidPtr PyLong_AsLongLong PyFloat_AsDouble PyLong_FromLong PyEval_SaveThread PyEval_RestoreThread"
    ).split()
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


def _release_after_fork() -> None:
    """Release the lock, unless this module was imported while this thread began to fork."""
    if LOCK._is_owned():  # type: ignore[attr-defined]
        LOCK.release()


os.register_at_fork(before=LOCK.acquire, after_in_parent=_release_after_fork, after_in_child=_release_after_fork)
_is_forked = ctypes.c_int(0)
_freed: list[Any] = []
"""Engines of kernels that nothing calls any more; the next load ends them."""


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
    addresses: dict[str, int] = {}
    for path in sorted(folder.glob("libtorch_cpu*")):
        llvm.load_library_permanently(str(path))
    for path in sorted(folder.glob("libgomp*")):
        library = ctypes.CDLL(str(path))
        for function in ("omp_get_num_threads", "omp_get_thread_num", "GOMP_parallel"):
            addresses[function] = ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
    return addresses


def compile_object(name: str, text: str) -> bytes:
    """Compile a kernel to an object file for this CPU.

    Raises:
        CannotCompile: LLVM rejects the kernel, or it calls a function that is not in this process.
    """
    with LOCK:  # All of LLVM's objects are released inside.
        _add_symbols()
        return _compile(name, text)


def _compile(name: str, text: str) -> bytes:
    try:
        machine = target_machine()
        module = parse_module(text + function_attributes(host_unit().bits), llvm.get_default_triple(), machine)
        _check_functions(name, module)
        optimize(module, machine)
        object_file: bytes = machine.emit_object(module)
    except RuntimeError as error:
        raise CannotCompile(f"LLVM rejects {name}: {error_line(error)}") from error
    return object_file


def object_of_module(name: str, module: Any) -> bytes:
    """Return the object file of a copy of an optimized module, which stays as it is.

    Raises:
        CannotCompile: the kernel calls a function that is not in this process.
    """
    with LOCK:
        _add_symbols()
        _check_functions(name, module)
        object_file: bytes = target_machine().emit_object(llvm.parse_bitcode(module.as_bitcode()))
    return object_file


def _check_functions(name: str, module: Any) -> None:
    """Check that all external functions are known: LLVM ends the process at an unknown one."""
    for function in module.functions:
        is_callable = not function.is_declaration or function.name.startswith("llvm.")
        if not is_callable and not llvm.address_of_symbol(function.name):
            raise CannotCompile(f"{name} calls {function.name}, which this build of PyTorch does not have")


def load_function(name: str, code: bytes, kinds: Sequence[str], *, chunk: int) -> Callable[..., int]:
    """Load the object file of a kernel; return the function of Python numbers that runs it.

    ``kinds`` are "pointer", "size" or "float" for each argument; the last two are the extent and the cost of one of its
    iterations. Threads take multiples of ``chunk`` iterations.

    Raises:
        CannotCompile: a function of the thread pool is not in this process.
    """
    with LOCK:
        _freed.clear()
        _add_symbols()
        engine, address = _load(name, code)
        floats = bytes(kind == "float" for kind in kinds)
        descriptor = ctypes.create_string_buffer(bytes((ctypes.c_uint64 * 3)(address, len(kinds), chunk)) + floats)
        definition = _definition()
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    function: Callable[..., int] = make(ctypes.addressof(definition), ctypes.addressof(descriptor), None)
    weakref.finalize(function, _freed.append, (engine, descriptor)).atexit = False
    return function


@functools.cache
def _definition() -> _MethodDefinition:
    """Return the definition that all kernels share: one function runs any of them."""
    engine, address = _load(STUB_NAME, compile_object(STUB_NAME, LAUNCH_STUB))
    definition = _MethodDefinition(b"kernel", address, _METH_FASTCALL, None)
    definition.engine = engine  # its code lives as long as the process
    return definition


def _load(name: str, code: bytes) -> tuple[Any, int]:
    """Load an object file; return the engine of its code and its function's address."""
    machine = new_target_machine()
    engine = llvm.create_mcjit_compiler(parse_module("", llvm.get_default_triple(), machine), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(name)
    return engine, address
