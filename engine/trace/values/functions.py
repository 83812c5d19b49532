"""Python functions: real ones, and those that the traced code makes."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from engine.ir.marks import is_disabled, is_in_graph, is_opaque, original
from engine.ir.origin import Attr, CellOf, Fixed, Item, Namespace, Origin
from engine.ir.value_guard import CodeIs, IsObject, LengthIs
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Attributed, Const, NotConstant, Value, force, is_none
from engine.trace.values.cells import CellValue, real_cell
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import MethodOf
from engine.trace.values.optimizers import traced_anyway
from engine.trace.values.rules import BY_CODE, KEPT_FROM_DYNAMO, special_of
from engine.trace.values.wrap import wraps

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class FunctionValue(Value):
    """A Python function: code, defaults and cells are what inlining needs."""

    code: types.CodeType
    namespace: Namespace

    def type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"function {self.code.co_name}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def defaults(self, tx: Tracer) -> list[Value]:
        """Defaults of the last positional parameters."""
        raise NotImplementedError

    def keyword_defaults(self, tx: Tracer) -> dict[str, Value]:
        """Defaults of keyword-only parameters."""
        raise NotImplementedError

    def cells(self, tx: Tracer) -> list[CellValue]:
        """Cells in the order of ``co_freevars``."""
        raise NotImplementedError

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__get__":
            from engine.trace.values.methods import BoundMethod

            return self if is_none(force(tx, args[0])) else BoundMethod(args[0], self)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.inline import inline_call

        return inline_call(tx, self, args, kwargs)


class RealFunction(FunctionValue):
    """A function object that exists."""

    is_mutable = True

    def __init__(self, held: types.FunctionType, origin: Origin) -> None:
        from engine.trace.state import is_trusted

        self.held = held
        self.origin = origin
        self.code = held.__code__
        self.namespace = Namespace(held.__globals__, str(held.__globals__.get("__name__", "")))
        self.is_trusted = is_trusted(held.__module__)

    def real(self) -> Any:
        return self.held

    def describe(self) -> str:
        return f"{self.held.__module__}.{self.held.__qualname__}" if self.held.__module__ else self.held.__qualname__

    def python(self, tx: Tracer) -> Any:
        if self.is_trusted:
            return self.held
        raise NotConstant

    def key(self, tx: Tracer) -> Any:
        if not self.is_trusted:
            tx.guard_object(self.held, self._base, "it is a key of a dict or an element of a set")
        return self.held

    @property
    def _base(self) -> Origin:
        assert self.origin is not None
        return Fixed(self.held, self.held.__qualname__) if self.is_trusted else self.origin

    def defaults(self, tx: Tracer) -> list[Value]:
        found = self.held.__defaults__ or ()
        base = Attr(self._base, "__defaults__")
        if found and not self.is_trusted:
            tx.guard(LengthIs(base, len(found), cause=tx.cause("its defaults are those of its last parameters")))
        return [self._default(tx, d, Item(base, n)) for n, d in enumerate(found)]

    def keyword_defaults(self, tx: Tracer) -> dict[str, Value]:
        found = self.held.__kwdefaults__ or {}
        base = Attr(self._base, "__kwdefaults__")
        return {k: self._default(tx, d, Item(base, k)) for k, d in found.items()}

    def _default(self, tx: Tracer, real: Any, origin: Origin) -> Value:
        return tx.lazy(real, Fixed(real, origin.expr) if self.is_trusted else origin)

    def cells(self, tx: Tracer) -> list[CellValue]:
        return [
            real_cell(tx, cell, CellOf(self._base, n, name))
            for n, (name, cell) in enumerate(zip(self.code.co_freevars, self.held.__closure__ or (), strict=True))
        ]

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.inline import bind
        from engine.trace.values.torch_functions import is_leaf, may_inline

        direct, tx.direct = tx.direct is self, None
        rule = special_of(self.held)
        if rule is not None:
            if kwargs or len(args) > self.code.co_argcount:
                bind(tx, self, args, kwargs)
            return rule(tx, args, kwargs)
        inner = original(self.held)
        if inner is not self.held:
            behind = force(tx, tx.wrap(inner, Fixed(inner, getattr(inner, "__qualname__", "original"))))
            tx.direct = behind if direct else None
            return behind.call(tx, args, kwargs)
        by_code = BY_CODE.get(id(self.code))
        if by_code is not None:
            return by_code[1](tx, self, args, kwargs)
        is_off = is_disabled(self.held)
        if is_off or self.code is KEPT_FROM_DYNAMO:
            inner = traced_anyway(self.held)
            if inner is not None:
                return force(tx, tx.fixed(inner)).call(tx, args, kwargs)
        if is_off:
            raise Unsupported("disabled", f"{self.describe()} is called")
        if self.held.__dict__.get("_dynamo_marked_constant", False):
            return self._constant_result(tx, args, kwargs)
        if "_torchdynamo_leaf_real_fn" in self.held.__dict__:
            from engine.trace.values.compiler_api import leaf_call

            return leaf_call(tx, self, args, kwargs)
        if is_opaque(self.held):
            from engine.trace.values.compiler_api import opaque_call

            return opaque_call(tx, self.held, args, kwargs)
        if is_in_graph(self.held):
            return emit(tx, "call_function", self.held, args, kwargs)
        if is_leaf(self.held):
            try:
                return emit(tx, "call_function", self.held, args, kwargs)
            except Unsupported as error:
                # An argument that no node can take: its body may only read from it.
                if error.kind != "unsupported-argument":
                    raise
        if not may_inline(self.held):
            raise Unsupported("unknown-call", f"{self.describe()} is called")
        tx.direct = self if direct else None
        return super().call(tx, args, kwargs)

    def _constant_result(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``assume_constant_result``: the call is made while tracing, and its result embedded.

        Objects from outside are handed over as they were before the call: none may have been changed since.
        """
        objects = [a for a in (*args, *kwargs.values()) if not tx.is_constant(a)]
        given = [
            tx.real_of(force(tx, a)) if not tx.is_constant(a) else force(tx, a).python(tx)
            for a in (*args, *kwargs.values())
        ]
        if any(g is NotImplemented for g in given) or (objects and tx.mutated):
            raise Unsupported("unknown-call", f"{self.describe()} is called with what is not constant")
        words = dict(zip(kwargs, given[len(args) :], strict=True))
        return tx.fold(self.held, *given[: len(args)], **words)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__call__":
            return self
        if name == "__get__":
            return MethodOf(self, name)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.held, name))
        if name == "__code__":
            return Const(self.code)
        if name == "__dict__" and (not self.held.__dict__ or not self.is_trusted):
            return self._own_attributes(tx)
        if name in ("__globals__", "__closure__", "__dict__") or not hasattr(self.held, name):
            if not hasattr(self.held, name):
                tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
            raise self.refuse(f"reading the attribute {name!r}")
        return tx.wrap(getattr(self.held, name), Attr(self._base, name))

    def _own_attributes(self, tx: Tracer) -> Value:
        """``f.__dict__``; of a function of torch's own only where it is empty."""
        from engine.trace.values.mappings import DictValue

        if not self.is_trusted and self.origin is not None:
            return tx.wrap(self.held.__dict__, Attr(self.origin, "__dict__"))
        return DictValue({})


class MadeFunction(Attributed, FunctionValue):
    """A function that the traced code made: a closure, a lambda, a comprehension."""

    is_mutable = True

    def __init__(self, code: types.CodeType, namespace: Namespace, name: str) -> None:
        self.code = code
        self.namespace = namespace
        self.name = name
        self.default_values: list[Value] = []
        self.keyword_default_values: dict[str, Value] = {}
        self.cell_values: list[CellValue] = []
        self.attributes: dict[str, Value] = {}
        self.annotations: dict[str, Value] = {}
        self._annotations: Value | None = None
        self.stub: Any = None
        """What stands for it inside a twin."""

    def key(self, tx: Tracer) -> Any:
        return self

    def defaults(self, tx: Tracer) -> list[Value]:
        return self.default_values

    def keyword_defaults(self, tx: Tracer) -> dict[str, Value]:
        return self.keyword_default_values

    def cells(self, tx: Tracer) -> list[CellValue]:
        return self.cell_values

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name == "__call__":
            return self
        if name == "__get__":
            return MethodOf(self, name)
        if name == "__name__":
            return Const(self.name)
        if name == "__qualname__":
            return Const(self.code.co_qualname)
        if name == "__module__":
            return Const(self.namespace.name)
        if name == "__doc__":
            first = self.code.co_consts[0] if self.code.co_consts else None
            return Const(first) if isinstance(first, str) else NONE
        if name == "__code__":
            return Const(self.code)
        if name == "__annotations__":
            return self._annotation_dict()
        if name == "__dict__":
            return FunctionDict(self)
        if name == "__defaults__":
            from engine.trace.values.sequences import TupleValue

            return TupleValue(list(self.default_values)) if self.default_values else NONE
        if name == "__kwdefaults__":
            return DictValue.of(dict(self.keyword_default_values)) if self.keyword_default_values else NONE
        if name == "__closure__":
            from engine.trace.values.sequences import TupleValue

            return TupleValue(list(self.cell_values)) if self.cell_values else NONE
        if not hasattr(types.FunctionType, name):
            tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
        if name == "__type_params__":
            return tx.from_python(())
        return super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        if name == "__name__":
            self.name = str(force(tx, value).python(tx))
            return
        if name == "__defaults__":
            self.default_values = [] if is_none(force(tx, value)) else list(tx.sequence(value))
            return
        if name in ("__kwdefaults__", "__annotations__"):
            entries = {} if is_none(force(tx, value)) else tx.entries(value)
            if name == "__annotations__":
                self._annotations = None if is_none(force(tx, value)) else force(tx, value)
                self.annotations = entries
            else:
                self.keyword_default_values = entries
            return
        if name in ("__code__", "__dict__", "__closure__", "__globals__"):
            raise self.refuse(f"setting {name}")
        self.attributes[name] = value

    def del_attr(self, tx: Tracer, name: str) -> None:
        if name.startswith("__"):
            raise self.refuse(f"deleting the attribute {name!r}")
        if name not in self.attributes:
            tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
        tx.mutating(self)
        del self.attributes[name]

    def _annotation_dict(self) -> Value:
        """``f.__annotations__``: one dict, to which more may be added."""
        if self._annotations is None:
            self._annotations = DictValue.of(self.annotations)
        return self._annotations

    def _noted(self) -> list[Value]:
        return list(self.annotations.values()) if self._annotations is None else [self._annotations]

    def children(self) -> list[Value]:
        return [
            *self.default_values,
            *self.keyword_default_values.values(),
            *self.cell_values,
            *self.attributes.values(),
            *self._noted(),
        ]

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import make_function
        from engine.trace.values.sequences import TupleValue

        if self._comes_with_class(cg):
            return
        cg.helper(make_function, 0)
        cg.const(self.code)
        cg.namespace(self.namespace)
        cg.const(self.name)
        cg.const(self.code.co_qualname)
        cg.load(TupleValue(self.default_values) if self.default_values else NONE)
        cg.load(DictValue.of(self.keyword_default_values) if self.keyword_default_values else NONE)
        cg.load(TupleValue(list(self.cell_values)))
        cg.load(DictValue.of(self.attributes) if self.attributes else NONE)
        cg.load(self._annotation_dict() if self.annotations or self._annotations is not None else NONE)
        cg.out.call(9)

    def _comes_with_class(self, cg: Codegen) -> bool:
        """Load it with the class whose method it is: the class is made of it, and it may refer to the class."""
        for cell in self.cell_values:
            if cell.is_class_cell and cell.content is not None and not cg.has(cell):
                cg.load(cell.content)
                cg.out.emit("POP_TOP")
        if cg.has(self):
            cg.load(self)
            return True
        return False


class FunctionDict(Value):
    """The ``__dict__`` of a function, or of a cache around one, that the traced code made: updated, read by key, or listed."""

    def __init__(self, of: Attributed) -> None:
        self.of = of

    def type(self) -> type:
        return dict

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name)

    def _copy(self) -> Value:
        return DictValue.of({k: v for k, v in self.of.attributes.items() if not hasattr(types.FunctionType, k)})

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "update" and len(args) == 1 and not kwargs:
            for key, value in tx.entries(args[0]).items():
                self.of.set_attr(tx, key, value)
            return NONE
        if name == "setdefault" and 1 <= len(args) <= 2 and not kwargs:
            if not self.contains(tx, force(tx, args[0])):
                self.set_item(tx, force(tx, args[0]), args[1] if len(args) == 2 else NONE)
            return self.get_item(tx, force(tx, args[0]))
        if name in ("get", "keys", "values", "items", "copy", "__contains__", "__len__", "__getitem__", "__iter__"):
            return self._copy().call_method(tx, name, args, kwargs)
        raise self.refuse(f"the method {name!r} of a function's __dict__")

    def length(self, tx: Tracer) -> Value:
        return self._copy().length(tx)

    def truth(self, tx: Tracer) -> bool:
        return self._copy().truth(tx)

    def iterate(self, tx: Tracer) -> Value:
        return self._copy().iterate(tx)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return self._copy().contains(tx, item)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self._copy().get_item(tx, key)

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        self.of.set_attr(tx, str(key.python(tx)), value)

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.of)
        cg.out.attribute("__dict__")


@wraps(types.FunctionType)
def _function(tx: Tracer, real: types.FunctionType, origin: Origin) -> Value:
    value = RealFunction(real, origin)
    if original(real) is not real:
        tx.guard(IsObject(origin, real, cause=tx.cause(f"the compiled function {real.__qualname__} was looked into")))
    elif not value.is_trusted:
        tx.guard(CodeIs(origin, real.__code__, cause=tx.cause(f"the function {real.__qualname__} was looked into")))
    elif not isinstance(origin, Fixed):
        tx.guard(IsObject(origin, real, cause=tx.cause(f"the function {real.__qualname__} was called")))
    return value
