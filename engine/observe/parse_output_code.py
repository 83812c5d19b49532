"""Parser of Inductor's output code: Triton or C++ kernels, and extern calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from engine.observe.lazy_records import LazyKernel, LazyLowering
from engine.observe.trace_files import InMemoryPayload, Payload, PayloadSlice
from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord

_KERNEL_CALL = re.compile(r" = async_compile\.(?P<maker>\w+)\([^\n]{0,20000}?(?P<quote>'''|\"\"\")")
_EXTERN = re.compile(r"\n[ \t]+(?:\w+ = )?(?P<op>extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\(")
_GRAPH_FRAGMENT = re.compile(r"\n# +%(?P<name>\w+) ?:.*= (?:call_function|call_method|get_attr)\[")
KERNEL_LANGUAGES = {"triton": "triton", "multi_kernel": "triton", "triton_heuristics": "triton"}


def parse_kernels(
    text: str, *, first: int = 0, payload: Payload | None = None, prefix: str = ""
) -> tuple[KernelRecord, ...]:
    """Return the kernels in an output-code module, with ids from ``first`` on.

    A kernel's text is read from ``payload`` on access. Its fused nodes are those in the comment above it,
    with ids that start with ``prefix``.
    """
    whole = payload or InMemoryPayload(text)
    kernels: list[KernelRecord] = []
    end = 0
    for kernel in _kernel_texts(text):
        nodes = tuple(dict.fromkeys(prefix + name for name in _fused_node_names(text, end, kernel.head)))
        kernels.append(
            LazyKernel(
                f"k{first + len(kernels)}",
                kernel.name,
                PayloadSlice(whole, kernel.start, kernel.end),
                KERNEL_LANGUAGES.get(kernel.maker, "cpp"),
                nodes,
            )
        )
        end = kernel.end
    return tuple(kernels)


class _KernelText(NamedTuple):
    """A kernel in an output-code module: offsets of its assignment and of its text."""

    name: str
    maker: str
    head: int
    start: int
    end: int


def _kernel_texts(text: str) -> Iterator[_KernelText]:
    position = 0
    while call := _KERNEL_CALL.search(text, position):
        position = call.end()
        head = text.rfind("\n", 0, call.start()) + 1
        name, end = text[head : call.start()], text.find(call["quote"], position)
        if name.isidentifier() and end >= 0:
            yield _KernelText(name, call["maker"], head, position, end)
            position = end + len(call["quote"])


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
    earlier_calls = before.externs if before is not None else ()
    return LazyLowering((*earlier_calls, *calls), (*earlier, payload or InMemoryPayload(text)), elide_kernel_text)


def elide_kernel_text(text: str) -> str:
    """Return an output-code module with each kernel's text replaced by one line."""
    pieces: list[str] = []
    end = 0
    for kernel in _kernel_texts(text):
        lines = len(text[kernel.start : kernel.end].splitlines())
        pieces += text[end : kernel.head], f"{kernel.name} = async_compile.{kernel.maker}(...  # {lines} lines"
        end = kernel.end + 3  # after the closing quotes
    return "".join((*pieces, text[end:]))
