"""The user's own Triton kernels: a launch is a node of the graph, which runs as traced."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
import torch.library

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr, Origin
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value, force
from engine.trace.values.functions import FunctionValue, MadeFunction, RealFunction
from engine.trace.values.kernel_writes import written
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import OpaqueValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]

_EFFECT = "launches a kernel of the user's, which may write to {}"


def _is_of_triton(real: Any, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith("triton.runtime") for base in type(real).__mro__)


def _is_kernel(real: Any) -> bool:
    return _is_of_triton(real, "KernelInterface")


def _is_host_function(real: Any) -> bool:
    return _is_of_triton(real, "ConstexprFunction")


class KernelValue(OpaqueValue):
    """A kernel, plain or with choices to be tuned; ``kernel[grid]`` is a launch that awaits its arguments."""

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return KernelLaunch(self, force(tx, key))

    @property
    def name(self) -> str:
        """The name of the Python function that the kernel was made of."""
        found = self.held
        while _is_kernel(found) and hasattr(found, "fn"):
            found = found.fn
        return str(getattr(found, "__name__", "kernel"))

    @property
    def parameters(self) -> list[str]:
        """Names of the kernel's parameters, in order."""
        return list(self.held.arg_names)

    @property
    def is_chosen_later(self) -> bool:
        """Whether some of its arguments are chosen when it is launched."""
        return _is_kernel(getattr(self.held, "fn", None))


@wraps_if(41, _is_kernel)
def _kernel(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "the Triton kernel was launched")
    return KernelValue(real, origin)


class HostFunction(OpaqueValue):
    """A function of Triton's that host code may call too, ``triton.cdiv`` for one."""

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        assert self.origin is not None
        return tx.wrap(self.held.fn, Attr(self.origin, "fn")).call(tx, args, kwargs)


@wraps_if(41, _is_host_function)
def _host_function(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "the function was called")
    return HostFunction(real, origin)


@special(torch.library.wrap_triton)
def _wrap_triton(tx: Tracer, args: Args, kwargs: Words) -> Value:
    kernel = force(tx, args[0] if args else kwargs["triton_kernel"])
    if not isinstance(kernel, KernelValue) or type(kernel.held).__name__ not in ("JITFunction", "Autotuner"):
        raise Unsupported("unknown-call", "torch.library.wrap_triton is called with what is no kernel")
    return kernel


class LaunchResult(Value):
    """What a launch returns: the compiled kernel, which only Python can look at."""

    def type(self) -> type:
        return object

    def describe(self) -> str:
        return "the result of launching a kernel"


class KernelLaunch(Value):
    """``kernel[grid]``."""

    def __init__(self, kernel: KernelValue, grid: Value) -> None:
        self.kernel = kernel
        self.grid = grid

    def type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"a launch of the Triton kernel {self.kernel.name}"

    def children(self) -> list[Value]:
        return [self.kernel, self.grid]

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        given = [force(tx, a) for a in args]
        words = {k: force(tx, v) for k, v in kwargs.items()}
        computed: list[Value] = []
        grid: Any = self._grid(tx, given, words)
        if isinstance(grid, list):
            grid = tuple(_part(tx, g, computed) for g in grid)
        launch = _Launch(
            self.kernel.held,
            grid,
            tuple(_part(tx, v, computed) for v in given),
            {k: _part(tx, v, computed) for k, v in words.items()},
        )
        named = dict(zip(self.kernel.parameters, given, strict=False)) | words
        holds_tuples = any(isinstance(v, TupleValue) for v in named.values())
        names = (
            frozenset(named) if holds_tuples else written(self.kernel.held, {k: _shown(v) for k, v in named.items()})
        )
        effect = _EFFECT.format(", ".join(n for n in self.kernel.parameters if n in names) or "none of its arguments")
        target = InGraph(self.kernel.name, launch, changes_state=True, is_python=callable(grid), effect=effect)
        changed = computed if holds_tuples else [v for n, v in named.items() if n in names]
        fakes = [v.fake for v in changed if isinstance(v, TensorValue)]
        emit(tx, "call_function", target, computed, run=lambda *computed: _note_writes(fakes))
        return LaunchResult()

    def _grid(self, tx: Tracer, args: Args, words: Words) -> Any:
        """The numbers of programs as values; a function of the arguments where these are chosen when the kernel is launched."""
        if not isinstance(self.grid, FunctionValue):
            return [force(tx, i) for i in sequence_items(tx, self.grid)]
        if self.kernel.is_chosen_later:
            return self._real_grid(tx)
        named = dict(zip(self.kernel.parameters, args, strict=False)) | words
        meta = DictValue.of(named)
        return [force(tx, i) for i in sequence_items(tx, self.grid.call(tx, [meta], {}))]

    def _real_grid(self, tx: Tracer) -> Any:
        grid = self.grid
        if isinstance(grid, RealFunction):
            return grid.held
        namespace = grid.namespace.values if isinstance(grid, FunctionValue) else None
        if not isinstance(grid, MadeFunction) or grid.keyword_default_values or not isinstance(namespace, dict):
            raise Unsupported("unsupported-argument", f"a grid of {grid.describe()} for a kernel that is tuned")
        cells = [force(tx, c.content) if c.content is not None else None for c in grid.cell_values]
        held = [types.CellType() if c is None else types.CellType(tx.constants([c])[0]) for c in cells]
        defaults = tuple(tx.constants(grid.default_values)) or None
        return types.FunctionType(grid.code, namespace, grid.name, defaults, tuple(held))


def _part(tx: Tracer, value: Value, computed: list[Value]) -> Any:
    """A constant argument, or the place in ``computed`` of one that the graph gives."""
    if isinstance(value, TensorValue):
        if value.type() not in (torch.Tensor, torch.nn.Parameter):
            raise Unsupported("unsupported-argument", f"a {value.type().__name__} as an argument of a Triton kernel")
        computed.append(value)
        return _Place(len(computed) - 1)
    if isinstance(value, SymValue):
        computed.append(value)
        return _Place(len(computed) - 1)
    if isinstance(value, TupleValue):
        return tuple(_part(tx, force(tx, v), computed) for v in value.items)
    real = value.real()
    if isinstance(value, Const):
        return real
    if type(real).__module__.startswith("triton.") and value.origin is not None:
        tx.guard_object(real, value.origin, "it was given to a Triton kernel")
        return real
    raise Unsupported("unsupported-argument", f"{value.describe()} as an argument of a Triton kernel")


def _shown(value: Value) -> Any:
    """An argument as the kernel's compiler needs to see it."""
    if isinstance(value, TensorValue):
        return value.fake
    return value.sym if isinstance(value, SymValue) else value.real()


def _note_writes(fakes: list[torch.Tensor]) -> None:
    """What a launch does to fakes."""
    for fake in fakes:
        if not fake.is_inference():
            torch.autograd.graph.increment_version(fake)


class _Place:
    """Stands for an argument that the graph gives."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Launch:
    """Launches a kernel on what the graph gives and on the constants known while tracing."""

    def __init__(self, kernel: Any, grid: Any, args: tuple[Any, ...], words: dict[str, Any]) -> None:
        self.kernel = kernel
        self.grid = grid
        self.args = args
        self.words = words

    def __call__(self, *computed: Any) -> None:
        grid = self.grid if callable(self.grid) else _filled(self.grid, computed)
        words = {k: _filled(v, computed) for k, v in self.words.items()}
        self.kernel[grid](*_filled(self.args, computed), **words)


def _filled(part: Any, computed: tuple[Any, ...]) -> Any:
    if isinstance(part, _Place):
        return computed[part.number]
    return tuple(_filled(p, computed) for p in part) if type(part) is tuple else part
