"""Tensors: a fake value, and a node of the graph once the graph needs one."""

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

from engine.ir.origin import Attr, Origin
from engine.ir.tensor_guard import TensorMatch, WrapperIs
from engine.ir.unbacked import is_unbacked
from engine.ir.value_guard import Equals, HasAttribute, TypeIs
from engine.options import config
from engine.trace.graph_builder import emit, evaluate
from engine.trace.outcomes import outcome
from engine.trace.settled import settled
from engine.trace.signals import Skip, Unsupported
from engine.trace.unbacked import needs_number
from engine.trace.values import tensor_facts
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.symbolic import has_hint, hint
from engine.trace.values.wrap import is_literal, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_AS_NODE = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))
_PYTHON_ONLY = frozenset(
    (
        "numpy __array__ backward register_hook register_post_accumulate_grad_hook storage _typed_storage "
        "share_memory_ record_stream requires_grad_ retain_grad __reduce_ex__ __deepcopy__ apply_ map_ map2_ set_ resize_ "
        "__dlpack__ __cuda_array_interface__ pin_memory is_pinned tolist cpu_ __setstate__ module_load"
    ).split()
)
"""Methods that need real memory, or change what autograd does outside the graph."""
_LISTED = 64
"""How many numbers ``tolist()`` may give to be traced."""
_MARKS = ("_dynamo", "_engine")
"""Attributes that tell compilers about a tensor."""


@dataclass(frozen=True)
class OwnRule:
    """What an attribute of a wrapper subclass is in traced code, or calling a method of it."""

    run: Callable[[Tracer, TensorValue, list[Value], dict[str, Value]], Value]
    is_method: bool


OWN: dict[tuple[str, str, str], OwnRule] = {}
"""By module and name of the class that defines it, and its name: those classes are loaded by who uses them."""


class TensorValue(Value):
    """A tensor. An input has an origin and becomes a placeholder when a node first uses it; others have their node."""

    __slots__ = ("_node", "fake", "held", "origin", "sizes", "written")
    is_mutable = True

    def __init__(
        self,
        node: torch.fx.Node | None,
        fake: torch.Tensor,
        origin: Origin | None = None,
        held: torch.Tensor | None = None,
    ) -> None:
        self._node = node
        self.fake = fake
        self.origin = origin
        self.held = held
        self.sizes: dict[int, tuple[Any, Value]] = {}
        self.written: dict[str, Value] = {}
        """Python attributes set while tracing."""

    def node(self, tx: Tracer) -> torch.fx.Node:
        """The node that computes it, or the placeholder."""
        if self._node is None:
            assert self.origin is not None
            self._node = tx.graph.placeholder(self.origin, self.fake, self.held)
        return self._node

    @property
    def made_by(self) -> torch.fx.Node | None:
        """The node, if there is one yet."""
        return self._node

    def type(self) -> type:
        if self.held is not None:
            return type(self.held)
        return type(self.fake) if is_subclass(self.fake) else torch.Tensor

    def _ruled(self, name: str) -> OwnRule | None:
        """The rule for what a wrapper subclass adds to a tensor, or does otherwise; of torch's distributed ones, what has none is left to Python."""
        if not is_subclass(self.fake):
            return None
        owner = next((c for c in type(self.fake).__mro__ if name in vars(c)), None)
        rule = None if owner is None else OWN.get((owner.__module__, owner.__qualname__, name))
        is_own = owner is None or (owner is not torch.Tensor and issubclass(owner, torch.Tensor))
        if rule is None and is_own and type(self.fake).__module__.startswith("torch.distributed."):
            raise Unsupported("unsupported-operation", f"{self.type().__name__}.{name}, of a tensor subclass")
        return rule

    def _own(self, tx: Tracer, name: str) -> Value | None:
        """What a wrapper subclass adds to a tensor, or does otherwise: a tensor inside it, other attributes, its class's methods."""
        if not is_subclass(self.fake) or _is_jagged(self.fake):
            return None
        from engine.trace.values.classes import bind_attribute, find_in_class

        fake: Any = self.fake
        if name in fake.__dict__:
            found = fake.__dict__[name]
            if isinstance(found, torch.Tensor):
                return emit(tx, "call_function", getattr, [self, Const(name)])
            if self.held is not None and self.origin is not None and name in self.held.__dict__:
                return tx.wrap(self.held.__dict__[name], Attr(self.origin, name))
            if not is_literal(found):
                raise Unsupported("unsupported-operation", f"{self.type().__name__}.{name}, of a tensor subclass")
            return Const(found)
        cls = self.type()
        entry = find_in_class(cls, name)
        if entry is None or entry[0] is torch.Tensor or not issubclass(entry[0], torch.Tensor):
            return None
        return bind_attribute(tx, cls, entry[0], name, entry[1], self)

    def _asked(self, tx: Tracer, op: str, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """What the torch-function modes in force make of an attribute or a method; None where none is asked."""
        kind = type(getattr(torch._C.TensorBase, name, None) if op == "get_attr" else getattr(torch.Tensor, name, None))
        wanted = GetSetDescriptorType if op == "get_attr" else MethodDescriptorType
        if kind is not wanted or name in ("__class__", "__dict__"):
            return None
        from engine.trace.values.tensor_subclasses import dispatched

        return dispatched(tx, op, name, args, kwargs)

    def _operations(self) -> builtins.type:
        """The class whose methods are operations."""
        return NestedTensor if _is_jagged(self.fake) else torch.Tensor

    def describe(self) -> str:
        sizes = ", ".join(str(s) for s in self.fake.shape)
        return f"tensor {str(self.fake.dtype).removeprefix('torch.')}[{sizes}]"

    def real(self) -> Any:
        return self.held if self.held is not None else NotImplemented

    def key(self, tx: Tracer) -> Any:
        return tx.keyed_by_identity(self)

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node(tx), self.fake

    def children(self) -> list[Value]:
        return list(self.written.values())

    # Python's protocols.

    def truth(self, tx: Tracer) -> bool:
        try:
            return bool(evaluate(tx, "call_function", bool, [self.fake], {}))
        except Unsupported as error:
            known = self.known_number(tx)
            if known is not None:
                return bool(known.value)
            decided = outcome(tx, self.node(tx)) if _is_number(self.fake) else None
            if decided is not None:
                return decided
            raise Unsupported("tensor-jump", f"the truth of a {self.describe()}") from error

    def known_number(self, tx: Tracer) -> Const | None:
        """The one number that it holds, where that is known."""
        found = settled(tx, self.node(tx)) if _is_number(self.fake) else None
        return None if found is None else Const(found.item())

    def size(self, tx: Tracer, dim: int) -> Value:
        """One size, as a constant or a symbol."""
        size = self.fake.shape[dim]
        now = size if isinstance(size, int) else size.node
        read, known = self.sizes.get(dim, (None, None))
        if known is None or read != now:  # it may have been laid out anew in place since
            known = Const(size) if isinstance(size, int) else emit(tx, "call_method", "size", [self, Const(dim)])
            self.sizes[dim] = now, known
        return known

    def shape(self, tx: Tracer) -> Value:
        """``x.shape``."""
        from engine.trace.values.sequences import TupleValue

        return TupleValue([self.size(tx, d) for d in range(self.fake.dim())], torch.Size)

    def length(self, tx: Tracer) -> Value:
        from engine.trace.values.tensor_subclasses import dispatched

        asked = dispatched(tx, "call_method", "__len__", [self], {})
        if asked is not None:
            return asked
        if self.fake.dim() == 0:
            tx.raise_type_error("len() of a 0-d tensor")
        return self.size(tx, 0)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import SequenceIterator
        from engine.trace.values.sequences import sequence_items

        if self.fake.dim() == 0:
            tx.raise_type_error("iteration over a 0-d tensor")
        if is_unbacked(self.fake.shape[0]):
            raise needs_number(
                tx, self.fake.shape[0], "dynamic-output", "a loop over a tensor whose length depends on values"
            )
        return SequenceIterator(list(sequence_items(tx, emit(tx, "call_method", "unbind", [self]))), type(iter(())))

    def get_item(self, tx: Tracer, key: Value) -> Value:
        if tx.indexes_by_tensor:
            return self._at_positions(tx, key)
        from engine.trace.values.indexing import in_rows, row_at, selected, with_positions
        from engine.trace.values.tensor_subclasses import dispatched

        by_protocol = dispatched(tx, "call_function", operator.getitem, [self, key], {})
        if by_protocol is not None:
            return by_protocol
        key = with_positions(tx, key)
        if in_rows(tx, key):
            return emit(tx, "call_function", operator.getitem, [self, key], run=row_at)
        found = None if tx.function_modes else selected(tx, self, key)  # a mode is asked about the key as it is
        return emit(tx, "call_function", operator.getitem, [self, key]) if found is None else found

    def _at_positions(self, tx: Tracer, key: Value) -> Value:
        from engine.trace.values.sequences import ListValue, TupleValue

        parts = [force(tx, k) for k in key.items] if isinstance(key, TupleValue) else [key]
        if not all(isinstance(p, TensorValue) for p in parts):
            return emit(tx, "call_function", operator.getitem, [self, key])
        return emit(tx, "call_function", torch.ops.aten.index, [self, ListValue(parts)])

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        from engine.trace.values.indexing import in_rows, put_in_row, selected, with_positions
        from engine.trace.values.tensor_subclasses import dispatched

        if dispatched(tx, "call_function", operator.setitem, [self, key, value], {}) is not None:
            return
        key = with_positions(tx, key)
        if in_rows(tx, key):
            emit(tx, "call_function", operator.setitem, [self, key, value], run=put_in_row)
            return
        found = None if tx.function_modes else selected(tx, self, key)
        if found is None:
            emit(tx, "call_function", operator.setitem, [self, key, value])
        else:
            emit(tx, "call_function", operator.setitem, [found, Const(Ellipsis), value])

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if tx.function_modes and name not in self.written:
            asked = self._asked(tx, "get_attr", name, [self], {})
            if asked is not None:
                return asked
        if name == "shape":
            return self.shape(tx)
        if name == "_grad":
            name = "grad"  # two names of one slot
        if name in self.written:
            return self.written[name]
        ruled = self._ruled(name)
        if ruled is not None:
            return TensorMethod(self, name) if ruled.is_method else ruled.run(tx, self, [], {})
        own = self._own(tx, name)
        if own is not None:
            return own
        if name in _AS_NODE:
            return emit(tx, "call_function", getattr, [self, Const(name)])
        if name == "grad":
            return self._grad(tx)
        if name == "_base":
            return self._viewed(tx)
        if name == "__class__":
            return tx.fixed(self.type())
        if self.held is not None and self.origin is not None and name in getattr(self.held, "__dict__", {}):
            return tx.wrap(self.held.__dict__[name], Attr(self.origin, name))
        found = getattr(self._operations(), name, None)
        if found is None:
            if self.held is not None and self.origin is not None:
                tx.guard(HasAttribute(self.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))
            tx.raise_error(AttributeError, f"'{self.type().__name__}' object has no attribute '{name}'")
        if callable(found):
            return TensorMethod(self, name)
        return self._metadata(tx, name)

    def guard_leaf(self, tx: Tracer) -> None:
        """Take for granted whether an input that requires gradients is a leaf: its metadata do not tell."""
        if self.held is not None and self.origin is not None and self.held.requires_grad:
            cause = tx.cause("whether it is a leaf decided what was traced")
            tx.guard(Equals(Attr(self.origin, "is_leaf"), self.held.is_leaf, cause=cause))

    def _grad(self, tx: Tracer) -> Value:
        self.guard_leaf(tx)
        if self.held is None or self.origin is None:
            if self.fake.is_leaf or not self.fake.requires_grad:
                return NONE
            raise self.refuse("reading the gradient of an intermediate")
        return tx.wrap(self.held.grad, Attr(self.origin, "grad"))

    def _viewed(self, tx: Tracer) -> Value:
        """What it is a view of."""
        if self.held is not None and self.origin is not None:
            return tx.wrap(self.held._base, Attr(self.origin, "_base"))
        base = self.fake._base
        if base is None:
            return NONE
        for value, _ in tx.input_tensors:
            given: TensorValue = value
            if given.fake is base and (given.held is None or given.held._base is None):
                return given
            if base is given.fake or base is given.fake._base:
                return given._viewed(tx)
        node = next((n for n in tx.graph.graph.nodes if n.meta.get("example_value") is base), None)
        if node is None:
            raise self.refuse("reading the attribute '_base'")
        return tx.graph.values.get(node) or TensorValue(node, base)

    def _metadata(self, tx: Tracer, name: str) -> Value:
        if name == "is_leaf":
            self.guard_leaf(tx)
        if name == "grad_fn":
            from engine.trace.values.inner_gradients import grad_fn

            return grad_fn(tx, self)
        if name in (
            "grad_fn",
            "__dict__",
            "_cdata",
            "volatile",
            "_backward_hooks",
            "__cuda_array_interface__",
        ):
            raise self.refuse(f"reading the attribute {name!r}")
        if name == "nbytes":
            from engine.trace.operations import binary

            return binary(tx, "*", self.call_method(tx, "numel", [], {}), Const(self.fake.element_size()))
        if name in tensor_facts.ATTRIBUTES and (fact := tensor_facts.attribute(tx, self, name)) is not None:
            return fact
        result = evaluate(tx, "call_function", getattr, [self.fake, name], {})
        if isinstance(result, torch.Tensor):
            return emit(tx, "call_function", getattr, [self, Const(name)])
        return tx.from_python(result)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in self.written or (self.held is not None and name in getattr(self.held, "__dict__", {})):
            return super().call_method(tx, name, args, kwargs)
        if tx.function_modes:
            asked = self._asked(tx, "call_method", name, [self, *args], kwargs)
            if asked is not None:
                return asked
        ruled = self._ruled(name)
        if ruled is not None and ruled.is_method:
            return ruled.run(tx, self, args, kwargs)
        own = self._own(tx, name)
        if own is not None:
            return force(tx, own).call(tx, args, kwargs)
        if "from" in kwargs and not args:  # fx writes calls as Python, where it is no name
            args, kwargs = [kwargs["from"]], {k: v for k, v in kwargs.items() if k != "from"}
        if name == "requires_grad_" and self._has_requires_grad(tx, args, kwargs):
            return self
        if name == "numpy":
            from engine.trace.values.numpy_arrays import array_by_force, array_of_tensor

            is_forced = force(tx, kwargs.get("force", Const(False))).truth(tx)
            return array_by_force(tx, self) if is_forced else array_of_tensor(tx, self)
        if name in ("requires_grad_", "retain_grad", "register_hook"):
            from engine.trace.values import inner_gradients

            if name != "register_hook":
                return inner_gradients.change_in_place(tx, self, name, args, kwargs)
            return inner_gradients.register_hook(tx, self, force(tx, args[0] if args else kwargs["hook"]))
        if name == "register_post_accumulate_grad_hook":
            from engine.trace.values.inner_gradients import register_after_accumulation

            return register_after_accumulation(tx, self, force(tx, args[0] if args else kwargs["hook"]))
        if name == "tolist" and not args and not kwargs and self.is_listed():
            return self.listed(tx)
        if name == "set_":
            from engine.trace.values.parameters import set_memory

            return set_memory(tx, self, args, kwargs)
        if name in ("untyped_storage", "data_ptr") and not args and not kwargs:
            from engine.trace.values import storages

            return (storages.storage_of if name == "untyped_storage" else storages.address_of)(tx, self)
        if name in _PYTHON_ONLY:
            raise Unsupported(
                "data-dependent" if name in ("numpy", "tolist") else "unknown-call", f"Tensor.{name} is called"
            )
        if getattr(self._operations(), name, None) is None:
            tx.raise_error(AttributeError, f"'{self.type().__name__}' object has no attribute '{name}'")
        if name in ("size", "dim", "numel", "ndimension", "__len__") and not kwargs:
            known = self._measure(tx, name, [force(tx, a) for a in args])
            if known is not None:
                return known
        if name in ("as_subclass", "new_tensor"):
            from engine.trace.values.rules import special_of

            rule = special_of(getattr(torch.Tensor, name))
            assert rule is not None
            return rule(tx, [self, *args], kwargs)
        if name in ("__iter__", "__bool__", "__getitem__", "__setitem__"):
            return self._protocol(tx, name, args)
        if name == "item" and (known := self.known_number(tx)) is not None:
            return known
        if name in tensor_facts.METHODS and not kwargs and (fact := tensor_facts.asked(tx, self, name)) is not None:
            return fact
        return emit(tx, "call_method", name, [self, *args], kwargs)

    def is_listed(self) -> bool:
        """Whether ``tolist()`` gives a few numbers that can be symbols."""
        sizes = self.fake.shape
        return (
            config.capture_scalar_outputs
            and not any(is_unbacked(s) for s in sizes)
            and not self.fake.dtype.is_complex
            and all(map(has_hint, sizes))
            and math.prod(map(hint, sizes)) <= _LISTED
        )

    def listed(self, tx: Tracer) -> Value:
        """``tolist()``."""
        from engine.trace.values.sequences import ListValue

        if self.fake.dim() == 0:
            return self.call_method(tx, "item", [], {})
        items = [self.get_item(tx, Const(n)) for n in range(self.size(tx, 0).python(tx))]
        return ListValue([item.listed(tx) for item in items if isinstance(item, TensorValue)])

    def _has_requires_grad(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Whether ``requires_grad_`` would leave everything as it is."""
        self.guard_leaf(tx)
        wanted = force(tx, args[0] if args else kwargs.get("requires_grad", Const(True)))
        return isinstance(wanted, Const) and wanted.value is self.fake.requires_grad and self.fake.is_leaf

    def _measure(self, tx: Tracer, name: str, args: list[Value]) -> Value | None:
        if name in ("dim", "ndimension") and not args:
            return Const(self.fake.dim())
        if name == "__len__":
            return self.length(tx)
        if name == "size" and not args:
            return self.shape(tx)
        if name == "size" and len(args) == 1 and isinstance(args[0], Const) and type(args[0].value) is int:
            dim = args[0].value
            if -self.fake.dim() <= dim < self.fake.dim():
                return self.size(tx, dim % self.fake.dim())
        return None

    def _protocol(self, tx: Tracer, name: str, args: list[Value]) -> Value:
        match name:
            case "__iter__":
                return self.iterate(tx)
            case "__bool__":
                return Const(self.truth(tx))
            case "__getitem__":
                return self.get_item(tx, args[0])
            case _:
                self.set_item(tx, args[0], args[1])
                return NONE

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if name == "_grad":
            name = "grad"
        if name == "requires_grad":
            if not self._has_requires_grad(tx, [value], {}):
                self._require_grad(tx, force(tx, value))
            return
        if name == "data":
            from engine.trace.values.parameters import set_data

            set_data(tx, self, value)
            return
        gradient = name == "grad" and self._takes_as_gradient(force(tx, value))
        if not gradient and (hasattr(torch.Tensor, name) or name.startswith(_MARKS)):
            raise Unsupported("side-effect", f"the attribute {name!r} of a tensor is set")
        tx.mutating(self)
        self.written[name] = value

    def _takes_as_gradient(self, value: Value) -> bool:
        """Whether ``.grad`` can be set to it after the graph: of a leaf, to None or to what torch does not refuse."""
        if not self.fake.is_leaf or (self.held is not None and (self.origin is None or "grad" in vars(self.held))):
            return False
        if isinstance(value, Const):
            return value.value is None
        if not isinstance(value, TensorValue) or value is self or value.type() is not torch.Tensor:
            return False
        mine, new = self.fake, value.fake
        return (mine.shape, mine.dtype, mine.device, mine.layout) == (new.shape, new.dtype, new.device, new.layout)

    def _require_grad(self, tx: Tracer, wanted: Value) -> None:
        if wanted.type() is not bool:
            raise Unsupported("side-effect", "requires_grad of a tensor is set to what is no bool")
        from engine.trace.values import inner_gradients

        inner_gradients.change_in_place(tx, self, "requires_grad_", [wanted], {})

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node(cg.tx))
        if self.written:
            cg.remember(self)
            cg.fill_later(self)

    def fill(self, cg: Codegen) -> None:
        """Set the attributes written on the tensor on top of the stack, and pop it."""
        from engine.trace.support import set_attributes

        cg.helper(set_attributes, 1)
        cg.const(tuple(self.written))
        cg.load_all(list(self.written.values()))
        cg.out.emit("BUILD_TUPLE", len(self.written))
        cg.out.call(3)
        cg.out.emit("POP_TOP")


class TensorMethod(Value):
    """``x.add``: a method of a tensor, not called yet."""

    def __init__(self, tensor: TensorValue, name: str) -> None:
        self.tensor = tensor
        self.name = name

    def type(self) -> type:
        return type(torch.Tensor.add)

    def describe(self) -> str:
        return f"Tensor.{self.name}"

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.tensor.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.tensor
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.tensor]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.tensor)
        cg.out.attribute(self.name)


def _is_tensor(real: Any) -> bool:
    return isinstance(real, torch.Tensor)


@wraps_if(0, _is_tensor)
def _tensor(tx: Tracer, real: torch.Tensor, origin: Origin) -> Value:
    with torch._C.DisableTorchFunctionSubclass():
        return _tensor_at(tx, real, origin)


def _tensor_at(tx: Tracer, real: torch.Tensor, origin: Origin) -> Value:
    from engine.trace.state import fake_of

    is_wrapper = _is_wrapper(real)
    plain = type(real) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or is_wrapper
    has_protocol = not plain and type(real).__torch_function__ is not torch._C._disabled_torch_function_impl
    if isinstance(real, FakeTensor):
        tx.guard(TypeIs(origin, FakeTensor, cause=tx.cause("a fake tensor is left to Python")))
        raise Skip("fake-tensor", f"{origin.expr} is a fake tensor")
    if not is_wrapper and type(real).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise Unsupported("unsupported-operation", f"a tensor of the subclass {type(real).__name__}")
    if _is_jagged(real):
        tx.guard_type(real, origin, "it is jagged")
    elif (
        real.layout is not torch.strided
        or real.is_quantized
        or real.is_nested
        or (torch._is_functional_tensor(real) and tx.entry_state["functorch"] is None)
    ):
        kind = "nested tensor" if real.is_nested else "quantised tensor" if real.is_quantized else "tensor"
        raise Unsupported("unsupported-operation", f"a {kind} of layout {real.layout}")
    if real.requires_grad and not (real.is_floating_point() or real.is_complex()):
        raise Unsupported("unsupported-operation", f"a tensor of {real.dtype} that requires gradients")
    if torch._C._functorch.is_functorch_wrapped_tensor(real) and tx.entry_state["functorch"] is None:
        raise Unsupported("unsupported-operation", "a tensor of a transformation that is over")
    if is_wrapper:
        _check_parts(real)
    fake = fake_of(tx, real if plain else _without_class(real), origin)
    tx.tensors_seen = True
    _guard(tx, real, fake, origin)
    if has_protocol:
        from engine.trace.values.tensor_subclasses import subclass_input

        value = subclass_input(tx, real, fake, origin)
    else:
        value = TensorValue(None, fake, origin, real)
    tx.input_tensors.append((value, fake._version if not fake.is_inference() else 0))
    tx.input_layouts[id(value.fake)] = layout_of(fake)
    return value


def layout_of(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Sizes, strides, and where in its memory a tensor starts, all with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0


def _is_number(fake: torch.Tensor) -> bool:
    """Whether it is one number in main memory."""
    return fake.device.type == "cpu" and not is_unbacked(fake.shape) and fake.numel() == 1


def is_subclass(value: Any) -> bool:
    """Whether a value is of a subclass around other tensors that says how it is taken apart."""
    return type(value) is not FakeTensor and bool(is_traceable_wrapper_subclass(value))


def _is_jagged(real: Any) -> bool:
    """Whether it is a nested tensor of torch's over one dense tensor and offsets: its methods are operations like those of plain tensors."""
    return type(real) is NestedTensor


def _is_wrapper(real: Any) -> bool:
    """Whether it computes through the tensors inside it and does nothing else of its own."""
    if not is_subclass(real):
        return False
    if _is_jagged(real):
        return True
    own = type(real).__torch_function__
    plain: Any = torch.Tensor.__torch_function__
    return own is torch._C._disabled_torch_function_impl or getattr(own, "__func__", None) is plain.__func__


def _check_parts(real: Any) -> None:
    from engine.trace.values.collectives import is_group_or_mesh

    try:
        parts = [getattr(real, n) for n in real.__tensor_flatten__()[0]]
    except AttributeError as error:
        text = f"a {type(real).__name__} that is not made yet: {error}"
        raise Unsupported("unsupported-operation", text) from error
    other = [type(p).__name__ for p in parts if not isinstance(p, torch.Tensor) and not is_group_or_mesh(p)]
    if other:
        text = f"a {type(real).__name__}: beside tensors it is made of a {other[0]}"
        raise Unsupported("unsupported-operation", text)


def _guard(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, origin: Origin) -> None:
    tx.guard(_match(tx, real, fake, origin))
    if not _is_wrapper(real):
        return
    inside: Any = real
    names, context = inside.__tensor_flatten__()
    tx.guard(WrapperIs(origin, tuple(names), context, cause=tx.cause("the tensor subclass was taken apart")))
    for name in names:
        part = getattr(real, name)
        if isinstance(part, torch.Tensor):
            _guard(tx, part, getattr(fake, name), Attr(origin, name))
        else:
            tx.guard_object(part, Attr(origin, name), f"the tensor was made with this {type(part).__name__}")


def _without_class(real: torch.Tensor) -> torch.Tensor:
    """A plain leaf with the same metadata and memory."""
    return real.detach().as_subclass(torch.Tensor).requires_grad_(real.requires_grad)


def _match(tx: Tracer, real: torch.Tensor, fake: torch.Tensor, origin: Origin) -> TensorMatch:
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
        cause=tx.cause("the tensor takes part in the computation"),
    )
