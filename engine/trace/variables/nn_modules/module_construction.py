"""``nn.Module`` instances constructed in traced code, on constants or by tracing."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.fx

from engine.frame_code.codegen_runtime.objects import new_object
from engine.ir.graph_callable import GraphCallable
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import (
    NONE,
    TRUE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    UserErrors,
    Variable,
    realize,
)
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.nn_modules.nn_module import REGISTRATION_HOOKS, NNModuleVariable
from engine.trace.variables.objects.class_lookup import call_python_method, call_python_new, class_source, find_in_class
from engine.trace.variables.objects.constructor_registry import register_constructor
from engine.trace.variables.tensors.tensor import TensorVariable


class ConstantInitModuleVariable(NNModuleVariable):
    """A module constructed from constants, such as a loss or an activation.

    The tracer constructs its own instance, ``real_object``. Compiled code constructs a new one per call if needed.
    """

    __slots__ = ("args", "kwargs")

    is_constructed = True

    def __init__(self, instance: torch.nn.Module, args: Args, kwargs: Kwargs) -> None:
        super().__init__(type(instance), ConstantSource(instance, f"{type(instance).__name__}()"), instance)
        self.args = list(args)
        self.kwargs = dict(kwargs)

    def get_instance_attr(self, tx: Tracer, name: str) -> Variable | None:
        attribute = self.real_object.__dict__.get(name)
        if name not in self.attr_writes and name in self.real_object.__dict__ and is_literal(attribute):
            return ConstantVariable(attribute)
        return super().get_instance_attr(tx, name)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.cls, *self.args, **self.kwargs)
        if self.attr_writes:
            cg.defer_fill(self)


class TracedInitModuleVariable(NNModuleVariable):
    """A module whose constructor is traced. Its attributes and members are variables.

    ``real_object`` is an uninitialized placeholder.
    """

    __slots__ = ("is_initialized",)

    is_constructed = True

    def __init__(self, cls: type[torch.nn.Module]) -> None:
        empty: torch.nn.Module = object.__new__(cls)
        super().__init__(cls, ConstantSource(empty, f"{cls.__name__}()"), empty)
        self.is_initialized = False

    def initialize(self, tx: Tracer) -> None:
        """Trace ``nn.Module.__init__``."""
        torch.nn.Module.__init__(self.real_object)
        self.is_initialized = True
        for name, value in self.real_object.__dict__.items():
            if name in ("_parameters", "_buffers", "_modules"):
                self.member_dicts[name] = DictVariable({}, None, type(value))
            else:
                self.attr_writes[name] = tx.from_python(value)

    def child_variables(self) -> list[Variable]:
        return [*super().child_variables(), *self.member_dicts.values()]

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        if not self.is_initialized:
            raise Unsupported("module-creation", f"{self.cls.__name__} sets {name!r} before nn.Module.__init__ ran")
        super().generic_set_attr(tx, name, value)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(new_object, self.cls)
        cg.defer_fill(self)

    def fill(self, cg: PyCodegen) -> None:
        written = self.attr_writes
        # Preserve the order of nn.Module.__init__: member dicts and attributes as they were first set.
        order = [*self.real_object.__dict__, *(n for n in written if n not in self.real_object.__dict__)]
        self.attr_writes = {n: self.member_dicts.get(n, written.get(n)) for n in order}
        super().fill(cg)
        self.attr_writes = written


@register_constructor(24, lambda cls: issubclass(cls, torch.nn.Module))
def _construct_module(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``cls(*args, **kwargs)``.

    Modules without tensors are constructed on constants; for all others the constructor is traced.

    Raises:
        Unsupported: registration hooks are set, or the constructor can be neither run nor traced.
    """
    cls: Any = of.as_python_object()
    graph_break = Unsupported("module-creation", f"the module {cls.__name__} is created")
    if any(torch.nn.modules.module.__dict__[name] for name in REGISTRATION_HOOKS):
        raise graph_break
    if not (
        _uses_default_methods(cls) or (cls.__module__.startswith("torch.nn.modules.") and not _may_hold_tensors(cls))
    ):
        return _construct_by_tracing(tx, cls, args, kwargs, graph_break)
    try:
        constants: list[Any] = tx.as_python_constants(args)
        keywords = tx.as_python_keywords(kwargs)
    except NotPythonConstant:
        return _construct_by_tracing(tx, cls, args, kwargs, graph_break)
    if not all(is_literal(v) or _is_number_sequence(v) for v in (*constants, *keywords.values())):
        return _construct_by_tracing(tx, cls, args, kwargs, graph_break)
    with UserErrors(tx, Exception):
        instance = cls(*constants, **keywords)
    tables = [instance.__dict__[table] for table in ("_parameters", "_buffers", "_modules")]
    if any(member is not None for table in tables for member in table.values()):
        raise graph_break
    return ConstantInitModuleVariable(instance, args, kwargs)


def _construct_by_tracing(
    tx: Tracer, cls: type[torch.nn.Module], args: Args, kwargs: Kwargs, graph_break: Unsupported
) -> Variable:
    """Construct a module by tracing ``__new__`` and ``__init__`` of its class."""
    if type(cls).__call__ is not type.__call__:
        raise graph_break
    new_entry = find_in_class(cls, "__new__")
    module: Variable
    if new_entry is None or new_entry.owner is object:
        module = allocate_module(cls)
    else:
        by_new = call_python_new(tx, tx.wrap(cls, class_source(cls)), args, kwargs)
        if by_new is None or not issubclass(by_new.python_type(), cls):
            if by_new is None:
                raise graph_break
            return by_new
        module = by_new
    if call_python_method(tx, module.python_type(), "__init__", [module, *args], kwargs) is None:
        raise graph_break
    return module


def allocate_module(cls: type[torch.nn.Module]) -> TracedInitModuleVariable:
    """Trace ``object.__new__(cls)``.

    Raises:
        Unsupported: the class is abstract, or its constructor cannot be traced.
    """
    untraced_bases = (torch.nn.modules.lazy.LazyModuleMixin, torch.jit.ScriptModule, torch.nn.RNNBase)
    if issubclass(cls, untraced_bases) or inspect.isabstract(cls):
        raise Unsupported("module-creation", f"the module {cls.__name__} is created")
    return TracedInitModuleVariable(cls)


@register_rule(torch.nn.Module.__init__)
def _module_init(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if (
        not isinstance(of, TracedInitModuleVariable)
        or of.is_initialized
        or len(args) > 1
        or kwargs
        or of.cls.call_super_init  # type: ignore[attr-defined]
    ):
        raise Unsupported("module-creation", "nn.Module.__init__ is called")
    of.initialize(tx)
    return NONE


def _uses_default_methods(cls: type[torch.nn.Module]) -> bool:
    """Return True if constructing the class runs only the code of ``nn.Module``."""
    method_names = ("__init__", "__setattr__", "__getattr__", "__new__", "__call__", "__getattribute__")
    owners = [next((base for base in cls.__mro__ if name in vars(base)), object) for name in method_names]
    return type(cls) is type and all(base in (torch.nn.Module, object) for base in owners)


def _is_number_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(v, (int, float)) for v in value)


_TENSORLESS_MODULES = frozenset(
    "activation loss dropout pooling flatten distance padding fold upsampling pixelshuffle channelshuffle".split()
)


def _may_hold_tensors(cls: type) -> bool:
    """Return True if the constructor may sample random numbers for parameters."""
    if cls in (torch.nn.PReLU, torch.nn.MultiheadAttention):
        return True
    return cls.__module__.rpartition(".")[2] not in _TENSORLESS_MODULES and cls is not torch.nn.Identity


class NewParameterVariable(TensorVariable):
    """A parameter created by the traced code."""

    def python_type(self) -> type:
        return torch.nn.Parameter


_NEW_PARAMETER = GraphCallable("parameter", torch.nn.Parameter, changes_state=True, effect="creates a parameter")


@register_bound_rule(torch.nn.Parameter)
def _parameter(tx: Tracer, data: Variable = NONE, requires_grad: Variable = TRUE) -> Variable:
    if (
        type(data) is not TensorVariable
        or not requires_grad.is_constant
        or data.python_type() not in (torch.Tensor, torch.nn.Parameter)
        or tx.in_subgraph()
    ):
        raise Unsupported("module-creation", "torch.nn.parameter.Parameter is created")
    return _emit_parameter(tx, data, bool(requires_grad.constant))


def _emit_parameter(tx: Tracer, data: TensorVariable, requires_grad: bool) -> Variable:
    def over_fakes(fake: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        return fake.detach().requires_grad_(requires_grad)

    fake = evaluate_on_fakes(tx, "call_function", _NEW_PARAMETER, [data.fake, requires_grad], {}, over_fakes)
    node = emit_effect(tx, _NEW_PARAMETER, (data.node(tx), requires_grad))
    node.meta["example_value"] = fake
    node.meta["version"] = 0 if fake.is_inference() else fake._version
    return NewParameterVariable(node, fake)
