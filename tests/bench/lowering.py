"""Measure lowering of GPT-2 small to kernels and machine code.

``python -m tests.bench.lowering`` also compares memory traffic with Inductor's, and measures how much code
has a source line.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten

F = nn.functional
TARGET = "cuda:90"


class Block(nn.Module):
    """One block of GPT-2 small."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and a feed-forward network, each beside the residual."""
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).split(width, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        found: torch.Tensor = x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))
        return found


class Gpt2(nn.Module):
    """GPT-2 small: twelve blocks, 768 wide, 50,257 words."""

    def __init__(self, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next words."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.last(x) @ self.words.weight.t()
        return logits


def program_of(model: nn.Module, *args: torch.Tensor) -> tuple[LoweredProgram, float]:
    """Lower a model's inference graph, with parameters as inputs; also return the seconds."""
    parameters = dict(model.named_parameters())

    def run(*values: torch.Tensor) -> Any:
        given = dict(zip(parameters, values, strict=False))
        return torch.func.functional_call(model, given, values[len(given) :])

    graph = trace_to_aten(run, (*parameters.values(), *args))
    start = time.perf_counter()
    program = lower(graph, TARGET, print_triton)
    return program, time.perf_counter() - start


def distinct(program: LoweredProgram) -> list[GeneratedKernel]:
    """Kernels, each text once."""
    return list({k.id: k for k in program.kernels}.values())


def gpt2_seconds() -> None:
    """Measure lowering and cross-compiling a GPT-2 small forward on one core.

    Also reports seconds of processor time, for busy machines.
    """
    with torch.no_grad():
        program, lowering = program_of(Gpt2().eval(), torch.randint(0, 50257, (1, 128)))
    kernels, start, before = distinct(program), time.perf_counter(), _busy()
    failed = sum(bool(compile_kernel(kernel, TARGET).error) for kernel in kernels)
    compiling, busy = time.perf_counter() - start, _busy() - before
    print(
        f"GPT-2 small: {len(program.kernels)} launches of {len(kernels)} kernels; to text {lowering:.1f} s, to machine code {compiling:.1f} s"
        f" ({busy:.1f} s of the processor), together {lowering + compiling:.1f} s (floor 20 s); {failed} failed"
    )


def _busy() -> float:
    """Seconds of the processor that this process and those it waited for have had."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def linked(kernels: list[GeneratedKernel], stages: tuple[str, ...] = ("ptx", "sass")) -> dict[str, Counter[str]]:
    """Count instructions by stage: linked to user code, labelled, and all but padding.

    An instruction is linked when it reaches an ATen node and with it a line of the user's code.
    """
    found: dict[str, Counter[str]] = {stage: Counter() for stage in stages}
    for kernel in kernels:
        origins = {op.id: op.origins for op in kernel.ops}
        reaching = [any(origins.get(op) for op in ops) for ops in kernel.line_ops]
        for listing in compile_kernel(kernel, TARGET).listings:
            if listing.stage not in found:
                continue
            for link in listing.links:
                if link.label == "generated: padding":
                    continue
                found[listing.stage]["all"] += 1
                if link.triton_line and reaching[link.triton_line - 1]:
                    found[listing.stage]["user"] += 1
                elif link.triton_line:
                    found[listing.stage]["kernel"] += 1
                else:
                    found[listing.stage][link.label] += 1
    return found


def provenance() -> None:
    """How much machine code of the tour's first cell has a line of the user's."""
    case = CASES["masked_softmax_layer_norm"]
    program = lower(trace_to_aten(case.function, case.args()), TARGET, print_triton)
    for stage, counts in linked(distinct(program)).items():
        total = counts.pop("all")
        parts = ", ".join(f"{name or 'nothing'} {count / total:.1%}" for name, count in counts.most_common())
        print(f"{stage} of the tour's kernels, {total} instructions: {parts}")


def bytes_moved() -> None:
    """Compare the bytes a GPT block reads and writes with Inductor's own count.

    Library calls are left out. Inductor counts the bytes for its own kernels.
    """
    from torch._inductor import compile_fx, config, metrics

    compile_fx.inductor_metrics_log.setLevel(logging.INFO)  # without it nothing is counted
    compile_fx.inductor_metrics_log.propagate = False

    block, x = Block().eval(), torch.randn(4, 256, 768)
    with torch.no_grad():
        program, _ = program_of(block, x)
        ours = sum(k.bytes_moved or 0 for k in program.kernels)
        torch._dynamo.reset()
        metrics.reset()
        with config.patch(fx_graph_cache=False):
            run: Callable[..., Any] = torch.compile(block)
            run(x)
    kernels = _inductor_kernels(metrics)
    print(
        f"a GPT block: {ours / 1e6:.1f} MB by {len(program.kernels)} kernels, inductor {kernels / 1e6:.1f} MB; ratio {ours / kernels:.2f}"
    )


def _inductor_kernels(metrics: Any) -> int:
    """Bytes of inductor's own kernels, without its library calls."""
    own = (count for node, count in metrics.nodes_num_elem if type(node).__name__ != "ExternKernelSchedulerNode")
    return 4 * int(sum(own))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["gpt2", "provenance", "bytes"])
    options = parser.parse_args()
    parts = {"gpt2": gpt2_seconds, "provenance": provenance, "bytes": bytes_moved}
    with tempfile.TemporaryDirectory(prefix="bench-lowering-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # nothing is found there
        for part in options.parts:
            parts[part]()


if __name__ == "__main__":
    main()
