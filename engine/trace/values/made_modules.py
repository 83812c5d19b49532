"""Modules that traced code makes: torch's own without parameters, such as losses and activations."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Attr, Fixed
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, NotConstant, Value, force
from engine.trace.values.classes import class_origin, find_in_class
from engine.trace.values.mappings import DictValue
from engine.trace.values.modules import REGISTRATION_HOOKS, ModuleValue
from engine.trace.values.rules import special
from engine.trace.values.wrap import is_literal

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class MadeModule(ModuleValue):
    """A module made from constants. A twin made while tracing stands for it; each call makes its own where one is needed."""

    is_made = True

    def __init__(self, twin: torch.nn.Module, args: list[Value], kwargs: dict[str, Value]) -> None:
        super().__init__(type(twin), Fixed(twin, f"{type(twin).__name__}()"), twin)
        self.args = list(args)
        self.kwargs = dict(kwargs)

    def own_attr(self, tx: Tracer, name: str) -> Value | None:
        own = self.held.__dict__.get(name)
        if name not in self.written and name in self.held.__dict__ and is_literal(own):
            return Const(own)
        return super().own_attr(tx, name)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.cls))
        cg.load_all([*self.args, *self.kwargs.values()])
        cg.call_keywords(len(self.args), tuple(self.kwargs))
        if self.written:
            cg.remember(self)
            cg.fill_later(self)


class BuiltModule(ModuleValue):
    """A module whose constructor was traced: attributes and members are all values. ``held`` is an empty one that stands for it."""

    is_made = True

    def __init__(self, cls: type[torch.nn.Module]) -> None:
        empty: torch.nn.Module = object.__new__(cls)
        super().__init__(cls, Fixed(empty, f"{cls.__name__}()"), empty)
        self.is_initialised = False

    def initialise(self, tx: Tracer) -> None:
        """``nn.Module.__init__``."""
        torch.nn.Module.__init__(self.held)
        self.is_initialised = True
        for name, value in self.held.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                self.tables[name] = DictValue({}, None, type(value))
            else:
                self.written[name] = tx.from_python(value)

    def children(self) -> list[Value]:
        return [*super().children(), *self.tables.values()]

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        if not self.is_initialised:
            raise Unsupported("unknown-call", f"{self.cls.__name__} sets {name!r} before nn.Module.__init__ ran")
        super().set_plainly(tx, name, value)

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import new_object

        cg.helper(new_object, 0)
        cg.const(self.cls)
        cg.out.call(1)
        cg.remember(self)
        cg.fill_later(self)

    def fill(self, cg: Codegen) -> None:
        written = self.written
        # The order of nn.Module.__init__ is kept: tables and attributes as they were first set.
        order = [*self.held.__dict__, *(n for n in written if n not in self.held.__dict__)]
        self.written = {n: self.tables.get(n, written.get(n)) for n in order}
        super().fill(cg)
        self.written = written


def made_module(tx: Tracer, cls: type[torch.nn.Module], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(*args, **kwargs)`` in traced code.

    Raises:
        Unsupported: the class is neither torch's own nor without a constructor, an argument is not constant, or the module holds parameters, buffers or modules.
    """
    refused = Unsupported("unknown-call", f"the module {cls.__name__} is created")
    if any(torch.nn.modules.module.__dict__[name] for name in REGISTRATION_HOOKS):
        raise refused
    if not (_is_bare(cls) or (cls.__module__.startswith("torch.nn.modules.") and not _may_hold_tensors(cls))):
        return _built(tx, cls, args, kwargs, refused)
    try:
        constants: list[Any] = tx.constants(args)
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    except NotConstant:
        return _built(tx, cls, args, kwargs, refused)
    if not all(is_literal(v) or _is_numbers(v) for v in (*constants, *words.values())):
        return _built(tx, cls, args, kwargs, refused)
    try:
        twin = cls(*constants, **words)
    except Exception as error:
        raise tx.user_exception(error) from error
    tables = [twin.__dict__[table] for table in ("_parameters", "_buffers", "_modules")]
    if any(member is not None for table in tables for member in table.values()):
        raise refused
    return MadeModule(twin, args, kwargs)


def _built(
    tx: Tracer, cls: type[torch.nn.Module], args: list[Value], kwargs: dict[str, Value], refused: Unsupported
) -> Value:
    """A module whose constructor is looked into."""
    if type(cls).__call__ is not type.__call__:
        raise refused
    new = find_in_class(cls, "__new__")
    made: Value
    if new is None or new[0] is object:
        made = empty_module(cls)
    else:
        raw = new[1].__func__ if isinstance(new[1], staticmethod) else new[1]
        if not isinstance(raw, FunctionType):
            raise refused
        of = tx.wrap(cls, class_origin(cls))
        made = force(tx, tx.wrap(raw, Attr(class_origin(new[0]), "__new__")).call(tx, [of, *args], kwargs))
        if not issubclass(made.type(), cls):
            return made
    init = find_in_class(made.type(), "__init__")
    if init is None or not isinstance(init[1], FunctionType):
        raise refused
    tx.wrap(init[1], Attr(class_origin(init[0]), "__init__")).call(tx, [made, *args], kwargs)
    return made


def empty_module(cls: type[torch.nn.Module]) -> BuiltModule:
    """``object.__new__(cls)``.

    Raises:
        Unsupported: the class is abstract, or what its constructor does is not looked into.
    """
    outside = (torch.nn.modules.lazy.LazyModuleMixin, torch.jit.ScriptModule, torch.nn.RNNBase)
    if issubclass(cls, outside) or inspect.isabstract(cls):
        raise Unsupported("unknown-call", f"the module {cls.__name__} is created")
    return BuiltModule(cls)


@special(torch.nn.Module.__init__)
def _module_init(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    of = force(tx, args[0])
    if not isinstance(of, BuiltModule) or of.is_initialised or len(args) > 1 or kwargs or of.cls.call_super_init:  # type: ignore[attr-defined]
        raise Unsupported("unknown-call", "nn.Module.__init__ is called")
    of.initialise(tx)
    return NONE


def _is_bare(cls: type[torch.nn.Module]) -> bool:
    """Whether making one runs no code but ``nn.Module``'s own."""
    own = ("__init__", "__setattr__", "__getattr__", "__new__", "__call__", "__getattribute__")
    found = [next((base for base in cls.__mro__ if name in vars(base)), object) for name in own]
    return type(cls) is type and all(base in (torch.nn.Module, object) for base in found)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value)


_WITHOUT_TENSORS = frozenset(
    "activation loss dropout pooling flatten distance padding fold upsampling pixelshuffle channelshuffle".split()
)


def _may_hold_tensors(cls: type) -> bool:
    """Whether making one could draw random numbers for its parameters."""
    if cls in (torch.nn.PReLU, torch.nn.MultiheadAttention):
        return True
    return cls.__module__.rpartition(".")[2] not in _WITHOUT_TENSORS and cls is not torch.nn.Identity
