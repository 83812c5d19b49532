"""Lower a functional graph to a program, or load the program from the disk cache."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

from engine.backends.stored_tunings import stored_tunings, tunings_key
from engine.cache.disk_store import DiskStore
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.kernels.template_choice import (
    LIBRARY_CHOOSER,
    TEMPLATES_ALWAYS,
    TEMPLATES_MEASURED,
    TEMPLATES_NEVER,
    AlwaysTemplateChooser,
    FewRowsChooser,
    TemplateChooser,
)
from engine.kernels.gpu_targets import default_target
from engine.kernels.triton.block_configs import candidate_blockings
from engine.kernels.triton.printer import print_triton
from engine.lowering.choose_blocks import FindTuning
from engine.lowering.driver import lower
from engine.lowering.missing_kernels import nodes_without_kernel
from engine.lowering.program_cache import load_or_lower
from engine.options import Options, config, user_cache_dir
from engine.records.session import Session
from engine.runtime.autotune import make_autotuner
from engine.session_jobs import stop_event_of
from engine.torch_private.entries import Feature, why_off

NOT_CACHED = "not saved to disk: autotuning selects the kernels, and the disk cache stores its measurements instead"


def target_of(options: Options) -> str:
    """Return the GPU target from the options, or that of this machine's GPU."""
    return options.target or default_target()


def lower_to_program(
    graph: AotGraph,
    options: Options,
    session: Session | None,
    forced_fallbacks: Mapping[str, str],
    *,
    on_gpu: bool,
    find_tuning: FindTuning | None = None,
) -> LoweredProgram:
    """Return a graph's program.

    ``forced_fallbacks``: nodes that ATen must run, with reasons. ``find_tuning``: replaces the tunings that are
    stored; the program is then not read from disk.
    """
    fused_random = bool(options.extra.get("fused_random", False))
    forced_fallbacks = {**nodes_without_kernel(graph), **forced_fallbacks}
    target, chooser = target_of(options), _template_chooser(options, session, on_gpu=on_gpu)
    is_tuned = on_gpu and options.templates == TEMPLATES_MEASURED
    make = functools.partial(
        lower,
        graph,
        target,
        print_triton,
        fused_random=fused_random,
        forced_fallbacks=forced_fallbacks,
        chooser=chooser,
        candidate_blockings=candidate_blockings if is_tuned else None,
        find_tuning=find_tuning or stored_tunings(target),
    )
    if find_tuning is not None or not config.disk_cache or why_off(Feature.DISK_CACHE):
        return make()
    if is_tuned:
        program = make()
        return replace(program, record=replace(program.record, cache=NOT_CACHED))
    if reason := graph.passes.why_not_on_disk:
        program = make()
        return replace(program, record=replace(program.record, cache=f"not saved to disk: {reason}"))
    chosen = (target, type(chooser).__name__, tunings_key())
    settings = (graph.passes.key, *chosen, dict(forced_fallbacks), dict(options.extra))
    store = DiskStore(user_cache_dir() / "lowered")
    return load_or_lower(graph, make, store, settings, fused_random=fused_random, with_reference=session is not None)


def _template_chooser(options: Options, session: Session | None, *, on_gpu: bool) -> TemplateChooser:
    """Return the policy that chooses between templates and library calls.

    Without a GPU nothing is timed, so the choice is deterministic.
    """
    if options.templates == TEMPLATES_ALWAYS:
        return AlwaysTemplateChooser()
    if not on_gpu or options.templates == TEMPLATES_NEVER:
        return LIBRARY_CHOOSER
    if options.templates != TEMPLATES_MEASURED:
        return FewRowsChooser()
    store = DiskStore(user_cache_dir() / "tuned")
    if session is None:
        return make_autotuner(store, lambda sentence: None, None)
    return make_autotuner(store, session.set_stage, stop_event_of(session))
