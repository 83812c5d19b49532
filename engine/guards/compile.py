"""One generated Python function per cache entry: true when all guards hold."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.guards.admit import Admission
from engine.guards.names import CELLS, Names, Reads
from engine.guards.order import RELATIONAL, exact_type, ordered, tier
from engine.guards.structure import WORTH_IT, Structure
from engine.guards.tensors import (
    HAS_HELPERS,
    HAS_VERSIONS,
    IMPLIED_BY_TENSORS,
    STATE_GUARDS,
    STATE_WORTH_IT,
    batchable,
    keys_tell_modes,
)
from engine.ir.guard import Guard
from engine.ir.handed import Handed
from engine.ir.origin import Fixed, Global, MaybeGlobal, Origin
from engine.ir.relation_guard import SameObject
from engine.ir.state_guard import GlobalState
from engine.ir.tensor_guard import PLAIN_TENSORS, Facet
from engine.ir.value_guard import Equals, TypeIs

Check = Callable[..., bool]

_numbers = itertools.count()


@dataclass(frozen=True)
class CompiledCheck:
    """``check(__cells__, *arguments)``, its text, and the guards in executed order."""

    check: Check
    text: str
    guards: tuple[Guard, ...]


def compile_check(
    guards: Iterable[Guard],
    parameters: tuple[str, ...],
    *,
    helpers: bool = HAS_HELPERS,
    handed: Handed | None = None,
) -> CompiledCheck:
    """The check of one entry. ``parameters`` are the frame's, in ``co_varnames`` order.

    With ``helpers`` all tensors of a tier are checked in one call of torch's C helper first, and one by one only when that says no. Tensors
    that ``handed`` wants are left with it where one such call reads them all.
    """
    in_order = ordered(guards)
    if not helpers or not batchable(in_order):
        check, text, _ = _build(lines_of(in_order, Names(parameters)))
        return CompiledCheck(check, text, in_order)
    names = Names(parameters)
    admission = Admission(in_order, parameters, lambda: _build(lines_of(in_order, Names(parameters)))[0])
    check, text, space = _build(_quick_lines(in_order, names, admission, handed))
    admission.attach(space)
    return CompiledCheck(check, text, in_order)


@dataclass(frozen=True)
class Body:
    """The statements of a check, and the names they use."""

    lines: tuple[str, ...]
    names: Names


def _build(body: Body) -> tuple[Check, str, dict[str, Any]]:
    names = body.names
    error = names.const(Exception, "Exception")
    name = names.fresh("check")
    arguments = ", ".join((CELLS, *names.parameters.values()))
    inner = "\n".join(f"        {line}" for line in body.lines)
    text = f"def {name}({arguments}):\n    try:\n{inner}\n    except {error}:\n        return False\n"
    file = f"<check {next(_numbers)}>"
    space = names.namespace
    exec(compile(text, file, "exec"), space)
    # So that a traceback or a profiler shows the lines; a length of None keeps linecache from looking for a file.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    check: Check = space[name]
    return check, text, space


def lines_of(in_order: Sequence[Guard], names: Names) -> Body:
    """One statement a guard, in executed order."""
    writer = Writer(in_order, names)
    lines: list[str] = []
    for guard in in_order:
        writer.write(guard, lines)
    return Body((*lines, "return True"), names)


class Writer:
    """Writes guards as statements, and remembers what those written before have settled."""

    def __init__(self, guards: Sequence[Guard], names: Names, *, no_modes: bool = False) -> None:
        self.names = names
        self.reads = Reads(
            names, (o for g in guards if not isinstance(g, GlobalState) for o in (*g.origins, *_read_again(g)))
        )
        self._known: dict[Origin, type] = {}
        self._no_modes = no_modes

    def write(self, guard: Guard, lines: list[str]) -> None:
        """Append the guard's statements to ``lines``."""
        condition = self.condition(guard, lines)
        if condition != "True":
            lines.append(f"if not ({condition}): return False")

    def condition(self, guard: Guard, lines: list[str]) -> str:
        """The guard's condition; reads that it needs are appended to ``lines``."""
        if isinstance(guard, GlobalState):
            self._no_modes = self._no_modes or (guard.state == "torch_function_modes" and guard.value == ())
            return guard.condition("", self.names.const)
        expr, *others = (self.reads.text(o, lines) for o in guard.origins)
        text = guard.condition(expr, self.names.const, tuple(others), self._settled(guard))
        found = exact_type(guard)
        if found is not None:
            self._known[guard.origin] = found
        return text

    def _settled(self, guard: Guard) -> type | None:
        known = self._known.get(guard.origin)
        return None if isinstance(guard, Facet) and not self._no_modes else known

    def settle(self, origin: Origin, kind: type) -> None:
        """Note that an origin's exact type has been checked by other means."""
        self._known[origin] = kind


def _read_again(guard: Guard) -> tuple[Origin, ...]:
    """The origin, where the guard's condition mentions it twice."""
    return (guard.origin,) if isinstance(guard, Equals) and type(guard.value) in (int, float, str, bytes) else ()


def _quick_lines(in_order: Sequence[Guard], names: Names, admission: Admission, handed: Handed | None) -> Body:
    """The check with what many guards ask asked in one call.

    A tier's tensors go to one helper, all that lies below a module to one structure: arguments first, then those reached through something, then
    what reads through those; last, being dearest, the structures of modules.
    """
    structured = _structures(in_order, batchable(in_order)) if HAS_VERSIONS else {}
    below = {g for found in structured.values() for g in found}
    in_order = [g for g in in_order if g not in below]
    tensors = batchable(in_order)
    apart = [g for g in in_order if not (g.origin in tensors and isinstance(g, (Facet, TypeIs)))]
    writer = Writer(apart + [g for g in in_order if g.origin in tensors and g.rank == 10], names)
    lines: list[str] = []
    through = {o: any(link in tensors for link in o.chain()) for g in in_order for o in g.origins}
    late = [g for g in apart if any(through[o] for o in g.origins)]
    early = [g for g in apart if not any(through[o] for o in g.origins)]
    if keys_tell_modes(tensors):
        early = [g for g in early if not (isinstance(g, GlobalState) and (g.state, g.value) in IMPLIED_BY_TENSORS)]
    early = _state_lines(early, writer, admission, lines)
    if None in structured:
        lines.append(_structure(None, structured[None], writer, admission, lines))
    below_modules: list[str] = []
    for level in (0, 1, 2):
        for guard in early:
            if tier(guard) == level or (level == 2 and tier(guard) == 3):
                writer.write(guard, lines)
                if isinstance(guard, TypeIs) and guard.origin in structured:
                    found = structured[guard.origin]
                    below_modules.append(_structure(guard, found, writer, admission, lines, handed))
        members = tuple(o for o in tensors if _level(o) == level)
        if members:
            _batch(members, writer, admission, lines)
    for guard in late:
        writer.write(guard, lines)
    return Body((*lines, *below_modules, "return True"), names)


def _structures(in_order: Sequence[Guard], tensors: Mapping[Origin, object]) -> dict[Origin | None, list[Guard]]:
    """The guards below each outermost module, and (None) on globals and classes, where they are many.

    Those on what is read through a tensor stay out.
    """
    modules = {g.origin for g in in_order if isinstance(g, TypeIs) and issubclass(g.type, torch.nn.Module)}
    found: dict[Origin | None, list[Guard]] = {}
    for guard in in_order:
        if isinstance(guard, (GlobalState, *RELATIONAL)) and not isinstance(guard, SameObject):
            continue
        chain = guard.origin.chain()
        above = chain[:-1]
        root = next((o for o in above if o in modules), None)
        if any(o in tensors for o in above):
            continue
        if root is None or isinstance(chain[0], Fixed):
            if not isinstance(chain[0], (Fixed, Global, MaybeGlobal)) or isinstance(guard, SameObject):
                continue
            if guard.origin in tensors or guard.origin in modules:
                continue
            root = None
        elif isinstance(guard, SameObject) and not (guard.same and root in guard.other.chain()[:-1]):
            continue
        if guard.origin in tensors and not isinstance(guard, (Facet, TypeIs)):
            continue
        found.setdefault(root, []).append(guard)
    return {root: guards for root, guards in found.items() if len(guards) >= WORTH_IT}


def _structure(
    root: TypeIs | None,
    guards: Sequence[Guard],
    writer: Writer,
    admission: Admission,
    lines: list[str],
    handed: Handed | None = None,
) -> str:
    """The statement that asks all guards below one module, or on globals and classes, at once; what it reads is appended to ``lines``."""
    structure = Structure(root.origin if root else None, guards, lambda rest: _check_below(root, rest), handed)
    admission.add_structure(structure)
    if root is None:
        same = writer.names.const(structure, "same_surroundings")
        return f"if not {same}(): return {_exactly(writer.names, admission)}"
    text = writer.reads.text(root.origin, lines)
    same = writer.names.const(structure, f"same_below_{text.strip('_')}" if text.isidentifier() else "same_below")
    return f"if not {same}({text}): return {_exactly(writer.names, admission)}"


def _check_below(root: TypeIs | None, guards: Sequence[Guard]) -> Callable[[Any], bool]:
    """A check of guards below a module that takes the module."""
    names = Names(("module",))
    writer = Writer(guards, names)
    if root is not None:
        writer.reads.given(root.origin, "module")
        writer.settle(root.origin, root.type)
    lines: list[str] = []
    for guard in guards:
        writer.write(guard, lines)
    check, _, _ = _build(Body((*lines, "return True"), names))
    return lambda module: check((), module)


def _level(origin: Origin) -> int:
    return 1 if origin.parent is None and type(origin).__name__ == "Local" else 2


def _state_lines(early: list[Guard], writer: Writer, admission: Admission, lines: list[str]) -> list[Guard]:
    """Replace the guards on plain global state by one call of the C helper; returns those that remain."""
    states = {g.state for g in early if isinstance(g, GlobalState)}
    if not states >= STATE_WORTH_IT:
        return early
    name = writer.names.fresh("same_global_state")
    admission.add_state(name)
    lines.append(f"if not {name}(): return {_exactly(writer.names, admission)}")
    return [g for g in early if not (isinstance(g, GlobalState) and g.state in STATE_GUARDS)]


def _batch(members: tuple[Origin, ...], writer: Writer, admission: Admission, lines: list[str]) -> None:
    name = writer.names.fresh("tensors_match")
    admission.add_batch(name, members)
    values = ", ".join(writer.reads.text(o, lines) for o in members)
    for origin in members:
        writer.settle(origin, PLAIN_TENSORS[0])
    lines.append(f"if not {name}({values}): return {_exactly(writer.names, admission)}")


def _exactly(names: Names, admission: Admission) -> str:
    return f"{names.const(admission, 'one_by_one')}({', '.join((CELLS, *names.parameters.values()))})"


def condition_texts(in_order: Sequence[Guard]) -> tuple[str, ...]:
    """Each guard's condition as one expression, read from the frame's own names."""
    roots = {o.chain()[0] for g in in_order for o in g.origins}
    variables = tuple(
        dict.fromkeys(
            str(v) for r in roots if (v := getattr(r, "variable", None)) is not None and type(r).__name__ == "Local"
        )
    )
    names = Names(variables)
    texts: dict[Origin, str] = {}

    def text(origin: Origin) -> str:
        if origin not in texts:
            parent = origin.parent
            is_local = parent is None and type(origin).__name__ == "Local"
            texts[origin] = (
                names.parameters[getattr(origin, "variable", "")]
                if is_local
                else origin.code("" if parent is None else text(parent), names.const)
            )
        return texts[origin]

    known: dict[Origin, type] = {}
    told = []
    for guard in in_order:
        expr, *others = ("",) if isinstance(guard, GlobalState) else tuple(text(o) for o in guard.origins)
        told.append(guard.condition(expr, names.const, tuple(others), known.get(guard.origin)))
        found = exact_type(guard)
        if found is not None:
            known[guard.origin] = found
    return tuple(told)
