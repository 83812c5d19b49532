"""Gives back inputs themselves, and makes views of inputs and of intermediates again, so that outputs alias what eager's alias."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._sympy.printers import PythonPrinter

from engine.aot.wrappers.layer import Layer
from engine.ir.plan import OutputPlan, Plan, Size, View
from engine.records.aot import WrapperAction

NAME = "output aliasing"


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
        case "constant":
            return (WrapperAction(name, "returned as a constant", "it does not depend on any tensor"),)
        case "result":
            return ()


def post_compile(plan: Plan) -> Layer:
    """Sizes are read, then each output is made once; an output returned twice is the same object twice."""
    names: dict[str, Any] = {}
    lines: list[str] = []
    made: dict[int, str] = {}
    outputs = []
    for output in plan.outputs:
        if id(output) not in made:
            made[id(output)] = expression = _expression(output, names)
            if output.view is not None:
                made[id(output)] = f"o{len(lines)}"
                lines.append(f"o{len(lines)} = {expression}")
        outputs.append(made[id(output)])
    read = tuple(_reading(name, position, dim) for name, position, dim in plan.symbols if _is_needed(plan, name))
    return Layer(after=(*read, *lines), names=names, outputs=tuple(outputs))


def _expression(output: OutputPlan, names: dict[str, Any]) -> str:
    match output.kind:
        case "result":
            return f"r{output.index}"
        case "input":
            return f"i{output.index}"
        case "constant":
            name = f"constant_{len(names)}"
            names[name] = output.constant
            return name
        case "alias of input" | "alias of result":
            assert output.view is not None
            base = f"{'i' if output.kind == 'alias of input' else 'r'}{output.index}"
            return _view(base, output.view, names)


def _view(base: str, view: View, names: dict[str, Any]) -> str:
    if view.dtype is not None:
        names[f"dtype_{len(names)}"] = view.dtype
        base = f"{base}.view(dtype_{len(names) - 1})"
    offset = _size(view.offset)
    where = "" if offset == "0" else f", {base}.storage_offset() + {offset}"
    text = f"as_strided({base}, {_sizes(view.sizes)}, {_sizes(view.strides)}{where})"
    return f"{text}.detach()" if view.is_detached else text


def _sizes(sizes: tuple[Size, ...]) -> str:
    return f"({''.join(f'{_size(s)}, ' for s in sizes)})"


def _size(size: Size) -> str:
    if isinstance(size, torch.SymInt):
        return f"({PythonPrinter().doprint(size.node.expr)})"
    return str(size)


def _is_needed(plan: Plan, symbol: str) -> bool:
    views = [o.view for o in plan.outputs if o.view is not None]
    sizes = [s for v in views for s in (*v.sizes, *v.strides, v.offset) if isinstance(s, torch.SymInt)]
    return any(symbol in map(str, s.node.expr.free_symbols) for s in sizes)


def _reading(symbol: str, position: int, dim: int) -> str:
    return f"{symbol} = i{position}" if dim == -1 else f"{symbol} = i{position}.shape[{dim}]"
