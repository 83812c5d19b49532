"""``functools.partial``, also of a subclass and of a second import of its module: made in traced code, or met from outside."""

from __future__ import annotations

import builtins
import functools
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Attr, Origin
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force, full_type_name, is_none
from engine.trace.values.classes import MADE_BY, ClassValue, find_in_class, imported_first
from engine.trace.values.mappings import DictValue
from engine.trace.values.methods import MethodOf
from engine.trace.values.objects import ObjectValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.shown import Shown, shown
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _base_of(cls: builtins.type) -> Any:
    """The class from C among the bases of a class of partial functions; None for any other class."""
    return next((b for b in cls.__mro__ if b is functools.partial or imported_first(b) is functools.partial), None)


class PartialValue(ObjectValue):
    """A ``functools.partial``: what it calls, and the arguments that it has already."""

    def __init__(
        self,
        function: Value,
        positional: TupleValue,
        keywords: DictValue,
        cls: builtins.type = functools.partial,
        origin: Origin | None = None,
        held: Any = NotImplemented,
    ) -> None:
        super().__init__(cls, origin, held)
        self.function = function
        self.positional = positional
        self.keywords = keywords
        self._is_shown = False

    @property
    def words(self) -> Words:
        """The keyword arguments by name."""
        return {str(k): v for k, (_, v) in self.keywords.entries.items()}

    def describe(self) -> str:
        return self.cls.__name__

    def method(self, tx: Tracer, name: str) -> Value | None:
        return MethodOf(self, name) if self._is_from_c(name) else super().method(tx, name)

    def _is_from_c(self, name: str) -> bool:
        found = find_in_class(self.cls, name)
        return found is not None and found[0] is _base_of(self.cls)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__dict__" or not self._is_from_c(name):
            return super().get_attr(tx, name)
        match name:
            case "func":
                return self.function
            case "args":
                return self.positional
            case "keywords":
                return self.keywords
        return MethodOf(self, name) if callable(getattr(self.cls, name)) else tx.fold(getattr, self.cls, name)

    def sets_plainly(self, base: builtins.type) -> bool:
        return base is _base_of(self.cls)

    def del_attr(self, tx: Tracer, name: str) -> None:
        if name == "__dict__":
            tx.raise_type_error("cannot delete __dict__")
        super().del_attr(tx, name)

    def deletes_plainly(self, base: builtins.type) -> bool:
        return base is _base_of(self.cls)

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        if name in ("func", "args", "keywords"):
            tx.raise_error(AttributeError, "readonly attribute")
        super().set_plainly(tx, name, value)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        own = self.get_attr(tx, name) if not name.startswith("object.") else None
        if own is None or (isinstance(own, MethodOf) and own.of is self):
            return self.builtin_method(tx, name, args, kwargs)
        return force(tx, own).call(tx, args, kwargs)

    def builtin_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        """A method of the class from C."""
        match name:
            case "__call__":
                return self.call_through(tx, args, kwargs)
            case "__repr__":
                return Const(self._text(tx))
            case "__reduce__":
                return self._reduced(tx)
            case "__setstate__" if len(args) == 1:
                return self._set_state(tx, force(tx, args[0]))
        return super().call_method(tx, name, args, kwargs)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        if not self._is_from_c("__call__"):
            return super().call(tx, args, kwargs)
        return self.call_through(tx, args, kwargs)

    def call_through(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        """Call the function with its arguments and these."""
        function = force(tx, self.function)
        if tx.direct is self:
            tx.direct = function
        if any(force(tx, key).type() is not str for key, _ in self.keywords.entries.values()):
            tx.raise_type_error("keywords must be strings")
        return function.call(tx, [*self.positional.items, *args], {**self.words, **kwargs})

    def _text(self, tx: Tracer) -> str:
        real: Any = functools.partial(_ShownFunction(tx, self.function))
        name = f"functools.{self.cls.__name__}" if _base_of(self.cls) is self.cls else full_type_name(self.cls)
        if self._is_shown:
            return "..."
        self._is_shown = True
        try:
            args = tuple(shown(tx, item) for item in self.positional.items)
            words = {shown(tx, k): shown(tx, v) for k, v in self.keywords.entries.values()}
            real.__setstate__((real.func, args, words, None))
            return name + repr(real).removeprefix("functools.partial")
        finally:
            self._is_shown = False

    def _attributes(self, tx: Tracer) -> Value:
        own = self.attributes_now(tx)
        return DictValue(dict(own)) if own else NONE

    def _reduced(self, tx: Tracer) -> Value:
        state = TupleValue([self.function, self.positional, self.keywords, self._attributes(tx)])
        return TupleValue([tx.fixed(self.cls), TupleValue([self.function]), state])

    def _set_state(self, tx: Tracer, state: Value) -> Value:
        parts = [force(tx, i) for i in sequence_items(tx, state)] if issubclass(state.type(), tuple) else []
        function, args, words, attributes = parts if len(parts) == 4 else [NONE] * 4
        fits = not function.lacks("__call__") and issubclass(args.type(), tuple)
        if not fits or not (is_none(words) or issubclass(words.type(), dict)):
            tx.raise_type_error("invalid partial state")
        if self.origin is not None:
            raise self.refuse("__setstate__ of one from outside")
        tx.mutating(self)
        self.function = function
        self.positional = args if type(args) is TupleValue and args.cls is tuple else TupleValue(_inside(args, tx))
        self.keywords = DictValue({}) if is_none(words) else _plain_dict(words)
        for name in self.attributes_now(tx):
            self.write(tx, name, None)
        for key, value in [] if is_none(attributes) else tx.entries(attributes).items():
            self.write(tx, key, value)
        return NONE

    def children(self) -> list[Value]:
        return [self.function, self.positional, self.keywords, *super().children()]

    def reconstruct(self, cg: Codegen) -> None:
        if cg.is_reaching(self) or not all(isinstance(key, str) for key in self.keywords.entries):
            raise Unsupported(
                "side-effect", "rebuilding a partial function that holds itself, or odd keywords, after the graph"
            )
        cg.helper(
            functools.partial.__new__ if issubclass(self.cls, functools.partial) else _base_of(self.cls).__new__, 0
        )
        cg.const(self.cls)
        cg.load_all([self.function, *self.positional.items, *self.words.values()])
        cg.call_keywords(2 + len(self.positional.items), tuple(self.words))
        cg.out.emit("COPY", 1)
        self.fill(cg)


class _ShownFunction(Shown):
    """What a partial function calls, on its way into text."""

    def __call__(self) -> None:
        raise TypeError


def _inside(value: Value, tx: Tracer) -> Args:
    inner = getattr(value, "inner", value)
    return list(sequence_items(tx, inner))


def _plain_dict(value: Value) -> DictValue:
    inner = getattr(value, "inner", value)
    if not isinstance(inner, DictValue):
        raise value.refuse("use as keyword arguments")
    return inner if inner.cls is dict and inner is value else DictValue(dict(inner.entries))


def partial_of(function: Value, args: Args, kwargs: Words, cls: builtins.type = functools.partial) -> PartialValue:
    """A new partial function."""
    words = DictValue({name: (Const(name), value) for name, value in kwargs.items()})
    return PartialValue(function, TupleValue(list(args)), words, cls)


def _made(tx: Tracer, cls: Any, args: Args, kwargs: Words) -> Value:
    if not args:
        tx.raise_type_error("type 'partial' takes at least one argument")
    inner = force(tx, args[0])
    if inner.lacks("__call__"):
        tx.raise_type_error("the first argument must be callable")
    # A partial function of a partial function calls what is inside, unless attributes make it more than that.
    if type(inner) is PartialValue and _base_of(inner.cls) is _base_of(cls) and not inner.attributes_now(tx):
        inner_words = {**inner.words, **kwargs}
        return partial_of(inner.function, [*inner.positional.items, *args[1:]], inner_words, cls)
    return partial_of(inner, list(args[1:]), kwargs, cls)


MADE_BY[functools.partial] = _made


@special(functools.partial.__new__)
def _new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    cls = force(tx, args[0]) if args else NONE
    if not isinstance(cls, ClassValue) or _base_of(cls.held) is None:
        raise Unsupported("unknown-call", "partial.__new__ is called")
    return _made(tx, cls.held, args[1:], kwargs)


def _is_partial(real: Any) -> bool:
    return _base_of(type(real)) is not None


@wraps_if(20, _is_partial)
def _partial(tx: Tracer, real: functools.partial[Any], origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was called")
    args: Any = tx.wrap(real.args, Attr(origin, "args"))
    kwargs: Any = tx.wrap(real.keywords, Attr(origin, "keywords"))
    return PartialValue(tx.wrap(real.func, Attr(origin, "func")), args, kwargs, type(real), origin, real)
