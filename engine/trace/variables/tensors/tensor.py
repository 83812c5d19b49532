"""Tensors: each has a fake tensor, and a graph node once the graph needs one."""

from __future__ import annotations

from types import GetSetDescriptorType, MethodDescriptorType
from typing import Any

import torch
import torch.fx

from engine.frame_code.codegen_runtime.objects import set_attributes
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.describe_values import short_dtype
from engine.ir.introspection.fakeable_tensors import is_jagged, is_wrapper_subclass
from engine.ir.introspection.python_operators import Operator
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.tensors import TensorMemberSource
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.tensors import NestedTensor, TensorBase
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.computed_conditions import fold_condition, fold_number
from engine.trace.emit_node import build_node_result, dispatch_torch_function, emit_node
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.operators.operand import OperatorResult
from engine.trace.symbols.unbacked_symints import data_dependent_break
from engine.trace.symbols.value_names import name_value
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, describe_attribute_writes, realize
from engine.trace.variables.builder import is_literal
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.iterators import SequenceIteratorVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.attribute_binding import bind_attribute
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.slotted_type import fresh
from engine.trace.variables.tensors.indexing import assign_index, index_tensor
from engine.trace.variables.tensors.tensor_members import (
    ATTRIBUTE_RULES,
    METHOD_RULES,
    SETTER_RULES,
    SUBCLASS_MEMBER_RULES,
    SubclassMemberRule,
)


class TensorOperators(Variable):
    """An operand whose operators become nodes, with numbers and tensors as other operands."""

    @property
    def node_or_none(self) -> torch.fx.Node | None:
        """The node, or None for an input that no node uses yet."""
        raise NotImplementedError

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        operand = right.as_graph_operand(tx)
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [self, operand])

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        operand = left.as_graph_operand(tx)
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [operand, self])

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        # torch.Tensor has no __imatmul__: ``@=`` binds the name to a new tensor.
        return self.binary(tx, op, right) if hasattr(torch.Tensor, op.method) else NotImplemented

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        operand = right.as_graph_operand(tx)
        if operand is not None and operand.is_constant:
            if operand.python_type().__module__ == "numpy" and hasattr(operand.constant, "item"):
                operand = ConstantVariable(operand.constant.item())
            if op.is_equality and not issubclass(operand.python_type(), (int, float, complex)):
                return ConstantVariable(op.symbol == "!=")
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [self, operand])

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return emit_node(tx, "call_function", op.function, [self])

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        """Return True if one of the tensors is an inner tensor of a wrapper and the same tensor.

        It was read from a wrapper subclass built around the other, or one that has it under another name too.
        """
        node = self.node_or_none
        if not isinstance(other, TensorOperators) or self.fake is not other.fake or node is None:
            return None
        wrapper = node.args[0].meta.get("example_value") if node.target is getattr else None  # type: ignore[union-attr]
        return True if type(wrapper) is not FakeTensor and is_traceable_wrapper_subclass(wrapper) else None


def find_member_rule(tensor: TensorVariable, name: str) -> SubclassMemberRule | None:
    """Return the rule for a member that a wrapper subclass adds or overrides, or None.

    Raises:
        Unsupported: the member belongs to a class of ``torch.distributed`` and has no rule.
    """
    cls = type(tensor.fake)
    if not is_wrapper_subclass(tensor.fake):
        return None
    owner = next((c for c in cls.__mro__ if name in vars(c)), None)
    rule = None if owner is None else SUBCLASS_MEMBER_RULES.get((owner.__module__, owner.__qualname__, name))
    is_own = owner is None or (owner is not torch.Tensor and issubclass(owner, torch.Tensor))
    if rule is None and is_own and cls.__module__.startswith("torch.distributed."):
        raise Unsupported("tensor-subclass", f"{tensor.python_type().__name__}.{name}, of a tensor subclass")
    return rule


def find_member(tx: Tracer, tensor: TensorVariable, name: str) -> Variable | None:
    """Return a member that a wrapper subclass adds or overrides, or None.

    It is an inner tensor, another attribute, or a method of the class.
    """
    if not is_wrapper_subclass(tensor.fake) or is_jagged(tensor.fake):
        return None
    if name in tensor.fake.__dict__:
        member = tensor.fake.__dict__[name]
        if isinstance(member, torch.Tensor):
            return emit_node(tx, "call_function", getattr, [tensor, ConstantVariable(name)])
        attribute = tensor.own_attribute(tx, name)
        if attribute is None and not is_literal(member):
            raise Unsupported("tensor-subclass", f"{tensor.python_type().__name__}.{name}, of a tensor subclass")
        return ConstantVariable(member) if attribute is None else attribute
    cls = tensor.python_type()
    entry = find_in_class(cls, name)
    if entry is None or entry.owner is torch.Tensor or not issubclass(entry.owner, torch.Tensor):
        return None
    return bind_attribute(tx, cls, entry.owner, name, entry.raw, tensor)


_COMPILER_MARK_PREFIXES = ("_dynamo", "_engine")
"""Prefixes of attributes that mark a tensor for compilers."""
_ATTRIBUTE_ALIASES = {"_grad": "grad"}
"""Second names of attributes."""


class TensorVariable(TensorOperators):
    """A tensor. An input becomes a placeholder when a node first uses it.

    All other tensors have their node from the start.
    """

    _node: torch.fx.Node | None
    fake: torch.Tensor
    source: Source | None = None
    real_object: torch.Tensor | None = None
    size_cache: dict[int, tuple[Any, Variable]] = fresh(dict)
    attr_writes: dict[str, Variable] = fresh(dict)
    """Python attributes set while tracing."""
    is_mutable = True

    def node(self, tx: Tracer) -> torch.fx.Node:
        """Return the node that computes the tensor, or its placeholder."""
        if self._node is None:
            assert self.source is not None
            self._node = tx.graph.placeholder(self.source, self.fake, self.real_object)
        return self._node

    @property
    def node_or_none(self) -> torch.fx.Node | None:
        """The node, or None for an input that no node uses yet."""
        return self._node

    def python_type(self) -> type:
        if self.real_object is not None:
            return type(self.real_object)
        return type(self.fake) if is_wrapper_subclass(self.fake) else torch.Tensor

    @property
    def is_plain(self) -> bool:
        """True for a tensor of class ``torch.Tensor`` itself."""
        return self.python_type() is torch.Tensor

    def describe(self) -> str:
        sizes = ", ".join(str(s) for s in self.fake.shape)
        return f"tensor {short_dtype(self.fake.dtype)}[{sizes}]"

    def as_python_object(self) -> Any:
        return self.real_object if self.real_object is not None else NotImplemented

    def hash_key(self, tx: Tracer) -> Any:
        return tx.objects.as_identity_key(self)

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node(tx), self.fake

    def as_sizes(self, tx: Tracer) -> Variable:
        fake = self.fake
        is_float = fake.is_floating_point() or fake.is_complex()
        return self if fake.dim() or is_float or fake.dtype is torch.bool else self.call_method(tx, "item", [], {})

    def child_variables(self) -> list[Variable]:
        return list(self.attr_writes.values())

    # Python protocols.

    def is_truthy(self, tx: Tracer) -> bool:
        is_scalar_at_symbol = self.fake.dim() == 0 and self.fake._has_symbolic_sizes_strides
        fake = self.fake.clone() if is_scalar_at_symbol else self.fake  # bool() does not support the offset
        try:
            return bool(evaluate_on_fakes(tx, "call_function", bool, [fake], {}))
        except Unsupported as error:
            scalar = self.known_scalar(tx)
            if scalar is not None:
                return bool(scalar.value)
            decided = fold_condition(tx, self.node(tx)) if _is_cpu_scalar(self.fake) else None
            if decided is not None:
                return decided
            raise Unsupported("tensor-jump", f"bool() of {name_value(tx, self)}") from error

    def known_scalar(self, tx: Tracer) -> ConstantVariable | None:
        """Return the element of a one-element CPU tensor if the tracer knows its value, else None."""
        number = fold_number(tx, self.node(tx)) if _is_cpu_scalar(self.fake) else None
        return None if number is None else ConstantVariable(number)

    def size(self, tx: Tracer, dim: int) -> Variable:
        """Return the size of one dimension as a constant or a symbol."""
        size = self.fake.shape[dim]
        is_constant = isinstance(size, int)
        current: Any = size if is_constant else size.node  # type: ignore[attr-defined]
        cached_for, cached = self.size_cache.get(dim, (None, None))
        if cached is None or cached_for != current:  # an in-place operation may have changed the size since
            operands = [self, ConstantVariable(dim)]
            cached = ConstantVariable(size) if is_constant else emit_node(tx, "call_method", "size", operands)
            self.size_cache[dim] = current, cached
        return cached

    def shape(self, tx: Tracer) -> Variable:
        """Return the variable of ``x.shape``."""
        return TupleVariable([self.size(tx, d) for d in range(self.fake.dim())], torch.Size)

    def length(self, tx: Tracer) -> Variable:
        result = dispatch_torch_function(tx, "call_method", "__len__", [self], {})
        if result is not None:
            return result
        if self.fake.dim() == 0:
            tx.raise_type_error("len() of a 0-d tensor")
        return self.size(tx, 0)

    def get_iterator(self, tx: Tracer) -> Variable:
        if self.fake.dim() == 0:
            tx.raise_type_error("iteration over a 0-d tensor")
        if has_unbacked_symbols(self.fake.shape[0]):
            graph_break = Unsupported("dynamic-output", "a loop over a tensor whose length depends on data")
            raise data_dependent_break(tx, self.fake.shape[0], graph_break)
        rows = tx.unpack_iterable(emit_node(tx, "call_method", "unbind", [self]))
        return SequenceIteratorVariable(rows, type(iter(())))

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return index_tensor(tx, self, key)

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        assign_index(tx, self, key, value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if tx.torch_state.function_modes and name not in self.attr_writes:
            result = _dispatch_member(tx, "get_attr", name, [self], {})
            if result is not None:
                return result
        if name == "shape":
            return self.shape(tx)
        name = _ATTRIBUTE_ALIASES.get(name, name)
        if name in self.attr_writes:
            return self.attr_writes[name]
        member_rule = find_member_rule(self, name)
        if member_rule is not None:
            return TensorMethodVariable(self, name) if member_rule.is_method else member_rule.run(tx, self, [], {})
        attribute = find_member(tx, self, name)
        if attribute is None and name in ATTRIBUTE_RULES:
            attribute = ATTRIBUTE_RULES[name](tx, self)
        if attribute is None:
            attribute = self.own_attribute(tx, name)
        return self._class_attribute(tx, name) if attribute is None else attribute

    def own_attribute(self, tx: Tracer, name: str) -> Variable | None:
        """Return an attribute in the ``__dict__`` of an input; None if it has no such attribute."""
        if self.real_object is None or self.source is None or name not in getattr(self.real_object, "__dict__", ()):
            return None
        return tx.wrap(self.real_object.__dict__[name], AttrSource(self.source, name))

    def _class_attribute(self, tx: Tracer, name: str) -> Variable:
        """Return a method, or an attribute that the fake tensor answers."""
        class_attribute = getattr(_method_class(self.fake), name, None)
        if class_attribute is None:
            _raise_no_attribute(tx, self, name)
        if callable(class_attribute):
            return TensorMethodVariable(self, name)
        result = evaluate_on_fakes(tx, "call_function", getattr, [self.fake, name], {})
        if isinstance(result, torch.Tensor):
            return emit_node(tx, "call_function", getattr, [self, ConstantVariable(name)])
        return tx.from_python(result)

    def guard_is_leaf(self, tx: Tracer) -> None:
        """Guard ``is_leaf`` of an input that requires gradients: its metadata does not include it."""
        if self.real_object is None or self.source is None:
            return
        if self.member_source("requires_grad").read(self.real_object):
            self.guard_member(tx, "is_leaf", why="is_leaf decided what was traced")

    def member_source(self, name: str, arguments: tuple[int, ...] | None = None) -> TensorMemberSource:
        """Return the source of an attribute of an input, or of the result of a method."""
        assert self.source is not None
        return TensorMemberSource(self.source, name, arguments, self.may_have_torch_function)

    def guard_member(self, tx: Tracer, name: str, arguments: tuple[int, ...] | None = None, *, why: str) -> Any:
        """Guard and return an attribute of an input, or the result of a method."""
        source = self.member_source(name, arguments)
        value = source.read(self.real_object)
        tx.guard(EqualsMatch, source, value, why=why)
        return value

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in self.attr_writes or name in getattr(self.real_object, "__dict__", ()):
            return super().call_method(tx, name, args, kwargs)
        if tx.torch_state.function_modes:
            result = _dispatch_member(tx, "call_method", name, [self, *args], kwargs)
            if result is not None:
                return result
        member_rule = find_member_rule(self, name)
        if member_rule is not None and member_rule.is_method:
            return member_rule.run(tx, self, args, kwargs)
        member = find_member(tx, self, name)
        if member is not None:
            return realize(tx, member).call(tx, args, kwargs)
        if "from" in kwargs and not args:  # fx writes calls as Python source, where "from" is not a valid keyword
            args, kwargs = [kwargs["from"]], {k: v for k, v in kwargs.items() if k != "from"}
        rule = METHOD_RULES.get(name)
        result_of_rule = None if rule is None else rule(tx, self, args, kwargs)
        if result_of_rule is not None:
            return result_of_rule
        if getattr(_method_class(self.fake), name, None) is None:
            _raise_no_attribute(tx, self, name)
        return emit_node(tx, "call_method", name, [self, *args], kwargs)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        name = _ATTRIBUTE_ALIASES.get(name, name)
        if name in SETTER_RULES:
            SETTER_RULES[name](tx, self, value)
            return
        if hasattr(torch.Tensor, name) or name.startswith(_COMPILER_MARK_PREFIXES):
            raise Unsupported("tensor-attribute", f"the attribute {name!r} of a tensor is set")
        self.write_attr(tx, name, value)

    def write_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        """Record an attribute that code after the graph sets on the tensor."""
        tx.side_effects.record_mutation(self)
        self.attr_writes[name] = value

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node(cg.tx))
        if self.attr_writes:
            cg.defer_fill(self)

    def describe_mutation(self) -> str:
        return describe_attribute_writes(self.attr_writes)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that sets the written attributes on the tensor at the stack top and pops it."""
        cls: Any = self.python_type()
        if len(self.attr_writes) == 1 and cls.__setattr__ is object.__setattr__:
            ((name, value),) = self.attr_writes.items()
            cg.load(value)
            cg.body.emit("SWAP", 2)
            cg.body.emit("STORE_ATTR", name)
            return
        cg.pop_into_call(set_attributes, tuple(self.attr_writes), TupleVariable(list(self.attr_writes.values())))


def _dispatch_member(tx: Tracer, op: str, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
    """Dispatch an attribute or method to the active torch-function modes, or return None."""
    owner, kind = (TensorBase, GetSetDescriptorType) if op == "get_attr" else (torch.Tensor, MethodDescriptorType)
    if type(getattr(owner, name, None)) is not kind or name in ("__class__", "__dict__"):
        return None
    return dispatch_torch_function(tx, op, name, args, kwargs)


def _method_class(fake: torch.Tensor) -> type:
    """Return the class whose methods are tensor operations."""
    return NestedTensor if is_jagged(fake) else torch.Tensor


def _raise_no_attribute(tx: Tracer, tensor: TensorVariable, name: str) -> None:
    tx.raise_error(AttributeError, f"'{tensor.python_type().__name__}' object has no attribute '{name}'")


@build_node_result.register(torch.Tensor)
def _tensor_result(result: torch.Tensor, tx: Tracer, node: torch.fx.Node) -> Variable:
    node.meta["version"] = 0 if result.is_inference() else result._version
    tensor = tx.graph.tensor_variables[node] = TensorVariable(node, result)
    return tensor


class TensorMethodVariable(BuiltinMethodVariable):
    """A tensor method before its call, such as ``x.add``."""

    def python_type(self) -> type:
        return type(torch.Tensor.add)

    def describe(self) -> str:
        return f"Tensor.{self.name}"


def _is_cpu_scalar(fake: torch.Tensor) -> bool:
    """Return True for a CPU tensor with one element."""
    return fake.device.type == "cpu" and not has_unbacked_symbols(fake.shape) and fake.numel() == 1
