"""torch's capture protocol: all that depends on its version, in one place.

torch's C++ engine, when a compiler is set, does not run a backward: it calls methods of an object by name, one for each thing that it
would have done. The names and arguments are facts of torch (``torch/csrc/dynamo/python_compiled_autograd.cpp``); what they mean to us is
``Recorder``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])

_protocol: Any = torch._C._dynamo.compiled_autograd


class CaptureCallbacks(Protocol):
    """What a capture is told, whatever the version of torch. Tensors are stand-ins, told apart by identity; None is "undefined"."""

    def fail(self, error: BaseException) -> None:
        """Something went wrong; to be raised at the end."""
        ...

    def begin(self, inputs: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> tuple[Any, ...]:
        """Stand-ins for the tensors, sizes and scalars that the graph will be called with, as three lists."""
        ...

    def begin_node(self, name: str, index: int, owner: Any) -> None:
        """From here on it is about this autograd node; ``owner`` is a Python function's context."""
        ...

    def function(self, name: str, grads: Sequence[Any], args: Sequence[Any], results: int) -> list[Any]:
        """A built-in node's formula."""
        ...

    def validate(self, values: Sequence[Any], metadata: Sequence[Any]) -> list[Any]:
        """What a node returned, made to fit the nodes that it goes to."""
        ...

    def python_function(
        self, grads: Sequence[Any], metadata: Sequence[Any], saved: Sequence[Any], place: int, owner: Any
    ) -> list[Any]:
        """A Python function's backward; its context stands at ``place`` among the hooks."""
        ...

    def add_gradients(self, old: Any, new: Any) -> Any:
        """Two gradients that meet."""
        ...

    def accumulate_grad(self, variable: Any, grad: Any, old: Any) -> Any:
        """Into a leaf's ``.grad``, which was ``old``."""
        ...

    def hook(self, kind: str, place: int, values: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
        """A hook of the user's, of one of ``hooks.KINDS``, on several values."""
        ...

    def tensor_hook(self, place: int, values: Sequence[Any], position: int, *, is_builtin: bool) -> list[Any]:
        """A hook on one of several gradients; a built-in one fills ``.grad`` of what retains it."""
        ...

    def unpack(self, hook: int, packed: int) -> Any:
        """A saved tensor out of what a hook packed."""
        ...

    def copy_slices_prologue(self, grads: Sequence[Any], geometry: Sequence[Any]) -> list[Any]:
        """The first half of what a write through a view means for gradients."""
        ...

    def copy_slices_epilogue(self, needed: Sequence[bool], result: Any, grads: Sequence[Any], part: Any) -> list[Any]:
        """The second half."""
        ...

    def end(self, results: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """How to run what was captured, and what to run."""
        ...


def _placeholder_gradients(metadata: Sequence[Any]) -> list[Any]:
    return [None if m is None else torch.empty(0) for m in metadata]


def _never_raise(answer: Callable[..., Any]) -> Callable[[Method], Method]:
    """Make a method that never raises: an exception would leave stand-ins in torch's nodes. ``answer`` gives torch something to go on with."""

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def safe(self: Any, *args: Any) -> Any:
            try:
                return method(self, *args)
            except Exception as error:
                self._callbacks.fail(error)
                return answer(*args)

        return cast("Method", safe)

    return wrap


class AutogradCompilerAdapter:
    """The methods that torch 2.11 to 2.13 calls, each passed on to a recorder."""

    def __init__(self, recorder: CaptureCallbacks) -> None:
        self._callbacks = recorder

    def begin_capture(
        self, inputs: list[Any], sizes: Sequence[int], scalars: Sequence[Any], origins: Any = (), *modes: bool
    ) -> tuple[Any, ...]:
        """Newer versions pass what kind of call it is (``modes``) and want an id first."""
        found = self._callbacks.begin(inputs, sizes, scalars)
        return ("engine", *found) if modes else found

    def log_compile_reasons(self, reasons: Sequence[str]) -> None:
        """Called where somebody has set torch's logger; ours are told in words of their own."""

    @_never_raise(lambda *_: None)
    def set_node_origin(self, name: str, index: int, owner: Any) -> None:
        """Called before each node."""
        self._callbacks.begin_node(name, index, owner)

    def bind_function(self, name: str, run: Callable[..., Any], is_custom: bool, is_traceable: bool) -> str:
        """Called once a process for each kind of node; answers with the name to call it by."""
        return bind_formula(name, run, is_custom=is_custom, is_traceable=is_traceable)

    @_never_raise(lambda name, grads, args, metadata: _placeholder_gradients(metadata))
    def apply_functional(self, name: str, grads: Any, args: Any, metadata: Any) -> list[Any]:
        """Called for nodes whose formula was bound."""
        return self._callbacks.function(name, grads, args, len(metadata))

    @_never_raise(lambda name, values, *_: values)
    def validate_outputs(self, name: str, values: Any, args: Any, metadata: Any) -> list[Any]:
        """Called after each node."""
        return self._callbacks.validate(values, metadata)

    @_never_raise(lambda grads, metadata, *_: tuple(_placeholder_gradients(metadata)))
    def proxy_call_backward(
        self, grads: Any, metadata: Any, saved: Any, place: int, owner: Any, state: int | None = None, *rest: Any
    ) -> tuple[Any, ...]:
        """Called for Python functions."""
        return tuple(self._callbacks.python_function(grads, metadata, saved, place, owner))

    @_never_raise(lambda old, new: old)
    def accumulate(self, old: Any, new: Any) -> Any:
        """Called where gradients meet."""
        return self._callbacks.add_gradients(old, new)

    @_never_raise(lambda variable, *rest: None if len(rest) < 3 else variable)
    def accumulate_grad(self, variable: Any, *rest: Any) -> Any:
        """(variable, grad[, has post hooks]), and since 2.13 (variable, variable's grad, grad, has post hooks), which wants an answer."""
        is_old = len(rest) < 3
        grad, before = (rest[0], getattr(variable, "grad", None)) if is_old else (rest[1], rest[0])
        result = self._callbacks.accumulate_grad(variable, grad, before)
        return None if is_old else result

    @_never_raise(lambda values, *_: values)
    def tensor_pre_hook(self, values: Any, place: int, position: int) -> list[Any]:
        """A tensor's hook."""
        return self._callbacks.tensor_hook(place, values, position, is_builtin=False)

    @_never_raise(lambda values, *_: values)
    def cpp_tensor_pre_hook(self, values: Any, place: int, position: int) -> list[Any]:
        """A tensor's hook in C++: ``retain_grad``."""
        return self._callbacks.tensor_hook(place, values, position, is_builtin=True)

    @_never_raise(lambda values, *_: values)
    def pre_hook(self, values: Any, place: int) -> list[Any]:
        """A node's hook, before it runs."""
        return self._callbacks.hook("pre_hook", place, values)

    @_never_raise(lambda results, *_: results)
    def post_hook(self, results: Any, values: Any, place: int) -> list[Any]:
        """A node's hook, after it ran."""
        return self._callbacks.hook("post_hook", place, results, values)

    @_never_raise(lambda variable, _: [variable])
    def post_acc_grad_hook(self, variable: Any, place: int) -> list[Any]:
        """A leaf's hook, after its ``.grad`` was written."""
        return self._callbacks.hook("post_acc_grad_hook", place, [variable])

    @_never_raise(lambda *_: torch.empty(0))
    def unpack_hook(self, hook: int, packed: int) -> Any:
        """A saved tensor's hook."""
        return self._callbacks.unpack(hook, packed)

    @_never_raise(lambda *_: [torch.empty(0) for _ in range(3)])
    def call_copy_slices_prologue(self, grads: Any, *geometry: Any) -> list[Any]:
        """Geometry: sizes, strides and offset of base and view."""
        return self._callbacks.copy_slices_prologue(grads, geometry)

    @_never_raise(lambda needed, *_: _placeholder_gradients([n or None for n in needed]))
    def call_copy_slices_epilogue(self, needed: Any, result: Any, grads: Any, part: Any) -> list[Any]:
        """Of the same write."""
        return self._callbacks.copy_slices_epilogue(needed, result, grads, part)

    def end_capture(self, results: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Called last; torch keeps both and calls the first with the second and the inputs, now and whenever the same graph comes again."""
        return self._callbacks.end(results)

    def close(self) -> None:
        """Called when torch lets go of this object."""


FORMULAS: dict[str, Callable[..., Any]] = {}
"""Formulas of built-in nodes by name: ``run(grads, *args) -> list``. torch binds each once a process."""

CALL_CPP_TENSOR_PRE_HOOK = cast("Callable[..., Any] | None", getattr(_protocol, "call_cpp_tensor_pre_hooks", None))
"""Calls a hook in C++ by its place among those of the backward that runs."""


def bind_formula(name: str, run: Callable[..., Any], *, is_custom: bool, is_traceable: bool) -> str:
    """Keep a formula; the name of a C++ function of the user's is made unique."""
    if is_custom:
        name = f"CppNode{name}{sum(n.startswith(f'CppNode{name}') for n in FORMULAS)}"
    FORMULAS[name] = run
    _opaque[name] = not is_traceable
    share_formulas()
    return name


_opaque: dict[str, bool] = {}


def is_opaque_formula(name: str) -> bool:
    """Whether a formula may only be run, not traced: a C++ function of the user's that does not call itself traceable."""
    return _opaque.get(name, False)


def formula(name: str) -> Callable[..., Any]:
    """The formula of a built-in node.

    Raises:
        KeyError: torch bound it to another object before.
    """
    if name not in FORMULAS:
        share_formulas()
    return FORMULAS[name]


def share_formulas() -> None:
    """Exchange formulas with torch's own capture, where it is loaded: each is bound only once, to whoever comes first."""
    stock = sys.modules.get("torch._dynamo.compiled_autograd")
    namespace = getattr(stock, "ops", None)
    if namespace is None:
        return
    for name, bound in list(vars(namespace).items()):
        run = getattr(bound, "fn", None) or _formula_in_closure(bound)
        if callable(run) and name not in FORMULAS:
            FORMULAS[name] = run
    for name, run in FORMULAS.items():
        if not hasattr(namespace, name):
            given = namespace.add(name, run, False, not is_opaque_formula(name))
            assert given == name


def _formula_in_closure(bound: Any) -> Any:
    cells = getattr(bound, "__closure__", None) or ()
    found = [getattr(c.cell_contents, "fn", None) for c in cells]
    return next((f for f in found if f is not None), None)


def torch_capture_count() -> int:
    """How many backwards torch's own capture has captured: what it leaves in the common cache is not ours to run."""
    loaded = sys.modules.get("torch._dynamo.utils")
    return int(loaded.counters["compiled_autograd"]["captures"]) if loaded is not None else 0


PreviousCompiler = tuple[Any, ...]


def set_compiler(factory: Callable[[], Any] | None, *, dynamic: bool = False) -> PreviousCompiler:
    """Make torch's engine call ``factory`` for backwards that it has not captured yet (None: run backwards itself); what was set before.

    Raises:
        RuntimeError: a backward is running in another thread.
    """
    return restore_compiler((factory, dynamic))


def restore_compiler(previous: PreviousCompiler) -> PreviousCompiler:
    """Undo ``set_compiler``."""
    found = _protocol.set_autograd_compiler(*previous)
    return found if isinstance(found, tuple) else (found, False)


def clear_cache() -> None:
    """Forget all captures of this process."""
    _protocol.clear_cache()


def is_cache_empty() -> bool:
    """Whether nothing is captured."""
    return bool(_protocol.is_cache_empty())
