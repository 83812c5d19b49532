"""Variable for generators whose bodies are traced."""

from __future__ import annotations

import operator
import types

from engine.bytecode.resume_functions import INITIAL_YIELD, VALUE, ResumePoint, resume_code, shared_cell_names
from engine.bytecode.resume_functions import NULL as NULL_KIND
from engine.frame_code.codegen_runtime.iterators import make_finished_generator, make_suspended_generator
from engine.trace.annotations import Frame, PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.graph_breaks.frame_readers import may_read_own_frame
from engine.trace.inline_generators import close_generator, resume_generator, throw_into_generator
from engine.trace.variables.base import NONE, NULL, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable
from engine.trace.variables.containers.iterators import IteratorVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.slotted_type import fresh, state


class GeneratorVariable(IteratorVariable):
    """A generator whose body is traced step by step."""

    frame: Frame
    created_at: int
    creation_call: tuple[Variable, Args, Kwargs]
    """The generator function and its positional and keyword arguments."""
    is_started: bool = state(False)
    is_running: bool = state(False)
    innermost_user_frame: Frame | None = state(None)
    """Innermost frame that may use the generator, once a suspended generator was found."""
    names: dict[str, Variable] = fresh(dict)
    cls = types.GeneratorType

    def __post_init__(self) -> None:
        code = self.frame.code
        self.names.update(__name__=ConstantVariable(code.co_name), __qualname__=ConstantVariable(code.co_qualname))

    @property
    def holds_suspended_generator(self) -> bool:
        return self.is_started and not self.frame.is_finished

    def runs_handlers_when_freed(self) -> bool:
        return not self.frame.is_finished and bool(self.frame.code.co_exceptiontable)

    def yield_from_iterator(self) -> Variable | None:
        """Return the iterator that the body delegates to in ``yield from``, or None."""
        frame = self.frame
        if self.is_running or frame.is_finished or not frame.op.index:
            return None
        is_delegating = frame.op.opname == "YIELD_VALUE" and frame.decoded.ops[frame.op.index - 1].opname == "SEND"
        return frame.stack[-1] if is_delegating else None

    def next_item(self, tx: Tracer) -> Variable | None:
        return self.send(tx, NONE)

    def send(self, tx: Tracer, value: Variable) -> Variable | None:
        """Run to the next ``yield``; return None when the body returned.

        The return value is then in ``frame.result``.
        """
        return resume_generator(tx, self, value)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "send":
            yielded = self.send(tx, args[0])
            return self.raise_stop_iteration(tx) if yielded is None else yielded
        if name == "close":
            return close_generator(tx, self)
        if name == "throw":
            return throw_into_generator(tx, self, args)
        return super().call_method(tx, name, args, kwargs)

    def before_step(self, tx: Tracer) -> None:
        """Record the mutation before the body runs."""
        tx.side_effects.record_mutation(self)

    def take_return_value(self) -> Variable:
        """Return the return value of the body, only once; later calls return None."""
        result, self.frame.result = self.frame.result, None
        return result or NONE

    def raise_stop_iteration(self, tx: Tracer) -> Variable:
        """Raise the StopIteration that carries the return value of the body."""
        result = realize(tx, self.take_return_value())
        raise tx.make_stop_iteration(None if is_none(result) else result)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        code = self.frame.code
        match name:
            case "__name__" | "__qualname__":
                return self.names[name]
            case "gi_yieldfrom":
                return self.yield_from_iterator() or NONE
            case "gi_code":
                return ConstantVariable(code)
            case "gi_running":
                return ConstantVariable(self.is_running)
            case "gi_suspended":
                return ConstantVariable(self.is_started and not self.is_running and not self.frame.is_finished)
            case "gi_frame" if self.frame.is_finished:
                return NONE
        if name.startswith("gi_"):
            raise self.unsupported_attribute("reading", name)
        return super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        if self.holds_suspended_generator:
            return [*self.frame.stack, *(self.frame.locals[n] for n in self._locals()), *self._cells()]
        function, args, kwargs = self.creation_call
        return [function, *args, *kwargs.values()]

    def _locals(self) -> tuple[str, ...]:
        return tuple(sorted(self.frame.locals))

    def _cells(self) -> list[Variable]:
        return [self.frame.cells[name] for name in shared_cell_names(self.frame.code)]

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.holds_suspended_generator:
            self._reconstruct_suspended(cg)
            return
        function, args, kwargs = self.creation_call
        if self.frame.is_finished:
            cg.call(make_finished_generator, function, *args, **kwargs)
            return

        CallExpressionVariable(operator.call, [function, *args], kwargs).reconstruct(cg)

    def _reconstruct_suspended(self, cg: PyCodegen) -> None:
        """Emit code that pushes a generator over the same code, suspended at this ``yield``."""
        frame = self.frame
        cells, names = shared_cell_names(frame.code), self._locals()
        is_plain = all(n.isidentifier() for n in names) and all(c in frame.cells for c in cells)
        if self.is_running or frame.exc_stack or not is_plain or may_read_own_frame(frame) or cg.is_cyclic(self):
            raise self.rebuild_error()
        kinds = tuple(NULL_KIND if value is NULL else VALUE for value in frame.stack)
        code = resume_code(frame.code, ResumePoint(frame.op.index, (*kinds, INITIAL_YIELD), names))
        own_names = TupleVariable([self.names[name] for name in ("__name__", "__qualname__")])
        contents = TupleVariable([frame.cells[name] for name in cells])
        values = [*(v for v in frame.stack if v is not NULL), *(frame.locals[n] for n in names)]
        cg.call(make_suspended_generator, code, frame.globals.values, own_names, contents, *values)

    def rebuild_error(self) -> Unsupported:
        """Return the error for a generator that cannot be rebuilt after the graph.

        Its instruction number is that of the creation, so Python creates the generator instead.
        """
        what = f"rebuilding the generator {self.frame.code.co_qualname} after the graph"
        return Unsupported("generator-state", what, created_at=self.created_at)
