"""Differences between the stages of two compilations: graphs and kernels as diffs."""

from __future__ import annotations

import itertools
from typing import Any

from engine.records.counts import unique_kernels
from engine.records.kernels import KernelRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.cell_edits import diff_lines
from notebook_ext.views.format_text import one_line
from notebook_ext.views.source_lines import frame_name

MAX_ROWS = 200
"""Number of diff lines that are sent for one stage."""
STAGE_TITLES = {"fx": "Traced graph", "aten": "ATen graph", "joint": "Joint graph", "forward": "Forward graph", "backward": "Backward graph"}  # fmt: skip

LISTING_TITLES = {"asm": "Assembly", "ptx": "PTX", "sass": "SASS", "amdgcn": "AMDGCN"}


def stage_differences(before: CompilationRecord | None, after: CompilationRecord | None) -> list[dict[str, Any]]:
    """Return the stages that differ, in the order of the pipeline: title and diff."""
    old, new = ({} if c is None else _texts_by_title(c, before) for c in (before, after))
    differences = []
    for title in dict.fromkeys((*old, *new)):
        rows = diff_lines(old.get(title, ""), new.get(title, ""))
        if rows:
            shown = [(sign, one_line(text, 300)) for sign, text in rows[:MAX_ROWS]]
            differences.append({"title": title, "rows": shown, "cut": len(rows) - len(shown)})
    return differences


def session_differences(before: Session, after: Session) -> list[dict[str, Any]]:
    """Return the stages that differ of each compilation of two runs of a cell."""
    differences = []
    for old, new in itertools.zip_longest(before.compilations, after.compilations):
        session, one = (after, new) if new is not None else (before, old)
        name = f"{frame_name(session, one.frame)} entry {one.id.rpartition('/')[2]}"
        differences += [row | {"title": f"{name}: {row['title']}"} for row in stage_differences(old, new)]
    return differences


def _texts_by_title(compilation: CompilationRecord, before: CompilationRecord | None) -> dict[str, str]:
    """Return the texts of a compilation's graphs and kernels by title."""
    graphs = {
        STAGE_TITLES.get(g.stage, one_line(g.title, 60)): "\n".join(n.text for n in g.nodes) for g in compilation.graphs
    }
    kernels = _kernels_by_label(compilation, before or compilation)
    listed = {f"Kernel {label} ({k.language})": k.text for label, k in kernels.items()}
    listings = {
        f"{LISTING_TITLES[listing.stage]} of kernel {label}": listing.text
        for label, k in kernels.items()
        for target in k.targets
        for listing in target.listings
        if listing.stage in LISTING_TITLES
    }
    return graphs | listed | listings


def _kernels_by_label(compilation: CompilationRecord, before: CompilationRecord) -> dict[str, KernelRecord]:
    """Return the kernels by the id that a kernel of the same name has in ``before``.

    Ids count through a program: a kernel more at its start is no change of the later ones.
    """
    labels: dict[str, KernelRecord] = {}
    for old, new in (
        (before.cpu_kernels, compilation.cpu_kernels),
        (unique_kernels(before), unique_kernels(compilation)),
    ):
        ids = {k.name: k.id for k in old}
        matched = {ids[k.name] for k in new if k.name in ids}
        for k in new:
            labels[ids.get(k.name) or (f"{k.id}, new" if k.id in matched else k.id)] = k
    return labels
