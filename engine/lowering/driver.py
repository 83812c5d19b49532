"""Lower a functional ATen graph to a program of kernels and ATen calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
import torch.fx

from engine.errors import KernelBuildError
from engine.graph.passes.recorder import PassRecorder
from engine.graph.user_passes.aten_stage import run_aten_stage
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.kernels.template_choice import LIBRARY_CHOOSER, TemplateChooser
from engine.ir.pass_set import PASS_STAGES
from engine.lowering.choose_blocks import BlockTuner, CandidateBlockings, FindTuning
from engine.lowering.context import definitions_in
from engine.lowering.dedup_kernels import PrintKernel
from engine.lowering.fusion.scheduler import fuse
from engine.lowering.graph_lowering import GraphLowering, LoweringError, reset_saved_row_stride
from engine.lowering.passes.bool_to_bias_mask import bool_to_bias_mask
from engine.lowering.passes.decompose import KnownDecompositions, decompose
from engine.lowering.passes.fuse_attention import fuse_attention
from engine.lowering.passes.pad_matmul import pad_matmul
from engine.lowering.passes.separate_conv_bias import separate_conv_bias
from engine.lowering.schedule_to_program import schedule_to_program, subprogram
from engine.lowering.templates.choose_templates import choose_templates
from engine.lowering.unroll_reductions import unroll_reductions
from engine.records.lowering import FusionDecision
from engine.torch_private.entries import Feature, require

aten = torch.ops.aten

RewrittenGraph = tuple[PassRecorder, tuple[FusionDecision, ...]]
"""The rewritten graph with its pass records, and the fusion decisions of the passes."""


def lower(
    graph: AotGraph,
    target: str,
    emit: PrintKernel,
    *,
    fused_random: bool = False,
    forced_fallbacks: Mapping[str, str] = MappingProxyType({}),
    chooser: TemplateChooser = LIBRARY_CHOOSER,
    candidate_blockings: CandidateBlockings | None = None,
    rewritten: RewrittenGraph | None = None,
    find_tuning: FindTuning | None = None,
    outline: PrintKernel | None = None,
    is_accepted: Callable[[LoweredProgram], bool] = lambda program: True,
) -> LoweredProgram:
    """Lower a functional graph to kernels for ``target`` ("cuda:90", "hip:gfx942").

    Operators without a lowering become ATen calls, each with a reason. ``fused_random``: kernels generate random
    numbers themselves; a seed then yields other numbers than in eager. ``forced_fallbacks``: node ids that ATen
    must run, with the reason; views are lowered nevertheless. ``chooser``: decides where a template replaces a
    library call, and picks one of the ``candidate_blockings`` of a kernel (None: the default blocking).
    ``rewritten``: the result of ``run_passes``, if they have run. ``find_tuning``: returns a kernel's settings that
    were tuned by hand; they go before ``candidate_blockings``. ``outline``: prints kernels without text. If
    ``is_accepted`` returns False for the program of such kernels, it is returned, and no kernel is printed.

    Raises:
        LoweringError: the graph contains something that a program cannot express.
    """
    try:
        require(Feature.KERNELS)
        is_cpu = target == CPU_TARGET
        watch, exchanged = rewritten or run_passes(
            graph, fused_random=fused_random, is_cpu=is_cpu, left_whole=forced_fallbacks
        )
        for placeholder in graph.saved_placeholders:  # An earlier lowering may have set another row stride.
            reset_saved_row_stride(placeholder)
        saved = dict(enumerate(graph.saved_placeholders, graph.num_user_outputs or 0))
        walk = GraphLowering(graph.compilation_id, watch.module, graph.stage, saved, forced_fallbacks, is_cpu=is_cpu)
        walk.run()
        definitions = {symbol: defining for symbol, (defining, _) in walk.symbols.unbacked.items()}
        unroll_reductions(walk.context.defs, walk.defs_in_memory())
        context, in_memory = walk.context, walk.defs_in_memory()
        schedule = fuse(context.defs, context.externs, in_memory, context.no_fuse, definitions, is_cpu=is_cpu)
        returned = definitions_in(walk.outputs)
        by_themselves = functools.partial(subprogram, walk, target, emit)
        schedule = choose_templates(schedule, returned, chooser, by_themselves, forced_fallbacks, walk.symbols.hints)
        tuner = BlockTuner(chooser, candidate_blockings, emit, target, walk.symbols.hints, find_tuning)
        print_with = functools.partial(
            schedule_to_program, walk, schedule, target, tuner=tuner, mutated=graph.mutated_inputs, built={}
        )
        if outline is not None and not is_accepted(outlined := print_with(outline)):
            return outlined
        program = print_with(emit)
        decisions = (*exchanged, *program.record.decisions)
        return replace(program, record=replace(program.record, passes=tuple(watch.records), decisions=decisions))
    except (LoweringError, KernelBuildError):
        raise
    except Exception as error:
        raise LoweringError(
            f"The graph of {graph.compilation_id} could not be lowered: {type(error).__name__}: {error}"
        ) from error


def run_passes(
    graph: AotGraph,
    *,
    fused_random: bool,
    is_cpu: bool = False,
    left_whole: Collection[str] = (),
    known_parts: KnownDecompositions | None = None,
) -> RewrittenGraph:
    """Run the graph passes that precede lowering; return their recorder and fusion decisions.

    The recorder has the rewritten graph as ``module``. ``left_whole``, ``known_parts``: see ``decompose``.
    """
    watch = PassRecorder(graph.module)
    # The other passes are for tensor cores and attention templates.
    names = PASS_STAGES["decomposed"][: 1 if is_cpu else None]
    following = graph.passes.after_each("decomposed", names)

    def run_following(name: str) -> None:
        run_aten_stage(watch, following[name], graph.passes.compare)

    with watch.record_pass("decompose"):
        watch.module = decompose(
            graph, fused_random=fused_random, is_cpu=is_cpu, left_whole=left_whole, known_parts=known_parts
        )
    run_following("decompose")
    if is_cpu:
        return watch, ()
    with watch.record_pass("fuse_attention"):
        exchanged = fuse_attention(watch.module)
    run_following("fuse_attention")
    with watch.record_pass("pad_matmul"):
        watch.module = pad_matmul(watch.module)
    run_following("pad_matmul")
    with watch.record_pass("bool_to_bias_mask"):
        watch.module = bool_to_bias_mask(watch.module)
    run_following("bool_to_bias_mask")
    with watch.record_pass("separate_conv_bias"):
        watch.module = separate_conv_bias(watch.module)
    run_following("separate_conv_bias")
    return watch, exchanged
