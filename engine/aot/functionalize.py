"""Trace a graph to functional ATen; find its input mutations and output aliases.

Every tensor is wrapped in a functional tensor while tracing, as in torch (functorch functionalization,
``FunctionalTensorMode``).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx
import torch.fx.traceback

from engine.aot.checks.missing_kernels import check_missing_kernels_in_callees
from engine.aot.checks.overlapping_writes import OverlappingWriteMode
from engine.aot.fallback_kinds import AotFallback
from engine.aot.flex_attention import expand_flex_attention
from engine.aot.functional_tensors import functional_tensors, innermost_tensors, unwrap_functional
from engine.aot.grad_mode import GRAD_MODE_CALLS, inputs_read_after_last_write, inputs_with_layout_mutated_in_grad_mode
from engine.aot.gradients.autograd_calls import calls_autograd, creates_graph_of_gradients
from engine.aot.layout_mutation import fake_at_entry, is_layout_mutated, mutated_layout, mutates_layout
from engine.aot.node_properties import is_as_strided, may_mutate, output_args
from engine.aot.output_aliasing import OutputAliasAnalyzer
from engine.aot.random_generators import pass_generators
from engine.aot.rebind_unbacked import has_unbacked_values, rebind_unbacked
from engine.aot.storage_geometry import has_internal_overlap, storage_id
from engine.aot.version_counters import write_count
from engine.graph.device_dependent_composites import replace_composite
from engine.graph.effect_tokens import set_mode_tokens, thread_tokens
from engine.graph.fake_tensors.fake_mode import make_fake_mode, without_absent_generator
from engine.graph.fake_tensors.placement_cache import forget_symbolic_placements, symbolic_calls
from engine.graph.lazy_module import LazyGraphModule, trace_lazily
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.verify import FUNCTIONAL_RULES, verify_graph
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.aot.aot_metadata import AotMetadata, InputAliasInfo, is_same_layout, view_sizes
from engine.ir.fallback import FallbackRequired
from engine.ir.graph_callable import NO_CALLABLE, GraphCallable, graph_callable_of
from engine.ir.introspection.operator_facts import draws_random, facts_of, facts_of_node
from engine.ir.introspection.symbols import has_unbacked_symbols, symbol_of, symbolic_numbers_in, symbols_in
from engine.ir.kernels.symbol_locations import NUMBER, OFFSET, stride_location
from engine.ir.node_metadata import node_id, provenance_of, set_provenance
from engine.ir.node_values import (
    called_overload,
    example_tensor,
    first_fake_tensor,
    tensors_by_position,
    tensors_in,
    unwrap_functionalized,
)
from engine.ir.traced_frame import GraphInput
from engine.ir.triton_launches import launch_of
from engine.process_state import FAKE_TENSOR_LOGGER, silence_logger
from engine.torch_private import functionalization
from engine.torch_private.autograd import enter_autocast, exit_autocast, set_grad_enabled
from engine.torch_private.dispatch import DisablePythonDispatcher, enable_python_dispatcher
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.higher_order_ops import flex_attention_op
from engine.torch_private.operators import HigherOrderOperator
from engine.torch_private.pytree import tree_map_only
from engine.torch_private.symbolic_shapes import ShapeEnv


@dataclass(frozen=True)
class FunctionalGraph:
    """Functional graph, the fake inputs it was traced with, and its calling convention."""

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    metadata: AotMetadata


def functionalize(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput], compilation: str) -> FunctionalGraph:
    """Trace ``graph`` to functional ATen under the fake mode of its inputs, without gradients.

    Symbolic sizes stay symbolic.

    Raises:
        FallbackRequired: an input mutation or output alias cannot be reproduced, or a value has an unknown type.
        GraphVerificationError: the resulting graph violates a rule, for instance an operator mutates its argument.
    """
    tracing = FunctionalTracer(copy_with_provenance(graph, compilation), inputs)
    with torch.no_grad():
        module, fakes, plan = trace_functional(tracing, graph, inputs)
    module.recompile()
    verify_graph(module, FUNCTIONAL_RULES, f"functional graph of {compilation}")
    return FunctionalGraph(module, fakes, drop_redundant_fixups(plan, module))


# The tracer ran the operations from the user's lines, and their warnings were shown there.
warnings.filterwarnings("ignore", module=r"torch\.fx\.experimental\.proxy_tensor$", append=True)


def trace_functional(
    tracing: FunctionalTracer, graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]
) -> tuple[torch.fx.GraphModule, tuple[Any, ...], AotMetadata]:
    """Run ``tracing`` under make_fx and return the functional graph.

    Returns the graph without dead nodes, the fake inputs it was traced with, and the metadata to call it. The caller
    recompiles the module.

    Raises:
        FallbackRequired: an input has no fake value, a view depends on a symbol that no input provides, or an
            operator removed as dead code would raise in eager.
    """
    mode = fake_mode_of(graph, inputs)
    with mode, torch.no_grad():
        fakes = tuple(fake_at_entry(i) if i.is_tensor else i.fake for i in inputs)
    is_symbolic = _is_symbolic(fakes) or has_unbacked_values(graph)
    symbolic = enable_python_dispatcher() if is_symbolic else contextlib.nullcontext()
    num_guards = len(shape_env_guards(mode))
    with (
        mode,
        torch.fx.traceback.preserve_node_meta(),
        symbolic,
        silence_logger(FAKE_TENSOR_LOGGER),
        _restore_grad_mode(),
        functionalization.functorch_config.patch(decompose_custom_triton_ops=False),
    ):
        module = trace_lazily(tracing.run, *fakes, record_module_stack=False)
    check_missing_kernels_in_callees(graph, module)
    if torch.Generator in {type(i.example_value) for i in inputs}:
        pass_generators(tracing.graph, module.graph, inputs)
    _name_inputs(module, inputs)
    _name_after_operators(module)
    watch = PassRecorder(module)
    with watch.record_pass("eliminate_dead_code"):
        eliminate_dead_code(module)
    thread_tokens(module)
    module.meta[PASS_RECORDS_KEY] = tuple(watch.records)
    relations = tuple(dict.fromkeys(shape_env_guards(mode)[num_guards:]))
    plan = replace(tracing.build_metadata(), symbol_sources=symbol_sources(fakes), shape_assumptions=relations)
    _check_symbols_readable(plan)
    return module, fakes, plan


def drop_redundant_fixups(plan: AotMetadata, module: torch.fx.GraphModule) -> AotMetadata:
    """Remove fixups from the metadata that the operators of the graph already do themselves."""
    nodes = output_args(module.graph)
    reviewed = frozenset(n for n in plan.results_as_views if is_output_of_view_op(nodes[n]))
    # Factory operators bump the version counter once themselves, so even a bump of 0 must be applied to their results.
    writes = tuple((n, w) for n, w in plan.result_version_bumps if w or not nodes[n].all_input_nodes)
    return replace(plan, results_as_views=reviewed, result_version_bumps=writes)


def is_output_of_view_op(node: Any) -> bool:
    """Return True if a view operator returns the value, alone or as one of several outputs."""
    target = getattr(node, "target", None)
    while target is operator.getitem:
        node = node.args[0]
        target = node.target
    called = called_overload(target)
    return called is not None and any(r.alias_info is not None for r in called._schema.returns)


@contextlib.contextmanager
def _restore_grad_mode() -> Iterator[None]:
    """Restore the grad mode on exit: tracing may fail inside a ``no_grad`` region."""
    was = torch.is_grad_enabled()
    try:
        yield
    finally:
        set_grad_enabled(was)


def fake_mode_of(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> FakeTensorMode:
    """Return the fake mode that the graph was traced under; a new one if it has no tensors."""
    values = itertools.chain((i.fake for i in inputs), (n.meta.get("example_value") for n in graph.graph.nodes))
    fake = first_fake_tensor(values)
    return make_fake_mode(ShapeEnv()) if fake is None else fake.fake_mode


def _check_symbols_readable(plan: AotMetadata) -> None:
    """Raise if a view or layout depends on a symbol that no input provides."""
    readable = {name for name, *_ in plan.symbol_sources}
    views = (*(o.view for o in (*plan.outputs, *plan.detached_bases)), *(i.new_layout for i in plan.inputs))
    for size in view_sizes(views):
        if not readable.issuperset(map(str, symbols_in(size))):
            raise FallbackRequired(
                AotFallback.UNBACKED_VIEW_RETURNED, f"a returned view depends on {size}, which no input provides"
            )


def shape_env_guards(mode: FakeTensorMode) -> tuple[sympy.Basic, ...]:
    """Return all assumptions about symbolic sizes so far, in order."""
    return () if mode.shape_env is None else tuple([g.expr for g in mode.shape_env.guards])


def _is_symbolic(fakes: Sequence[Any]) -> bool:
    """Return True if any size is a symbol.

    Only then is the Python dispatcher needed: its forms of operators preserve symbols, but may compute differently.
    """
    return bool(symbolic_numbers_in(fakes))


def symbol_sources(fakes: Sequence[Any]) -> tuple[tuple[str, int, int], ...]:
    """Return where each size symbol can be read (``AotMetadata.symbol_sources``)."""
    sources: dict[str, tuple[str, int, int]] = {}
    locations: list[tuple[Any, int, int]] = []
    tensors = {n: t for n, t in tensors_by_position(fakes).items() if t._has_symbolic_sizes_strides}
    for n, fake in enumerate(fakes):
        sizes = enumerate(fake.shape) if n in tensors else [(NUMBER, fake)]
        locations += [(size, n, dim) for dim, size in sizes]
    for n, tensor in tensors.items():  # symbols that occur in no size: the input may be a slice
        locations += [(stride, n, stride_location(dim)) for dim, stride in enumerate(tensor.stride())]
        locations.append((tensor.storage_offset(), n, OFFSET))
    for number, n, dim in locations:
        if (symbol := symbol_of(number)) is not None:
            sources.setdefault(str(symbol), (str(symbol), n, dim))
    return tuple(sources.values())


def copy_with_provenance(graph: torch.fx.GraphModule, compilation: str) -> torch.fx.GraphModule:
    """Copy a graph; the provenance of each node names the node itself.

    Nodes that are derived from a node then point back to it.
    """
    copied = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    result = copied.graph_copy(graph.graph, values)
    for old, new in values.items():
        set_provenance(new, replace(provenance_of(old), nodes=(node_id("fx", compilation, old),)))
    copied.output(result)
    return LazyGraphModule(graph, copied)


class FunctionalInterpreter(torch.fx.Interpreter):
    """Interpreter of the traced graph; new ATen nodes get the provenance of the running node."""

    under_autograd = False
    """True if autograd records the run, so that grad mode calls matter."""
    extra_traceback = False
    """Option of fx: users see the reason of an error without the node at which it was raised."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.functional_by_fake: dict[int, Any] = {}
        """Functional values, by the ``id`` of the traced fake value that they represent."""
        self._keeps_composites = not creates_graph_of_gradients(graph)  # their backwards have no backward
        self._autocasts: list[Any] = []
        self._as_strided_storages: set[int] = {
            storage_id(part)
            for n in graph.graph.nodes
            if is_as_strided(n) and (fake := example_tensor(n)) is not None
            for part in innermost_tensors(fake)
        }
        """Storages of traced fake values on which ``as_strided`` is called."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run all nodes; if one raises, exit the autocast regions that are still open."""
        try:
            return super().run(*args, **kwargs)
        except BaseException:
            while self._autocasts:
                exit_autocast(self._autocasts.pop())
            raise

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node and store its value in ``functional_by_fake``.

        Raises:
            FallbackRequired: ``out=`` resizes its tensor, or a memory layout that matters would differ from eager.
        """
        deliver_interrupts()
        if n.target in GRAD_MODE_CALLS and not self.under_autograd:  # nothing here requires grad
            return None
        out_shapes = _shapes(self.fetch_args_kwargs_from_env(n)[1].get("out")) if "out" in n.kwargs else None
        if draws_random(n) and replace_composite(n.target) is n.target:
            self._check_random_memory_order(n)
        traced = n.meta.get("example_value")
        given_back = _returned_operand(n, traced)
        if given_back is not None:
            return self.env[given_back]
        with torch.fx.traceback.set_current_meta(n):
            if facts_of_node(n).name == "resize" and self._grows_unshared_storage(n):
                result = self._replace_growth(n)
            elif self.under_autograd and mutates_layout(n):
                result = self._replace_layout_mutation(n)
            else:
                is_callee = graph_callable_of(n) is not NO_CALLABLE
                with OverlappingWriteMode() if is_callee else contextlib.nullcontext():
                    result = self._call(n)
        # If ``out`` is a view, only the traced fake value shows the resize.
        if out_shapes is not None and (out_shapes != _shapes(result) or out_shapes != _shapes(traced)):
            raise FallbackRequired(AotFallback.OUT_RESIZED, f"{n.name} resizes its out= tensor")
        self.functional_by_fake[id(traced)] = result
        if self._as_strided_storages and (may_mutate(n) or is_as_strided(n)):
            self._check_as_strided_layouts(n)
        if has_unbacked_symbols(traced):
            rebind_unbacked(traced, result)
        if n.target is enter_autocast:
            self._autocasts.append(result)
        elif n.target is exit_autocast:
            self._autocasts.pop()
        return result

    def _call(self, n: torch.fx.Node) -> Any:
        try:
            return super().run_node(n)
        finally:
            if symbolic_calls:
                forget_symbolic_placements()

    def _replace_layout_mutation(self, n: torch.fx.Node) -> Any:
        """Replace an in-place layout change by a view.

        Autograd tracks views by how they were created, and would not see the change.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        was = args[0]
        with torch.enable_grad():  # autograd tracks the tensor as before, whatever the grad mode of the layout change
            view = getattr(was, facts_of_node(n).name)(*args[1:], **kwargs)
        return self._replace_value(was, view)

    def _replace_value(self, was: Any, new_value: Any) -> Any:
        for node, value in self.env.items():
            if value is was:
                self.env[node] = new_value
                self.functional_by_fake[id(node.meta.get("example_value"))] = new_value
        return new_value

    def _grows_unshared_storage(self, n: torch.fx.Node) -> bool:
        """Return True if ``resize_`` adds elements to a tensor of the graph without aliases."""
        args, _ = self.fetch_args_kwargs_from_env(n)
        was = args[0]
        if was.requires_grad or math.prod(_resize_sizes(args)) <= math.prod(_shapes(was)[0]):
            return False
        own, values = storage_id(n.all_input_nodes[0].meta["example_value"]), self.env.items()
        if any(value is was and node.op not in {"call_function", "call_method"} for node, value in values):
            return False
        other_tensors = (
            t for node, value in values if value is not was for t in tensors_in(node.meta.get("example_value"))
        )
        return all(storage_id(t) != own for t in other_tensors)

    def _replace_growth(self, n: torch.fx.Node) -> Any:
        """Replace a growing ``resize_`` by the functional operator.

        Functionalization rejects it since torch 2.15: ``FunctionalTensor`` reads the storage of the tensor that it wraps, and
        the second reference to the storage passes for a view.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return self._replace_value(args[0], torch.ops.aten.resize(args[0], _resize_sizes(args), **kwargs))

    def _check_as_strided_layouts(self, n: torch.fx.Node) -> None:
        """Raise if memory that ``as_strided`` reads has another layout than in eager."""
        nodes = (*self.env, n)
        current = {node: self.functional_by_fake.get(id(node.meta.get("example_value"))) for node in nodes}
        for traced, value in _traced_and_functional(current):
            if storage_id(traced) in self._as_strided_storages and not is_same_layout(value, unwrap_functional(value)):
                raise FallbackRequired(
                    AotFallback.AS_STRIDED_OF_OTHER_LAYOUT,
                    f"{n.name} returns other strides than in eager, and as_strided reads its memory",
                )

    def _check_random_memory_order(self, n: torch.fx.Node) -> None:
        """Raise if random numbers would fill memory in another order than in eager.

        Kernels generate random numbers in memory order, so the operand must have eager's layout.
        """
        for traced, value in _traced_and_functional({node: self.env.get(node) for node in n.all_input_nodes}):
            if traced.shape == value.shape and not is_same_layout(traced, unwrap_functional(value)):
                raise FallbackRequired(
                    AotFallback.RANDOM_MEMORY_ORDER,
                    f"{n.name} fills random numbers in memory order, and the functional graph has another memory order",
                )
            if may_mutate(n) and not _draws_same_in_place(n, traced):
                raise FallbackRequired(
                    AotFallback.RANDOM_MEMORY_ORDER,
                    f"{n.name} fills random numbers in memory order, and its functional operator has another memory order",
                )

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, with composite functions replaced by the engine's own operators."""
        if (
            target is getattr and args[1] == "data"
        ):  # same storage without autograd history; the metadata records that it is detached
            return args[0].detach()
        if target is flex_attention_op:
            return expand_flex_attention(*args, **kwargs)
        with _form_of_operator(target, args, kwargs):
            replaced = replace_composite(target, needs_grad=self.under_autograd) if self._keeps_composites else target
            return super().call_function(replaced, args, without_absent_generator(kwargs))


def _form_of_operator(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
    """Choose the form of an operator, in C++ or Python, whose functional graph is right."""
    facts = facts_of(target)
    samples_in_python = facts.name == "dropout" and 1.0 in (*args[1:2], kwargs.get("p"))
    if samples_in_python or facts.name.startswith(
        "multilabel_margin_loss"
    ):  # in Python, labels after the first -1 count
        return DisablePythonDispatcher()
    # cuDNN's batch norm writes running statistics that no schema declares, and fuses with nothing.
    if facts.running_stats and any(t.device.type != "cpu" for t in tensors_in((args, kwargs))):
        return enable_python_dispatcher()
    return contextlib.nullcontext()


def _draws_same_in_place(n: torch.fx.Node, into: torch.Tensor) -> bool:
    """Return True if sampling into a new tensor produces the numbers of eager's in-place call.

    Kernels fill memory in order; some treat contiguous memory differently.
    """
    name = facts_of_node(n).name
    if name == "bernoulli":
        return is_same_layout(into, torch.empty_like(into, memory_format=torch.contiguous_format))
    return name not in ("normal", "log_normal") or is_same_layout(into, torch.empty_like(into))


def _returned_operand(n: torch.fx.Node, traced: Any) -> torch.fx.Node | None:
    """Return the operand that a torch operator returned unchanged, or None.

    The operator's symbolic form may return a copy instead (``dropout``).
    """
    if example_tensor(n) is None or may_mutate(n) or n.op not in ("call_function", "call_method"):
        return None
    if isinstance(n.target, (GraphCallable, HigherOrderOperator)):
        return None
    return next((a for a in n.all_input_nodes if a.meta.get("example_value") is traced), None)


def _resize_sizes(args: Sequence[Any]) -> Sequence[Any]:
    return args[1] if isinstance(args[1], Sequence) else args[1:]


def _shapes(value: Any) -> list[torch.Size]:
    # The wrappers of a resized tensor, functional tensors and subclasses, still have the old shape.
    tensors = [p for t in tensors_in(value) for p in innermost_tensors(t)]
    functional = functional_tensors(tensors)
    return [unwrap_functional(v).shape for v in functional] if functional else [v.shape for v in tensors]


class FunctionalTracer:
    """One run of the graph over functional tensors."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
        self._graph = graph
        self._inputs = inputs
        self._mutated_results: dict[int, int] = {}
        self._outputs: OutputAliasAnalyzer | None = None
        self._in_grad_mode = torch.is_grad_enabled()
        self.freed_results: tuple[tuple[int, tuple[int, ...]], ...] = ()
        """Field of ``AotMetadata``."""
        self.mutations_hidden_from_autograd: frozenset[int] = frozenset()
        """Positions of inputs that require grad and are mutated without autograd seeing it."""

    @property
    def graph(self) -> torch.fx.Graph:
        """The traced graph, with the provenance that functional nodes get."""
        return self._graph.graph

    def make_interpreter(self) -> FunctionalInterpreter:
        """Return the interpreter that runs the traced graph."""
        return FunctionalInterpreter(self._graph)

    def graph_arguments(self, originals: list[Any]) -> list[Any]:
        """Return the interpreter's arguments; the joint tracer replaces leaves that are mutated."""
        return originals

    def run(self, *args: Any) -> tuple[Any, ...]:
        """Return the results for the outputs, then the new contents of mutated inputs."""
        return self.trace_results(args)[0]

    def trace_results(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]]:
        """Run the graph over functional tensors.

        Returns the results; for each result, the functional tensor that it is the value of; and the functional
        arguments as the caller has them.
        """
        interpreter = self.make_interpreter()
        with functionalization.FunctionalTensorMode() as mode:
            set_mode_tokens(mode)
            originals = tree_map_only(torch.Tensor, functionalization.FunctionalTensor.to_functional, list(args))
            # An input whose layout changes in place is read through an alias that has the original layout.
            mutated = [
                w.detach() if is_layout_mutated(i.fake, i.example_value) else w
                for i, w in zip(self._inputs, originals, strict=True)
            ]
            arguments = self.graph_arguments(originals)
            returned = interpreter.run(*arguments)
        for i, w in zip(self._inputs, arguments, strict=True):
            interpreter.functional_by_fake[id(i.fake)] = w
        outputs = OutputAliasAnalyzer(
            self._inputs, args, interpreter.functional_by_fake, self._graph.graph, in_grad_mode=self._in_grad_mode
        )
        for node, value in zip(output_args(self._graph.graph), returned, strict=True):
            outputs.add(node, value)
        new = self._mutated_contents(args, mutated, len(outputs.results.values))
        self._outputs = outputs
        return (
            (*outputs.results.values, *new),
            (*outputs.results.tensors, *(arguments[n] for n in self._mutated_results)),
            originals,
        )

    def _mutated_contents(self, args: Sequence[Any], wrapped: Sequence[Any], first: int) -> list[Any]:
        self._mutated_results = {}
        new: list[Any] = []
        for n, arg in tensors_by_position(args).items():
            wrapper = wrapped[n]
            value = unwrap_functional(wrapper)
            if value is arg or not functionalization.functionalize_has_data_mutation(wrapper.elem):
                continue
            if value.dtype != arg.dtype or tuple(value.shape) != tuple(arg.shape):
                raise FallbackRequired(
                    AotFallback.TENSOR_METADATA_CHANGE, f"{self._inputs[n].name} gets another storage in place"
                )
            if has_internal_overlap(arg):
                raise FallbackRequired(
                    AotFallback.WRITE_TO_OVERLAPPING_ELEMENTS,
                    f"{self._inputs[n].name} is mutated, and its elements overlap in memory",
                )
            self._mutated_results[n] = first + len(new)
            new.append(value.clone() if storage_id(value) in map(storage_id, tensors_in(args)) else value)
        return new

    def build_metadata(self) -> AotMetadata:
        """Return the calling convention found by the run."""
        assert self._outputs is not None
        devices = tuple(d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d))
        relaid_inputs = inputs_with_layout_mutated_in_grad_mode(self._graph, is_on=self._in_grad_mode)
        since = (
            inputs_read_after_last_write(self._graph, is_on=self._in_grad_mode) & self.mutations_hidden_from_autograd
            if self.mutations_hidden_from_autograd
            else frozenset()
        )
        return AotMetadata(
            tuple(self._input(n, i, relaid_inputs, since) for n, i in enumerate(self._inputs)),
            tuple(self._outputs.outputs),
            len(self._outputs.results.values) + len(self._mutated_results),
            autocast_devices=devices,
            detached_bases=tuple(self._outputs.roots),
            result_version_bumps=tuple(self._outputs.results.write_counts),
            results_as_views=frozenset(self._outputs.results.non_views),
            result_strides=tuple(self._outputs.results.strides.items()),
            freed_results=self.freed_results,
            calls_autograd=calls_autograd(self._graph),
        )

    def _input(self, n: int, i: GraphInput, relaid_inputs: Collection[int], since: Collection[int]) -> InputAliasInfo:
        if not i.is_tensor:
            return InputAliasInfo(i.name, is_tensor=False)
        layout = mutated_layout(i) if is_layout_mutated(i.fake, i.example_value) else None
        counts = not (i.fake.is_inference() or i.is_inference)
        writes = write_count(i.fake) - i.initial_version
        return InputAliasInfo(
            i.name,
            is_tensor=True,
            is_mutated=n in self._mutated_results,
            result_index=self._mutated_results.get(n, -1),
            version_bumps=writes,
            has_version_counter=counts,
            new_layout=layout,
            mutation_hidden_from_autograd=n in self.mutations_hidden_from_autograd,
            metadata_mutation_seen_by_autograd=n in relaid_inputs,
            regenerates_grad_fn=n in since,
        )


def _traced_and_functional(
    values: Mapping[torch.fx.Node, Any],
) -> Iterator[tuple[torch.Tensor, functionalization.FunctionalTensor]]:
    """Yield the traced tensor and the functional tensor of nodes that have both.

    A tensor subclass yields one pair for each of its parts.
    """
    for node, value in values.items():
        if (traced := example_tensor(node)) is not None:
            pairs = zip(innermost_tensors(traced), innermost_tensors(value), strict=True)
            yield from ((part, functional) for part, functional in pairs if functional_tensors((functional,)))


def _name_after_operators(module: torch.fx.GraphModule) -> None:
    """Name the calls of operators that write after the operators, not their wrapper."""
    for node in module.graph.nodes:
        operator = unwrap_functionalized(node.target, node.args)
        if operator is not node.target:
            launch = launch_of(operator)
            node._rename(launch.name if launch else operator._schema.name.rpartition(":")[2])


def _name_inputs(module: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    used_names = {n.name: n for n in module.graph.nodes}
    for node, i in zip(placeholders, inputs, strict=False):
        if node.name != i.name:
            if i.name in used_names:
                used_names[i.name]._rename(f"{i.name}_value")
            node._rename(i.name)
        node.target = node.name
        set_provenance(node, replace(provenance_of(node), note=i.source.expr))
