"""State of tracing one frame: active frames, guards, side effects, known objects, graph.

Each object has one owner, with one lifetime.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch

from engine.bytecode.decode import reraise_index
from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.python_values import IdMatch, TypeMatch
from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.ir.node_metadata import NodeProvenance
from engine.ir.sources.base import GlobalsNamespace, Source
from engine.ir.sources.roots import ConstantSource, GlobalSource
from engine.ir.user_code_files import innermost_user_span
from engine.options import Options
from engine.records.bytecode import Span
from engine.records.trace import InlinedCall
from engine.trace.exc import TracerException, Unsupported, UserException
from engine.trace.external_caches import ExternallyCached, version_of
from engine.trace.frame import Frame
from engine.trace.graph_builder import GraphBuilder
from engine.trace.guard_set import GuardSet
from engine.trace.symbols.shape_env import RecordingShapeEnv
from engine.trace.torch_state_snapshot import TorchStateSnapshot
from engine.trace.variables.base import (
    ConstantVariable,
    LazyVariable,
    NotPythonConstant,
    Variable,
    reachable_variables,
    realize,
)
from engine.trace.variables.builder import build_sourceless, build_variable
from engine.trace.variables.nn_modules.optimizer_inlining import USE_GRAD_CODE

_GUARDED_GLOBAL_STATES = (
    "grad_mode",
    "inference_mode",
    "autocast",
    "torch_function_modes",
    "torch_function_enabled",
    "dispatch_modes",
    "functorch",
    "default_dtype",
    "deterministic",
)
"""Parts of torch's global state that every graph depends on."""


def _has_user_handler(frame: Frame) -> bool:
    """Return True if user code may handle an exception at the frame's current instruction.

    Handlers that only exit contexts of the graph itself do not count.
    """
    if frame.code is USE_GRAD_CODE:
        return False
    handler = frame.decoded.handlers[frame.op.index]
    while handler is not None:
        again = reraise_index(frame.decoded, handler.target)
        leave = frame.stack[handler.depth - 1] if 0 < handler.depth <= len(frame.stack) else None
        if again < 0 and not getattr(leave, "is_in_graph", False):
            return True
        handler = frame.decoded.handlers[handler.target if again < 0 else again]
    return False


class Tracer:
    """State of tracing one frame once."""

    def __init__(self, request: CompileRequest, options: Options) -> None:
        self.request = request
        self.options = options
        self.shape_env = RecordingShapeEnv(self.guard_cause)
        self.fake_mode = make_fake_mode(self.shape_env)
        self.graph = GraphBuilder()
        self.guards = GuardSet()
        self.variables_by_id: dict[int, tuple[Variable, Any]] = {}
        self.variables_by_dict_id: dict[int, Variable] = {}
        """Variables of objects that were read, by the ids of their instance dicts."""
        self._real_by_variable_id: dict[int, tuple[Variable, Any]] = {}
        """Wrapped objects with an identity, by variable id.

        The reference to the object prevents reuse of its id.
        """
        self.mutated_variables: dict[int, Variable] = {}
        """Variables with a source that were mutated, in the order of their first mutation."""
        self.identity_keys: dict[int, Variable] = {}
        """External objects used as dict keys or set elements by identity, by variable id."""
        self.viewed_dict_ids: set[int] = set()
        """Ids of dicts that have external views."""
        self.subgraph_mutations: list[Variable] | None = None
        """All mutated variables while the body of a higher-order operation is traced; else None."""
        self.global_writes: dict[tuple[GlobalsNamespace, str], Variable | None] = {}
        self.reordered_globals: set[tuple[GlobalsNamespace, str]] = set()
        """Globals that were deleted and set again: they come last in the order of their module."""
        self.frames: list[Frame] = []
        self.inlined_calls: dict[tuple[str, int, Span | None], InlinedCall] = {}
        self.instruction_count = 0
        self.breakpoint_at = 0
        """Instruction number at which ``on_breakpoint`` is called with the frame to end the graph."""
        self.on_breakpoint: Callable[[Frame], None] = lambda frame: None
        self.direct_callee: Variable | None = None
        """Callee of a call instruction that leaves the return value on the stack unchanged."""
        self.mutation_count = 0
        """Number of mutations of any kind; an equal count means that nothing changed."""
        self.rng_mode = ""
        """Treatment of Python's random numbers, see ``RestartTracing``."""
        self.rng_used_in_python = False
        """True if code needed random results that the graph cannot take as inputs."""
        self.rng_input_count = 0
        """Number of random numbers that the graph takes as inputs."""
        self.external_mutation_count = 0
        """Number of mutations of objects that existed before the call."""
        self.cache_results: dict[int, Any] = {}
        """Results of external caching functions by arguments, by the id of the cache."""
        self.externally_cached: dict[int, ExternallyCached] = {}
        """Variables in external caches that the traced code may mutate, by variable id."""
        self.traced_backwards: list[Any] = []
        """Traced backwards of user-defined autograd functions, which Python would run later."""
        self.repr_in_progress: set[tuple[int, int]] = set()
        """Objects whose repr is in progress: pairs of a recursion check and a variable id."""
        self.repr_placeholders: dict[int, Any] | None = None
        """Placeholders of containers while a container is formatted, by variable id; else None."""
        self.assigned_ids: dict[int, tuple[str, int, Variable]] = {}
        """Placeholder addresses of objects created while tracing, by variable id.

        Each has the number of the root instruction that read it.
        """
        self.weak_proxies: dict[int, Variable] = {}
        """The weak proxy created for each object, by variable id."""
        self.side_effect_calls: list[tuple[Variable, str]] = []
        """Calls without a result, run in order after the graph: the call and its description."""
        self.context_var_writes: dict[int, list[Any]] = {}
        """Context variable writes still in effect, by variable id.

        Values from before the call are not included.
        """
        self.context_copy_depth = 0
        """Number of copied contexts in which the traced code runs."""
        self.open_generators: list[Any] = []
        """Started generators with exception handlers: closing one runs code."""
        self.silenced_warnings: list[bool] = [False]
        """For each active ``catch_warnings``, outermost first: True if a filter prevents raising."""
        self.symbolic_input_scalars: list[Any] = []
        """Symbolic scalars read from sources."""
        self.symbol_reasons: dict[Any, str] = {}
        """Reason why a number became a symbol, by symbol."""
        self.dynamic_size_reasons: dict[Source, dict[int, str]] = {}
        """Reason why input sizes became symbols, by source and dimension."""
        self.input_tensors: list[tuple[Any, int]] = []
        self.known_dynamic_sources: set[Source] = set()
        """Sources of numbers known to change between calls before any call has shown it."""
        self.input_layouts: dict[int, tuple[Sequence[Any], Sequence[Any], Any]] = {}
        """Original sizes, strides and storage offsets of inputs, by the id of their fakes.

        Later mutations do not change these entries.
        """
        """``input_tensors``: variables of input tensors, with the versions of their fakes at read."""
        self.instruction_hook: Any = None
        """Hook called around each instruction if steps are recorded."""
        self.loaded_globals: dict[tuple[int, str], Variable] = {}
        self.new_classes: dict[type, Variable] = {}
        """Classes that the traced code creates, by their placeholder classes."""
        self.saw_tensor = False
        self.function_modes: list[Variable] = []
        """Active torch-function modes that the traced code entered, innermost last."""
        self.entry_function_modes: list[Variable] = []
        """Torch-function modes that are active when the frame is entered."""
        self.suspended_function_modes: list[list[Variable]] = []
        """Suspended torch-function modes: one list per active ``DisableTorchFunction``."""
        self.torch_function_disabled_depth = 0
        """Nesting depth of disabled ``__torch_function__`` of subclasses."""
        self.scalar_tensors_index = False
        """True if a one-integer tensor indexes like any tensor: in functions of flex_attention."""
        self.torch_state_snapshot = TorchStateSnapshot.capture()
        """torch's global state when the attempt began."""
        self.contexts_to_exit: list[Any] = []
        """Contexts that were really entered while tracing and not exited yet."""
        self.written_torch_flags: set[tuple[Any, str]] = set()
        """torch backend flags that the traced code set: (module, name)."""
        self.open_graph_contexts: list[tuple[Any, torch.fx.Node]] = []
        """Contexts that the graph has entered and not exited, with the nodes that entered them."""
        self.root_instruction_number = 0
        """Number of root frame instructions that were started."""
        self.op_in_try_block = False
        """True if user code may handle an exception of a graph operation, so a fallback is needed."""
        self.assumed_conditions: list[tuple[torch.fx.Node, bool, int]] = []
        """Tensor conditions that are assumed true or false because the other branch only raises.

        Each has its node, the assumed value and the number of the root instruction.
        """
        self.is_compiling = True
        """Value that traced code gets from ``is_compiling()``."""
        self.read_is_compiling = False
        self.graph_sets_data = False
        """True if the graph sets the data of an external tensor."""
        self.data_assigned_inputs: list[Any] = []
        """External tensors whose ``data`` was assigned."""
        self.data_ptr_variables: WeakSet[Any] = WeakSet()
        """Results of ``data_ptr()`` that the traced code holds."""
        self.storage_variables: dict[int, Any] = {}
        """Storages that code read, and those of inputs, by the id of the fake's storage."""
        self.storages_recorded = 0
        """Number of inputs whose original storage is recorded."""
        self.unbacked_created_at: dict[Any, int] = {}
        """Number of the root instruction that created each unbacked symbol."""
        self.runtime_assert_count = 0
        """Number of runtime assertions on unbacked symbols that the graph checks."""
        self.runtime_assert_exprs: set[Any] = set()
        """Expressions of those assertions."""
        self.entry_global_state: dict[str, Any] = {name: GLOBAL_STATES[name].read() for name in _GUARDED_GLOBAL_STATES}
        """torch's global state when the frame was entered."""
        self.resumed_grad_modes: dict[int, bool] = {}
        """Grad mode outside each ``with`` block in which the frame resumes, by stack position."""
        self.called_in_except_block: bool = GLOBAL_STATES["handling"].read()
        """True if the frame was called while an exception was being handled."""

        self.recursion_limit = sys.getrecursionlimit()
        self._remaining_depth = 0

    # Release and current position.

    def release(self) -> None:
        """Release the call's objects.

        Variables that read items on demand hold the tracer, and a backend may query the tracer for guards later.
        """
        self.request = replace(self.request, arguments={})
        values: tuple[dict[Any, Any], ...] = (
            self.variables_by_id,
            self.mutated_variables,
            self.variables_by_dict_id,
            self._real_by_variable_id,
            self.identity_keys,
        )
        values += (
            self.weak_proxies,
            self.cache_results,
            self.externally_cached,
            self.assigned_ids,
            self.loaded_globals,
            self.new_classes,
        )
        for held in values:
            held.clear()
        self.open_generators.clear()
        del self.on_breakpoint

    def in_subgraph(self) -> bool:
        """Return True if operations go into the graph of a subgraph body."""
        return hasattr(self.graph, "outer")

    def remaining_depth(self) -> int:
        """Return the call depth that is left before Python would raise RecursionError."""
        if not self._remaining_depth:
            used, frame = 0, sys._getframe()
            while frame.f_back is not None:
                used, frame = used + 1, frame.f_back
            self._remaining_depth = max(self.recursion_limit - used, 50)
        return self._remaining_depth

    @property
    def frame(self) -> Frame:
        """Innermost active frame."""
        return self.frames[-1]

    def user_stack(self) -> tuple[Span, ...]:
        """Return the user's call stack, outermost first."""
        return self.frames[-1].user_stack() if self.frames else ()

    def node_provenance(self, note: str = "") -> NodeProvenance:
        """Return the provenance of a node created now."""
        stack = self.user_stack()
        return NodeProvenance(
            (), innermost_user_span(stack), stack, self.frames[-1].module_path if self.frames else "", note
        )

    def guard_cause(self, why: str) -> Cause:
        """Return the cause of a guard added now."""
        stack = self.user_stack()
        return Cause(innermost_user_span(stack), stack, why)

    def outer_grad_mode(self) -> bool | None:
        """Return the grad mode to set when an exception leaves the frame; None if nothing to set.

        It is set if the frame resumes inside ``with`` blocks that switched grad mode.
        """
        return self.resumed_grad_modes[min(self.resumed_grad_modes)] if self.resumed_grad_modes else None

    def update_op_in_try_block(self) -> None:
        """Record if a user handler covers the operation that joins the graph.

        Handlers that only exit contexts of the graph do not count.
        """
        if not self.op_in_try_block:
            self.op_in_try_block = any(_has_user_handler(f) for f in self.frames)

    # Guards and wrapping.

    def add_guard(self, guard: Guard) -> None:
        """Add a guard."""
        self.guards.add(guard)

    def guard_type(self, real: Any, origin: Source, why: str) -> None:
        """Guard the exact type of an object."""
        self.guards.add(TypeMatch(origin, type(real), cause=self.guard_cause(why)))

    def assume_condition(self, node: torch.fx.Node, *, truth: bool) -> None:
        """Assume that a tensor condition has this value.

        Code after the graph checks it. If the check fails, Python runs the original code.
        """
        self.assumed_conditions.append((node, truth, self.root_instruction_number))
        self.op_in_try_block = True

    def guard_identity(self, real: Any, origin: Source, why: str) -> None:
        """Guard the identity of an object."""
        self.guards.add(IdMatch(origin, real, cause=self.guard_cause(why)))

    def wrap(self, real: Any, origin: Source) -> Variable:
        """Return the variable of a real object and add the guards that this needs.

        There is one variable per object.
        """
        known = self.variables_by_id.get(id(real))
        if known is None:
            value = build_variable(self, real, origin)
            if value.is_mutable:
                self.variables_by_id[id(real)] = (value, real)
            elif not isinstance(value, ConstantVariable) and value.as_python_object() is NotImplemented:
                self._real_by_variable_id[id(value)] = (value, real)
            return value
        value = known[0]
        if value.source is not None and value.source != origin:
            why = "both expressions gave the same object, so a mutation through one is visible through the other"
            self.guards.add(SameObject(origin, value.source, True, cause=self.guard_cause(why)))
        return value

    def real_object(self, value: Variable) -> Any:
        """Return the object that the variable represents; NotImplemented if tracing created it."""
        read = self._real_by_variable_id.get(id(value))
        return value.as_python_object() if read is None else read[1]

    def guard_same_object(self, left: Variable, right: Variable, same: bool) -> None:
        """Guard that two input objects are, or are not, the same object."""
        if left.source is not None and right.source is not None and left.source != right.source:
            self.guards.add(
                SameObject(
                    left.source, right.source, same, cause=self.guard_cause("the two objects were compared by identity")
                )
            )

    def make_lazy(self, real: Any, origin: Source) -> Variable:
        """Return a lazy variable: the object is wrapped at its first use."""
        return LazyVariable(real, origin)

    def wrap_static(self, real: Any, text: str = "") -> Variable:
        """Return the variable of an object that does not change at run time.

        Examples are torch functions and classes.
        """
        return self.wrap(
            real,
            ConstantSource(
                real,
                text or getattr(real, "__qualname__", None) or getattr(real, "__name__", None) or type(real).__name__,
            ),
        )

    def from_python(self, value: Any) -> Variable:
        """Return a new variable for a plain Python object created while tracing."""
        return build_sourceless(self, value)

    def fold_constant(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Variable:
        """Run a pure function on Python constants now; its exception is raised in the traced code."""
        try:
            return self.from_python(fn(*args, **kwargs))
        except (RecursionError, MemoryError, NotPythonConstant, TracerException):
            raise
        except Exception as error:
            raise self.make_user_exception(error) from error

    def slice_items(self, items: list[Variable], index: slice) -> list[Variable]:
        """Return ``items[index]``; an invalid slice raises in the traced code."""
        try:
            return items[index]
        except (TypeError, ValueError) as error:
            raise self.make_user_exception(error) from error

    def as_python_constants(self, values: Iterable[Variable]) -> list[Any]:
        """Return the Python constants of variables.

        Raises:
            NotPythonConstant: one is not a constant.
        """
        return [realize(self, v).as_python_constant(self) for v in values]

    def unpack_iterable(self, value: Variable) -> list[Variable]:
        """Return the items of an iterable."""
        from engine.trace.variables.containers.sequences import sequence_items

        return list(sequence_items(self, value))

    def unpack_string_mapping(self, value: Variable) -> dict[str, Variable]:
        """Return the entries of a mapping with string keys."""
        from engine.trace.variables.containers.dicts import mapping_entries

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
        from engine.trace.variables.callables.methods import BoundMethodVariable, ConstantMethodVariable

        try:
            found = getattr(value.value, name)
        except AttributeError as error:
            raise self.make_user_exception(error) from error
        if isinstance(value.value, enum.Enum) and isinstance(found, MethodType) and found.__self__ is value.value:
            return BoundMethodVariable(value, self.wrap_static(found.__func__))
        if name in ("now", "utcnow", "today"):
            return self.wrap_static(found)
        if callable(found) and not isinstance(found, type):
            return ConstantMethodVariable(value, name)
        return self.from_python(found)

    # Exceptions in traced code.

    def make_user_exception(self, error: BaseException) -> UserException:
        """Return the exception that raises ``error`` in the traced code."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        return UserException(ExceptionVariable(type(error), [self.exception_argument(a) for a in error.args], error))

    def exception_argument(self, value: Any) -> Variable:
        """Return an exception argument as a variable, or as its text if it cannot be wrapped."""
        try:
            return self.from_python(value)
        except Unsupported:
            return ConstantVariable(str(value))

    def make_stop_iteration(self, value: Variable | None = None) -> UserException:
        """Return a StopIteration for the traced code, with a generator's return value."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        return UserException(ExceptionVariable(StopIteration, [] if value is None else [value]))

    def raise_error(self, kind: type[BaseException], text: str) -> Any:
        """Raise ``kind(text)`` in the traced code."""
        error = kind(text)
        if isinstance(error, AttributeError) and text.endswith("'"):
            error.name = text.rpartition(" attribute '")[2].removesuffix("'")
        elif type(error) is NameError:
            error.name = text.split("'")[1]
        raise self.make_user_exception(error)

    def raise_key_error(self, key: Variable) -> Any:
        """Raise KeyError(key) in the traced code."""
        from engine.trace.variables.exceptions.exceptions import ExceptionVariable

        raise UserException(ExceptionVariable(KeyError, [key]))

    def raise_type_error(self, text: str) -> Any:
        """Raise a TypeError in the traced code."""
        raise self.make_user_exception(TypeError(text))

    # Mutation.

    def record_mutation(self, value: Variable) -> None:
        """Record that a variable is about to be mutated; its contents are written after the graph."""
        self.mutation_count += 1
        if self.subgraph_mutations is not None:
            self.subgraph_mutations.append(value)
        if id(value) in self.externally_cached:
            raise self.externally_cached[id(value)].unsupported("is mutated")
        if value.source is None or value.is_constructed:
            return
        self.external_mutation_count += 1
        if id(value) not in self.mutated_variables:
            self.mutated_variables[id(value)] = value

    def mark_externally_cached(self, value: Variable, cache: Any) -> None:
        """Record that an external cache holds a variable and all that is reachable from it."""
        for held in reachable_variables([value]):
            if held.is_mutable and held.source is None:
                self.externally_cached.setdefault(
                    id(held), ExternallyCached(held, cache, version_of(held), self.root_instruction_number)
                )

    def as_identity_key(self, value: Variable) -> Variable:
        """Return the key of a variable that is compared by identity.

        For external objects, guards at the end require that distinct keys stay distinct.
        """
        if value.source is not None:
            self.identity_keys[id(value)] = value
        return value

    def record_side_effect(self, call: Variable, words: str) -> None:
        """Record a call that generated code makes after the graph, in this order."""
        self.mutation_count += 1
        self.external_mutation_count += 1
        self.side_effect_calls.append((call, words))

    def record_global_write(self, namespace: GlobalsNamespace, name: str, value: Variable | None) -> None:
        """Record that a global is set, or deleted if ``value`` is None.

        Generated code does this after the graph.
        """
        self.mutation_count += 1
        self.external_mutation_count += 1
        was = None if value is None else value.source
        if (namespace, name) in self.global_writes and self.global_writes[namespace, name] is None:
            del self.global_writes[namespace, name]  # set after it was deleted: it comes last in the module
            self.reordered_globals.add((namespace, name))
        if (
            was == GlobalSource(namespace, name)
            and (namespace, name) in self.global_writes
            and (namespace, name) not in self.reordered_globals
        ):
            del self.global_writes[namespace, name]  # it has its original value again
        else:
            self.global_writes[namespace, name] = value
        self.loaded_globals.pop((id(namespace.values), name), None)
