"""Golden pairs of the partitioner: values saved by the forward or recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.golden.pairs import Pair, compile_and_run, graph_of, in_order, shows

Tensor = torch.Tensor
Show = Callable[..., None]


@pytest.fixture
def show(pair: Pair) -> Show:
    """Write the pair of a differentiated function.

    The parts are the joint graph, the forward, the backward and the saved values.
    """

    def write(function: Callable[..., Any], *args: Any, inside: Sequence[Any] = (), **options: Any) -> None:
        record, _ = compile_and_run(function, *args, backend="aot_eager", **options)
        after = ["forward:", *graph_of(record, "forward"), "", "backward:", *graph_of(record, "backward")]
        assert record.aot is not None
        assert record.aot.partition is not None
        values = [
            f"{v.name} {v.action}, {v.unknown_bytes or format(v.bytes, ',')} bytes: {v.reason}"
            for v in record.aot.partition.values
            # whether the forward already reads a size that only the backward needs is up to torch's tracer
            if (v.action, v.reason) != ("recomputed", "a number computed from sizes")
        ]
        before, after, values = in_order(graph_of(record, "joint"), after, values)
        pair((*inside, function), before=before, after=after, saved_or_recomputed=values)

    return write


@shows("engine/aot/partitioner/partition.py", "engine/aot/partitioner/min_cut.py")
def test_min_cut(show: Show) -> None:
    """Splits the joint graph where the values saved for backward take the least memory.

    Here one byte for each element is saved instead of two floats: the backward reads only the mask.
    """

    def f(x: Tensor) -> Tensor:
        return torch.where(x > 0, x * 2, x * 3)

    show(f, torch.ones(64, 64, requires_grad=True))


@shows("engine/aot/partitioner/partition.py", "engine/aot/partitioner/recompute.py")
def test_recompute(show: Show) -> None:
    """Recomputes cheap values in the backward if that saves memory.

    Here only the input is saved.
    """

    def f(x: Tensor) -> Tensor:
        return x.sin().cos().exp()

    show(f, torch.ones(64, 64, requires_grad=True))


@shows("engine/aot/partitioner/recompute.py")
def test_matmul_is_not_recomputed(show: Show) -> None:
    """Saves the result of a matmul instead of recomputing it.

    Recomputing takes longer than reading it.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).tanh().sin()

    show(f, torch.ones(64, 64), torch.ones(64, 64, requires_grad=True))


@shows("engine/aot/partitioner/partition.py")
def test_small_parameters_are_cloned(show: Show) -> None:
    """Clones a small parameter from which the backward recomputes a large value.

    Here the bias of a norm: eager does not save it, and an optimizer may change it before the backward.
    """

    def f(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 2, weight, bias))

    parameters = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    show(f, torch.ones(4, 8, 64, 64, requires_grad=True), *parameters)


@shows("engine/aot/saved_tensors.py", "engine/aot/partitioner/partition.py")
def test_saved_sizes(show: Show) -> None:
    """Symbolic sizes that the backward needs are saved as numbers beside the tensors."""

    def f(x: Tensor) -> Tensor:
        return x.sum()

    show(f, torch.ones(6, 4, requires_grad=True), dynamic=True)


@shows("engine/aot/partitioner/save_symbols.py")
def test_save_symbols(show: Show) -> None:
    """A size that the backward's inputs have only inside a sum is saved as a number."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x[x > 0], y]).exp().sum()

    show(f, torch.ones(6, requires_grad=True), torch.ones(8, requires_grad=True))


@shows("engine/aot/partitioner/pack_masks.py")
def test_pack_masks(show: Show) -> None:
    """A random mask of zeros and ones is saved as one byte per element instead of a float."""

    def f(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)

    show(f, torch.ones(64, 64, requires_grad=True))


@shows("engine/aot/partitioner/partition.py", "engine/graph/functionalize_rng.py")
def test_recompute_random(show: Show) -> None:
    """With recompute_random, the backward recomputes random numbers instead of saving them.

    It starts from the saved state of the generator.
    """

    def f(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5).cos()

    show(f, torch.ones(128, 128, requires_grad=True), options={"recompute_random": True})


@shows("engine/aot/partitioner/partition.py")
def test_activation_checkpoint(show: Show) -> None:
    """Saves no value inside an activation checkpoint, however long the recompute takes."""

    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).tanh()

    def f(x: Tensor, w: Tensor) -> Any:
        return checkpoint(block, x, w, use_reentrant=False)

    show(f, torch.ones(64, 64, requires_grad=True), torch.ones(64, 64), inside=(block,))


@shows("engine/aot/partitioner/selective_checkpoint.py")
def test_selective_checkpoint(show: Show) -> None:
    """Follows the user's policy of a selective checkpoint for each operator.

    Values that the policy says to save are saved; the rest is recomputed.
    """

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saves = op is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.MUST_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy)

    def block(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).tanh().sin()

    def f(x: Tensor, w: Tensor) -> Any:
        return checkpoint(block, x, w, use_reentrant=False, context_fn=contexts)

    show(f, torch.ones(64, 64, requires_grad=True), torch.ones(64, 64), inside=(policy, block))
