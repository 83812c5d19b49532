"""Pipelines by options: functions compiled with equal options share code caches."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from engine.options import Options
from engine.pipeline import Pipeline
from engine.process_state import make_lock
from engine.trace.external_caches import reset_opaque_caches

_pipelines: dict[Any, Pipeline] = {}
_pipelines_lock = make_lock()


def pipeline_for(options: Options) -> Pipeline:
    """Return the pipeline for these options; equal options share one, and so its code caches."""
    if options.is_isolated:
        return Pipeline(options)
    extra = tuple(sorted(options.extra.items()))
    key = (extra, *(getattr(options, field.name) for field in fields(options) if field.name != "extra"))
    with _pipelines_lock:
        return _pipelines.setdefault(key, Pipeline(options))


def forget_pipelines() -> None:
    """Drop all pipelines and the tracer's memos.

    Live compiled functions retain their pipeline.
    """
    reset_opaque_caches()
    with _pipelines_lock:
        _pipelines.clear()
