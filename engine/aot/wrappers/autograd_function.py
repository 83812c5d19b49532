"""Generate the ``autograd.Function`` of a training call; its backward is compiled lazily."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.autograd import forward_ad

from engine.aot.autograd_metadata import AutogradMetadata
from engine.aot.version_counters import set_version_counter
from engine.aot.wrappers.codegen import WrapperCode
from engine.aot.wrappers.double_backward import EagerRerun
from engine.aot.wrappers.lazy_backward import LazyBackward, match_tangent_layout
from engine.graph.functionalize_rng import get_rng_states
from engine.ir.aot.aot_metadata import AotMetadata
from engine.ir.aot.inlinable_backward import INLINABLE_ATTR, InlinableBackward
from engine.records.aot import WrapperAction

Run = Callable[..., Any]

NAME = "autograd"

_DETACHED_MESSAGE = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""Message of torch's own nodes; functions written in Python do not raise it."""


def pre_compile(metadata: AutogradMetadata, names: Sequence[str], again: EagerRerun) -> tuple[WrapperAction, ...]:
    """Return actions for gradients, non-differentiable results, saved values and backward."""
    why = "the traced graph differentiates with respect to it"
    actions = [WrapperAction(names[n], "gets a gradient from the backward graph", why) for n in metadata.grad_inputs]
    actions += [
        WrapperAction(f"result {n}", "marked as not differentiable", "it requires no grad in eager")
        for n in metadata.non_differentiable_results
    ]
    saved = f"{metadata.num_saved_tensors} tensors and {metadata.num_saved_scalars} numbers saved"
    actions.append(WrapperAction("between forward and backward", saved, "the backward graph reads them"))
    actions.append(WrapperAction("backward", "compiled when it is first needed", "many calls never run a backward"))
    twice = (
        f"unsupported: {again.why_unsupported}"
        if again.why_unsupported
        else "runs the traced call again under eager autograd"
    )
    actions.append(WrapperAction("backward under create_graph", twice, "its gradients must be differentiable"))
    return tuple(actions)


def eager_when_unsupported(as_traced: Run, plan: AotMetadata, needing: Sequence[int]) -> WrapperCode:
    """Return code that runs the traced graph in eager where compiled code is unsupported.

    Functorch transforms, forward-mode AD and user-defined saved tensor hooks must see the original operators. Mutating
    a leaf that requires grad must raise eager's error.
    """
    unknown = [
        "transforms()",
        "forward_ad._current_level >= 0",
        "saving_hooks(False) and is_seen_by_users(saving_hooks)",
    ]
    written = [n for n in needing if plan.inputs[n].is_mutated and not plan.inputs[n].mutation_hidden_from_autograd]
    unknown += [f"i{n}.is_leaf" for n in needing if plan.inputs[n].metadata_mutation_seen_by_autograd or n in written]
    call = _eager_call(plan)
    names = {"as_traced": as_traced, "transforms": torch._C._are_functorch_transforms_active, "forward_ad": forward_ad}
    names |= {
        "saving_hooks": torch._C._autograd._top_saved_tensors_default_hooks,
        "is_seen_by_users": _has_user_saved_tensor_hooks,
    }
    return WrapperCode(before=(f"if {' or '.join(unknown)}:", f"    {call}"), namespace=names)


_LOSSLESS_HOOK_MODULES = ("torch.", "engine.")
"""Packages whose saved tensor hooks return exactly what was saved.

Examples are checkpoints and ``save_on_cpu``.
"""


def _has_user_saved_tensor_hooks(saving_hooks: Callable[[bool], Any]) -> bool:
    """Return True if user-defined saved tensor hooks are active.

    They may return something else, and a compiled graph saves other tensors than eager.
    """
    return any(not str(getattr(h, "__module__", "")).startswith(_LOSSLESS_HOOK_MODULES) for h in saving_hooks(False))


def eager_for_leaf_inputs(as_traced: Run, plan: AotMetadata) -> tuple[WrapperCode, ...]:
    """Return code that runs the traced graph in eager if a leaf's layout changes in place.

    For calls of which no result requires grad. Eager then raises its error.
    """
    leaves = [
        f"(i{n}.is_leaf and i{n}.requires_grad)"
        for n, i in enumerate(plan.inputs)
        if i.metadata_mutation_seen_by_autograd
    ]
    lines = (f"if {' or '.join(leaves)}:", f"    {_eager_call(plan)}")
    return (WrapperCode(before=lines, namespace={"as_traced": as_traced}),) if leaves else ()


def _eager_call(plan: AotMetadata) -> str:
    return f"return as_traced({', '.join(f'i{n}' for n in range(len(plan.inputs)))})"


def post_compile(metadata: AutogradMetadata, forward: Run, backward: LazyBackward) -> Run:
    """Return ``forward`` as a call of the generated ``autograd.Function``."""
    scope: dict[str, Any] = {
        "run": forward,
        "backward": backward,
        "set_version": set_version_counter,
        "ref": weakref.ref,
    }
    scope |= {"DETACHED": _DETACHED_MESSAGE, "NOTHING": frozenset()}
    again = backward.rerun
    scope |= {"drawn_from": get_rng_states, "devices": again.rng_devices}
    noted = backward.probe
    scope |= {} if noted is None else {"mark": noted.probe.current_call}
    exec(compile(_generate_source(metadata, again, is_noted=noted is not None), "<engine autograd>", "exec"), scope)
    node = type(
        "CompiledFunction",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(scope["forward"]),
            "backward": staticmethod(scope["differentiate"]),
            INLINABLE_ATTR: make_inlinable_backward(metadata, backward),
        },
    )
    # Function.apply checks for functorch transforms, under which compiled graphs never run.
    apply: Run = super(torch.autograd.Function, node).apply  # type: ignore[misc]
    return _hide_from_autograd(apply, metadata) if metadata.inputs_without_gradient else apply


def _hide_from_autograd(apply: Run, c: AutogradMetadata) -> Run:
    """Wrap ``apply``: pass inputs without gradient in tuples, where autograd finds no tensors."""
    given = ", ".join(f"i{n}" for n in range(c.num_inputs))
    passed = ", ".join(f"(i{n},)" if n in c.inputs_without_gradient else f"i{n}" for n in range(c.num_inputs))
    scope: dict[str, Any] = {"apply": apply}
    exec(compile(f"def call({given}):\n    return apply({passed})", "<engine autograd>", "exec"), scope)
    call: Run = scope["call"]
    return call


def make_inlinable_backward(metadata: AutogradMetadata, backward: LazyBackward) -> InlinableBackward:
    """Return the backward for compiled autograd to inline in place of the autograd node."""
    places = {n: k for k, n in enumerate(metadata.grad_inputs)}
    fakes = {n.name: n.meta["val"] for n in backward.graph.graph.nodes if n.op == "placeholder"}
    tangents = [fakes[name] for name in metadata.tangent_names]
    return InlinableBackward(
        backward.graph,
        metadata.num_saved_tensors,
        metadata.num_saved_scalars,
        metadata.differentiable_results,
        tuple(known or tangent.dim() for known, tangent in zip(metadata.tangent_layouts, tangents, strict=True)),
        tuple(places.get(n) for n in range(metadata.num_inputs)),
        backward.take_scalars,
        backward.specialize,
        match_tangent_layout,
    )


def _generate_source(c: AutogradMetadata, again: EagerRerun, *, is_noted: bool) -> str:
    inputs = "".join(f", i{n}" for n in range(c.num_inputs))
    results = [f"r{n}" for n in range(c.num_results)]
    tensors = [f"s{n}" for n in range(c.num_saved_tensors)]
    numbers = [f"n{n}" for n in range(c.num_saved_scalars)]
    lines = [f"def forward(ctx{inputs}):"]
    lines += [f"    (i{n},) = i{n}" for n in c.inputs_without_gradient]
    if not again.why_unsupported:
        counted = [f"i{n}._version" if n in c.versioned_inputs else "0" for n in range(c.num_inputs)]
        held = [f"ref(i{n})" if n in c.weakref_inputs else f"i{n}" for n in range(c.num_inputs)]
        lines.append(f"    ctx.inputs, ctx.versions = {_tuple(held)}, {_tuple(counted)}")
    elif len(c.differentiable_results) > 1:
        known = [f"ref(i{n})" if n in c.grad_inputs else "None" for n in range(c.num_inputs)]
        lines.append(f"    ctx.inputs = {_tuple(known)}")
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
    lines.append(f"    return {_tuple(results)}")
    given = "".join(f", t{n}" for n in range(c.num_results))
    tangents = [f"t{n}" for n in c.differentiable_results]
    lines.append(f"def differentiate(ctx{given}):")
    lines.append(f"    if {' and '.join(f'{t} is None' for t in tangents)}:")
    lines.append(f"        return backward.on_all_undefined(ctx) or {_tuple(['None'] * c.num_inputs)}")
    saved = "(ctx.saved_tensors if ctx.held is None else backward.unpack_retained(ctx))"
    if len(tangents) > 1:
        absent = " or ".join(f"{t} is None" for t in tangents)
        saved = f"(backward.unpack_saved(ctx, {_tuple(tangents)}) if ctx.held or {absent} else ctx.saved_tensors)"
    values = ([f"*{saved}"] if tensors else []) + (["*ctx.numbers"] if numbers else [])
    lines.append(f"    values = [{', '.join(values)}]")
    for k, (n, _) in enumerate(c.saved_inputs):
        lines.append(f"    if not (ctx.leaves[{k}] or values[{n}] is None or values[{n}].grad_fn is not None):")
        lines.append("        raise RuntimeError(DETACHED)")
    lines.append(f"    tangents = [{', '.join(tangents)}]")
    lines.append(f"    gradients = backward(ctx, values, tangents, {'ctx.layouts' if free else '()'})")
    places = {n: k for k, n in enumerate(c.grad_inputs)}
    returned = [f"gradients[{places[n]}]" if n in places else "None" for n in range(c.num_inputs)]
    lines.append(f"    return {_tuple(returned)}")
    return "\n".join(lines)


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(f'{v}, ' for v in values)})"
