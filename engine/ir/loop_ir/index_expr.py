"""Symbolic index expressions over loop variables, simplified during construction.

An ``IndexExpr`` is a sum of atoms with coefficients, plus a constant. Atoms are loop variables, floor
divisions, remainders and indirect indices. Coefficients and sizes are ints, or sympy expressions over the
program's symbols. Every view is such an index, so views compose by substitution. A chain of reshapes that
returns to the first shape simplifies to the original variable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import sympy

from engine.ir.static_sizes import static_size, static_sizes
from engine.torch_private.symbolic_shapes import statically_known_true

Size: TypeAlias = int | sympy.Expr
CACHED_RESULTS = 1 << 13
"""Results of each function that are cached.

The loads of a kernel have few distinct indices, but each is computed often.
"""


def as_size(value: Any) -> Size:
    """Return a size as an int if it is one, else as an expanded sympy expression."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, sympy.Expr):
        # torch 2.15 truncates 0.0 to itself
        return int(value) if value.is_Integer or value.is_Float else sympy.expand(value)
    node = getattr(value, "node", None)
    if node is not None and hasattr(node, "expr"):
        return 1 if _is_known_one(value) else as_size(node.expr)
    raise TypeError(f"not a size: {value!r}")


def _is_known_one(value: Any) -> bool:
    """Return True if a computed symbolic size is guarded to be 1.

    Tracing adds such guards for broadcasts; the dimension is then broadcast.
    """
    node = value.node
    if node.expr.is_Symbol or node.expr.is_number or not node.has_hint() or node.hint != 1:
        return False

    return bool(statically_known_true(value == 1))


def symbols_of(values: Iterable[object]) -> frozenset[str]:
    """Return the names of the program's symbols in sizes and numbers."""
    symbols: set[str] = set()
    for value in values:
        if isinstance(value, sympy.Basic):
            symbols.update(map(str, value.free_symbols))
    return frozenset(symbols)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes; 1 if there are none."""
    total: Size = 1
    for size in sizes:
        total = as_size(total * size)
    return total


def static_product(sizes: Iterable[Size]) -> int | None:
    """Return the product of sizes; None if it is symbolic."""
    return static_size(product(sizes))


def concrete_size(size: Size, value_of: Callable[[str], int]) -> int:
    """Return a size computed from the values of its symbols."""
    expression = sympy.sympify(size)
    return int(expression.xreplace({s: sympy.Integer(value_of(str(s))) for s in expression.free_symbols}))


def sizes_equal(a: Size, b: Size) -> bool:
    """Return True if two sizes are equal for every value of the symbols."""
    return bool(as_size(a - b) == 0)


def exact_quotient(a: Size, b: Size) -> Size | None:
    """Return ``a / b`` if b divides a for every value of the symbols, else None."""
    if (static_quotient := _int_divmod(a, b)) is not None:
        return static_quotient[0] if static_quotient[1] == 0 else None
    quotient = sympy.cancel(sympy.sympify(a) / b)
    if quotient.as_numer_denom()[1] != 1:
        return None
    if any(not n.is_Integer for n in quotient.as_coefficients_dict().values()):
        return None
    return as_size(quotient)


def _int_divmod(a: Size, b: Size) -> tuple[int, int] | None:
    """Return quotient and remainder of two numbers; None if one is symbolic."""
    numbers = static_sizes((a, b))
    return None if numbers is None else divmod(numbers[0], numbers[1])


def is_nonnegative(value: Size) -> bool:
    """Return True if a size is known to be >= 0; symbols are positive integers."""
    if (number := static_size(value)) is not None:
        return number >= 0
    expanded = sympy.expand(value)
    return bool(expanded == 0 or expanded.is_nonnegative or _shift_positive_symbols(expanded).is_nonnegative)


def _shift_positive_symbols(value: sympy.Expr) -> sympy.Expr:
    """Replace each positive symbol s by 1 + t with t >= 0.

    Sympy can then prove that ``s - 1`` is not negative.
    """
    replacements = {
        s: 1 + sympy.Symbol(f"{s}__", integer=True, nonnegative=True) for s in value.free_symbols if s.is_positive
    }
    shifted: sympy.Expr = sympy.expand(value.xreplace(replacements))
    return shifted


class Atom:
    """Part of an index that has no simpler form."""

    __slots__ = ()

    def variables(self) -> frozenset[LoopVar]:
        """Return the loop variables in the atom."""
        return frozenset()

    def symbols(self) -> frozenset[str]:
        """Return the names of the program's symbols in the atom."""
        raise NotImplementedError

    def indirect_ops(self) -> frozenset[int]:
        """Return the numbers of the ops whose values the atom uses as indices."""
        number = self.indirect_op()
        return frozenset() if number is None else frozenset((number,))

    def count(self) -> Size | None:
        """Return the number of values that the atom can have; None if unknown."""
        raise NotImplementedError

    def replace(self, values: Mapping[LoopVar, IndexExpr]) -> IndexExpr:
        """Return the atom with variables replaced."""
        return IndexExpr({self: 1})

    def div(self, by: Size) -> IndexExpr | None:
        """Return a simpler ``self // by``; None if there is none."""
        return None

    def mod(self, by: Size) -> IndexExpr | None:
        """Return a simpler ``self % by``; None if there is none."""
        return None

    def as_quotient(self) -> tuple[Atom | None, Size]:
        """Return ``(dividend, divisor)``; the dividend is None unless it is a single atom."""
        return self, 1

    def divided_variable(self) -> tuple[LoopVar, Size] | None:
        """Return ``(v, d)`` if the atom is ``v // d`` or ``v % d``, else None."""
        return None

    def as_variable(self) -> LoopVar | None:
        """Return the atom itself if it is a loop variable, else None."""
        return None

    def as_remainder(self) -> Mod | None:
        """Return the atom itself if it is a remainder, else None."""
        return None

    def as_division(self) -> Division | None:
        """Return the atom itself if it is a quotient or remainder, else None."""
        return None

    def indirect_op(self) -> int | None:
        """Return the number of the op if the atom is the value of an op, else None."""
        return None

    def digits_of(self, var: LoopVar) -> tuple[Size, Size] | None:
        """Return the mixed-radix digits [low, high) of ``var`` that the atom selects.

        (0, 0) if the atom uses ``var`` in another way; None if it does not use ``var``.
        """
        return (0, 0) if var in self.variables() else None

    def text(self, names: IndexNames) -> str:
        """Return the atom as Python code."""
        raise NotImplementedError


class _SizedAtom(Atom):
    __slots__ = ()
    size: Size

    def symbols(self) -> frozenset[str]:
        return symbols_of((self.size,))

    def count(self) -> Size:
        return self.size


@dataclass(frozen=True, slots=True)
class LoopVar(_SizedAtom):
    """A loop variable: 0 <= var < size."""

    name: str
    size: Size

    def variables(self) -> frozenset[LoopVar]:
        return frozenset((self,))

    def as_variable(self) -> LoopVar:
        return self

    def replace(self, values: Mapping[LoopVar, IndexExpr]) -> IndexExpr:
        """Return the variable's value in ``values``, or the variable itself if it has none."""
        return values[self] if self in values else IndexExpr({self: 1})

    def digits_of(self, var: LoopVar) -> tuple[Size, Size] | None:
        """Return all digits of the variable itself."""
        return (1, var.size) if self == var else None

    def text(self, names: IndexNames) -> str:
        return names.variable(self)


@dataclass(frozen=True, slots=True)
class Division(Atom):
    """A quotient or remainder that did not simplify."""

    dividend: IndexExpr
    divisor: Size

    def variables(self) -> frozenset[LoopVar]:
        return self.dividend.variables()

    def symbols(self) -> frozenset[str]:
        return self.dividend.symbols() | symbols_of((self.divisor,))

    def indirect_ops(self) -> frozenset[int]:
        return self.dividend.indirect_ops()

    def as_division(self) -> Division:
        return self

    def divided_variable(self) -> tuple[LoopVar, Size] | None:
        atom = self.dividend.single_atom()
        var = None if atom is None else atom.as_variable()
        return None if var is None else (var, self.divisor)

    def _operands_text(self, operator: str, names: IndexNames) -> str:
        inner = self.dividend.text(names)
        inner = inner if self.dividend.single_atom() is not None else f"({inner})"
        return f"({inner} {operator} {_factor_text(self.divisor, names.size)})"


@dataclass(frozen=True, slots=True)
class FloorDiv(Division):
    """``dividend // divisor`` that did not simplify."""

    def count(self) -> Size | None:
        """Return the number of quotients; None without an upper bound."""
        top = upper_bound(self.dividend)
        static_quotient = None if top is None else _int_divmod(top, self.divisor)
        return None if static_quotient is None else static_quotient[0] + 1

    def replace(self, values: Mapping[LoopVar, IndexExpr]) -> IndexExpr:
        return self.dividend.replace(values).div(self.divisor)

    def div(self, by: Size) -> IndexExpr:
        """Divide by both divisors at once."""
        return self.dividend.div(as_size(self.divisor * by))

    def as_quotient(self) -> tuple[Atom | None, Size]:
        return self.dividend.single_atom(), self.divisor

    def digits_of(self, var: LoopVar) -> tuple[Size, Size] | None:
        """Return (divisor, size of ``var``) if the divisor divides it, else (0, 0)."""
        if self.dividend.single_atom() == var:
            return (self.divisor, var.size) if exact_quotient(var.size, self.divisor) is not None else (0, 0)
        return Atom.digits_of(self, var)

    def text(self, names: IndexNames) -> str:
        divided = self.divided_variable()
        return (None if divided is None else names.quotient(*divided)) or self._operands_text("//", names)


@dataclass(frozen=True, slots=True)
class Mod(Division):
    """``dividend % divisor`` that did not simplify."""

    def as_remainder(self) -> Mod:
        return self

    def count(self) -> Size:
        return self.divisor

    def replace(self, values: Mapping[LoopVar, IndexExpr]) -> IndexExpr:
        return self.dividend.replace(values).mod(self.divisor)

    def div(self, by: Size) -> IndexExpr | None:
        outer = exact_quotient(self.divisor, by)
        return None if outer is None else self.dividend.div(by).mod(outer)

    def mod(self, by: Size) -> IndexExpr | None:
        """Return the remainder by a divisor of the divisor."""
        return None if exact_quotient(self.divisor, by) is None else self.dividend.mod(by)

    def digits_of(self, var: LoopVar) -> tuple[Size, Size] | None:
        """Return the digits below the divisor, above that of a quotient."""
        atom = self.dividend.single_atom()
        inner, low = (None, 1) if atom is None else atom.as_quotient()
        high = as_size(low * self.divisor)
        if inner == var and exact_quotient(var.size, high) is not None:
            return (low, high)
        return Atom.digits_of(self, var)

    def text(self, names: IndexNames) -> str:
        return self._operands_text("%", names)


@dataclass(frozen=True, slots=True)
class IndirectIndex(_SizedAtom):
    """An index read from memory: the value of op number ``op``, assumed to be in [0, size)."""

    op: int
    size: Size

    def indirect_op(self) -> int:
        """Return the number of the op that reads the index."""
        return self.op

    def text(self, names: IndexNames) -> str:
        return names.picked(self.op)


@dataclass(frozen=True, slots=True)
class IndexNames:
    """Names in an index: values read from memory, variables, sizes, quotients."""

    picked: Callable[[int], str] = "%{}".format
    variable: Callable[[LoopVar], str] = attrgetter("name")
    size: Callable[[Size], str] = str
    quotient: Callable[[LoopVar, Size], str | None] = lambda var, divisor: None


PLAIN_NAMES = IndexNames()


class IndexExpr:
    """An immutable integer expression; equal expressions compare equal.

    Built with ``+``, ``*`` by a size, ``div`` and ``mod``.
    """

    __slots__ = ("_hash", "const", "terms")

    def __init__(self, terms: Mapping[Atom, Size] | None = None, const: Size = 0) -> None:
        self.terms: dict[Atom, Size] = {a: c for a, c in (terms or {}).items() if c != 0}
        self.const = const
        self._hash = hash((frozenset(self.terms.items()), const))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IndexExpr)
            and self._hash == other._hash
            and self.const == other.const
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.text()

    @property
    def is_constant(self) -> bool:
        """True if the expression has no atoms."""
        return not self.terms

    def single_atom(self) -> Atom | None:
        """Return the atom that the expression is equal to; None if it is anything else."""
        if len(self.terms) != 1 or self.const != 0:
            return None
        ((atom, coefficient),) = self.terms.items()
        return atom if coefficient == 1 else None

    def __add__(self, other: IndexExpr | Size) -> IndexExpr:
        if not isinstance(other, IndexExpr):
            return IndexExpr(self.terms, as_size(self.const + other))
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = as_size(terms.get(atom, 0) + coefficient)
        return _merge_div_mod(IndexExpr(terms, as_size(self.const + other.const)))

    def __sub__(self, other: IndexExpr | Size) -> IndexExpr:
        return self + (other * -1)

    def __mul__(self, factor: Size) -> IndexExpr:
        if factor == 1:
            return self
        return IndexExpr({a: as_size(c * factor) for a, c in self.terms.items()}, as_size(self.const * factor))

    def div(self, by: Size) -> IndexExpr:
        """Return ``self // by`` for by > 0; self is assumed to be >= 0 wherever its value matters."""
        return self if by == 1 or (not self.terms and self.const == 0) else _quotient(self, by)

    def mod(self, by: Size) -> IndexExpr:
        """Return ``self % by`` for by > 0."""
        return ZERO if by == 1 else _remainder(self, by)

    def replace(self, values: Mapping[LoopVar, IndexExpr]) -> IndexExpr:
        """Return the expression with variables replaced."""
        total = IndexExpr({}, self.const)
        for atom, coefficient in self.terms.items():
            total = total + atom.replace(values) * coefficient
        return total

    def variables(self) -> frozenset[LoopVar]:
        """Return all loop variables, including nested ones."""
        return frozenset().union(*(atom.variables() for atom in self.terms))

    def symbols(self) -> frozenset[str]:
        """Return the names of the program's symbols, including those in sizes of variables."""
        symbols = symbols_of((self.const, *self.terms.values()))
        return symbols.union(*(atom.symbols() for atom in self.terms))

    def indirect_ops(self) -> frozenset[int]:
        """Return the numbers of the ops whose values are used as indirect indices."""
        return frozenset().union(*(atom.indirect_ops() for atom in self.terms))

    def text(self, names: IndexNames = PLAIN_NAMES) -> str:
        """Return the expression as Python code."""
        ordered = sorted(self.terms.items(), key=lambda t: -abs(static_size(t[1]) or 1 << 62))
        terms = [_term_text(atom.text(names), coefficient, names.size) for atom, coefficient in ordered]
        if not terms:
            return names.size(self.const)
        text = " + ".join(terms).replace("+ -", "- ")
        if self.const == 0:
            return text
        if _is_negative_number(self.const):
            return f"{text} - {-self.const}"
        return f"{text} + {_factor_text(self.const, names.size)}"


ZERO = IndexExpr()


def constant(value: Size) -> IndexExpr:
    """Return a constant index."""
    return IndexExpr({}, as_size(value)) if value != 0 else ZERO


def variable(var: LoopVar) -> IndexExpr:
    """Return a loop variable as an index; a variable of size 1 is always 0."""
    return ZERO if var.size == 1 else IndexExpr({var: 1})


@functools.lru_cache(CACHED_RESULTS)
def _quotient(index: IndexExpr, by: Size) -> IndexExpr:
    """Return ``index // by`` for by > 1."""
    quotient, remainder = _split_by_divisor(index, by)
    if is_below(remainder, by):
        return quotient
    reduced, by = _without_common_factor(remainder, by)
    atom = reduced.single_atom()
    if atom is not None and (simpler := atom.div(by)) is not None:
        return quotient + simpler
    if not reduced.terms and (static_quotient := _int_divmod(reduced.const, by)) is not None:
        return quotient + static_quotient[0]
    return quotient + IndexExpr({FloorDiv(reduced, by): 1})


@functools.lru_cache(CACHED_RESULTS)
def _remainder(index: IndexExpr, by: Size) -> IndexExpr:
    """Return ``index % by`` for by > 1."""
    _, remainder = _split_by_divisor(index, by)
    if is_below(remainder, by):
        return remainder
    atom = remainder.single_atom()
    if atom is not None and (simpler := atom.mod(by)) is not None:
        return simpler
    if not remainder.terms and (static_quotient := _int_divmod(remainder.const, by)) is not None:
        return constant(static_quotient[1])
    factor = _common_factor(remainder, by)
    if factor > 1:
        inner = IndexExpr(
            {a: _divide_exactly(c, factor) for a, c in remainder.terms.items()},
            _divide_exactly(remainder.const, factor),
        )
        return inner.mod(_divide_exactly(by, factor)) * factor
    return IndexExpr({Mod(remainder, by): 1})


def _divide_exactly(a: Size, b: int) -> Size:
    quotient = exact_quotient(a, b)
    if quotient is None:
        raise ArithmeticError(f"{b} does not divide {a}")
    return quotient


def _split_by_divisor(index: IndexExpr, by: Size) -> tuple[IndexExpr, IndexExpr]:
    """Return ``(whole, rest)`` with index == whole * by + rest.

    ``whole`` takes every term that ``by`` divides. There is no split if the rest could be negative, because
    targets round division towards zero.
    """
    quotient, remainder = _split_terms(index, by)
    bottom = lower_bound(remainder)
    return (quotient, remainder) if bottom is not None and is_nonnegative(bottom) else (ZERO, index)


def _split_terms(index: IndexExpr, by: Size) -> tuple[IndexExpr, IndexExpr]:
    whole: dict[Atom, Size] = {}
    remainder: dict[Atom, Size] = {}
    for atom, coefficient in index.terms.items():
        quotient = exact_quotient(coefficient, by)
        if quotient is None:
            remainder[atom] = coefficient
        else:
            whole[atom] = quotient
    if (static_quotient := _int_divmod(index.const, by)) is not None:
        return IndexExpr(whole, static_quotient[0]), IndexExpr(remainder, static_quotient[1])
    quotient = exact_quotient(index.const, by)
    if quotient is None:
        return IndexExpr(whole), IndexExpr(remainder, index.const)
    return IndexExpr(whole, quotient), IndexExpr(remainder)


def _common_factor(index: IndexExpr, by: Size) -> int:
    numbers = static_sizes((by, *index.terms.values(), index.const))
    return 1 if numbers is None else math.gcd(*numbers)


def _without_common_factor(index: IndexExpr, by: Size) -> tuple[IndexExpr, Size]:
    """Divide all coefficients and ``by`` by their common factor.

    The floor of the constant divided by that factor does not change the floor division.
    """
    factor = _common_factor(IndexExpr(index.terms), by)
    const = static_size(index.const)
    if factor <= 1 or const is None or const < 0:
        return index, by
    return IndexExpr({a: _divide_exactly(c, factor) for a, c in index.terms.items()}, const // factor), _divide_exactly(
        by, factor
    )


def upper_bound(index: IndexExpr) -> Size | None:
    """Return the largest value, or None if unknown."""
    top = index.const
    for atom, coefficient in index.terms.items():
        if is_nonnegative(coefficient):
            size = atom.count()
            if size is None:
                return None
            top = as_size(top + coefficient * (size - 1))
        elif not is_nonnegative(-coefficient):
            return None
    return top


def lower_bound(index: IndexExpr) -> Size | None:
    """Return the smallest value, or None if unknown."""
    top = upper_bound(index * -1)
    return None if top is None else as_size(-top)


def is_below(index: IndexExpr, limit: Size) -> bool:
    """Return True if 0 <= index < limit is known."""
    bottom, top = (index.const,) * 2 if index.is_constant else (lower_bound(index), upper_bound(index))
    if bottom is None or top is None:
        return False
    return is_nonnegative(bottom) and is_nonnegative(as_size(limit - 1 - top))


@functools.lru_cache(CACHED_RESULTS)
def _merge_div_mod(index: IndexExpr) -> IndexExpr:
    """Merge remainders and quotients of one dividend.

    ``k * (y % m) + k * m * (y // m)`` becomes ``k * y``, and ``k * (y % m) + k * m * ((y // m) % t)`` becomes
    ``k * (y % (m * t))``.
    """
    changed = True
    while changed:
        changed = False
        for atom, coefficient in index.terms.items():
            if (remainder := atom.as_remainder()) is None:
                continue
            merged = _merge_remainder(index, remainder, coefficient)
            if merged is not None:
                index = merged
                changed = True
                break
    return index


def _merge_remainder(index: IndexExpr, atom: Mod, coefficient: Size) -> IndexExpr | None:
    quotient = atom.dividend.div(atom.divisor)
    if len(quotient.terms) != 1 or quotient.const != 0:
        return None
    ((high, coefficient_of_quotient),) = quotient.terms.items()
    if coefficient_of_quotient != 1:
        return None
    expected = as_size(coefficient * atom.divisor)
    for other, factor in index.terms.items():
        if factor != expected:
            continue
        remainder = IndexExpr({a: c for a, c in index.terms.items() if a not in (atom, other)}, index.const)
        if other == high:
            return remainder + atom.dividend * coefficient
        outer = other.as_remainder()
        if outer is not None and outer.dividend == quotient:
            return remainder + atom.dividend.mod(as_size(atom.divisor * outer.divisor)) * coefficient
    return None


def flatten(index: Iterable[IndexExpr], strides: Iterable[Size], offset: Size = 0) -> IndexExpr:
    """Return the memory position of an element."""
    return _position(tuple(index), tuple(strides), offset)


@functools.lru_cache(CACHED_RESULTS)
def _position(index: tuple[IndexExpr, ...], strides: tuple[Size, ...], offset: Size) -> IndexExpr:
    terms: dict[Atom, Size] = {}
    for i, stride in zip(index, strides, strict=True):
        for atom, coefficient in i.terms.items():
            terms[atom] = as_size(terms.get(atom, 0) + coefficient * stride)
        offset = as_size(offset + i.const * stride)
    return _merge_div_mod(IndexExpr(terms, offset))


def adjacent_variables(position: IndexExpr) -> frozenset[LoopVar]:
    """Return the variables whose consecutive values are adjacent in memory.

    A remainder counts, too: in an instance norm of channels last, one variable numbers samples and channels.

    >>> n, c = LoopVar("n", 4), LoopVar("c", 8)
    >>> adjacent_variables(variable(n) * 9 + variable(c).mod(2)) == {c}
    True
    """
    units = [atom for atom, coefficient in position.terms.items() if coefficient == 1]
    remainders = [atom.as_remainder() for atom in units]
    units += [atom for r in remainders if r is not None and (atom := r.dividend.single_atom()) is not None]
    return frozenset(var for atom in units if (var := atom.as_variable()) is not None)


def last_offset(shape: Iterable[Size], strides: Iterable[Size]) -> int:
    """Return the memory position of the last element, 0 if it is symbolic."""
    return static_size(flatten([IndexExpr({}, s - 1) for s in shape], strides).const) or 0


def contiguous_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return row-major strides."""
    strides: list[Size] = []
    running: Size = 1
    for size in reversed(shape):
        strides.append(running)
        running = as_size(running * (size if size != 0 else 1))
    return tuple(reversed(strides))


@functools.lru_cache(CACHED_RESULTS)
def unflatten(flat: IndexExpr, shape: tuple[Size, ...]) -> tuple[IndexExpr, ...]:
    """Return the row-major coordinates of a flat position."""
    parts: list[IndexExpr] = []
    for position, size in enumerate(reversed(shape)):
        last = position == len(shape) - 1
        parts.append(ZERO if size == 1 else flat if last else flat.mod(size))
        if not last:
            flat = flat.div(size)
    return tuple(reversed(parts))


def clear_cached_results() -> None:
    """Forget all results: equal sums may have their terms in another order.

    The text of a graph's kernels does not depend on the graphs before then.
    """
    for cached in (_quotient, _remainder, _merge_div_mod, _position, unflatten):
        cached.cache_clear()


def _factor_text(value: Size, size: Callable[[Size], str]) -> str:
    text = size(value)
    return text if sympy.sympify(value).is_Atom else f"({text})"


def _is_negative_number(value: Size) -> bool:
    return (static_size(value) or 0) < 0


def _term_text(text: str, coefficient: Size, size: Callable[[Size], str]) -> str:
    if coefficient == 1:
        return text
    if coefficient == -1:
        return f"-{text}"
    if _is_negative_number(coefficient):
        return f"-{text} * {-coefficient}"
    return f"{text} * {_factor_text(coefficient, size)}"


def is_bijection(index: Iterable[IndexExpr], shape: tuple[Size, ...], variables: Iterable[LoopVar]) -> bool:
    """Return True if the variables' ranges visit every element of ``shape`` exactly once.

    Sound but not complete: recognizes permutations, merges and splits of variables.
    """
    flat = flatten(index, contiguous_strides(shape))
    if flat.const != 0:
        return False
    remaining = dict(flat.terms)
    running: Size = 1
    while remaining:
        atom = next((a for a, c in remaining.items() if sizes_equal(c, running)), None)
        size = None if atom is None else atom.count()
        if atom is None or size is None:
            return False
        running = as_size(running * size)
        del remaining[atom]
    return (
        sizes_equal(running, product(shape))
        and all(_covers_variable(v, flat) for v in variables if v.size != 1)
        and not flat.indirect_ops()
        and flat.variables() <= set(variables)
    )


def _covers_variable(var: LoopVar, flat: IndexExpr) -> bool:
    """Return True if the digits of ``var`` in the atoms cover it completely, each once."""
    pieces = [p for p in (a.digits_of(var) for a in flat.terms) if p is not None]
    running: Size = 1
    while pieces:
        piece = next((p for p in pieces if sizes_equal(p[0], running)), None)
        if piece is None:
            return False
        pieces.remove(piece)
        running = piece[1]
    return sizes_equal(running, var.size)
