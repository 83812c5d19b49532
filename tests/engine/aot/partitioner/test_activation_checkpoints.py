"""The backward recomputes checkpointed activations with the forward's random numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import engine
from engine.records.aot import PartitionRecord


def block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Something worth recomputing."""
    return torch.sigmoid(x @ y).exp().tanh()


def dropping(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same with random numbers, drawn for memory in rows and in columns."""
    return F.dropout(torch.sigmoid(x @ y), 0.4, True) + F.dropout((y @ x).t(), 0.3, True)


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One checkpoint, random numbers before, inside and after it."""
    x = F.dropout(x.sin(), 0.2, True)
    return F.dropout(checkpoint(dropping, x, y, use_reentrant=False), 0.2, True)


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A checkpoint after another."""
    x = checkpoint(dropping, x, y, use_reentrant=False)
    return checkpoint(block, x.cos(), y, use_reentrant=False)


def _nested(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return checkpoint(dropping, x.cos(), y, use_reentrant=False).sin()


def nested(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A checkpoint inside of another."""
    return checkpoint(_nested, x, y, use_reentrant=False)


def _unread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.rand(3)
    return torch.rand_like(x) * x.exp() @ y + torch.randn(4) * torch.randint(0, 5, (4,))


def unread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Random numbers of several kinds, some of which nobody reads."""
    return checkpoint(_unread, x, y, use_reentrant=False)


def _writing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x + 3
    z.mul_(2).add_(y)
    return z.sin()


def writing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes in place inside, and to what a checkpoint was given afterwards."""
    z = x * 2
    out = checkpoint(_writing, z, y, use_reentrant=False)
    return out * out.detach().clone().add_(1)


def _pair(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = (x @ y).relu()
    return a, a.max(0).values, a.detach()


def several(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A checkpoint with several results, one of them outside of autograd."""
    return checkpoint(_pair, x, y, use_reentrant=False)


CASES: list[Callable[..., Any]] = [plain, twice, nested, unread, writing, several]


def _run(fn: Callable[..., Any]) -> tuple[Any, ...]:
    torch.manual_seed(1)
    x, y = (torch.randn(4, 4).requires_grad_() for _ in range(2))
    torch.manual_seed(2)
    out = fn(x, y)
    outs = out if isinstance(out, tuple) else (out,)
    sum(o.sum() for o in outs if o.requires_grad).backward()
    return (*outs, x.grad, y.grad, torch.rand(3))


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("fn", CASES, ids=lambda f: f.__name__)
def test_checkpoints_are_eager(fn: Callable[..., Any], backend: str) -> None:
    """Results, gradients and the random numbers drawn afterwards are eager's, in two calls."""
    engine.reset()
    run = engine.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        for expected, found in zip(_run(fn), _run(run), strict=True):
            torch.testing.assert_close(found, expected)


def _partition(fn: Callable[..., Any], *args: Any) -> PartitionRecord:
    engine.reset()
    with engine.record() as session:
        engine.compile(fn, backend="aot_eager")(*args)
    found = [c.aot.partition for c in session.compilations if c.aot is not None]
    assert found[0] is not None
    return found[0]


def test_what_stands_in_a_checkpoint_is_not_saved() -> None:
    """A checkpoint saves only its inputs and the random number state.

    The record says which values are recomputed and why.
    """
    x, y = (torch.randn(64, 64).requires_grad_() for _ in range(2))

    def kept(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return dropping(x, y)

    def again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropping, x, y, use_reentrant=False)

    saved = _partition(kept, x, y).saved_bytes
    partition = _partition(again, x, y)
    state = torch.get_rng_state().numel()
    assert partition.saved_bytes == 2 * state < saved
    rows = {v.name: v for v in partition.values}
    assert rows["mm"].action == "recomputed" and "checkpoint" in rows["mm"].reason
    assert rows["random_state"].action == "saved" and "random number state" in rows["random_state"].reason
    assert any("same random number state" in v.reason for v in partition.values if v.action == "recomputed")


def test_a_chain_of_checkpointed_blocks_keeps_what_is_between_them() -> None:
    """``checkpoint_sequential`` over three blocks saves two activations and matches eager."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU()) for _ in range(3)))

    def run(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint_sequential(net, 3, x, use_reentrant=False)
        return made

    x = torch.randn(4, 8)
    expected = torch.autograd.grad(run(x).sum(), list(net.parameters()))
    found = torch.autograd.grad(engine.compile(run, backend="aot_eager")(x).sum(), list(net.parameters()))
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f, e)
    saved = [v for v in _partition(run, x).values if v.action == "saved" and v.bytes]
    assert sum(v.bytes for v in saved) <= 2 * 4 * 8 * 4 + 2 * 4 * 8 * 4


def choose(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Products of matrices are saved."""
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def contexts() -> Any:
    """As users write them."""
    return create_selective_checkpoint_contexts(choose)


def _layers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(F.dropout((x @ y).tanh(), 0.3) @ y).exp()


def by_policy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A policy that is a function."""
    return checkpoint(_layers, x, y, use_reentrant=False, context_fn=contexts).sin()


def by_list(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A list of operators, in a partial function made inside."""
    chosen = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.tanh.default])
    return checkpoint(_layers, x, y, use_reentrant=False, context_fn=chosen).sin()


@pytest.mark.parametrize(
    ("fn", "saved", "again"), [(by_policy, "mm", "tanh"), (by_list, "tanh", "sigmoid")], ids=["policy", "list"]
)
def test_selective_checkpoints_save_what_their_policy_chooses(fn: Callable[..., Any], saved: str, again: str) -> None:
    """Selective checkpoints save the values that their policy chooses and recompute the rest.

    The record gives the policy as the reason. Results, gradients and random numbers are eager's.
    """
    engine.reset()
    run = engine.compile(fn, backend="aot_eager", fullgraph=True)
    for expected, found in zip(_run(fn), _run(run), strict=True):
        torch.testing.assert_close(found, expected)
    rows = {v.name: v for v in _partition(fn, *(torch.randn(64, 64).requires_grad_() for _ in range(2))).values}
    assert rows[saved].action == "saved" and "policy" in rows[saved].reason
    assert rows[again].action == "recomputed"


@pytest.mark.thorough
def test_gpt2_trains_with_checkpoints() -> None:
    """The ``transformers`` checkpointing option saves less memory.

    Gradients under dropout match eager.
    """
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16, attn_implementation="eager")
    torch.manual_seed(0)
    model = GPT2Model(config).train()
    words = torch.randint(0, 50, (2, 8))

    def losses(run: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        out = run(words, use_cache=False).last_hidden_state.square().sum()
        return [out, *torch.autograd.grad(out, list(model.parameters()))]

    saved = {}
    for on in (False, True):
        if on:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        engine.reset()
        expected = losses(model)
        with engine.record() as session:
            found = losses(engine.compile(model, backend="aot_eager"))
        for e, f in zip(expected, found, strict=True):
            torch.testing.assert_close(f, e)
        parts = [c.aot.partition for c in session.compilations if c.aot is not None]
        saved[on] = sum(p.saved_bytes for p in parts if p is not None)
    state = torch.get_rng_state().numel()
    assert saved[True] - 6 * state < saved[False]


class _Attending(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.kind = nn.Linear(8, 24), kind
        self.layer = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True) if kind == "recurrent" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of batch, length and 8 numbers each."""
        q, k, v = self.first(x.tanh())[:, None].chunk(3, -1)
        if self.layer is not None:
            return self.layer(v[:, 0].sin())[0].exp()  # type: ignore[no-any-return]
        p = 0.5 if self.kind == "dropping" else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)[:, 0].sin()


@pytest.mark.parametrize(
    ("kind", "saved"),
    [("attention", set()), ("dropping", {"random_state"}), ("recurrent", {"random_state", "getitem_3", "getitem_7"})],
)
def test_attention_and_recurrent_layers_stand_in_checkpoints(kind: str, saved: set[str]) -> None:
    """Checkpointed attention is recomputed as in eager.

    For operators that cannot be recomputed, only the results are saved, not everything in the call.
    """
    torch.manual_seed(0)
    layer, x = _Attending(kind), torch.randn(2, 5, 8)

    def again(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(layer, x, use_reentrant=False)
        return made.sum()

    engine.reset()
    found = []
    with engine.record() as session:
        for run in (again, engine.compile(again, backend="aot_eager")):
            torch.manual_seed(1)
            given = x.clone().requires_grad_()
            found.append(torch.autograd.grad(run(given), [given, *layer.parameters()], allow_unused=True))
    torch.testing.assert_close(*found)
    (partition,) = [c.aot.partition for c in session.compilations if c.aot is not None]
    assert partition is not None
    assert {v.name for v in partition.values if v.action == "saved" and v.bytes} <= saved
