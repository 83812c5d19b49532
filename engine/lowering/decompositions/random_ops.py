"""Decompose random operators into random numbers generated in the kernel and arithmetic.

Only with ``fused_random``: a seed then yields other numbers than eager's generator, although the same in each run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from engine.graph.lazy_module import trace_lazily
from engine.ir.node_values import nodes_in, results_of, tensor_meta, tensors_in
from engine.ir.static_sizes import static_size
from engine.lowering.philox_ops import random_bits, random_seeds, random_uniform
from engine.torch_private.fake_tensors import detect_fake_mode

aten = torch.ops.aten
FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_INTEGER_RANGE = 1 << 32

DrawFn = Callable[..., torch.Tensor]
"""``draw(like, operator)``: a random number per element of ``like``, in its memory order."""
RandomRule = Callable[..., Any]


def _box_muller(draw: DrawFn, like: torch.Tensor) -> torch.Tensor:
    """Sample a standard normal distribution (Box and Muller, 1958)."""
    length = torch.sqrt(-2.0 * torch.log(1.0 - draw(like)))
    return length * torch.cos((2.0 * math.pi) * draw(like))


def _normal_like(draw: DrawFn, like: torch.Tensor, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> torch.Tensor:
    numbers = _box_muller(draw, like)
    numbers = numbers if isinstance(std, (int, float)) and std == 1 else numbers * std
    return (numbers if isinstance(mean, (int, float)) and mean == 0 else numbers + mean).to(like.dtype)


def _uniform_like(draw: DrawFn, like: torch.Tensor, start: float = 0.0, end: float = 1.0, **_: Any) -> torch.Tensor:
    return (draw(like) * (end - start) + start).to(like.dtype)


def _randint_like(draw: DrawFn, like: torch.Tensor, start: int, end: int) -> torch.Tensor:
    return (draw(like, random_bits) % (end - start) + start).to(like.dtype)


def _dropout(draw: DrawFn, like: torch.Tensor, x: torch.Tensor, p: float, train: bool | None) -> Any:
    kept = draw(like) >= p
    return x * kept.to(x.dtype) * (1.0 / (1.0 - p)), kept


RANDOM_DECOMPOSITIONS: dict[Any, tuple[int, RandomRule]] = {
    aten.rand.default: (1, lambda draw, like, *_, **__: draw(like).to(like.dtype)),
    aten.rand_like.default: (1, lambda draw, like, *_, **__: draw(like).to(like.dtype)),
    aten.randn.default: (2, lambda draw, like, *_, **__: _normal_like(draw, like)),
    aten.randn_like.default: (2, lambda draw, like, *_, **__: _normal_like(draw, like)),
    aten.bernoulli.p: (1, lambda draw, like, _, p, **__: (draw(like) < p).to(like.dtype)),
    aten.bernoulli.default: (1, lambda draw, like, p, **__: (draw(like) < p).to(like.dtype)),
    aten.uniform.default: (1, lambda draw, like, _, *bounds, **named: _uniform_like(draw, like, *bounds, **named)),
    aten.normal_functional.default: (2, lambda draw, like, _, *more, **named: _normal_like(draw, like, *more, **named)),
    aten.normal.Tensor_Tensor: (2, lambda draw, like, *both, **_: _normal_like(draw, like, *both)),
    aten.normal.Tensor_float: (2, lambda draw, like, *both, **_: _normal_like(draw, like, *both)),
    aten.normal.float_Tensor: (2, lambda draw, like, *both, **_: _normal_like(draw, like, *both)),
    aten.normal.float_float: (2, lambda draw, like, mean, std, *_, **__: _normal_like(draw, like, mean, std)),
    aten.exponential.default: (
        1,
        lambda draw, like, _, rate=1.0, **__: (torch.log(1.0 - draw(like)) * (-1.0 / rate)).to(like.dtype),
    ),
    aten.randint.default: (1, lambda draw, like, end, *_, **__: _randint_like(draw, like, 0, end)),
    aten.randint.low: (1, lambda draw, like, start, end, *_, **__: _randint_like(draw, like, start, end)),
    aten.randint_like.default: (1, lambda draw, like, _, end, **__: _randint_like(draw, like, 0, end)),
    aten.randint_like.low_dtype: (1, lambda draw, like, _, start, end, **__: _randint_like(draw, like, start, end)),
    aten.native_dropout.default: (1, _dropout),
}
"""Number of seeds of each operator, and its decomposition ``rule(draw, like, *args)``.

``like`` stands in for the result of the operator.
"""
INTEGER_OPS = frozenset(
    (aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype)
)


class RandomDecomposer:
    """Random operators of one graph, the seed of each, and the node that generates all seeds."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._first_seed: dict[torch.fx.Node, int] = {}
        self.seed_count = 0
        for node in module.graph.nodes:
            if node.op == "call_function" and _can_draw_in_kernel(node):
                self._first_seed[node] = self.seed_count
                self.seed_count += RANDOM_DECOMPOSITIONS[node.target][0]
        self._seeds_node: torch.fx.Node | None = None

    def decompose(self, node: torch.fx.Node) -> torch.fx.GraphModule | None:
        """Trace a random operator over the seeds and its inputs; None for other operators."""
        if node not in self._first_seed:
            return None

        like = _first_result(node)
        sources = list(node.all_input_nodes)
        values = [n.meta.get("val") for n in sources]
        mode = detect_fake_mode([*values, like])
        first, rule = self._first_seed[node], RANDOM_DECOMPOSITIONS[node.target][1]

        def call(seeds: torch.Tensor, *inputs: Any) -> Any:
            taken = iter(range(first, self.seed_count))

            def draw(shaped: torch.Tensor, operator: Any = random_uniform) -> torch.Tensor:
                order = sorted(range(shaped.dim()), key=lambda d: -_stride_or_rank(shaped, d))
                numbers: torch.Tensor = operator(seeds, next(taken), [shaped.shape[d] for d in order])
                return (
                    numbers if order == sorted(order) else numbers.permute([order.index(d) for d in range(len(order))])
                )

            values = dict(zip(sources, inputs, strict=True))
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            return rule(draw, like, *args, **kwargs)

        if mode is None:
            return None
        with mode, torch.no_grad():
            seeds = torch.empty(self.seed_count, dtype=torch.int64, device=like.device)
            return trace_lazily(call, seeds, *values)

    def seeds_node(self, graph: torch.fx.Graph, like: torch.fx.Node) -> torch.fx.Node:
        """Return the node that generates the seeds; create it on first use."""
        if self._seeds_node is None:
            device, mode = _first_result(like).device, detect_fake_mode([_first_result(like)])
            self._seeds_node = graph.create_node(
                "call_function", random_seeds, (self.seed_count,), {"device": device}, name="seeds"
            )
            with mode:  # type: ignore[union-attr]
                self._seeds_node.meta["val"] = torch.empty(self.seed_count, dtype=torch.int64, device=device)
        return self._seeds_node


def _first_result(node: torch.fx.Node) -> torch.Tensor:
    result: torch.Tensor = results_of(node.meta["val"])[0]
    return result


def _stride_or_rank(value: torch.Tensor, dim: int) -> int:
    step = static_size(value.stride(dim))
    return value.dim() - dim if step is None else step


def _can_draw_in_kernel(node: torch.fx.Node) -> bool:
    """Return True if a kernel can generate the numbers of a random operator.

    It cannot for float64, for a user-defined generator, and for integer ranges of 2**32 or more.
    """
    if node.target not in RANDOM_DECOMPOSITIONS or node.kwargs.get("generator") is not None:
        return False
    if node.target is aten.native_dropout.default and not (node.args[2] and 0.0 < node.args[1] < 1.0):  # type: ignore[operator]
        return False
    dtype = _first_result(node).dtype
    if node.target in INTEGER_OPS:
        bounds = [a for a in map(static_size, node.args) if a is not None]
        symbolic = [n for n in node.all_input_nodes if n in node.args and tensor_meta(n) is None]
        return not symbolic and abs(max(bounds) - min([*bounds[:-1], 0])) < MAX_INTEGER_RANGE
    return dtype in FLOAT_DTYPES and all(map(_has_float_dtype, _tensor_args(node.args)))


def _tensor_args(args: Sequence[Any]) -> list[torch.Tensor]:
    return tensors_in([n.meta.get("val") for n in nodes_in(tuple(args))])


def _has_float_dtype(value: torch.Tensor) -> bool:
    return value.dtype in FLOAT_DTYPES
