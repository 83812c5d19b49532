"""Compare GPT-2 small on the local GPU with torch.compile.

``python -m tests.bench.gpt [train] [infer]`` measures a training step and inference on one row of 16 tokens.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda model: model,
    "engine": lambda model: _engine(model, options={"mode": "default"}),
    "engine, recorded": lambda model: _engine(model, options={"mode": "reduce-overhead"}),
    "engine, tuned": lambda model: _engine(model, options={"mode": "max-autotune"}),
    "torch": torch.compile,
    "torch, recorded": lambda model: torch.compile(model, mode="reduce-overhead"),
}


def _engine(model: Any, **options: Any) -> Any:
    import engine

    return engine.compile(model, **options)


def gpt2() -> Any:
    """GPT-2 small with a language model's head, random weights, no dropout."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config).cuda()
    model.loss_type = "ForCausalLM"  # else transformers warns, through a logger, in the middle of the forward
    return model


def training(model: Any, call: Any) -> Callable[[], torch.Tensor]:
    """One step over 8 rows of 512 tokens under bf16 autocast: loss and gradients."""
    tokens = torch.randint(0, 50257, (8, 512), device="cuda")

    def step() -> torch.Tensor:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss: torch.Tensor = call(tokens, labels=tokens).loss
        loss.backward()
        return loss.detach()

    return step


def inference(model: Any, call: Any) -> Callable[[], torch.Tensor]:
    """Logits of one row of 16 tokens in bf16."""
    model.eval().bfloat16()
    tokens = torch.randint(0, 50257, (1, 16), device="cuda")

    def step() -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = call(tokens, use_cache=False).logits
        return logits

    return step


def milliseconds(steps: dict[str, Callable[[], Any]], rounds: int = 40) -> dict[str, float]:
    """Return the median wall time of each step, including the GPU's work.

    The steps take turns, so that other load on the machine affects all of them equally.
    """
    times: dict[str, list[float]] = {way: [] for way in steps}
    for number in range(10 + rounds):
        for way, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            if number >= 10:
                times[way].append(time.perf_counter() - start)
    return {way: statistics.median(took) * 1e3 for way, took in times.items()}


def measure(model: Any, subject: str, ways: list[str]) -> None:
    """Print each variant's milliseconds, relative peak memory and first-step seconds.

    Peak memory is relative to the first variant.
    """
    torch._dynamo.reset()
    make = {"train": training, "infer": inference}[subject]
    steps: dict[str, Callable[[], Any]] = {}
    told: dict[str, tuple[float, float, float]] = {}
    wanted = 0.0
    for way in ways:
        one = copy.deepcopy(model)
        torch.manual_seed(1)
        before = torch.cuda.memory_allocated() - sum(p.nbytes for p in one.parameters())
        step = make(one, WAYS[way](one))
        start = time.perf_counter()
        last = step().float().mean().item()
        cold = time.perf_counter() - start
        wanted = wanted if steps else last
        for _ in range(8):
            last = step().float().mean().item()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = (torch.cuda.max_memory_allocated() - before) / 1e6
        told[way], steps[way] = (peak, cold, abs(last - wanted)), step
    print(f"{subject:<20}{'ms':>9}{'peak MB':>9}{'of first':>9}{'cold s':>8}", flush=True)
    first = told[ways[0]][0]
    for way, took in milliseconds(steps).items():
        peak, cold, off = told[way]
        print(f"{way:<20}{took:>9.3f}{peak:>9.0f}{peak / first:>9.2f}{cold:>8.1f}  off by {off:.1e}", flush=True)


def main() -> None:
    """Measure each subject in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", default=["train", "infer"])
    parser.add_argument("--ways", default=";".join(WAYS), help="which, separated by semicolons")
    options = parser.parse_args()
    model = gpt2()
    for subject in options.subjects:
        measure(model, subject, options.ways.split(";"))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
