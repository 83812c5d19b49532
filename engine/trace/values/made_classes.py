"""Classes and descriptors that the traced code makes: a real twin made while tracing answers questions, each call makes its own."""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import operator
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr
from engine.trace.signals import TraceSignal, Unsupported
from engine.trace.support import build_class, class_by_type
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.caches import MadeCache
from engine.trace.values.cells import CellValue
from engine.trace.values.classes import ClassValue, SuperValue, class_origin, find_in_class
from engine.trace.values.functions import FunctionValue, MadeFunction
from engine.trace.values.iteration import CallOf
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import BuiltinValue, MethodOf
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.wrap import is_literal

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class _Stand:
    """Stands in a twin for a value that is not a plain Python object."""


def twin(tx: Tracer, value: Value) -> Any:
    """A real object that stands for a value inside a twin: reading it through the tracer gives the value back."""
    value = force(tx, value)
    if isinstance(value, (Const, ClassValue, BuiltinValue, Descriptor)):
        return value.held if isinstance(value, (ClassValue, BuiltinValue, Descriptor)) else value.value
    if isinstance(value, MadeFunction):
        return _stub(tx, value)
    if isinstance(value, MadeCache):
        made = value.cls(twin(tx, value.function), value.maxsize, value.typed, value.info)
        tx.known[id(made)] = (value, made)
        return made
    if value.origin is not None and value.real() is not NotImplemented:
        return value.real()
    if isinstance(value, TupleValue) and tx.is_constant(value):
        return value.python(tx)
    return _stand_in(tx, value)


def _stand_in(tx: Tracer, value: Value) -> Any:
    made: Any = _Stand()
    if isinstance(value, ObjectValue) and type(value) is ObjectValue and not value.cls.__flags__ & (1 << 20):
        made = object.__new__(value.cls)
    tx.known[id(made)] = (value, made)
    return made


def _stub(tx: Tracer, function: MadeFunction) -> Any:
    """A function that looks like one that the traced code made, and cannot be run."""
    if function.stub is not None:
        return function.stub

    def stub(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported("unknown-call", f"{function.code.co_qualname} is called while a class is made")

    try:
        annotations = {name: twin(tx, v) for name, v in function.annotations.items()}
    except NotConstant:
        annotations = {}
    stub.__name__ = function.name
    stub.__qualname__ = function.code.co_qualname
    stub.__module__ = function.namespace.name
    stub.__annotations__ = annotations
    doc = force(tx, function.get_attr(tx, "__doc__"))
    stub.__doc__ = doc.value if isinstance(doc, Const) else None
    for name, value in function.attributes.items():
        setattr(stub, name, twin(tx, value))
    tx.known[id(stub)] = (function, stub)
    function.stub = stub
    return stub


class Descriptor(Value):
    """A ``property``, ``classmethod``, ``staticmethod``, ``cached_property``, dataclass field made by the traced code.

    ``held`` is its twin, made of the twins of its arguments.
    """

    def __init__(self, held: Any, args: Args, kwargs: Words) -> None:
        self.held = held
        self.args = args
        self.kwargs = kwargs

    def type(self) -> builtins.type:
        return type(self.held)

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if isinstance(self.held, property) and name in ("getter", "setter", "deleter"):
            return MethodOf(self, name)
        if not hasattr(self.held, name):
            return super().get_attr(tx, name)
        if name in ("__get__", "__set__", "__delete__", "__set_name__"):
            if not isinstance(self.held, (property, classmethod, staticmethod)):
                raise self.refuse(f"reading the attribute {name!r}")
            return MethodOf(self, name)
        return self.part(tx, name)

    def part(self, tx: Tracer, name: str) -> Value:
        """Something that it is made of."""
        return force(tx, tx.fixed(getattr(self.held, name), name))

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if isinstance(self.held, property) and name in ("getter", "setter", "deleter"):
            parts: list[Any] = [self.held.fget, self.held.fset, self.held.fdel]
            parts[("getter", "setter", "deleter").index(name)] = twin(tx, args[0])
            values = [tx.from_python(p) for p in parts]
            return Descriptor(property(*parts), values, {})
        if name in ("__get__", "__set__", "__delete__") and not kwargs:
            from engine.trace.values.descriptors import use_descriptor

            return use_descriptor(tx, self, name, args)
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        if isinstance(self.held, staticmethod):
            return tx.fixed(self.held.__func__).call(tx, args, kwargs)
        return super().call(tx, args, kwargs)

    def children(self) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cls = dataclasses.field if isinstance(self.held, dataclasses.Field) else type(self.held)
        CallOf(cls, self.args, self.kwargs).reconstruct(cg)


def _describes(cls: Any) -> Callable[[Tracer, Args, Words], Value]:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        for value in (*args, *kwargs.values()):
            forced = force(tx, value)
            is_known = isinstance(forced, (Const, ClassValue, FunctionValue, BuiltinValue, Descriptor, MadeCache))
            if not is_known and not tx.is_constant(forced):
                raise Unsupported("unknown-call", f"{cls.__name__}() of {forced.describe()}")
        real = [twin(tx, a) for a in args]
        words = {name: twin(tx, v) for name, v in kwargs.items()}
        try:
            held = cls(*real, **words)
        except (TypeError, ValueError) as error:
            raise tx.user_exception(error) from error
        made = Descriptor(held, list(args), dict(kwargs))
        tx.known[id(held)] = (made, held)
        return made

    return rule


for _cls in (
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    functools.partialmethod,
    dataclasses.field,
    abc.abstractproperty,
):
    special(_cls)(_describes(_cls))


@special(abc.abstractmethod)
def _abstract(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, MadeFunction):
        of.set_attr(tx, "__isabstractmethod__", Const(True))
        return of
    raise Unsupported("unknown-call", f"abstractmethod() of {of.describe()}")


class MadeClass(ClassValue):
    """A class that the traced code made. ``recipe`` makes it in generated code; ``later`` are the steps taken on it since."""

    is_mutable = True

    def __init__(self, held: type, recipe: Value, cell: CellValue | None) -> None:
        super().__init__(held, None)
        self.recipe = recipe
        self.cell = cell
        self.later: list[tuple[str, Value]] = []
        self.entries: dict[str, tuple[Any, Value]] = {}
        """What its body and later steps gave it: what stands for each entry in the twin, and the value."""

    def python(self, tx: Tracer) -> Any:
        return self.held

    def given(self, name: str, entry: Any) -> Value | None:
        known = self.entries.get(name)
        if known is not None and known[0] is entry and not hasattr(type(entry), "__get__"):
            return known[1]
        return Const(entry) if is_literal(entry) else None

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        try:
            entry = twin(tx, value)
            type.__setattr__(self.held, name, entry)
        except (TypeError, AttributeError) as error:
            raise tx.user_exception(error) from error
        self.entries[name] = entry, value
        self.later.append((name, value))

    def del_attr(self, tx: Tracer, name: str) -> None:
        raise self.refuse(f"deleting the attribute {name!r}")

    def children(self) -> list[Value]:
        return [self.recipe, *(value for _, value in self.later)]

    def reconstruct(self, cg: Codegen) -> None:
        if self.cell is not None:
            cg.out.callable(lambda: cg.const(types.CellType))
            cg.out.call(0)
            cg.remember(self.cell)
            cg.out.emit("POP_TOP")
        self.recipe.reconstruct(cg)
        cg.remember(self)
        for name, value in self.later:
            if not name:
                CallOf(operator.call, [value, self]).reconstruct(cg)
                cg.out.emit("POP_TOP")
                continue
            cg.out.emit("COPY", 1)
            cg.load(value)
            cg.out.emit("SWAP", 2)
            cg.out.emit("STORE_ATTR", name)


def _register(tx: Tracer, made: MadeClass) -> MadeClass:
    tx.known[id(made.held)] = (made, made.held)
    tx.made_classes[made.held] = made
    return made


_QUIET = (type, abc.ABCMeta, enum.EnumMeta, type(typing.Protocol))
"""Metaclasses that run no code of the user's but methods which a twin's stubs refuse."""


def make_class(tx: Tracer, name: str, bases: list[Value], entries: dict[str, Value], words: Words) -> Value:
    """What a class statement does after its body has run.

    Raises:
        Unsupported: making it would run code of the user's that cannot be traced.
    """
    resolved = types.resolve_bases(tuple(twin(tx, b) for b in bases))
    chosen = {"metaclass": twin(tx, words["metaclass"])} if "metaclass" in words else {}
    try:
        meta = types.prepare_class(name, resolved, chosen)[0]
    except TypeError as error:
        raise tx.user_exception(error) from error
    rest = {word: value for word, value in words.items() if word != "metaclass"}
    if _is_quiet(meta):
        hook = _hook(resolved)
        recipe = _recipe(build_class, name, bases, entries, words if hook is None else {})
        if hook is None:
            return _made(
                tx, bases, entries, recipe, lambda given, space: build_class(name, given, space, **_real(tx, words))
            )
        if meta is not type and meta is not abc.ABCMeta:
            raise Unsupported("unknown-call", f"making a subclass runs {hook.__name__}.__init_subclass__")
        return _by_type(tx, tx.fixed(meta), name, bases, entries, rest)
    return _by_metaclass(tx, meta, name, bases, entries, rest)


def _real(tx: Tracer, words: Words) -> dict[str, Any]:
    return {word: twin(tx, v) for word, v in words.items()}


def _is_quiet(meta: type) -> bool:
    from engine.trace.state import is_trusted

    return meta in _QUIET or is_trusted(meta.__module__)


def _hook(bases: tuple[type, ...]) -> type | None:
    """The class of the user's whose ``__init_subclass__`` the making of a subclass runs."""
    from engine.trace.state import is_trusted

    for base in bases:
        found = find_in_class(base, "__init_subclass__")
        if found is not None and found[0] is not object and not is_trusted(found[0].__module__):
            return found[0]
    return None


def _made(
    tx: Tracer,
    bases: list[Value],
    entries: dict[str, Value],
    recipe: Value,
    build: Callable[[tuple[Any, ...], dict[str, Any]], Any],
) -> MadeClass:
    """The class as a value: its twin made by ``build``, from the twins of the bases and of what the body defined."""
    cell = entries.get("__classcell__")
    namespace: dict[str, Any] = {}
    late: dict[str, Any] = {}
    for key, value in entries.items():
        if key == "__classcell__":
            continue
        entry = _entry(tx, key, value)
        if isinstance(force(tx, value), ObjectValue):
            late[key], entry = entry, None
        namespace[key] = entry
    try:
        held = build(tuple(twin(tx, b) for b in bases), namespace)
    except (TraceSignal, NotConstant):
        raise
    except Exception as error:
        raise tx.user_exception(error) from error
    made = _register(tx, MadeClass(held, recipe, cell if isinstance(cell, CellValue) else None))
    if isinstance(cell, CellValue):
        cell.content = made
    made.entries = {key: (entry, entries[key]) for key, entry in namespace.items()}
    for key, entry in late.items():
        type.__setattr__(held, key, entry)
        _set_name(tx, made, key, force(tx, entries[key]))
    return made


def _by_type(
    tx: Tracer, meta: Value, name: str, bases: list[Value], entries: dict[str, Value], words: Words
) -> MadeClass:
    """``type.__new__(meta, name, bases, namespace, **words)``; a base's ``__init_subclass__`` is traced, not run."""
    assert isinstance(meta, ClassValue)
    recipe = _recipe(class_by_type, name, bases, entries, {"metaclass": meta})
    held = meta.held
    made = _made(tx, bases, entries, recipe, lambda given, space: class_by_type(name, given, space, metaclass=held))
    hook = force(tx, SuperValue(made.held, made).get_attr(tx, "__init_subclass__"))
    if _hook(made.held.__bases__) is not None:
        hook.call(tx, [], words)
    elif words:
        tx.raise_type_error(f"{name}.__init_subclass__() takes no keyword arguments")
    return made


def _by_metaclass(
    tx: Tracer, meta: type, name: str, bases: list[Value], entries: dict[str, Value], words: Words
) -> Value:
    """``meta(name, bases, namespace, **words)`` for a metaclass written in Python."""
    prepare, order = find_in_class(meta, "__prepare__"), find_in_class(meta, "mro")
    kinds = (type, abc.ABCMeta)
    is_plain = (
        next(c for c in meta.__mro__ if not isinstance(vars(c).get("__new__"), staticmethod) or c in kinds) in kinds
    )
    if (
        not is_plain
        or (prepare and prepare[0] is not type)
        or (order and order[0] is not type)
        or type(meta) is not type
    ):
        raise Unsupported("unknown-call", f"a class is made by the metaclass {meta.__name__}")
    of = tx.fixed(meta)
    assert isinstance(of, ClassValue)
    space = DictValue.of(entries)
    given: Args = [Const(name), TupleValue(list(bases)), space]
    new, init = find_in_class(meta, "__new__"), find_in_class(meta, "__init__")
    if new is not None and isinstance(new[1], staticmethod):
        function = tx.wrap(new[1].__func__, Attr(class_origin(new[0]), "__new__"))
        made = force(tx, function.call(tx, [of, *given], words))
    else:
        made = _by_type(tx, of, name, bases, entries, words)
    if isinstance(made, MadeClass) and init is not None and isinstance(init[1], types.FunctionType):
        tx.wrap(init[1], Attr(class_origin(init[0]), "__init__")).call(tx, [made, *given], words)
    return made


def _type_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``super().__new__(meta, name, bases, namespace)`` in a metaclass."""
    meta = force(tx, args[0])
    space = force(tx, args[3]) if len(args) == 4 else None
    if not isinstance(meta, ClassValue) or not isinstance(space, DictValue):
        raise Unsupported("unknown-call", "type.__new__ is called")
    bases = [force(tx, b) for b in sequence_items(tx, args[2])]
    entries = {str(key): value for key, (_, value) in space.entries.items()}
    return _by_type(tx, meta, str(force(tx, args[1]).python(tx)), bases, entries, kwargs)


def _no_hook(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``object.__init_subclass__``."""
    if kwargs:
        raise Unsupported("unknown-call", "object.__init_subclass__ is called with words")
    return Const(None)


BY_NAME["object", "__init_subclass__"] = _no_hook
special(type.__new__, abc.ABCMeta.__new__)(_type_new)


@special(type.__init__, abc.ABCMeta.__init__)
def _type_init(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return Const(None)


def _entry(tx: Tracer, key: str, value: Value) -> Any:
    forced = force(tx, value)
    if key in ("__annotations__", "__slots__", "__match_args__") and tx.is_constant(forced):
        return forced.python(tx)
    return twin(tx, forced)


def _set_name(tx: Tracer, made: MadeClass, key: str, of: Value) -> None:
    if isinstance(of, ObjectValue) and of.method(tx, "__set_name__") is not None:
        of.call_special(tx, "__set_name__", [made, Const(key)])


def _recipe(function: Any, name: str, bases: list[Value], entries: dict[str, Value], words: Words) -> Value:
    listed = DictValue.of(entries)
    return CallOf(function, [Const(name), TupleValue(list(bases)), listed], dict(words))


_STANDS_FOR_A_CLASS = (typing.NamedTuple, typing.TypedDict)
"""Functions that are named as bases."""


@special(builtins.__build_class__)
def _build_class(tx: Tracer, args: Args, kwargs: Words) -> Value:
    from engine.trace.inline import run_class_body

    body, name = force(tx, args[0]), force(tx, args[1]).python(tx)
    if not isinstance(body, MadeFunction):
        raise Unsupported("unknown-call", "a class is made from a function that came from outside")
    bases = [force(tx, b) for b in args[2:]]
    for base in (*bases, *(force(tx, v) for v in kwargs.values())):
        is_class = isinstance(base, (ClassValue, BuiltinValue)) or base.real() in _STANDS_FOR_A_CLASS
        if not is_class and not tx.is_constant(base):
            raise Unsupported("unknown-call", f"a class is made with {base.describe()}")
    for base in bases:
        if not isinstance(base, (ClassValue, BuiltinValue)) and base.real() not in _STANDS_FOR_A_CLASS:
            raise Unsupported("unknown-call", f"a class is made with the base {base.describe()}")
    entries = run_class_body(tx, body)
    return make_class(tx, str(name), bases, entries, kwargs)


def make_by_type(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``type(name, bases, namespace)``."""
    name = force(tx, args[0]).python(tx)
    namespace = force(tx, args[2])
    if not isinstance(namespace, DictValue) or not isinstance(name, str):
        raise Unsupported("unknown-call", "a class is created")
    bases = [force(tx, b) for b in sequence_items(tx, args[1])]
    if not all(isinstance(b, ClassValue) for b in bases):
        raise Unsupported("unknown-call", "a class is created")
    entries = {str(k): v for k, (_, v) in namespace.entries.items()}
    if "__module__" not in entries:
        entries["__module__"] = Const(tx.frames[-1].globals.name)
    return make_class(tx, name, bases, entries, kwargs)


def decorated(function: Any) -> Callable[[Tracer, Args, Words], Value]:
    """The rule for a class decorator that changes the class in place, or makes one like it (or takes keywords first)."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        from engine.trace.values.partials import partial_of

        of = force(tx, args[0]) if args else None
        if of is None:
            return partial_of(tx.fixed(function), [], dict(kwargs))
        words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
        if not isinstance(of, MadeClass):
            raise Unsupported("unknown-call", f"{function.__name__}() of {of.describe()}")
        tx.mutating(of)
        try:
            held = function(of.held, **words)
        except (TypeError, ValueError) as error:
            raise tx.user_exception(error) from error
        if held is not of.held:  # a class with slots is made anew
            return _register(tx, MadeClass(held, CallOf(functools.partial(function, **words), [of], {}), None))
        of.later.append(("", Const(functools.partial(function, **words)) if words else tx.fixed(function)))
        return of

    return rule


special(dataclasses.dataclass)(decorated(dataclasses.dataclass))
special(functools.total_ordering)(decorated(functools.total_ordering))


_NAMED_TUPLE: Any = vars(collections)["namedtuple"]


@special(_NAMED_TUPLE)
def _named_tuple(tx: Tracer, args: Args, kwargs: Words) -> Value:
    constants = tx.constants(args)
    words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    words.setdefault("module", tx.frames[-1].globals.name)
    try:
        held = _NAMED_TUPLE(*constants, **words)
    except (TypeError, ValueError) as error:
        raise tx.user_exception(error) from error
    recipe = CallOf(_NAMED_TUPLE, list(args), {**kwargs, "module": Const(words["module"])})
    return _register(tx, MadeClass(held, recipe, None))
