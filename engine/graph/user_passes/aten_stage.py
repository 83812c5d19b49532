"""Run passes of users on functional ATen graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from engine.graph.passes.recorder import PASS_RECORDS_KEY, PassRecorder
from engine.graph.user_passes.fake_run import GraphFacts, mode_of, number_of_assumptions
from engine.graph.user_passes.run_passes import PassStage, run_user_passes
from engine.ir.node_values import map_tensors
from engine.ir.pass_set import PASS_STAGES, Compare, OrderedPass, PassSet, UserPass, ordered


def run_aten_stage(
    watch: PassRecorder, passes: Iterable[UserPass], compare: Compare | None, *, may_assume: bool = False
) -> None:
    """Run passes on the recorder's functional graph.

    Values are compared on random inputs with the shapes of the graph's inputs. ``may_assume``: the caller adds
    guards for new assumptions about symbolic sizes.

    Raises:
        NotImplementedError: checking a pass assumed more about symbolic sizes than the guards check.
    """
    passes = tuple(passes)
    if not passes:
        return
    module = watch.module
    mode = mode_of(module, "val")
    inputs = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
    facts = None if mode is None else GraphFacts(mode, "val", lambda: inputs)
    num_assumptions = 0 if mode is None else number_of_assumptions(mode)
    run_user_passes(watch, passes, PassStage(facts, True, compare, lambda: random_inputs(inputs)))
    if mode is not None and not may_assume and number_of_assumptions(mode) != num_assumptions:
        raise NotImplementedError("a registered pass assumes more about sizes than the guards check")


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


def random_inputs(fakes: Sequence[Any]) -> tuple[Any, ...]:
    """Return real inputs like fake ones: random floats, small integers, the hints of symbols."""
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(0)
        tensors = map_tensors(_random_tensor, fakes)
    finally:
        torch.random.set_rng_state(state)
    return tuple(map(_hint, tensors))


def _hint(value: Any) -> Any:
    """Return the size hint of a symbol; other values unchanged."""
    return getattr(getattr(value, "node", None), "hint", value)


def _random_tensor(fake: torch.Tensor) -> torch.Tensor:
    shape, stride = (tuple(map(_hint, v)) for v in (fake.shape, fake.stride()))
    tensor = torch.empty_strided(shape, stride, dtype=fake.dtype, device=fake.device)
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        return tensor.copy_(torch.randn(shape, dtype=torch.float32).to(fake.dtype))
    return tensor.copy_(torch.randint(0, 2, shape))
