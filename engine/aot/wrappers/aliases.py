"""Gives back inputs themselves, and makes views of inputs and of intermediates again, so that outputs alias what eager's alias."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._sympy.printers import PythonPrinter

from engine.aot.wrappers.layer import Layer
from engine.ir.plan import OutputPlan, Plan, Size, View, sizes_of
from engine.records.aot import WrapperAction

NAME = "output aliasing"
set_version: Any = torch._C._autograd._unsafe_set_version_counter
"""Sets the version counters of a tuple of tensors: a functional graph writes nothing in place, its caller sees what eager counts."""


def pre_compile(plan: Plan) -> tuple[WrapperAction, ...]:
    """One action an output that is not simply a result of the graph."""
    return tuple(action for n, o in enumerate(plan.outputs) for action in _action(plan, n, o))


def _action(plan: Plan, position: int, output: OutputPlan) -> tuple[WrapperAction, ...]:
    name = f"output {position}"
    match output.kind:
        case "input":
            return (
                WrapperAction(name, f"is {plan.inputs[output.index].name} itself", "eager returns the same object"),
            )
        case "alias of input":
            base = plan.inputs[output.index].name
            why = f"eager returns a view of {base}: what is written through one must show in the other"
            return (WrapperAction(name, f"made again as a view of {base}", why),)
        case "alias of result":
            why = "eager returns a view: what is written through one result must show in the other"
            return (WrapperAction(name, "made again as a view of an intermediate", why),)
        case "root" | "alias of root":
            why = "eager returns a tensor over the same memory that is no view, or a view of such a tensor"
            return (WrapperAction(name, f"made again over the memory of {_memory(plan, output)}", why),)
        case "constant":
            return (WrapperAction(name, "returned as a constant", "it does not depend on any tensor"),)
        case "result":
            return ()


def _memory(plan: Plan, output: OutputPlan) -> str:
    root = plan.roots[output.index]
    return plan.inputs[root.index].name if root.kind == "alias of input" else "an intermediate"


def post_compile(plan: Plan) -> Layer:
    """Sizes are read, then each output is made once; an output returned twice is the same object twice."""
    names: dict[str, Any] = {}
    lines: list[str] = []
    early: list[str] = []
    made: dict[int, str] = {}
    lines += [f"r{n} = r{n}.detach()" for n in sorted(plan.reviewed)]
    known = {name for name, *_ in plan.symbols}
    told = [(n, s) for n, s in plan.strides if known.issuperset(_symbols_in(s))]
    for n, strides in told:
        names["laid_out"] = _laid_out
        lines.append(f"if r{n}.stride() != {sizes_text(strides)}: r{n} = laid_out(r{n}, {sizes_text(strides)})")
    for n, writes in plan.writes:
        names["set_version"] = set_version
        lines.append(f"set_version((r{n},), ({writes},))")
    for n, root in enumerate(plan.roots):
        lines.append(f"t{n} = {_expression(root, names)}")
        if root.writes:
            names["set_version"] = set_version
            lines.append(f"set_version((t{n},), ({root.writes},))")
    outputs = []
    for output in plan.outputs:
        if id(output) not in made:
            made[id(output)] = expression = _expression(output, names)
            if output.view is not None:
                made[id(output)] = f"o{len(made)}"
                (early if output.is_early else lines).append(f"o{len(made)} = {expression}")
        outputs.append(made[id(output)])
    sizes = sizes_of(o.view for o in (*plan.outputs, *plan.roots))
    read = symbols_read(plan, (*sizes, *(s for _, strides in told for s in strides)))
    return Layer(before=(*read, *early), after=tuple(lines), names=names, outputs=tuple(outputs))


def _expression(output: OutputPlan, names: dict[str, Any]) -> str:
    match output.kind:
        case "result":
            return f"r{output.index}"
        case "input":
            return f"i{output.index}"
        case "root":
            return f"t{output.index}"
        case "constant":
            name = f"constant_{len(names)}"
            names[name] = output.constant
            return name
        case "alias of input" | "alias of result" | "alias of root":
            assert output.view is not None
            return seen(f"{_HELD_IN[output.kind]}{output.index}", output.view, names)


_HELD_IN = {"alias of input": "i", "alias of result": "r", "alias of root": "t"}


def seen(base: str, view: View, names: dict[str, Any]) -> str:
    """The text of a view of ``base``; constants that it needs are added to ``names``."""
    text = _seen(base, view, names)
    if view.is_one_of_several:
        names["one_of_several"] = _one_of_several
        text = f"one_of_several({text})"
    if view.is_made_by_hand:
        names["made_by_hand"] = _made_by_hand
        text = f"made_by_hand({text})"
    if view.made_where:
        names[f"made_under_{view.made_where}"] = _MADE_UNDER[view.made_where]
        text = f"made_under_{view.made_where}({text})"
    if not view.is_unseen:
        return text
    names["unseen"] = torch.no_grad()(_called)
    return f"unseen(lambda: {text})"


def _marking(meta: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def mark(view: torch.Tensor) -> torch.Tensor:
        torch._C._autograd._set_creation_meta(view, meta)
        return view

    return mark


_CreationMeta: Any = torch._C._autograd.CreationMeta
_one_of_several = _marking(_CreationMeta.MULTI_OUTPUT_NODE)
_made_by_hand = _marking(_CreationMeta.IN_CUSTOM_FUNCTION)
_MADE_UNDER = {"no_grad": _marking(_CreationMeta.NO_GRAD_MODE), "enable_grad": _marking(_CreationMeta.DEFAULT)}


def _called(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    return make()


def _seen(base: str, view: View, names: dict[str, Any]) -> str:
    if view.detached:  # first, since a view may not be seen again once its history is spoilt
        base = f"{base}.detach()"
    if view.is_plain:
        text = f"{base}.view({sizes_text(view.sizes)})"
    else:
        if view.dtype is not None:
            base = _retyped(base, view, view.dtype, names)
        where = "" if _size(view.offset) == "0" else f", {offset_text(base, view.offset)}"
        text = f"as_strided({base}, {sizes_text(view.sizes)}, {sizes_text(view.strides)}{where})"
    for flip in view.flips:
        names[f"flip_{flip}"] = {"conj": torch.conj, "neg": torch._neg_view}[flip]
        text = f"flip_{flip}({text})"
    match view.detached:
        case "":
            return text
        case "detach":
            return f"{text}.detach()"
        case "data":
            return f"{text}.data"


def _retyped(base: str, view: View, dtype: torch.dtype, names: dict[str, Any]) -> str:
    if view.reach is None:
        names[f"dtype_{len(names)}"] = dtype
        return f"{base}.view(dtype_{len(names) - 1})"
    if view.detached:
        names[f"retype_{len(names)}"] = functools.partial(_in_a_row, dtype, view.reach)
    else:
        names[f"retype_{len(names)}"] = functools.partial(_as_complex if dtype.is_complex else _as_real, view.reach)
    return f"retype_{len(names) - 1}({base})"


def _in_a_row(dtype: torch.dtype, reach: int, base: torch.Tensor) -> torch.Tensor:
    per = max(dtype.itemsize // base.element_size(), 1)
    return base.as_strided((reach // per * per,), (1,)).view(dtype)


def _as_real(reach: int, base: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(base.as_strided((reach,), (1,)))


def _as_complex(reach: int, base: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(base.as_strided((reach // 2, 2), (2, 1)))


def sizes_text(sizes: tuple[Size, ...]) -> str:
    """A tuple of sizes as Python text, symbols by name."""
    return f"({''.join(f'{_size(s)}, ' for s in sizes)})"


def offset_text(base: str, offset: Size) -> str:
    """An offset in the memory that ``base`` starts in, given one relative to where it starts."""
    return f"{base}.storage_offset() + {_size(offset)}"


def _size(size: Size) -> str:
    if isinstance(size, torch.SymInt):
        return f"({PythonPrinter().doprint(size.node.expr)})"
    return str(size)


def symbols_read(plan: Plan, sizes: Iterable[Size]) -> tuple[str, ...]:
    """Statements that read the symbols in these sizes from the inputs as they come: layouts may change in the call."""
    needed = _symbols_in(sizes)
    return tuple(_reading(name, position, dim) for name, position, dim in plan.symbols if name in needed)


def _symbols_in(sizes: Iterable[Size]) -> set[str]:
    return {str(symbol) for s in sizes if isinstance(s, torch.SymInt) for symbol in s.node.expr.free_symbols}


def _laid_out(result: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A result as its views are told to see it: operators may lie about how what they give lies, the user's own above all."""
    if all(n < 2 or a == b for n, a, b in zip(result.shape, result.stride(), strides, strict=True)):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def _reading(symbol: str, position: int, dim: int) -> str:
    if dim < -2:
        return f"{symbol} = i{position}.stride({-3 - dim})"
    if dim == -2:
        return f"{symbol} = i{position}.storage_offset()"
    return f"{symbol} = i{position}" if dim == -1 else f"{symbol} = i{position}.shape[{dim}]"
