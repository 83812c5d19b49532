"""Define the measured subjects: a small function, a throw-away model and the small GPT.

The function takes two small tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.programs.models.small_models import Gpt


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The smallest useful work, so that what surrounds it shows."""
    return a + b


def two_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments of ``add``."""
    return torch.ones(8), torch.ones(8)


def small_gpt() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A GPT of two blocks, width 16, and a batch of 2 sequences of 8 tokens."""
    torch.manual_seed(0)
    return Gpt().eval(), (torch.randint(0, 37, (2, 8)),)


def gpt2() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Make transformers' GPT-2 with twelve layers and width 32.

    All its parameters and modules are guarded.
    """
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    sizes = {"n_layer": 12, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    config = GPT2Config(**sizes, attn_implementation="eager", bos_token_id=None, eos_token_id=None)
    return GPT2Model(config).eval(), (torch.randint(0, 100, (1, 8)),)


def idle(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """Act as a backend that runs each graph once and then returns the same results.

    This leaves dispatch, guards and generated code to be measured.
    """
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        if not kept:
            kept.append(graph(*args))
        return kept[0]

    return run


def throw_away() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Make another model with similar operators, compiled first to warm up the toolchains.

    It also warms up the imports.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.LayerNorm(12), torch.nn.Softmax(-1)
    ).eval()
    return model, (torch.randn(3, 6),)


def compilers() -> dict[str, Callable[[Any], Any]]:
    """Every way to compile that is compared, by the name it has in the table."""
    import engine

    return {
        "engine eager": lambda target: engine.compile(target, backend="eager"),
        "engine triton": lambda target: engine.compile(target, backend="triton"),
        "torch eager": lambda target: torch.compile(target, backend="eager"),
        "torch inductor": lambda target: torch.compile(target, backend="inductor"),
    }
