"""Reads Inductor's output code: one module of Python around kernels in Triton or C++."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.observe.payloads import Held, Part, Payload
from engine.observe.stored import StoredKernel, StoredLowering
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord

_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<maker>\w+)\((?P<head>[^\n]{0,20000}?)(?P<quote>r?'''|r?\"\"\")(?P<text>.*?)(?:'''|\"\"\")",
    re.MULTILINE | re.DOTALL,
)
_EXTERN = re.compile(r"^\s+(?:\w+ = )?(?P<op>extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\(", re.MULTILINE)
_FRAGMENT = re.compile(r"^# +%(?P<name>\w+) ?:.*= (?:call_function|call_method|get_attr)\[", re.MULTILINE)
LANGUAGES = {"triton": "triton", "multi_kernel": "triton", "triton_heuristics": "triton"}


def read_kernels(
    text: str, *, first: int = 0, payload: Payload | None = None, prefix: str = ""
) -> tuple[KernelRecord, ...]:
    """The kernels in an output-code module, numbered from ``first``.

    A kernel's text is read again from ``payload`` when it is looked at. The nodes fused into it are those that the comment above it
    names, under ids that begin with ``prefix``.
    """
    whole = payload or Held(text)
    found: list[KernelRecord] = []
    end = 0
    for match in _KERNEL.finditer(text):
        nodes = tuple(dict.fromkeys(prefix + name for name in _fragment(text, end, match.start())))
        kernel = StoredKernel(
            f"k{first + len(found)}",
            match["name"],
            Part(whole, match.start("text"), match.end("text")),
            LANGUAGES.get(match["maker"], "cpp"),
            nodes,
        )
        found.append(kernel)
        end = match.end()
    return tuple(found)


def _fragment(text: str, start: int, end: int) -> Iterator[str]:
    """Names of the graph nodes in the comment that ends where a kernel begins."""
    comment = text[max(start, end - 100_000) : end]
    last = comment.rfind("\n\n")
    yield from (m["name"] for m in _FRAGMENT.finditer(comment, max(last, 0)))


def with_nodes(kernel: KernelRecord, nodes: tuple[str, ...]) -> KernelRecord:
    """The kernel with the nodes fused into it, unless it knows them."""
    if not nodes or kernel.fused_nodes or not isinstance(kernel, StoredKernel):
        return kernel
    return StoredKernel(kernel.id, kernel.name, kernel.payload, kernel.language, nodes)


def read_lowering(
    text: str, compilation: str, *, payload: Payload | None = None, before: LoweringRecord | None = None
) -> LoweringRecord:
    """Library calls, and the program around the kernels (the kernels' own text cut to a line each); ``before`` is the forward's, for a backward's code."""
    calls = tuple(
        ExternCall(f"aten:{compilation}:{match['op']}", match["op"], "Inductor calls the library here", is_library=True)
        for match in _EXTERN.finditer(shortened(text))
    )
    earlier = before.payloads if isinstance(before, StoredLowering) else ()
    known = before.externs if before is not None else ()
    return StoredLowering((*known, *calls), (*earlier, payload or Held(text)), shortened)


def shortened(text: str) -> str:
    """An output-code module with each kernel's text cut to a line."""
    return _KERNEL.sub(
        lambda m: f"{m['name']} = async_compile.{m['maker']}(...  # {len(m['text'].splitlines())} lines", text
    )
