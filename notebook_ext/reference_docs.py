"""Generates the reference pages of breaks, fallbacks, guards and terms.

``python -m notebook_ext.reference_docs FOLDER`` writes them.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from engine.aot.fallback_kinds import AOT_REASONS
from engine.cache.fallback_kinds import CACHE_REASONS
from engine.guards.guard_kind_examples import GUARD_EXAMPLES as GUARDS
from engine.ir.reason_catalog import ReasonCatalog
from engine.lowering.fallbacks.kinds import LOWERING_REASONS
from engine.trace.graph_breaks.reasons import BREAK_REASONS
from notebook_ext import glossary

TITLES: Mapping[str, str] = {"numpy": "NumPy", "stdlib": "Standard library", "torch_api": "Torch API"}
"""Titles of topics that are not their names in words."""
_NAME = re.compile(r"[\w.@]*_(?:[\w.]*\w)?(?:\([^()\s]*\)(?:\.\w+)*)*(?:=\w+)?|\w*\*")


def breaks_page() -> str:
    """Return the page of graph breaks: reason, hints, and an example before and after the fix."""
    head = (
        "# Graph breaks",
        "Every reason for a graph break. This page is generated from the compiler's own catalog. A test runs each example: the first function breaks for this reason, the second is one graph. `x` is a tensor.",
    )
    return "\n\n".join([*head, *_catalog(BREAK_REASONS, "Breaks", "Does not break")]) + "\n"


def fallbacks_page() -> str:
    """Return the page of fallbacks: reason, hints, and an example before and after the fix."""
    head = (
        "# Fallbacks",
        "Every reason why a stage runs code another way: first why a whole graph runs as traced, then why ATen runs one node instead of a generated kernel, last why a result is not saved to disk. This page is generated from the compiler's own catalogs. A test runs each example: the first function falls back, the second does not. `f` is called with `x`, a tensor.",
    )
    catalogs = (AOT_REASONS, LOWERING_REASONS, CACHE_REASONS)
    parts = [part for reasons in catalogs for part in _catalog(reasons, "Falls back", "Does not fall back")]
    return "\n\n".join([*head, *parts]) + "\n"


def _catalog(reasons: ReasonCatalog, before: str, after: str) -> Iterator[str]:
    """Yield the pages of a catalog by topic."""
    for topic, group in itertools.groupby(reasons, lambda kind: reasons[kind].topic):
        yield f"## {TITLES.get(topic) or topic.replace('_', ' ').capitalize()}"
        for kind in group:
            reason = reasons[kind]
            yield f"### {_escape(reason.title)}"
            yield f"`{kind}`. {_escape(reason.cause)}"
            yield "\n".join(f"- {_escape(hint)}" for hint in reason.advice)
            if reason.example_before:
                yield f"{before}:\n\n{_code(reason.example_before)}"
            if reason.example_after:
                yield f"{after}:\n\n{_code(reason.example_after)}"


def _escape(text: str) -> str:
    """Quote names and calls with underscores or stars, which Markdown reads as emphasis."""
    return _NAME.sub(lambda match: f"`{match.group()}`", text)


def guards_page() -> str:
    """Return the page of guard kinds: each with its meaning and two calls.

    The guard fails for the second call.
    """
    head = (
        "# Guards",
        "Everything that compiled code can assume. A test runs each example: the function is compiled for the first call, and this kind of guard fails for the second call.",
        "Not guarded, as ATen reads them at each call: the number of threads, reduced precision of fp16 sums, and warn-only of deterministic algorithms. Stock torch.compile compiles again when they change. The precision of float32 products is guarded where a GPU kernel has it as a constant.",
    )
    return "\n\n".join([*head, *(part for kind in GUARDS for part in _guard(kind))]) + "\n"


def _guard(kind: str) -> Iterator[str]:
    example = GUARDS[kind]
    yield f"## {kind.capitalize() if kind.islower() else kind}"
    yield example.description
    calls = [
        f"f({example.first_args})",
        *([example.between_calls] if example.between_calls else []),
        f"f({example.failing_args})   # guard failure: recompiles",
    ]
    before = f"{example.setup}\n" if example.setup else ""
    yield _code(f"{example.code}\n\n{before}" + "\n".join(calls))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


PAGES: Mapping[str, Callable[[], str]] = {
    "BREAKS.md": breaks_page,
    "FALLBACKS.md": fallbacks_page,
    "GUARDS.md": guards_page,
    "GLOSSARY.md": glossary.glossary_page,
}


def main() -> None:
    """Write all pages."""
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "notebooks/reference")
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
