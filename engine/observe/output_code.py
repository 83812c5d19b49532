"""Reads Inductor's output code: one module of Python around kernels in Triton or C++."""

from __future__ import annotations

import re

from engine.records.kernels import KernelRecord
from engine.records.lowering import ExternCall, LoweringRecord

_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<maker>\w+)\((?P<head>.*?)(?P<quote>r?'''|r?\"\"\")(?P<text>.*?)(?:'''|\"\"\")",
    re.MULTILINE | re.DOTALL,
)
_EXTERN = re.compile(r"^\s+(?:\w+ = )?(?P<op>extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.MULTILINE)
_ORIGINS = re.compile(r"Original ATen: \[(?P<ops>[^\]]*)\]")
LANGUAGES = {"triton": "triton", "multi_kernel": "triton", "triton_heuristics": "triton"}


def read_kernels(text: str, *, first: int = 0) -> tuple[KernelRecord, ...]:
    """The kernels in an output-code module, numbered from ``first``."""
    return tuple(
        KernelRecord(
            f"k{first + index}", match["name"], match["text"].strip("\n"), language=LANGUAGES.get(match["maker"], "cpp")
        )
        for index, match in enumerate(_KERNEL.finditer(text))
    )


def read_lowering(text: str, compilation: str) -> LoweringRecord:
    """Library calls, and the program around the kernels (the kernels' own text cut to a line each)."""
    wrapper = _KERNEL.sub(
        lambda m: f"{m['name']} = async_compile.{m['maker']}(...  # {len(m['text'].splitlines())} lines", text
    )
    calls = tuple(
        ExternCall(f"aten:{compilation}:{match['op']}", match["op"], "Inductor calls the library here", is_library=True)
        for match in _EXTERN.finditer(wrapper)
    )
    return LoweringRecord(target="", externs=calls, wrapper_text=wrapper)
