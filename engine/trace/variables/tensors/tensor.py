"""Tensors: each has a fake tensor, and a graph node once the graph needs one."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GetSetDescriptorType, MethodDescriptorType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engine.ir.guards.python_values import EqualsMatch, HasAttrGuard, TypeMatch
from engine.ir.guards.tensors import TensorMatch, TensorSubclassMatch
from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.options import config
from engine.trace.computed_conditions import fold_condition
from engine.trace.emit.node_results import build_node_result
from engine.trace.emit.torch_function import dispatch_torch_function
from engine.trace.emit_node import emit_node
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.fold_buffers import fold_from_buffers
from engine.trace.symbols.unbacked_symints import data_dependent_break
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.builder import is_literal, register_builder_if
from engine.trace.variables.tensors import tensor_metadata
from engine.trace.variables.tensors.sym_node import has_hint, hint

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

_GRAPH_ATTRIBUTES = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))
_REAL_MEMORY_METHODS = frozenset(
    (
        "numpy __array__ backward register_hook register_post_accumulate_grad_hook storage _typed_storage "
        "share_memory_ record_stream requires_grad_ retain_grad __reduce_ex__ __deepcopy__ apply_ map_ map2_ set_ resize_ "
        "__dlpack__ __cuda_array_interface__ pin_memory is_pinned tolist cpu_ __setstate__ module_load"
    ).split()
)
"""Methods that need real memory, or change autograd state outside the graph."""
_MAX_TOLIST_ELEMENTS = 64
"""Maximum number of elements for which ``tolist()`` is traced."""
_COMPILER_MARK_PREFIXES = ("_dynamo", "_engine")
"""Prefixes of attributes that mark a tensor for compilers."""


@dataclass(frozen=True)
class SubclassMemberRule:
    """Tracing rule for an attribute or a method of a wrapper subclass."""

    run: Callable[[Tracer, TensorVariable, list[Variable], dict[str, Variable]], Variable]
    is_method: bool


SUBCLASS_MEMBER_RULES: dict[tuple[str, str, str], SubclassMemberRule] = {}
"""Rules by (module, class, member), as strings because the modules may not be imported."""


class TensorVariable(Variable):
    """A tensor. An input becomes a placeholder when a node first uses it.

    All other tensors have their node from the start.
    """

    __slots__ = ("_node", "attr_writes", "fake", "real_object", "size_cache", "source")
    is_mutable = True

    def __init__(
        self,
        node: torch.fx.Node | None,
        fake: torch.Tensor,
        source: Source | None = None,
        real_object: torch.Tensor | None = None,
    ) -> None:
        self._node = node
        self.fake = fake
        self.source = source
        self.real_object = real_object
        self.size_cache: dict[int, tuple[Any, Variable]] = {}
        self.attr_writes: dict[str, Variable] = {}
        """Python attributes set while tracing."""

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

    def _subclass_rule(self, name: str) -> SubclassMemberRule | None:
        """Return the rule for a member that a wrapper subclass adds or overrides, or None.

        Raises:
            Unsupported: the member belongs to a class of ``torch.distributed`` and has no rule.
        """
        if not is_wrapper_subclass(self.fake):
            return None
        owner = next((c for c in type(self.fake).__mro__ if name in vars(c)), None)
        rule = None if owner is None else SUBCLASS_MEMBER_RULES.get((owner.__module__, owner.__qualname__, name))
        is_own = owner is None or (owner is not torch.Tensor and issubclass(owner, torch.Tensor))
        if rule is None and is_own and type(self.fake).__module__.startswith("torch.distributed."):
            raise Unsupported("tensor-subclass", f"{self.python_type().__name__}.{name}, of a tensor subclass")
        return rule

    def _subclass_member(self, tx: Tracer, name: str) -> Variable | None:
        """Return a member that a wrapper subclass adds or overrides, or None.

        It is an inner tensor, another attribute, or a method of the class.
        """
        if not is_wrapper_subclass(self.fake) or _is_jagged(self.fake):
            return None
        from engine.trace.variables.objects.attribute_binding import bind_attribute
        from engine.trace.variables.objects.class_lookup import find_in_class

        fake: Any = self.fake
        if name in fake.__dict__:
            found = fake.__dict__[name]
            if isinstance(found, torch.Tensor):
                return emit_node(tx, "call_function", getattr, [self, ConstantVariable(name)])
            if self.real_object is not None and self.source is not None and name in self.real_object.__dict__:
                return tx.wrap(self.real_object.__dict__[name], AttrSource(self.source, name))
            if not is_literal(found):
                raise Unsupported("tensor-subclass", f"{self.python_type().__name__}.{name}, of a tensor subclass")
            return ConstantVariable(found)
        cls = self.python_type()
        entry = find_in_class(cls, name)
        if entry is None or entry[0] is torch.Tensor or not issubclass(entry[0], torch.Tensor):
            return None
        return bind_attribute(tx, cls, entry[0], name, entry[1], self)

    def _dispatch_to_modes(
        self, tx: Tracer, op: str, name: str, args: list[Variable], kwargs: dict[str, Variable]
    ) -> Variable | None:
        """Dispatch an attribute or method to the active torch-function modes, or return None."""
        kind = type(getattr(torch._C.TensorBase, name, None) if op == "get_attr" else getattr(torch.Tensor, name, None))
        wanted = GetSetDescriptorType if op == "get_attr" else MethodDescriptorType
        if kind is not wanted or name in ("__class__", "__dict__"):
            return None
        return dispatch_torch_function(tx, op, name, args, kwargs)

    def _method_class(self) -> builtins.type:
        """Return the class whose methods are tensor operations."""
        return NestedTensor if _is_jagged(self.fake) else torch.Tensor

    def describe(self) -> str:
        sizes = ", ".join(str(s) for s in self.fake.shape)
        return f"tensor {str(self.fake.dtype).removeprefix('torch.')}[{sizes}]"

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
        try:
            return bool(evaluate_on_fakes(tx, "call_function", bool, [self.fake], {}))
        except Unsupported as error:
            known = self.known_scalar(tx)
            if known is not None:
                return bool(known.value)
            decided = fold_condition(tx, self.node(tx)) if _is_cpu_scalar(self.fake) else None
            if decided is not None:
                return decided
            raise Unsupported("tensor-jump", f"bool() of a {self.describe()}") from error

    def known_scalar(self, tx: Tracer) -> ConstantVariable | None:
        """Return the element of a one-element CPU tensor if the tracer knows its value, else None."""
        found = fold_from_buffers(tx, self.node(tx)) if _is_cpu_scalar(self.fake) else None
        return None if found is None else ConstantVariable(found.item())

    def size(self, tx: Tracer, dim: int) -> Variable:
        """Return the size of one dimension as a constant or a symbol."""
        size = self.fake.shape[dim]
        now = size if isinstance(size, int) else size.node
        read, known = self.size_cache.get(dim, (None, None))
        if known is None or read != now:  # an in-place operation may have changed the size since
            known = (
                ConstantVariable(size)
                if isinstance(size, int)
                else emit_node(tx, "call_method", "size", [self, ConstantVariable(dim)])
            )
            self.size_cache[dim] = now, known
        return known

    def shape(self, tx: Tracer) -> Variable:
        """Return the variable of ``x.shape``."""
        from engine.trace.variables.containers.sequences import TupleVariable

        return TupleVariable([self.size(tx, d) for d in range(self.fake.dim())], torch.Size)

    def length(self, tx: Tracer) -> Variable:
        asked = dispatch_torch_function(tx, "call_method", "__len__", [self], {})
        if asked is not None:
            return asked
        if self.fake.dim() == 0:
            tx.raise_type_error("len() of a 0-d tensor")
        return self.size(tx, 0)

    def get_iterator(self, tx: Tracer) -> Variable:
        from engine.trace.variables.containers.iterators import SequenceIteratorVariable
        from engine.trace.variables.containers.sequences import sequence_items

        if self.fake.dim() == 0:
            tx.raise_type_error("iteration over a 0-d tensor")
        if has_unbacked_symbols(self.fake.shape[0]):
            raise data_dependent_break(
                tx, self.fake.shape[0], "dynamic-output", "a loop over a tensor whose length depends on data"
            )
        return SequenceIteratorVariable(
            list(sequence_items(tx, emit_node(tx, "call_method", "unbind", [self]))), type(iter(()))
        )

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        if tx.torch_state.scalar_tensors_index:
            return self._index_by_tensors(tx, key)
        from engine.trace.variables.tensors.indexing import (
            convert_index_arrays,
            index_by_select,
            is_vmapped_index,
            vmap_getitem,
        )

        by_protocol = dispatch_torch_function(tx, "call_function", operator.getitem, [self, key], {})
        if by_protocol is not None:
            return by_protocol
        key = convert_index_arrays(tx, key)
        if is_vmapped_index(tx, key):
            return emit_node(tx, "call_function", operator.getitem, [self, key], run=vmap_getitem)
        found = (
            None if tx.torch_state.function_modes else index_by_select(tx, self, key)
        )  # a mode must see the key unchanged
        return emit_node(tx, "call_function", operator.getitem, [self, key]) if found is None else found

    def _index_by_tensors(self, tx: Tracer, key: Variable) -> Variable:
        from engine.trace.variables.containers.sequences import ListVariable, TupleVariable

        parts = [realize(tx, k) for k in key.items] if isinstance(key, TupleVariable) else [key]
        if not all(isinstance(p, TensorVariable) for p in parts):
            return emit_node(tx, "call_function", operator.getitem, [self, key])
        return emit_node(tx, "call_function", torch.ops.aten.index, [self, ListVariable(parts)])

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        from engine.trace.variables.tensors.indexing import (
            convert_index_arrays,
            index_by_select,
            is_vmapped_index,
            vmap_setitem,
        )

        if dispatch_torch_function(tx, "call_function", operator.setitem, [self, key, value], {}) is not None:
            return
        key = convert_index_arrays(tx, key)
        if is_vmapped_index(tx, key):
            emit_node(tx, "call_function", operator.setitem, [self, key, value], run=vmap_setitem)
            return
        found = None if tx.torch_state.function_modes else index_by_select(tx, self, key)
        if found is None:
            emit_node(tx, "call_function", operator.setitem, [self, key, value])
        else:
            emit_node(tx, "call_function", operator.setitem, [found, ConstantVariable(Ellipsis), value])

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if tx.torch_state.function_modes and name not in self.attr_writes:
            asked = self._dispatch_to_modes(tx, "get_attr", name, [self], {})
            if asked is not None:
                return asked
        if name == "shape":
            return self.shape(tx)
        if name == "_grad":
            name = "grad"  # two names of one slot
        if name in self.attr_writes:
            return self.attr_writes[name]
        ruled = self._subclass_rule(name)
        if ruled is not None:
            return TensorMethodVariable(self, name) if ruled.is_method else ruled.run(tx, self, [], {})
        own = self._subclass_member(tx, name)
        if own is not None:
            return own
        if name in _GRAPH_ATTRIBUTES:
            return emit_node(tx, "call_function", getattr, [self, ConstantVariable(name)])
        if name == "grad":
            return self._grad(tx)
        if name == "_base":
            return self._view_base(tx)
        if name == "__class__":
            return tx.wrap_static(self.python_type())
        if (
            self.real_object is not None
            and self.source is not None
            and name in getattr(self.real_object, "__dict__", {})
        ):
            return tx.wrap(self.real_object.__dict__[name], AttrSource(self.source, name))
        found = getattr(self._method_class(), name, None)
        if found is None:
            if self.real_object is not None and self.source is not None:
                tx.add_guard(
                    HasAttrGuard(self.source, name, False, cause=tx.guard_cause(f"it has no attribute {name!r}"))
                )
            tx.raise_error(AttributeError, f"'{self.python_type().__name__}' object has no attribute '{name}'")
        if callable(found):
            return TensorMethodVariable(self, name)
        return self._metadata(tx, name)

    def guard_is_leaf(self, tx: Tracer) -> None:
        """Guard ``is_leaf`` of an input that requires gradients: its metadata does not include it."""
        if self.real_object is not None and self.source is not None and self.real_object.requires_grad:
            cause = tx.guard_cause("is_leaf decided what was traced")
            tx.add_guard(EqualsMatch(AttrSource(self.source, "is_leaf"), self.real_object.is_leaf, cause=cause))

    def _grad(self, tx: Tracer) -> Variable:
        self.guard_is_leaf(tx)
        if self.real_object is None or self.source is None:
            if self.fake.is_leaf or not self.fake.requires_grad:
                return NONE
            raise self.unsupported("reading .grad of an intermediate tensor", "autograd-grad")
        return tx.wrap(self.real_object.grad, AttrSource(self.source, "grad"))

    def _view_base(self, tx: Tracer) -> Variable:
        """Return the tensor that this one is a view of, or None."""
        if self.real_object is not None and self.source is not None:
            return tx.wrap(self.real_object._base, AttrSource(self.source, "_base"))
        base = self.fake._base
        if base is None:
            return NONE
        for value, _ in tx.inputs.input_tensors:
            given: TensorVariable = value
            if given.fake is base and (given.real_object is None or given.real_object._base is None):
                return given
            if base is given.fake or base is given.fake._base:
                return given._view_base(tx)
        node = next((n for n in tx.graph.graph.nodes if n.meta.get("example_value") is base), None)
        if node is None:
            raise self.unsupported_attribute("reading", "_base")
        return tx.graph.tensor_variables.get(node) or TensorVariable(node, base)

    def _metadata(self, tx: Tracer, name: str) -> Variable:
        if name == "is_leaf":
            self.guard_is_leaf(tx)
        if name == "grad_fn":
            from engine.trace.variables.autograd.grad_and_tensor_hooks import grad_fn

            return grad_fn(tx, self)
        if name in (
            "grad_fn",
            "__dict__",
            "_cdata",
            "volatile",
            "_backward_hooks",
            "__cuda_array_interface__",
        ):
            raise self.unsupported_attribute("reading", name)
        if name == "nbytes":
            from engine.trace.operators.arithmetic import binary_op

            return binary_op(tx, "*", self.call_method(tx, "numel", [], {}), ConstantVariable(self.fake.element_size()))
        if (
            name in tensor_metadata.METADATA_ATTRIBUTES
            and (fact := tensor_metadata.metadata_attribute(tx, self, name)) is not None
        ):
            return fact
        result = evaluate_on_fakes(tx, "call_function", getattr, [self.fake, name], {})
        if isinstance(result, torch.Tensor):
            return emit_node(tx, "call_function", getattr, [self, ConstantVariable(name)])
        return tx.from_python(result)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name in self.attr_writes or (
            self.real_object is not None and name in getattr(self.real_object, "__dict__", {})
        ):
            return super().call_method(tx, name, args, kwargs)
        if tx.torch_state.function_modes:
            asked = self._dispatch_to_modes(tx, "call_method", name, [self, *args], kwargs)
            if asked is not None:
                return asked
        ruled = self._subclass_rule(name)
        if ruled is not None and ruled.is_method:
            return ruled.run(tx, self, args, kwargs)
        own = self._subclass_member(tx, name)
        if own is not None:
            return realize(tx, own).call(tx, args, kwargs)
        if "from" in kwargs and not args:  # fx writes calls as Python source, where "from" is not a valid keyword
            args, kwargs = [kwargs["from"]], {k: v for k, v in kwargs.items() if k != "from"}
        if name == "requires_grad_" and self._requires_grad_is_noop(tx, args, kwargs):
            return self
        if name == "numpy":
            from engine.trace.variables.tensors.numpy_arrays import tensor_to_numpy, tensor_to_numpy_forced

            is_forced = realize(tx, kwargs.get("force", ConstantVariable(False))).is_truthy(tx)
            return tensor_to_numpy_forced(tx, self) if is_forced else tensor_to_numpy(tx, self)
        if name in ("requires_grad_", "retain_grad", "register_hook"):
            from engine.trace.variables.autograd import grad_and_tensor_hooks

            if name != "register_hook":
                return grad_and_tensor_hooks.emit_grad_flag_change(tx, self, name, args, kwargs)
            return grad_and_tensor_hooks.register_hook(tx, self, realize(tx, args[0] if args else kwargs["hook"]))
        if name == "register_post_accumulate_grad_hook":
            from engine.trace.variables.autograd.grad_and_tensor_hooks import register_post_accumulate_grad_hook

            return register_post_accumulate_grad_hook(tx, self, realize(tx, args[0] if args else kwargs["hook"]))
        if name == "tolist" and not args and not kwargs and self.can_tolist():
            return self.tolist(tx)
        if name == "set_":
            from engine.trace.variables.tensors.set_data import set_tensor

            return set_tensor(tx, self, args, kwargs)
        if name in ("untyped_storage", "data_ptr") and not args and not kwargs:
            from engine.trace.variables.tensors import storages

            return (storages.untyped_storage if name == "untyped_storage" else storages.data_ptr)(tx, self)
        if name in _REAL_MEMORY_METHODS:
            raise Unsupported(
                "data-dependent" if name in ("numpy", "tolist") else "tensor-method", f"Tensor.{name} is called"
            )
        if getattr(self._method_class(), name, None) is None:
            tx.raise_error(AttributeError, f"'{self.python_type().__name__}' object has no attribute '{name}'")
        if name in ("size", "dim", "numel", "ndimension", "__len__") and not kwargs:
            known = self._shape_method(tx, name, [realize(tx, a) for a in args])
            if known is not None:
                return known
        if name in ("as_subclass", "new_tensor"):
            from engine.trace.variables.callable_registry import find_rule

            rule = find_rule(getattr(torch.Tensor, name))
            assert rule is not None
            return rule(tx, [self, *args], kwargs)
        if name in ("__iter__", "__bool__", "__getitem__", "__setitem__"):
            return self._call_protocol_method(tx, name, args)
        if name == "item" and (known := self.known_scalar(tx)) is not None:
            return known
        if (
            name in tensor_metadata.METADATA_METHODS
            and not kwargs
            and (fact := tensor_metadata.metadata_method(tx, self, name)) is not None
        ):
            return fact
        return emit_node(tx, "call_method", name, [self, *args], kwargs)

    def can_tolist(self) -> bool:
        """Return True if ``tolist()`` can return symbols: real dtype, small known element count."""
        sizes = self.fake.shape
        return (
            config.capture_scalar_outputs
            and not any(has_unbacked_symbols(s) for s in sizes)
            and not self.fake.dtype.is_complex
            and all(map(has_hint, sizes))
            and math.prod(map(hint, sizes)) <= _MAX_TOLIST_ELEMENTS
        )

    def tolist(self, tx: Tracer) -> Variable:
        """Trace ``tolist()``."""
        from engine.trace.variables.containers.sequences import ListVariable

        if self.fake.dim() == 0:
            return self.call_method(tx, "item", [], {})
        items = [self.get_item(tx, ConstantVariable(n)) for n in range(self.size(tx, 0).as_python_constant(tx))]
        return ListVariable([item.tolist(tx) for item in items if isinstance(item, TensorVariable)])

    def _requires_grad_is_noop(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> bool:
        """Return True if ``requires_grad_`` would change nothing."""
        self.guard_is_leaf(tx)
        wanted = realize(tx, args[0] if args else kwargs.get("requires_grad", ConstantVariable(True)))
        return isinstance(wanted, ConstantVariable) and wanted.value is self.fake.requires_grad and self.fake.is_leaf

    def _shape_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable | None:
        if name in ("dim", "ndimension") and not args:
            return ConstantVariable(self.fake.dim())
        if name == "__len__":
            return self.length(tx)
        if name == "size" and not args:
            return self.shape(tx)
        if name == "size" and len(args) == 1 and isinstance(args[0], ConstantVariable) and type(args[0].value) is int:
            dim = args[0].value
            if -self.fake.dim() <= dim < self.fake.dim():
                return self.size(tx, dim % self.fake.dim())
        return None

    def _call_protocol_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable:
        match name:
            case "__iter__":
                return self.get_iterator(tx)
            case "__bool__":
                return ConstantVariable(self.is_truthy(tx))
            case "__getitem__":
                return self.get_item(tx, args[0])
            case _:
                self.set_item(tx, args[0], args[1])
                return NONE

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if name == "_grad":
            name = "grad"
        if name == "requires_grad":
            if not self._requires_grad_is_noop(tx, [value], {}):
                self._set_requires_grad(tx, realize(tx, value))
            return
        if name == "data":
            from engine.trace.variables.tensors.set_data import set_data

            set_data(tx, self, value)
            return
        gradient = name == "grad" and _accepts_grad(self, realize(tx, value))
        if not gradient and (hasattr(torch.Tensor, name) or name.startswith(_COMPILER_MARK_PREFIXES)):
            raise Unsupported("tensor-attribute", f"the attribute {name!r} of a tensor is set")
        tx.side_effects.record_mutation(self)
        self.attr_writes[name] = value

    def _set_requires_grad(self, tx: Tracer, wanted: Variable) -> None:
        if wanted.python_type() is not bool:
            raise Unsupported("requires-grad", "requires_grad of a tensor is set to a value that is not a bool")
        from engine.trace.variables.autograd import grad_and_tensor_hooks

        grad_and_tensor_hooks.emit_grad_flag_change(tx, self, "requires_grad_", [wanted], {})

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node(cg.tx))
        if self.attr_writes:
            cg.cache_top(self)
            cg.defer_fill(self)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that sets the written attributes on the tensor at the stack top and pops it."""
        from engine.trace.codegen_runtime.objects import set_attributes

        cg.load_helper(set_attributes, 1)
        cg.load_const(tuple(self.attr_writes))
        cg.load_all(list(self.attr_writes.values()))
        cg.body.emit("BUILD_TUPLE", len(self.attr_writes))
        cg.body.call(3)
        cg.body.emit("POP_TOP")


def _accepts_grad(tensor: TensorVariable, value: Variable) -> bool:
    """Return True if ``.grad`` can be set to the value after the graph.

    True for a leaf, and None or a tensor that torch accepts as its gradient.
    """
    if not tensor.fake.is_leaf or (
        tensor.real_object is not None and (tensor.source is None or "grad" in vars(tensor.real_object))
    ):
        return False
    if isinstance(value, ConstantVariable):
        return value.value is None
    if not isinstance(value, TensorVariable) or value is tensor or value.python_type() is not torch.Tensor:
        return False
    mine, new = tensor.fake, value.fake
    return (mine.shape, mine.dtype, mine.device, mine.layout) == (new.shape, new.dtype, new.device, new.layout)


@build_node_result.register(torch.Tensor)
def _tensor_result(result: torch.Tensor, tx: Tracer, node: torch.fx.Node) -> Variable:
    node.meta["version"] = 0 if result.is_inference() else result._version
    tensor = tx.graph.tensor_variables[node] = TensorVariable(node, result)
    return tensor


class TensorMethodVariable(Variable):
    """A tensor method before its call, such as ``x.add``."""

    def __init__(self, tensor: TensorVariable, name: str) -> None:
        self.tensor = tensor
        self.name = name

    def python_type(self) -> type:
        return type(torch.Tensor.add)

    def describe(self) -> str:
        return f"Tensor.{self.name}"

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        return self.tensor.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__self__":
            return self.tensor
        return super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return [self.tensor]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.tensor)
        cg.body.attribute(self.name)


def _is_tensor(real: Any) -> bool:
    return isinstance(real, torch.Tensor)


@register_builder_if(0, _is_tensor)
def _tensor(tx: Tracer, real: torch.Tensor, origin: Source) -> Variable:
    with torch._C.DisableTorchFunctionSubclass():
        return _build_tensor(tx, real, origin)


def _build_tensor(tx: Tracer, real: torch.Tensor, origin: Source) -> Variable:
    from engine.trace.fake_tensors.fakeify import fakeify

    is_wrapper = _is_plain_wrapper_subclass(real)
    plain = type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or is_wrapper
    has_protocol = not plain and type(real).__torch_function__ is not torch._C._disabled_torch_function_impl
    if isinstance(real, FakeTensor):
        tx.add_guard(TypeMatch(origin, FakeTensor, cause=tx.guard_cause("fake tensors run as plain Python")))
        raise SkipFrame("fake-tensor", f"{origin.expr} is a fake tensor")
    if not is_wrapper and type(real).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise Unsupported("tensor-subclass", f"a tensor of the subclass {type(real).__name__}")
    if _is_jagged(real):
        tx.guard_type(real, origin, "it is a jagged tensor")
    elif (
        real.layout is not torch.strided
        or real.is_quantized
        or real.is_nested
        or (torch._is_functional_tensor(real) and tx.torch_state.entry_global_state["functorch"] is None)
    ):
        kind = "nested tensor" if real.is_nested else "quantized tensor" if real.is_quantized else "tensor"
        raise Unsupported("tensor-layout", f"a {kind} of layout {real.layout}")
    if real.requires_grad and not (real.is_floating_point() or real.is_complex()):
        raise Unsupported("tensor-layout", f"a tensor of {real.dtype} that requires gradients")
    if torch._C._functorch.is_functorch_wrapped_tensor(real) and tx.torch_state.entry_global_state["functorch"] is None:
        raise Unsupported("functorch-state", "a tensor of a torch.func transform that has ended")
    if is_wrapper:
        _check_inner_tensors(real)
    fake = fakeify(tx, real if plain else _as_plain_tensor(real), origin)
    tx.inputs.saw_tensor = True
    _guard_tensor(tx, real, fake, origin)
    if has_protocol:
        from engine.trace.variables.tensors.torch_function_protocol import build_subclass_input

        value = build_subclass_input(tx, real, fake, origin)
    else:
        value = TensorVariable(None, fake, origin, real)
    tx.inputs.input_tensors.append((value, fake._version if not fake.is_inference() else 0))
    tx.inputs.input_layouts[id(value.fake)] = symbolic_layout(fake)
    return value


def symbolic_layout(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Return sizes, strides and storage offset, with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0


def _is_cpu_scalar(fake: torch.Tensor) -> bool:
    """Return True for a CPU tensor with one element."""
    return fake.device.type == "cpu" and not has_unbacked_symbols(fake.shape) and fake.numel() == 1


def is_wrapper_subclass(value: Any) -> bool:
    """Return True for a wrapper subclass that can flatten itself to inner tensors."""
    return type(value) is not FakeTensor and bool(is_traceable_wrapper_subclass(value))


def _is_jagged(real: Any) -> bool:
    """Return True for a jagged ``NestedTensor``: one dense tensor and offsets.

    Its methods trace like those of plain tensors.
    """
    return type(real) is NestedTensor


def _is_plain_wrapper_subclass(real: Any) -> bool:
    """Return True if a wrapper subclass computes only through its inner tensors.

    It then has no ``__torch_function__`` of its own.
    """
    if not is_wrapper_subclass(real):
        return False
    if _is_jagged(real):
        return True
    own = type(real).__torch_function__
    plain: Any = torch.Tensor.__torch_function__
    return own is torch._C._disabled_torch_function_impl or getattr(own, "__func__", None) is plain.__func__


def _check_inner_tensors(real: Any) -> None:
    from engine.trace.variables.torch_api.collectives import is_group_or_mesh

    try:
        parts = [getattr(real, n) for n in real.__tensor_flatten__()[0]]
    except AttributeError as error:
        text = f"a {type(real).__name__} that is not initialized: {error}"
        raise Unsupported("tensor-subclass", text) from error
    other = [type(p).__name__ for p in parts if not isinstance(p, torch.Tensor) and not is_group_or_mesh(p)]
    if other:
        text = f"a {type(real).__name__} with an inner value of type {other[0]}"
        raise Unsupported("tensor-subclass", text)


def _guard_tensor(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, origin: Source) -> None:
    tx.add_guard(_tensor_match(tx, real, fake, origin))
    if not _is_plain_wrapper_subclass(real):
        return
    inside: Any = real
    names, context = inside.__tensor_flatten__()
    tx.add_guard(
        TensorSubclassMatch(origin, tuple(names), context, cause=tx.guard_cause("the tensor subclass was unwrapped"))
    )
    for name in names:
        part = getattr(real, name)
        if isinstance(part, torch.Tensor):
            _guard_tensor(tx, part, getattr(fake, name), AttrSource(origin, name))
        else:
            tx.guard_identity(part, AttrSource(origin, name), f"the tensor was created with this {type(part).__name__}")


def _as_plain_tensor(real: torch.Tensor) -> torch.Tensor:
    """Return a plain leaf tensor with the metadata and memory of this one."""
    return real.detach().as_subclass(torch.Tensor).requires_grad_(real.requires_grad)


def _tensor_match(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, origin: Source) -> TensorMatch:
    sizes = tuple(s if isinstance(s, int) else None for s in fake.shape)
    strides = tuple(s if isinstance(s, int) else None for s in fake.stride())
    return TensorMatch(
        origin,
        type(real),
        real.dtype,
        real.device,
        real.layout,
        real.requires_grad,
        sizes,
        strides,
        str(torch._C._dispatch_keys(real)),
        cause=tx.guard_cause("the tensor is used in the graph"),
    )
