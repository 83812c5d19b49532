"""Variables of Python modules: reads of their attributes, guarded against replacement."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import GlobalsNamespace
from engine.ir.sources.roots import GlobalSource
from engine.trace.annotations import Tracer
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import ConstantVariable, FixedObjectVariable, NotPythonConstant, UserErrors, Variable
from engine.trace.variables.builder import guarded_builder, is_literal, register_builder, register_subclass_builder
from engine.trace.variables.objects.class_lookup import class_source
from engine.trace.variables.slotted_type import state
from engine.trace.variables.torch_api import backend_flags


class PythonModuleVariable(FixedObjectVariable):
    """An imported Python module."""

    is_trusted: bool = state(False)

    def __post_init__(self) -> None:
        self.is_trusted = is_trusted_module(self.real_object.__name__)

    def describe(self) -> str:
        return f"module {self.real_object.__name__}"

    def as_python_constant(self, tx: Tracer) -> Any:
        if not self.is_trusted:
            raise NotPythonConstant(self)
        return super().as_python_constant(tx)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        written = tx.side_effects.global_writes.get((self._namespace(), name))
        if written is not None:
            return written
        with UserErrors(tx, AttributeError):
            real = getattr(self.real_object, name)
        if (
            self.is_trusted
            and is_literal(real)
            and (type(real) is bool or type(self.real_object) is not types.ModuleType)
        ):
            return backend_flags.read_flag(tx, self.real_object, name, real)
        if self.is_trusted and not isinstance(real, (list, dict, set, torch.Tensor)):
            if is_literal(real):
                return ConstantVariable(real)
            if name in self.real_object.__dict__:
                tx.guards.record_library_function(tx, self._namespace(), name, real)
            return tx.wrap_static(real)
        if name not in self.real_object.__dict__ and (self._namespace(), name) not in tx.side_effects.global_writes:
            owner = class_source(type(real)) if self.source is None else self.source
            return tx.wrap(real, AttrSource(owner, name))
        return tx.wrap(real, GlobalSource(name, self._namespace()))

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        """Record a write to a module attribute, which is a global of the module's code."""
        if backend_flags.is_flag(self.real_object, name):
            backend_flags.write_flag(tx, self.real_object, name, value)
            return
        if type(self.real_object) is not types.ModuleType or self.is_trusted:
            super().set_attr(tx, name, value)
        tx.side_effects.record_global_write(self._namespace(), name, value)

    def _namespace(self) -> GlobalsNamespace:
        if self.real_object is sys:
            return SYS_NAMESPACE
        return GlobalsNamespace(self.real_object.__dict__, self.real_object.__name__)


SYS_NAMESPACE = GlobalsNamespace(sys.__dict__, "sys")
"""Namespace of ``sys``, which holds the standard streams."""


_build = guarded_builder(PythonModuleVariable, "the module {0.__name__} was used")
register_builder(types.ModuleType)(_build)
register_subclass_builder(50, types.ModuleType)(_build)
