"""Compilers that a cell can use: this engine, or stock torch.compile under observation."""

from __future__ import annotations

import contextlib
import inspect
import keyword
import linecache
import pathlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch
from IPython.core.error import UsageError

from engine import api, errors
from engine.ir.unwrap_compiled import unwrap_compiled
from engine.observe.torch_warnings import fold_torch_warnings
from engine.options import Options
from engine.pipeline import Pipeline
from engine.records.session import Session
from engine.runtime.dispatch.compiled_modules import attach, detach
from engine.runtime.dispatch.dispatcher import make_dispatcher

TORCH_BACKENDS = ("inductor", "eager", "aot_eager")

Undo = Callable[[], None]


@dataclass(frozen=True)
class CompileSettings:
    """Compile options given to the magic; equal settings can share a cache (``--keep``)."""

    backend: str = "triton"
    target: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    fused_random: bool = False
    """Kernels on a GPU generate random numbers."""
    level: str = "standard"
    launches: bool = field(default=False, compare=False)
    """Record each launch of a kernel."""


class CellCompiler(Protocol):
    """Interface of a compiler that runs the roots of a cell."""

    settings: CompileSettings

    def record(self) -> contextlib.AbstractContextManager[Session]:
        """Open a session that records what happens inside."""
        ...

    def compile_function(self, function: FunctionType, role: str = "root") -> Callable[..., Any]:
        """Return a compiled function with the same signature, name and source."""
        ...

    def compile_module(self, module: torch.nn.Module) -> Undo:
        """Compile a module in place; the returned callable restores its previous state."""
        ...


class EngineCompiler:
    """The engine with its own cache, which starts empty."""

    def __init__(self, choice: CompileSettings) -> None:
        self.settings = choice
        self._pipeline = Pipeline(_options(choice))
        self._codes: dict[tuple[CodeType, str], CodeType] = {}

    def record(self) -> contextlib.AbstractContextManager[Session]:
        """Open ``engine.record`` with the chosen level and target."""
        return api.record(self.settings.level, target=self.settings.target, launches=self.settings.launches)

    def compile_function(self, function: FunctionType, role: str = "root") -> Callable[..., Any]:
        """Return a dispatcher.

        A function that is redefined with the same text reuses its cache (``--keep``).
        """
        code = function.__code__
        function.__code__ = self._codes.setdefault((code, code.co_filename), code)
        compiled: Callable[..., Any] = make_dispatcher(function, self._pipeline, role=role)
        return compiled

    def compile_module(self, module: torch.nn.Module) -> Undo:
        """Compile a module in place with this engine; undo restores its previous compiler."""
        undo = _restore_call(module)
        if is_torch_compiled_by_cell(module):
            module.__dict__.pop(_COMPILED_CALL_ATTR, None)
        attach(module, self._pipeline)
        return undo


class TorchCompiler:
    """Stock ``torch.compile`` under observation."""

    def __init__(self, choice: CompileSettings) -> None:
        self.settings = choice
        self._backend = torch_backend_name(choice.backend)

    @contextlib.contextmanager
    def record(self) -> Iterator[Session]:
        """Open ``engine.observe_torch``; torch's warnings are folded into the session."""
        from engine.observe.observe_torch import observe_torch

        with observe_torch() as session, fold_torch_warnings(session):
            yield session

    def compile_function(self, function: FunctionType, role: str = "root") -> Callable[..., Any]:
        """Return the function compiled by ``torch.compile``."""
        del role
        compiled: Callable[..., Any] = torch.compile(
            unwrap_compiled(function),
            backend=self._backend,
            dynamic=self.settings.dynamic,
            fullgraph=self.settings.fullgraph,
        )
        return compiled

    def compile_module(self, module: torch.nn.Module) -> Undo:
        """Compile with ``module.compile()``, which changes neither the class nor the state."""
        undo = _restore_call(module)
        detach(module)
        options: dict[str, Any] = {
            "backend": self._backend,
            "dynamic": self.settings.dynamic,
            "fullgraph": self.settings.fullgraph,
        }
        if type(module).forward.__module__.startswith("torch."):
            # Dynamo skips frames in torch's own files. Called from a frame elsewhere, the layer is inlined.
            module._compiled_call_impl = _compile_layer(module, options)
        else:
            module.compile(**options)
        _TORCH_COMPILED_MODULES.add(module)
        return undo


_COMPILED_CALL_ATTR = "_compiled_call_impl"
"""Attribute in which torch stores a module's compiled call; not part of its state."""
DYNAMO_CALLABLE_ATTR = "_torchdynamo_orig_callable"
"""Attribute of a callable of torch.compile: the callable that was compiled."""
_TORCH_COMPILED_MODULES: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
"""Modules that a cell compiled in place with torch.compile.

A later cell may compile them with another compiler.
"""


def is_torch_compiled_by_cell(module: torch.nn.Module) -> bool:
    """Return True if a cell, not the user, compiled the module with torch.compile."""
    return module in _TORCH_COMPILED_MODULES


def _compile_layer(module: torch.nn.Module, options: dict[str, Any]) -> Callable[..., Any]:
    """Return the compiled call of a layer: one function for each way to pass arguments.

    Its frames have the layer's name, its line and the names of its arguments.
    """
    compiled: dict[tuple[int, tuple[str, ...]], Callable[..., Any]] = {}

    def call_layer(*arguments: Any, **keywords: Any) -> Any:
        signature = (len(arguments), tuple(keywords))
        if signature not in compiled:
            frame = _frame_of_layer(module, *signature)
            compiled[signature] = torch.compile(frame, **options)
            setattr(call_layer, DYNAMO_CALLABLE_ATTR, frame)  # its guards are those of the layer
        return compiled[signature](*arguments, **keywords)

    call_layer.__code__ = call_layer.__code__.replace(co_filename=_place_of(module)[0])
    return call_layer


def _place_of(module: torch.nn.Module) -> tuple[str, int]:
    """Return the file name and the first line of a layer's ``forward``.

    The name is in angle brackets, without a folder: torch does not compile code in its own files. Python finds the
    source: until torch 2.12, code without one is compiled as a wrapper of Dynamo's, without its name.
    """
    forward: Any = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    file, line = (f"<{pathlib.Path(code.co_filename).name}>", code.co_firstlineno) if code else ("<torch>", 1)
    lines = linecache.getlines(code.co_filename) if code else []
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return file, line


def _frame_of_layer(module: torch.nn.Module, count: int, keywords: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function that calls a layer with ``count`` arguments and these keywords."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    is_plain = all(k.isidentifier() and not keyword.iskeyword(k) for k in keywords)
    if is_plain and len({*names, *keywords}) == count + len(keywords):
        signature = ", ".join([*names, *keywords])
        passed = ", ".join([*names, *(f"{k}={k}" for k in keywords)])
    else:
        signature = passed = "*arguments, **keywords"
    # torch names a frame and its inputs by its code, and skips code in torch's own files.
    namespace: dict[str, Any] = {"__layer_call": module._call_impl}
    file, line = _place_of(module)
    exec(compile(f"def layer({signature}): return __layer_call({passed})", file, "exec"), namespace)
    frame_function: FunctionType = namespace["layer"]
    frame_function.__qualname__ = f"{type(module).__name__}.forward"
    frame_function.__code__ = frame_function.__code__.replace(co_name=frame_function.__qualname__, co_firstlineno=line)
    return frame_function


def _restore_call(module: torch.nn.Module) -> Undo:
    """Return a callable that restores the current compiled call of a module.

    Both compilers store it in torch's own attribute.
    """
    before = module.__dict__.get(_COMPILED_CALL_ATTR)

    def undo() -> None:
        if before is None:
            module.__dict__.pop(_COMPILED_CALL_ATTR, None)
        else:
            module.__dict__[_COMPILED_CALL_ATTR] = before

    return undo


def make_compiler(choice: CompileSettings) -> CellCompiler:
    """Return the compiler for the given settings.

    Raises:
        UsageError: an unknown backend or target.
    """
    return TorchCompiler(choice) if is_torch_backend(choice.backend) else EngineCompiler(choice)


def is_torch_backend(backend: str) -> bool:
    """Return True if ``--backend`` selects stock torch.compile."""
    return backend == "torch" or backend.startswith("torch:")


def torch_backend_name(backend: str) -> str:
    """Return the backend name after ``torch:``; inductor by default.

    Raises:
        UsageError: torch.compile has no such backend.
    """
    name = backend.partition(":")[2] or "inductor"
    if name not in TORCH_BACKENDS:
        backends = ", ".join(f"torch:{b}" for b in TORCH_BACKENDS)
        raise UsageError(f"There is no backend {backend!r}: choose one of {backends}.")
    return name


def backend_names() -> tuple[str, ...]:
    """Return the values that ``--backend`` accepts, with ``torch:`` ones."""
    return (*api.list_backends(), "torch", *(f"torch:{b}" for b in TORCH_BACKENDS))


def _options(choice: CompileSettings) -> Options:
    if choice.backend not in api.list_backends():
        raise UsageError(f"There is no backend {choice.backend!r}: choose one of {', '.join(backend_names())}.")
    try:
        return api.make_options(
            choice.backend,
            fullgraph=choice.fullgraph,
            dynamic=choice.dynamic,
            target=choice.target,
            options={"fused_random": True} if choice.fused_random else None,
        )
    except errors.EngineError as error:
        raise UsageError(str(error)) from None
