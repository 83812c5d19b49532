"""Memory positions in LLVM IR: a base with a stride per lane, or a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.ir.loop_ir.index_expr import Atom, Division, IndexExpr, LoopVar, Mod, Size
from engine.ir.static_sizes import static_size
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.llvm_types import iota, splat, wide
from engine.kernels.cpu.loop_plan import lane_stride


@dataclass(frozen=True)
class Address:
    """A position per lane: ``base + lane * stride``, or the vector ``lanes`` if given.

    If ``until_wrap`` is given, only as many lanes are adjacent; those that follow are a ``period`` before.
    """

    base: str
    stride: Size = 0
    lanes: str = ""
    until_wrap: str = ""
    period: int = 0


@dataclass(frozen=True)
class LaneContext:
    """Names that positions are computed from.

    ``variable`` names a loop variable, for the vectors of copy ``copy``. ``value_of`` returns ``(name, is_vector)`` of
    an op's value as a 64-bit integer. ``size_of`` names a symbolic size.
    """

    lane_var: LoopVar | None
    lanes: int
    variable: Callable[[LoopVar, int], str]
    value_of: Callable[[int, int], tuple[str, bool]]
    size_of: Callable[[Size], str]


class Addresses:
    """Writes the arithmetic of memory positions."""

    def __init__(self, writer: IrWriter, context: LaneContext) -> None:
        self._writer = writer
        self._context = context

    def address(self, index: IndexExpr, copy: int, *, may_wrap: bool = False) -> Address:
        """Return the position of each lane of one copy. ``may_wrap``: see ``Address``."""
        context = self._context
        stride = 0 if context.lane_var is None else lane_stride(index, context.lane_var)
        if stride is not None and not self._has_vector_index(index, copy):
            return Address(self._scalar(index, copy), stride)
        if may_wrap and (remainder := self._cyclic_remainder(index)) is not None:
            period, start = static_size(remainder.divisor) or 0, self._scalar_atom(remainder, copy)
            rest = IndexExpr({a: c for a, c in index.terms.items() if a != remainder}, index.const)
            base = self._sum("i64", self._scalar(rest, copy), start)
            return Address(base, 1, "", self._writer.assign("left", f"sub i64 {period}, {start}"), period)
        return Address("0", 0, self.vector(index, copy))

    def _cyclic_remainder(self, index: IndexExpr) -> Mod | None:
        """Return the remainder in an index of a cyclic shift along the lanes, or None."""
        var = self._context.lane_var
        varying = [a for a in index.terms if var in a.variables() or a.indirect_ops()]
        remainder = varying[0].as_remainder() if len(varying) == 1 else None
        if var is None or remainder is None or index.terms[remainder] != 1:
            return None
        parts = remainder.dividend.terms
        is_adjacent = parts.get(var) == 1 and not any(
            var in a.variables() or a.indirect_ops() for a in parts if a != var
        )
        return remainder if is_adjacent and (static_size(remainder.divisor) or 0) >= self._context.lanes else None

    def vector(self, index: IndexExpr, copy: int) -> str:
        """Return the positions of all lanes as one vector of 64-bit integers."""
        kind, total = wide("i64", self._context.lanes), ""
        scalar_terms: dict[Atom, Size] = {}
        for atom, coefficient in index.terms.items():
            part = self._vector_atom(atom, copy)
            if part is None:
                scalar_terms[atom] = coefficient
            else:
                total = self._sum(kind, total, self._product(kind, part, coefficient))
        base = self._scalar(IndexExpr(scalar_terms, index.const), copy)
        return self._sum(kind, total, self.broadcast("i64", base)) if base != "0" or not total else total

    def broadcast(self, scalar: str, name: str) -> str:
        """Return a scalar in all lanes."""
        lanes = self._context.lanes
        if lanes == 1:
            return name
        if not name.startswith("%"):
            return splat(scalar, name, lanes)
        kind = wide(scalar, lanes)
        first = self._writer.assign("first", f"insertelement {kind} poison, {scalar} {name}, i64 0")
        return self._writer.assign(
            "all", f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def _has_vector_index(self, index: IndexExpr, copy: int) -> bool:
        return any(self._context.value_of(number, copy)[1] for number in index.indirect_ops())

    def _vector_atom(self, atom: Atom, copy: int) -> str | None:
        """Return an atom that differs between lanes; None for one that does not."""
        context, write = self._context, self._writer
        number = atom.indirect_op()
        if number is not None:
            name, is_vector = context.value_of(number, copy)
            return name if is_vector else None
        var = context.lane_var
        if var is None or (var not in atom.variables() and not self._has_vector_index(IndexExpr({atom: 1}), copy)):
            return None
        kind = wide("i64", context.lanes)
        if atom.as_variable() is not None:
            start = self.broadcast("i64", context.variable(var, copy))
            return write.assign("at", f"add {kind} {start}, {iota(context.lanes)}")
        division = _division(atom)
        return self._print_division(division, self.vector(division.dividend, copy), kind)

    def _print_division(self, atom: Division, dividend: str, kind: str) -> str:
        """Return a quotient or remainder; loop indices are below 2 ** 31 where this is vectorized."""
        operation = "udiv" if atom.as_remainder() is None else "urem"
        by = self.size_name(atom.divisor)
        divisor = self.broadcast("i64", by) if kind != "i64" else by
        return self._writer.assign("part", f"{operation} {kind} {dividend}, {divisor}")

    def _scalar(self, index: IndexExpr, copy: int) -> str:
        """Return the position of the first lane, as a 64-bit integer."""
        total = ""
        for atom, coefficient in index.terms.items():
            total = self._sum("i64", total, self._product("i64", self._scalar_atom(atom, copy), coefficient))
        if index.const == 0:
            return total or "0"
        return self._sum("i64", total, self.size_name(index.const))

    def _scalar_atom(self, atom: Atom, copy: int) -> str:
        var, number = atom.as_variable(), atom.indirect_op()
        if var is not None:
            return self._context.variable(var, copy)
        if number is not None:
            return self._context.value_of(number, copy)[0]
        division = _division(atom)
        return self._print_division(division, self._scalar(division.dividend, copy), "i64")

    def _product(self, kind: str, value: str, factor: Size) -> str:
        if factor == 1:
            return value
        by = self.size_name(factor)
        return self._writer.assign("at", f"mul {kind} {value}, {by if kind == 'i64' else self.broadcast('i64', by)}")

    def _sum(self, kind: str, left: str, right: str) -> str:
        return right if not left else self._writer.assign("at", f"add {kind} {left}, {right}")

    def size_name(self, size: Size) -> str:
        """Return a size as a constant or the name of a parameter."""
        number = static_size(size)
        return self._context.size_of(size) if number is None else str(number)


def _division(atom: Atom) -> Division:
    """Return the quotient or remainder that an atom is: no variable, and no op's value."""
    division = atom.as_division()
    assert division is not None
    return division
