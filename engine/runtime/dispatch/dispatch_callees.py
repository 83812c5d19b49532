"""Callee interception in frames that run as Python: dispatchers replace callables.

So user functions called from such a frame are still compiled.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import os
import pathlib
import sys
import sysconfig
import types
import weakref
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from engine.bytecode.intercept_calls import intercept_calls
from engine.interrupts.weak_tables import WeakTable
from engine.ir.annotations import is_disabled, skipped_frame
from engine.ir.compiler_protocol import Compiler
from engine.ir.introspection.transformed_functions import APPLY, applied_function, bind_apply, is_traced_as_one_call
from engine.ir.unwrap_compiled import ORIGINAL_MODULE_ATTR, unwrap_torch_compile
from engine.ir.user_code_files import is_traceable_torch_module
from engine.runtime.dispatch.codegen import DISPATCH_FILE
from engine.runtime.dispatch.dispatcher import make_dispatcher
from engine.torch_private.global_state import get_tracing_state
from engine.torch_private.modules import call_impl, module_hooks

LIBRARIES = frozenset(
    (
        "torch", "functorch", "torchgen", "numpy", "scipy", "sympy", "mpmath", "triton", "networkx", "pandas", "matplotlib", "PIL", "tqdm", "bytecode",
        "engine", "notebook_ext", "IPython", "ipykernel", "ipywidgets", "anywidget", "traitlets", "jupyter_client", "jupyter_core", "zmq", "tornado",
        "pytest", "_pytest", "pluggy", "hypothesis", "pip", "setuptools",
    )
)  # fmt: skip
"""Packages that are never compiled as frames; any other package is user code."""

MAX_CACHED_DISPATCHERS = 512
"""Maximum number of cached dispatchers of functions without a closure."""

_STDLIB = tuple(os.path.normpath(p) + os.sep for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_SITE_PACKAGES = ("site-packages", "dist-packages")


def is_library_function(function: FunctionType) -> bool:
    """Return True if the function belongs to a library that is never compiled as a frame.

    Libraries are the standard library, torch and the packages in ``LIBRARIES``.
    """
    module = str(function.__globals__.get("__name__", ""))
    root = module.partition(".")[0]
    if root in LIBRARIES:
        return not is_traceable_torch_module(module)
    file = function.__code__.co_filename
    if file.startswith("<frozen"):
        return True
    return root in sys.stdlib_module_names and file.startswith(_STDLIB) and not any(s in file for s in _SITE_PACKAGES)


def _transforms_a_function_of_torch(function: FunctionType) -> bool:
    """Return True if what ``torch.func`` transformed is a closure of torch, new in each call.

    ``jacfwd`` maps one over its basis. Nothing compiled for it would be used again.
    """
    inner = inspect.unwrap(function)
    return type(inner) is FunctionType and inner.__closure__ is not None and is_library_function(inner)


def is_user_callable(value: Any) -> bool:
    """Return True if calling the value directly runs a Python frame of the user's program."""
    if type(value) is FunctionType:
        return not is_library_function(value) or is_user_callable(value.__dict__.get("__wrapped__"))
    if type(value) is MethodType:
        return is_user_callable(value.__func__) or isinstance(value.__self__, torch.nn.Module)
    if type(value) is functools.partial:
        return is_user_callable(value.func)
    return isinstance(value, torch.nn.Module)


class CalleeDispatcher:
    """Replaces callables by their dispatchers, for one compiler."""

    def __init__(self, compiler: Compiler) -> None:
        # Weak: the compiler owns this object, and a strong reference would make a cycle.
        self._compiler = weakref.ref(compiler)
        self._dispatchers: dict[int, tuple[FunctionType, FunctionType]] = {}
        self._intercepted_codes: WeakTable[CodeType, CodeType] = WeakTable()

    def __call__(self, obj: Any) -> Any:
        """Return the callable to call instead of ``obj``, with the same arguments and result."""
        if type(obj) is FunctionType and is_traced_as_one_call(obj) and not _transforms_a_function_of_torch(obj):
            compiler = self._compiler()
            return obj if compiler is None else make_dispatcher(obj, compiler, "callee")
        return self.at_break(obj)

    def at_break(self, obj: Any) -> Any:
        """Do the same for a call that breaks the graph: the call itself is not traced again."""
        kind = type(obj)
        if kind is FunctionType:
            return self._function(obj)
        if kind is MethodType:
            return self._method(obj)
        if isinstance(obj, type) or kind in _BUILTIN_TYPES:
            return self._builtin(obj, kind)
        if kind in CALLING_ITERATORS:
            return self._iterator(obj)
        if kind is functools.partial:
            func = self(obj.func)
            return obj if func is obj.func else functools.partial(func, *obj.args, **obj.keywords)
        if issubclass(kind, torch.nn.Module):
            return self._module(obj)
        return self._instance(obj)

    def _builtin(self, obj: Any, kind: type) -> Any:
        """Return a wrapper of a C builtin that may call a function among its arguments."""
        if kind is types.BuiltinFunctionType and applied_function(obj) is not None:
            return self._autograd_function_apply(obj)
        if obj is sys._getframe:
            return get_user_frame
        call_spec: _BuiltinCallSpec | None = None
        if kind is types.BuiltinFunctionType and type(obj.__self__) is list:
            call_spec = _KEY_KEYWORD if obj.__name__ == "sort" else None
        elif kind is type or kind is types.BuiltinFunctionType:
            call_spec = _CALLING_BUILTINS.get(obj)
        return obj if call_spec is None else functools.partial(self._call_builtin_with_dispatched, obj, call_spec)

    def _call_builtin_with_dispatched(self, obj: Any, call_spec: _BuiltinCallSpec, /, *args: Any, **kwargs: Any) -> Any:
        given_args = list(args)
        if call_spec.calls_first and args:
            given_args[0] = self(args[0])
        position = call_spec.consumed_position
        if (
            position < len(args)
            and type(args[position]) in CALLING_ITERATORS
            and not (call_spec.only_if_alone and len(args) > 1)
        ):
            given_args[position] = self(args[position])
        if call_spec.keyword in kwargs:
            kwargs[call_spec.keyword] = self(kwargs[call_spec.keyword])
        return obj(*given_args, **kwargs)

    def _iterator(self, iterator: Any) -> Any:
        """Return an equivalent iterator over the same inputs that calls the dispatcher."""
        reduced = iterator.__reduce__()
        if len(reduced) != 2:
            return iterator
        function, *drawn = reduced[1]
        # A user class may have side effects in ``__iter__``, which would be called once more.
        if not all(type(getattr(type(i), "__iter__", None)) is types.WrapperDescriptorType for i in drawn):
            return iterator
        exchanged = self(function)
        return iterator if exchanged is function else type(iterator)(exchanged, *drawn)

    def _function(self, function: FunctionType) -> Any:
        cached = self._dispatchers.get(id(function))
        if cached is not None and cached[0] is function:
            return cached[1]
        behind = skipped_frame(function)
        if function.__code__.co_filename == DISPATCH_FILE or (is_disabled(function) and behind is None):
            return function
        compiler = self._compiler()
        if behind is not None and compiler is not None:
            return self._cached_dispatcher(function, compiler)
        behind = unwrap_torch_compile(function)
        if behind is not None:
            return self(behind)
        if is_library_function(function):
            # The bound forward of torch's own modules is dispatched all the same.
            if function.__closure__ is None and function.__name__ != "forward":
                self._cache(function, function)
            return self._library(function)
        if compiler is None:
            return function
        if function.__closure__ is not None:
            return make_dispatcher(function, compiler, "callee")
        return self._cached_dispatcher(function, compiler)

    def _cached_dispatcher(self, function: FunctionType, compiler: Compiler) -> FunctionType:
        dispatcher = make_dispatcher(function, compiler, "callee")
        self._cache(function, dispatcher)
        return dispatcher

    def _cache(self, function: FunctionType, dispatcher: FunctionType) -> None:
        if len(self._dispatchers) >= MAX_CACHED_DISPATCHERS:
            self._dispatchers.clear()
        self._dispatchers[id(function)] = (function, dispatcher)

    def _library(self, function: FunctionType) -> Any:
        """Intercept the calls inside a library function whose closure holds a user callable.

        ``torch.no_grad()`` as a decorator makes such functions. Other library functions are returned unchanged.
        """
        if function.__closure__ is None or not any(is_user_callable(v) for v in _closure_contents(function)):
            return function
        code = self.intercepted_code(function.__code__)
        if code is None:
            return function
        rewritten = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        rewritten.__kwdefaults__ = function.__kwdefaults__
        return rewritten

    def intercepted_code(self, code: CodeType) -> CodeType | None:
        """Return ``code`` with its calls intercepted; None if it cannot be rewritten."""
        intercepted = self._intercepted_codes.get(code)
        if intercepted is None:
            try:
                intercepted = self._intercepted_codes[code] = intercept_calls(code, self)
            except Exception:
                # Code that cannot be rewritten is called unchanged.
                return None
        return intercepted

    def _method(self, method: MethodType) -> Any:
        func: Any = method.__func__
        if func is APPLY:
            return self._autograd_function_apply(method)
        return self.bound_method(method) if type(func) is FunctionType else method

    def bound_method(self, method: MethodType) -> MethodType:
        """Return the dispatched method; forwards of torch's own modules count as user code."""
        function: Any = method.__func__
        cached = self._dispatchers.get(id(function))
        if cached is not None and cached[0] is function:
            return MethodType(cached[1], method.__self__)
        compiler = self._compiler()
        if compiler is not None and is_torch_forward(method):
            return MethodType(self._cached_dispatcher(function, compiler), method.__self__)
        exchanged = self(function)
        return method if exchanged is function else MethodType(exchanged, method.__self__)

    def _autograd_function_apply(self, apply: Any) -> Any:
        """Return ``apply`` of an ``autograd.Function`` whose forward is dispatched.

        Its context and its backward are unchanged.
        """
        cls: Any = apply.__self__
        forward = next((c.__dict__["forward"] for c in cls.__mro__ if "forward" in c.__dict__), None)
        if not isinstance(forward, staticmethod):
            return apply
        exchanged = self(forward.__func__)
        if exchanged is forward.__func__:
            return apply
        parts = {"forward": staticmethod(exchanged), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        subclass: Any = type(cls)(cls.__name__, (cls,), parts)
        subclass._backward_cls = cls._backward_cls
        return bind_apply(subclass)

    def _module(self, module: torch.nn.Module) -> Any:
        """Return the dispatched call of a module, hooks included."""
        behind = unwrap_torch_compile(module)
        if behind is not None:
            return self._module(behind)
        call = type(module).__call__
        if call is not torch.nn.Module.__call__:
            return MethodType(self(call), module) if type(call) is FunctionType else module
        if (
            ORIGINAL_MODULE_ATTR in type(module).__dict__
            or module._compiled_call_impl is not None
            or isinstance(module, torch.jit.ScriptModule)
        ):
            return module
        return self.module_call(module)

    def module_call(self, module: torch.nn.Module) -> Any:
        """Return the dispatched ``Module.__call__``; only the forward if there are no hooks."""
        if get_tracing_state() is not None:
            return module._call_impl
        if not has_hooks(module):
            return self.forward(module)
        code = self.intercepted_code(_CALL_IMPL.__code__)
        if code is None:
            return module._call_impl
        return MethodType(
            FunctionType(code, _CALL_IMPL.__globals__, _CALL_IMPL.__name__, None, _CALL_IMPL.__closure__), module
        )

    def forward(self, module: torch.nn.Module) -> Any:
        """Return the dispatched ``forward``, also one set on the module."""
        forward: Any = module.forward
        is_plain = type(forward) is MethodType and type(forward.__func__) is FunctionType
        return self.bound_method(forward) if is_plain else self(forward)

    def _instance(self, obj: Any) -> Any:
        """Return the dispatched call of an object whose class defines ``__call__`` in Python."""
        call = next((c.__dict__["__call__"] for c in type(obj).__mro__ if "__call__" in c.__dict__), None)
        if type(call) is not FunctionType:
            return obj
        exchanged = self(call)
        return obj if exchanged is call else MethodType(exchanged, obj)


_ENGINE_FOLDER = str(pathlib.Path(__file__).parents[2]) + os.sep


_DEEPER_THAN_ANY_STACK = 2**31 - 1


def get_user_frame(*args: Any) -> types.FrameType:
    """Return what ``sys._getframe`` returns without the engine's frames on the stack."""
    if len(args) > 1:
        return sys._getframe(*args)  # it raises
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(operator.index(*args) if args else 0):
        frame = None if frame is None else frame.f_back
        while frame is not None and frame.f_code.co_filename.startswith(("<engine", _ENGINE_FOLDER)):
            frame = frame.f_back
    return sys._getframe(_DEEPER_THAN_ANY_STACK) if frame is None else frame


CALLING_ITERATORS = frozenset((map, filter))
"""Iterators that call a function and have no state except the iterators they consume.

They are replaced only where a builtin consumes them: elsewhere ``__reduce__``, pickle or copy would expose the
dispatcher instead of the user's function.
"""


@dataclass(frozen=True)
class _BuiltinCallSpec:
    """Describes how a builtin uses its arguments.

    ``calls_first``: it calls the first argument. ``consumed_position``: position of the iterable it consumes
    (``only_if_alone``: only if no other positional argument is passed). ``keyword``: keyword of a function it calls.
    """

    calls_first: bool = False
    consumed_position: int = sys.maxsize
    only_if_alone: bool = False
    keyword: str = ""


_KEY_KEYWORD = _BuiltinCallSpec(keyword="key")
_CALLING_BUILTINS: dict[Any, _BuiltinCallSpec] = {
    **dict.fromkeys(
        (list, tuple, set, frozenset, dict, sum, any, all, next, collections.deque),
        _BuiltinCallSpec(consumed_position=0),
    ),
    operator.call: _BuiltinCallSpec(calls_first=True),
    functools.reduce: _BuiltinCallSpec(calls_first=True, consumed_position=1),
    sorted: _BuiltinCallSpec(consumed_position=0, keyword="key"),
    **dict.fromkeys((min, max), _BuiltinCallSpec(consumed_position=0, only_if_alone=True, keyword="key")),
}
"""Builtins that call an argument or consume an iterator, and do nothing else with it."""

_CALL_IMPL: FunctionType = call_impl
_BUILTIN_TYPES = frozenset(
    (
        types.BuiltinFunctionType,
        types.MethodWrapperType,
        types.WrapperDescriptorType,
        types.MethodDescriptorType,
        types.ClassMethodDescriptorType,
    )
)


def _closure_contents(function: FunctionType) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            continue
    return contents


def is_torch_forward(method: MethodType) -> bool:
    """Return True for the forward of one of torch's own modules."""
    function: Any = method.__func__
    module_name = str(function.__globals__.get("__name__", ""))
    return function.__name__ == "forward" and module_name.startswith("torch.nn.modules.")


def has_hooks(module: torch.nn.Module) -> bool:
    """Return True if calling the module runs any hook, global hooks included."""
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or module._forward_hooks
        or module._forward_pre_hooks
        or module_hooks._global_backward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
    )


def make_callee(compiler: Compiler) -> CalleeDispatcher:
    """Return ``callee(obj)``: the callable to call instead of ``obj``.

    User frames below the call are then dispatched by ``compiler``.

    - Replaced by dispatchers: Python functions, bound methods, ``functools.partial``, modules, objects with a Python
      ``__call__``.
    - Builtins that call a function (``sorted``, ``functools.reduce``, ...) receive its dispatcher.
    - Builtins that consume ``map`` or ``filter`` receive an equivalent iterator that calls the dispatcher.
    - Returned unchanged: other classes and builtins, functions marked by ``engine.disable``, dispatchers, functions of
      torch, the standard library and the packages in ``LIBRARIES``.
    - A library's wrapper around a user function, such as ``torch.no_grad()`` makes, runs as Python with its own calls
      intercepted.
    """
    return CalleeDispatcher(compiler)
