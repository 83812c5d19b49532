"""Unwrap tensor subclass inputs before the graph, and rewrap outputs after it.

The functional graph has plain tensors only. Autograd nodes around the compiled graph flatten the gradients of
outputs, and unflatten those of inputs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import sympy
import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.functional_tensors import innermost_tensors
from engine.aot.grad_mode import needs_autograd
from engine.aot.layout_mutation import is_layout_mutated
from engine.aot.node_properties import output_args
from engine.aot.storage_geometry import storage_id
from engine.aot.subclass_spec import SubclassSpec
from engine.aot.version_counters import set_version_counter, version_counter_writes, write_count
from engine.aot.wrappers.base import PreCompileResult, TracedCall
from engine.aot.wrappers.codegen import WrapperCode
from engine.aot.wrappers.double_backward import EagerRerun, current_autocast, rng_devices_of
from engine.aot.wrappers.replace_placeholders import replace_placeholders
from engine.aot.wrappers.subclass_grads import RerunContext, SubclassGradient, flatten_inputs, flatten_with_grad
from engine.ir.fallback import FallbackRequired
from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.aliasing import DisjointStorage
from engine.ir.introspection.symbols import symbol_of
from engine.ir.node_values import example_tensor, tensors_in
from engine.ir.sources.attributes import AttrSource
from engine.ir.traced_frame import GraphInput
from engine.records.aot import WrapperAction
from engine.torch_private.dispatch import is_traceable_wrapper_subclass

NAME = "tensor subclasses"
NEEDS = attrgetter("has_subclasses")

_version_of = operator.attrgetter("_version")


SizeLocation = tuple[int, tuple[str, ...], int]
"""Input, attribute path to an inner tensor, dimension of that; -1 for a scalar input."""


@dataclass(frozen=True)
class SubclassOutput:
    """Output of the original call: an input, or built from results ``first_result`` onward."""

    first_result: int
    spec: SubclassSpec | None = None
    input_index: int | None = None
    requires_grad: bool = False
    write_count: int = 0
    """Version of the rebuilt tensor: how often the traced code mutated it."""


@dataclass(frozen=True)
class SubclassMetadata:
    """Specs of the subclass inputs and outputs of a call.

    ``input_specs`` has None for inputs passed unchanged. ``version_writes`` has pairs (an input with the version
    counter, bump).
    """

    input_specs: tuple[SubclassSpec | None, ...]
    version_writes: tuple[tuple[int, int], ...]
    counted_inner: tuple[tuple[int, int], ...]
    """Inner tensors with a version counter: input, and position among its inner tensors."""
    outputs: tuple[SubclassOutput, ...]
    gradients: tuple[SubclassGradient | None, ...]
    """Per input, the spec of its gradient if it is a subclass that requires grad."""
    rerun: EagerRerun
    """Eager rerun, for tangents of another class than their output."""
    symbol_locations: Mapping[sympy.Symbol, SizeLocation]
    """Location from which each size symbol is read."""

    def read_sizes(self, inputs: Sequence[Any]) -> dict[sympy.Symbol, int]:
        """Read the value of each symbol from the sizes of a call's inputs."""
        return {symbol: _read(inputs[n], path, dim) for symbol, (n, path, dim) in self.symbol_locations.items()}


def pre_compile(call: TracedCall) -> PreCompileResult[TracedCall]:
    """Replace subclass inputs by their inner tensors.

    Raises:
        FallbackRequired: a mutated subclass needs gradients, its sizes cannot be tracked, or an output is a view of
            a subclass.
    """
    input_specs = tuple(
        SubclassSpec.from_tensor(i.name, i.fake) if is_traceable_wrapper_subclass(i.fake) else None for i in call.inputs
    )
    outputs = output_args(call.graph.graph)
    trains = needs_autograd(call.graph, call.inputs)
    for i, parts in zip(call.inputs, input_specs, strict=True):
        if parts is not None:
            _check(i, trains=trains)
    gradients = tuple(
        SubclassGradient(i.name, p) if trains and p is not None and i.example_value.requires_grad else None
        for i, p in zip(call.inputs, input_specs, strict=True)
    )
    inputs = tuple(
        plain
        for i, p, g in zip(call.inputs, input_specs, gradients, strict=True)
        for plain in _inner_inputs(i, p, g is not None)
    )
    planned = _outputs(call, outputs, trains=trains)
    if any(gradients):
        _check_no_aliasing(call, gradients, outputs)
    graph = _rewrite_for_inner_tensors(call, input_specs, gradients, planned)
    counted = [
        n
        for n, (i, p) in enumerate(zip(call.inputs, input_specs, strict=True))
        if p is not None and not i.fake.is_inference() and not i.example_value.is_inference()
    ]
    counts = tuple((n, w) for n, w in version_counter_writes(call.inputs, counted) if w)
    plan = SubclassMetadata(
        input_specs,
        counts,
        _counted_inner(call, input_specs),
        planned,
        gradients,
        _make_eager_rerun(call, planned),
        _symbol_locations(call, input_specs, planned),
    )
    return PreCompileResult(
        TracedCall(graph, inputs), _describe_actions(call, input_specs, gradients, planned), plan, _guards(inputs)
    )


def _counted_inner(call: TracedCall, input_specs: Sequence[SubclassSpec | None]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (n, k)
        for n, (i, parts) in enumerate(zip(call.inputs, input_specs, strict=True))
        if parts is not None
        for k, inner in enumerate(parts.flatten(i.example_value))
        if not inner.is_inference()
    )


def _symbol_locations(
    call: TracedCall, input_specs: Sequence[SubclassSpec | None], outputs: Sequence[SubclassOutput]
) -> Mapping[sympy.Symbol, SizeLocation]:
    """Return the location of each symbol in the sizes of subclasses.

    Raises:
        FallbackRequired: a symbol is not a size of any plain tensor, so the graph cannot read it.
    """
    locations: dict[sympy.Symbol, SizeLocation] = {}
    for n, (i, parts) in enumerate(zip(call.inputs, input_specs, strict=True)):
        inside = [((), i.fake)] if parts is None else zip(parts.inner_paths(), parts.flatten(i.fake), strict=True)
        for path, value in inside:
            sizes = enumerate(value.shape) if tensors_in(value) else [(-1, value)]
            for dim, size in sizes:
                if (symbol := symbol_of(size)) is not None:
                    locations.setdefault(symbol, (n, path, dim))
    for parts in (*input_specs, *(o.spec for o in outputs)):
        if parts is not None and parts.is_dynamic and (unused_names := parts.symbols() - locations.keys()):
            message = (
                f"a {parts.type.__name__} has a size ({min(map(str, unused_names))}) that none of its inner tensors has"
            )
            raise FallbackRequired(AotFallback.SUBCLASS_DYNAMIC, message)
    return locations


def _read(value: Any, path: Sequence[str], dim: int) -> int:
    for name in path:
        value = getattr(value, name)
    return int(value if dim < 0 else value.shape[dim])


def _fake(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _is_wrapper(value: Any) -> bool:
    return is_traceable_wrapper_subclass(value)


def _check(i: GraphInput, *, trains: bool) -> None:
    kind = type(i.fake).__name__
    if is_layout_mutated(i.fake, i.example_value):
        raise FallbackRequired(
            AotFallback.SUBCLASS_LAYOUT_MUTATION,
            f"an in-place operation changes the shape or strides of {i.name}, a {kind}",
        )
    if trains and (i.fake.is_inference() or write_count(i.fake) != i.initial_version):
        raise FallbackRequired(
            AotFallback.SUBCLASS_MUTATION_NEEDS_GRAD, f"{i.name}, a {kind}, is mutated, and gradients are needed"
        )


def _check_no_aliasing(call: TracedCall, gradients: Sequence[SubclassGradient | None], outputs: Sequence[Any]) -> None:
    """Raise unless gradients flow only through tensors that no output aliases.

    They may not alias each other either.
    """
    storages: list[int] = []
    for i, gradient in zip(call.inputs, gradients, strict=True):
        if gradient is None:
            continue
        storages += map(storage_id, innermost_tensors(i.fake))
    results = [f for o in outputs if (f := example_tensor(o)) is not None and all(f is not i.fake for i in call.inputs)]
    if len(set(storages)) < len(storages) or any(
        storage_id(p) in storages for f in results for p in innermost_tensors(f)
    ):
        raise FallbackRequired(
            AotFallback.SUBCLASS_ALIAS_NEEDS_GRAD,
            "gradients are needed through a tensor subclass that shares memory with another tensor",
        )


def _inner_inputs(i: GraphInput, parts: SubclassSpec | None, needs_gradient: bool = False) -> Iterator[GraphInput]:
    if parts is None:
        yield i
        return
    for path, fake, real in zip(
        parts.inner_paths(), parts.flatten(i.fake), parts.flatten(i.example_value), strict=True
    ):
        origin: Any = i.source
        for name in path:
            origin = AttrSource(origin, name)
        # Torch counts no versions of inner tensors: the outer tensor's version shows that one may have changed.
        version = 0 if i.fake.is_inference() or write_count(i.fake) == i.initial_version else -1
        plain = real.detach().requires_grad_() if needs_gradient else real
        yield GraphInput("_".join((i.name, *path)), origin, fake, plain, version)


def _outputs(call: TracedCall, outputs: Sequence[Any], *, trains: bool) -> tuple[SubclassOutput, ...]:
    shared = [storage_id(f) for i in call.inputs if i.is_tensor for f in innermost_tensors(i.fake)]
    described: list[SubclassOutput] = []
    first = 0
    for node in outputs:
        fake = _fake(node)
        input_number = next((n for n, i in enumerate(call.inputs) if _is_wrapper(fake) and i.fake is fake), None)
        if input_number is not None:
            described.append(SubclassOutput(first, input_index=input_number))
            continue
        parts = SubclassSpec.from_tensor(str(node), fake) if _is_wrapper(fake) else None
        if parts is not None:
            inside = [storage_id(f) for f in parts.flatten(fake)]
            if fake._is_view() or any(s in shared for s in inside) or len(set(inside)) < len(inside):
                raise FallbackRequired(
                    AotFallback.SUBCLASS_ALIAS_RETURNED,
                    f"{node} is a {type(fake).__name__} that shares memory with another tensor",
                )
            shared += inside
        needs_gradient = trains and parts is not None and fake.requires_grad
        if needs_gradient and fake.is_leaf:
            raise FallbackRequired(
                AotFallback.SUBCLASS_LEAF_RETURNED,
                f"{node} is a {type(fake).__name__} created in the graph that requires grad",
            )
        writes = 0 if parts is None or fake.is_inference() else write_count(fake)
        described.append(SubclassOutput(first, parts, requires_grad=needs_gradient, write_count=writes))
        first += 1 if parts is None else len(list(parts.inner_paths()))
    return tuple(described)


def _rewrite_for_inner_tensors(
    call: TracedCall,
    input_specs: Sequence[SubclassSpec | None],
    gradients: Sequence[SubclassGradient | None],
    outputs: Sequence[SubclassOutput],
) -> torch.fx.GraphModule:
    def emit(copy: torch.fx.Graph, n: int, node: torch.fx.Node, copies: dict[torch.fx.Node, Any]) -> torch.fx.Node:
        parts = input_specs[n]
        if parts is None:
            return copy.node_copy(node)
        gradient = gradients[n]
        build = parts.unflatten if gradient is None else gradient.unflatten_input
        return _add_unflatten(copy, call.inputs[n], parts, build, node)

    def returned(copy: torch.fx.Graph, values: Sequence[Any]) -> list[Any]:
        inner_results: list[Any] = []
        for output, value, old in zip(outputs, values, output_args(call.graph.graph), strict=True):
            if output.input_index is None:
                inner_results += [value] if output.spec is None else _add_flatten(copy, value, _fake(old), output)
        return inner_results

    return replace_placeholders(call.graph, emit, returned=returned)


def _add_unflatten(
    copy: torch.fx.Graph, i: GraphInput, parts: SubclassSpec, build: Callable[..., Any], node: torch.fx.Node
) -> torch.fx.Node:
    plain = []
    for inner_input in _inner_inputs(i, parts):
        plain.append(copy.placeholder(inner_input.name))
        plain[-1].meta["example_value"] = inner_input.fake
    wrapped = copy.create_node("call_function", GraphCallable("wrap_subclass", build), tuple(plain), name=node.name)
    wrapped.meta.update(node.meta)
    return wrapped


def _add_flatten(copy: torch.fx.Graph, node: torch.fx.Node, fake: Any, output: SubclassOutput) -> list[torch.fx.Node]:
    parts = output.spec
    assert parts is not None
    if output.requires_grad:
        return _add_flatten_with_grad(copy, node, fake, parts)
    inner_nodes = []
    for path in parts.inner_paths():
        part, value = node, fake
        for name in path:
            part, value = copy.call_function(_inner_tensor, (part, name)), getattr(value, name)
            part.meta.update(node.meta, example_value=value)
        inner_nodes.append(part)
    return inner_nodes


def _add_flatten_with_grad(
    copy: torch.fx.Graph, node: torch.fx.Node, fake: Any, parts: SubclassSpec
) -> list[torch.fx.Node]:
    values = tuple(p.detach().requires_grad_() for p in parts.flatten(fake))
    unwrapped = copy.call_function(
        GraphCallable("unwrap_subclass", functools.partial(flatten_with_grad, parts)), (node,)
    )
    unwrapped.meta.update(node.meta, example_value=values)
    inner_nodes = []
    for n, value in enumerate(values):
        inner_nodes.append(copy.call_function(operator.getitem, (unwrapped, n)))
        inner_nodes[-1].meta.update(node.meta, example_value=value)
    return inner_nodes


def _get_part(tensor: Any, name: str) -> Any:
    return getattr(tensor, name)


_inner_tensor = GraphCallable("part", _get_part)


def _describe_actions(
    call: TracedCall,
    input_specs: Sequence[SubclassSpec | None],
    gradients: Sequence[SubclassGradient | None],
    outputs: Sequence[SubclassOutput],
) -> tuple[WrapperAction, ...]:
    why = "the functional graph computes with plain tensors"
    input_actions = [
        WrapperAction(i.name, f"passed as its {' and '.join('.'.join(path) for path in p.inner_paths())}", why)
        for i, p in zip(call.inputs, input_specs, strict=True)
        if p is not None
    ]
    output_actions = [
        WrapperAction(f"output {n}", f"wrapped as a {o.spec.type.__name__}", "eager returns the subclass")
        for n, o in enumerate(outputs)
        if o.spec is not None
    ]
    joined = [
        WrapperAction(i.name, "its gradient is wrapped", "in eager, the gradient of a subclass has its type")
        for i, g in zip(call.inputs, gradients, strict=True)
        if g is not None
    ]
    return (*input_actions, *output_actions, *joined)


def _guards(inputs: Sequence[GraphInput]) -> tuple[DisjointStorage, ...]:
    """Return guards that mutated inner tensors share no storage with other inputs.

    The tracer guards only the outer tensors.
    """
    tensors = [i for i in inputs if i.has_real_tensor]
    guards, alone = [], []
    for i in tensors:
        if i.fake.is_inference() or write_count(i.fake) == i.initial_version:
            continue
        apart = [o.source for o in tensors if storage_id(o.example_value) != storage_id(i.example_value)]
        if len(apart) == len(tensors) - 1:
            alone.append(i.source)
        elif apart:
            guards.append(DisjointStorage(i.source, tuple(apart)))
    if alone and len(tensors) > 1:  # one guard: one for each would compare all pairs
        first, *others = dict.fromkeys((*alone, *(i.source for i in tensors)))
        guards.append(DisjointStorage(first, tuple(others), len(dict.fromkeys(alone))))
    return tuple(guards)


def _make_eager_rerun(call: TracedCall, outputs: Sequence[SubclassOutput]) -> EagerRerun:
    """Return the eager rerun; tangents may come back through each subclass output."""
    nodes = output_args(call.graph.graph)
    needing = tuple(n for n, i in enumerate(call.inputs) if i.requires_grad)
    names = tuple(str(node) if o.requires_grad else None for node, o in zip(nodes, outputs, strict=True))
    examples = [i.example_value for i in call.inputs if i.has_real_tensor]
    written = _mutated_inputs(call)
    reason = f"{call.inputs[min(written)].name} was mutated" if written else ""
    return EagerRerun(call.graph, names, needing, written, (), rng_devices_of(examples), current_autocast(), reason)


def _mutated_inputs(call: TracedCall) -> frozenset[int]:
    tensors = [(n, i) for n, i in enumerate(call.inputs) if i.is_tensor]
    return frozenset(n for n, i in tensors if i.fake.is_inference() or write_count(i.fake) != i.initial_version)


def mark_unsaved_inputs(change: PreCompileResult[TracedCall], unused_names: Collection[str]) -> None:
    """Mark subclass inputs of which the backward reads no inner tensor.

    ``unused_names`` are names of inputs of the compiled graph.
    """
    names = iter(change.call.inputs)
    plan: SubclassMetadata = change.runtime_metadata
    for parts, gradient in zip(plan.input_specs, plan.gradients, strict=True):
        own = [next(names).name for _ in (parts.inner_paths() if parts is not None else ("",))]
        if gradient is not None:
            gradient.is_saved_for_backward = not all(n in unused_names for n in own)


def post_compile(change: PreCompileResult[TracedCall]) -> WrapperCode:
    """Return code that flattens the inputs, sets the versions, and unflattens the outputs.

    As in autograd, mutations count for outer tensors, not for inner ones.
    """
    plan: SubclassMetadata = change.runtime_metadata
    inputs = "".join(f"i{n}, " for n in range(len(plan.input_specs)))
    names: dict[str, Any] = {"flatten_inputs": flatten_inputs, "set_version": set_version_counter}
    before, arguments = _flatten_lines(plan)
    if any(p is not None and p.is_dynamic for p in (*plan.input_specs, *(o.spec for o in plan.outputs))):
        before.insert(0, f"sizes = read_sizes(({inputs}))")
        names["read_sizes"] = plan.read_sizes
    else:
        names["sizes"] = {}
    names["gradients"] = [g for g in plan.gradients if g is not None]
    after: list[str] = []
    if plan.counted_inner:
        inner = "".join(f"p{n}_{k}, " for n, k in plan.counted_inner)
        before.append(f"counted, versions = read_versions(({inputs}), ({inner}))")
        after.append("set_version(counted, versions)")
        names["read_versions"] = _read_versions
    if plan.version_writes:
        after.append(f"increment_versions(({''.join(f'i{n}, ' for n, _ in plan.version_writes)}))")
        names["increment_versions"] = functools.partial(
            _increment_versions, tuple(writes for _, writes in plan.version_writes)
        )
    if any(o.requires_grad for o in plan.outputs):
        before.append(f"born = capture(({inputs}))")
        names["capture"] = functools.partial(RerunContext.capture, plan.rerun)
    else:
        names["born"] = None
    names |= {f"output{n}": functools.partial(_output, n, o) for n, o in enumerate(plan.outputs)}
    return WrapperCode(
        before=tuple(before),
        arguments=tuple(arguments),
        num_results=sum(map(_count_results, plan.outputs)),
        after=tuple(after),
        output_exprs=tuple(_output_expr(n, o) for n, o in enumerate(plan.outputs)),
        namespace=names,
    )


def _flatten_lines(plan: SubclassMetadata) -> tuple[list[str], list[str]]:
    """Return the lines that read the inner tensors, and the arguments of the call.

    Inputs that require grad are flattened at once, by one autograd node.
    """
    lines: list[str] = []
    arguments: list[str] = []
    wholes = "".join(f"i{n}, " for n, g in enumerate(plan.gradients) if g is not None)
    first = 0
    for n, (parts, gradient) in enumerate(zip(plan.input_specs, plan.gradients, strict=True)):
        if parts is None:
            arguments.append(f"i{n}")
            continue
        paths = list(parts.inner_paths())
        reads = [functools.reduce(lambda read, name: f"getattr({read}, {name!r})", path, f"i{n}") for path in paths]
        lines += [f"p{n}_{k} = {read}" for k, read in enumerate(reads)]
        if gradient is None:
            arguments += [f"p{n}_{k}" for k in range(len(paths))]
        else:
            arguments.append(f"*flat[{first}:{first + len(paths)}]")
            first += len(paths)
    if wholes:
        lines.append(f"flat = flatten_inputs(gradients, ({wholes}), sizes)")
    return lines, arguments


def _read_versions(inputs: Sequence[Any], inner: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the inner tensors that are not inputs themselves, and their versions."""
    ids = set(map(id, inputs))
    if not ids.isdisjoint(map(id, inner)):
        inner = tuple(p for p in inner if id(p) not in ids)
    return inner, tuple(map(_version_of, inner))


def _increment_versions(writes: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    for number in range(max(writes)):
        torch.autograd.graph.increment_version([t for t, w in zip(tensors, writes, strict=True) if w > number])


def _count_results(output: SubclassOutput) -> int:
    if output.input_index is not None:
        return 0
    return 1 if output.spec is None else output.spec.count_inner()


def _output_expr(number: int, output: SubclassOutput) -> str:
    if output.input_index is not None:
        return f"i{output.input_index}"
    if output.spec is None:
        return f"r{output.first_result}"
    results = "".join(f"r{output.first_result + k}, " for k in range(output.spec.count_inner()))
    return f"output{number}(({results}), born, sizes)"


def _output(
    number: int,
    output: SubclassOutput,
    plain: Sequence[Any],
    born: RerunContext | None,
    sizes: Mapping[sympy.Symbol, int],
) -> Any:
    """Return a subclass output, built from its inner tensors."""
    assert output.spec is not None
    parts = output.spec.with_sizes(sizes)
    subclass = (
        born.unflatten_output(number, parts, plain)
        if born is not None and output.requires_grad
        else parts.unflatten(*plain)
    )
    if output.write_count:
        set_version_counter((subclass,), (output.write_count,))
    return subclass
