"""Exceptions raised while tracing, as values."""

from __future__ import annotations

import builtins
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from engine.bytecode.resume import InstructionOffset
from engine.ir.origin import Attr, Fixed, Origin
from engine.ir.state_guard import GlobalState
from engine.ir.value_guard import HasAttribute
from engine.trace.signals import Skip, Unsupported, UserException
from engine.trace.support import new_exception
from engine.trace.values.base import NO_DICT, NONE, Attributed, Const, Value, force, is_none
from engine.trace.values.classes import class_attribute, class_origin, find_in_class
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue, items_of, sequence_items
from engine.trace.values.wrap import is_literal, makes, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class Handling(Value):
    """What lies on the stack while ``error`` is handled: CPython keeps there what was handled before."""

    def __init__(self, error: Value) -> None:
        self.error = error

    def type(self) -> type:
        return types.NoneType

    def children(self) -> list[Value]:
        return [self.error]

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.error)


@makes(InstructionOffset)
def _offset(tx: Tracer, value: InstructionOffset) -> Value:
    return Const(value)


_HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for classes that Python code made."""


class TracebackValue(Value):
    """The traceback of an exception: only that it exists, and what it belongs to, is known."""

    def __init__(self, of: Value) -> None:
        self.of = of

    def type(self) -> type:
        return types.TracebackType

    def children(self) -> list[Value]:
        return [self.of]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        # Frames of traced calls are gone: only where the function runs as Python is each in it.
        raise Skip("unsupported-operation", f"reading the attribute {name!r} of a traceback")

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.of)
        cg.out.attribute("__traceback__")


def traceback_of(error: Value) -> Value:
    """The traceback of an exception as of now: one object until the exception is raised again."""
    if not isinstance(error, ExceptionValue):
        return TracebackValue(error)
    error.traceback = error.traceback or TracebackValue(error)
    return error.traceback


def guard_not_handling(tx: Tracer) -> None:
    """Take for granted that whoever called the frame is not handling an exception.

    Raises:
        Unsupported: it is.
    """
    if tx.is_handling_outside:
        raise Unsupported("unsupported-operation", "looking at an exception that a caller is handling")
    why = "an exception that is handled outside would be seen here"
    tx.guard(GlobalState(Fixed(torch, "torch"), "handling", False, cause=tx.cause(why)))


@special(sys.exc_info)
def _exc_info(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    current = handled(tx)
    if current is None:
        guard_not_handling(tx)
        return TupleValue([NONE, NONE, NONE])
    current = force(tx, current)
    return TupleValue([tx.fixed(current.type()), current, traceback_of(current)])


@special(sys.exception)
def _exception(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    current = handled(tx)
    if current is None:
        guard_not_handling(tx)
        return NONE
    return current


@special(traceback.clear_frames)
def _clear_frames(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    # Frames of traced calls are gone already.
    if not isinstance(force(tx, args[0]), TracebackValue) and not is_none(force(tx, args[0])):
        raise Unsupported("unknown-call", "traceback.clear_frames is called")
    return NONE


def _reads_frames(function: Any) -> Callable[[Tracer, list[Value], dict[str, Value]], Value]:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        # Frames of traced calls are gone: only where the function runs as Python is each in it.
        raise Skip("unsupported-operation", f"{function.__name__}() reads the frames of a traceback")

    return rule


for _name in "extract_stack extract_tb format_exc format_exception format_stack format_tb print_exc print_exception print_stack".split():
    special(getattr(traceback, _name))(_reads_frames(getattr(traceback, _name)))
for _name in "print_tb print_last walk_stack walk_tb".split():
    special(getattr(traceback, _name))(_reads_frames(getattr(traceback, _name)))
special(traceback.TracebackException)(_reads_frames(traceback.TracebackException))


@special(traceback.format_exception_only)
def _exception_text(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    error = force(tx, args[-1]) if args else NONE
    if (
        kwargs
        or not isinstance(error, ExceptionValue)
        or issubclass(error.cls, (SyntaxError, NameError, AttributeError))
    ):
        raise Skip("unsupported-operation", "an exception is formatted")
    if "__notes__" in error.attributes or issubclass(error.cls, BaseExceptionGroup):
        raise Skip("unsupported-operation", "an exception with notes is formatted")
    return tx.fold(traceback.format_exception_only, error.in_c(tx))


def handled(tx: Tracer) -> Value | None:
    """The exception being handled now."""
    for frame in reversed(tx.frames):
        if frame.handled:
            return frame.handled[-1]
    return None


WORDS: Mapping[type[BaseException], tuple[str, ...]] = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    ImportError: ("name", "path"),
}
"""Keywords that exceptions are created with, by class."""


def class_made(tx: Tracer, cls: type[BaseException], args: list[Value]) -> type[BaseException]:
    """The class of what calling an exception's class makes: an OSError is of the subclass for its number."""
    if cls is not OSError or not 2 <= len(args) <= 5:
        return cls
    number = force(tx, args[0])
    if not isinstance(number, Const):
        raise Unsupported("unknown-call", "OSError is created with a number that only the call knows")
    return type(OSError(number.value, ""))


class ExceptionValue(Attributed):
    """An exception. ``error`` is the Python object where a real one was raised while folding."""

    is_mutable = True

    def __init__(self, cls: type[BaseException], args: list[Value], error: BaseException | None = None) -> None:
        self.cls = cls
        self.args = args
        self.error = error
        self.attributes: dict[str, Value] = {}
        self.was_raised = False
        self.traceback: Value | None = None
        self.line = 0
        """Where the root frame raised it, or called what did."""

    def type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__}({', '.join(a.describe() for a in self.args)})"

    def key(self, tx: Tracer) -> Any:
        return self

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if self.origin is not None and name in ("__cause__", "__context__", "__suppress_context__", "__traceback__"):
            return tx.wrap(getattr(self.error, name), Attr(self.origin, name))
        match name:
            case "args":
                return TupleValue(self.args[:2] if self._keeps_files() else list(self.args))
            case "value" if issubclass(self.cls, StopIteration):
                return self.args[0] if self.args else NONE
            case "__class__":
                return tx.fixed(self.cls)
            case "__dict__" if self.attributes or self.error is not None:
                raise self.refuse("reading the attribute '__dict__'")
            case "__cause__":
                return NONE
            case "__context__":
                self._nothing_outside(tx)
                return NONE
            case "__suppress_context__":
                return Const(False)
            case "__traceback__":
                return traceback_of(self)
        if self.origin is not None and (
            name in vars(self.error) or (name in ("value", "code", "name", "obj") and hasattr(self.error, name))
        ):
            return tx.wrap(getattr(self.error, name), Attr(self.origin, name))
        if not hasattr(self.cls, name):
            if self.origin is not None:
                tx.guard(HasAttribute(self.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        own = find_in_class(self.cls, name)
        if own is not None and isinstance(own[1], (types.MemberDescriptorType, types.GetSetDescriptorType)):
            if name == "obj" and self.error is not None:
                raise self.refuse(f"reading the attribute {name!r}")
            return tx.from_python(getattr(self.made(tx), name))
        found = class_attribute(tx, self.cls, name, self)
        if found is None:
            raise self.refuse(f"reading the attribute {name!r}")
        return found

    def _keeps_files(self) -> bool:
        """Whether file names are attributes, and no arguments any more."""
        return issubclass(self.cls, OSError) and self.cls is not BlockingIOError and 3 <= len(self.args) <= 5

    def _nothing_outside(self, tx: Tracer) -> None:
        """Raised while the tracer handles nothing: what it remembers depends on whether its caller handles something."""
        if self.was_raised:
            guard_not_handling(tx)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        tx.mutating(self)
        forced = force(tx, value)
        if name == "__traceback__":
            if not (isinstance(forced, TracebackValue) and forced.of is self):
                self._set_traceback(tx, forced)
            return
        if name == "args":
            self.args = list(sequence_items(tx, value))
            return
        self.attributes[name] = value
        if name == "__cause__":
            self.attributes["__suppress_context__"] = Const(True)

    def _set_traceback(self, tx: Tracer, instead: Value) -> None:
        self.attributes.pop("__traceback__", None)
        if isinstance(instead, TracebackValue):
            self.attributes["__traceback__"] = instead
        elif not is_none(instead):
            if instead.type() is types.TracebackType:
                raise self.refuse("setting the traceback")
            tx.raise_type_error("__traceback__ must be a traceback or None")
        else:
            self.attributes["__traceback__"] = NONE
        self.line = 0

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "with_traceback":
            self.set_attr(tx, "__traceback__", args[0])
            return self
        if name == "__init__":
            self.args = list(args)
            self.take_words(tx, kwargs)
            return NONE
        if name in ("__str__", "__repr__"):
            own = find_in_class(self.cls, name)
            if own is not None and isinstance(own[1], types.FunctionType):
                return tx.wrap(own[1], Attr(class_origin(own[0]), name)).call(tx, [self, *args], kwargs)
            return tx.fold(str if name == "__str__" else repr, self.in_c(tx))
        if name == "add_note":
            return self._add_note(tx, force(tx, args[0]))
        own = find_in_class(self.cls, name)
        if own is not None and isinstance(own[1], (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return self._by_object(tx, name, args)
        return super().call_method(tx, name, args, kwargs)

    def by_c(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of the class from C, whatever classes of the user's make of it."""
        if name in ("__str__", "__repr__"):
            return tx.fold(str if name == "__str__" else repr, self.in_c(tx))
        return self.call_method(tx, name, args, kwargs)

    def take_words(self, tx: Tracer, words: dict[str, Value]) -> None:
        """What the class in C makes of the keywords that it is created with."""
        known = next((names for kind, names in WORDS.items() if issubclass(self.cls, kind)), ())
        if not known and words:
            tx.raise_type_error(f"{self.cls.__name__}() takes no keyword arguments")
        for name, value in words.items():
            if name not in known:
                raise Unsupported("unknown-call", f"{self.cls.__name__} is created with the keyword {name!r}")
            self.attributes[name] = value

    def _add_note(self, tx: Tracer, note: Value) -> Value:
        if note.type() is not str:
            tx.raise_type_error(f"note must be a str, not '{note.type().__name__}'")
        if "__notes__" not in self.attributes:
            self.set_attr(tx, "__notes__", ListValue([]))
        force(tx, self.attributes["__notes__"]).call_method(tx, "append", [note], {})
        return NONE

    def _by_object(self, tx: Tracer, name: str, args: list[Value]) -> Value:
        """A method of the class from C by its name."""
        match name:
            case "__eq__" | "__ne__":
                same = force(tx, args[0]) is self
                return Const(same == (name == "__eq__")) if same else Const(NotImplemented)
            case "__setattr__":
                self.set_attr(tx, str(force(tx, args[0]).python(tx)), args[1])
                return NONE
        raise self.refuse(f"the method {name!r}")

    def in_c(self, tx: Tracer) -> BaseException:
        """One with the same name and arguments whose class runs no Python code."""
        if self.error is not None and self.origin is None and list(self.error.args) == tx.constants(self.args):
            return self.error
        base = next(c for c in self.cls.__mro__ if not c.__flags__ & _HEAP)
        alike = self.cls if base is self.cls else type(self.cls.__name__, (base,), {"__module__": self.cls.__module__})
        made: BaseException = alike(*tx.constants(self.args))
        return made

    def made(self, tx: Tracer) -> BaseException:
        """A Python exception like this one."""
        if self.error is not None and self.origin is None:
            return self.error
        return self.cls(*(force(tx, a).python(tx) for a in self.args))

    def children(self) -> list[Value]:
        return [*self.args, *self.attributes.values()]

    def iterate(self, tx: Tracer) -> Value:
        return self._by_class(tx, "__iter__", []) or super().iterate(tx)

    def length(self, tx: Tracer) -> Value:
        return self._by_class(tx, "__len__", []) or super().length(tx)

    def _by_class(self, tx: Tracer, name: str, args: list[Value]) -> Value | None:
        own = find_in_class(self.cls, name)
        if own is None or not isinstance(own[1], types.FunctionType):
            return None
        return force(tx, tx.wrap(own[1], Attr(class_origin(own[0]), name)).call(tx, [self, *args], {}))

    def reconstruct(self, cg: Codegen) -> None:
        cg.helper(new_exception, 0)
        cg.const(self.cls)
        cg.const(self.line)
        cg.load_all(self.args)
        cg.out.call(2 + len(self.args))
        cg.remember(self)
        for name, value in (*self._folded(), *self.attributes.items()):
            cg.out.emit("COPY", 1)
            cg.load(value)
            cg.out.emit("SWAP", 2)
            cg.out.emit("STORE_ATTR", name)

    def _folded(self) -> list[tuple[str, Value]]:
        """Attributes of an exception that Python raised while folding."""
        own = vars(self.error) if self.error is not None else {}
        if not all(is_literal(v) for v in own.values()):
            raise self.refuse("rebuilding its attributes")
        if isinstance(self.error, (AttributeError, NameError)) and self.origin is None and self.error.name is not None:
            own = {**own, "name": self.error.name}
        return [(name, Const(value)) for name, value in own.items()]


def _new(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Exception.__new__(cls, ...)``."""
    cls = force(tx, args[0]).real() if args else None
    if not (isinstance(cls, type) and issubclass(cls, BaseException)) or issubclass(cls, BaseExceptionGroup):
        raise Unsupported("unknown-call", "__new__ of an exception is called with what is no plain class of exceptions")
    return ExceptionValue(class_made(tx, cls, args[1:]), list(args[1:]))


for _cls in vars(builtins).values():
    if isinstance(_cls, type) and issubclass(_cls, BaseException) and "__new__" in vars(_cls):
        special(_cls.__new__)(_new)


def tell_object(error: Value, of: Value, name: str) -> None:
    """An AttributeError that reading an attribute raised remembers whose it is, as Python notes it."""
    if not isinstance(error, ExceptionValue) or not issubclass(error.cls, AttributeError) or error.origin is not None:
        return
    if "obj" in error.attributes or "name" in error.attributes:
        return
    noted = getattr(error.error, "obj", None)
    if noted is not None and not _is_held(of, noted):
        return
    error.attributes["obj"] = of
    if getattr(error.error, "name", None) is None:
        error.attributes["name"] = Const(name)


def _is_held(value: Value, real: Any) -> bool:
    return getattr(value, "value", getattr(value, "held", None)) is real


def read(tx: Tracer, of: Value, name: str) -> Value:
    """``of.name``; an AttributeError remembers both."""
    try:
        return of.get_attr(tx, name)
    except UserException as error:
        tell_object(error.value, of, name)
        raise


def write(tx: Tracer, of: Value, name: str, value: Value | None) -> None:
    """``of.name = value``, ``del of.name`` for None; an AttributeError remembers what this version of Python notes."""
    try:
        if value is None:
            of.del_attr(tx, name)
        else:
            of.set_attr(tx, name, value)
    except UserException as error:
        _tell_writing(error.value, of, name)
        raise


def _tell_writing(error: Value, of: Value, name: str) -> None:
    if _WRITES_ARE_NOTED or (NO_DICT and isinstance(error, ExceptionValue) and str(error.error).endswith(NO_DICT)):
        tell_object(error, of, name)
        return
    if not isinstance(error, ExceptionValue) or error.origin is not None or "obj" in error.attributes:
        return
    if isinstance(error.error, AttributeError) and error.error.obj is None:
        error.error.name = None
        error.attributes["obj"] = NONE


def _notes_writes() -> bool:
    class Plain: ...

    try:
        del Plain().missing  # type: ignore[attr-defined]
    except AttributeError as error:
        return error.name is not None
    return False


_WRITES_ARE_NOTED = _notes_writes()


def _is_exception(real: Any) -> bool:
    return isinstance(real, BaseException)


@wraps_if(15, _is_exception)
def _real_exception(tx: Tracer, real: BaseException, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was looked at")
    args = items_of(tx, real.args, Attr(origin, "args"))
    made = ExceptionValue(type(real), args, real)
    made.origin = origin
    return made
