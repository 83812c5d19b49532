"""State of tracing one frame: Dynamo's OutputGraph and InstructionTranslator.

Each part of the state is an object of its own: graph, guards, side effects, call stack and others. ``Tracer`` holds
these objects, and has the methods that need several of them. ``interpreter_loop`` runs the instructions.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any, NoReturn, TypeVar

from engine.ir.compiler_protocol import CompileRequest
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.python_values import IdMatch, TypeMatch
from engine.ir.node_metadata import NodeProvenance
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ConstantSource
from engine.ir.user_code_files import innermost_user_span
from engine.options import Options
from engine.records.bytecode import Span
from engine.trace.exc import TracerException, Unsupported, UserException
from engine.trace.fake_tensors.shared_inputs import SharedInputs
from engine.trace.frame import Frame
from engine.trace.graph_builder import GraphBuilder
from engine.trace.interpreter_loop import run_frame
from engine.trace.state import (
    CallStack,
    GraphFallback,
    GuardSet,
    InputTensors,
    InstructionCounter,
    KnownObjects,
    RandomState,
    SideEffects,
    TorchState,
    TraceSymbols,
)
from engine.trace.variables.base import ConstantVariable, LazyVariable, NotPythonConstant, UserErrors, Variable, realize
from engine.trace.variables.builder import build_sourceless, build_variable
from engine.trace.variables.callables.methods import BoundMethodVariable, ConstantMethodVariable
from engine.trace.variables.containers.dicts import mapping_entries
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.exceptions.exceptions import ExceptionVariable
from engine.trace.variables.objects.attribute_binding import enum_attribute

_State = TypeVar("_State")


class Tracer:
    """State of tracing one frame once: one owner for each concern.

    - ``call_stack``: frames, inlined calls and suspended generators. ``instruction_counter``: how many instructions were
      traced, and what runs at one of them.
    - ``graph``: the graph so far. ``guards``: the guards so far. ``symbols``: the shape environment and its symbols.
    - ``inputs``: input tensors as they were at entry. ``objects``: variables of the user's objects, by identity.
    - ``torch_state``: modes and flags of torch. ``random_state``: use of Python's random numbers.
    - ``side_effects``: what generated code applies after the graph. ``fallback``: when Python runs the original code
      although the graph was compiled.

    The loop that runs instructions is ``interpreter_loop``; rules take the tracer as ``tx``.
    """

    def __init__(self, request: CompileRequest, options: Options) -> None:
        self.request = request
        self.options = options
        self.call_stack = CallStack()
        self.instruction_counter = InstructionCounter()
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.inputs = InputTensors()
        self.objects = KnownObjects()
        self.symbols = TraceSymbols(self.guard_cause)
        self.torch_state = TorchState()
        self.random_state = RandomState()
        self.side_effects = SideEffects(self.instruction_counter)
        self.fallback = GraphFallback(self.call_stack, self.instruction_counter)
        self._module_states: dict[type, Any] = {}

    def state_of(self, kind: type[_State]) -> _State:
        """Return this trace's instance of ``kind``, a class of state that only one module uses."""
        state: _State | None = self._module_states.get(kind)
        if state is None:
            state = self._module_states[kind] = kind()
        return state

    # Release and current position.

    def release(self) -> None:
        """Release references to the objects of the call.

        The tracer itself may live longer: variables that read items on demand reference it, and a backend may query it
        for guards.
        """
        self.request = replace(self.request, arguments={})
        self.objects.release()
        self.side_effects.release()
        self.instruction_counter.release()
        self.call_stack.open_generators.clear()
        self._module_states.clear()

    def in_subgraph(self) -> bool:
        """Return True if operations go into the graph of a subgraph body."""
        return self.graph.outer is not None

    @property
    def frame(self) -> Frame:
        """Innermost active frame."""
        return self.call_stack.frames[-1]

    def user_stack(self) -> tuple[Span, ...]:
        """Return the user's call stack, outermost first."""
        return self.call_stack.user_stack()

    def node_provenance(self, note: str = "") -> NodeProvenance:
        """Return the provenance of a node created now."""
        stack = self.call_stack.user_stack()
        module_path = self.call_stack.frames[-1].module_path if self.call_stack.frames else ""
        return NodeProvenance((), innermost_user_span(stack), stack, module_path, note)

    def guard_cause(self, why: str) -> Cause:
        """Return the cause of a guard added now."""
        stack = self.call_stack.user_stack()
        return Cause(innermost_user_span(stack), stack, why)

    # Guards and wrapping.

    def guard(self, kind: Callable[..., Guard], *facts: Any, why: str) -> None:
        """Add a guard of class ``kind``; ``facts`` are its source and the expected value."""
        self.guards.add(kind(*facts, cause=self.guard_cause(why)))

    def guard_type(self, real: Any, source: Source, why: str) -> None:
        """Guard the exact type of an object."""
        self.guard(TypeMatch, source, type(real), why=why)

    def guard_identity(self, real: Any, source: Source, why: str) -> None:
        """Add an ``IdMatch`` guard on an object."""
        self.state_of(SharedInputs).require_identity(real)
        self.guard(IdMatch, source, real, why=why)

    def wrap(self, real: Any, source: Source) -> Variable:
        """Return the variable of a real object and add the guards that this needs.

        There is one variable per object.
        """
        variable = self.objects.variables_by_id.get(id(real))
        if variable is None:
            value = build_variable(self, real, source)
            if value.is_mutable:
                self.objects.variables_by_id[id(real)] = (value, real)
            elif not value.is_constant and value.as_python_object() is NotImplemented:
                self.objects.real_by_variable_id[id(value)] = (value, real)
            return value
        value = variable[0]
        if value.source is not None and value.source != source:
            if (separate := self.state_of(SharedInputs).separate(self, value, real, source)) is not None:
                return self.wrap(separate, source)
            why = "both expressions gave the same object, so a mutation through one is visible through the other"
            self.guards.add(SameObject(source, value.source, True, cause=self.guard_cause(why)))
        return value

    def guard_same_object(self, left: Variable, right: Variable, same: bool) -> None:
        """Guard that two input objects are, or are not, the same object."""
        self.state_of(SharedInputs).require_identity(self.objects.real_object(left), self.objects.real_object(right))
        if left.source is not None and right.source is not None and left.source != right.source:
            self.guard(SameObject, left.source, right.source, same, why="the two objects were compared by identity")

    def make_lazy(self, real: Any, source: Source) -> Variable:
        """Return a lazy variable: the object is wrapped at its first use."""
        return LazyVariable(real, source)

    def wrap_static(self, real: Any, text: str = "") -> Variable:
        """Return the variable of an object that does not change at run time.

        Examples are torch functions and classes.
        """
        name = text or getattr(real, "__qualname__", None) or getattr(real, "__name__", None) or type(real).__name__
        return self.wrap(real, ConstantSource(real, name))

    def from_python(self, value: Any) -> Variable:
        """Return a new variable for a plain Python object created while tracing."""
        return build_sourceless(self, value)

    def fold_constant(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Variable:
        """Call a pure function on Python constants; the traced code raises its exception."""
        try:
            return self.from_python(fn(*args, **kwargs))
        except (RecursionError, MemoryError, NotPythonConstant, TracerException):
            raise
        except Exception as error:
            raise self.make_user_exception(error) from error

    def as_python_constants(self, values: Iterable[Variable]) -> list[Any]:
        """Return the Python constants of variables.

        Raises:
            NotPythonConstant: one is not a constant.
        """
        return [realize(self, v).as_python_constant(self) for v in values]

    def as_python_keywords(self, values: Mapping[str, Variable]) -> dict[str, Any]:
        """Return the Python constants of keyword arguments, like ``as_python_constants``."""
        return dict(zip(values, self.as_python_constants(values.values()), strict=True))

    def unpack_iterable(self, value: Variable) -> list[Variable]:
        """Return the items of an iterable."""
        return list(sequence_items(self, value))

    def unpack_string_mapping(self, value: Variable) -> dict[str, Variable]:
        """Return the entries of a mapping with string keys."""
        return {str(realize(self, key).as_python_constant(self)): item for key, item in mapping_entries(self, value)}

    def is_python_constant(self, value: Variable) -> bool:
        """Return True if ``as_python_constant`` succeeds."""
        try:
            realize(self, value).as_python_constant(self)
        except NotPythonConstant:
            return False
        return True

    def get_constant_attr(self, value: ConstantVariable, name: str) -> Variable:
        """Return an attribute of a constant: a method to fold, or a plain variable."""
        is_enum = isinstance(value.value, enum.Enum)
        if is_enum and (own := enum_attribute(self, value, name)) is not None:
            return own
        with UserErrors(self, AttributeError):
            attribute = getattr(value.value, name)
        if is_enum and isinstance(attribute, MethodType) and attribute.__self__ is value.value:
            return BoundMethodVariable(value, self.wrap_static(attribute.__func__))
        if name in ("now", "utcnow", "today"):  # a method of a datetime: it reads the clock, which is never folded
            return self.wrap_static(attribute)
        if callable(attribute) and not isinstance(attribute, type):
            owner = getattr(attribute, "__self__", None)
            is_method = not is_enum or owner is value.value or owner is value.python_type()
            return ConstantMethodVariable(value, name) if is_method else self.wrap_static(attribute)
        return self.from_python(attribute)

    def run_frame(self, frame: Frame) -> Any:
        """Run a frame until it returns or yields; return ``RETURN`` or ``YIELD``."""
        return run_frame(self, frame)

    # Exceptions in traced code.

    def make_user_exception(self, error: BaseException) -> UserException:
        """Return the exception that raises ``error`` in the traced code."""
        return UserException(ExceptionVariable(type(error), [self.exception_argument(a) for a in error.args], error))

    def exception_argument(self, value: Any) -> Variable:
        """Return an exception argument as a variable, or as its text if it cannot be wrapped."""
        try:
            return self.from_python(value)
        except Unsupported:
            return ConstantVariable(str(value))

    def make_stop_iteration(self, value: Variable | None = None) -> UserException:
        """Return a StopIteration for the traced code, with a generator's return value."""
        return UserException(ExceptionVariable(StopIteration, [] if value is None else [value]))

    def raise_error(self, kind: type[BaseException], text: str, *, is_exact: bool = True) -> NoReturn:
        """Raise ``kind(text)`` in the traced code.

        ``is_exact`` is False if Python words the error in its own way. Code that reads the text breaks the graph.
        """
        raised = self.make_user_exception(kind(text))
        if not is_exact:
            exception = ExceptionVariable(kind, [ConstantVariable(text)])
            exception.has_unknown_text = True
            raised = UserException(exception)
        raise raised

    def raise_key_error(self, key: Variable) -> NoReturn:
        """Raise KeyError(key) in the traced code."""
        raise UserException(ExceptionVariable(KeyError, [key]))

    def raise_type_error(self, text: str) -> NoReturn:
        """Raise a TypeError in the traced code."""
        raise self.make_user_exception(TypeError(text))
