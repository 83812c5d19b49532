"""Return the original of a dispatcher, a compiled module or a torch.compile wrapper."""

from __future__ import annotations

import types
import weakref
from typing import Any

from engine.interrupts.weak_tables import WeakTable

DISPATCHER_ORIGINALS: WeakTable[types.FunctionType, weakref.ref[types.FunctionType]] = WeakTable()
"""Dispatcher -> the function that it dispatches and holds, for every live dispatcher."""


ORIGINAL_MODULE_ATTR = "_engine_original"
"""Attribute of a compiled module: the original module, which shares its ``__dict__``."""


class OwnedByCompiledModule:
    """Base class of objects that a module owns because it is compiled in place.

    It refers to the compiler, and weakly to the module.
    """

    __slots__ = ()


_TORCH_COMPILE_ATTR = "_torchdynamo_orig_callable"


_CONTEXT_WRAPPER_QUALNAME = "wrap_dunder_call_ctx_manager.<locals>.inner"
"""Qualified name of torch's wrapper of a function that a Dynamo setting decorates.

Example: ``torch._dynamo.dont_skip_tracing``.
"""


def is_error_on_graph_break_context(obj: Any) -> bool:
    """Return True for the context manager of ``torch._dynamo.error_on_graph_break``.

    This engine supports the setting too.
    """
    cls = type(obj)
    return (cls.__module__, cls.__name__) == ("torch._dynamo.decorators", "ErrorOnGraphBreakDecoratorContextManager")


def unwrap_torch_compile(obj: Any) -> Any:
    """Return the function or module that ``torch.compile`` wrapped, or None.

    Also None for a function or module that ``torch.compiler.disable`` wrapped.
    """
    if type(obj) is types.FunctionType:
        attributes = obj.__dict__
        if obj.__qualname__ == _CONTEXT_WRAPPER_QUALNAME and obj.__closure__ is not None:
            inside = dict(zip(obj.__code__.co_freevars, obj.__closure__, strict=True))
            return (
                None if is_error_on_graph_break_context(inside["self"].cell_contents) else inside["func"].cell_contents
            )
        region = attributes.get("__marked_compile_region_fn__")
        return None if attributes.get("_torchdynamo_disable") else region or attributes.get(_TORCH_COMPILE_ATTR)
    if type(obj).__module__ == "torch._dynamo.eval_frame":
        attributes = vars(obj)
        is_off = type(attributes.get("dynamo_ctx")).__name__ == "DisableContext"
        return None if is_off else attributes.get("_modules", {}).get("_orig_mod")
    return None


def unwrap_torch_disable(obj: Any) -> Any:
    """Return the function that ``torch.compiler.disable`` wrapped; any other object unchanged.

    A function that is compiled explicitly is compiled although it was disabled before.
    """
    attributes = getattr(obj, "__dict__", {})
    return attributes.get(_TORCH_COMPILE_ATTR, obj) if attributes.get("_torchdynamo_disable") else obj


def unwrap_compiled(obj: Any) -> Any:
    """Return the original of a dispatcher or of a compiled module; other objects unchanged.

    Also unwraps ``torch.compile``, and the function and owner of a bound method.
    """
    behind = unwrap_torch_compile(obj)
    if behind is not None:
        return unwrap_compiled(behind)
    if type(obj) is types.FunctionType:
        original = DISPATCHER_ORIGINALS.get(obj)
        return obj if original is None else original()
    if type(obj) is types.MethodType:
        function, owner = unwrap_compiled(obj.__func__), unwrap_compiled(obj.__self__)
        return obj if function is obj.__func__ and owner is obj.__self__ else types.MethodType(function, owner)
    if ORIGINAL_MODULE_ATTR in type(obj).__dict__:
        return getattr(obj, ORIGINAL_MODULE_ATTR)
    return obj
