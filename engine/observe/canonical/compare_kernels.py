"""Kernels of one function in two sessions, paired by the operations that they fuse."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from engine.records.counts import unique_kernels
from engine.records.session_comparison import AspectComparison, KernelPair
from engine.records.session_data import CompilationRecord

_NUMBER = re.compile(r"_?\d+$")
_COMMENT = re.compile(r"[#;] .*")
_WORD = re.compile(r"%?[A-Za-z_][\w.]*")
_VARIABLES = re.compile(r"(%[\w.]+)|^ *(\w+) = |(\w+_ptr)\b|^def (\w+)", re.MULTILINE)
"""Variables of LLVM IR; variables, pointers and the function of Triton."""

Operations = Counter[str]
FusedKernel = tuple[str, Operations]


def compare_kernel_lists(
    before: tuple[CompilationRecord, ...], after: tuple[CompilationRecord, ...], *, with_text: bool = False
) -> AspectComparison:
    """Return the aspect "kernels": what one kernel fuses on one side only.

    A kernel's name does not count, because each compiler generates names in its own way. ``with_text`` compares kernels
    that fuse the same line by line: one may be edited.
    """
    old, new = _fused_kernels(before), _fused_kernels(after)
    texts = [Counter(_text(operations) for _, operations in side) for side in (old, new)]
    changed = tuple((texts[0] - texts[1]).elements()), tuple((texts[1] - texts[0]).elements())
    if with_text and not any(changed):
        changed = _changed_lines(before, after)
    return AspectComparison("kernels", str(len(old)), str(len(new)), *changed)


def _lines_of_kernels(compilations: tuple[CompilationRecord, ...]) -> list[tuple[str, str]]:
    """Return the lines of all kernels: each in a normal form, then as it is.

    The normal form has no comment, and numbers variables in the order in which they appear.
    """
    return [
        (f"{number}: {normal}", f"{kernel.id}: {line.strip()}")
        for number, kernel in enumerate(k for c in compilations for k in (*c.cpu_kernels, *unique_kernels(c)))
        for normal, line in zip(_normal_lines(kernel.text), kernel.text.split("\n"), strict=True)
    ]


def _normal_lines(text: str) -> list[str]:
    plain = _COMMENT.sub("", text)
    names = {name for match in _VARIABLES.finditer(plain) for name in match.groups() if name}
    numbers: dict[str, str] = {}

    def number(word: re.Match[str]) -> str:
        return numbers.setdefault(word[0], f"v{len(numbers)}") if word[0] in names else word[0]

    return [line.strip() for line in _WORD.sub(number, plain).split("\n")]


def _changed_lines(
    before: tuple[CompilationRecord, ...], after: tuple[CompilationRecord, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines of kernels that only one side has; all, if only their order differs."""
    old, new = _lines_of_kernels(before), _lines_of_kernels(after)
    if [normal for normal, _ in old] == [normal for normal, _ in new]:
        return (), ()
    known = [{normal for normal, _ in side} for side in (new, old)]
    left, right = (tuple(t for n, t in side if n not in k) for side, k in zip((old, new), known, strict=True))
    return (left, right) if left or right else (tuple(t for _, t in old), tuple(t for _, t in new))


def pair_kernels(before: tuple[CompilationRecord, ...], after: tuple[CompilationRecord, ...]) -> tuple[KernelPair, ...]:
    """Return the kernels side by side: equal ones first, then by common operators."""
    left = _fused_kernels(after)
    pairs, rest = [], []
    for name, operations in _fused_kernels(before):
        equal = next((other for other in left if other[1] == operations), None)
        if equal is None:
            rest.append((name, operations))
        else:
            left.remove(equal)
            pairs.append(_kernel_pair((name, operations), equal))
    for kernel in rest:
        nearest = max(left, key=lambda other: (kernel[1] & other[1]).total(), default=None)
        if nearest is not None and (kernel[1] & nearest[1]).total():
            left.remove(nearest)
            pairs.append(_kernel_pair(kernel, nearest))
        else:
            pairs.append(_kernel_pair(kernel, ("", Counter())))
    return (*pairs, *(_kernel_pair(("", Counter()), kernel) for kernel in left))


def _kernel_pair(first: FusedKernel, second: FusedKernel) -> KernelPair:
    return KernelPair(first[0], second[0], _text(first[1]), _text(second[1]))


def _fused_kernels(compilations: tuple[CompilationRecord, ...]) -> list[FusedKernel]:
    return [kernel for c in compilations for kernel in _fused_kernels_of(c)]


def _fused_kernels_of(compilation: CompilationRecord) -> Iterator[FusedKernel]:
    kernels = unique_kernels(compilation)
    if not kernels:
        return
    operators = {n.id: n.target for g in compilation.graphs for n in g.nodes}
    for kernel in kernels:
        fused = Counter(_operator(operators[n]) for n in kernel.fused_nodes if n in operators)
        yield kernel.name, fused or Counter([_NUMBER.sub("", kernel.name)])


def _operator(target: str) -> str:
    """Return an operator's name alone: ``aten.sum.dim_IntList`` is ``sum``."""
    parts = target.removeprefix("torch.ops.").split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else parts[-1]


def _text(operations: Operations) -> str:
    return ", ".join(op if n == 1 else f"{op} × {n}" for op, n in sorted(operations.items()))
