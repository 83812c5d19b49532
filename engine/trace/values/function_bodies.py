"""``torch.autograd.Function`` on objects, or with free tensors: forward and backward become graphs of their own, which one node runs under autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force, reached
from engine.trace.values.nested import NestedBuilder, nested, outer_value, twin
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.trace.state import Tracer

    Method = Callable[[str, list[Value]], Value]


@dataclass(frozen=True)
class Saved:
    """What the backward needs of the forward: places among the further results of its graph."""

    checked: tuple[int, ...]
    """Those given to ``save_for_backward``, which autograd checks for later writes."""
    kept: tuple[int, ...]


class FunctionBodies:
    """Traces one application of a function. ``forward`` and ``backward`` call its methods on values."""

    def __init__(self, tx: Tracer, cls: type, given: list[Value], needed: list[bool]) -> None:
        self.tx = tx
        self.cls = cls
        self.given = given
        self.needed = needed
        self.direct = [v for v in given if isinstance(v, (TensorValue, SymValue))]
        for value in self.direct:
            value.graph_arg(tx)

    def inside(self, builder: NestedBuilder) -> list[Value]:
        """What the forward sees: tensors and symbols as parameters of its graph, all else as it is."""
        return [self._parameter(builder, v) for v in self.given]

    def _parameter(self, builder: NestedBuilder, value: Value) -> Value:
        if isinstance(value, TensorValue):
            return twin(self.tx, builder, value.fake)
        return SymValue(builder.parameter(value.sym), value.sym) if isinstance(value, SymValue) else value

    def outputs(self, result: Value, known: set[int]) -> list[Value]:
        """What the forward returned, one by one; ``known`` are ids of the values that the backward can get at.

        Raises:
            Unsupported: something in it is neither a tensor nor constant, nor an argument, nor an object without tensors that is nobody else's.
        """
        found = [force(self.tx, i) for i in result.items] if isinstance(result, TupleValue) else [result]
        own = {id(force(self.tx, g)) for g in self.given}
        if not all(isinstance(o, (TensorValue, Const)) or id(o) in own or self._is_apart(o, known) for o in found):
            raise Unsupported("unknown-call", f"{self.cls.__name__} returns more than tensors and constants")
        return found

    def _is_apart(self, output: Value, known: set[int]) -> bool:
        """Whether an object was made by the forward, holds nothing of its graph, and is out of the backward's reach."""
        inside = [v for v in reached([output]) if not isinstance(v, Const)]
        return output.origin is None and not any(
            isinstance(v, (TensorValue, SymValue)) or id(v) in known for v in inside
        )

    def gradients(self, result: Value) -> list[torch.fx.Node | None]:
        """The backward's results, as nodes: one for each tensor or symbol given.

        Raises:
            Unsupported: it returned too few, or what is no tensor.
        """
        result = force(self.tx, result)
        is_many = isinstance(result, TupleValue) or result.type() is list
        found = [force(self.tx, g) for g in sequence_items(self.tx, result)] if is_many else [result]
        count = len(self.given)
        if len(found) < count or any(g is not NONE and not isinstance(g, (TensorValue, Const)) for g in found):
            raise Unsupported("unknown-call", f"the backward of {self.cls.__name__} returns other than a gradient each")
        if any(isinstance(g, TensorValue) for g in found[count:]):
            raise Unsupported("unknown-call", f"the backward of {self.cls.__name__} returns too many gradients")
        return [
            g.graph_arg(self.tx)[0] if isinstance(g, TensorValue) else None
            for g, v in zip(found, self.given, strict=False)
            if isinstance(v, (TensorValue, SymValue))
        ]


def check_no_marks(cls: type, values: list[Value]) -> None:
    """What a forward writes on its arguments and results stays on them in Python; those of a graph are other tensors.

    Raises:
        Unsupported: it writes an attribute of one.
    """
    written = next((name for v in values if isinstance(v, TensorValue) for name in v.written), None)
    if written is not None:
        raise Unsupported("side-effect", f"the forward of {cls.__name__} sets the attribute {written!r} of a tensor")


def trace_bodies(tx: Tracer, cls: type, given: list[Value], ctx: Any, result_of: Method, once: bool) -> Value:
    """The node that runs forward and backward as graphs under autograd, and its results as Python would pack them.

    Raises:
        Unsupported: a body does what no graph of its own can hold.
    """
    bodies = FunctionBodies(tx, cls, given, ctx.needed)
    grad = torch.is_grad_enabled()
    with nested(tx, may_note=True) as forward:
        torch._C._set_grad_enabled(False)
        inputs = bodies.inside(forward)
        result = force(tx, result_of("forward", inputs))
        outputs = bodies.outputs(result, {id(v) for v in reached(v for v in ctx.written.values() if v is not None)})
        check_no_marks(cls, [*inputs, *outputs])
        nodes = [o.graph_arg(tx)[0] for o in outputs if isinstance(o, TensorValue)]
        torch._C._set_grad_enabled(grad)
    before = _versions(forward)
    try:
        with nested(tx) as backward:
            backward.is_function_body = True
            torch._C._set_grad_enabled(False)
            grads = [twin(tx, backward, o.fake.detach()) if isinstance(o, TensorValue) else NONE for o in outputs]
            found = bodies.gradients(result_of("backward", [ctx, *grads]))
            torch._C._set_grad_enabled(grad)
            if _versions(forward) != before:
                raise Unsupported("unknown-call", f"the backward of {cls.__name__} changes what its forward made")
            backward.graph.output(tuple(found))
    except BaseException:
        forward.discard()
        raise
    return _joined(tx, bodies, ctx, result, outputs, (forward, nodes), backward, once=once)


def _versions(builder: NestedBuilder) -> list[int]:
    fakes = (n.meta.get("example_value") for n in builder.graph.nodes)
    return [f._version for f in fakes if isinstance(f, torch.Tensor) and not f.is_inference()]


def _joined(
    tx: Tracer,
    bodies: FunctionBodies,
    ctx: Any,
    result: Value,
    outputs: list[Value],
    first: tuple[NestedBuilder, list[torch.fx.Node]],
    backward: NestedBuilder,
    *,
    once: bool,
) -> Value:
    forward, nodes = first
    needs = [n for n in backward.outside() if n.graph is forward.graph]
    forward.graph.output((*nodes, *needs))
    lifted = list(dict.fromkeys(n for n in (*forward.outside(), *backward.outside()) if n.graph is not forward.graph))
    forward.lift(lifted)
    backward.lift([*needs, *lifted])
    checked = {v.made_by for v in (force(tx, s) for s in ctx.saved) if isinstance(v, TensorValue)}
    saved = Saved(
        tuple(k for k, n in enumerate(needs) if n in checked), tuple(k for k, n in enumerate(needs) if n not in checked)
    )
    tensors = [o for o in outputs if isinstance(o, TensorValue)]
    runs = _Runs(
        bodies.cls.__name__,
        forward.module("Forward"),
        backward.module("Backward"),
        (len(bodies.direct), len(nodes)),
        saved,
        tuple(any(t is force(tx, f) for f in ctx.fixed) for t in tensors),
        once=once,
    )
    differentiates = any(n.target is torch.autograd.grad for n in backward.graph.nodes)
    effect = "runs autograd inside of a backward" if differentiates else "changes torch's state"
    target = InGraph(bodies.cls.__name__, runs, changes_state=differentiates, effect=effect)
    made = emit(tx, "call_function", target, [*bodies.direct, *(outer_value(n) for n in lifted)])
    items = iter(sequence_items(tx, made))
    packed = [next(items) if isinstance(o, TensorValue) else o for o in outputs]
    return TupleValue(packed, result.cls) if isinstance(result, TupleValue) else packed[0]


class _Runs:
    """Runs two graphs as forward and backward of an autograd function. ``counts``: of what it is given but free tensors, and of its results."""

    def __init__(
        self,
        name: str,
        forward: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        counts: tuple[int, int],
        saved: Saved,
        fixed: Sequence[bool],
        *,
        once: bool,
    ) -> None:
        self._forward, self._backward = forward, backward
        self._given, self._results = counts
        self._saved, self._fixed = saved, fixed
        gradient = torch.autograd.function.once_differentiable(self._gradient) if once else self._gradient
        methods = {"forward": staticmethod(self._values), "backward": staticmethod(gradient)}
        self._cls: Any = type(name, (torch.autograd.Function,), methods)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        free = (a.detach() if isinstance(a, torch.Tensor) else a for a in args[self._given :])
        return tuple(self._cls.apply(*args[: self._given], *free))

    def _values(self, ctx: Any, *args: Any) -> tuple[Any, ...]:
        found = self._forward(*args)
        results, needs = found[: self._results], found[self._results :]
        ctx.save_for_backward(*(needs[k] for k in self._saved.checked))
        ctx.kept = [needs[k] for k in self._saved.kept]
        ctx.free = args[self._given :]
        ctx.mark_non_differentiable(*(r for r, fixed in zip(results, self._fixed, strict=True) if fixed))
        return tuple(results)

    def _gradient(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        needs = dict(zip(self._saved.checked, ctx.saved_tensors, strict=True))
        needs |= dict(zip(self._saved.kept, ctx.kept, strict=True))
        found = self._backward(*grads, *(needs[k] for k in range(len(needs))), *ctx.free)
        return (*found, *(None for _ in ctx.free))
