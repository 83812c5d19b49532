"""Cuts a captured backward into what a backend can compile and what lies between: hooks, Python functions, the adding to ``.grad``."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from engine.autograd.program import CALL, KIND, callable_of
from engine.graph.straight import straight_line
from engine.ir.graph import NodeOrigin, node_id, set_origin

Run = Callable[..., Any]
Compile = Callable[["Traced"], Run]
"""Makes a traced segment runnable."""

Fail = Callable[[str, Exception], None]
"""Hears that a segment could not be traced or compiled, and then runs operator by operator."""

PURE = frozenset({"function", "validate", "add", "zeros", "slices_before", "slices_after", "size"})
"""Kinds that only compute."""

LIMIT = 8
"""How many layouts of its inputs a segment is compiled for."""


@dataclass(frozen=True)
class Traced:
    """A segment for inputs of one layout, as ATen operators: ``reals`` are this call's, in placeholder order."""

    name: str
    module: torch.fx.GraphModule
    reals: tuple[torch.Tensor, ...]


@dataclass(eq=False)
class Segment:
    """Nodes that one backend compiles together; called with the values that they read, returns those that are read outside.

    Compiled once for each layout of the inputs, up to ``LIMIT``; beyond that, and for tensor subclasses, it runs operator by operator.
    """

    name: str
    module: torch.fx.GraphModule
    compile: Compile
    fail: Fail
    _eager: Run | None = None
    _runs: dict[Any, Run] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.__name__ = self.name

    def __call__(self, *values: Any) -> Any:
        """The segment's results."""
        key = tuple(map(_layout, values))
        run = self._runs.get(key)
        if run is None:
            run = self._made(key, values)
        return run(*values)

    def eager(self) -> Run:
        """Operator by operator."""
        if self._eager is None:
            self._eager = straight_line(self.module, callable_of, name=self.name)
        return self._eager

    def _made(self, key: tuple[Any, ...], values: Sequence[Any]) -> Run:
        with self._lock:
            if key in self._runs:
                return self._runs[key]
            if len(self._runs) >= LIMIT or None in key:
                return self.eager()
            try:
                traced, keep, count = _trace(self, values)
                run = self.compile(traced)
            except Exception as error:  # what tracing to ATen does not know must not stop the user's code
                self.fail(self.name, error)
                self._runs[key] = self.eager()
            else:
                places = tuple(n for n, v in enumerate(values) if isinstance(v, torch.Tensor))
                self._runs[key] = _adapted(run, places, keep, count)
            return self._runs[key]


def _layout(value: Any) -> Any:
    """What a compiled segment takes for granted of a value; None: it cannot be compiled for it."""
    if value is None:
        return "None"
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return None
        return value.shape, value.stride(), value.dtype, value.device, value.storage_offset(), value.requires_grad
    return ("is", value) if type(value) in (int, float, bool) else None


def _adapted(run: Run, places: tuple[int, ...], keep: tuple[int, ...], count: int) -> Run:
    """Tensors in, results out, with None for what is no tensor."""

    def call(*values: Any) -> Any:
        made = run(*[values[p] for p in places])
        results: list[Any] = [None] * count
        for place, value in zip(keep, made, strict=True):
            results[place] = value
        return results

    return call


def _trace(segment: Segment, values: Sequence[Any]) -> tuple[Traced, tuple[int, ...], int]:
    """The segment as ATen operators for values like these; which of its results are tensors, and how many it has."""
    places = [n for n, v in enumerate(values) if isinstance(v, torch.Tensor)]
    reals = tuple(values[p].detach() for p in places)
    # Formulas ask what they kept whether it needs a gradient.
    asking = [values[p].detach().requires_grad_(values[p].requires_grad) for p in places]
    interpreter = torch.fx.Interpreter(segment.module)
    shape: list[Any] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(values)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        found = interpreter.run(*given)
        shape[:] = [isinstance(v, torch.Tensor) for v in found]
        return [v for v in found if isinstance(v, torch.Tensor)]

    with torch.no_grad(), torch._C._DisableAutocast(), torch.fx.traceback.preserve_node_meta():
        module = make_fx(run, tracing_mode="fake", _error_on_data_dependent_ops=True)(*asking)
    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["example_value"] = node.meta["val"]
    keep = tuple(n for n, there in enumerate(shape) if there)
    return Traced(segment.name, module, reals), keep, len(shape)


def divided(module: torch.fx.GraphModule, id: str, compile: Compile, fail: Fail) -> tuple[Run, tuple[Segment, ...]]:
    """A captured graph with its computing parts compiled, as a function of the same five lists; and those parts.

    Adding to ``.grad`` moves down to the next code of the user's: nothing else can see when it happens.
    """
    divider = _Divider(module, id, compile, fail)
    return divider.divide(), tuple(divider.segments)


class _Divider:
    """Writes the divided graph."""

    def __init__(self, module: torch.fx.GraphModule, id: str, compile: Compile, fail: Fail) -> None:
        self._module = module
        self._id = id
        self._compile = compile
        self._fail = fail
        self._graph = torch.fx.Graph()
        self._map: dict[torch.fx.Node, torch.fx.Node] = {}
        self._pure: list[torch.fx.Node] = []
        self._waiting: list[torch.fx.Node] = []
        self.segments: list[Segment] = []

    def divide(self) -> Run:
        """The whole as straight-line Python."""
        for node in self._module.graph.nodes:
            kind = node.meta.get(KIND)
            if kind in PURE or (kind == "item" and node.args[0] in self._pure):
                self._pure.append(node)
            elif kind == "accumulate":
                self._waiting.append(node)
            elif kind in ("item", "open") or (kind == "check" and not self._waiting):
                self._copy(node)
            else:
                self._flush()
                self._copy(node)
        whole = torch.fx.GraphModule(torch.nn.Module(), self._graph, "DividedBackward")
        return straight_line(whole, callable_of, name="compiled backward")

    def _copy(self, node: torch.fx.Node) -> None:
        self._map[node] = self._graph.node_copy(node, lambda n: self._map[n])

    def _flush(self) -> None:
        if any(n.meta[KIND] == "function" for n in self._pure):
            self._segment()
        else:
            for node in self._pure:
                self._copy(node)
        for node in self._waiting:
            self._copy(node)
        self._pure.clear()
        self._waiting.clear()

    def _segment(self) -> None:
        inside = set(self._pure)
        given = list(dict.fromkeys(n for p in self._pure for n in p.all_input_nodes if n not in inside))
        results = [p for p in self._pure if any(u not in inside for u in p.users)]
        graph = torch.fx.Graph()
        copies = {n: graph.placeholder(n.name) for n in given}
        for node in self._pure:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            set_origin(copies[node], NodeOrigin(nodes=(node_id("captured", self._id, node),)))
        graph.output(tuple(copies[n] for n in results))
        name = f"segment_{len(self.segments)}"
        segment = Segment(name, torch.fx.GraphModule(torch.nn.Module(), graph, name), self._compile, self._fail)
        self.segments.append(segment)
        made = self._graph.create_node("call_function", segment, tuple(self._map[n] for n in given), {}, name=name)
        for n, node in enumerate(results):
            item = self._graph.create_node("call_function", operator.getitem, (made, n), {}, name=node.name)
            item.meta[KIND] = "item"
            if CALL in node.meta:
                item.meta[CALL] = node.meta[CALL]
            set_origin(item, NodeOrigin(nodes=(node_id("captured", self._id, node),)))
            self._map[node] = item
