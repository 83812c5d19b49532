"""Parser of Inductor's output code: Triton or C++ kernels, and extern calls."""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.observe.lazy_records import LazyKernel, LazyLowering
from engine.observe.trace_payloads import InMemoryPayload, Payload, PayloadSlice
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord

_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<maker>\w+)\((?P<head>[^\n]{0,20000}?)(?P<quote>r?'''|r?\"\"\")(?P<text>.*?)(?:'''|\"\"\")",
    re.MULTILINE | re.DOTALL,
)
_EXTERN = re.compile(r"^\s+(?:\w+ = )?(?P<op>extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\(", re.MULTILINE)
_GRAPH_FRAGMENT = re.compile(r"^# +%(?P<name>\w+) ?:.*= (?:call_function|call_method|get_attr)\[", re.MULTILINE)
KERNEL_LANGUAGES = {"triton": "triton", "multi_kernel": "triton", "triton_heuristics": "triton"}


def parse_kernels(
    text: str, *, first: int = 0, payload: Payload | None = None, prefix: str = ""
) -> tuple[KernelRecord, ...]:
    """Return the kernels in an output-code module, with ids from ``first`` on.

    A kernel's text is read from ``payload`` on access. Its fused nodes are those in the comment above it,
    with ids that start with ``prefix``.
    """
    whole = payload or InMemoryPayload(text)
    found: list[KernelRecord] = []
    end = 0
    for match in _KERNEL.finditer(text):
        nodes = tuple(dict.fromkeys(prefix + name for name in _fused_node_names(text, end, match.start())))
        kernel = LazyKernel(
            f"k{first + len(found)}",
            match["name"],
            PayloadSlice(whole, match.start("text"), match.end("text")),
            KERNEL_LANGUAGES.get(match["maker"], "cpp"),
            nodes,
        )
        found.append(kernel)
        end = match.end()
    return tuple(found)


def _fused_node_names(text: str, start: int, end: int) -> Iterator[str]:
    """Yield the names of the graph nodes in the comment above a kernel."""
    comment = text[max(start, end - 100_000) : end]
    last = comment.rfind("\n\n")
    yield from (m["name"] for m in _GRAPH_FRAGMENT.finditer(comment, max(last, 0)))


def with_fused_nodes(kernel: KernelRecord, nodes: tuple[str, ...]) -> KernelRecord:
    """Return the kernel with its fused nodes, unless it already has some."""
    if not nodes or kernel.fused_nodes or not isinstance(kernel, LazyKernel):
        return kernel
    return LazyKernel(kernel.id, kernel.name, kernel.payload, kernel.language, nodes)


def parse_lowering(
    text: str, *, payload: Payload | None = None, before: LoweringRecord | None = None
) -> LoweringRecord:
    """Return extern calls and the wrapper program, in which each kernel is one line.

    ``before`` is the forward's record, if this is a backward's code.
    """
    calls = tuple(
        ExternCall("", match["op"], "Inductor calls the library here", is_library=True)
        for match in _EXTERN.finditer(elide_kernel_text(text))
    )
    earlier = before.payloads if isinstance(before, LazyLowering) else ()
    known = before.externs if before is not None else ()
    return LazyLowering((*known, *calls), (*earlier, payload or InMemoryPayload(text)), elide_kernel_text)


def elide_kernel_text(text: str) -> str:
    """Return an output-code module with each kernel's text replaced by one line."""
    return _KERNEL.sub(
        lambda m: f"{m['name']} = async_compile.{m['maker']}(...  # {len(m['text'].splitlines())} lines", text
    )
