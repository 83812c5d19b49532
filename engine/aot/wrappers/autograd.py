"""Makes the forward graph differentiable: one autograd node a call, whose backward graph is compiled when it is first needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.autograd import forward_ad

from engine.aot.wrappers.again import Again
from engine.aot.wrappers.aliases import set_version
from engine.aot.wrappers.backward import Backward, laid_out
from engine.aot.wrappers.crossing import Crossing
from engine.aot.wrappers.layer import Layer
from engine.graph.randomness import drawn_from
from engine.ir.inlined import INLINED, Inlined
from engine.ir.plan import Plan
from engine.records.aot import WrapperAction

Run = Callable[..., Any]

NAME = "autograd"

_DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""Torch's words: its own nodes say it, functions written in Python do not."""


def pre_compile(crossing: Crossing, names: Sequence[str], again: Again) -> tuple[WrapperAction, ...]:
    """One action an input that gradients flow to, one for what is saved, one a result that stands outside of autograd."""
    why = "the traced graph differentiates with respect to it"
    actions = [WrapperAction(names[n], "gets a gradient from the backward graph", why) for n in crossing.needing]
    actions += [
        WrapperAction(f"result {n}", "marked as not differentiable", "eager's needs no gradient")
        for n in crossing.plain
    ]
    saved = f"{crossing.tensors} tensors and {crossing.numbers} numbers saved"
    actions.append(WrapperAction("between forward and backward", saved, "the backward graph reads them"))
    actions.append(WrapperAction("backward", "compiled when it is first needed", "many calls are never differentiated"))
    twice = f"refused: {again.reason}" if again.reason else "runs the call again as traced, under eager autograd"
    actions.append(
        WrapperAction("backward under create_graph", twice, "its gradients are to be differentiated themselves")
    )
    return tuple(actions)


def eager_where_unknown(as_traced: Run, plan: Plan, needing: Sequence[int]) -> Layer:
    """Where the traced graph runs as it is.

    Functorch transforms, forward-mode differentiation and hooks of the user's on what is saved must see its operators; and writing to a
    leaf that needs a gradient is eager's error to raise.
    """
    unknown = [
        "transforms()",
        "forward_ad._current_level >= 0",
        "saving_hooks(False) and is_seen_by_users(saving_hooks)",
    ]
    written = [n for n in needing if plan.inputs[n].written and not plan.inputs[n].is_hidden]
    unknown += [f"i{n}.is_leaf" for n in needing if plan.inputs[n].is_shown or n in written]
    call = _as_traced(plan)
    names = {"as_traced": as_traced, "transforms": torch._C._are_functorch_transforms_active, "forward_ad": forward_ad}
    names |= {
        "saving_hooks": torch._C._autograd._top_saved_tensors_default_hooks,
        "is_seen_by_users": _is_seen_by_users,
    }
    return Layer(before=(f"if {' or '.join(unknown)}:", f"    {call}"), names=names)


_LOSSLESS = ("torch.", "engine.")
"""Packages whose hooks give back what was saved, as checkpoints and ``save_on_cpu`` do, whatever it is."""


def _is_seen_by_users(saving_hooks: Callable[[bool], Any]) -> bool:
    """Whether hooks of the user's own see what autograd saves: they may give back something else, and a compiled graph saves other tensors."""
    return any(not str(getattr(h, "__module__", "")).startswith(_LOSSLESS) for h in saving_hooks(False))


def eager_for_leaves(as_traced: Run, plan: Plan) -> tuple[Layer, ...]:
    """The same for a call of which no result needs a gradient: changing a leaf's layout in place is eager's error to raise."""
    leaves = [f"(i{n}.is_leaf and i{n}.requires_grad)" for n, i in enumerate(plan.inputs) if i.is_shown]
    lines = (f"if {' or '.join(leaves)}:", f"    {_as_traced(plan)}")
    return (Layer(before=lines, names={"as_traced": as_traced}),) if leaves else ()


def _as_traced(plan: Plan) -> str:
    return f"return as_traced({', '.join(f'i{n}' for n in range(len(plan.inputs)))})"


def post_compile(crossing: Crossing, forward: Run, backward: Backward) -> Run:
    """``forward`` as a function that autograd knows the backward of."""
    scope: dict[str, Any] = {"run": forward, "backward": backward, "set_version": set_version, "ref": weakref.ref}
    scope |= {"DETACHED": _DETACHED, "NOTHING": frozenset()}
    again = backward.again
    scope |= {"drawn_from": drawn_from, "devices": again.devices}
    noted = backward.noted
    scope |= {} if noted is None else {"mark": noted.probe.mark}
    exec(compile(_text(crossing, again, is_noted=noted is not None), "<engine autograd>", "exec"), scope)
    node = type(
        "CompiledFunction",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(scope["forward"]),
            "backward": staticmethod(scope["differentiate"]),
            INLINED: inlined(crossing, backward),
        },
    )
    # Function.apply looks for functorch transforms, under which compiled graphs never run.
    apply: Run = super(torch.autograd.Function, node).apply  # type: ignore[misc]
    return _past_autograd(apply, crossing) if crossing.apart else apply


def _past_autograd(apply: Run, c: Crossing) -> Run:
    """``apply`` where autograd looks for tensors among the arguments, and finds none in a tuple."""
    given = ", ".join(f"i{n}" for n in range(c.inputs))
    passed = ", ".join(f"(i{n},)" if n in c.apart else f"i{n}" for n in range(c.inputs))
    scope: dict[str, Any] = {"apply": apply}
    exec(compile(f"def call({given}):\n    return apply({passed})", "<engine autograd>", "exec"), scope)
    call: Run = scope["call"]
    return call


def inlined(crossing: Crossing, backward: Backward) -> Inlined:
    """What a captured backward needs to hold this one's graph in place of its node."""
    places = {n: k for k, n in enumerate(crossing.needing)}
    fakes = {n.name: n.meta["val"] for n in backward.graph.graph.nodes if n.op == "placeholder"}
    tangents = [fakes[name] for name in crossing.tangents]
    return Inlined(
        backward.graph,
        crossing.tensors,
        crossing.numbers,
        crossing.differentiable,
        tuple(known or tangent.dim() for known, tangent in zip(crossing.layouts, tangents, strict=True)),
        tuple(places.get(n) for n in range(crossing.inputs)),
        backward.open,
        backward.standing_for,
        laid_out,
    )


def _text(c: Crossing, again: Again, *, is_noted: bool) -> str:
    inputs = "".join(f", i{n}" for n in range(c.inputs))
    results = [f"r{n}" for n in range(c.results)]
    tensors = [f"s{n}" for n in range(c.tensors)]
    numbers = [f"n{n}" for n in range(c.numbers)]
    lines = [f"def forward(ctx{inputs}):"]
    lines += [f"    (i{n},) = i{n}" for n in c.apart]
    if not again.reason:
        counted = [f"i{n}._version" if n in c.counted else "0" for n in range(c.inputs)]
        held = [f"ref(i{n})" if n in c.weak else f"i{n}" for n in range(c.inputs)]
        lines.append(f"    ctx.inputs, ctx.versions = {_tuple(held)}, {_tuple(counted)}")
    elif len(c.differentiable) > 1:
        known = [f"ref(i{n})" if n in c.needing else "None" for n in range(c.inputs)]
        lines.append(f"    ctx.inputs = {_tuple(known)}")
    if again.devices:
        lines.append("    ctx.random = drawn_from(devices)")
    if is_noted:
        lines.append("    ctx.mark = mark()")
    lines.append(f"    {_tuple([*results, *tensors, *numbers])} = run({inputs[2:]})")
    lines += [f"    r{n} = r{n}.detach()" for n in c.views]
    lines += [f"    set_version((r{n},), ({count},))" for n, count in c.writes]
    lines += [f"    s{n} = s{n}.detach()" for n in c.detached]
    if tensors:
        lines.append(f"    ctx.save_for_backward({', '.join(tensors)})")
    if numbers:
        lines.append(f"    ctx.numbers = {_tuple(numbers)}")
    free = [k for k, layout in zip(c.differentiable, c.layouts, strict=True) if layout is None]
    if free:
        lines.append(f"    ctx.layouts = {_tuple([f'(tuple(r{k}.shape), r{k}.stride())' for k in free])}")
    if c.whole:
        lines.append(f"    ctx.leaves = {_tuple([f'i{n}.is_leaf' for _, n in c.whole])}")
    if c.plain:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(f'r{n}' for n in c.plain)})")
    lines.append("    ctx.held = None")
    if c.is_watched:
        lines.append("    ctx.freed = NOTHING")
    lines.append("    ctx.set_materialize_grads(False)")
    lines.append(f"    return {_tuple(results)}")
    given = "".join(f", t{n}" for n in range(c.results))
    tangents = [f"t{n}" for n in c.differentiable]
    lines.append(f"def differentiate(ctx{given}):")
    lines.append(f"    if {' and '.join(f'{t} is None' for t in tangents)}:")
    lines.append(f"        return backward.unreached(ctx) or {_tuple(['None'] * c.inputs)}")
    saved = "(ctx.saved_tensors if ctx.held is None else backward.held(ctx))"
    if len(tangents) > 1:
        absent = " or ".join(f"{t} is None" for t in tangents)
        saved = f"(backward.read(ctx, {_tuple(tangents)}) if ctx.held or {absent} else ctx.saved_tensors)"
    values = ([f"*{saved}"] if tensors else []) + (["*ctx.numbers"] if numbers else [])
    lines.append(f"    values = [{', '.join(values)}]")
    for k, (n, _) in enumerate(c.whole):
        lines.append(f"    if not (ctx.leaves[{k}] or values[{n}] is None or values[{n}].grad_fn is not None):")
        lines.append("        raise RuntimeError(DETACHED)")
    lines.append(f"    tangents = [{', '.join(tangents)}]")
    lines.append(f"    gradients = backward(ctx, values, tangents, {'ctx.layouts' if free else '()'})")
    places = {n: k for k, n in enumerate(c.needing)}
    returned = [f"gradients[{places[n]}]" if n in places else "None" for n in range(c.inputs)]
    lines.append(f"    return {_tuple(returned)}")
    return "\n".join(lines)


def _tuple(values: Sequence[str]) -> str:
    return f"({''.join(f'{v}, ' for v in values)})"
