"""Variables of exceptions and tracebacks, and rules for ``sys.exc_info`` and the like."""

from __future__ import annotations

import builtins
import inspect
import sys
import traceback
import types
from collections.abc import Mapping
from typing import Any

import torch

from engine.bytecode.resume_functions import InstructionOffset
from engine.frame_code.codegen_runtime.objects import new_exception
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.introspection.python_objects import is_heap_type
from engine.ir.register_once import register_each
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import (
    NONE,
    Args,
    AttributeDictVariable,
    ConstantVariable,
    Kwargs,
    Variable,
    is_none,
    realize,
)
from engine.trace.variables.builder import is_literal, register_sourceless_builder, register_subclass_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.reconstruct_calls import emit_store_attributes
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, read_items, sequence_items
from engine.trace.variables.objects.attribute_binding import class_attribute
from engine.trace.variables.objects.class_lookup import (
    call_python_method,
    call_python_new,
    find_in_class,
    is_data_descriptor,
)
from engine.trace.variables.objects.constructor_registry import register_constructor
from engine.trace.variables.slotted_type import state


class ExcInfoVariable(Variable):
    """Stack entry that PUSH_EXC_INFO leaves while ``exception`` is handled.

    CPython stores the previously handled exception there.
    """

    cls = types.NoneType
    exception: Variable

    @property
    def handled_exception(self) -> Variable:  # type: ignore[override]
        return self.exception

    child_fields = ("exception",)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.exception)


register_sourceless_builder(InstructionOffset)(lambda tx, value: ConstantVariable(value))


class TracebackVariable(Variable):
    """The traceback of an exception; only its existence and its exception are known."""

    cls = types.TracebackType
    exception: Variable

    child_fields = ("exception",)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        # Inlined calls have no frames; only the uncompiled function has the full traceback.
        raise SkipFrame("traceback", f"reading the attribute {name!r} of a traceback")

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.exception)
        cg.body.attribute("__traceback__")


def traceback_of(error: Variable) -> Variable:
    """Return the current traceback of an exception; one object until the next raise."""
    exception = error.as_exception()
    if exception is None:
        return TracebackVariable(error)
    exception.traceback = exception.traceback or TracebackVariable(exception)
    return exception.traceback


def guard_not_in_except_block(tx: Tracer) -> None:
    """Guard that the caller of the frame is not inside an except block.

    Raises:
        Unsupported: the caller is handling an exception.
    """
    if tx.call_stack.called_in_except_block:
        raise Unsupported("exception-handling", "reading an exception that a caller is handling")
    why = "the handled exception is read, and the caller was not in an except block"
    tx.guard(GlobalStateMatch, ConstantSource(torch, "torch"), "handling", False, why=why)


@register_rule(sys.exc_info)
def _exc_info(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    current = current_exception(tx)
    if current is None:
        guard_not_in_except_block(tx)
        return TupleVariable([NONE, NONE, NONE])
    current = realize(tx, current)
    return TupleVariable([tx.wrap_static(current.python_type()), current, traceback_of(current)])


@register_rule(sys.exception)
def _exception(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    current = current_exception(tx)
    if current is None:
        guard_not_in_except_block(tx)
        return NONE
    return current


@register_rule(traceback.clear_frames)
def _clear_frames(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Inlined calls have no frames to clear.
    if not isinstance(realize(tx, args[0]), TracebackVariable) and not is_none(realize(tx, args[0])):
        raise Unsupported("traceback", "traceback.clear_frames is called")
    return NONE


_FRAME_READERS = (
    "extract_stack extract_tb format_exc format_exception format_stack format_tb print_exc print_exception print_stack "
    "print_tb print_last walk_stack walk_tb TracebackException"
).split()


@register_each(register_rule, *(getattr(traceback, name) for name in _FRAME_READERS))
def _read_traceback_frames(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Inlined calls have no frames; only the uncompiled function has the full traceback.
    raise SkipFrame("traceback", f"{function.__name__}() reads the frames of a traceback")


@register_rule(traceback.format_exception_only)
def _exception_text(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    error = realize(tx, args[-1]).as_exception() if args else None
    if kwargs or error is None or issubclass(error.cls, (SyntaxError, NameError, AttributeError)):
        raise SkipFrame("traceback", "an exception is formatted")
    if "__notes__" in error.attributes or issubclass(error.cls, BaseExceptionGroup):
        raise SkipFrame("traceback", "an exception with notes is formatted")
    return tx.fold_constant(traceback.format_exception_only, error.as_builtin_exception(tx))


def current_exception(tx: Tracer) -> Variable | None:
    """Return the exception that is being handled, or None."""
    for frame in reversed(tx.call_stack.frames):
        if frame.exc_stack:
            return frame.exc_stack[-1]
    return None


EXCEPTION_KEYWORDS: Mapping[type[BaseException], tuple[str, ...]] = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    ImportError: ("name", "path"),
}
"""Keyword arguments of exception constructors, by class."""


def resolve_exception_class(tx: Tracer, cls: type[BaseException], args: Args) -> type[BaseException]:
    """Return the class of a constructed exception; errno selects the subclass of OSError."""
    if cls is not OSError or not 2 <= len(args) <= 5:
        return cls
    number = realize(tx, args[0])
    if not number.is_constant:
        raise Unsupported("exception-creation", "OSError is created with an errno that is not known while tracing")
    return type(OSError(number.constant, ""))


class ExceptionVariable(AttributeDictVariable):
    """An exception; ``real_exception`` is the Python object if constant folding raised one.

    An error that Python words itself has ``has_unknown_text``: only its class is known while tracing.
    """

    cls: type[BaseException]
    known_args: Args
    real_exception: BaseException | None = None
    source: Source | None = state(None)
    has_unknown_text: bool = state(False)
    raised_at: int = state(0)
    """Number of the root frame's instruction that raised it first; 0 if not raised."""
    traceback: Variable | None = state(None)
    raise_line: int = state(0)
    """Line of the root frame that raised it or called the raising function; 0 if not raised."""

    is_mutable = True

    @property
    def args(self) -> list[Variable]:
        """The arguments.

        Raises:
            Unsupported: only Python knows the text.
        """
        if self.has_unknown_text:
            raise self._known_to_python("the text")
        return self.known_args

    @args.setter
    def args(self, args: Args) -> None:
        self.known_args, self.has_unknown_text = args, False

    def _known_to_python(self, what: str) -> Unsupported:
        """Return the graph break before the instruction that raised it: Python raises it instead."""
        reason = f"reading {what} of a {self.cls.__name__} that Python itself raises"
        return Unsupported("exception-handling", reason, created_at=self.raised_at)

    def as_exception(self) -> ExceptionVariable:
        return self

    def describe(self) -> str:
        return f"{self.cls.__name__}({', '.join(a.describe() for a in self.known_args)})"

    @property
    def text(self) -> str:
        """The exception as a traceback ends: ``ValueError: no rows``."""
        message = self.known_args[0].resolved if len(self.known_args) == 1 else self
        is_text = message.is_constant and message.python_type() is str
        if not is_text:
            return f"{self.describe()} is raised"
        text = repr(message.constant) if self.cls.__str__ is KeyError.__str__ else message.constant
        return f"{self.cls.__name__}: {text}"

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in self.attributes:
            return self.attributes[name]
        if self.source is not None and name in ("__cause__", "__context__", "__suppress_context__", "__traceback__"):
            return tx.wrap(getattr(self.real_exception, name), AttrSource(self.source, name))
        match name:
            case "args":
                return TupleVariable(self.args[:2] if self._has_filename_attributes() else list(self.args))
            case "value" if issubclass(self.cls, StopIteration):
                return self.args[0] if self.args else NONE
            case "__class__":
                return tx.wrap_static(self.cls)
            case "__dict__" if self.attributes or self.real_exception is not None:
                raise self.unsupported_attribute("reading", "__dict__")
            case "__cause__":
                return NONE
            case "__context__":
                if self.raised_at:  # outside a handler; else ``__context__`` would depend on the caller
                    guard_not_in_except_block(tx)
                return NONE
            case "__suppress_context__":
                return ConstantVariable(False)
            case "__traceback__":
                return traceback_of(self)
        if self.source is not None and (
            name in vars(self.real_exception)
            or (name in ("value", "code", "name", "obj") and hasattr(self.real_exception, name))
        ):
            return tx.wrap(getattr(self.real_exception, name), AttrSource(self.source, name))
        if self.real_exception is not None and name in vars(self.real_exception):
            return tx.from_python(getattr(self.real_exception, name))
        if not hasattr(self.cls, name):
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        entry = find_in_class(self.cls, name)
        if entry is not None and is_data_descriptor(entry.raw) and not is_heap_type(entry.owner):
            if self._has_context_of_python():
                raise self._known_to_python(name)
            return tx.from_python(getattr(self.to_real_exception(tx), name))
        attribute = class_attribute(tx, self.cls, name, self)
        if attribute is None:
            raise self.unsupported_attribute("reading", name)
        return attribute

    def _has_filename_attributes(self) -> bool:
        """Return True if file names are attributes of an OSError and not in ``args``."""
        return issubclass(self.cls, OSError) and self.cls is not BlockingIOError and 3 <= len(self.args) <= 5

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        tx.side_effects.record_mutation(self)
        forced = realize(tx, value)
        if name == "__traceback__":
            self._set_traceback(tx, forced)
            return
        if name == "args":
            self.args = list(sequence_items(tx, value))
            return
        self.attributes[name] = value
        if name == "__cause__":
            self.attributes["__suppress_context__"] = ConstantVariable(True)

    def _set_traceback(self, tx: Tracer, instead: Variable) -> None:
        is_traced = isinstance(instead, TracebackVariable)
        if is_traced and instead.child_variables() == [self]:
            return
        self.attributes.pop("__traceback__", None)
        if is_traced:
            self.attributes["__traceback__"] = instead
        elif not is_none(instead):
            if instead.python_type() is types.TracebackType:
                raise self.unsupported("setting the traceback", "traceback")
            tx.raise_type_error("__traceback__ must be a traceback or None")
        else:
            self.attributes["__traceback__"] = NONE
        self.raise_line = 0

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "with_traceback":
            self.set_attr(tx, "__traceback__", args[0])
            return self
        if name == "__init__":
            self.args = list(args)
            self.set_keyword_attributes(tx, kwargs)
            return NONE
        if name in ("__str__", "__repr__"):
            own_text = call_python_method(tx, self.cls, name, [self, *args], kwargs)
            return own_text or tx.fold_constant(str if name == "__str__" else repr, self.as_builtin_exception(tx))
        if name == "add_note":
            return self._add_note(tx, realize(tx, args[0]))
        entry = find_in_class(self.cls, name)
        if entry is not None and not is_heap_type(entry.owner):
            return self._call_c_slot(tx, name, args)
        return super().call_method(tx, name, args, kwargs)

    def call_c_method(self, tx: Tracer, owner: type, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        if name in ("__str__", "__repr__") and issubclass(owner, BaseException):
            return tx.fold_constant(str if name == "__str__" else repr, self.as_builtin_exception(tx))
        return self.call_method(tx, name, args, kwargs)

    def set_keyword_attributes(self, tx: Tracer, keywords: dict[str, Variable]) -> None:
        """Set the attributes that the C class takes as keyword arguments."""
        attribute_names = next((names for kind, names in EXCEPTION_KEYWORDS.items() if issubclass(self.cls, kind)), ())
        if not attribute_names and keywords:
            tx.raise_type_error(f"{self.cls.__name__}() takes no keyword arguments")
        for name, value in keywords.items():
            if name not in attribute_names:
                raise Unsupported("exception-creation", f"{self.cls.__name__} is created with the keyword {name!r}")
            self.attributes[name] = value

    def _add_note(self, tx: Tracer, note: Variable) -> Variable:
        if note.python_type() is not str:
            tx.raise_type_error(f"note must be a str, not '{note.python_type().__name__}'")
        if "__notes__" not in self.attributes:
            self.set_attr(tx, "__notes__", ListVariable([]))
        realize(tx, self.attributes["__notes__"]).call_method(tx, "append", [note], {})
        return NONE

    def _call_c_slot(self, tx: Tracer, name: str, args: Args) -> Variable:
        """Implement ``__eq__``, ``__ne__`` and ``__setattr__`` of the C class."""
        match name:
            case "__eq__" | "__ne__":
                same = realize(tx, args[0]) is self
                return ConstantVariable(same == (name == "__eq__")) if same else ConstantVariable(NotImplemented)
            case "__setattr__":
                self.set_attr(tx, str(realize(tx, args[0]).as_python_constant(tx)), args[1])
                return NONE
        raise self.unsupported_method(name)

    def as_builtin_exception(self, tx: Tracer) -> BaseException:
        """Return a real exception with this class name and these args that runs no Python code."""
        if (
            self.real_exception is not None
            and self.source is None
            and list(self.real_exception.args) == tx.as_python_constants(self.args)
        ):
            return self.real_exception
        base = next(c for c in self.cls.__mro__ if not is_heap_type(c))
        namespace = {"__module__": self.cls.__module__}
        builtin_cls = base if base is self.cls else type(self.cls.__name__, (base,), namespace)
        exception: BaseException = builtin_cls(*tx.as_python_constants(self.args))
        return exception

    def to_real_exception(self, tx: Tracer) -> BaseException:
        """Return a real exception of this class with the same arguments."""
        if self.real_exception is not None and self.source is None:
            return self.real_exception
        exception: BaseException = self.cls(*tx.as_python_constants(self.args))
        return exception

    def child_variables(self) -> list[Variable]:
        return [*self.known_args, *self.attributes.values()]

    def get_iterator(self, tx: Tracer) -> Variable:
        return call_python_method(tx, self.cls, "__iter__", [self]) or super().get_iterator(tx)

    def length(self, tx: Tracer) -> Variable:
        return call_python_method(tx, self.cls, "__len__", [self]) or super().length(tx)

    def _has_context_of_python(self) -> bool:
        """Return True if Python may have set ``name`` and ``obj`` of an error about a name."""
        return bool(self.raised_at) and issubclass(self.cls, (AttributeError, NameError))

    def reconstruct(self, cg: PyCodegen) -> None:
        if self._has_context_of_python():
            raise self._known_to_python("the context")
        cg.call(new_exception, self.cls, self.raise_line, *self.args)
        cg.cache_top(self)
        emit_store_attributes(cg, (*self._folded_attributes(), *self.attributes.items()))

    def _folded_attributes(self) -> list[tuple[str, Variable]]:
        """Return the attributes of an exception that constant folding raised."""
        attributes = vars(self.real_exception) if self.real_exception is not None else {}
        if not all(is_literal(v) for v in attributes.values()):
            raise self.unsupported("rebuilding its attributes", "rebuild-value")
        return [(name, ConstantVariable(value)) for name, value in attributes.items()]


@register_constructor(10, lambda cls: issubclass(cls, BaseException))
def _construct_exception(tx: Tracer, of: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Run ``__new__`` and ``__init__`` of an exception class."""
    cls = of.as_python_object()
    if issubclass(cls, BaseExceptionGroup):
        raise Unsupported("exception-creation", f"the group of exceptions {cls.__qualname__} is created")
    exception = call_python_new(tx, of, args, kwargs)
    if exception is not None and not issubclass(exception.python_type(), cls):
        return exception
    exception = exception or ExceptionVariable(resolve_exception_class(tx, cls, args), args)
    ran = call_python_method(tx, cls, "__init__", [exception, *args], kwargs)
    error = exception.as_exception()
    if ran is None and error is not None:
        error.set_keyword_attributes(tx, kwargs)
    return exception


def _exception_new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``Exception.__new__(cls, ...)``."""
    cls = realize(tx, args[0]).as_class() if args else None
    if cls is None or not issubclass(cls, BaseException) or issubclass(cls, BaseExceptionGroup):
        raise Unsupported("exception-creation", "__new__ of an exception is called without a plain exception class")
    return ExceptionVariable(resolve_exception_class(tx, cls, args[1:]), list(args[1:]))


for _, _cls in inspect.getmembers(builtins, inspect.isclass):
    if issubclass(_cls, BaseException) and "__new__" in vars(_cls):
        register_rule(_cls.__new__)(_exception_new)


@register_subclass_builder(15, BaseException, why="it was read")
def _real_exception(tx: Tracer, real: BaseException, source: Source) -> Variable:
    args = read_items(tx, real.args, AttrSource(source, "args"))
    exception = ExceptionVariable(type(real), args, real)
    exception.source = source
    return exception


def to_exception(tx: Tracer, value: Variable) -> ExceptionVariable:
    """Return the exception that ``raise value`` raises."""
    cls = value.as_class()
    if cls is not None and issubclass(cls, BaseException):
        value = realize(tx, value.call(tx, [], {}))
        if not issubclass(value.python_type(), BaseException):
            tx.raise_type_error(
                f"calling {cls!r} should have returned an instance of BaseException, not {value.python_type()!r}"
            )
    exception = value.as_exception()
    if issubclass(value.python_type(), BaseException) and (exception is None or exception.source is not None):
        raise Unsupported("exception-handling", f"raising a {value.describe()} that was created outside the function")
    return exception or tx.raise_type_error("exceptions must derive from BaseException")
