"""Generate the bytecode that replaces a frame's code.

It loads the graph inputs, calls the graph, reconstructs variables with their object identities and
applies side effects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
import torch.fx
from bytecode.instr import CellVar, FreeVar, InstrLocation

from engine.bytecode.assemble import Emitter
from engine.bytecode.opcodes import RULES
from engine.frame_code.prologue import ConstantTable, GraphCallPlan, PrologueCodegen, restoring_call
from engine.ir.graph_callable import graph_callable_of
from engine.ir.introspection.literal_types import IDENTIFIED_LITERAL_TYPES
from engine.ir.introspection.operator_facts import draws_random, has_only_effect
from engine.ir.prefetched_params import PrefetchedParams
from engine.ir.sources.base import GlobalsNamespace, Source, UnreadableSourceError
from engine.ir.sources.roots import ConstantSource, LocalSource
from engine.ir.traced_frame import CALLEE_SLOT, TracedGraph
from engine.torch_private.autograd import set_grad_enabled
from engine.trace.annotations import CellVariable, Frame, Tracer
from engine.trace.exc import Unsupported
from engine.trace.side_effects.input_mutations import mutates_inputs, requires_grad_inputs, restorable_mutated_inputs
from engine.trace.variables.base import ConstantVariable, Variable, are_plain_constants

_MAX_PUSHED = 1024
"""Number of constants from which on a list or tuple is made of one constant."""


class PyCodegen:
    """Generator of the code that runs instead of a frame's code.

    ``body`` runs after the graph: it reconstructs variables. ``finish`` adds the prologue, which calls the graph.
    """

    def __init__(self, tx: Tracer, code: CodeType, location: InstrLocation | None) -> None:
        self.tx = tx
        self.original_code = code
        self.body = Emitter(location)
        self.constants = ConstantTable()
        self.prefetched_params: PrefetchedParams | None = None
        self.writes_root_cells = False
        self.continues_after = False
        """True if the function continues after this code, at a graph break."""
        self._alive: list[Any] = []
        self._temps: dict[int, str] = {}
        self._source_temps: dict[Source, str] = {}
        self._outputs: dict[torch.fx.Node, str] = {}
        self._unfilled: list[Any] = []
        self._cyclic: set[int] = set()
        self._shared: set[int] = set()
        self._count = 0

    # Load variables.

    def find_cycles_and_shared(self, roots: Iterable[Variable]) -> None:
        """Find cycles among the variables to load, and variables that are loaded more than once.

        Objects in a cycle are created empty first and filled later.
        """
        visited: set[int] = set()
        path: set[int] = set()
        for root in roots:
            self._visit_children(root, visited, path)

    def _visit_children(self, value: Variable, visited: set[int], path: set[int]) -> None:
        value = value.resolved
        if value.is_lazy or value.is_constant:
            return
        key = id(value)
        if key in path:
            self._cyclic.add(key)
            return
        if key in visited:
            self._shared.add(key)
            return
        visited.add(key)
        path.add(key)
        for child in value.child_variables():
            self._visit_children(child, visited, path)
        path.discard(key)

    def is_cyclic(self, value: Variable) -> bool:
        """Return True if the variable contains itself, directly or not."""
        return id(value) in self._cyclic

    def load(self, value: Variable) -> None:
        """Push a variable; one variable is the same object at every load."""
        lazy, value = value, value.resolved
        # A date or path must retain its identity, unlike a number. A compiled module is traced as its original.
        is_identified = value.is_constant and value is not lazy and value.python_type() in IDENTIFIED_LITERAL_TYPES
        is_identified |= self.tx.objects.is_compiled_module(lazy)
        if (value.is_lazy or is_identified) and lazy.source is not None:
            if lazy.source.may_be_unbound:
                # The variable may be unbound at the next call. Python raises only at the instruction that reads it.
                self.tx.guard_type(lazy.as_python_object(), lazy.source, "it is passed on without being read")
            self.load_source(lazy.source)
            return
        if value.is_constant:
            self.load_const(value.constant)
            return
        temp = self._temps.get(id(value))
        if temp is not None:
            self.body.load(temp)
            return
        if value.source is not None and value.is_loaded_by_source and not value.is_constructed:
            self.load_source(value.source)
            return
        cached = self.tx.side_effects.externally_cached.get(id(value))
        if cached is not None and value.must_not_be_copied:
            raise cached.graph_break("is used after the graph")
        value.reconstruct(self)
        if (value.is_mutable or id(value) in self._shared) and id(value) not in self._temps:
            self.cache_top(value)

    def store_root_cell(self, name: str, cell: CellVariable) -> None:
        """Store the current content of a cell that the root frame creates.

        Before this, only the cells of parameters have a content.
        """
        if cell.content is not None:
            self.load(cell.content)
            self.fill_deferred()
            self.body.emit("STORE_DEREF", CellVar(name))
        elif cell.root_frame_name and not cell.was_empty:
            self.body.emit("DELETE_DEREF", CellVar(name))

    def store_root_cells(self, frame: Frame) -> None:
        """Store the contents of a frame's own cells, which resume functions and closures share."""
        for name in frame.code.co_cellvars:
            if name in frame.cells:
                self.store_root_cell(name, frame.cells[name])

    def load_all(self, values: Iterable[Variable]) -> None:
        """Push variables in order."""
        for value in values:
            self.load(value)

    def build(self, opname: str, values: list[Variable]) -> None:
        """Push a new container or slice of these variables."""
        if len(values) > _MAX_PUSHED and opname in ("BUILD_LIST", "BUILD_TUPLE") and are_plain_constants(values):
            constant = tuple(v.resolved.constant for v in values)
            if opname == "BUILD_TUPLE":
                self.load_const(constant)
                return
            self.body.emit("BUILD_LIST", 0)
            self.load_const(constant)
            self.body.emit("LIST_EXTEND", 1)
            return
        self.load_all(values)
        self.body.emit(opname, len(values))

    def cache_top(self, value: Variable) -> None:
        """Store the top of the stack in a temporary, for later loads of this variable."""
        name = self.new_temp("v")
        self._temps[id(value)] = name
        self._alive.append(value)
        self.body.emit("COPY", 1)
        self.body.store(name)

    def temps_of_type(self, kind: type[Variable]) -> list[str]:
        """Return the temporaries of cached variables of this type."""
        return [self._temps[id(v)] for v in self._alive if isinstance(v, kind) and id(v) in self._temps]

    def defer_fill(self, value: Variable) -> None:
        """Cache the empty object on the stack top as this variable; ``fill_deferred`` fills it."""
        self.cache_top(value)
        self._unfilled.append(value)

    def fill_deferred(self) -> None:
        """Fill the objects that were created empty."""
        while self._unfilled:
            value = self._unfilled.pop(0)
            self.load(value)
            value.fill(self)

    def new_temp(self, prefix: str) -> str:
        """Return a new name for a local variable."""
        self._count += 1
        return f"__{prefix}{self._count}"

    def load_const(self, value: Any) -> None:
        """Push a constant of any type, such as the class that traced code creates in this call."""
        classes = self.tx.objects.new_classes
        new_classes = [variable for cls, variable in classes.items() if cls is value] if classes else []
        if new_classes:
            self.load(new_classes[0])
        else:
            self.constants.emit(value, self.body)

    @contextlib.contextmanager
    def alternative_path(self) -> Iterator[None]:
        """Emit code for one of several alternative paths.

        Objects reconstructed on this path are not reused on the others.
        """
        before = dict(self._temps)
        yield
        self._temps = before

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> None:
        """Emit a call of a constant callable; an argument that is no variable is a constant."""
        self.body.callable(lambda: self.load_const(function))
        self._load_arguments(args, kwargs)
        self.call_with_keywords(len(args), tuple(kwargs))

    def pop_into_call(self, function: Any, *args: Any) -> None:
        """Emit a call without a result; its first argument is on top of the stack and is popped."""
        self.body.insert_callable(lambda: self.load_const(function))
        self._load_arguments(args, {})
        self.body.call(1 + len(args))
        self.body.emit("POP_TOP")

    def _load_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.load(value if isinstance(value, Variable) else ConstantVariable(value))

    def call_method(self, of: Variable, name: str) -> None:
        """Emit ``of.name()``."""

        def load() -> None:
            self.load(of)
            self.body.attribute(name)

        self.body.callable(load)
        self.body.call(0)

    def load_dispatched(self, load: Callable[[], None]) -> None:
        """Push a replacement of the object that ``load`` pushes: its callees are compiled.

        The object is about to be called or consumed.
        """
        self.body.callable_const(CALLEE_SLOT)
        load()
        self.body.call(1)

    def load_callable_dispatched(self, load: Callable[[], None]) -> None:
        """Push the callable that ``load`` pushes.

        If the function continues after this code, replace it so that the functions it calls are compiled.
        """
        self.body.callable((lambda: self.load_dispatched(load)) if self.continues_after else load)

    def call_with_keywords(self, count: int, names: tuple[str, ...]) -> None:
        """Emit a call with ``count`` positional arguments, followed by these keyword arguments."""
        if not names:
            self.body.call(count)
            return
        if RULES.keywords_on_stack:
            self.body.const(names)
            self.body.emit("CALL_KW", count + len(names))
            return
        self.body.emit("KW_NAMES", names)
        self.body.call(count + len(names))

    def load_namespace(self, namespace: GlobalsNamespace) -> None:
        """Push a globals dictionary."""
        self.load_const(namespace.values)

    def cell_arg(self, name: str) -> CellVar | FreeVar:
        """Return the instruction argument of a cell or free variable of this frame."""
        self.writes_root_cells = True
        return CellVar(name) if name in self.original_code.co_cellvars else FreeVar(name)

    # Graph outputs and sources.

    def load_graph_output(self, node: torch.fx.Node) -> None:
        """Push a graph output."""
        name = self._outputs.get(node)
        if name is None:
            name = self._outputs[node] = self.new_temp("out")
        self.body.load(name)

    def load_source(self, source: Source) -> None:
        """Push the object that a source reached before the graph ran."""
        if isinstance(source, LocalSource) and source.variable_name not in self.original_code.co_cellvars:
            self.body.load(source.variable_name)
            return
        if isinstance(source, ConstantSource):
            self.load_const(source.value)
            return
        name = self._source_temps.get(source)
        if name is None:
            name = self._source_temps[source] = self.new_temp("in")
        self.body.load(name)

    def finish(self) -> tuple[CodeType, TracedGraph | None]:
        """Assemble the generated code and finish the graph."""
        tx = self.tx
        for node, _, _ in tx.fallback.assumed_conditions:
            if node not in self._outputs:
                self._outputs[node] = self.new_temp("out")
        graph = tx.graph.finish(list(self._outputs))
        if graph is not None:
            layouts = tx.inputs.input_layouts
            inputs = tuple(replace(i, original_layout=layouts.get(id(i.fake))) for i in graph.inputs)
            graph = replace(graph, has_object_side_effects=tx.side_effects.writes_objects, inputs=inputs)
            graph = with_rerun_plan(tx, graph)
        plan = plan_graph_call(tx)
        prologue = PrologueCodegen(plan, self.original_code, self.constants, self.new_temp, self.body.location)
        try:
            prologue.emit(graph, self._source_temps, self._outputs)
        except UnreadableSourceError as error:
            raise Unsupported("rebuild-value", str(error)) from error
        self.prefetched_params = prologue.prefetched_params
        return prologue.assemble(self.body), graph

    # torch state.

    def restore_grad_mode(self) -> None:
        """Set grad mode as the traced code left it, whatever the graph switched."""
        if torch.is_grad_enabled() != self.tx.torch_state.entry_global_state["grad_mode"]:
            self.body.callable(lambda: self.load_const(set_grad_enabled))
            self.body.const(torch.is_grad_enabled())
            self.body.call(1)
            self.body.emit("POP_TOP")


def _reruns_after_error(tx: Tracer) -> bool:
    """Return True if the original code must run after an error, for its side effects.

    Random numbers of Python are side effects: all are drawn before the graph. Nothing that the graph did may happen
    a second time. An ``autograd.Function`` that the graph calls was traced, and has no side effects.
    """
    has_effects = tx.side_effects.has_effects or tx.random_state.input_count
    if not has_effects or tx.fallback.op_in_try_block:
        return False
    return not any(
        (called.runs_user_python and called.changes_state) or has_only_effect(node.target)
        for node, called in ((n, graph_callable_of(n)) for n in tx.graph.graph.nodes)
    )


def with_rerun_plan(tx: Tracer, graph: TracedGraph) -> TracedGraph:
    """Return the graph with what the backend must do if the original code runs after an error."""
    if not _reruns_after_error(tx):
        return graph
    sources = restorable_mutated_inputs(tx, with_history=True) if mutates_inputs(tx) else []
    positions = {i.source: n for n, i in enumerate(graph.inputs)}
    restorable = None if sources is None else tuple(positions[s] for s in sources if s in positions)
    return replace(graph, reruns_after_error=True, restorable_inputs=restorable)


def plan_graph_call(tx: Tracer) -> GraphCallPlan:
    """Return the plan for the call of the graph that the trace has built."""
    in_try_block = tx.fallback.op_in_try_block
    return GraphCallPlan(
        tx.request.function.__globals__,
        restoring_call=restoring_call(tx.graph.graph),
        outer_grad_mode=tx.torch_state.outer_grad_mode(),
        hides_function_modes=bool(tx.torch_state.entry_function_modes),
        assumed_conditions=tuple((node, truth) for node, truth, _ in tx.fallback.assumed_conditions),
        in_try_block=in_try_block,
        mutated_inputs=tuple(restorable_mutated_inputs(tx) or ()) if in_try_block else (),  # else the backend restores
        draws_random=in_try_block and any(draws_random(node) for node in tx.graph.graph.nodes),
        requires_grad_inputs=tuple(requires_grad_inputs(tx)),
    )
