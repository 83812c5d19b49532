"""Run the passes that users registered on the functional graph of a call."""

from __future__ import annotations

import torch.fx

from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.user_passes.aten_stage import run_aten_stage
from engine.ir.pass_set import PASS_STAGES, OrderedPass, PassSet, ordered


def run_aten_passes(module: torch.fx.GraphModule, passes: PassSet) -> torch.fx.GraphModule:
    """Return the functional or joint graph after the registered passes.

    Records of the passes are added to its ``meta``.
    """
    if not passes.at("aten"):
        return module
    watch = PassRecorder(module)
    order: list[OrderedPass] = ordered(passes.at("aten"), PASS_STAGES["aten"])
    run_aten_stage(watch, (p.of_user for p in order if p.of_user is not None), passes.compare, may_assume=True)
    watch.module.meta[PASS_RECORDS_KEY] = (*module.meta.get(PASS_RECORDS_KEY, ()), *watch.records)
    return watch.module
