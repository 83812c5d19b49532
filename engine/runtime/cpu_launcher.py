"""Bind a kernel to this machine's CPU: a function of Python numbers that runs it."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib

import torch

from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.ir.kernels.compile_llvm import compile_object, load_function
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.llvm_machine import code_version
from engine.runtime.kernel_launchers import Launcher

MAX_UNUSED_KERNELS = 256
"""Maximum number of kernels that are held without a program; each takes about 0.1 MB."""


def cpu_launcher(
    source: GeneratedKernel, misaligned: frozenset[str] = frozenset(), *, store: DiskStore | None = None
) -> Launcher:
    """Compile a kernel for this CPU; equal kernels are compiled once.

    The launcher takes an address or a number for each parameter, and returns 0, or the number of the failed check.
    ``store`` has object files of earlier processes; None for none.

    Raises:
        CannotCompile: LLVM rejects the kernel.
    """
    return _load_kernel(source.name, source.text, argument_kinds(source), source.grid[1], store)


def argument_kinds(source: GeneratedKernel) -> tuple[str, ...]:
    """Return the kinds of a kernel's arguments: "pointer", "float" or "size"."""
    return tuple("pointer" if a.kind == "pointer" else "float" if a.is_fraction else "size" for a in source.args)


@functools.lru_cache(maxsize=MAX_UNUSED_KERNELS)
def _load_kernel(name: str, text: str, kinds: tuple[str, ...], chunk: int, store: DiskStore | None) -> Launcher:
    return load_function(name, _object_file(name, text, store), kinds, chunk=chunk)


def _object_file(name: str, text: str, store: DiskStore | None) -> bytes:
    """Return the object file of a kernel, from the store if it has it.

    Processes that share the store compile each kernel once: the first claims it, the others wait.
    """
    if store is None:
        return compile_object(name, text)
    key = hashlib.sha256(f"{code_version()}\n{torch.__version__}\n{text}".encode()).hexdigest()
    if (object_file := _stored_object_file(key, store)) is not None:
        return object_file
    with store.claim(key):
        if (object_file := _stored_object_file(key, store)) is not None:
            return object_file
        object_file = compile_object(name, text)
        with contextlib.suppress(DiskStoreError):
            store.put(key, base64.b64encode(object_file).decode())
    return object_file


def _stored_object_file(key: str, store: DiskStore) -> bytes | None:
    """Return an object file of the store; None if it has none that can be read."""
    with contextlib.suppress(DiskStoreError):
        if (stored := store.get(key)) is not None:
            return base64.b64decode(stored)
    return None
