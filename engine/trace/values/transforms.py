"""``torch.func``: vmap, grad and their like. The transformed function becomes a graph of its own, the transformation one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NotConstant, Value, force
from engine.trace.values.functions import special
from engine.trace.values.nested import NestedBuilder, flatten, nested, twin
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


@dataclass(frozen=True)
class Kind:
    """One transformation: what makes the transformed function, which options it takes, and how its body sees the arguments."""

    make: Callable[..., Any]
    options: tuple[str, ...]
    differentiates: bool


_KINDS = (
    Kind(torch.func.vmap, ("in_dims", "out_dims", "randomness", "chunk_size"), False),
    Kind(torch.func.grad, ("argnums", "has_aux"), True),
    Kind(torch.func.grad_and_value, ("argnums", "has_aux"), True),
    Kind(torch.func.jacrev, ("argnums", "has_aux", "chunk_size"), True),
    Kind(torch.func.jacfwd, ("argnums", "has_aux", "randomness"), True),
    Kind(torch.func.hessian, ("argnums",), True),
)


class TransformedFunction(Value):
    """``torch.func.vmap(f)`` and the like."""

    def __init__(self, kind: Kind, function: Value, options: dict[str, Any]) -> None:
        self.kind = kind
        self.function = function
        self.options = options

    def type(self) -> type:
        return type(torch.func.vmap)

    def describe(self) -> str:
        return f"{self.kind.make.__name__} of {self.function.describe()}"

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [self.function]

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [force(tx, a) for a in args]
        if kwargs or not given or not all(isinstance(a, TensorValue) for a in given):
            raise Unsupported("unsupported-argument", f"{self.describe()} is called with more than tensors")
        for value in given:
            value.graph_arg(tx)
        grad = torch.is_grad_enabled()
        with nested(tx) as builder:
            torch._C._set_grad_enabled(grad or self.kind.differentiates)
            inside = [self._parameter(tx, builder, n, a.fake) for n, a in enumerate(given)]  # type: ignore[attr-defined]
            result = self.function.call(tx, list(inside), {})
            found: list[Value] = []
            alone = flatten(tx, result, found)
            nodes = [v.graph_arg(tx)[0] for v in found]
            torch._C._set_grad_enabled(grad)
            lifted = builder.lift()
            builder.graph.output(nodes[0] if alone else tuple(nodes))
        body = torch.fx.GraphModule(torch.nn.Module(), builder.graph, class_name="TransformedBody")
        target = InGraph(self.kind.make.__name__, _runner(self.kind.make, body, len(given), self.options))
        return emit(tx, "call_function", target, [*given, *(_outer(n) for n in lifted)])

    def _parameter(self, tx: Tracer, builder: NestedBuilder, position: int, fake: torch.Tensor) -> TensorValue:
        """What the body sees of an argument."""
        if self.kind.make is torch.func.vmap:
            dims = self.options.get("in_dims", 0)
            dim = dims[position] if isinstance(dims, (tuple, list)) and position < len(dims) else dims
            if dim is None:
                return twin(tx, builder, fake)
            if type(dim) is not int or not -fake.dim() <= dim < fake.dim():
                raise Unsupported("unsupported-argument", f"in_dims of {self.describe()}")
            with tx.fake_mode:
                return twin(tx, builder, fake.select(dim, 0))
        value = twin(tx, builder, fake.detach())
        if value.fake.is_floating_point() or value.fake.is_complex():
            value.fake.requires_grad_()
        return value

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.kind.make))
        cg.load(self.function)
        for value in self.options.values():
            cg.const(value)
        cg.call_keywords(1, tuple(self.options))


def _runner(
    make: Callable[..., Any], body: Callable[..., Any], count: int, options: dict[str, Any]
) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given, lifted = args[:count], args[count:]
        return make(lambda *inside: body(*inside, *lifted), **options)(*given)

    return run


def _outer(node: torch.fx.Node) -> Value:
    value = node.meta["example_value"]
    return TensorValue(node, value) if isinstance(value, torch.Tensor) else SymValue(node, value)


def _register(kind: Kind) -> None:
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = dict(zip(("func", *kind.options), args, strict=False)) | kwargs
        function = force(tx, given.pop("func"))
        try:
            options = {name: force(tx, value).python(tx) for name, value in given.items()}
        except NotConstant:
            raise Unsupported("unsupported-argument", f"an option of {kind.make.__name__} is not constant") from None
        if options.get("has_aux"):
            raise Unsupported("unsupported-argument", f"{kind.make.__name__} with has_aux")
        return TransformedFunction(kind, function, options)

    special(kind.make)(rule)


for _kind in _KINDS:
    _register(_kind)
