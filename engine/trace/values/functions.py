"""Functions, methods, partials, closures' cells, and generators that are being run."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch._compile

from engine.ir.marks import is_disabled, is_in_graph, is_opaque, original
from engine.ir.origin import MISSING, Attr, CellOf, Closure, Fixed, Item, MaybeCellOf, MaybeClosure, Namespace, Origin
from engine.ir.value_guard import CodeIs, Equals, IsObject, LengthIs
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.arity import check_arity, check_method_arity
from engine.trace.values.base import NONE, Attributed, Const, NotConstant, Value, force, is_none
from engine.trace.values.iterators import IteratorValue
from engine.trace.values.optimizers import traced_anyway
from engine.trace.values.shown import shown
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Frame, Tracer

Special = Callable[["Tracer", list[Value], dict[str, Value]], Value]
SPECIAL: dict[int, tuple[Any, Special]] = {}
"""Callables with a rule of their own, by id; the callable is kept beside it."""


BY_NAME: dict[tuple[str, str], Special] = {}
"""Rules for functions of modules that must not be imported for their sake, and for class methods from C: by module or class, and name."""


ByCode = Callable[["Tracer", Any, list[Value], dict[str, Value]], Value]
BY_CODE: dict[int, tuple[types.CodeType, ByCode]] = {}
"""Rules for wrappers that the standard library makes anew for each function, by the id of the code that they share."""


def special(*callables: Any) -> Callable[[Special], Special]:
    """Register what calling one of these callables does in traced code."""

    def register(rule: Special) -> Special:
        for fn in callables:
            SPECIAL[id(fn)] = (fn, rule)
        return rule

    return register


def special_of(fn: Any) -> Special | None:
    """The rule for a callable, if it has one."""
    known = SPECIAL.get(id(fn))
    if known is not None and known[0] is fn:
        return known[1]
    if type(fn) is types.BuiltinFunctionType and isinstance(fn.__self__, type):
        # Class methods from C are bound anew at each access.
        return BY_NAME.get((fn.__self__.__name__, fn.__name__))
    if (
        type(fn) is types.FunctionType
        and fn.__module__
        and fn.__module__.startswith(("torch._dynamo", "torch.distributed"))
    ):
        return BY_NAME.get((fn.__module__, fn.__name__))
    if type(fn) is types.FunctionType and fn.__code__ is _KEPT_FROM_DYNAMO and hasattr(fn, "__wrapped__"):
        return special_of(fn.__wrapped__)  # torch wraps torch.manual_seed so, once torch._dynamo is loaded
    return None


_KEPT_FROM_DYNAMO = next(
    (
        c
        for c in torch._compile._disable_dynamo.__code__.co_consts
        if isinstance(c, types.CodeType) and c.co_name == "inner"
    ),
    None,
)
"""The code of what ``torch._disable_dynamo`` makes of a function of torch's own."""


class CellValue(Value):
    """A closure cell. Its content lives here; None while it is empty."""

    __slots__ = ("content", "held", "is_class_cell", "name", "origin", "root_name", "was_empty")
    is_mutable = True

    def __init__(
        self, content: Value | None, origin: Origin | None = None, held: Any = None, root_name: str = ""
    ) -> None:
        self.content = content
        self.origin = origin
        self.held = held
        self.root_name = root_name
        """Set for the root frame's own cells: generated code reaches them by this name."""
        self.was_empty = content is None
        self.is_class_cell = False
        """Whether it is the ``__class__`` cell of a class that the traced code makes."""

    def type(self) -> type:
        return types.CellType

    def set(self, tx: Tracer, value: Value | None) -> None:
        """Change what it holds."""
        tx.mutating(self)
        self.content = value

    def guard_empty(self, tx: Tracer) -> None:
        """Someone has looked and found nothing in it: a cell that exists may be filled at the next call."""
        if not self.was_empty:
            return
        cause = tx.cause("the closure variable was empty")
        match self.origin:
            case Closure(variable, index):
                tx.guard(IsObject(MaybeClosure(variable, index), MISSING, cause=cause))
            case CellOf(base, index, variable):
                tx.guard(IsObject(MaybeCellOf(base, index, variable), MISSING, cause=cause))

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "cell_contents" and self.content is not None:
            return self.content
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [] if self.content is None else [self.content]

    def reconstruct(self, cg: Codegen) -> None:
        if self.root_name:
            cg.out.closure(cg.cell_arg(self.root_name))
            return
        if isinstance(self.origin, CellOf):
            cg.load_origin(Attr(self.origin.base, "__closure__"))
            cg.out.item(self.origin.index)
            return
        cg.out.callable(lambda: cg.const(types.CellType))
        if cg.is_reaching(self) and self.content is not None:
            cg.out.call(0)
            cg.remember(self)
            cg.fill_later(self)
            return
        if self.content is not None:
            cg.load(self.content)
        cg.out.call(0 if self.content is None else 1)

    def fill(self, cg: Codegen) -> None:
        """Put the present content into the existing cell on top of the stack, and pop it."""
        if self.content is None:
            cg.out.emit("DELETE_ATTR", "cell_contents")
            return
        cg.load(self.content)
        cg.out.emit("SWAP", 2)
        cg.out.emit("STORE_ATTR", "cell_contents")


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
        if is_disabled(self.held):
            inner = traced_anyway(self.held)
            if inner is not None:
                return force(tx, tx.fixed(inner)).call(tx, args, kwargs)
            raise Unsupported("disabled", f"{self.describe()} is called")
        if self.held.__dict__.get("_dynamo_marked_constant", False):
            return self._constant_result(tx, args, kwargs)
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
        """``assume_constant_result``: the call is made while tracing, and its result embedded."""
        given = [
            tx.real_of(force(tx, a)) if not tx.is_constant(a) else force(tx, a).python(tx)
            for a in (*args, *kwargs.values())
        ]
        if any(g is NotImplemented for g in given) or tx.mutated:
            raise Unsupported("unknown-call", f"{self.describe()} is called with what is not constant")
        words = dict(zip(kwargs, given[len(args) :], strict=True))
        return tx.fold(self.held, *given[: len(args)], **words)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__call__":
            return self
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.held, name))
        if name == "__code__":
            return Const(self.code)
        if name == "__dict__" and not self.held.__dict__:
            return self._no_attributes(tx)
        if name in ("__globals__", "__closure__", "__dict__") or not hasattr(self.held, name):
            if not hasattr(self.held, name):
                tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
            raise self.refuse(f"reading the attribute {name!r}")
        return tx.wrap(getattr(self.held, name), Attr(self._base, name))

    def _no_attributes(self, tx: Tracer) -> Value:
        """``f.__dict__`` of a function without attributes: whoever reads it does so to copy them."""
        from engine.trace.values.mappings import DictValue

        if not self.is_trusted and self.origin is not None:
            tx.guard(Equals(Attr(self.origin, "__dict__"), {}, cause=tx.cause("the function's attributes were copied")))
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
            return _named(dict(self.annotations))
        if name == "__dict__":
            return FunctionDict(self)
        if name == "__defaults__":
            from engine.trace.values.sequences import TupleValue

            return TupleValue(list(self.default_values)) if self.default_values else NONE
        if name == "__kwdefaults__":
            return _named(dict(self.keyword_default_values)) if self.keyword_default_values else NONE
        if name == "__closure__":
            from engine.trace.values.sequences import TupleValue

            return TupleValue(list(self.cell_values)) if self.cell_values else NONE
        if not hasattr(types.FunctionType, name):
            tx.raise_error(AttributeError, f"'function' object has no attribute '{name}'")
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
                self.annotations = entries
            else:
                self.keyword_default_values = entries
            return
        if name in ("__code__", "__dict__", "__closure__", "__globals__"):
            raise self.refuse(f"setting {name}")
        self.attributes[name] = value

    def children(self) -> list[Value]:
        return [
            *self.default_values,
            *self.keyword_default_values.values(),
            *self.cell_values,
            *self.attributes.values(),
            *self.annotations.values(),
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
        cg.load(_named(self.keyword_default_values) if self.keyword_default_values else NONE)
        cg.load(TupleValue(list(self.cell_values)))
        cg.load(_named(self.attributes) if self.attributes else NONE)
        cg.load(_named(self.annotations) if self.annotations else NONE)
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


def _named(values: dict[str, Value]) -> Value:
    from engine.trace.values.mappings import DictValue

    return DictValue({k: (Const(k), v) for k, v in values.items()})


class FunctionDict(Value):
    """The ``__dict__`` of a function that the traced code made: updated, read by key, or listed."""

    def __init__(self, of: MadeFunction) -> None:
        self.of = of

    def type(self) -> type:
        return dict

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name)

    def _copy(self) -> Value:
        return _named({k: v for k, v in self.of.attributes.items() if not hasattr(types.FunctionType, k)})

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "update" and len(args) == 1 and not kwargs:
            for key, value in tx.entries(args[0]).items():
                self.of.set_attr(tx, key, value)
            return NONE
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


def real_cell(tx: Tracer, cell: types.CellType, contents: Origin) -> CellValue:
    """The value for an existing cell; ``contents`` is the origin of what it holds."""
    known = tx.known.get(id(cell))
    if known is not None:
        assert isinstance(known[0], CellValue)
        return known[0]
    try:
        content: Value | None = tx.lazy(cell.cell_contents, contents)
    except ValueError:
        content = None
    value = CellValue(content, contents, cell)
    tx.known[id(cell)] = (value, cell)
    return value


class BoundMethod(Value):
    """A function with its first argument."""

    def __init__(self, of: Value, function: Value, origin: Origin | None = None, name: str = "") -> None:
        self.of = of
        self.function = function
        self.origin = origin
        self.name = name

    def type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return ("method", self.of.key(tx), self.function.key(tx))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if tx.direct is self:
            tx.direct = self.function
        return self.function.call(tx, [self.of, *args], kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.of
        if name == "__func__":
            return self.function
        return self.function.get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.of, self.function]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(types.MethodType))
        cg.load(self.function)
        cg.load(self.of)
        cg.out.call(2)


class MethodOf(Value):
    """A method of a builtin container, bound and not called yet."""

    def __init__(self, of: Value, name: str) -> None:
        self.of = of
        self.name = name

    def type(self) -> type:
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.of.type().__name__}.{self.name}"

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        check_method_arity(tx, self.of.type(), self.name, args, kwargs)
        return self.of.call_method(tx, self.name, args, kwargs)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.of
        if name == "__name__":
            return Const(self.name)
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.of]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.of)
        cg.out.attribute(self.name)


class ConstMethod(Value):
    """A method of a constant: run when called with constants."""

    def __init__(self, of: Const, name: str) -> None:
        self.of = of
        self.name = name

    def type(self) -> type:
        return type(getattr(self.of.value, self.name))

    def describe(self) -> str:
        return f"{type(self.of.value).__name__}.{self.name}"

    def python(self, tx: Tracer) -> Any:
        return getattr(self.of.value, self.name)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import fold_call

        if isinstance(self.of.value, str) and self.name == "join" and len(args) == 1:
            from engine.trace.values.sequences import sequence_items

            return tx.fold(self.of.value.join, tx.constants(sequence_items(tx, args[0])))
        if isinstance(self.of.value, str) and self.name in ("format", "format_map"):
            words = {name: shown(tx, value) for name, value in kwargs.items()}
            return tx.fold(getattr(self.of.value, self.name), *(shown(tx, a) for a in args), **words)
        return fold_call(
            tx, getattr(self.of.value, self.name), args, kwargs, f"{self.describe()} with values that are not constant"
        )

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.of.value)
        cg.out.attribute(self.name)


class PartialValue(Value):
    """``functools.partial``."""

    def __init__(
        self, function: Value, args: list[Value], kwargs: dict[str, Value], origin: Origin | None = None
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.origin = origin

    def type(self) -> type:
        return functools.partial

    def truth(self, tx: Tracer) -> bool:
        return True

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        function = force(tx, self.function)
        if tx.direct is self:
            tx.direct = function
        return function.call(tx, [*self.args, *args], {**self.kwargs, **kwargs})

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.sequences import TupleValue

        match name:
            case "func":
                return self.function
            case "args":
                return TupleValue(list(self.args))
            case "keywords":
                return _named(dict(self.kwargs))
            case "__self__" if isinstance(self.function, BoundMethod):
                return self.function.of
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        return [self.function, *self.args, *self.kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(functools.partial))
        cg.load_all([self.function, *self.args, *self.kwargs.values()])
        cg.call_keywords(1 + len(self.args), tuple(self.kwargs))


class BuiltinValue(Value):
    """A function or method from C."""

    def __init__(self, held: Any, origin: Origin | None) -> None:
        self.held = held
        self.origin = origin

    def type(self) -> type:
        return type(self.held)

    def describe(self) -> str:
        module = getattr(self.held, "__module__", None)
        name = getattr(self.held, "__qualname__", None) or getattr(self.held, "__name__", repr(self.held))
        if str(name).startswith("pybind11"):
            name = self.held.__name__
        return f"{module}.{name}" if module and module != "builtins" else str(name)

    def real(self) -> Any:
        return self.held

    def truth(self, tx: Tracer) -> bool:
        return True

    def python(self, tx: Tracer) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        return self.held

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.held, name))
        if not hasattr(self.held, name):
            tx.raise_error(AttributeError, f"'{type(self.held).__name__}' object has no attribute '{name}'")
        return tx.fixed(getattr(self.held, name))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from engine.trace.operations import fold_call
        from engine.trace.values.torch_functions import is_leaf, is_pure, unbound_method

        rule = special_of(self.held)
        if rule is not None:
            check_arity(tx, self.held, args, kwargs)
            return rule(tx, args, kwargs)
        if is_leaf(self.held):
            return emit(tx, "call_function", self.held, args, kwargs)
        if is_pure(self.held):
            return fold_call(tx, self.held, args, kwargs, f"{self.describe()} with values that are not constant")
        method = unbound_method(tx, self.held, args, kwargs)
        if method is not None:
            return method
        getter = getattr(self.held, "__self__", None)
        if isinstance(getter, types.GetSetDescriptorType) and self.held.__name__ == "__get__" and args:
            return force(tx, args[0]).get_attr(tx, getter.__name__)
        raise Unsupported("unknown-call", f"{self.describe()} is called")

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.held)


class GeneratorValue(IteratorValue):
    """A generator whose body is traced step by step."""

    def __init__(self, frame: Frame, born: int, made_by: tuple[Value, list[Value], dict[str, Value]]) -> None:
        self.frame = frame
        self.born = born
        self.made_by = made_by
        """The function, and what it was called with."""
        self.is_started = False
        self.is_running = False
        self.is_renamed = False
        self.names: dict[str, Value] = {
            "__name__": Const(frame.code.co_name),
            "__qualname__": Const(frame.code.co_qualname),
        }

    def type(self) -> type:
        return types.GeneratorType

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if name not in self.names:
            return super().set_attr(tx, name, value)
        if force(tx, value).type() is not str:
            tx.raise_type_error(f"{name} must be set to a string object")
        tx.changes += 1
        self.is_renamed = True
        self.names[name] = force(tx, value)
        return None

    def _delegate(self) -> Value | None:
        """The iterator that the body waits for in ``yield from``."""
        frame = self.frame
        if self.is_running or frame.finished or not frame.op.index:
            return None
        is_delegating = frame.op.opname == "YIELD_VALUE" and frame.decoded.ops[frame.op.index - 1].opname == "SEND"
        return frame.stack[-1] if is_delegating else None

    def step(self, tx: Tracer) -> Value | None:
        return self.send(tx, NONE)

    def send(self, tx: Tracer, value: Value) -> Value | None:
        """Run to the next ``yield``; None when the body returned (its value is then in ``frame.result``)."""
        from engine.trace.inline import resume_generator

        return resume_generator(tx, self, value)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "send":
            found = self.send(tx, args[0])
            return self.stop(tx) if found is None else found
        if name == "close":
            from engine.trace.inline import close_generator

            close_generator(tx, self)
            return NONE
        if name == "throw":
            from engine.trace.inline import throw_into_generator

            return throw_into_generator(tx, self, args)
        return super().call_method(tx, name, args, kwargs)

    def returned(self) -> Value:
        """What the body returned, told once: later ends have no value."""
        result, self.frame.result = self.frame.result, None
        return result or NONE

    def stop(self, tx: Tracer) -> Value:
        """Raise the StopIteration that says that the body returned."""
        result = force(tx, self.returned())
        raise tx.stop_iteration(None if is_none(result) else result)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        code = self.frame.code
        match name:
            case "__name__" | "__qualname__":
                return self.names[name]
            case "gi_yieldfrom":
                return self._delegate() or NONE
            case "gi_code":
                return Const(code)
            case "gi_running":
                return Const(self.is_running)
            case "gi_suspended":
                return Const(self.is_started and not self.is_running and not self.frame.finished)
            case "gi_frame" if self.frame.finished:
                return NONE
        if name.startswith("gi_"):
            raise self.refuse(f"reading the attribute {name!r}")
        return super().get_attr(tx, name)

    def children(self) -> list[Value]:
        function, args, kwargs = self.made_by
        return [] if self.is_started or self.frame.finished else [function, *args, *kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        if not self.is_started and not self.frame.finished and not self.is_renamed:
            from engine.trace.values.iteration import CallOf

            function, args, kwargs = self.made_by
            CallOf(operator.call, [function, *args], kwargs).reconstruct(cg)
            return
        error = Unsupported("side-effect", f"rebuilding the generator {self.frame.code.co_qualname} after the graph")
        error.born = self.born
        raise error


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


@wraps(types.MethodType)
def _method(tx: Tracer, real: types.MethodType, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was called")
    of = tx.lazy(real.__self__, Attr(origin, "__self__"))
    return BoundMethod(of, tx.wrap(real.__func__, Attr(origin, "__func__")), origin)


@wraps(functools.partial)
def _partial(tx: Tracer, real: functools.partial[Any], origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was called")
    args = tx.wrap(real.args, Attr(origin, "args"))
    kwargs = tx.wrap(real.keywords, Attr(origin, "keywords"))
    words = {str(k): v for k, (_, v) in kwargs.entries.items()}  # type: ignore[attr-defined]
    return PartialValue(tx.wrap(real.func, Attr(origin, "func")), args.items, words, origin)  # type: ignore[attr-defined]


def _is_builtin(real: Any) -> bool:
    from engine.trace.values.torch_functions import is_leaf

    return (
        isinstance(
            real,
            (
                types.BuiltinFunctionType,
                types.MethodDescriptorType,
                types.WrapperDescriptorType,
                types.MethodWrapperType,
                types.ClassMethodDescriptorType,
                types.GetSetDescriptorType,
                types.MemberDescriptorType,
            ),
        )
        or is_leaf(real)
        or special_of(real) is not None
        or type(real).__module__ in ("operator", "_operator")
    )


@wraps_if(30, _is_builtin)
def _builtin(tx: Tracer, real: Any, origin: Origin) -> Value:
    owner = getattr(real, "__self__", None) if isinstance(real, types.BuiltinFunctionType) else None
    if type(owner).__name__.startswith("pybind11"):  # what pybind's functions are bound to tells nothing
        owner = None
    if owner is not None and not isinstance(owner, (types.ModuleType, type)) and not is_leaf_or_special(real):
        return _bound_builtin(tx, real, owner, origin)
    tx.guard_object(real, origin, "it was called")
    return BuiltinValue(real, origin)


def is_leaf_or_special(real: Any) -> bool:
    """Whether calling a builtin has a rule of its own."""
    from engine.trace.values.torch_functions import is_leaf

    return is_leaf(real) or special_of(real) is not None


def _bound_builtin(tx: Tracer, real: Any, owner: Any, origin: Origin) -> Value:
    """A builtin method that was bound outside: ``items.append``."""
    tx.guard_type(real, origin, "it was called")
    tx.guard(Equals(Attr(origin, "__name__"), real.__name__, cause=tx.cause("it was called")))
    of = tx.wrap(owner, Attr(origin, "__self__"))
    bound = of.get_attr(tx, real.__name__)
    bound.origin = origin
    return bound
