"""Links each line of a listing to its Triton source line, or labels why it has none."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from engine.ir.kernels.compile_triton import CompileUnit
from engine.kernels import debug_locations
from engine.kernels.debug_locations import InlineChain, InlineFrame, InstructionLocation
from engine.records.kernels import LineLink, Listing

LOCATION_READERS: Mapping[str, Callable[[str], Iterator[InstructionLocation]]] = {
    "ttir": debug_locations.mlir_locations,
    "ttgir": debug_locations.mlir_locations,
    "llir": debug_locations.llvm_locations,
    "ptx": debug_locations.ptx_locations,
    "amdgcn": debug_locations.amdgcn_locations,
}

PADDING_LABEL = "generated: padding"
GENERATED_LABELS: tuple[tuple[str, str], ...] = (
    (r"NOP\b|s_nop\b|s_code_end\b", PADDING_LABEL),
    (r"(bar\.|barrier\.|BAR\.|s_barrier\b)", "generated: barrier"),
    (r"(ret;|EXIT\b|s_endpgm\b|ret void)", "generated: return"),
    (r"(ld\.param|U?LDC\b|s_load_dword|S2U?R\b)", "generated: prologue"),
    (r"(s_waitcnt\b|DEPBAR\b|cp\.async\.wait)", "generated: wait"),
    (r"(bra\b|BRA\b|BSSY\b|BSYNC\b|WARPSYNC|CALL\b|RET\b|s_c?branch|s_setpc|s_swappc|br )", "generated: control flow"),
    (r"(s_\w+ exec,|s_\w+saveexec)", "generated: control flow"),
    (r"(%\S+ = )?arith\.constant", "generated: constant"),
)
"""Label of an instruction without a Triton line, by the start of its text.

Predicates are removed before the match.
"""
MOVED_LABEL = "generated: moved or merged by the optimizer, which assigned line 0"
NO_LOCATION_LABEL = "generated: no line in the debug information"


def link_listing(stage: str, text: str, unit: CompileUnit) -> Listing:
    """Return the record of a listing; each instruction is linked to the source or labeled."""
    return listing_of_links(
        stage, text, (link_instruction(location, unit) for location in LOCATION_READERS[stage](text))
    )


def listing_of_links(stage: str, text: str, links: Iterable[LineLink]) -> Listing:
    """Return a listing with one link per instruction, and the counts of linked and labeled.

    Padding, which no thread executes, is not counted.
    """
    links = tuple(links)
    counted = [link for link in links if link.label != PADDING_LABEL]
    linked = sum(1 for link in counted if link.triton_line)
    labelled = sum(1 for link in counted if not link.triton_line and link.label)
    return Listing(stage, text, links, len(counted), linked, labelled)


def link_instruction(location: InstructionLocation, unit: CompileUnit) -> LineLink:
    """Link an instruction to the Triton line of its outermost frame in the kernel's text.

    The inner frames become its library chain.
    """
    own = max(
        (i for i, frame in enumerate(location.chain) if frame.file == unit.file_name and frame.line), default=None
    )
    if own is None:
        label = generated_label(location.text)
        is_moved = label == NO_LOCATION_LABEL and any(frame.line == 0 for frame in location.chain)
        return LineLink(
            location.line, library=_library_frames(location.chain, unit), label=MOVED_LABEL if is_moved else label
        )
    line = location.chain[own].line
    if unit.line_map and not (line := unit.line_map[line - 1]):
        return LineLink(
            location.line, library=_library_frames(location.chain[:own], unit), label=generated_label(location.text)
        )
    return LineLink(location.line, line, _library_frames(location.chain[:own], unit))


def generated_label(code: str) -> str:
    """Return the label of an instruction that has no Triton line."""
    code = re.sub(r"^@!?U?%?\w+\s+", "", code)
    return next((label for pattern, label in GENERATED_LABELS if re.match(pattern, code)), NO_LOCATION_LABEL)


def _library_frames(chain: InlineChain, unit: CompileUnit) -> tuple[str, ...]:
    """Format frames for display, outermost first: ``standard.py:191 max``."""
    return tuple(_describe_frame(frame, unit) for frame in reversed(chain) if frame.file and frame.line)


def _describe_frame(frame: InlineFrame, unit: CompileUnit) -> str:
    text = unit.text if frame.file == unit.file_name else _library_source(frame.file)
    function = next((name for first, last, name in _function_spans(text) if first <= frame.line <= last), "")
    return f"{frame.file}:{frame.line} {function}".rstrip()


@functools.cache
def _library_source(file: str) -> str:
    """Return the source of a Triton library file by its base name; empty if there is none."""
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted((pathlib.Path(folder) / "language").rglob(file)):
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


@functools.lru_cache(maxsize=256)
def _function_spans(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return (first line, last line, name) of a module's functions, the innermost first."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return ()
    spans = [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return tuple(sorted(spans, key=lambda f: f[1] - f[0]))
