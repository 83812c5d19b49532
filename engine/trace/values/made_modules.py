"""Modules that traced code makes: torch's own without parameters, such as losses and activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Fixed
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, NotConstant, Value
from engine.trace.values.modules import ModuleValue
from engine.trace.values.wrap import is_literal

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


_REGISTRATION_HOOKS = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)


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


def made_module(tx: Tracer, cls: type[torch.nn.Module], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(*args, **kwargs)`` in traced code.

    Raises:
        Unsupported: the class is neither torch's own nor without a constructor, an argument is not constant, or the module holds parameters, buffers or modules.
    """
    refused = Unsupported("unknown-call", f"the module {cls.__name__} is created")
    hooks = any(torch.nn.modules.module.__dict__[name] for name in _REGISTRATION_HOOKS)
    if hooks or not (_is_bare(cls) or (cls.__module__.startswith("torch.nn.modules.") and not _may_hold_tensors(cls))):
        raise refused
    try:
        constants: list[Any] = tx.constants(args)
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    except NotConstant:
        raise refused from None
    if not all(is_literal(v) or _is_numbers(v) for v in (*constants, *words.values())):
        raise refused
    try:
        twin = cls(*constants, **words)
    except Exception as error:
        raise tx.user_exception(error) from error
    tables = [twin.__dict__[table] for table in ("_parameters", "_buffers", "_modules")]
    if any(member is not None for table in tables for member in table.values()):
        raise refused
    return MadeModule(twin, args, kwargs)


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
