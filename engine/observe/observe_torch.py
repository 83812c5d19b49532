"""Live observation of stock torch.compile: its structured trace becomes a Session."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import pathlib
import platform
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from engine.errors import Unavailable
from engine.ir.user_code_files import source_file
from engine.observe.cache_hits import CacheHitRecorder
from engine.observe.dynamo_guards import live_guard_failures
from engine.observe.json_values import as_list, as_object
from engine.observe.session_builder import SessionBuilder
from engine.observe.trace_events import frame_id_of, parse_event
from engine.observe.trace_files import InMemoryPayload
from engine.records.runtime import StageFailure
from engine.records.session import Session
from engine.torch_private import inductor
from engine.torch_private.entries import Feature, why_off
from engine.torch_private.torch_compile import structured_logging as structured
from engine.torch_private.torch_compile import torch_logging


class _InternedNames:
    """File names that torch's trace interns as numbers.

    Each is defined once per process, so names from before the observation are looked up in torch's table.
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def add(self, value: Any) -> None:
        """Add one ``str`` event: ``(text, number)``."""
        if len(as_list(value)) == 2:
            self._texts[int(value[1])] = str(value[0])

    def __call__(self, number: int) -> str:
        if number not in self._texts:
            table: dict[str, int] = getattr(structured, "INTERN_TABLE", {})
            self._texts |= {n: text for text, n in table.items()}
        return self._texts.get(number, "?")


class _TraceHandler(logging.Handler):
    """Logging handler that receives every trace record before other handlers.

    An internal error is recorded and never reaches the user's compile.
    """

    def __init__(self, session: Session, hits: CacheHitRecorder) -> None:
        super().__init__(logging.DEBUG)
        self._hits = hits
        self._session = session
        self._names = _InternedNames()
        epoch = time.time() - (time.perf_counter() - session.started)
        library = str(pathlib.Path(torch.__file__).parent)
        self._builder = SessionBuilder(
            session,
            library=library,
            names=self._names,
            read_file=source_file,
            epoch=epoch,
            refused_now=live_guard_failures,
        )
        self._failed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Add one trace record to the session."""
        try:
            if metadata := as_object(getattr(record, "metadata", None)):
                self._handle_record(metadata, getattr(record, "payload", None))
        except Exception as error:
            self._record_failure(error)

    def finish(self) -> None:
        """Finish the session after the last record."""
        try:
            self._builder.finish()
        except Exception as error:
            self._record_failure(error)

    def _handle_record(self, metadata: Mapping[str, Any], payload: object) -> None:
        if "str" in metadata:
            self._names.add(metadata["str"])
            return
        event = parse_event(metadata, InMemoryPayload(payload) if isinstance(payload, str) else None)
        if event is None:
            return
        if event.kind == "dynamo_start":
            self._hits.on_compile_start(frame_id_of(event.compilation))
        self._builder.add(event)

    def _record_failure(self, error: Exception) -> None:
        """Record an internal error, once per kind, without raising."""
        with contextlib.suppress(Exception):
            sentence = f"one event of torch's trace could not be read: {type(error).__name__}: {error}"
            if sentence not in self._failed:
                self._failed.add(sentence)
                detail = "".join(traceback.format_exception(error))
                self._session.add_failure(
                    StageFailure("observe", sentence, "the event is skipped; torch.compile is not affected", detail)
                )


@contextlib.contextmanager
def observe_torch() -> Iterator[Session]:
    """Record what stock ``torch.compile`` does while the context is open.

    Compilation is unchanged, and slowed only by writing its trace.

    Yields:
        A Session with compiler "torch": frames and compilations with cause, graphs, breaks, guards, kernels
        and times. Cache hits are recorded too; code that was compiled earlier appears only in them.

    Raises:
        Unavailable: this version of torch lacks what observing needs.
    """
    if reason := why_off(Feature.OBSERVATION):
        raise Unavailable(f"torch.compile cannot be observed: {reason}.")
    session = _new_session()
    log = torch_logging.trace_log
    hits = CacheHitRecorder(session)
    listener = _TraceHandler(session, hits)
    level, propagate = log.level, log.propagate
    if not log.isEnabledFor(logging.DEBUG):
        log.setLevel(logging.DEBUG)
        log.propagate = False  # handlers of the program's root logger, such as pytest's, did not ask for the trace
    # First: torch's handler removes itself during the first record, so the logging loop skips the next handler.
    log.handlers.insert(0, listener)
    try:
        with hits.install(), _provenance_tracking(), _enabled(log):
            yield session
    finally:
        with contextlib.suppress(ValueError):
            log.handlers.remove(listener)
        log.setLevel(level)
        log.propagate = propagate
        listener.finish()
        _finish_session(session)


@contextlib.contextmanager
def _enabled(log: logging.Logger) -> Iterator[None]:
    """Let the trace pass ``logging.disable`` and ``disable_existing_loggers``.

    Both are about what a program prints. Since 2.13, torch itself exempts its trace from the first.
    """
    disabled, attributes = log.disabled, vars(log)
    own = attributes.get("isEnabledFor")
    log.disabled = False
    attributes["isEnabledFor"] = lambda level: level >= log.level
    try:
        yield
    finally:
        log.disabled = disabled
        if own is None:
            attributes.pop("isEnabledFor", None)
        else:
            attributes["isEnabledFor"] = own


@contextlib.contextmanager
def _provenance_tracking() -> Iterator[None]:
    """Turn on Inductor's provenance tracking, if available; it does not affect its caches."""
    name = "trace.provenance_tracking_level"
    try:
        config = inductor.inductor_config
        noting = config.patch({name: 1}) if config.trace.provenance_tracking_level == 0 else contextlib.nullcontext()
    except AttributeError:
        noting = contextlib.nullcontext()
    with noting:
        yield


def _new_session() -> Session:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    session = Session(subject="torch", device=device)
    session.versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        session.versions["triton"] = importlib.metadata.version("triton")
    return session


def _finish_session(session: Session) -> None:
    session.seconds = time.perf_counter() - session.started
    session.set_stage("")
    if not session.compilations:
        session.add_note(
            "torch.compile compiled nothing here. Either no compiled function was called, or all calls were cache hits. "
            "Call torch.compiler.reset() before the recording to compile again."
        )
