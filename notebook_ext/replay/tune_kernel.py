"""Answers the kernel view's requests to tune a kernel by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import engine
from engine.errors import BadArgument
from engine.records.format_amounts import format_seconds
from engine.records.session import Session
from notebook_ext.views.format_text import pluralize


def tune_kernel(session: Session, content: dict[str, Any]) -> str:
    """Execute the action of a message, and return the text that the view shows.

    Raises:
        BadArgument: the kernel cannot be tuned, or not with these values.
    """
    action, entry, kernel = (str(content.get(name, "")) for name in ("action", "entry", "kernel"))
    values = _values(content.get("values"))
    if action == "run":
        return _result(engine.tune(session, entry, kernel, values))
    tuning = engine.tune(session, entry, kernel, {})
    if action == "keep":
        kept = tuning.keep({name: tried[0] for name, tried in values.items()})
        names = _settings_text(kept.values)
        return f"Kept: later compiles of this kernel use {names}. Run the cell again to see it; Forget returns to the default."
    if action == "forget":
        tuning.forget()
        return "Later compiles of this kernel use the default settings."
    return _result(tuning)


def _result(tuning: engine.Tuning) -> str:
    best, count = tuning.best, pluralize(len(tuning.points), "setting")
    if best is None or best.seconds is None:
        return f"{count} compiled for {tuning.target}. No GPU is here, so none is timed: the map shows registers, spills and occupancy."
    names = _settings_text(best.values)
    if best.values == {c.name: c.default for c in tuning.controls}:
        return f"{count} tried: the default, {names}, is the fastest with {format_seconds(best.seconds)}."
    usual = "" if tuning.usual_seconds is None else f"; the default takes {format_seconds(tuning.usual_seconds)}"
    return f"{count} tried: the fastest is {names} with {format_seconds(best.seconds)}{usual}."


def _settings_text(values: Mapping[str, int]) -> str:
    """Return settings as text, in the words of the heat map."""
    words = {"vector_bits": "bits of a vector", "vectors": "vectors at a time"}
    return ", ".join(
        "no vectors" if (n, v) == ("vector_bits", 0) else f"{words.get(n, n)} {v}" for n, v in values.items()
    )


def _values(sent: Any) -> dict[str, tuple[int, ...]]:
    """Return the values of a message by setting.

    Raises:
        BadArgument: the message has another form.
    """
    try:
        return {str(name): tuple(int(v) for v in tried) for name, tried in sent.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise BadArgument("The request has no values to try.") from error
