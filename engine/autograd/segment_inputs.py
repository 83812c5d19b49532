"""Inputs of a compiled segment: specs, cache key, and symbols for changing sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.graph.fake_tensors.fake_mode import interruptible_fake_mode
from engine.ir.introspection.symbols import symbols_in
from engine.ir.sources.roots import LocalSource
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

SegmentKey = tuple[Any, ...]
"""Cache key of a segment: the ``input_spec`` of each value."""


def input_spec(value: Any) -> Any:
    """Return the spec of a value that a compiled segment assumes; None if unsupported."""
    if value is None:
        return "None"
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return None
        return value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, value.requires_grad
    return ("is", value) if type(value) in (int, float, bool) else None


def differ_only_in_sizes(a: SegmentKey, b: SegmentKey) -> bool:
    """Return True if two keys differ only in sizes that can be symbols."""
    return all(x == y or _differs_only_in_sizes(x, y) for x, y in zip(a, b, strict=True))


def _differs_only_in_sizes(x: Any, y: Any) -> bool:
    if len(x) != len(y) or "None" in (x, y):
        return False
    if x[0] == "is":
        return type(x[1]) is int and type(y[1]) is int
    return len(x[0]) == len(y[0]) and bool(x[3:] == y[3:])


@dataclass(frozen=True)
class SymbolicInputs:
    """Inputs to trace with: fake tensors, and symbols for the sizes in which keys differ."""

    shape_env: ShapeEnv
    fake_mode: FakeTensorMode
    fakes: tuple[Any, ...]

    @property
    def symbol_count(self) -> int:
        """Number of symbols in the sizes of the inputs; 0 if all sizes are static."""
        return len(symbols_in(self.fakes))

    def accepts(self, values: Sequence[Any]) -> bool:
        """Return True if the values satisfy all assumptions about the symbols.

        The assumptions come from tracing and compilation. The key of the values must differ only in sizes.
        """
        symbol_values: dict[Any, int] = {}
        computed: list[tuple[Any, int]] = []
        for fake, value in zip(self.fakes, values, strict=True):
            for expected, actual in zip(_sizes_and_strides(fake), _sizes_and_strides(value), strict=True):
                if not isinstance(expected, torch.SymInt):
                    if expected != actual:
                        return False
                    continue
                expr: Any = expected.node._expr
                if not expr.is_Symbol:
                    computed.append((expr, actual))
                elif symbol_values.setdefault(expr, actual) != actual:
                    return False
        ranges = self.shape_env.var_to_range
        return (
            all(s not in ranges or ranges[s].lower <= n <= ranges[s].upper for s, n in symbol_values.items())
            and all(expr.xreplace(symbol_values) == actual for expr, actual in computed)
            and all(guard.expr.xreplace(symbol_values) == True for guard in self.shape_env.guards)  # noqa: E712  sympy booleans are not Python booleans
        )


def _sizes_and_strides(value: Any) -> Iterator[Any]:
    """Yield the sizes, strides and storage offset of a tensor; yield a number itself."""
    if isinstance(value, torch.Tensor):
        yield from (*value.shape, *value.stride(), value.storage_offset())
    elif value is not None:
        yield value


def make_symbolic_inputs(values: Sequence[Any], key: SegmentKey, before: Sequence[SegmentKey]) -> SymbolicInputs:
    """Return inputs to trace a key with; sizes that differ from ``before`` are symbols."""
    env = ShapeEnv()
    mode = interruptible_fake_mode(env)
    fakes = []
    for n, (value, layout) in enumerate(zip(values, key, strict=True)):
        earlier_values = [b[n] for b in before]
        source = LocalSource(f"value_{n}")
        if isinstance(value, torch.Tensor):
            dims = [
                DimDynamic.DYNAMIC if any(o[0][d] != size for o in earlier_values) else DimDynamic.STATIC
                for d, size in enumerate(value.shape)
            ]
            leaf = value.detach().requires_grad_(value.requires_grad)
            fakes.append(mode.from_tensor(leaf, source=source, symbolic_context=StatelessSymbolicContext(dims)))
        elif any(o != layout for o in earlier_values):
            symbol = env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
            symbolic: Any = env.create_symintnode(symbol, hint=value, source=source)
            fakes.append(symbolic)
        else:
            fakes.append(value)
    return SymbolicInputs(env, mode, tuple(fakes))
