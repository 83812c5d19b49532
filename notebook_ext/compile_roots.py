"""Decides which functions and modules a cell compiles, and replaces them while it runs."""

from __future__ import annotations

import functools
import inspect
import pathlib
import weakref
from collections.abc import Iterator, MutableMapping
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch
from IPython.core.error import UsageError

from engine.interrupts.weak_tables import WeakTable
from engine.ir.annotations import is_disabled
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.ir.user_code_files import is_installed_file
from engine.records.runtime import SkippedRecord
from engine.records.session import Session
from engine.runtime.dispatch.compiled_modules import compiled_forward
from engine.runtime.dispatch.dispatcher import dispatcher_state_of
from notebook_ext.call_recorder import CallRecorder
from notebook_ext.compilers import DYNAMO_CALLABLE_ATTR, CellCompiler, Undo, is_torch_compiled_by_cell
from notebook_ext.training_drivers import (
    TrainingCalls,
    builds_module,
    driver_reason,
    has_intercepted_calls,
    is_comprehension,
    with_intercepted_calls,
)

NEVER_COMPILED_TYPES = (type, BuiltinFunctionType, MethodWrapperType)
TORCH_COMPILED_HINT = "See what torch.compile makes of it with %%compile --backend torch, or remove torch.compile."
MAX_SEARCHED_VALUES = 50_000
"""Maximum number of values that the search for modules in a notebook visits."""

CELL_DISPATCHERS: WeakTable[Any, None] = WeakTable()
"""Dispatchers that some cell created.

Another cell replaces them by dispatchers with its own cache. Dispatchers that the user created with
``engine.compile`` are not in this set and stay unchanged.
"""


class Roots:
    """Hook behind the calls of a cell (see ``rewrite_calls``).

    With ``names`` it compiles only those. Without, it compiles modules and functions of the notebook.
    """

    def __init__(
        self,
        subject: CellCompiler,
        session: Session,
        namespace: MutableMapping[str, Any],
        file: str,
        names: tuple[str, ...] = (),
        tape: CallRecorder | None = None,
    ) -> None:
        self._subject = subject
        self._session = session
        self._namespace = namespace
        self._file = file
        self._names = names
        self._tape = tape
        self._existing_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet(reachable_modules(namespace))
        self._replacements: dict[int, tuple[Any, Any]] = {}
        self._attached: dict[int, tuple[torch.nn.Module, Undo]] = {}
        self._functions: dict[int, tuple[FunctionType, Any]] = {}
        self._rebound: dict[str, tuple[Any, Any]] = {}
        self._named: list[Any] = []
        self.compiled: list[str] = []
        """Names of the roots, in the order of their first call."""
        self.drivers: list[str] = []
        self._training = TrainingCalls(namespace)
        self._is_finished = False

    # Called by the rewritten cell.

    def replace_callee(self, called: Any) -> Any:
        """Return the object to call in place of ``called``: its compiled form if it is a root."""
        if isinstance(called, NEVER_COMPILED_TYPES) or self._is_finished:
            return called
        if isinstance(called, MethodType):
            return self._method(called)
        replacement = self._replacements.get(id(called))
        if replacement is not None:
            return replacement[1]
        answer = self._replacement_for(called)
        self._replacements[id(called)] = (called, answer)
        return answer

    def replace_definition(self, function: Any) -> Any:
        """Return the object to bind for a function that the cell defines and calls.

        It is compiled from the start, so that its name always refers to one object.
        """
        is_chosen = isinstance(function, FunctionType) and not self._names and not self._is_driver(function)
        return self._function(function) if is_chosen and not builds_module(function) else function

    def _replacement_for(self, called: Any) -> Any:
        if self._names and not self._is_named(called):
            return self._in_driver(called)
        if isinstance(called, torch.nn.Module):
            watched = self._with_recording(
                called, called
            )  # The recorder copies the module before it is compiled in place.
            self._module(called)
            return watched
        if isinstance(called, FunctionType) and is_comprehension(called.__code__):
            return called
        if isinstance(called, FunctionType):
            compiled = self._function(called)
            return self._with_recording(unwrap_compiled(compiled), compiled)
        if isinstance(called, functools.partial):
            inner = self.replace_callee(called.func)
            return called if inner is called.func else functools.partial(inner, *called.args, **called.keywords)
        call = python_call_method(called)
        if call is not None and self._is_notebook(call):
            return MethodType(self._function(call, called), called)
        return called

    def _with_recording(self, root: Any, target: Any) -> Any:
        """Return the target; if calls are recorded, a wrapper that records each call."""
        is_root = isinstance(root, torch.nn.Module) or target in CELL_DISPATCHERS
        return target if self._tape is None or not is_root else self._tape.record_calls(root, target)

    def _in_driver(self, called: Any) -> Any:
        """Return the replacement of a call to an unnamed function when names were given.

        A driver is replaced by a copy with intercepted calls. Everything else runs unchanged.
        """
        if isinstance(called, FunctionType) and self._is_notebook(called) and self._is_driver(called):
            return with_intercepted_calls(unwrap_compiled(called), self.replace_callee)
        return called

    def _method(self, method: MethodType) -> Any:
        function, owner = method.__func__, method.__self__
        self._training.note_method(method)
        if isinstance(owner, torch.optim.Optimizer) and method.__name__ == "step" and not self._is_named(method):
            return functools.partial(self._step, method)
        if not isinstance(function, FunctionType) or isinstance(owner, type):
            return method
        if self._names and not self._is_named(method):
            return method
        if self._is_notebook(function) or self._names:
            compiled = self._function(function, owner)
            return method if compiled is function else MethodType(compiled, owner)
        if isinstance(owner, torch.nn.Module) and is_model_entry_point(method):
            self._module(owner)
        return method

    def _step(self, step: MethodType, closure: Any = None, **other_arguments: Any) -> Any:
        """Run an optimizer's step; what its closure calls is compiled."""
        return step(**other_arguments) if closure is None else step(self.replace_callee(closure), **other_arguments)

    # Modules.

    def _module(self, module: torch.nn.Module) -> None:
        if id(module) in self._attached:
            return
        name = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            self._note_skipped(
                name,
                "it is a TorchScript module, which has no Python code to trace",
                "Call the Python module it was scripted from.",
            )
        elif unwrap_compiled(module) is not module:
            self.compiled.append(name)  # The user compiled it; its options and cache stay.
        elif name == "OptimizedModule" or (has_torch_compiled_call(module) and not is_torch_compiled_by_cell(module)):
            self._note_torch_compiled(name)
        elif is_disabled(type(module).forward):
            self._note_skipped(name, "its forward is marked as not to be compiled", "Remove the disable decorator.")
        else:
            self._attached[id(module)] = (module, self._subject.compile_module(module))
            self.compiled.append(name)

    # Functions.

    def _function(self, function: FunctionType, owner: Any = None) -> Any:
        compiled = self._functions.get(id(function))
        if compiled is None:
            compiled = self._functions[id(function)] = (function, self._compile_or_skip(function, owner))
        return compiled[1]

    def _compile_or_skip(self, function: FunctionType, owner: Any) -> Any:
        if any(function is compiled for _, compiled in self._functions.values()) or has_intercepted_calls(
            function, self.replace_callee
        ):
            return function
        inner = unwrap_compiled(function) if function in CELL_DISPATCHERS else function
        name = inner.__qualname__
        if dispatcher_state_of(inner) is not None:
            self.compiled.append(name)
            return inner
        if not self._names and not self._is_notebook(inner):
            self._note_other_file(inner)
            return function
        if DYNAMO_CALLABLE_ATTR in vars(inner):
            self._note_torch_compiled(name)
            return function
        if is_disabled(inner):
            self._note_skipped(name, "it is marked as not to be compiled", "Remove the disable decorator.")
            return function
        if kind := uncompilable_kind(inner):
            return self._make_driver(
                inner, f"it is {kind}", "Move its own tensor code into a plain function that it calls."
            )
        if reason := driver_reason(inner, self._is_notebook, owner, is_chosen=bool(self._names)):
            return self._make_driver(inner, reason)
        if not self._names and builds_module(inner):
            return function
        compiled = compile_root(self._subject, inner)
        self.compiled.append(name)
        return compiled

    def _make_driver(self, function: FunctionType, why: str, hint: str = "") -> Any:
        """Return a copy of a function that runs as Python and compiles what it calls."""
        name = function.__qualname__
        self.drivers.append(name)
        reason = f"runs as Python because {why}: the modules and functions that it calls are compiled instead"
        self._session.add_skipped(SkippedRecord(name, reason, hint, drives_training=True))
        return with_intercepted_calls(function, self.replace_callee)

    def _is_driver(self, function: FunctionType) -> bool:
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            return False
        return bool(uncompilable_kind(inner) or driver_reason(inner, self._is_notebook))

    def _is_notebook(self, function: FunctionType) -> bool:
        return getattr(inspect.unwrap(function), "__globals__", None) is self._namespace

    def _note_other_file(self, function: FunctionType) -> None:
        self._training.note_function(function)
        file = pathlib.Path(function.__code__.co_filename).resolve()
        if is_installed_file(str(file)) or function.__module__.startswith("engine.") or not file.is_file():
            return
        path = f"{function.__module__}.{function.__qualname__}"
        self._note_skipped(path, f"it is defined in {file.name}, not in the notebook", f"Name it: %%compile {path}")

    def _note_torch_compiled(self, name: str) -> None:
        """Note a callable of ``torch.compile``; a session that observes torch has it."""
        if self._session.compiler == "torch":
            self.compiled.append(name)
        else:
            self._note_skipped(name, "torch.compile has it already", TORCH_COMPILED_HINT)

    def _note_skipped(self, name: str, reason: str, hint: str = "") -> None:
        self._session.add_skipped(SkippedRecord(name, reason, hint))

    # Names given by the user.

    def compile_named(self) -> None:
        """Compile the current values of the given names.

        It runs before the cell and after each of its statements.
        """
        for name in self._names:
            exists, value = resolve_name(self._namespace, name)
            if not exists or any(value is n for n in self._named):
                continue
            if problem := why_not_root(value):
                self._note_skipped(name, problem)
                continue
            self._named.append(value)
            if isinstance(value, torch.nn.Module):
                self._module(value)
            elif isinstance(value, FunctionType) and "." not in name:
                self._rebind(name, value)

    def _rebind(self, name: str, function: FunctionType) -> None:
        compiled = self._function(function)
        if compiled is function or compiled not in CELL_DISPATCHERS:
            return
        self._namespace[name] = compiled
        self._named.append(compiled)
        if function.__code__.co_filename != self._file:
            self._rebound[name] = (function, compiled)

    def _is_named(self, called: Any) -> bool:
        if isinstance(called, MethodType):
            return any(isinstance(n, MethodType) and n == called for n in self._named)
        return any(n is called for n in self._named)

    # After the cell.

    def restore(self) -> None:
        """Restore functions and modules that are older than the cell.

        Those that the cell created stay compiled.
        """
        for module, undo in self._attached.values():
            if module in self._existing_modules:
                undo()
        for name, (function, compiled) in self._rebound.items():
            if self._namespace.get(name) is compiled:
                self._namespace[name] = function
        for function, compiled in self._functions.values():
            made_here = function.__code__.co_filename == self._file
            own_name = function.__name__
            if made_here and compiled in CELL_DISPATCHERS and self._namespace.get(own_name) is function:
                self._namespace[own_name] = compiled
        if not self._names and (ran := self._training.record(self._session.compiler)):
            self._session.add_skipped(ran)
        # A generator that outlives the cell may still call the hook: it then runs its original callees. Drop all references.
        self._is_finished = True
        for table in (self._replacements, self._attached, self._functions, self._rebound, self._named):
            table.clear()


def compile_root(subject: CellCompiler, function: FunctionType) -> Any:
    """Compile a function and register the dispatcher as created by a cell."""
    compiled = subject.compile_function(function)
    CELL_DISPATCHERS[compiled] = None
    return compiled


def reachable_modules(namespace: MutableMapping[str, Any]) -> Iterator[torch.nn.Module]:
    """Yield the modules that a notebook's names reach through containers and notebook classes.

    A module that is missed (only a library holds it) counts as created in the cell. Then it just stays
    compiled.
    """
    visited: set[int] = set()
    waiting = list(namespace.values())
    while waiting and len(visited) < MAX_SEARCHED_VALUES:
        value = waiting.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, torch.nn.Module):
            yield from value.modules()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set)):
            waiting += value
        elif type(value).__module__ == "__main__" and not isinstance(value, type):
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()


def resolve_name(namespace: MutableMapping[str, Any], name: str) -> tuple[bool, Any]:
    """Return (found, value) of a dotted name."""
    head, *attributes = name.split(".")
    if head not in namespace:
        return False, None
    value = namespace[head]
    for part in attributes:
        if not hasattr(value, part):
            return False, None
        value = getattr(value, part)
    return True, value


def is_model_entry_point(method: MethodType) -> bool:
    """Return True for an entry point of a model (``model.generate(...)``).

    A method that every module has is not one. The calls in an entry point reach the model itself.
    """
    return isinstance(method.__self__, torch.nn.Module) and not hasattr(torch.nn.Module, method.__func__.__name__)


def python_call_method(value: Any) -> FunctionType | None:
    """Return the Python function behind ``__call__`` of an instance, else None."""
    method = inspect.getattr_static(type(value), "__call__", None)
    return method if isinstance(method, FunctionType) and not isinstance(value, type) else None


def has_torch_compiled_call(module: torch.nn.Module) -> bool:
    """Return True if torch.compile compiled the module in place."""
    return module._compiled_call_impl is not None and compiled_forward(module) is None


def why_not_root(value: Any) -> str:
    """Return why a value cannot be compiled; empty if it can."""
    if isinstance(value, (torch.nn.Module, FunctionType, functools.partial)):
        return ""
    if isinstance(value, MethodType):
        return "" if isinstance(value.__func__, FunctionType) else "it is a method written in C"
    if isinstance(value, type):
        return "it is a class: make an instance and name that"
    if isinstance(value, ModuleType):
        return "it is a Python module: name a function in it"
    if isinstance(value, BuiltinFunctionType):
        return "it is a built-in function, which has no Python code to trace"
    if python_call_method(value) is not None:
        return ""
    return f"it is of type {type(value).__name__}, not a function or an nn.Module"


def uncompilable_kind(function: FunctionType) -> str:
    """Return the kind of a function if functions of this kind are not compiled, else ""."""
    inner = inspect.unwrap(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        return "an async function"
    return "a generator" if inspect.isgeneratorfunction(inner) else ""


def check_names(names: tuple[str, ...], namespace: MutableMapping[str, Any], bound: frozenset[str]) -> None:
    """Check the names given to a magic before anything runs; the cell itself binds ``bound``.

    Raises:
        UsageError: a name is undefined, or its value cannot be compiled.
    """
    for name in names:
        head = name.partition(".")[0]
        if head in bound:
            continue
        exists, value = resolve_name(namespace, name)
        if not exists:
            raise UsageError(
                f"There is no {name!r} here: name a function or an nn.Module that exists, or that this cell defines."
            )
        if problem := why_not_root(value):
            raise UsageError(f"{name!r} cannot be compiled: {problem}.")
