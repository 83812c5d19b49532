"""Catalog of graph break reasons, and the records made from it.

Code that cannot trace something raises ``Unsupported(id, sentence)``. The id selects a page in
``catalog/<topic>.md`` with the cause and what to do; the sentence names the user's values. An id never changes
its meaning. Records contain the text of the page, so saved sessions do not need the catalog.
"""

from __future__ import annotations

import pathlib
from typing import Any

from engine.ir.reason_catalog import ReasonCatalog
from engine.ir.user_code_files import innermost_user_span
from engine.records.bytecode import Span
from engine.records.trace import BreakRecord

_DATA_PARALLEL_FILE = ("torch", "nn", "parallel", "distributed.py")
_DATA_PARALLEL_ADVICE = (
    "Compile the module before it is wrapped: `DistributedDataParallel(engine.compile(module))`.",
    "Or leave it: the wrapper's own lines run as Python once a step, and the module inside is compiled.",
)
"""For breaks in the file of ``DistributedDataParallel``, which no user can rewrite.

The file is known by the end of its path: reports of logs are made without torch.
"""
BREAK_REASONS = ReasonCatalog(pathlib.Path(__file__).with_name("catalog"))


def make_break_record(kind: str, what: str, stack: tuple[Span, ...], *, skipped: bool, also: str = "") -> BreakRecord:
    """Build the record of one break from its catalog page and the innermost user line.

    ``stack`` is the user's call stack, outermost frame first. ``also`` is the id of the reason why no resume
    function could continue after the break; its hints are added.
    """
    reason = BREAK_REASONS[kind]
    is_in_wrapper = bool(stack) and pathlib.PurePath(stack[-1].file).parts[-4:] == _DATA_PARALLEL_FILE
    advice = _DATA_PARALLEL_ADVICE if is_in_wrapper else reason.advice
    hints = advice + (BREAK_REASONS[also].advice if also else ())
    return BreakRecord(
        kind,
        reason.title,
        what,
        reason.cause,
        hints,
        innermost_user_span(stack),
        stack,
        skipped,
        example_before=reason.example_before,
        example_after=reason.example_after,
    )


_CALLABLES_BY_KIND = {
    "clock": "_datetime datetime time",
    "data-loader": "torch.utils.data",
    "file-system": "_io io nt os pathlib posix shutil tempfile",
    "interpreter-state": "gc sys tracemalloc",
    "memory-buffer": "_io.BytesIO _io.StringIO",
    "numpy-function": "numpy",
    "process-or-network": "_posixsubprocess _queue _signal _socket _thread multiprocessing socket subprocess threading",
}
"""Starts of full names of callables, by the id that says more than "unknown-call"."""
_CALL_KINDS = {name: kind for kind, names in _CALLABLES_BY_KIND.items() for name in names.split()}


def unknown_call_kind(function: Any) -> str:
    """Return the id for a call that is not inlined, by the class or module of the function."""
    owner = getattr(function, "__objclass__", function)
    name = f"{getattr(owner, '__module__', None)}.{getattr(owner, '__qualname__', '')}"
    while name and name not in _CALL_KINDS:
        name = name.rpartition(".")[0]
    return _CALL_KINDS.get(name, "unknown-call")
