"""User-defined Triton kernels: a launch is a graph node, which runs as traced."""

from __future__ import annotations

import types
from typing import Any

import sympy
import torch
import torch.library

from engine.ir.graph_callable import GraphCallable
from engine.ir.kernels.mutated_arguments import mutated_arguments, signature_type
from engine.ir.node_values import tensors_in
from engine.ir.sources.attributes import AttrSource
from engine.ir.triton_launches import KernelLaunch, LaunchParameter, jit_function_of, launch_operator
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder_if
from engine.trace.variables.callable_registry import register_bound_rule
from engine.trace.variables.callables.functions import FunctionVariable, NestedUserFunctionVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import TreeSpec, arguments_variable, flatten_variable, unflatten_python
from engine.trace.variables.higher_order.subgraph import shares_storage
from engine.trace.variables.objects.user_defined_objects import OpaqueObjectVariable
from engine.trace.variables.slotted_type import SlottedType

_EFFECT = "launches a Triton kernel that may write to {}"


def _is_triton_class(real: Any, name: str) -> bool:
    return any(base.__name__ == name and base.__module__.startswith("triton.runtime") for base in type(real).__mro__)


def _is_triton_kernel(real: Any) -> bool:
    return _is_triton_class(real, "KernelInterface")


class TritonKernelVariable(OpaqueObjectVariable):
    """A Triton kernel, plain or autotuned. ``kernel[grid]`` is a launch without arguments."""

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return TritonKernelLaunchVariable(self, realize(tx, key))

    @property
    def name(self) -> str:
        """Name of the kernel's Python function."""
        return jit_function_of(self.real_object)[0].__name__

    @property
    def parameters(self) -> list[str]:
        """Names of the kernel's parameters, in order."""
        return list(self.real_object.arg_names)

    @property
    def is_autotuned(self) -> bool:
        """True if the autotuner chooses some of its arguments at launch."""
        return _is_triton_kernel(getattr(self.real_object, "fn", None))


register_builder_if(41, _is_triton_kernel)(guarded_builder(TritonKernelVariable, "the Triton kernel was launched"))


class TritonHostFunctionVariable(OpaqueObjectVariable):
    """A Triton function that host code can also call, such as ``triton.cdiv``."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        assert self.source is not None
        return tx.wrap(self.real_object.fn, AttrSource(self.source, "fn")).call(tx, args, kwargs)


register_builder_if(41, lambda real: _is_triton_class(real, "ConstexprFunction"))(
    guarded_builder(TritonHostFunctionVariable, "the function was called")
)


_WRAPPABLE_KERNELS = ("JITFunction", "Autotuner", "InterpretedFunction")


@register_bound_rule(torch.library.wrap_triton)
def _wrap_triton(tx: Tracer, triton_kernel: Variable) -> Variable:
    if triton_kernel.python_type().__name__ not in _WRAPPABLE_KERNELS:
        raise Unsupported("triton-kernel", "torch.library.wrap_triton is called without a kernel")
    return triton_kernel


class TritonLaunchResultVariable(Variable):
    """Result of a launch: the compiled kernel, opaque to the tracer."""

    cls = object

    def describe(self) -> str:
        return "the result of a Triton kernel launch"


class TritonKernelLaunchVariable(Variable):
    """``kernel[grid]``, a launch without its arguments."""

    kernel: TritonKernelVariable
    grid: Variable
    cls = types.FunctionType

    def describe(self) -> str:
        return f"a launch of the Triton kernel {self.kernel.name}"

    child_fields = ("kernel", "grid")

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        positional = [realize(tx, a) for a in args]
        keywords = {k: realize(tx, v) for k, v in kwargs.items()}
        computed: list[Variable] = []
        grid: Any = self._grid(tx, positional, keywords)
        packed = arguments_variable(positional, keywords)
        launched = [packed] if callable(grid) else [packed, grid]
        tree = flatten_variable(tx, TupleVariable(launched), computed, other=_launch_argument)
        for value in computed:
            if value.fake is not None and value.python_type() not in (torch.Tensor, torch.nn.Parameter):
                what = f"a {value.python_type().__name__} as an argument of a Triton kernel"
                raise Unsupported("triton-kernel", what)
        launch = _TritonLaunch(self.kernel.real_object, grid if callable(grid) else None, tree)
        named = dict(zip(self.kernel.parameters, positional, strict=False)) | keywords
        holds_tuples = any(v.pytree_parts(tx) is not None for v in named.values())
        names = frozenset(named)
        if not holds_tuples:
            arguments = {k: v.graph_value if v.is_graph_value else v.as_python_object() for k, v in named.items()}
            names = mutated_arguments(self.kernel.real_object, arguments)
        if not callable(grid) and not holds_tuples:
            operator = self._operator(tx, named, grid, names, launch)
            if operator is not None:
                emit_node(tx, "call_function", operator, [_detached(tx, value) for value in computed])
                return TritonLaunchResultVariable()
        effect = _EFFECT.format(", ".join(n for n in self.kernel.parameters if n in names) or "none of its arguments")
        target = GraphCallable(self.kernel.name, launch, changes_state=True, is_python=callable(grid), effect=effect)
        changed = computed if holds_tuples else [v for n, v in named.items() if n in names]
        fakes = [v.fake for v in changed if v.fake is not None]
        emit_node(tx, "call_function", target, computed, run=lambda *computed: _bump_versions(fakes))
        return TritonLaunchResultVariable()

    def _operator(
        self, tx: Tracer, named: Kwargs, grid: Variable, mutated: frozenset[str], launch: _TritonLaunch
    ) -> Any:
        """Return the operator of a launch, which functional graphs can hold; else None.

        Arguments that share memory with a written one count as written: a functional graph passes them together.
        """
        tensors = {n: fake for n, v in named.items() for fake in tensors_in(v.fake)}
        written = {
            n for n, t in tensors.items() if any(shares_storage(t, tensors[m]) for m in mutated & tensors.keys())
        }
        sizes = dict(zip("xyz", (realize(tx, size) for size in sequence_items(tx, grid)), strict=False))
        computed = [(n, v) for n, v in named.items() if v.is_graph_value]
        computed += [(f"grid_{axis}", v) for axis, v in sizes.items() if v.is_graph_value]
        kinds = [_parameter_types(v.fake if v.fake is not None else v.graph_value, n in written) for n, v in computed]
        if not written or any(tensors[n].requires_grad for n in written) or not all(kinds):
            return None
        parameters = tuple(
            LaunchParameter(name, schema_type.replace("!", f"a{n}!"), triton_type)
            for n, ((name, _), (schema_type, triton_type)) in enumerate(zip(computed, filter(None, kinds), strict=True))
        )
        constants = tuple((n, v.as_python_object()) for n, v in named.items() if not v.is_graph_value)
        shown_sizes = tuple(
            sympy.Symbol(f"grid_{a}") if v.is_graph_value else int(v.as_python_object()) for a, v in sizes.items()
        )
        return launch_operator(launch, KernelLaunch(self.kernel.real_object, parameters, constants, shown_sizes))

    def _grid(self, tx: Tracer, args: Args, keywords: Kwargs) -> Any:
        """Return the grid sizes, or the grid function itself if the kernel is autotuned."""
        if not isinstance(self.grid, FunctionVariable):
            return TupleVariable(list(sequence_items(tx, self.grid)))
        if self.kernel.is_autotuned:
            return self._real_grid(tx)
        named = dict(zip(self.kernel.parameters, args, strict=False)) | keywords
        meta = DictVariable.from_str_keys(named)
        return TupleVariable(list(sequence_items(tx, self.grid.call(tx, [meta], {}))))

    def _real_grid(self, tx: Tracer) -> Any:
        grid = self.grid
        if grid.as_python_object() is not NotImplemented:
            return grid.as_python_object()
        if not isinstance(grid, NestedUserFunctionVariable) or grid.keyword_default_values:
            raise Unsupported("triton-kernel", f"a grid of {grid.describe()} for an autotuned kernel")
        namespace: Any = grid.namespace.values
        cells = [realize(tx, c.content) if c.content is not None else None for c in grid.cell_values]
        real = [types.CellType() if c is None else types.CellType(tx.as_python_constants([c])[0]) for c in cells]
        defaults = tuple(tx.as_python_constants(grid.default_values)) or None
        return types.FunctionType(grid.code, namespace, grid.name, defaults, tuple(real))


def _launch_argument(tx: Tracer, value: Variable) -> TreeSpec:
    """Return a constant argument of a launch."""
    real = value.as_python_object()
    if not value.is_constant:
        if not type(real).__module__.startswith("triton.") or value.source is None:
            raise Unsupported("triton-kernel", f"{value.describe()} as an argument of a Triton kernel")
        tx.guard_identity(real, value.source, "it was passed to a Triton kernel")
    return TreeSpec(constant=real)


def _parameter_types(value: Any, is_written: bool) -> tuple[str, str] | None:
    """Return the types of an argument in an operator's schema and in Triton.

    None for a value that such an operator does not take.
    """
    kind = signature_type(value)
    if kind.startswith("*"):
        return "Tensor(!)" if is_written else "Tensor", kind
    return {"i64": ("SymInt", kind), "fp32": ("float", kind)}.get(kind)


def _detached(tx: Tracer, value: Variable) -> Variable:
    """Return an argument without its gradient, which a kernel does not see."""
    if value.fake is None or not value.fake.requires_grad:
        return value
    return emit_node(tx, "call_method", "detach", [value])


def _bump_versions(fakes: list[torch.Tensor]) -> None:
    """Bump the version counters of the mutated fake tensors."""
    for fake in fakes:
        if not fake.is_inference():
            torch.autograd.graph.increment_version(fake)


class _TritonLaunch(metaclass=SlottedType):
    """Callable of a node: launches a kernel on graph values and constants.

    ``tree`` gives back the arguments, and the grid too unless ``grid`` is a function.
    """

    kernel: Any
    grid: Any
    tree: TreeSpec

    def __call__(self, *computed: Any) -> None:
        (args, keywords), *grid = unflatten_python(self.tree, iter(computed))
        self.kernel[grid[0] if grid else self.grid](*args, **keywords)
