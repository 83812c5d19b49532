"""Kinds of reasons not to save a result in the disk cache."""

import pathlib

from engine.ir.fallback import FallbackKind, FallbackRequired
from engine.ir.reason_catalog import ReasonCatalog

CACHE_REASONS = ReasonCatalog(pathlib.Path(__file__).with_name("catalog"))


class CacheFallback(FallbackKind, reasons=CACHE_REASONS):
    """Why a result is not saved. The catalog has cause, hints and programs for each id."""

    UNSERIALIZABLE_VALUE = "unserializable-value"
    UNSERIALIZABLE_SIZE = "unserializable-size"
    CODE_NOT_DETERMINED = "code-not-determined"


class NotCached(FallbackRequired):
    """The result is not saved. ``reason`` is recorded; each process compiles again."""
