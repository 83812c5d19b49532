"""Python text of a recorded graph: a function that runs with torch alone."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from engine.records.graph import GraphRecord, NodeRecord
    from engine.records.session import CompilationRecord

IMPORTS = """\
import builtins
import math
import operator

import torch
import torch.nn.functional as F
from torch import Tensor, device, inf, nan

aten, prims = torch.ops.aten, torch.ops.prims
"""

_IN_PLACE = re.compile(r"(\w+) = \((\w+) (\S+)= (.+)\)")
_IN_PLACE_NAMES = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod", "**": "ipow", "@": "imatmul",
    "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift", ">>": "irshift",
}  # fmt: skip


_TORCH_FUNCTIONS = {
    "engine.attention": "F.scaled_dot_product_attention",
    **{f"engine.{name}": f"torch.{name}" for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")},
}
"""Functions of torch that compute the same as operators of this project."""


_ATEN_INSTEAD = ": copy the ATen graph instead, unless it has one, too"


class CannotWrite(ValueError):
    """A graph cannot be written as a script; the text says why."""


def graph_inputs(graph: GraphRecord) -> tuple[NodeRecord, ...]:
    """Return the nodes that a script must make: inputs, and constants of the graph."""
    return tuple(n for n in graph.nodes if n.op in ("placeholder", "get_attr"))


def graph_function(graph: GraphRecord) -> str:
    """Return a graph as a Python function of its inputs and constants.

    Raises:
        CannotWrite: only its text was recorded, it calls a graph, or an operator of this project.
    """
    if not graph.nodes:
        raise CannotWrite("only the text of this graph was recorded")
    lines = [f"def graph({', '.join(n.name for n in graph_inputs(graph))}):"]
    lines += [f"    {line}" for node in graph.nodes for line in _statement(node)]
    return "\n".join(lines)


def _statement(node: NodeRecord) -> Iterator[str]:
    _check_no_graph(node)
    if (equivalent := _TORCH_FUNCTIONS.get(node.target)) is not None:
        yield node.text.replace(f"{node.target}(", f"{equivalent}(", 1)
        return
    if node.target.startswith("engine.ir.graph_callable."):
        raise CannotWrite(f"{node.name} calls a graph of its own{_ATEN_INSTEAD}")
    if node.target.startswith("engine."):
        raise CannotWrite(f"{node.name} calls {node.target}, which only this project has")
    if node.op in ("placeholder", "get_attr"):
        if node.name.startswith("L_"):  # Dynamo names an input twice
            yield f"{node.name.replace('L_', 'l_', 1)} = {node.name}"
        return
    match = _IN_PLACE.fullmatch(node.text)
    if match is not None and match[3] in _IN_PLACE_NAMES:
        yield f"{match[1]} = operator.{_IN_PLACE_NAMES[match[3]]}({match[2]}, {match[4]})"
        return
    yield node.text


def _check_no_graph(node: NodeRecord) -> None:
    if node.op == "get_attr" and node.shape is None:
        raise CannotWrite(f"{node.name} is a graph inside this graph{_ATEN_INSTEAD}")


def symbol_values(record: CompilationRecord) -> dict[str, int | float]:
    """Return the hints of the symbols of a compilation."""
    symbols = record.trace.symbols if record.trace is not None else ()
    return {s.name: number for s in symbols if (number := _number(s.hint)) is not None}


def _number(hint: str) -> int | float | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(hint)
    return None


def input_statement(node: NodeRecord, symbols: Mapping[str, int | float], seed: int) -> str:
    """Return the expression that makes an input like a recorded one.

    Raises:
        CannotWrite: its sizes, or its type, are not known.
    """
    if node.shape is None:
        _check_no_graph(node)
        match = re.search(r"\((.+)\)", node.dtype)
        return str(_evaluate(match[1] if match else node.text, symbols, node.name))
    shape = tuple(_evaluate_size(s, symbols, node.name) for s in node.shape)
    if node.stride is None:
        raise CannotWrite(f"the input {node.name} is no strided tensor")
    stride = tuple(_evaluate_size(s, symbols, node.name) for s in node.stride)
    return f'make({shape}, {stride}, torch.{node.dtype}, "{node.device}", seed={seed})'


def _evaluate_size(text: str, symbols: Mapping[str, int | float], name: str) -> int:
    return int(_evaluate(text, symbols, name))


def _evaluate(text: str, symbols: Mapping[str, int | float], name: str) -> int | float:
    if not re.fullmatch(r"[\w\s+*/()-]+", text):
        raise CannotWrite(f"the size {text} of {name} is not known")
    try:
        number: int | float = eval(text, {"__builtins__": {}}, dict(symbols))
        return number
    except Exception:
        raise CannotWrite(f"the size {text} of {name} is not known") from None


def result_layouts(graph: GraphRecord) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]] | None, ...]:
    """Return dtype, shape and strides of each result; None for one that is no strided tensor."""
    output = graph.nodes[-1]
    by_name = {n.name: n for n in graph.nodes}
    names = re.findall(r"[A-Za-z_]\w*", output.text.removeprefix("return"))
    nodes = [by_name.get(n) for n in names]
    return tuple(
        None if n is None or n.shape is None or n.stride is None else (n.dtype, n.shape, n.stride) for n in nodes
    )
