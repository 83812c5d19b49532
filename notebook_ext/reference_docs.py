"""Pages of reference, rendered from the code: ``python -m notebook_ext.reference_docs FOLDER`` writes ``BREAKS.md``, ``GUARDS.md`` and ``GLOSSARY.md``."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping

from engine.guards.guard_kind_examples import GUARD_EXAMPLES as GUARDS
from engine.trace.graph_breaks.examples import BREAK_EXAMPLES as BREAKS
from engine.trace.graph_breaks.reasons import BREAK_REASONS
from notebook_ext import glossary


def breaks_page() -> str:
    """The catalogue of breaks: each with its reason, its remedies, and a function before and after."""
    head = (
        "# Graph breaks",
        "Every reason for which a graph ends before its function does. The compiler keeps this list itself; each example is executed by a test: the first function breaks in this way, the second is one graph. `x` is a tensor.",
    )
    return "\n\n".join([*head, *(part for kind in BREAK_REASONS for part in _break(kind))]) + "\n"


def _break(kind: str) -> Iterator[str]:
    reason = BREAK_REASONS[kind]
    yield f"## {reason.title}"
    yield f"`{kind}`. {reason.explanation}"
    if reason.hints:
        yield "\n".join(f"- {remedy}" for remedy in reason.hints)
    if kind in BREAKS:
        yield f"Breaks:\n\n{_code(BREAKS[kind].before)}"
        yield f"Does not:\n\n{_code(BREAKS[kind].after)}"


def guards_page() -> str:
    """The kinds of guards: each with what it means, and two calls of which the second is turned away."""
    head = (
        "# Guards",
        "What compiled code may take for granted. Each example is executed by a test: compiled for the first call, the function does not serve the second, and this kind of guard is the reason.",
    )
    return "\n\n".join([*head, *(part for kind in GUARDS for part in _guard(kind))]) + "\n"


def _guard(kind: str) -> Iterator[str]:
    example = GUARDS[kind]
    yield f"## {kind.capitalize() if kind.islower() else kind}"
    yield example.description
    calls = [
        f"f({example.first_args})",
        *([example.between_calls] if example.between_calls else []),
        f"f({example.failing_args})   # turned away",
    ]
    before = f"{example.setup}\n" if example.setup else ""
    yield _code(f"{example.code}\n\n{before}" + "\n".join(calls))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


PAGES: Mapping[str, Callable[[], str]] = {
    "BREAKS.md": breaks_page,
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
