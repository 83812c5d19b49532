"""Compiled nn.Modules: a subclass instance that shares the original's state, or in place."""

from __future__ import annotations

import copy
import copyreg
import weakref
from types import FunctionType, MethodType
from typing import Any

import torch

from engine.errors import BadArgument
from engine.interrupts.weak_tables import WeakTable
from engine.ir.compiler_protocol import Compiler
from engine.ir.introspection.python_objects import instance_dict
from engine.ir.unwrap_compiled import ORIGINAL_MODULE_ATTR, OwnedByCompiledModule, unwrap_compiled
from engine.runtime.dispatch.dispatch_callees import CalleeDispatcher, make_callee
from engine.runtime.dispatch.dispatcher import make_dispatcher

Module = torch.nn.Module
_RECONSTRUCTOR: Any = copyreg._reconstructor  # type: ignore[attr-defined]


_SLOTS = (ORIGINAL_MODULE_ATTR, "_engine_compiler", "_engine_forward")


class _SkipInitSubclass:
    """First base of a compiled class; suppresses the user's ``__init_subclass__``.

    The compiled class is internal, not a subclass that the user defined.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        return None


class _CompiledModuleBase(_SkipInitSubclass):
    """Base of compiled classes with the slots they add to the original's ``__dict__``.

    All compiled classes have the same layout, so that ``__class__`` can be assigned, as lazy modules do.
    """

    __slots__ = _SLOTS


_CLASS: Any = object.__dict__["__class__"]
_EQUALS: Any = object.__dict__["__eq__"]
_compiled_classes: WeakTable[type, weakref.ref[type]] = WeakTable()
"""Compiled class of each module class; weak, because it refers to its base."""


def compiled_module(module: Module, compiler: Compiler) -> Any:
    """Return an instance of a generated subclass that shares the module's ``__dict__``.

    Its forward is compiled. Parameters, ``state_dict`` keys, hooks, ``train``/``eval``/``to`` and attribute
    writes are the original's. Deep copies are compiled too; pickling pickles the original.

    Raises:
        BadArgument: the module has no Python forward (a ``ScriptModule``).
    """
    module = unwrap_compiled(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise BadArgument(
            f"{type(module).__name__} is a TorchScript module, which is already compiled. Pass the original nn.Module."
        )
    cls: Any = _compiled_class(type(module))
    wrapper = cls.__new__(cls)
    object.__setattr__(wrapper, "__dict__", instance_dict(module))
    for slot, value in ((ORIGINAL_MODULE_ATTR, module), ("_engine_compiler", compiler), ("_engine_forward", ())):
        object.__setattr__(wrapper, slot, value)
    return wrapper


def _compiled_class(cls: type) -> type:
    reference = _compiled_classes.get(cls)
    existing = None if reference is None else reference()
    if existing is not None:
        return existing
    has_slots = cls.__basicsize__ > Module.__basicsize__
    space = {
        "__slots__": _SLOTS if has_slots else (),
        **({} if has_slots else {ORIGINAL_MODULE_ATTR: vars(_CompiledModuleBase)[ORIGINAL_MODULE_ATTR]}),
        "__class__": property(_get_class, _set_class),
        "_orig_mod": property(_original),  # by this name scripts unwrap modules of ``torch.compile``
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__new__": lambda kind, *args, **kwargs: object.__new__(kind),
        "forward": property(_get_forward, _set_forward, _delete_forward),
        "__deepcopy__": _deepcopy,
        "__copy__": _copy,
        "__reduce_ex__": _reduce,
        **({"__eq__": _equals, "__hash__": _hash} if cls.__eq__ is _EQUALS else {}),
    }
    compiled = type(cls)(cls.__name__, (_SkipInitSubclass if has_slots else _CompiledModuleBase, cls), space)
    _compiled_classes[cls] = weakref.ref(compiled)
    return compiled


def _original(wrapper: Any) -> Any:
    return getattr(wrapper, ORIGINAL_MODULE_ATTR)


def _get_class(wrapper: Any) -> type:
    # The user's class, so that ``self.__class__(...)`` in a method creates an uncompiled module.
    return type(getattr(wrapper, ORIGINAL_MODULE_ATTR))


def _set_class(wrapper: Any, cls: type) -> None:
    """Assign ``__class__``: the original changes its class, and the compiled module follows."""
    getattr(wrapper, ORIGINAL_MODULE_ATTR).__class__ = cls
    _CLASS.__set__(wrapper, _compiled_class(cls))


def _function_of_method(value: Any, module: Any) -> Any:
    """Return the function of a method that is bound to ``module``, else None."""
    return value.__func__ if type(value) is MethodType and value.__self__ is module else None


def _equals(wrapper: Any, other: Any) -> Any:
    """Compare by the original, so that a table keyed by the module finds it by either."""
    return getattr(wrapper, ORIGINAL_MODULE_ATTR) is unwrap_compiled(other) or NotImplemented


def _hash(wrapper: Any) -> int:
    return hash(getattr(wrapper, ORIGINAL_MODULE_ATTR))


def _get_forward(wrapper: Any) -> Any:
    """Return the compiled forward, bound to the original: ``type(self)`` is the user's class.

    The class's own forward and the last other one are cached: trainers set another forward for the length of a call.
    """
    module = getattr(wrapper, ORIGINAL_MODULE_ATTR)
    current, cached = module.forward, wrapper._engine_forward
    own = _function_of_method(current, module)
    for original, dispatched in cached:
        if original is own:
            return dispatched
    plain = unwrap_compiled(current)
    function = _function_of_method(plain, module) or plain
    for original, dispatched in cached:
        if original is function:
            return dispatched
    dispatched = _dispatched_forward(plain, wrapper._engine_compiler)
    own = [entry for entry in cached if entry[0] is getattr(type(module), "forward", None)]
    object.__setattr__(wrapper, "_engine_forward", (*own, (function, dispatched)))
    return dispatched


def _dispatched_forward(forward: Any, compiler: Compiler) -> Any:
    """Return a dispatched forward (of a bound method, or of a function set on the instance)."""
    if type(forward) is MethodType and type(forward.__func__) is FunctionType:
        return MethodType(make_dispatcher(forward.__func__, compiler), forward.__self__)
    if type(forward) is FunctionType:
        return make_dispatcher(forward, compiler)
    return make_callee(compiler)(forward)


def _set_forward(wrapper: Any, value: Any) -> None:
    wrapper.__dict__["forward"] = value


def _delete_forward(wrapper: Any) -> None:
    if "forward" not in wrapper.__dict__:
        raise AttributeError("forward")
    del wrapper.__dict__["forward"]


def _deepcopy(wrapper: Any, memo: dict[int, Any]) -> Any:
    copied = compiled_module(copy.deepcopy(getattr(wrapper, ORIGINAL_MODULE_ATTR), memo), wrapper._engine_compiler)
    memo[id(wrapper)] = copied
    return copied


def _copy(wrapper: Any) -> Any:
    return compiled_module(copy.copy(getattr(wrapper, ORIGINAL_MODULE_ATTR)), wrapper._engine_compiler)


def _reduce(wrapper: Any, protocol: Any) -> Any:
    """Reduce to the original's pickle.

    Picklers require that ``__newobj__`` creates the class of the object being pickled, so ``copyreg._reconstructor``
    replaces it.
    """
    reconstruct, args, *state = getattr(wrapper, ORIGINAL_MODULE_ATTR).__reduce_ex__(protocol)
    if getattr(reconstruct, "__name__", "") == "__newobj__" and len(args) == 1:
        return _RECONSTRUCTOR, (args[0], object, None), *state
    return reconstruct, args, *state


class _CompiledCall(OwnedByCompiledModule):
    """The ``_compiled_call_impl`` of an attached module: its dispatched call, hooks included."""

    def __init__(self, module: Module, compiler: Compiler) -> None:
        # Weak: the module owns this object.
        self._module = weakref.ref(module)
        self.compiler = compiler
        self._callee = CalleeDispatcher(compiler)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module, hooks included."""
        module = self._module()
        assert module is not None
        return self._callee.module_call(module)(*args, **kwargs)

    def forward(self) -> Any:
        """Return the module's dispatched forward, which runs no hooks."""
        module = self._module()
        assert module is not None
        return self._callee.forward(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        # A deep copy of the module is not compiled, as with torch's ``Module.compile``.
        return None


def attach(module: Module, compiler: Compiler) -> None:
    """Compile a module in place, through the hook of torch's ``Module.compile``.

    Class, identity, ``state_dict`` and pickle are unchanged.

    Raises:
        BadArgument: another compiler already uses the hook.
    """
    module = unwrap_compiled(module)
    compiled_call = module._compiled_call_impl
    if compiled_call is not None and not isinstance(compiled_call, _CompiledCall):
        raise BadArgument(
            f"{type(module).__name__} is already compiled by torch's Module.compile(). Create a new module, or compile it only once."
        )
    module._compiled_call_impl = _CompiledCall(module, compiler)


def detach(module: Module) -> None:
    """Undo ``attach``; do nothing if the module is not attached."""
    module = unwrap_compiled(module)
    if isinstance(module.__dict__.get("_compiled_call_impl"), _CompiledCall):
        del module.__dict__["_compiled_call_impl"]


def compiled_forward(module: Module) -> Any:
    """Return the dispatched forward of a compiled or attached module; None for any other."""
    if ORIGINAL_MODULE_ATTR in type(module).__dict__:
        return module.forward
    compiled_call = module._compiled_call_impl
    return compiled_call.forward() if isinstance(compiled_call, _CompiledCall) else None
