"""Puts templates in the place of library calls, with the kernels around them taken in, where whoever is asked says so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import sympy

from engine.ir.index import Size
from engine.ir.kernel import Program
from engine.ir.loops import Def, Tiling
from engine.ir.tuning import Answer, Chooser, Question, Usual, Way
from engine.lowering.fuse import Group, Schedule, bases, bytes_saved
from engine.lowering.table import ExternNode, Tensor
from engine.lowering.templates.attention import Attended, Attending, attending, ways
from engine.lowering.templates.products import (
    EXACT,
    Fused,
    Multiplied,
    is_epilogue,
    is_prologue,
    multiplied,
    precision_of,
)
from engine.lowering.templates.tilings import tilings
from engine.records.lowering import Choice, FusionDecision


@dataclass(frozen=True, eq=False)
class Tiled:
    """A product that a kernel of the template computes, cut this way."""

    fused: Fused
    tiling: Tiling


UNKNOWN = 1024
"""What a symbol is taken for of which no size is at hand."""
MOST_ON_THE_WAY = 4
"""Ways to cut a product that are tried with operands computed on the way, and then all of them without."""
Step = Group | ExternNode | Tiled | Attended
Alone = Callable[[tuple[Step, ...]], Program]
"""Makes a program of some of a schedule's steps, which reads the rest as inputs."""


def with_templates(
    schedule: Schedule,
    kept: Collection[Def],
    chooser: Chooser,
    alone: Alone,
    refused: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Schedule:
    """The schedule with a template wherever the chooser takes one.

    ``kept`` are Defs that the program returns. Nodes in ``refused`` stay as they are. ``sizes``: those at hand, by symbol.
    """
    if isinstance(chooser, Usual):
        return schedule
    work = _Work(list(schedule.steps), list(schedule.decisions), set(kept), chooser, alone, sizes)
    for step in schedule.steps:
        if isinstance(step, ExternNode) and not any(o in refused for o in step.origins):
            if (call := multiplied(step)) is not None:
                work.consider(call)
            elif (attention := attending(step)) is not None:
                work.attend(attention)
    return Schedule(tuple(work.steps), tuple(work.decisions), tuple(work.choices))


class _Work:
    def __init__(
        self,
        steps: list[Step],
        decisions: list[FusionDecision],
        kept: set[Def],
        chooser: Chooser,
        alone: Alone,
        sizes: Mapping[str, int],
    ) -> None:
        self.steps, self.decisions, self.kept = steps, decisions, kept
        self.chooser, self.alone, self.sizes = chooser, alone, sizes
        self.choices: list[Choice] = []

    def consider(self, call: Multiplied) -> None:
        """Ask whether a template computes this product, with all that it can take in and with nothing."""
        whole = self._fused(call)
        forms = [whole]
        if whole.before:
            forms.append(self._fused(call, takes_before=False))
        named = [Way("vendor", functools.partial(self.alone, self._replaced_by(whole)))]
        candidates: list[Tiled] = []
        for fused in forms:
            rest = [s for s in self._replaced_by(whole) if s is not call.extern and s not in _parts(fused)]
            dtype = call.left.dtype
            found = tilings(*self._numbers(call), dtype.itemsize, is_slow=precision_of(dtype) == EXACT)
            for tiling in found[: MOST_ON_THE_WAY if fused.before else None]:
                tiled = Tiled(fused, tiling)
                candidates.append(tiled)
                named.append(Way(_label(tiled), functools.partial(self.alone, (*rest, tiled))))
        answer = self.chooser.choose(
            Question(_first(call.extern.origins), tuple(named), rows=_rows(whole), sizes=self.sizes)
        )
        if answer.reason:
            self.choices.append(_choice(call.extern, named, answer))
        if answer.taken == 0:
            self._stay(call.extern, answer)
        else:
            self._take(candidates[answer.taken - 1], answer)

    def _numbers(self, call: Multiplied) -> tuple[int, int, int, int]:
        """A product's sizes, where they are symbols those at hand."""
        matrices, rows, cols, inner = (_number(size, self.sizes) for size in call.sizes)
        return matrices, rows, cols, inner

    def attend(self, call: Attending) -> None:
        """Ask whether kernels of the template compute this attention."""
        seen = tuple(d for d in call.rest if self._is_seen(d))
        if any(d.dtype.is_floating_point for d in seen):
            return  # a gradient of another kind
        results = {r: d for r, d in call.results.items() if r != "grad_mask" or self._is_seen(d)}
        call = replace(call, rest=seen, results=results)
        extern, candidates = call.extern, ways(call)
        named = [Way("vendor", functools.partial(self.alone, (extern,)))]
        named += [Way(f"template {c.blocks}", functools.partial(self.alone, (c,))) for c in candidates]
        answer = self.chooser.choose(Question(_first(extern.origins), tuple(named)))
        if answer.reason:
            self.choices.append(_choice(extern, named, answer))
        if answer.taken == 0:
            self._stay(extern, answer)
        else:
            self.steps[self.steps.index(extern)] = candidates[answer.taken - 1]

    def _is_seen(self, made: Def) -> bool:
        """Whether anybody looks at a result."""
        return made in self.kept or bool(self._readers(made))

    def _stay(self, extern: ExternNode, answer: Answer) -> None:
        if answer.reason:
            self.steps[self.steps.index(extern)] = replace(extern, reason=answer.reason)

    def _take(self, tiled: Tiled, answer: Answer) -> None:
        fused = tiled.fused
        last = fused.after or fused.call.extern
        gone = _parts(fused)
        self.steps = [tiled if s is last else s for s in self.steps if s is last or s not in gone]
        for group in (*fused.before, *([] if fused.after is None else [fused.after])):
            made = next(iter(group.stored))
            nodes = tuple(dict.fromkeys(o for m in sorted(group.members, key=lambda d: d.position) for o in m.origins))
            when = "where its tiles are read" if group in fused.before else "before its tiles are stored"
            reason = f"The template computes it {when}: it never goes through memory. {answer.reason}"
            self.decisions.append(
                FusionDecision(fused.call.extern.origins, nodes, True, reason.strip(), bytes_saved(made))
            )

    def _replaced_by(self, fused: Fused) -> tuple[Step, ...]:
        """What a template would take the place of, in order."""
        parts = _parts(fused)
        return tuple(s for s in self.steps if s in parts)

    def _fused(self, call: Multiplied, *, takes_before: bool = True) -> Fused:
        readers = self._readers(call.result)
        after = next((r for r in readers if isinstance(r, Group) and is_epilogue(r, call)), None)
        if after is not None and not self._can_wait(call, after, readers):
            after = None
        others = [r for r in readers if r is not after]
        before = tuple(self._prologues(call)) if takes_before else ()
        is_seen = call.result in self.kept or bool(others)
        return Fused(call, before, after, is_kept=after is None or is_seen)

    def _can_wait(self, call: Multiplied, after: Group, readers: list[Step]) -> bool:
        """Whether nobody needs the product before the kernel that would take it in."""
        at = self.steps.index(after)
        return all(self.steps.index(r) >= at for r in readers)

    def _prologues(self, call: Multiplied) -> list[Group]:
        found = []
        for operand in (call.left, call.right):
            made = operand.base
            group = next((s for s in self.steps if isinstance(s, Group) and made in s.stored), None)
            if group is None or made in self.kept or self._readers(made) != [call.extern]:
                continue
            if is_prologue(group, operand) and group not in found and not _reads(call.added, made):
                found.append(group)
        return found

    def _readers(self, made: Def) -> list[Step]:
        return [s for s in self.steps if made in _sources(s)]


def _reads(value: Tensor | None, made: Def) -> bool:
    return value is not None and value.base is made


def _sources(step: Step) -> Collection[Def]:
    if isinstance(step, Group):
        return step.sources()
    if isinstance(step, Tiled):
        return step.fused.sources()
    return step.sources() if isinstance(step, Attended) else set(bases(step))


def _parts(fused: Fused) -> list[Step]:
    """The steps that a template stands for."""
    return [*fused.before, fused.call.extern, *([] if fused.after is None else [fused.after])]


def _rows(whole: Fused) -> int | None:
    """Rows of a product of 16-bit numbers whose other side would first be copied with zeros around it."""
    matrices, rows, _, _ = whole.call.sizes
    pads = any(d.is_masked for group in whole.before for demands in group.demands.values() for d in demands)
    is_one = matrices == 1 and isinstance(rows, int)
    return rows if pads and is_one and whole.call.left.dtype.itemsize == 2 else None  # type: ignore[return-value]


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    known = {s: sympy.Integer(sizes.get(str(s), UNKNOWN)) for s in size.free_symbols}
    return int(size.xreplace(known))


def _label(tiled: Tiled) -> str:
    within = " with its operands computed on the way" if tiled.fused.before else ""
    return f"template {tiled.tiling}{within}"


def _first(names: tuple[str, ...]) -> str:
    return names[0] if names else ""


def _choice(extern: ExternNode, named: list[Way], answer: Answer) -> Choice:
    taken = answer.seconds or (None,) * len(named)
    return Choice(
        extern.origins,
        named[answer.taken].label,
        answer.reason,
        tuple((way.label, seconds) for way, seconds in zip(named, taken, strict=True)),
        answer.device,
        answer.is_known,
    )
