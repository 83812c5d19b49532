"""Measure Apply in the Edit view: seconds from a kernel's edited text to its pane.

``python -m tests.bench.apply`` prints the median over the kernels of the two-block GPT, and each kernel with ``-v``.
The editor's answer is the last step before the pane is painted.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import engine
from engine import session_jobs
from engine.editing.edit_kernels import editable_kernels
from engine.records.kernels import KernelRecord
from engine.records.session import Session
from notebook_ext.replay.edit_stages import StageEditor
from tests.bench.subjects import small_gpt

LIMITS = {"CPU": 0.3, "Triton": 1.5, "Triton, products and attention": 5.0}
"""Seconds that the median of each kind may take."""
PRODUCTS = ("tl.dot",)


def recorded() -> Session:
    """A call of the GPT with all of its kernels, compiled and with their inputs."""
    model, inputs = small_gpt()
    with engine.record() as session:
        engine.compile(model.eval())(*inputs)
    session_jobs.wait(session, 600)
    return session


def kind_of(kernel: KernelRecord) -> str:
    """The name of the limit of a kernel."""
    if kernel.language == "llvm":
        return "CPU"
    return "Triton, products and attention" if any(word in kernel.text for word in PRODUCTS) else "Triton"


def edited(text: str, kernel: KernelRecord) -> str:
    """The text with a new comment in the body: it was not compiled before."""
    mark = "; edited" if kernel.language == "llvm" else "    # edited"
    lines = text.rstrip().splitlines()
    last = max(n for n, line in enumerate(lines) if line.strip() and line.strip() != "}")
    return "\n".join([*lines[:last], f"{mark} {time.monotonic_ns()}", *lines[last:]]) + "\n"


def measure(session: Session) -> dict[tuple[str, str], tuple[str, float, str]]:
    """Kind, seconds and sentence of each kernel, by compilation and id."""
    editor, found = StageEditor(session), {}
    for compilation in session.compilations:
        for kernel in editable_kernels(compilation):
            opened = editor.answer("open", compilation.id, kernel.id, "")["text"]
            editor.prepare(compilation.id, opened)  # as the explorer does after it has shown the text
            text = edited(opened, kernel)
            if not found:
                editor.answer("apply", compilation.id, kernel.id, text)  # waits for the worker, which opening starts
                text = edited(text, kernel)
            start = time.perf_counter()
            answer = editor.answer("apply", compilation.id, kernel.id, text)
            json.dumps(answer)
            took = time.perf_counter() - start
            found[compilation.id, kernel.id] = kind_of(kernel), took, answer["trial"]["sentence"]
    return found


def main(arguments: list[str]) -> None:
    """Print the medians beside their limits."""
    found = measure(recorded())
    for (compilation, kernel), (kind, took, sentence) in found.items() if "-v" in arguments else ():
        print(f"  {compilation} {kernel:<6}{kind:<32}{took:>7.2f} s  {sentence}")
    for kind, limit in LIMITS.items():
        times = [took for known, took, _ in found.values() if known == kind]
        middle = statistics.median(times) if times else float("nan")
        print(f"{kind:<32}{len(times):>4} kernels, median {middle:.2f} s, limit {limit} s")


if __name__ == "__main__":
    main(sys.argv[1:])
