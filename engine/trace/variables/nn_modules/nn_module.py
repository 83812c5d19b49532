"""``nn.Module`` instances: members and containers."""

from __future__ import annotations

import types
from typing import Any

import torch

from engine.ir.guards.python_values import DictKeysMatch, HasAttrGuard
from engine.ir.sources.attributes import AttrSource, ModuleMemberSource
from engine.ir.sources.base import Source, module_path
from engine.ir.unwrap_compiled import ORIGINAL_MODULE_ATTR, unwrap_compiled
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.builder import register_subclass_builder
from engine.trace.variables.callable_registry import RULES_BY_CODE
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import ListVariable
from engine.trace.variables.nn_modules.module_calls import call_graph_module, call_module
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.slotted_type import fresh

_MEMBER_DICTS = ("_parameters", "_buffers", "_modules")
_MODULE = torch.nn.Module
_CONTAINERS = (
    torch.nn.ModuleList,
    torch.nn.Sequential,
    torch.nn.ModuleDict,
    torch.nn.ParameterList,
    torch.nn.ParameterDict,
)
REGISTRATION_HOOKS = (
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
"""Dicts of the hooks that run when a member is registered on any module."""
_GRAPH_MODULE_CALL_CODE = next(
    c
    for c in torch.fx.GraphModule.recompile.__code__.co_consts
    if isinstance(c, types.CodeType) and c.co_name == "call_wrapped"  # from Python 3.14 on, "__annotate__" comes first
)
"""Code of the ``__call__`` that torch generates for each ``GraphModule`` class."""


class NNModuleVariable(UserDefinedObjectVariable):
    """An ``nn.Module``. Parameters, buffers and submodules come from its member dicts.

    Everything else behaves as for any instance.
    """

    source: Source
    functional_call_overrides: dict[str, Variable] = fresh(dict)
    """Replacements of parameters and buffers during ``torch.func.functional_call``."""
    member_dicts: dict[str, DictVariable] = fresh(dict)
    """Member dicts read as a whole or mutated. Other members are read from the real dict."""

    def as_module(self) -> NNModuleVariable:
        return self

    def describe(self) -> str:
        return f"module {self.cls.__name__}" + (f" ({self.path})" if self.path else "")

    @property
    def path(self) -> str:
        """Dotted path from the root module, as ``named_modules`` returns it."""
        return module_path(self.source)

    def get_instance_attr(self, tx: Tracer, name: str) -> Variable | None:
        if name in self.attr_writes or name in self.real_object.__dict__:
            if name in _MEMBER_DICTS and name not in self.attr_writes:
                return self.member_dict(tx, name)
            return super().get_instance_attr(tx, name)
        return None

    def member_dict(self, tx: Tracer, name: str) -> DictVariable:
        """Return the dict of all parameters, buffers or submodules. Traced code may mutate it."""
        members = self.member_dicts.get(name)
        if members is not None and not self.functional_call_overrides:
            return members
        real = self.real_object.__dict__[name]
        source = AttrSource(self.source, name)
        tx.guard(DictKeysMatch, source, tuple(real), why="the module's members were listed")
        entries: dict[Any, tuple[Variable, Variable]] = {
            k: (ConstantVariable(k), self.member(tx, name, k)) for k in real
        }
        if self.is_constructed or self.functional_call_overrides:
            return FrozenMemberDictVariable(entries, None, type(real))
        member_dict = self.member_dicts[name] = DictVariable(entries, source, type(real))
        tx.objects.variables_by_id[id(real)] = (member_dict, real)
        return member_dict

    def has_member(self, table: str, name: str) -> bool:
        """Return True if the member dict contains the name at this point of the trace."""
        members = self.member_dicts.get(table)
        return name in (self.real_object.__dict__.get(table, {}) if members is None else members.entries)

    def member(self, tx: Tracer, table: str, name: str) -> Variable:
        """Return a parameter, buffer or submodule from its member dict."""
        if name in self.functional_call_overrides:
            return self.functional_call_overrides[name]
        members = self.member_dicts.get(table)
        if members is not None:
            return members.entries[name][1]
        return tx.make_lazy(self.real_object.__dict__[table][name], ModuleMemberSource(self.source, table, name))

    def get_missing_attr(self, tx: Tracer, name: str) -> Variable:
        getter = find_in_class(self.cls, "__getattr__")
        if getter is not None and getter.owner is _MODULE:
            return self.module_getattr(tx, name)
        return super().get_missing_attr(tx, name)

    def module_getattr(self, tx: Tracer, name: str) -> Variable:
        """Trace ``nn.Module.__getattr__``."""
        for table in _MEMBER_DICTS:
            if self.has_member(table, name):
                return realize(tx, self.member(tx, table, name))
        reals = [real for _, real in tx.objects.variables_by_id.values()] if name == "_orig_mod" else []
        if any(self.real_object is unwrap_compiled(real) is not real for real in reals):
            raise SkipFrame("module-attribute", "_orig_mod of a compiled module is read, which the tracer unwrapped")
        if not any(name in self.real_object.__dict__.get(table, {}) for table in _MEMBER_DICTS):
            tx.guard(HasAttrGuard, self.source, name, False, why=f"it has no attribute {name!r}")
        return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def has_generic_setattr(self, base: type) -> bool:
        return base is _MODULE

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        table = None if value is None else self._member_dict_for(tx, name, realize(tx, value))
        if table is None:
            super().generic_set_attr(tx, name, value)
            return
        assert value is not None
        if any(torch.nn.modules.module.__dict__[hooks] for hooks in REGISTRATION_HOOKS):
            raise Unsupported("module-attribute", f"{name!r} of a module is set while registration hooks are set")
        for other in _MEMBER_DICTS:
            if other != table and self.has_member(other, name):
                self.member_dict(tx, other).pop(tx, ConstantVariable(name))
        if name in self.attr_writes or name in self.real_object.__dict__:
            super().generic_set_attr(tx, name, None)
        self.member_dict(tx, table).set_item(tx, ConstantVariable(name), value)

    def _member_dict_for(self, tx: Tracer, name: str, value: Variable) -> str | None:
        """Return the member dict that ``nn.Module.__setattr__`` picks; None for a plain attribute."""
        if value.fake is not None and issubclass(value.python_type(), torch.nn.Parameter):
            return "_parameters"
        if self.has_member("_parameters", name):
            return "_parameters" if is_none(value) else self._wrong_member_type(value, "parameter", name)
        if value.as_module() is not None:
            return "_modules"
        if self.has_member("_modules", name):
            return "_modules" if is_none(value) else self._wrong_member_type(value, "child module", name)
        if value.fake is not None and issubclass(value.python_type(), torch.nn.Buffer):
            raise Unsupported("module-attribute", f"the buffer {name!r} of a module is set to a Buffer")
        if self.has_member("_buffers", name):
            is_buffer = is_none(value) or value.fake is not None
            return "_buffers" if is_buffer else self._wrong_member_type(value, "buffer", name)
        return None

    def _wrong_member_type(self, value: Variable, kind: str, name: str) -> Any:
        """Raise a graph break where the user's code raises TypeError; Python words the message."""
        raise Unsupported("raises", f"the {kind} {name!r} of a module is set to a {value.python_type().__name__}")

    def del_attr(self, tx: Tracer, name: str) -> None:
        deleter = find_in_class(self.cls, "__delattr__")
        if deleter is not None and deleter.owner is _MODULE:
            for table in _MEMBER_DICTS:
                if self.has_member(table, name):
                    self.member_dict(tx, table).pop(tx, ConstantVariable(name))
                    if table == "_buffers":
                        unsaved = realize(tx, self.get_attr(tx, "_non_persistent_buffers_set"))
                        unsaved.call_method(tx, "discard", [ConstantVariable(name)], {})
                    return
            if self.get_instance_attr(tx, name) is None:
                tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
            super().generic_set_attr(tx, name, None)
            return
        super().del_attr(tx, name)

    def hash_key(self, tx: Tracer) -> Any:
        tx.objects.as_identity_key(self)
        return self.real_object

    # Calls.

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        class_call = find_in_class(self.cls, "__call__")
        if class_call is not None and getattr(class_call.raw, "__code__", None) is _GRAPH_MODULE_CALL_CODE:
            return call_graph_module(tx, self, args, kwargs)
        if class_call is None or class_call.owner is not _MODULE:
            return super().call(tx, args, kwargs)
        return call_module(tx, self, args, kwargs)

    # Containers: iterate the members directly instead of inlining the containers' Python code.

    def _uses_container_method(self, method: str) -> bool:
        defined = find_in_class(self.cls, method)
        return defined is not None and defined.owner in _CONTAINERS and issubclass(self.cls, _CONTAINERS[:3])

    def _members(self, tx: Tracer) -> dict[str, Variable]:
        return {k: v for k, (_, v) in self.member_dict(tx, "_modules").entries.items()}

    def get_iterator(self, tx: Tracer) -> Variable:
        if not self._uses_container_method("__iter__"):
            return super().get_iterator(tx)
        members = self._members(tx)
        is_dict = issubclass(self.cls, torch.nn.ModuleDict)
        items: list[Variable] = list(map(ConstantVariable, members)) if is_dict else list(members.values())
        return SequenceIteratorVariable(items, type(iter(())))

    def length(self, tx: Tracer) -> Variable:
        return (
            ConstantVariable(len(self._members(tx))) if self._uses_container_method("__len__") else super().length(tx)
        )

    def is_truthy(self, tx: Tracer) -> bool:
        return bool(self._members(tx)) if self._uses_container_method("__len__") else super().is_truthy(tx)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        if self._uses_container_method("__getitem__") and key.is_constant:
            members, index = self._members(tx), key.constant
            if issubclass(self.cls, torch.nn.ModuleDict):
                return members[index] if index in members else tx.raise_error(KeyError, index)
            values = list(members.values())
            if type(index) is int:
                if not -len(values) <= index < len(values):
                    tx.raise_error(IndexError, f"index {index} is out of range")
                return values[index]
        is_list = self._uses_container_method("__getitem__") and issubclass(self.cls, torch.nn.ModuleList)
        if is_list and key.python_type() is slice:
            return ListVariable(list(self._members(tx).values())[key.as_python_constant(tx)])
        return super().get_item(tx, key)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        if self._uses_container_method("__contains__") and issubclass(self.cls, torch.nn.ModuleDict):
            return item.hash_key(tx) in self._members(tx)
        return super().contains(tx, item)

    def member_at_path(self, tx: Tracer, path: str) -> Variable:
        """Return a member by its dotted path."""
        value: Variable = self
        for part in path.split(".") if path else ():
            owner = value.as_module()
            tables = [] if owner is None else [t for t in _MEMBER_DICTS if owner.has_member(t, part)]
            if owner is None or not tables:
                raise Unsupported("module-attribute", f"{value.describe()} has no member {part!r} of {path!r}")
            value = realize(tx, owner.member(tx, tables[0], part))
        return value


class FrozenMemberDictVariable(DictVariable):
    """Read-only member dict of a module whose mutations could not be written back."""

    def set_hashed_item(self, tx: Tracer, hash_key: Any, key: Variable, value: Variable) -> None:
        raise self.unsupported("changing the members of a module that wraps another", "module-attribute")

    def pop(self, tx: Tracer, key: Variable, default: Variable | None = None) -> Variable:
        raise self.unsupported("changing the members of a module that wraps another", "module-attribute")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in ("clear", "popitem", "move_to_end"):
            raise self.unsupported(f"{name}() of the members of a module that wraps another", "module-attribute")
        return super().call_method(tx, name, args, kwargs)


@register_subclass_builder(1, torch.jit.ScriptModule)
def _scripted_module(tx: Tracer, real: torch.jit.ScriptModule, source: Source) -> Variable:
    raise Unsupported("scripted-module", f"the scripted module {type(real).__name__} is used")


@register_subclass_builder(2, torch.nn.Module)
def _module(tx: Tracer, real: torch.nn.Module, source: Source) -> Variable:
    tx.inputs.saw_tensor = True
    if ORIGINAL_MODULE_ATTR in type(real).__dict__:
        tx.guard_type(real, source, "it is a compiled module, and its original was inlined")
        return tx.wrap(getattr(real, ORIGINAL_MODULE_ATTR), AttrSource(source, ORIGINAL_MODULE_ATTR))
    tx.guard_type(real, source, "the module's members or methods were used")
    if id(real.__dict__) in tx.objects.variables_by_id:
        raise Unsupported("module-attribute", f"a {type(real).__name__} whose __dict__ is also used directly")
    module = NNModuleVariable(type(real), source, real)
    tx.objects.variables_by_dict_id.setdefault(id(real.__dict__), module)
    return module


def _call_graph_module_class(tx: Tracer, function: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``type(graph).__call__(graph, ...)``.

    Raises:
        Unsupported: the first argument is not a graph module of that class.
    """
    graph = realize(tx, args[0]).as_module() if args else None
    if graph is None or vars(graph.cls).get("__call__") is not function.real_object:
        raise Unsupported("module-call", f"{function.describe()} is called")
    return graph.call(tx, args[1:], kwargs)


RULES_BY_CODE[id(_GRAPH_MODULE_CALL_CODE)] = (_GRAPH_MODULE_CALL_CODE, _call_graph_module_class)
