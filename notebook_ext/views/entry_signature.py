"""Symbolic signature of a cache entry: ``x f32[s0, 32], s0 >= 2``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.records.session import CompilationRecord, Session
from notebook_ext.views.format_text import STACK_VALUE, one_line, sanitize, shorten_floats, source_name

_TENSOR = re.compile(r"^(\w+)\[(.*)\]$")
_DIMENSION = re.compile(r"^(.*)\.(?:shape|size\(\))\[(\d+)\]$")
_STRIDE = re.compile(r"^(.*)\.stride\((\d+)\)$")
_WORD = re.compile(r"\w+")
_BOUND = re.compile(r"-?\d+")
_LINEAR = re.compile(r"(?P<added>\(-\d+\) \+ |\d+ \+ )?_ (?P<sign>>=|>|<=|<) (?P<limit>-?\d+)")
_MAX_CONDITIONS = _MAX_UNLISTED = 4
_SAME_OBJECT = "the same object as "


@dataclass(frozen=True)
class _Symbol:
    """One symbol of an entry: where it is read, and its value range."""

    name: str
    places: tuple[str, ...]
    low: int | None
    high: int | None
    is_float: bool
    assumptions: tuple[str, ...] = ()
    hint: str = ""

    @property
    def is_stride(self) -> bool:
        """True if only strides have this symbol: they follow from sizes and layout."""
        return bool(self.places) and all(".stride(" in source for source in self.places)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The value range and the assumptions, as Python expressions."""
        if self.low is not None and self.high is not None:
            range_of = (f"{self.low} <= {self.name} <= {self.high}",)
        else:
            range_of = (
                *(() if self.low is None else (f"{self.name} >= {self.low}",)),
                *(() if self.high is None else (f"{self.name} <= {self.high}",)),
            )
        return (*range_of, *(text for text in self.assumptions if not self._is_implied(text)))

    def _is_implied(self, assumption: str) -> bool:
        """Return True if the value range implies a bound of this symbol: ``(-15) + s0 > 8``."""
        match = _LINEAR.fullmatch(re.sub(rf"\b{re.escape(self.name)}\b", "_", assumption))
        if match is None:
            return False
        limit, sign = int(match["limit"]) - int((match["added"] or "0").strip("()+ ")), match["sign"]
        if sign.startswith("<"):
            return self.high is not None and self.high <= limit - (sign == "<")
        return self.low is not None and self.low >= limit + (sign == ">")


def entry_signature(session: Session, compilation: CompilationRecord) -> str:
    """Return the inputs that an entry is valid for.

    Sizes and integers that became symbols are shown by name, followed by their conditions, as are those of floats.
    Other inputs are those of the call that was compiled. A constant that another entry expects otherwise is named.
    """
    inputs = input_texts(session, compilation)
    traced = list(_iterate_symbols(compilation))
    kernels = (*compilation.kernels, *compilation.cpu_kernels)
    in_kernels = {word for k in kernels for text in (k.grid, k.bytes_expression) for word in _WORD.findall(text)}
    implied = {s.name for s in traced if s.name not in in_kernels and _is_contiguous_stride(s, traced, inputs)}
    symbols = sorted((s for s in traced if s.name not in implied), key=lambda s: s.is_stride)
    by_place = {source: s for s in symbols for source in s.places}
    same = _same_objects(compilation, inputs)
    parts = [
        f"{sanitize(name)} is {sanitize(same[name][0])}"
        if same[name][0] != name
        else f"{sanitize(name)} {_symbolize_input(_name_in_places(same[name], by_place), sanitize(text), by_place)}"
        for name, text in inputs.items()
    ]
    shown = {s.name for source, s in by_place.items() if _is_shown(source, inputs)}
    unlisted = [_unlisted_symbol_text(s) for s in symbols if s.places and s.name not in shown]
    left = len(unlisted) - _MAX_UNLISTED
    parts += unlisted[:_MAX_UNLISTED] + ([f"{left} more symbols"] if left > 1 else unlisted[_MAX_UNLISTED:])
    parts += [text for name, text in _iterate_constants(session, compilation) if name not in inputs][:_MAX_UNLISTED]
    conditions = list(dict.fromkeys(c for s in symbols for c in s.conditions))
    cut = len(conditions) - _MAX_CONDITIONS
    more = [f"{cut} more conditions"] if cut > 1 else conditions[_MAX_CONDITIONS:]
    return ", ".join([*parts, *conditions[:_MAX_CONDITIONS], *more])


def _iterate_constants(session: Session, compilation: CompilationRecord) -> Iterator[tuple[str, str]]:
    """Yield name and text of each constant that another entry expects otherwise."""
    others = [_constants(c) for c in session.compilations if c.frame == compilation.frame and c is not compilation]
    for name, expected in _constants(compilation).items() if others else ():
        if any(other.get(name, expected) != expected for other in others):
            yield name, f"{sanitize(name)} {one_line(shorten_floats(expected), 40)}"


def _constants(compilation: CompilationRecord) -> dict[str, str]:
    guards = compilation.guards.guards if compilation.guards else ()
    return {source_name(g.source): g.expected for g in guards if g.kind in ("equals", "equal")}


def _same_objects(compilation: CompilationRecord, inputs: dict[str, str]) -> dict[str, list[str]]:
    """Return by input the names of all inputs that must be the same object, in order."""
    groups = {name: [name] for name in inputs}
    for guard in compilation.guards.guards if compilation.guards else ():
        pair = (source_name(guard.source), guard.expected.removeprefix(_SAME_OBJECT))
        if guard.expected.startswith(_SAME_OBJECT) and all(name in groups for name in pair):
            members = {*groups[pair[0]], *groups[pair[1]]}
            groups |= {member: [name for name in inputs if name in members] for member in members}
    return groups


def _name_in_places(names: list[str], by_place: dict[str, _Symbol]) -> str:
    """Return the name of an object whose sizes have symbols; the first if there is none."""
    return next((n for n in names if any(p == n or p.startswith(f"{n}.") for p in by_place)), names[0])


def _is_contiguous_stride(symbol: _Symbol, traced: list[_Symbol], inputs: dict[str, str]) -> bool:
    """Return True for strides of contiguous inputs without other conditions than a bound."""
    if not symbol.is_stride or symbol.high is not None or (symbol.low or 0) > 2:
        return False
    strides = [m for m in map(_STRIDE.match, symbol.places) if m]
    texts = [_TENSOR.match(inputs.get(m[1], "")) for m in strides]
    sizes = [[int(s) if s.strip().isdigit() else 0 for s in t[2].split(",")] if t else [] for t in texts]
    is_even = all(str(math.prod(s[int(m[2]) + 1 :])) == symbol.hint for m, s in zip(strides, sizes, strict=True) if s)
    is_named = any(symbol.name in _WORD.findall(text) for s in traced for text in s.assumptions)
    return is_even and all(sizes) and not is_named


def input_texts(session: Session, compilation: CompilationRecord) -> dict[str, str]:
    """Return the inputs of a compilation or of its first call, without ``self``."""
    calls = (c.inputs for c in session.calls if c.entry == compilation.id and c.outcome == "compiled")
    inputs = compilation.inputs or next(calls, None) or {}
    return {name: text for name, text in inputs.items() if name != "self"}


def _iterate_symbols(compilation: CompilationRecord) -> Iterator[_Symbol]:
    traced = compilation.trace.symbols if compilation.trace else ()
    computed = {s.name for s in traced if s.specialized_to}  # computed from other symbols, like strides from sizes
    equal = [(s.specialized_to, tuple(map(_read_expression, s.sources))) for s in traced if s.specialized_to]
    for s in traced:
        if s.name not in computed:
            texts = (a.text for a in s.assumptions if computed.isdisjoint(_WORD.findall(a.text)))
            assumptions = tuple(one_line(text, 60) for text in texts)
            is_float = "." in s.hint
            places = (
                *map(_read_expression, s.sources),
                *(p for name, others in equal if name == s.name for p in others),
            )
            name = sanitize(s.name)
            if is_float and places:  # torch's names of floats, like zf41, are little known: the input's says more
                assumptions = tuple(
                    re.sub(rf"\b{name}\b", places[0].replace("\\", r"\\"), text) for text in assumptions
                )
                name = places[0]
            yield _Symbol(name, places, s.low, s.high, is_float, assumptions, s.hint)
    for o in compilation.observed_symbols:
        if not any(e.kind == "specialized" for e in o.events):
            low, high = _parse_bounds(o.range)
            yield _Symbol(sanitize(o.name), (_read_expression(o.source),) if o.source else (), low, high, "." in o.hint)


def _read_expression(source: str) -> str:
    """Return where a symbol is read: ``x.shape[0]``, whatever form the compiler gave it."""
    name = sanitize(source_name(source))
    match = _DIMENSION.match(name)
    return f"{match[1]}.shape[{match[2]}]" if match else name


def _parse_bounds(text: str) -> tuple[int | None, int | None]:
    """Return the bounds of a range as torch prints it: ``VR[2, int_oo]``."""
    low, _, high = text.removeprefix("VR").strip("[]()").partition(",")
    bounds = [int(part) if _BOUND.fullmatch(part.strip()) else None for part in (low, high)]
    return bounds[0], bounds[1]


def _symbolize_input(name: str, text: str, by_place: dict[str, _Symbol]) -> str:
    """Return the text of one input with symbols in the place of their values."""
    if own := by_place.get(name):
        return _float_text(own) if own.is_float else own.name
    match = _TENSOR.match(text)
    if not match or not match[2]:
        return shorten_floats(text)
    sizes = [
        by_place[source].name if (source := f"{name}.shape[{i}]") in by_place else size.strip()
        for i, size in enumerate(match[2].split(","))
    ]
    return f"{match[1]}[{', '.join(sizes)}]"


def _unlisted_symbol_text(symbol: _Symbol) -> str:
    """Return a symbol whose input is not listed: a number as an input, else its definition."""
    source = symbol.places[0]
    if symbol.is_float:
        return f"{source} {_float_text(symbol)}"
    return f"{source} {symbol.name}" if source.isidentifier() or source == STACK_VALUE else f"{symbol.name} = {source}"


def _float_text(symbol: _Symbol) -> str:
    return "float" if symbol.conditions else "any float"


def _is_shown(source: str, inputs: dict[str, str]) -> bool:
    """Return True if a symbol's place is an input or a size of one."""
    match = _DIMENSION.match(source)
    name = match[1] if match else source
    return name in inputs and (match is None or bool(_TENSOR.match(inputs[name])))
