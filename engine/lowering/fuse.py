"""Decides which Defs share a kernel: from the last to the first, each joins a kernel that reads it, or starts one of its own.

Working backwards, the kernel that reads a tensor already knows at which index it wants each element, so joining is evaluating the
tensor's body there. Every decision and refusal is kept with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch.utils import _pytree as pytree

from engine.ir.index import (
    Div,
    Index,
    Mod,
    Size,
    Var,
    contiguous_strides,
    exact_quotient,
    flatten,
    is_bijection,
    is_same,
    product,
    symbols_of,
    unflatten,
    variable,
)
from engine.ir.loops import Builder, Coordinates, Def, Demand
from engine.lowering.strides import strided
from engine.lowering.table import ExternNode, Tensor
from engine.records.lowering import Choice, FusionDecision

MAX_MEMBERS = 48
MAX_READS = 20
FEW_ROWS = 64
LARGE = 1 << 14
SPARSE = 16
"""A kernel that reads one element in so many computes it again."""
CHEAP = 10
"""Arithmetic per element that may be done again rather than stored and read back."""
CHEAP_FROM_SAME, CHEAP_FROM_LESS = 16, 40
"""The same where what it is computed from takes as many bytes, or fewer."""


@dataclass(eq=False)
class Group:
    """One kernel in the making. ``inner`` are the variables reduced over, None while nothing is reduced.

    ``stored`` are the Defs it writes, and at which index; ``members`` all that it computes.
    """

    number: int
    vars: tuple[Var, ...]
    inner: tuple[Var, ...] | None
    stored: dict[Def, Coordinates]
    members: set[Def]
    builder: Builder = field(default_factory=Builder)
    has_scan: bool = False
    demands: dict[Def, list[Demand]] = field(default_factory=dict)

    @property
    def outer(self) -> tuple[Var, ...]:
        """The variables that are not reduced over."""
        return self.vars if self.inner is None else tuple(v for v in self.vars if v not in self.inner)

    @property
    def numel(self) -> Size:
        """How many times the innermost body runs."""
        return product(v.size for v in (*self.outer, *(self.inner or ())))

    def analyse(self) -> None:
        """Run the bodies of what is stored, to see what is read and where."""
        inner = self.inner or ()
        reduced = flatten([variable(v) for v in inner], _row_major(inner))
        self.builder = Builder(self.members, frozenset(inner), reduced)
        for made, index in self.stored.items():
            self.builder.load(made, index)
        self.demands = {}
        for demand in dict.fromkeys(self.builder.demands):
            self.demands.setdefault(demand.source, []).append(demand)

    def demands_of(self, source: Def) -> list[Demand]:
        """How this kernel reads a Def that it does not compute."""
        return self.demands.get(source, [])

    def sources(self) -> set[Def]:
        """Defs that it reads from memory, or that its own start from."""
        return {*self.demands, *self.starts}

    @property
    def starts(self) -> set[Def]:
        """Defs whose elements its scatters start from."""
        return {m.start for m in self.stored if isinstance(m.start, Def)}


def _row_major(variables: Iterable[Var]) -> tuple[Size, ...]:
    return contiguous_strides(tuple(v.size for v in variables))


@dataclass(frozen=True)
class Schedule:
    """Kernels and ATen calls in an order that respects what reads what, and why each kernel is as it is."""

    steps: tuple[Any, ...]
    """Groups, ATen calls, and templates in the place of both."""
    decisions: tuple[FusionDecision, ...]
    choices: tuple[Choice, ...] = ()


def fuse(
    defs: list[Def],
    externs: list[ExternNode],
    kept: set[Def],
    apart: Collection[Def] = frozenset(),
    told: Mapping[str, Def] = MappingProxyType({}),
) -> Schedule:
    """Assign every computed Def that is needed to a kernel.

    ``kept`` are Defs that must be in memory: outputs and arguments of ATen calls. Those ``apart`` are no part of the kernels that read them.
    ``told`` says by which ATen call's result a symbol becomes known.
    """
    starts = {made.start for made in defs if isinstance(made.start, Def)}
    scheduler = Scheduler(externs, kept | starts, apart, told)
    for made in reversed(defs):
        if made.is_computed:
            scheduler.place(made)
    scheduler.merge_siblings()
    return Schedule(scheduler.ordered(defs), tuple(scheduler.decisions))


class Scheduler:
    """The state of one fusion run."""

    def __init__(
        self,
        externs: list[ExternNode],
        kept: set[Def],
        apart: Collection[Def] = frozenset(),
        told: Mapping[str, Def] = MappingProxyType({}),
    ) -> None:
        self.told = told
        self.groups: list[Group] = []
        self.kept = kept
        self.apart = apart
        self.externs = externs
        self.owner: dict[Def, Group | ExternNode] = {r: e for e in externs for r in e.results if r is not None}
        self.uses: dict[Def, list[ExternNode]] = {}
        self.inputs: dict[int, set[Def]] = {id(e): {*bases(e), *self._tell(_symbols_of_call(e), e)} for e in externs}
        for extern in externs:
            for base in self.inputs[id(extern)]:
                self.uses.setdefault(base, []).append(extern)
        self.decisions: list[FusionDecision] = []
        self._made = 0

    def note(self, made: Def, group: Group, fused: bool, reason: str) -> None:
        """Record a decision about a Def and the kernel that reads it; parts of one ATen node are not news."""
        if made.origins and all(made.origins == m.origins for m in group.members if m is not made):
            return
        traffic = bytes_saved(made)
        saved, moved = (traffic, None) if fused else (None, traffic)
        self.decisions.append(FusionDecision(made.origins, _origins(group), fused, reason, saved, moved))

    def sources(self, step: Group | ExternNode) -> set[Def]:
        """Defs that a step reads from memory, and those that tell a symbol that it needs."""
        if not isinstance(step, Group):
            return self.inputs[id(step)]
        return step.sources() | self._tell(_symbols_of_group(step)) if self.told else step.sources()

    def _tell(self, symbols: Iterable[str], apart_from: ExternNode | None = None) -> set[Def]:
        """The Defs that tell symbols, but for the results of one call."""
        own = () if apart_from is None else apart_from.results
        return {self.told[s] for s in symbols if s in self.told and self.told[s] not in own}

    def has_path(self, first: Group | ExternNode, last: Group | ExternNode) -> bool:
        """Whether something that ``first`` writes is needed, directly or not, by ``last``."""
        seen: set[int] = set()
        stack: list[Group | ExternNode] = [last]
        while stack:
            step = stack.pop()
            for source in self.sources(step):
                owner = self.owner.get(source)
                if owner is None or id(owner) in seen:
                    continue
                if owner is first:
                    return True
                seen.add(id(owner))
                stack.append(owner)
        return False

    def place(self, made: Def) -> None:
        """Give one Def its kernel."""
        readers = [g for g in self.groups if g.demands_of(made)]
        is_kept = made in self.kept
        if not readers and not is_kept:
            return
        if made.kind == "scatter" or made in self.apart:
            self._start(made)
            return
        if is_free(made):
            for group in readers:
                self._inline(made, group)
            if is_kept:
                self._start(made)
            return
        readers = self._merged(made, readers)
        if made.kind == "reduction":
            for group in readers:
                split_variables(made, group)
        if not is_kept and len(readers) > 1:
            readers = self._spared(made, readers)
        if not is_kept and len(readers) > 1 and is_cheap(made, len(readers) - 1):
            refused = [g for g in readers if self._refusal(made, g, stored=False) is not None]
            if not refused:
                for group in readers:
                    self._inline(made, group)
                    self.note(made, group, True, "It is so cheap that each kernel that reads it computes it again.")
                return
        noted: set[int] = set()
        for group in readers:
            if len(readers) == 1 and (beside := self._better_beside(made, group)) is not None:
                why = f"{beside.name} must be stored for a step that this kernel waits for: beside that, fewer bytes are read."
                self.note(made, group, False, why)
                break
            others: list[Group | ExternNode] = [g for g in readers if g is not group]
            others += [g for g in self.groups if g is not group and made in g.starts]
            others += self.uses.get(made, [])
            is_stored = bool(others) or is_kept
            reason = self._refusal(made, group, stored=is_stored)
            if reason is None and any(self.has_path(other, group) for other in others):
                reason = "Another step reads it whose result this kernel needs: they cannot be one kernel."
            if reason is None:
                self._inline(made, group, stored=is_stored)
                self.note(made, group, True, _joined_because(made, is_stored))
                for other in readers:
                    if other is not group and id(other) not in noted:
                        self.note(made, other, False, self._apart_because(group, other))
                return
            self.note(made, group, False, reason)
            noted.add(id(group))
        self._start(made)

    def _apart_because(self, group: Group, other: Group) -> str:
        """Why a kernel reads what another one stores, and is no part of it."""
        if self.has_path(group, other):
            return "Another kernel stores it, and a step that stands between needs that first: this one reads it."
        if mapping_between(group, other) is None and mapping_between(other, group) is None:
            return "Another kernel stores it: this one walks other loops and reads it."
        return "Another kernel stores it: this one walks it in another order and reads it."

    def _spared(self, made: Def, readers: list[Group]) -> list[Group]:
        """The readers that need a whole Def; those that pick a few of its elements compute these themselves."""
        rest = []
        for group in readers:
            if reads_little(made, group) and not self._refusal(made, group, stored=False):
                self._inline(made, group)
                self.note(made, group, True, "It picks a few of its elements, and computes these again.")
            else:
                rest.append(group)
        return rest

    def _better_beside(self, made: Def, group: Group) -> Def | None:
        """What a Def is made of, if that is stored anyway for a call that the kernel waits for, and costs more to read again than the Def."""
        own = bytes_of(made)
        if made.kind not in ("pointwise", "reduction") or own is None or not self.uses:
            return None
        behind = self._behind(made)
        for source in behind:
            if not source.is_computed or source in group.demands or not self._precedes(source, group):
                continue
            shared = self._behind(source) & behind
            again = sum(bytes_of(s) or 0 for s in (source, *(shared - group.demands.keys())))
            if again > own * (1 if made in self.kept else 2) and _walks_along(made, source):
                return source
        return None

    def _precedes(self, source: Def, group: Group) -> bool:
        """Whether a Def cannot be computed by a kernel, which needs the result of a call that is given it."""
        return any(self.has_path(call, group) for call in self.uses.get(source, ()))

    def _behind(self, made: Def) -> set[Def]:
        """The Defs in memory that a Def is made of."""
        found: set[Def] = set()
        stack, seen = [made], {made}
        while stack:
            for source in probed(stack.pop()).reads.values():
                if source.is_computed and source not in self.kept and source.kind != "scatter":
                    if source not in seen:
                        seen.add(source)
                        stack.append(source)
                else:
                    found.add(source)
        return found

    def _merged(self, made: Def, readers: list[Group]) -> list[Group]:
        """Unite kernels that read the same elements in the same order."""
        result: list[Group] = []
        for group in readers:
            for i, known in enumerate(result):
                united = self._united(known, group, made)
                if united is not None:
                    result[i] = united
                    break
            else:
                result.append(group)
        return result

    def _united(self, first: Group, second: Group, shared: Def) -> Group | None:
        if first.inner is None and second.inner is not None:
            first, second = second, first
        values = mapping_between(first, second)
        if values is None or len(first.members) + len(second.members) > MAX_MEMBERS:
            return None
        wanted = {tuple(i.replace(values) for i in d.index) for d in second.demands_of(shared)}
        have = {d.index for d in first.demands_of(shared)}
        if not wanted & have or self.has_path(first, second) or self.has_path(second, first):
            return None
        stored = {**first.stored, **{m: tuple(i.replace(values) for i in index) for m, index in second.stored.items()}}
        self._made += 1
        united = Group(
            self._made,
            first.vars,
            first.inner if first.inner is not None else _renamed(second, values),
            stored,
            first.members | second.members,
            has_scan=first.has_scan or second.has_scan,
        )
        united.analyse()
        if len(united.sources()) > MAX_READS:
            return None
        self.groups = [g for g in self.groups if g not in (first, second)]
        self.groups.append(united)
        for made in stored:
            self.owner[made] = united
        self.decisions.append(
            FusionDecision(
                _origins(first),
                _origins(second),
                True,
                f"Both walk the same elements and read {shared.name}: it is read once.",
                bytes_saved(shared, 1),
            )
        )
        return united

    def _start(self, made: Def) -> Group:
        """A kernel of its own, looping over the dimensions in the order in which they lie in memory."""
        self._made += 1
        dims = memory_order(made)
        variables = {d: Var(f"i{d}", made.walked[d]) for d in dims}
        index = tuple(variable(variables[d]) if d in variables else Index() for d in range(len(made.walked)))
        inner: tuple[Var, ...] | None = None
        if made.kind == "reduction":
            inner = tuple(Var(f"r{k}", n) for k, n in enumerate(made.ranges) if n != 1)
        elif made.kind == "scan":
            inner = (variables[made.axis],) if made.axis in variables else None
        order = tuple(variables[d] for d in dims)
        order += tuple(v for v in inner or () if v not in order)
        group = Group(self._made, order, inner, {made: index}, {made}, has_scan=made.kind == "scan")
        group.analyse()
        self.groups.append(group)
        self.owner[made] = group
        return group

    def _inline(self, made: Def, group: Group, *, stored: bool = False) -> None:
        demands = group.demands_of(made)
        if made.kind == "reduction" and group.inner is None:
            group.vars, group.inner = reduced_variables(made, group, demands[0].index)
        if made.kind == "scan" and group.inner is None:
            axis = _axis_variable(made, demands[0].index)
            group.inner = None if axis is None else (axis,)
        group.has_scan |= made.kind == "scan"
        group.members.add(made)
        if stored:
            group.stored[made] = next(
                d.index for d in demands if not d.is_masked and self._is_storable(made, group, d.index)
            )
            self.owner[made] = group
        group.analyse()

    def _is_storable(self, made: Def, group: Group, index: Coordinates) -> bool:
        return is_bijection(index, made.shape, group.vars) or (
            group.inner is not None and is_bijection(index, made.shape, group.outer)
        )

    def _refusal(self, made: Def, group: Group, *, stored: bool) -> str | None:
        """Why a Def cannot join a kernel that reads it, None if it can."""
        demands = group.demands_of(made)
        if made in group.starts:
            return "The kernel changes a copy of it, which must be whole before."
        if len(group.members) >= MAX_MEMBERS:
            return f"The kernel already computes {MAX_MEMBERS} tensors."
        if len(group.sources()) >= MAX_READS:
            return f"The kernel already reads {MAX_READS} tensors."
        if made.kind == "reduction":
            return self._reduction_refusal(made, group, demands)
        if made.kind == "scan":
            return self._scan_refusal(made, group, demands)
        whole = [d for d in demands if self._is_storable(made, group, d.index)]
        if stored and not any(not d.is_masked for d in whole):
            return "It must also be in memory, and this kernel does not visit each of its elements exactly once."
        if len(whole) == len(demands) == 1:
            return None
        return _recomputation_refusal(made, group, demands)

    def _reduction_refusal(self, made: Def, group: Group, demands: list[Demand]) -> str | None:
        if len({d.index for d in demands}) != 1:
            return "The kernel reads the reduction at several places, so each would have to be reduced again."
        index = demands[0].index
        if demands[0].is_masked:
            return "The kernel reads the reduction under a condition only."
        if group.inner is not None:
            if not is_bijection(index, made.shape, group.outer):
                return "The kernel's rows are not the rows that are reduced."
            if not is_same(product(v.size for v in group.inner), product(made.ranges)):
                return "The kernel's rows have another length than the rows that are reduced."
            return None
        used = _used(index)
        ordered = tuple(v for v in group.vars if v in used)
        if not is_bijection(index, made.shape, ordered):
            return "The kernel does not read the reduction's results one row after the other."
        rest = [v for v in group.vars if v not in used]
        if rest and not is_same(product(v.size for v in rest), product(made.ranges)):
            return "The kernel's rows have another length than the rows that are reduced."
        rows, total = product(v.size for v in ordered), group.numel
        if rest and isinstance(rows, int) and isinstance(total, int) and rows < FEW_ROWS and total >= LARGE:
            return f"Only {rows} rows: one program a row would leave most of the device idle."
        return None

    def _scan_refusal(self, made: Def, group: Group, demands: list[Demand]) -> str | None:
        index = demands[0].index
        axis = _axis_variable(made, index)
        if (
            len({d.index for d in demands}) != 1
            or demands[0].is_masked
            or not is_bijection(index, made.shape, group.vars)
            or axis is None
        ):
            return "The kernel does not read the running result in order."
        if group.inner is not None and group.inner != (axis,):
            return "The kernel's rows do not lie along the dimension of the running result."
        return None

    def merge_siblings(self) -> None:
        """Unite kernels that are independent but read the same elements in the same order."""
        shared: dict[Def, list[Group]] = {}
        for group in self.groups:
            for source in group.sources():
                shared.setdefault(source, []).append(group)
        for source, readers in shared.items():
            present = [g for g in readers if g in self.groups]
            if len(present) > 1 and bytes_of(source) != 0:
                self._merged(source, present)

    def ordered(self, defs: list[Def]) -> tuple[Group | ExternNode, ...]:
        """Every step after those whose results it reads, otherwise in the program's order."""
        done: set[int] = set()
        result: list[Group | ExternNode] = []
        steps: list[Group | ExternNode] = [*self.groups, *self.externs]

        def visit(step: Group | ExternNode) -> None:
            if id(step) in done:
                return
            done.add(id(step))
            for source in sorted(self.sources(step), key=lambda d: d.position):
                owner = self.owner.get(source)
                if owner is not None and owner is not step:
                    visit(owner)
            result.append(step)

        def first(step: Group | ExternNode) -> int:
            if isinstance(step, Group):
                return min(d.position for d in step.stored)
            made = [d.position for d in step.results if d is not None]
            # A call for its effect alone may be a check of what later steps take for granted.
            return min(made, default=max((d.position for d in self.sources(step)), default=-1))

        for step in sorted(steps, key=first):
            visit(step)
        return tuple(result)


def _symbols_of_group(group: Group) -> frozenset[str]:
    """Symbols that a kernel's sizes and indices hold."""
    sizes = [v.size for v in group.vars]
    for made in (*group.members, *group.sources()):
        sizes += [*made.shape, *made.stride, *made.ranges]
    indices = (op.index for op in group.builder.ops if op.index is not None)
    sizes += [op.value for op in group.builder.ops if op.name == "number"]
    return symbols_of(sizes).union(*(i.symbols() for i in indices))


def _symbols_of_call(extern: ExternNode) -> frozenset[str]:
    """Symbols that an ATen call is given, or by which its results are described."""
    found: list[object] = []
    for value in pytree.tree_leaves((extern.args, extern.kwargs)):
        if isinstance(value, Tensor):
            placed = strided(value)
            found += [*value.base.shape, *value.base.stride, *value.shape]
            found += [] if placed is None else [*placed[0], placed[1]]
        else:
            found.append(getattr(getattr(value, "node", None), "expr", value))
    for made in extern.results:
        found += [] if made is None else [*made.shape, *made.stride]
    return symbols_of(found)


def bases(extern: ExternNode) -> Iterable[Def]:
    """The Defs that an ATen call reads."""

    def walk(value: object) -> Iterable[Def]:
        if isinstance(value, Tensor):
            yield value.base
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from walk(item)

    for value in (*extern.args, *extern.kwargs.values()):
        yield from walk(value)


def _origins(group: Group) -> tuple[str, ...]:
    return tuple(dict.fromkeys(o for made in sorted(group.members, key=lambda d: d.position) for o in made.origins))


def _joined_because(made: Def, is_stored: bool) -> str:
    if made.kind == "reduction":
        return "The kernel walks the same rows: it reduces each row and goes on with it before the next."
    if is_stored:
        return "The kernel visits each of its elements once: it computes, uses and stores them in one go."
    return "Only this kernel reads it, and each element is computed where it is used: it never goes through memory."


def _used(index: Coordinates) -> frozenset[Var]:
    return frozenset().union(*(i.variables() for i in index)) if index else frozenset()


def _axis_variable(made: Def, index: Coordinates) -> Var | None:
    terms = index[made.axis].terms
    if len(terms) != 1 or index[made.axis].const != 0:
        return None
    ((atom, coefficient),) = terms.items()
    return atom if isinstance(atom, Var) and coefficient == 1 and is_same(atom.size, made.shape[made.axis]) else None


def reduced_variables(made: Def, group: Group, index: Coordinates) -> tuple[tuple[Var, ...], tuple[Var, ...]]:
    """``(all, inner)`` variables of a pointwise kernel once it computes a reduction that it reads at ``index``."""
    used = _used(index)
    rest = tuple(v for v in group.vars if v not in used)
    if rest:
        return group.vars, rest
    inner = tuple(Var(f"r{k}", n) for k, n in enumerate(made.ranges) if n != 1)
    return (*group.vars, *inner), inner


def split_variables(made: Def, group: Group) -> None:
    """Cut loop variables in two where the kernel reads a Def at their quotient or remainder, so that rows show as variables."""
    for _ in range(4):
        found = next((c for d in group.demands_of(made) for c in map(_cut, d.index) if c is not None), None)
        if found is None or found[0] not in group.vars:
            return
        var, by = found
        quotient = exact_quotient(var.size, by)
        if quotient is None:
            return
        high, low = Var(f"{var.name}h", quotient), Var(f"{var.name}l", by)
        value = {var: variable(high) * by + variable(low)}

        def cut(variables: tuple[Var, ...], pair: tuple[Var, Var] = (high, low), old: Var = var) -> tuple[Var, ...]:
            return tuple(n for v in variables for n in (pair if v == old else (v,)) if n.size != 1)

        group.vars = cut(group.vars)
        group.inner = None if group.inner is None else cut(group.inner)
        group.stored = {m: tuple(i.replace(value) for i in index) for m, index in group.stored.items()}
        group.analyse()


def _cut(index: Index) -> tuple[Var, Size] | None:
    """``(v, k)`` where an index holds ``v // k`` or ``v % k``."""
    for atom in index.terms:
        if isinstance(atom, (Div, Mod)) and len(atom.of.terms) == 1 and atom.of.const == 0:
            ((inner, coefficient),) = atom.of.terms.items()
            if isinstance(inner, Var) and coefficient == 1:
                return inner, atom.by
    return None


def memory_order(made: Def) -> list[int]:
    """Dimensions of a Def, those with the largest stride first, without those of size 1."""
    dims = [d for d, n in enumerate(made.walked) if n != 1]
    if made.kind != "scatter" and all(isinstance(s, int) for s in made.stride):
        return sorted(dims, key=lambda d: -made.stride[d])
    return dims


def mapping_between(first: Group, second: Group) -> dict[Var, Index] | None:
    """How the second kernel's variables follow from the first's, if both can walk the same loops."""
    sizes = [v.size for v in first.vars]
    if [v.size for v in second.vars] == sizes and (
        first.inner is None or second.inner is None or _places(first) == _places(second)
    ):
        if first.inner is None and second.inner is not None:
            return None
        return dict(zip(second.vars, (variable(v) for v in first.vars), strict=True))
    if first.inner is not None and second.inner is not None:
        if not is_same(product(v.size for v in first.outer), product(v.size for v in second.outer)):
            return None
        if not is_same(product(v.size for v in first.inner), product(v.size for v in second.inner)):
            return None
        return {**_flat_mapping(first.outer, second.outer), **_flat_mapping(first.inner, second.inner)}
    if first.inner is None and second.inner is None and is_same(first.numel, second.numel):
        return _flat_mapping(first.vars, second.vars)
    return None


def _places(group: Group) -> list[bool]:
    return [v in (group.inner or ()) for v in group.vars]


def _flat_mapping(first: tuple[Var, ...], second: tuple[Var, ...]) -> dict[Var, Index]:
    flat = flatten([variable(v) for v in first], _row_major(first))
    return dict(zip(second, unflatten(flat, tuple(v.size for v in second)), strict=True))


def _renamed(group: Group, values: dict[Var, Index]) -> tuple[Var, ...] | None:
    if group.inner is None:
        return None
    return tuple(next(iter(values[v].terms)) for v in group.inner)  # type: ignore[misc]


def _recomputation_refusal(made: Def, group: Group, demands: list[Demand]) -> str | None:
    probe = probed(made)
    cost = sum(op.cost for op in probe.ops)
    reads = len(probe.demands)
    if reads == 0 and cost <= CHEAP:
        return None
    places = len({d.index for d in demands})
    total, own = group.numel, product(made.shape)
    if not isinstance(total, int) or not isinstance(own, int):
        return (
            None
            if cost <= CHEAP and places == 1
            else "It would be computed again for each element that reads it, how often depends on the sizes."
        )
    factor = places * total / max(own, 1)
    if factor <= 1:
        return None
    if (cost * factor <= CHEAP * 4 and reads * factor <= 16) or (cost <= CHEAP and reads <= 2 and places == 1):
        return None
    return f"It would be computed {factor:.0f} times over: storing it once is cheaper."


def _walks_along(made: Def, source: Def) -> bool:
    """Whether one kernel can compute both in one go over the elements of the source."""
    return is_same(product((*made.shape, *made.ranges)), product((*source.shape, *source.ranges)))


def probed(made: Def) -> Builder:
    """The operations of one element of a Def, nothing fused."""
    builder = Builder()
    index = tuple(variable(Var(f"i{d}", n)) for d, n in enumerate(made.walked))
    if made.kind == "reduction":
        inner = tuple(Var(f"r{k}", n) for k, n in enumerate(made.ranges))
        builder = Builder((), frozenset(inner), flatten([variable(v) for v in inner], _row_major(inner)))
    builder.evaluate(made, index)
    return builder


def reads_little(made: Def, group: Group) -> bool:
    """Whether a kernel reads so few elements of an elementwise Def that computing them costs less than keeping all in memory."""
    total, own = group.numel, product(made.shape)
    if made.kind != "pointwise" or not isinstance(total, int) or not isinstance(own, int):
        return False
    return total * len(group.demands_of(made)) * SPARSE <= own


def is_free(made: Def) -> bool:
    """Whether a Def is made from nothing but constants and positions."""
    if made.kind != "pointwise":
        return False
    probe = probed(made)
    return not probe.demands and sum(op.cost for op in probe.ops) <= CHEAP


def is_cheap(made: Def, times: int = 1) -> bool:
    """Whether computing a Def so many times more costs less than writing and reading it: from no more bytes, with little arithmetic."""
    if made.kind != "pointwise":
        return False
    probe, own = probed(made), product(made.shape)
    sources = [s for s in probe.reads.values() if not is_fraction(product(s.shape), own)]
    if len(sources) > 1 or any(source.dtype.itemsize > made.dtype.itemsize for source in sources):
        return False
    saves = any(source.dtype.itemsize < made.dtype.itemsize for source in sources)
    return times * sum(op.cost for op in probe.ops) <= (CHEAP_FROM_LESS if saves else CHEAP_FROM_SAME)


def is_fraction(size: Size, whole: Size) -> bool:
    """Whether reading so many elements hardly counts beside the whole."""
    return isinstance(size, int) and isinstance(whole, int) and size * SPARSE <= whole


def bytes_of(made: Def) -> int | None:
    """The memory that a Def takes when stored, None where symbolic."""
    count = product(made.shape)
    return count * made.dtype.itemsize if isinstance(count, int) else None


def bytes_saved(made: Def, times: int = 2) -> int | None:
    """Traffic saved by not writing and reading a Def."""
    size = bytes_of(made)
    return None if size is None else size * times
