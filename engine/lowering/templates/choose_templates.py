"""Replaces library calls by templates, with fused neighbors, where the chooser takes one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.kernels.template_choice import Candidate, ChoiceRequest, ChoiceResult, LibraryChooser, TemplateChooser
from engine.ir.loop_ir.index_expr import Size, concrete_size
from engine.ir.loop_ir.loop_kernel import MatmulConfig
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.static_sizes import static_size
from engine.lowering.context import ExternNode, LoweredTensor
from engine.lowering.fusion.fusion_cost import bytes_saved
from engine.lowering.fusion.fusion_group import FusionGroup
from engine.lowering.fusion.scheduler import Schedule
from engine.lowering.templates.attention import AttentionCall, AttentionTemplate, match_attention, template_candidates
from engine.lowering.templates.matmul import (
    IEEE_PRECISION,
    FusedMatmul,
    MatmulCall,
    can_fuse_epilogue,
    can_fuse_prologue,
    match_matmul,
    matmul_precision,
)
from engine.lowering.templates.matmul_configs import candidate_tilings
from engine.records.lowering import AutotuneChoice, FusionDecision


@dataclass(frozen=True, eq=False)
class MatmulTemplate:
    """A matmul that the template computes with one configuration."""

    fused_matmul: FusedMatmul
    tiling: MatmulConfig

    @property
    def output_defs(self) -> Iterable[TensorDef]:
        """Definitions that the kernel writes."""
        return self.fused_matmul.output_defs

    def input_defs(self) -> set[TensorDef]:
        """Return the definitions that the kernel reads from memory."""
        return self.fused_matmul.input_defs()


ASSUMED_SIZE = 1024
"""Assumed value of a symbol without a size hint."""
MAX_PROLOGUE_CANDIDATES = 4
"""Most configurations that are tried with fused prologues; without, all are tried."""
ScheduleStep = FusionGroup | ExternNode | MatmulTemplate | AttentionTemplate
MakeSubprogram = Callable[[tuple[ScheduleStep, ...]], LoweredProgram]
"""Builds a program of some steps of a schedule; the results of other steps are its inputs."""


def choose_templates(
    schedule: Schedule,
    returned: Collection[TensorDef],
    chooser: TemplateChooser,
    make_subprogram: MakeSubprogram,
    forced_fallbacks: Mapping[str, str],
    size_hints: Mapping[str, int],
) -> Schedule:
    """Return the schedule with templates where the chooser takes one.

    ``returned``: definitions that the program returns. ``forced_fallbacks``: nodes that remain ATen calls.
    ``size_hints``: by symbol.
    """
    if isinstance(chooser, LibraryChooser):
        return schedule
    work = _TemplateChooser(
        list(schedule.steps), list(schedule.decisions), set(returned), chooser, make_subprogram, size_hints
    )
    for step in schedule.steps:
        if isinstance(step, ExternNode) and not any(o in forced_fallbacks for o in step.origins):
            if (call := match_matmul(step)) is not None:
                work.try_matmul(call)
            elif (attention := match_attention(step)) is not None:
                work.try_attention(attention)
    return Schedule(tuple(work.steps), tuple(work.decisions), tuple(work.choices))


class _TemplateChooser:
    def __init__(
        self,
        steps: list[ScheduleStep],
        decisions: list[FusionDecision],
        returned: set[TensorDef],
        chooser: TemplateChooser,
        alone: MakeSubprogram,
        sizes: Mapping[str, int],
    ) -> None:
        self.steps, self.decisions, self.returned = steps, decisions, returned
        self.chooser, self.make_subprogram, self.size_hints = chooser, alone, sizes
        self.choices: list[AutotuneChoice] = []

    def try_matmul(self, call: MatmulCall) -> None:
        """Let the chooser decide if the template computes a matmul, with or without prologues."""
        fully_fused = self._fuse_around(call)
        forms = [fully_fused]
        if fully_fused.prologues:
            forms.append(self._fuse_around(call, takes_before=False))
        named = [Candidate("vendor", functools.partial(self.make_subprogram, self._steps_replaced_by(fully_fused)))]
        candidates: list[MatmulTemplate] = []
        for fused in forms:
            replaced = [
                s
                for s in self._steps_replaced_by(fully_fused)
                if s is not call.extern and s not in _replaced_parts(fused)
            ]
            dtype = call.left.dtype
            tilings = candidate_tilings(
                *self._hinted_sizes(call),
                dtype.itemsize,
                without_tensor_cores=matmul_precision(dtype) == IEEE_PRECISION,
            )
            for tiling in tilings[: MAX_PROLOGUE_CANDIDATES if fused.prologues else None]:
                tiled = MatmulTemplate(fused, tiling)
                candidates.append(tiled)
                named.append(
                    Candidate(_template_label(tiled), functools.partial(self.make_subprogram, (*replaced, tiled)))
                )
        answer = self.chooser.choose(
            ChoiceRequest(
                next(iter(call.extern.origins), ""),
                tuple(named),
                unaligned_rows=_rows_if_padding_needed(fully_fused),
                size_hints=self.size_hints,
            )
        )
        if answer.reason:
            self.choices.append(_choice_record(call.extern, named, answer))
        if answer.chosen == 0:
            self._keep_library_call(call.extern, answer)
        else:
            self._apply_template(candidates[answer.chosen - 1], answer)

    def _hinted_sizes(self, call: MatmulCall) -> tuple[int, int, int, int]:
        """Return the sizes of a matmul, with symbols replaced by their hints."""
        matrices, rows, cols, inner = (_hinted_size(size, self.size_hints) for size in call.batch_m_n_k)
        return matrices, rows, cols, inner

    def try_attention(self, call: AttentionCall) -> None:
        """Let the chooser decide if the template computes an attention call."""
        used = tuple(d for d in call.unused_results if self._is_used(d))
        if any(d.dtype.is_floating_point for d in used):
            return  # The template does not compute this gradient.
        results = {r: d for r, d in call.results.items() if r != "grad_mask" or self._is_used(d)}
        call = replace(call, unused_results=used, results=results)
        extern, candidates = call.extern, template_candidates(call)
        named = [Candidate("vendor", functools.partial(self.make_subprogram, (extern,)))]
        named += [Candidate(f"template {c.blocks}", functools.partial(self.make_subprogram, (c,))) for c in candidates]
        answer = self.chooser.choose(ChoiceRequest(next(iter(extern.origins), ""), tuple(named)))
        if answer.reason:
            self.choices.append(_choice_record(extern, named, answer))
        if answer.chosen == 0:
            self._keep_library_call(extern, answer)
        else:
            self.steps[self.steps.index(extern)] = candidates[answer.chosen - 1]

    def _is_used(self, tensor_def: TensorDef) -> bool:
        """Return True if a result is returned or read."""
        return tensor_def in self.returned or bool(self._readers(tensor_def))

    def _keep_library_call(self, extern: ExternNode, answer: ChoiceResult) -> None:
        if answer.reason:
            self.steps[self.steps.index(extern)] = replace(extern, reason=answer.reason)

    def _apply_template(self, tiled: MatmulTemplate, answer: ChoiceResult) -> None:
        fused = tiled.fused_matmul
        last = fused.epilogue or fused.matmul.extern
        gone = _replaced_parts(fused)
        self.steps = [tiled if s is last else s for s in self.steps if s is last or s not in gone]
        for group in (*fused.prologues, *([] if fused.epilogue is None else [fused.epilogue])):
            stored = next(iter(group.stores))
            nodes = tuple(
                dict.fromkeys(o for m in sorted(group.members, key=lambda d: d.program_order) for o in m.node_ids)
            )
            when = "when it loads its tiles" if group in fused.prologues else "before it stores its tiles"
            reason = f"The template computes it {when}, so it is never written to memory. {answer.reason}"
            self.decisions.append(
                FusionDecision(fused.matmul.extern.origins, nodes, True, reason.strip(), bytes_saved(stored))
            )

    def _steps_replaced_by(self, fused: FusedMatmul) -> tuple[ScheduleStep, ...]:
        parts = _replaced_parts(fused)
        return tuple(s for s in self.steps if s in parts)

    def _fuse_around(self, call: MatmulCall, *, takes_before: bool = True) -> FusedMatmul:
        readers = self._readers(call.result)
        after = next((r for r in readers if isinstance(r, FusionGroup) and can_fuse_epilogue(r, call)), None)
        if after is not None and not self._can_run_at_epilogue(after, readers):
            after = None
        other_readers = [r for r in readers if r is not after]
        before = tuple(self._find_prologues(call)) if takes_before else ()
        is_seen = call.result in self.returned or bool(other_readers)
        return FusedMatmul(call, before, after, stores_result=after is None or is_seen)

    def _can_run_at_epilogue(self, after: FusionGroup, readers: list[ScheduleStep]) -> bool:
        """Return True if no step needs the matmul before its epilogue runs."""
        at = self.steps.index(after)
        return all(self.steps.index(r) >= at for r in readers)

    def _find_prologues(self, call: MatmulCall) -> list[FusionGroup]:
        prologues = []
        for operand in (call.left, call.right):
            definition = operand.definition
            group = next((s for s in self.steps if isinstance(s, FusionGroup) and definition in s.stores), None)
            if group is None or definition in self.returned or self._readers(definition) != [call.extern]:
                continue
            if can_fuse_prologue(group, operand) and group not in prologues and not _reads_def(call.bias, definition):
                prologues.append(group)
        return prologues

    def _readers(self, tensor_def: TensorDef) -> list[ScheduleStep]:
        return [s for s in self.steps if tensor_def in s.input_defs()]


def _reads_def(value: LoweredTensor | None, tensor_def: TensorDef) -> bool:
    return value is not None and value.definition is tensor_def


def _replaced_parts(fused: FusedMatmul) -> list[ScheduleStep]:
    """Return prologues, matmul and epilogue: the steps that a template's kernel replaces."""
    return [*fused.prologues, fused.matmul.extern, *([] if fused.epilogue is None else [fused.epilogue])]


def _rows_if_padding_needed(fused: FusedMatmul) -> int | None:
    """Return the rows of a 16-bit matmul whose operand a library needs as a padded copy.

    None for other matmuls.
    """
    matrices, rows, _, _ = fused.matmul.batch_m_n_k
    pads = any(d.is_masked for group in fused.prologues for demands in group.reads.values() for d in demands)
    return static_size(rows) if pads and matrices == 1 and fused.matmul.left.dtype.itemsize == 2 else None


def _hinted_size(size: Size, sizes: Mapping[str, int]) -> int:
    return concrete_size(size, lambda symbol: sizes.get(symbol, ASSUMED_SIZE))


def _template_label(tiled: MatmulTemplate) -> str:
    within = " with fused operands" if tiled.fused_matmul.prologues else ""
    return f"template {tiled.tiling}{within}"


def _choice_record(extern: ExternNode, named: list[Candidate], answer: ChoiceResult) -> AutotuneChoice:
    seconds_taken = answer.seconds or (None,) * len(named)
    return AutotuneChoice(
        extern.origins,
        named[answer.chosen].label,
        answer.reason,
        tuple((candidate.label, seconds) for candidate, seconds in zip(named, seconds_taken, strict=True)),
        answer.device,
        answer.from_disk_cache,
    )
