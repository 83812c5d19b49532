"""Gives written inputs their new contents, layouts and version counters, where the user's code had changed them in place."""

from __future__ import annotations

from typing import Any

import torch

from engine.aot.wrappers.aliases import offset_text, set_version, sizes_text, symbols_read
from engine.aot.wrappers.layer import Layer
from engine.ir.plan import InputPlan, Plan, sizes_of
from engine.records.aot import WrapperAction

NAME = "input mutation"


def pre_compile(plan: Plan) -> tuple[WrapperAction, ...]:
    """One action for each change of an input."""
    return tuple(action for i in plan.inputs for action in _actions(i))


def _actions(i: InputPlan) -> list[WrapperAction]:
    found = []
    if i.layout is not None:
        why = "the functional graph sees the layout that it came with"
        found.append(WrapperAction(i.name, f"given the sizes {sizes_text(i.layout.sizes)}", why))
    if i.written:
        why = "the functional graph returns its new contents instead of writing in place"
        found.append(WrapperAction(i.name, "copied back unseen by autograd" if i.is_hidden else "copied back", why))
    if not _is_counted(i):
        why = "saved tensors and views compare version counters: they must be what eager's are"
        found.append(WrapperAction(i.name, f"version counted on by {i.writes}", why))
    return found


def _is_counted(i: InputPlan) -> bool:
    """Whether what is done to the input moves its version counter on just as eager does."""
    return not i.is_counted or (i.writes == i.written and i.layout is None)


def post_compile(plan: Plan) -> Layer:
    """A ``copy_`` for a written input, an ``as_strided_`` for one with another layout, and the version counter where that is not all."""
    names: dict[str, Any] = {}
    before = [*symbols_read(plan, sizes_of(i.layout for i in plan.inputs))]
    after: list[str] = []
    for n, i in enumerate(plan.inputs):
        if not _is_counted(i):
            names["set_version"] = set_version
            before.append(f"c{n} = i{n}._version")
        if i.written:
            copy = f"i{n}.copy_(r{i.result})"
            after += ["with no_grad():", f"    {copy}"] if i.is_hidden else [copy]
        if i.is_hidden:
            names["no_grad"] = torch.no_grad
        if i.layout is not None:
            layout = f"{sizes_text(i.layout.sizes)}, {sizes_text(i.layout.strides)}"
            after.append(f"i{n}.as_strided_({layout}, {offset_text(f'i{n}', i.layout.offset)})")
    counted = sorted((i.writes, n) for n, i in enumerate(plan.inputs) if not _is_counted(i))
    after += [f"set_version((i{n},), (c{n} + {writes},))" for writes, n in counted]
    # A view that is given another layout later (``.data =``) would be found to see other elements of its base.
    after += [f"i{n}.grad_fn" for n, i in enumerate(plan.inputs) if i.is_read_since]
    return Layer(before=tuple(before), after=tuple(after), names=names)
