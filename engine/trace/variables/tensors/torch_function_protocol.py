"""``__torch_function__`` dispatch: tensor subclasses, tensor-like objects, modes.

The user's method is inlined. The arguments that torch passes to it are found by running the operation on a
recording tensor.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, cast

import torch
import torch.fx
import torch.overrides

from engine.frame_code.codegen_runtime.tensors import as_subclass
from engine.ir.graph_callable import GraphCallable
from engine.ir.register_once import register_table
from engine.ir.sources.base import Source
from engine.torch_private import torch_function
from engine.torch_private.dispatch import disabled_torch_dispatch_impl, len_torch_dispatch_stack
from engine.torch_private.tensors import TensorBase, make_subclass
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import append_node
from engine.trace.emit_node import (
    arguments_with_torch_function,
    dispatch_torch_function,
    emit_node,
    is_torch_function_disabled,
    register_torch_function_handler,
)
from engine.trace.exc import Unsupported
from engine.trace.state import TorchState
from engine.trace.variables.base import (
    FALSE,
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    NotPythonConstant,
    Variable,
    is_none,
    is_not_implemented,
    realize,
)
from engine.trace.variables.callable_registry import register_bound_rule, register_rule, register_rule_by_name
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.objects.attribute_binding import bind_attribute, class_attribute
from engine.trace.variables.objects.class_lookup import (
    call_python_method,
    call_python_new,
    class_source,
    find_in_class,
    guard_not_shadowed_in_mro,
)
from engine.trace.variables.objects.construction import construct_object
from engine.trace.variables.objects.constructor_registry import register_constructor
from engine.trace.variables.tensors.tensor import TensorMethodVariable, TensorVariable
from engine.trace.variables.torch_api.compiler_api import construct_wrapper_subclass
from engine.trace.variables.torch_api.context_managers import ContextVariable
from engine.trace.variables.torch_api.torch_functions import guard_global_state

_DEFAULT_TORCH_FUNCTION: Any = vars(torch.Tensor)["__torch_function__"].__func__


class TensorWithTFOverrideVariable(TensorVariable):
    """A tensor of a subclass with ``__torch_function__``.

    Its node computes a plain tensor over the same memory; ``cls`` is the class outside the graph.
    """

    cls: type = field(kw_only=True)
    may_have_torch_function = True

    def python_type(self) -> type:
        return self.cls

    def node(self, tx: Tracer) -> torch.fx.Node:
        if self._node is None:
            assert self.source is not None
            outer = tx.graph.placeholder(self.source, self.fake, self.real_object)
            self._node = append_node(tx, GraphCallable("as_plain_tensor", _as_plain_tensor), (outer,), self.fake)
        return self._node

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.attr_writes:
            return self.attr_writes[name]
        if name == "__class__":
            return tx.wrap(self.cls, class_source(self.cls))
        own_attribute = self.own_attribute(tx, name)
        if own_attribute is not None:
            return own_attribute
        entry = find_in_class(self.cls, name)
        if entry is not None and not entry.owner.__module__.startswith("torch."):
            return bind_attribute(tx, self.cls, entry.owner, name, entry.raw, self)
        self._guard_from_torch(tx, name)
        if entry is not None and not callable(entry.raw) and name not in ("__dict__", "__module__", "__doc__"):
            by_protocol = dispatch_torch_function(tx, "get_attr", name, [self], {})
            if by_protocol is not None:
                return by_protocol
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        entry = find_in_class(self.cls, name)
        if name in self.attr_writes or (entry is not None and not entry.owner.__module__.startswith("torch.")):
            return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)
        self._guard_from_torch(tx, name)
        return self.call_c_method(tx, torch.Tensor, name, args, kwargs)

    def call_c_method(self, tx: Tracer, owner: type, name: str, args: Args, kwargs: Kwargs) -> Variable:
        by_protocol = dispatch_torch_function(tx, "call_method", name, [self, *args], kwargs)
        return super().call_method(tx, name, args, kwargs) if by_protocol is None else by_protocol

    def _guard_from_torch(self, tx: Tracer, name: str) -> None:
        """Guard that no user class gets this attribute, which is torch's own now or missing."""
        entry = find_in_class(self.cls, name)
        guard_not_shadowed_in_mro(tx, self.cls, torch.Tensor if entry is None else entry.owner, name)

    def length(self, tx: Tracer) -> Variable:
        entry = find_in_class(self.cls, "__len__")
        is_own = entry is not None and not entry.owner.__module__.startswith("torch.")
        return self.call_method(tx, "__len__", [], {}) if is_own else super().length(tx)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        entry = find_in_class(self.cls, name)
        if entry is not None and isinstance(entry.raw, property):
            raise Unsupported("tensor-attribute", f"the attribute {name!r} of a tensor is set")
        super().set_attr(tx, name, value)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(as_subclass))
        cg.load_graph_output(self.node(cg.tx))
        cg.load_const(self.cls)
        cg.body.call(2)
        if self.attr_writes:
            cg.defer_fill(self)


class _BaseTensorMethodVariable(TensorMethodVariable):
    """``super().name`` of a tensor: a method of ``torch.Tensor`` that its class overrides."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return cast(Variable, self.obj.call_c_method(tx, torch.Tensor, self.name, args, kwargs))


def _is_subclass_tensor(value: Variable) -> bool:
    return value.fake is not None and value.may_have_torch_function


def base_tensor_attribute(tx: Tracer, of: Any, name: str) -> Variable:
    """Return the attribute of ``torch.Tensor``, bypassing an override in the tensor's class."""
    if not _is_subclass_tensor(of):
        return of.get_attr(tx, name)  # type: ignore[no-any-return]
    if callable(getattr(torch.Tensor, name)):
        return _BaseTensorMethodVariable(of, name)
    result = dispatch_torch_function(tx, "get_attr", name, [of], {})
    return TensorVariable.get_attr(of, tx, name) if result is None else result


def _as_plain_tensor(tensor: torch.Tensor) -> Any:
    return as_subclass(tensor, torch.Tensor)


def build_subclass_input(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, source: Source) -> TensorVariable:
    """Build the variable of a subclass input with ``__torch_function__`` and plain memory."""
    tx.guard_type(real, source, "its class overrides torch operations")
    return TensorWithTFOverrideVariable(None, fake, source, real, cls=type(real))


# Dispatch.


class _RecordedCall(Exception):
    """Carries, as its arguments, those that torch passed to ``__torch_function__``."""

    stand_ins: list[Any]
    """Objects passed for the traced variables; they live while their ids are looked up."""


class _RecordingTensor(torch.Tensor):
    """A tensor that records the ``__torch_function__`` call of an operation."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _RecordedCall(func, args, kwargs or {})


class _RecordingMode(torch.overrides.TorchFunctionMode):
    """A mode that records the ``__torch_function__`` call, also of operations without tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _RecordedCall(func, args, kwargs or {})


@register_torch_function_handler
def _call_torch_function(
    tx: Tracer, op: str, target: Any, args: Args, kwargs: Kwargs, special_args: Args
) -> Variable | None:
    """Call ``__torch_function__`` as torch does; None if torch does not call it."""
    recorded, variables_by_id = _record_torch_function_call(tx, op, target, args, kwargs)
    if recorded is None:
        return None
    function, positional, named = recorded.args
    variables = [_variable_for(tx, a, variables_by_id) for a in positional]
    keyword_variables = {k: _variable_for(tx, v, variables_by_id) for k, v in named.items()}
    return call_torch_function_handlers(tx, function, special_args, variables, keyword_variables)


def call_torch_function_handlers(tx: Tracer, function: Any, special_args: Args, args: Args, kwargs: Kwargs) -> Variable:
    """Call the innermost mode, then the handler of each class until one handles the operation."""
    kinds: list[Variable] = []
    for value in special_args:
        if all(value.python_type() is not k.python_type() for k in kinds):
            positions = (n for n, kind in enumerate(kinds) if issubclass(value.python_type(), kind.python_type()))
            kinds.insert(next(positions, len(kinds)), value)
    classes = TupleVariable([tx.wrap(k.python_type(), class_source(k.python_type())) for k in kinds])
    arguments = [tx.wrap_static(function), classes, TupleVariable(args), DictVariable.from_str_keys(kwargs)]
    if tx.torch_state.function_modes:
        mode = tx.torch_state.function_modes.pop()
        try:
            result = realize(tx, mode.call_method(tx, "__torch_function__", list(arguments), {}))
        finally:
            tx.torch_state.function_modes.append(mode)
        if not is_not_implemented(result):
            return result
    for kind in kinds:
        entry = find_in_class(kind.python_type(), "__torch_function__")
        bound_to = kind if entry is not None and isinstance(entry.raw, types.FunctionType) else None
        method = class_attribute(tx, kind.python_type(), "__torch_function__", bound_to)
        assert method is not None
        result = realize(tx, realize(tx, method).call(tx, list(arguments), {}))
        if not is_not_implemented(result):
            return result
    return tx.raise_type_error(f"no implementation found for {function} on types that implement __torch_function__")


def _record_torch_function_call(
    tx: Tracer, op: str, target: Any, args: Args, kwargs: Kwargs
) -> tuple[_RecordedCall | None, dict[int, Variable]]:
    """Run the operation on recording tensors and return the ``__torch_function__`` call.

    Also return the variables by ``id`` of the placeholder objects passed for them.
    """
    variables_by_id: dict[int, Variable] = {}
    made_stand_ins: list[Any] = []

    def stand_in(value: Variable) -> Any:
        value = realize(tx, value)
        parts = value.pytree_parts(tx)
        if parts is not None and issubclass(parts[0], (tuple, list)):
            items = [stand_in(i) for i in parts[2]]
            return tuple(items) if issubclass(parts[0], tuple) else items
        replacement: Any
        if value.fake is not None or value.has_torch_function:
            replacement = torch.empty(0).as_subclass(_RecordingTensor)
        elif value.sym is not None:
            replacement = value.python_type()(1)
            replacement = _IntPlaceholder(1) if value.python_type() is int else replacement
        else:
            try:
                return value.as_python_constant(tx)
            except NotPythonConstant:
                replacement = torch.empty(0).as_subclass(_RecordingTensor)
        made_stand_ins.append(replacement)
        variables_by_id[id(replacement)] = value
        return replacement

    stand_ins = [stand_in(a) for a in args]
    keyword_stand_ins = {k: stand_in(v) for k, v in kwargs.items()}
    try:
        with _RecordingMode() if tx.torch_state.function_modes else contextlib.nullcontext():
            if op == "get_attr":
                getattr(stand_ins[0], target)
            elif op == "call_method":
                getattr(stand_ins[0], target)(*stand_ins[1:], **keyword_stand_ins)
            else:
                target(*stand_ins, **keyword_stand_ins)
    except _RecordedCall as recorded:
        recorded.__traceback__ = None
        recorded.stand_ins = made_stand_ins
        return recorded, variables_by_id
    except Exception as error:
        raise Unsupported("tensor-subclass", f"an operation on a subclass raises {type(error).__name__}") from error
    return None, variables_by_id


class _IntPlaceholder(int):
    """An int with its own identity, so that it maps to one variable."""


def _variable_for(tx: Tracer, real: Any, variables_by_id: dict[int, Variable]) -> Variable:
    variable = variables_by_id.get(id(real))
    if variable is not None:
        return variable
    if type(real) is tuple:
        return TupleVariable([_variable_for(tx, r, variables_by_id) for r in real])
    if type(real) is list:
        return ListVariable([_variable_for(tx, r, variables_by_id) for r in real])
    return tx.from_python(real)


@contextlib.contextmanager
def _torch_function_disabled(tx: Tracer) -> Iterator[None]:
    tx.torch_state.torch_function_disabled_depth += 1
    try:
        yield
    finally:
        tx.torch_state.torch_function_disabled_depth -= 1


@register_bound_rule(_DEFAULT_TORCH_FUNCTION)
def _default_torch_function(
    tx: Tracer, cls: Variable, func: Variable, types: Variable, args: Variable | None = None, kwargs: Variable = NONE
) -> Variable:
    """Trace ``torch.Tensor.__torch_function__``.

    Run the operation with the protocol disabled, then wrap tensor results in the subclass.
    """
    result = realize(tx, _call_without_protocol(tx, func, types, args, kwargs))
    if func.as_python_object() in torch.overrides.get_default_nowrap_functions():
        return result
    return _wrap_in_subclass(tx, result, cls.as_python_object())


def _call_without_protocol(
    tx: Tracer, func: Variable, types: Variable, args: Variable | None = None, kwargs: Variable = NONE
) -> Variable:
    """Call the function that ``__torch_function__`` received, with the protocol disabled."""
    positional = [] if args is None else list(sequence_items(tx, args))
    with _torch_function_disabled(tx):
        return call_intercepted_function(
            tx, func, positional, {} if is_none(kwargs) else tx.unpack_string_mapping(kwargs)
        )


@register_rule(torch_function.disabled_torch_function_impl)
def _disabled_torch_function(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the disabled ``__torch_function__`` of ``nn.Parameter``; it wraps no results."""
    arguments = [realize(tx, a) for a in (args[-4:] if len(args) != 5 else args[1:])]
    return _call_without_protocol(tx, *arguments, **{k: realize(tx, v) for k, v in kwargs.items()})


def call_intercepted_function(tx: Tracer, function: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Call what ``__torch_function__`` received: a function, a method or an attribute getter."""
    real = function.as_python_object()
    if isinstance(real, types.MethodWrapperType) and real.__name__ == "__get__":
        descriptor: Any = real.__self__
        of: Any = realize(tx, args[0])
        get = TensorVariable.get_attr if _is_subclass_tensor(of) else type(of).get_attr
        return get(of, tx, descriptor.__name__)
    if getattr(real, "__objclass__", None) in (torch.Tensor, TensorBase) and args:
        of = realize(tx, args[0])
        if _is_subclass_tensor(of):  # call the base class's method, which the class may override
            return TensorVariable.call_method(of, tx, real.__name__, args[1:], kwargs)
    return function.call(tx, args, kwargs)


def _wrap_in_subclass(tx: Tracer, value: Variable, cls: Any) -> Variable:
    value = realize(tx, value)
    if cls is torch.Tensor:
        return value
    if value.fake is not None and not issubclass(value.python_type(), cls):
        return as_subclass_variable(tx, value, cls)
    if items := value.argument_items():
        packed = [_wrap_in_subclass(tx, i, cls) for i in items]
        kind = value.python_type()
        return TupleVariable(packed, kind) if issubclass(kind, tuple) else ListVariable(packed)
    return value


def as_subclass_variable(tx: Tracer, value: Variable, cls: type) -> Variable:
    """Trace ``value.as_subclass(cls)``."""
    if not _is_subclass_tensor(value) and cls is torch.Tensor:
        return emit_node(tx, "call_function", torch.ops.aten.alias.default, [value])
    if cls.__torch_dispatch__ is not disabled_torch_dispatch_impl and "__torch_dispatch__" in dir(cls):  # type: ignore[attr-defined]
        raise Unsupported("tensor-subclass", f"a tensor of the subclass {cls.__name__}")
    node, fake = value.as_node_arg(tx)
    return TensorVariable(node, fake) if cls is torch.Tensor else TensorWithTFOverrideVariable(node, fake, cls=cls)


def _uses_tensor_new(cls: type) -> bool:
    """Return True if the class inherits ``torch.Tensor.__new__``, which aliases its argument."""
    entry = find_in_class(cls, "__new__")
    return issubclass(cls, torch.Tensor) and entry is not None and entry.owner in (torch.Tensor, TensorBase)


@register_constructor(60, lambda cls: issubclass(cls, torch.Tensor) and cls is not torch.Tensor)
def _construct_subclass(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``cls(tensor)`` for a subclass that inherits ``__new__`` or defines it in Python."""
    cls = of.as_python_object()
    if hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__"):
        return construct_wrapper_subclass(tx, cls, args, kwargs)
    instance: Variable
    if _uses_tensor_new(cls) and args and (tensor := realize(tx, args[0])).fake is not None:
        instance = _alias_as_subclass(tx, cls, tensor)
    elif (by_new := call_python_new(tx, tx.wrap(cls, class_source(cls)), args, kwargs)) is not None:
        instance = by_new
    else:
        return construct_object(tx, of, args, kwargs)
    if issubclass(instance.python_type(), cls):
        call_python_method(tx, cls, "__init__", [instance, *args], kwargs)
    return instance


def _alias_as_subclass(tx: Tracer, cls: type, of: Variable) -> Variable:
    with _torch_function_disabled(tx):
        alias = emit_node(tx, "call_function", torch.ops.aten.alias.default, [of])
        return as_subclass_variable(tx, alias, cls)


def _tensor_class(value: Variable) -> Any:
    """Return a class of tensors; None for any other value."""
    cls = value.as_python_object()
    return cls if isinstance(cls, type) and issubclass(cls, torch.Tensor) else None


@register_rule_by_name(("TensorBase", "__new__"))
def _tensor_base_new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``super().__new__(cls, tensor)`` in a subclass."""
    of, *arguments = (realize(tx, a) for a in args)
    cls = _tensor_class(of)
    if kwargs or cls in (None, torch.Tensor) or len(arguments) != 1 or arguments[0].fake is None:
        raise Unsupported("tensor-subclass", "TensorBase.__new__ is called")
    return _alias_as_subclass(tx, cls, arguments[0])


@register_bound_rule(make_subclass)
def _make_subclass(tx: Tracer, cls: Variable, data: Variable, require_grad: Variable = FALSE) -> Variable:
    """Trace ``torch.Tensor._make_subclass``: a detached alias with another class."""
    real = _tensor_class(cls)
    if real is None or data.fake is None:
        raise Unsupported("tensor-subclass", "TensorBase._make_subclass is called")
    with _torch_function_disabled(tx):
        plain = emit_node(tx, "call_method", "detach", [data])
    if require_grad.is_truthy(tx):
        plain = TensorVariable(*plain.as_node_arg(tx)).call_method(tx, "requires_grad_", [], {})
    return as_subclass_variable(tx, TensorVariable(*plain.as_node_arg(tx)), real)


@register_bound_rule(torch.Tensor.as_subclass)
def _as_subclass(tx: Tracer, of: Variable, cls: Variable) -> Variable:
    real = _tensor_class(cls)
    if of.fake is None or real is None:
        raise Unsupported("tensor-subclass", "as_subclass is called")
    return as_subclass_variable(tx, of, real)


@register_rule(
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
def _has_torch_function(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if tx.torch_state.function_modes:
        return ConstantVariable(value=True)
    return ConstantVariable(not is_torch_function_disabled(tx) and any(arguments_with_torch_function(tx, args)))


@register_rule(torch.overrides.handle_torch_function)
def _handle_torch_function(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function, relevant, *rest = args
    special_args = list(arguments_with_torch_function(tx, sequence_items(tx, relevant)))
    return call_torch_function_handlers(tx, realize(tx, function).as_python_object(), special_args, rest, kwargs)


# Modes.


@register_bound_rule(torch_function.push_on_torch_function_stack)
def _push_mode(tx: Tracer, mode: Variable) -> Variable:
    tx.side_effects.mutation_count += 1
    tx.torch_state.function_modes.append(mode)
    return NONE


@register_bound_rule(torch_function.pop_torch_function_stack)
def _pop_mode(tx: Tracer) -> Variable:
    if not tx.torch_state.function_modes:
        raise Unsupported(
            "torch-function-mode", "a torch-function mode is exited that was entered outside the function"
        )
    tx.side_effects.mutation_count += 1
    return tx.torch_state.function_modes.pop()


@register_bound_rule(torch.device.__enter__)
def _enter_device(tx: Tracer, device: Variable) -> Variable:
    """Trace ``with torch.device("meta")``: a mode that sets the device of factory functions."""
    _push_mode(tx, realize(tx, tx.wrap_static(torch_function.DeviceContext).call(tx, [device], {})))
    return device


@register_rule(torch.device.__exit__)
def _leave_device(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    _pop_mode(tx)
    return NONE


class DisableTorchFunctionSubclassVariable(ContextVariable):
    """Context ``torch._C.DisableTorchFunctionSubclass()``: no dispatch to subclasses."""

    methods = ("__enter__", "__exit__")
    cls: Any

    def enter(self, tx: Tracer) -> Variable:
        tx.side_effects.mutation_count += 1
        tx.torch_state.torch_function_disabled_depth += 1
        return NONE

    def exit(self, tx: Tracer) -> Variable:
        tx.side_effects.mutation_count += 1
        tx.torch_state.torch_function_disabled_depth -= 1
        return NONE


class DisableTorchFunctionVariable(DisableTorchFunctionSubclassVariable):
    """Context ``torch._C.DisableTorchFunction()``: no dispatch to subclasses or modes."""

    def enter(self, tx: Tracer) -> Variable:
        tx.torch_state.suspended_function_modes.append(tx.torch_state.function_modes)
        tx.torch_state.function_modes = []
        return super().enter(tx)

    def exit(self, tx: Tracer) -> Variable:
        tx.torch_state.function_modes = tx.torch_state.suspended_function_modes.pop()
        return super().exit(tx)


def _register_disabling_context(kind: type[DisableTorchFunctionSubclassVariable], real: Any) -> None:
    register_rule(real)(lambda tx, args, kwargs: kind(real))


_register_disabling_context(DisableTorchFunctionSubclassVariable, torch_function.DisableTorchFunctionSubclass)
_register_disabling_context(DisableTorchFunctionVariable, torch_function.DisableTorchFunction)


def _number_of_modes(now: TorchState, entry: Any) -> int:
    traced = sum(map(len, now.suspended_function_modes), len(now.function_modes))
    return len(entry) - len(now.entry_function_modes) + traced


_MODE_QUERIES: dict[Any, tuple[str, Callable[[TorchState, Any], Any]]] = {
    torch_function.is_torch_function_all_disabled: (
        "torch_function_enabled",
        lambda now, entry: entry is None or bool(now.suspended_function_modes),
    ),
    torch_function.is_torch_function_enabled: (
        "torch_function_enabled",
        lambda now, entry: bool(entry) and not now.torch_function_disabled_depth,
    ),
    torch_function.len_torch_function_stack: ("torch_function_modes", _number_of_modes),
    torch_function.is_torch_function_mode_enabled: (
        "torch_function_modes",
        lambda now, entry: bool(_number_of_modes(now, entry)) and not now.suspended_function_modes,
    ),
    len_torch_dispatch_stack: ("dispatch_modes", lambda now, entry: len(entry)),
}
"""Questions about modes: the guarded state, and the answer by state now and at entry."""


@register_table(register_rule, _MODE_QUERIES)
def _answer_mode_query(ask: Any, query: tuple[str, Any], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    state, answer = query
    entry = tx.torch_state.entry_global_state[state]
    guard_global_state(tx, state, entry)
    return ConstantVariable(answer(tx.torch_state, entry))


@register_bound_rule(torch_function.get_function_stack_at)
def _mode_at(tx: Tracer, at: Variable) -> Variable:
    index = int(at.as_python_constant(tx))
    if len(tx.torch_state.entry_function_modes) != len(
        tx.torch_state.entry_global_state["torch_function_modes"]
    ) or not 0 <= index < len(tx.torch_state.function_modes):
        raise Unsupported("torch-function-mode", "torch._C._get_function_stack_at is called")
    return tx.torch_state.function_modes[index]
