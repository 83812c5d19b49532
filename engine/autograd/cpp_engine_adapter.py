"""Adapter to torch's compiled-autograd capture; all code that depends on torch's version.

With a compiler set, torch's C++ engine does not run a backward. It calls methods of an object by name,
one for each operation that it would run. Names and arguments are torch's
(``torch/csrc/dynamo/python_compiled_autograd.cpp``). ``CaptureRecorder`` does not depend on the version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from engine.torch_private.compiled_autograd import capture_protocol
from engine.torch_private.global_state import loaded_dynamo_module

if TYPE_CHECKING:
    from engine.autograd.capture import CaptureRecorder

Method = TypeVar("Method", bound=Callable[..., Any])


def _placeholder_gradients(metadata: Sequence[Any]) -> list[Any]:
    return [None if m is None else torch.empty(0) for m in metadata]


def _never_raise(answer: Callable[..., Any]) -> Callable[[Method], Method]:
    """Make a method that reports exceptions to ``fail`` and never raises.

    An exception would leave stand-ins in torch's nodes. ``answer`` creates a result with which torch can continue.
    """

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
    """Methods that torch 2.11 to 2.13 calls; each one forwards to the callbacks."""

    def __init__(self, recorder: CaptureRecorder) -> None:
        self._callbacks = recorder

    def begin_capture(
        self, inputs: list[Any], sizes: Sequence[int], scalars: Sequence[Any], origins: Any = (), *modes: bool
    ) -> tuple[Any, ...]:
        """Begin the capture.

        Newer versions pass flags of the call (``modes``) and expect an id as the first result.
        """
        begun = self._callbacks.begin(inputs, sizes, scalars)
        return ("engine", *begun) if modes else begun

    def log_compile_reasons(self, reasons: Sequence[str]) -> None:
        """Ignore torch's cache-miss reasons, passed if its logger is set; we compute our own."""

    @_never_raise(lambda *_: None)
    def set_node_origin(self, name: str, index: int, owner: Any) -> None:
        """Begin a node of the backward: torch calls this before it records the node's steps."""
        self._callbacks.begin_node(name, index, owner)

    def bind_function(self, name: str, run: Callable[..., Any], is_custom: bool, is_traceable: bool) -> str:
        """Bind a formula once per process and kind of node; return the name to call it by."""
        return bind_formula(name, run, is_custom=is_custom, is_traceable=is_traceable)

    @_never_raise(lambda name, grads, args, metadata: _placeholder_gradients(metadata))
    def apply_functional(self, name: str, grads: Any, args: Any, metadata: Any) -> list[Any]:
        """Record a node whose formula is bound."""
        return self._callbacks.function(name, grads, args, len(metadata))

    @_never_raise(lambda name, values, *_: values)
    def validate_outputs(self, name: str, values: Any, args: Any, metadata: Any) -> list[Any]:
        """Record the validation after each node."""
        return self._callbacks.validate(values, metadata)

    @_never_raise(lambda grads, metadata, *_: tuple(_placeholder_gradients(metadata)))
    def proxy_call_backward(
        self, grads: Any, metadata: Any, saved: Any, node_index: int, owner: Any, state: int | None = None, *rest: Any
    ) -> tuple[Any, ...]:
        """Record an autograd.Function's backward."""
        return tuple(self._callbacks.python_function(grads, metadata, saved, node_index, owner))

    @_never_raise(lambda old, new: old)
    def accumulate(self, old: Any, new: Any) -> Any:
        """Record the addition of two gradients."""
        return self._callbacks.add_gradients(old, new)

    @_never_raise(lambda variable, *rest: None if len(rest) < 3 else variable)
    def accumulate_grad(self, variable: Any, *rest: Any) -> Any:
        """Record the accumulation into a leaf's ``.grad``.

        The arguments are (variable, grad[, has post hooks]).
        Since torch 2.13 they are (variable, variable's grad, grad, has post hooks), and torch expects a result.
        """
        is_old = len(rest) < 3
        grad, before = (rest[0], getattr(variable, "grad", None)) if is_old else (rest[1], rest[0])
        result = self._callbacks.accumulate_grad(variable, grad, before)
        return None if is_old else result

    @_never_raise(lambda values, *_: values)
    def tensor_pre_hook(self, values: Any, node_index: int, position: int) -> list[Any]:
        """Record a user's hook on the gradient at ``position`` of a node's gradients."""
        return self._callbacks.tensor_hook(node_index, values, position, is_builtin=False)

    @_never_raise(lambda values, *_: values)
    def cpp_tensor_pre_hook(self, values: Any, node_index: int, position: int) -> list[Any]:
        """Record a C++ tensor hook, which implements ``retain_grad``."""
        return self._callbacks.tensor_hook(node_index, values, position, is_builtin=True)

    @_never_raise(lambda values, *_: values)
    def pre_hook(self, values: Any, node_index: int) -> list[Any]:
        """Record a hook that runs before its node."""
        return self._callbacks.hook("pre_hook", node_index, values)

    @_never_raise(lambda results, *_: results)
    def post_hook(self, results: Any, values: Any, node_index: int) -> list[Any]:
        """Record a hook that runs after its node."""
        return self._callbacks.hook("post_hook", node_index, results, values)

    @_never_raise(lambda variable, _: [variable])
    def post_acc_grad_hook(self, variable: Any, node_index: int) -> list[Any]:
        """Record a leaf's hook that runs after its ``.grad`` is written."""
        return self._callbacks.hook("post_acc_grad_hook", node_index, [variable])

    @_never_raise(lambda *_: torch.empty(0))
    def unpack_hook(self, hook: int, packed: int) -> Any:
        """Record a hook that unpacks a saved tensor."""
        return self._callbacks.unpack(hook, packed)

    @_never_raise(lambda *_: [torch.empty(0) for _ in range(3)])
    def call_copy_slices_prologue(self, grads: Any, *geometry: Any) -> list[Any]:
        """Record the first half of CopySlices; geometry: sizes, strides, offset of base and view."""
        return self._callbacks.copy_slices_prologue(grads, geometry)

    @_never_raise(lambda needed, *_: _placeholder_gradients([n or None for n in needed]))
    def call_copy_slices_epilogue(self, needed: Any, result: Any, grads: Any, part: Any) -> list[Any]:
        """Record the second half of CopySlices."""
        return self._callbacks.copy_slices_epilogue(needed, result, grads, part)

    def end_capture(self, results: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """End the capture.

        torch stores both results. It calls the first with the second and the inputs, now and on each cache hit.
        """
        return self._callbacks.end(results)

    def close(self) -> None:
        """Do nothing; torch calls this when it releases the object."""


FORMULAS: dict[str, Callable[..., Any]] = {}
"""Formulas by name: ``run(grads, *args) -> list``; torch binds each once per process."""

CALL_CPP_TENSOR_PRE_HOOK = cast(
    "Callable[..., Any] | None", getattr(capture_protocol, "call_cpp_tensor_pre_hooks", None)
)
"""Calls a C++ tensor hook by its index in the running backward; None if torch has none."""


def bind_formula(name: str, run: Callable[..., Any], *, is_custom: bool, is_traceable: bool) -> str:
    """Store a formula and return its name.

    The name of a user-defined C++ function is made unique.
    """
    if is_custom:
        name = f"CppNode{name}{sum(n.startswith(f'CppNode{name}') for n in FORMULAS)}"
    FORMULAS[name] = run
    _opaque[name] = not is_traceable
    share_formulas()
    return name


_opaque: dict[str, bool] = {}


def is_opaque_formula(name: str) -> bool:
    """Return True if a formula can run but cannot be traced.

    Such a formula is a user-defined C++ function that is not declared traceable.
    """
    return _opaque.get(name, False)


def formula(name: str) -> Callable[..., Any]:
    """Return the formula of a built-in node.

    Raises:
        KeyError: torch bound it to another object earlier.
    """
    if name not in FORMULAS:
        share_formulas()
    return FORMULAS[name]


def share_formulas() -> None:
    """Exchange formulas with torch's own capture if that is loaded.

    torch binds each formula only once, to the capture that comes first.
    """
    stock = loaded_dynamo_module("compiled_autograd")
    namespace = getattr(stock, "ops", None)
    if namespace is None:
        return
    for name, bound in list(vars(namespace).items()):
        run = getattr(bound, "fn", None) or _formula_in_closure(bound)
        if callable(run) and name not in FORMULAS:
            FORMULAS[name] = run
    for name, run in FORMULAS.items():
        if not hasattr(namespace, name):
            registered = namespace.add(name, run, False, not is_opaque_formula(name))
            assert registered == name


def _formula_in_closure(bound: Any) -> Any:
    cells = getattr(bound, "__closure__", None) or ()
    functions = [getattr(c.cell_contents, "fn", None) for c in cells]
    return next((f for f in functions if f is not None), None)


def torch_capture_count() -> int:
    """Return the number of backwards that torch's own capture has captured.

    Its entries in the shared cache must not run here.
    """
    loaded = loaded_dynamo_module("utils")
    return int(loaded.counters["compiled_autograd"]["captures"]) if loaded is not None else 0


PreviousCompiler = tuple[Any, ...]


def set_compiler(factory: Callable[[], Any] | None, *, dynamic: bool = False) -> PreviousCompiler:
    """Set the function that torch's engine calls on a cache miss; return the previous setting.

    With None, torch runs backwards itself.

    Raises:
        RuntimeError: A backward is running in another thread.
    """
    return restore_compiler((factory, dynamic))


def restore_compiler(previous: PreviousCompiler) -> PreviousCompiler:
    """Restore a previous setting and return the setting that it replaces."""
    replaced = capture_protocol.set_autograd_compiler(*previous)
    return replaced if isinstance(replaced, tuple) else (replaced, False)


def clear_cache() -> None:
    """Clear all captures of this process."""
    capture_protocol.clear_cache()


def is_cache_empty() -> bool:
    """Return True if torch's cache has no captures."""
    return bool(capture_protocol.is_cache_empty())
