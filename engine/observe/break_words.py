"""Names Dynamo's graph breaks in the words of this engine's catalog."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

from engine.records.trace import BreakRecord
from engine.trace.graph_breaks.reasons import BREAK_REASONS, unknown_call_kind

_KINDS = {
    r"Unsupported Tensor\.item\(\)|Tensor\.tolist\(\)|Dynamic slicing with Tensor": "data-dependent",
    r"Data-dependent (?:branching|assertion)": "tensor-jump",
    r"Dynamic shape operator|Data dependent operator": "dynamic-output",
    r"Failed to trace builtin operator\nbuiltin print\b": "print",
    r"Call to `torch\._dynamo\.graph_break": "explicit-break",
    r"Skip (?:calling|inlining) `torch\.compiler\.disable": "disabled",
    r"logging\.Logger method": "logging",
    r"Unsupported context manager|Graph break under GenericContext|non-generator contextlib": "context-manager",
    r"copy\.deepcopy\(\)|Attempted to copy": "copy",
    r"Unsupported inspect call": "inspect",
    r"Unsupported Tensor\.requires_grad_|setattr\(\) on Tensor\.requires_grad": "requires-grad",
    r"Operator does not support running with fake": "no-fake-implementation",
    r"torch\.\* op returned non-Tensor": "operator-result",
    r"triton kernel unsupported": "triton-kernel",
    r"attempted to trace numpy": "numpy-function",
    r"Unsupported method call": "unsupported-method",
}
"""Page of the catalog by the start of Dynamo's title and context; other titles stay."""
_SKIPPED = re.compile(r"Attempted to (?:call|inline) function marked as skipped.*\nmodule: (\S*), qualname: (\S*),")


_OWN_SETTINGS = re.compile(r"torch\._dynamo\.|torch\.compiler\.")
"""Names in a hint that our advice lacks: Dynamo's own settings and marks."""


def with_catalog_words(record: BreakRecord) -> BreakRecord:
    """Return Dynamo's break with our catalog's title and advice.

    Dynamo's own title follows its explanation, and its hints that name its own settings follow our advice.
    """
    reported = f"{record.title}\n{record.context}"
    kind = next((kind for pattern, kind in _KINDS.items() if re.match(pattern, reported)), "")
    if skipped := _SKIPPED.match(reported):
        kind = unknown_call_kind(SimpleNamespace(__module__=skipped[1], __qualname__=skipped[2]))
    if not kind:
        return record
    explanation = f'{record.explanation.rstrip(".")}. Dynamo calls it "{record.title}".'.removeprefix(". ")
    page = BREAK_REASONS[kind]
    ours = (advice for advice in page.advice if "engine." not in advice)
    hints = (*ours, *filter(_OWN_SETTINGS.search, record.hints))
    return replace(record, title=page.title, explanation=explanation, hints=hints)
