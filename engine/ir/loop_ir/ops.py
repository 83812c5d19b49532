"""One loop-IR op, its cost, loop spaces and computing dtype."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from engine.ir.loop_ir.index_expr import IndexExpr

X = "x"


R = "r"


VARIES_WITH_X = frozenset((X,))


VARIES_WITH_XR = frozenset((X, R))


LOOP_INVARIANT: frozenset[str] = frozenset()


_OPS_BY_COST = {
    2: "reduce",
    4: "sqrt rsqrt div",
    6: "exp2",
    8: "exp log log2 floordiv",
    10: "scan",
    12: "fmod rem sigmoid",
    14: "log1p expm1 tanh",
    20: "sin cos erf",
    30: "pow",
    60: "rand randint",
    100: "bessel_k_near chebyshev hermite legendre laguerre",
    400: "common_divisor hurwitz airy_near",
    1000: "lower_gamma",
    1500: "bessel_k_far",
    2000: "upper_gamma",
}
OP_COSTS = {name: cost for cost, names in _OPS_BY_COST.items() for name in names.split()}


FREE_OPS = frozenset(("constant", "number", "index", "load", "store", "to", "bitcast", "check"))


WRITE_OPS = frozenset(("store", "atomic_add"))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for float16 and bfloat16, which kernels compute in, else the dtype."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


Operand: TypeAlias = "LoopIROp | float"
"""An op, or a number of the other operand's dtype."""


@dataclass(eq=False)
class LoopIROp:
    """One operation of the loop IR; Python's operators on ops record further ops.

    ``loops`` is the set of loops along which its value varies; ``dtype`` is the computing dtype. ``value`` is a
    constant, the kind of a reduction, the target of a cast, or the user line of a bounds check. ``index`` is
    the memory position (load, store), the value (index), or the upper bound of the operand (check).
    """

    number: int
    name: str
    args: tuple[LoopIROp, ...]
    dtype: torch.dtype
    loops: frozenset[str]
    value: Any = None
    index: IndexExpr | None = None
    buffer: str = ""
    mask: LoopIROp | None = None
    node_ids: list[str] = field(default_factory=list)
    label: str = ""
    builder: weakref.ref[Any] = field(kw_only=True, repr=False)
    """The ``LoopBuilder`` that recorded the op.

    Weak, so that a kernel does not keep the definitions that it inlined.
    """

    @property
    def _recorder(self) -> Any:
        builder = self.builder()
        assert builder is not None, "an op is computed with after its kernel's loops are built"
        return builder

    def _record(self, name: str, other: Operand, dtype: torch.dtype | None = None, *, swap: bool = False) -> LoopIROp:
        args = (other, self) if swap else (self, other)
        op: LoopIROp = self._recorder.call(name, *args, dtype=dtype)
        return op

    def __add__(self, other: Operand) -> LoopIROp:
        return self._record("add", other)

    def __sub__(self, other: Operand) -> LoopIROp:
        return self._record("sub", other)

    def __rsub__(self, other: float) -> LoopIROp:
        return self._record("sub", other, swap=True)

    def __mul__(self, other: Operand) -> LoopIROp:
        return self._record("mul", other)

    def __truediv__(self, other: Operand) -> LoopIROp:
        return self._record("div", other)

    def __rtruediv__(self, other: float) -> LoopIROp:
        return self._record("div", other, swap=True)

    def __neg__(self) -> LoopIROp:
        op: LoopIROp = self._recorder.call("neg", self)
        return op

    def __lt__(self, other: Operand) -> LoopIROp:
        return self._record("lt", other, torch.bool)

    def __le__(self, other: Operand) -> LoopIROp:
        return self._record("le", other, torch.bool)

    def __gt__(self, other: Operand) -> LoopIROp:
        return self._record("gt", other, torch.bool)

    def __ge__(self, other: Operand) -> LoopIROp:
        return self._record("ge", other, torch.bool)

    def __and__(self, other: LoopIROp) -> LoopIROp:
        return self._record("and", other, torch.bool)

    def __or__(self, other: LoopIROp) -> LoopIROp:
        return self._record("or", other, torch.bool)

    def is_nan(self) -> LoopIROp:
        """Test for NaN."""
        return self.differs(self)

    def differs(self, other: Operand) -> LoopIROp:
        """Compare values for inequality; ``!=`` compares the identity of ops."""
        return self._record("ne", other, torch.bool)

    def equals(self, other: Operand) -> LoopIROp:
        """Compare values for equality; ``==`` compares the identity of ops."""
        return self._record("eq", other, torch.bool)

    def __str__(self) -> str:
        return self.to_text({})

    def to_text(self, buffers: Mapping[str, str]) -> str:
        """Return the operation as a line of text, with buffers renamed by ``buffers``."""
        parts = [f"%{a.number}" for a in self.args]
        if self.value is not None:
            values = self.value if isinstance(self.value, tuple) else (self.value,)
            parts += [str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else repr(v) for v in values]
        if self.index is not None:
            where = self.index.text()
            parts.insert(0, f"{buffers.get(self.buffer, self.buffer)}[{where}]" if self.buffer else where)
        masked = f" if %{self.mask.number}" if self.mask is not None else ""
        kind = str(self.dtype).removeprefix("torch.")
        head = "" if self.name in WRITE_OPS or self.name == "check" else f"%{self.number}: {kind} = "
        return f"{head}{self.name}({', '.join(parts)}){masked}"

    @property
    def is_fraction(self) -> bool:
        """True for a fraction that the host computes at each call."""
        return self.name == "number" and self.dtype.is_floating_point

    @property
    def cost(self) -> int:
        """Rough arithmetic cost of one evaluation."""
        return 0 if self.name in FREE_OPS else OP_COSTS.get(self.name, 1)

    def inputs(self, ops: tuple[LoopIROp, ...]) -> list[LoopIROp]:
        """Return the operands, the mask, and those of the kernel's ops that compute the address."""
        address = [] if self.index is None else [ops[number] for number in self.index.indirect_ops()]
        return [*self.args, *([] if self.mask is None else [self.mask]), *address]


def conjunction(tests: Iterable[LoopIROp]) -> LoopIROp | None:
    """Return the conjunction of tests; None if there are none."""
    joined: LoopIROp | None = None
    for test in tests:
        joined = test if joined is None else joined & test
    return joined
