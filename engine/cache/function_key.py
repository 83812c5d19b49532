"""Cache fingerprints of Python functions.

Fingerprints are equal in any process if the bytecode and everything that it reads are equal.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.torch_private.tensors import TensorBase

Data = Any
_VERSIONED_MODULES = frozenset(
    "torch math cmath operator functools itertools collections typing typing_extensions numbers contextlib dataclasses enum".split()
)
"""Modules that depend only on versions and have no process state: stable names."""
_BUILTIN_MODULES = frozenset("builtins _operator _functools _collections".split())
_TORCH_NAMESPACES = tuple(
    "torch torch._C._nn torch.nn.functional torch._C torch.special torch.linalg torch.fft".split()
)
"""Further namespaces of torch to search for functions that report no usable module."""
_DYNAMIC_BUILTINS = frozenset(
    "globals locals vars eval exec compile __import__ open input getattr setattr delattr".split()
)
_PROCESS_STATE_FUNCTIONS = frozenset(
    (
        "get_num_threads get_num_interop_threads get_autocast_dtype get_autocast_cpu_dtype get_autocast_gpu_dtype is_warn_always_enabled "
        "is_autocast_cache_enabled get_device_module get_file_path"
    ).split()
)
"""torch functions whose results are process state that the key does not cover."""
_PROCESS_STATE_MODULES = (
    "torch.random torch.cuda torch.backends torch.distributed torch.cpu torch.xpu torch.mps torch.mtia torch.accelerator torch.hub "
    "torch.multiprocessing torch.profiler torch.overrides torch.__config__ torch.__future__"
).split()
"""torch modules about process state or the machine."""
_WRITES = frozenset("STORE_GLOBAL DELETE_GLOBAL STORE_NAME DELETE_NAME".split())
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def function_fingerprint(function: Any, plainly: Callable[[Any], Data]) -> Data:
    """Return the fingerprint of a function and of everything that its code reads, as JSON.

    Values that are no functions go to the given serializer, which raises for values that it does not support.

    Raises:
        NotCached: The code reads something that its text does not determine: a module with state, or an object
            or a class that is user-defined.
    """
    return _FunctionWalk(plainly).describe(function, "it")


class _FunctionWalk:
    """One walk over all that a function reads; repeated functions become numbers (recursion)."""

    def __init__(self, plainly: Callable[[Any], Data]) -> None:
        self.serialize = plainly
        self.seen: dict[int, int] = {}
        self.keep_alive: list[Any] = []

    def describe(self, value: Any, name: str) -> Data:
        if stable := stable_name(value):
            _reject_process_state(value, stable)
            return {"named": stable}
        return self._describe(value, name)

    @functools.singledispatchmethod
    def _describe(self, value: Any, name: str) -> Data:
        if type(value) in (tuple, list):
            return [self.describe(v, name) for v in value]
        if type(value) is dict and all(type(k) is str for k in value):
            return {"dict": [[k, self.describe(v, f"{name}[{k!r}]")] for k, v in value.items()]}
        try:
            return self.serialize(value)
        except NotCached as error:
            raise NotCached(error.fallback.kind, f"it reads {name}, and {error}") from None

    @_describe.register(staticmethod)
    @_describe.register(classmethod)
    def _(self, value: Any, name: str) -> Data:
        return {type(value).__name__: self.describe(value.__func__, name)}

    @_describe.register(functools.partial)
    def _(self, value: Any, name: str) -> Data:
        return {"partial": [self.describe(v, name) for v in (value.func, value.args, value.keywords)]}

    @_describe.register(types.FunctionType)
    def _(self, value: types.FunctionType, name: str) -> Data:
        return self._function(value)

    @_describe.register(types.ModuleType)
    def _(self, value: types.ModuleType, name: str) -> Data:
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it reads the module {value.__name__}")

    @_describe.register(type)
    def _(self, value: type, name: str) -> Data:
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it uses the class {value.__qualname__}")

    def _function(self, function: types.FunctionType) -> Data:
        if id(function) in self.seen:
            return {"again": self.seen[id(function)]}
        self.seen[id(function)] = len(self.seen)
        self.keep_alive.append(function)
        code = function.__code__
        attributes = {k: v for k, v in vars(function).items() if k != "__wrapped__"}
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        return {
            "code": _code_fingerprint(code, self),
            "defaults": self.describe([function.__defaults__, function.__kwdefaults__], "a default"),
            "cells": [[n, self.describe(_cell_contents(c, n), n)] for n, c in cells],
            "attributes": self.describe(attributes, f"an attribute of {function.__name__}"),
            "reads": [[".".join(path), self._read(function, path)] for path in sorted(set(_global_reads(code)))],
        }

    def _read(self, function: types.FunctionType, path: tuple[str, ...]) -> Data:
        """Return the fingerprint of a global name, or of the module attribute read through it."""
        name, *rest = path
        space = function.__globals__
        if name not in space:
            if name in _DYNAMIC_BUILTINS:
                raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it calls {name}()")
            return {"builtin": hasattr(builtins, name)}
        value: Any = space[name]
        module_name = ""
        for part in rest:
            if not isinstance(value, types.ModuleType):
                break
            value, module_name = getattr(value, part, None), value.__name__
        root = module_name.partition(".")[0]
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _VERSIONED_MODULES:
            return {"module": value.__name__}
        if root in _VERSIONED_MODULES and isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            _reject_process_state(value, f"{module_name}:{path[-1]}")
            return {"named": f"{module_name}:{value.__name__}"}
        return self.describe(value, ".".join(path))


def _cell_contents(cell: types.CellType, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"{name} has no value yet") from None


def _code_fingerprint(code: types.CodeType, walk: _FunctionWalk) -> Data:
    constants = [_constant(c, walk) for c in code.co_consts]
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    return [code.co_code.hex(), code.co_exceptiontable.hex(), constants, counts, [list(n) for n in names]]


def _constant(value: Any, walk: _FunctionWalk) -> Data:
    if isinstance(value, types.CodeType):
        return _code_fingerprint(value, walk)
    return {"bytes": value.hex()} if isinstance(value, bytes) else walk.serialize(value)


def _reject_process_state(value: Any, qualified_name: str) -> None:
    """Raise for a torch function whose result depends on the process."""
    module_name, _, name = qualified_name.partition(":")
    if isinstance(value, type):
        return
    inner = module_name == "torch._C" and name.startswith(("_get", "_is", "_has"))
    if (
        name in _PROCESS_STATE_FUNCTIONS
        or inner
        or any(module_name == m or module_name.startswith(f"{m}.") for m in _PROCESS_STATE_MODULES)
    ):
        raise NotCached(
            CacheFallback.CODE_NOT_DETERMINED, f"it calls {module_name}.{name}(), which depends on the process"
        )


def _global_reads(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the global names that code reads, each with the attributes read right after it."""
    before: tuple[str, ...] = ()
    for op in dis.get_instructions(code):
        if op.opname in _WRITES:
            raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it assigns to the global {op.argval}")
        if op.opname == "IMPORT_NAME":
            if str(op.argval).partition(".")[0] not in _VERSIONED_MODULES:
                raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it imports {op.argval}")
        elif op.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            before = (str(op.argval),)
            yield before
            continue
        elif op.opname in _ATTRIBUTES:
            _reject_patched_attribute(str(op.argval))
            if before:
                before = (*before, str(op.argval))
                yield before
                continue
        if op.opname not in ("PRECALL", "CACHE", "EXTENDED_ARG"):
            before = ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_reads(constant)


def _reject_patched_attribute(name: str) -> None:
    """Raise for a tensor attribute that code outside of torch defined."""
    if not stable_method_name(name) and hasattr(torch.Tensor, name):
        raise NotCached(CacheFallback.CODE_NOT_DETERMINED, f"it reads {name}, which other code added to torch.Tensor")


@functools.cache
def _native_tensor_attributes() -> frozenset[str]:
    """Return the tensor attributes that are implemented in C by ``TensorBase``."""
    return frozenset(vars(TensorBase))


def stable_method_name(name: str) -> str:
    """Return the name of a tensor method or attribute if it is stable for these versions.

    It is empty if tensors have no such attribute, or if code outside of torch defined it.
    """
    method = inspect.getattr_static(torch.Tensor, name, None)
    if name in _native_tensor_attributes() and method is vars(TensorBase)[name]:
        return name
    method = getattr(method, "__func__", getattr(method, "fget", method))
    if isinstance(method, types.FunctionType) and _is_defined_in_named_module(method):
        return f"{method.__module__}:{method.__qualname__}"
    if isinstance(method, (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)):
        return method.__qualname__
    return "" if callable(method) or method is None else name


def _is_defined_in_named_module(function: types.FunctionType) -> bool:
    """Return True if a function of torch or Python is defined in the module that it names.

    A wrapper takes over the name of the function that it wraps.
    """
    return all(
        str(m).partition(".")[0] in _VERSIONED_MODULES
        for m in (function.__module__, function.__globals__.get("__name__"))
    )


def stable_name(value: Any) -> str:
    """Return the name of a function or class of Python or torch if it is stable, else "".

    A stable name means the same in every process of these versions.
    """
    if isinstance(value, types.FunctionType) and not _is_defined_in_named_module(value):
        return ""
    names = [n for n in (getattr(value, k, None) for k in ("__name__", "__qualname__")) if isinstance(n, str)]
    module = getattr(value, "__module__", None) or "torch"
    if not names or (module.partition(".")[0] not in _VERSIONED_MODULES and module not in _BUILTIN_MODULES):
        return ""
    return next(
        (
            f"{p}:{n}"
            for p, n in itertools.product((module, *_TORCH_NAMESPACES), names)
            if _lookup_in_module(p, n) is value
        ),
        "",
    )


def _lookup_in_module(module_name: str, name: str) -> Any:
    value: Any = sys.modules.get(module_name)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value
