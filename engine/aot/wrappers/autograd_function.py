"""Generate the ``autograd.Function`` of a training call; its backward is compiled lazily."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import attrgetter

import torch
import torch.fx

from engine.aot.autograd_function_metadata import AutogradMetadata
from engine.aot.version_counters import set_version_counter
from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode
from engine.aot.wrappers.double_backward import EagerRerun
from engine.aot.wrappers.lazy_backward import LazyBackward, match_tangent_layout
from engine.graph.functionalize_rng import get_rng_states
from engine.ir.aot.inlinable_backward import INLINABLE_ATTR, InlinableBackward
from engine.records.aot import WrapperAction

NAME = "autograd"
NEEDS = attrgetter("autograd")

_DETACHED_MESSAGE = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""Message of torch's own nodes; functions written in Python do not raise it."""


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall] | None:
    """Return actions for gradients, results, saved values and backward; None without one."""
    metadata, backward = call.autograd, call.backward
    if metadata is None or backward is None:
        return None
    why, names = "the traced graph differentiates with respect to it", call.input_names
    actions = [WrapperAction(names[n], "gets a gradient from the backward graph", why) for n in metadata.grad_inputs]
    actions += [
        WrapperAction(f"result {n}", "marked as not differentiable", "it requires no grad in eager")
        for n in metadata.non_differentiable_results
    ]
    tensors, numbers = metadata.num_saved_tensors, metadata.num_saved_scalars
    count = f"{tensors} tensor{'s' * (tensors != 1)}" + (
        f" and {numbers} number{'s' * (numbers != 1)}" if numbers else ""
    )
    actions.append(WrapperAction(count, "saved for the backward", "the backward graph reads them"))
    actions.append(WrapperAction("backward", "compiled when it is first needed", "many calls never run a backward"))
    unsupported = backward.rerun.why_unsupported
    twice = f"unsupported: {unsupported}" if unsupported else "runs the traced call again under eager autograd"
    actions.append(WrapperAction("backward under create_graph", twice, "its gradients must be differentiable"))
    return PreCompileResult(call, tuple(actions), (metadata, backward))


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return code with the ``autograd.Function`` around the forward graph."""
    metadata: AutogradMetadata
    backward: LazyBackward
    metadata, backward = change.runtime_metadata
    hidden = metadata.inputs_without_gradient
    return WrapperCode(
        definitions=tuple(_generate_source(metadata, backward.rerun, is_noted=backward.probe is not None)),
        callee="apply",
        after_call=_restore_inputs(metadata),
        # In a tuple, autograd finds no tensor.
        arguments=tuple(f"(i{n},)" if n in hidden else f"i{n}" for n in range(metadata.num_inputs)) if hidden else None,
        namespace={
            "__name__": __name__,
            "Function": torch.autograd.Function,
            "backward": backward,
            "inlinable_backward": make_inlinable_backward(metadata, backward),
            "set_version": set_version_counter,
            "ref": weakref.ref,
            "DETACHED": _DETACHED_MESSAGE,
            "NOTHING": frozenset(),
            "drawn_from": get_rng_states,
            "devices": backward.rerun.rng_devices,
            "mark": None if backward.probe is None else backward.probe.probe.current_call,
        },
    )


def make_inlinable_backward(metadata: AutogradMetadata, backward: LazyBackward) -> InlinableBackward:
    """Return the backward for compiled autograd to inline in place of the autograd node."""
    gradient_numbers = {n: k for k, n in enumerate(metadata.grad_inputs)}
    fakes = {n.name: n.meta["val"] for n in backward.graph.graph.nodes if n.op == "placeholder"}
    tangents = [fakes[name] for name in metadata.tangent_names]
    return InlinableBackward(
        backward.graph,
        metadata.num_saved_tensors,
        metadata.num_saved_scalars,
        metadata.differentiable_results,
        tuple(layout or tangent.dim() for layout, tangent in zip(metadata.tangent_layouts, tangents, strict=True)),
        tuple(gradient_numbers.get(n) for n in range(metadata.num_inputs)),
        backward.take_scalars,
        backward.specialize,
        match_tangent_layout,
    )


def _generate_source(c: AutogradMetadata, again: EagerRerun, *, is_noted: bool) -> list[str]:
    """Return the lines of the ``autograd.Function``, and of ``apply``, which calls it."""
    return [
        "class CompiledFunction(Function):",
        "    @staticmethod",
        *(f"    {line}" for line in _forward_lines(c, again, is_noted=is_noted)),
        "    @staticmethod",
        *(f"    {line}" for line in _backward_lines(c)),
        f"    {INLINABLE_ATTR} = inlinable_backward",
        # Function.apply checks for functorch transforms, under which compiled graphs never run.
        "apply = super(Function, CompiledFunction).apply",
    ]


def _forward_lines(c: AutogradMetadata, again: EagerRerun, *, is_noted: bool) -> list[str]:
    inputs = "".join(f", i{n}" for n in range(c.num_inputs))
    results = [f"r{n}" for n in range(c.num_results)]
    tensors = [f"s{n}" for n in range(c.num_saved_tensors)]
    numbers = [f"n{n}" for n in range(c.num_saved_scalars)]
    lines = [f"def forward(ctx{inputs}):"]
    lines += [f"    (i{n},) = i{n}" for n in c.inputs_without_gradient]
    if not again.why_unsupported:
        counted = [f"i{n}._version" if n in c.versioned_inputs else "0" for n in range(c.num_inputs)]
        held = [f"ref(i{n})" if n in c.weakref_inputs else f"i{n}" for n in range(c.num_inputs)]
        for n in again.copied_inputs:
            held[n] = f"i{n}.detach().clone()"
        lines.append(f"    ctx.inputs, ctx.versions = {_tuple(held)}, {_tuple(counted)}")
    elif len(c.differentiable_results) > 1:
        grad_refs = [f"ref(i{n})" if n in c.grad_inputs else "None" for n in range(c.num_inputs)]
        lines.append(f"    ctx.inputs = {_tuple(grad_refs)}")
    if again.rng_devices:
        lines.append("    ctx.random = drawn_from(devices)")
    if is_noted:
        lines.append("    ctx.mark = mark()")
    lines.append(f"    {_tuple([*results, *tensors, *numbers])} = run({inputs[2:]})")
    lines += [f"    r{n} = r{n}.detach()" for n in c.view_results]
    lines += [f"    set_version((r{n},), ({count},))" for n, count in c.result_write_counts]
    lines += [f"    s{n} = s{n}.detach()" for n in c.detached_saved]
    if tensors:
        lines.append(f"    ctx.save_for_backward({', '.join(tensors)})")
    if numbers:
        lines.append(f"    ctx.numbers = {_tuple(numbers)}")
    free = [k for k, layout in zip(c.differentiable_results, c.tangent_layouts, strict=True) if layout is None]
    if free:
        lines.append(f"    ctx.layouts = {_tuple([f'(tuple(r{k}.shape), r{k}.stride())' for k in free])}")
    if c.saved_inputs:
        lines.append(f"    ctx.leaves = {_tuple([f'i{n}.is_leaf' for _, n in c.saved_inputs])}")
    if c.non_differentiable_results:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(f'r{n}' for n in c.non_differentiable_results)})")
    lines.append("    ctx.held = None")
    if c.tracks_freed_tangents:
        lines.append("    ctx.freed = NOTHING")
    lines.append("    ctx.set_materialize_grads(False)")
    if c.written_inputs:
        written = [f"r{k}" for _, k in c.written_inputs]
        lines.append(f"    if {' and '.join(f'r{k} is i{n}' for n, k in c.written_inputs)}:")
        lines.append(f"        {' = '.join(written)} = None")
    lines.append(f"    return {_tuple(results)}")
    return lines


def _restore_inputs(c: AutogradMetadata) -> tuple[str, ...]:
    """Return code that replaces None by the input that the kernels wrote.

    The node returns None for it, because autograd would make a view of it.
    """
    if not c.written_inputs:
        return ()
    inputs, results = _tuple([f"i{n}" for n, _ in c.written_inputs]), _tuple([f"r{k}" for _, k in c.written_inputs])
    return (f"if r{c.written_inputs[0][1]} is None: {results} = {inputs}",)


def _backward_lines(c: AutogradMetadata) -> list[str]:
    tangent_args = "".join(f", t{n}" for n in range(c.num_results))
    tangents = [f"t{n}" for n in c.differentiable_results]
    lines = [f"def backward(ctx{tangent_args}):"]
    lines.append(f"    if {' and '.join(f'{t} is None' for t in tangents)}:")
    lines.append(f"        return backward.on_all_undefined(ctx) or {_tuple(['None'] * c.num_inputs)}")
    saved = "(ctx.saved_tensors if ctx.held is None else backward.unpack_retained(ctx))"
    if len(tangents) > 1:
        absent = " or ".join(f"{t} is None" for t in tangents)
        saved = f"(backward.unpack_saved(ctx, {_tuple(tangents)}) if ctx.held or {absent} else ctx.saved_tensors)"
    values = ([f"*{saved}"] if c.num_saved_tensors else []) + (["*ctx.numbers"] if c.num_saved_scalars else [])
    lines.append(f"    values = [{', '.join(values)}]")
    for k, (n, _) in enumerate(c.saved_inputs):
        lines.append(f"    if not (ctx.leaves[{k}] or values[{n}] is None or values[{n}].grad_fn is not None):")
        lines.append("        raise RuntimeError(DETACHED)")
    lines.append(f"    tangents = [{', '.join(tangents)}]")
    lines.append(
        f"    gradients = backward(ctx, values, tangents, {'ctx.layouts' if None in c.tangent_layouts else '()'})"
    )
    gradient_numbers = {n: k for k, n in enumerate(c.grad_inputs)}
    returned = [f"gradients[{gradient_numbers[n]}]" if n in gradient_numbers else "None" for n in range(c.num_inputs)]
    lines.append(f"    return {_tuple(returned)}")
    return lines


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(f'{v}, ' for v in values)})"
