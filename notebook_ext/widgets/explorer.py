"""Explorer widget: an overview that follows the session, and parts sent on request."""

from __future__ import annotations

import json
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import anywidget
import traitlets

from engine.interrupts.weak_tables import WeakTable
from engine.records.guards import CallExplanation
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.explorer_parts import (
    DEFAULT_NAME,
    OtherSessions,
    initial_parts,
    linked_part,
    overview,
    part,
)
from notebook_ext.views.format_text import pluralize
from notebook_ext.views.guards import hypothetical_case, what_if
from notebook_ext.views.home import Replay, replay_edit
from notebook_ext.views.performance.memory import checkpoint_trials
from notebook_ext.widgets.bundle_assets import initial_module_text, lazy_view_text, style_text

log = logging.getLogger(__name__)

DEBOUNCE_SECONDS = 0.25
"""Seconds within which changes of the session are collected into one update."""
IDLE_RATIO = 10
"""Minimum ratio of idle time to update time.

After an update of one second the next one waits for this many seconds, so that updates do not slow the
recording.
"""


class Editor(Protocol):
    """Answers the requests of the view of edits."""

    tried: dict[str, Session]

    def answer(self, action: str, entry: str, stage: str, text: str) -> dict[str, Any]:
        """Execute the action of a message, and return the data that the view shows."""
        ...

    def prepare(self, entry: str, text: str) -> None:
        """Prepare the next trial of a text that is open."""
        ...


class Explorer(anywidget.AnyWidget):
    """Widget that shows one session and updates while its kernels are still compiling.

    ``view`` is the initial view, in the form of the summary's links: ``guards|0/1``,
    ``linked|0/0|line=12``; home if empty. ``others`` are sessions by name for comparison; this
    session is called ``name`` there. The call explanation is of a call that is not executed: the guards view
    shows which guards it would pass. ``on_verify`` is called without arguments when the user requests a
    check. It may take long; the session's changes are shown as they happen. ``on_replay`` runs the cell and
    an edited version of it; ``editor`` answers the view of edits.
    """

    _esm = initial_module_text()
    _css = style_text()
    overview = traitlets.Dict().tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)
    view = traitlets.Unicode().tag(sync=True)
    summary_id = traitlets.Unicode().tag(sync=True)
    """Id of the static summary that the live one replaces while this widget is shown."""
    pane_layout = traitlets.Dict().tag(sync=True)
    """Pane by slot of the linked view, as the user last arranged them in this kernel.

    If empty, the arrangement follows from the compilation.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_verify: Callable[[], object] | None = None,
        on_replay: Replay | None = None,
        editor: Editor | None = None,
        view: str = "",
        others: OtherSessions | None = None,
        name: str = DEFAULT_NAME,
        asked: CallExplanation | None = None,
        summary_id: str = "",
    ) -> None:
        # Read before the views are built, so that later changes are noticed and sent.
        seen = {c.id: c for c in session.compilations}
        shown = overview(session, others, name, can_edit=True)
        super().__init__(
            overview=shown,
            summary_id=summary_id,
            parts=initial_parts(session, view),
            view=view,
            pane_layout=dict(_last_pane_layout),
        )
        self.observe(_remember_pane_layout, "pane_layout")
        self.observe(_remember_view, "view")
        self.session = session
        self._others = dict(others or {})
        self._name = name
        self._hypothetical_call = asked
        self._on_verify = on_verify
        self._on_replay = on_replay
        self._editor = editor
        self._sent = {key: _fingerprint(value) for key, value in self.parts.items()}
        self._lock = threading.RLock()
        self._timer_lock = threading.Lock()
        self._verify_lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._cost = 0.0
        self._seen: dict[str, CompilationRecord] = seen
        self.on_msg(_receive)
        self._stop = session.on_change(_weak_listener(self))
        # The linked view follows the first paint; other threads may have added kernels before the listener was registered.
        if (
            not self._has_linked_part()
            or self._changed_ids(session.compilations)
            or overview(session, others, name, can_edit=True) != shown
        ):
            self.schedule_refresh()

    def __repr__(self) -> str:
        # Jupyter saves this text with the widget: without a kernel, readers see only this.
        return "Explorer: shown while the kernel runs; the static snapshot above stays"

    def close(self) -> None:
        """Close the comm and stop following the session."""
        self._stop()
        super().close()

    def handle_message(self, content: dict[str, Any]) -> None:
        """Run the action that a message of the front end names."""
        if content.get("type") == "part":
            self._send_part(str(content.get("key")))
        elif content.get("type") == "code":
            self._send_code(str(content.get("view")))
        elif content.get("type") == "verify":
            self._verify()
        elif content.get("type") == "what-if":
            self._what_if(str(content.get("entry")), content.get("edits"))
        elif content.get("type") == "measure":
            self._measure()
        elif content.get("type") == "measure-kernels":
            self._measure_kernels()
        elif content.get("type") == "try":
            self._try()
        elif content.get("type") == "replay-edit":
            self._replay_edit(str(content.get("edit")))
        elif content.get("type") == "target":
            self._target(str(content.get("target")))
        elif content.get("type") == "replay":
            self._replay_values(str(content.get("entry")))
        elif content.get("type") == "edit":
            self._edit(content)
        elif content.get("type") == "tune":
            self._tune(content)
        elif content.get("type") == "script":
            self._script(str(content.get("entry")), str(content.get("what")))
        elif content.get("type") == "checkpoints":
            self._try_checkpoints(str(content.get("entry")))
        elif content.get("type") == "cancel":
            self._cancel()

    def refresh(self) -> None:
        """Send the parts that changed since they were last sent. Thread-safe."""
        with self._timer_lock:
            self._timer = None
        if _is_shutting_down():
            return
        with self._lock:
            start = time.perf_counter()
            compilations = self.session.compilations  # Read once: other threads replace records.
            changed = self._changed_ids(compilations)
            self._seen = {c.id: c for c in compilations}
            for key in tuple(self._sent):
                if key.startswith(("other|", "difference|")):
                    continue  # Sessions of earlier runs do not change.
                if (
                    not key.startswith(
                        ("linked|", "text|", "graph|", "places|", "tracer|", "aot|", "memory|", "brief|")
                    )
                    or key.split("|")[1] in changed
                ):
                    self._send_part(key, only_changed=True)
            if not self._has_linked_part():
                new = linked_part(self.session)
                self._sent |= {key: _fingerprint(value) for key, value in new.items()}
                self.parts = {**self.parts, **new}
            self.overview = overview(self.session, self._others, self._name, can_edit=True)
            self._cost = time.perf_counter() - start

    def _has_linked_part(self) -> bool:
        return any(key.startswith("linked|") for key in self.parts)

    def _changed_ids(self, compilations: tuple[CompilationRecord, ...]) -> set[str]:
        """Return the ids of the compilations that changed since they were last shown."""
        return {c.id for c in compilations if self._seen.get(c.id) is not c}

    def schedule_refresh(self) -> None:
        """Schedule an update after a change of the session.

        A separate thread sends it, so that the page updates while the kernel is busy.
        """
        with (
            self._timer_lock
        ):  # Not the lock of ``refresh``: this runs in the compiling thread and must not wait for views.
            if self._timer is None and not _is_shutting_down():
                self._timer = threading.Timer(max(DEBOUNCE_SECONDS, IDLE_RATIO * self._cost), _weak_refresh(self))
                self._timer.daemon = True
                self._timer.start()

    def _send_part(self, key: str, *, only_changed: bool = False) -> None:
        try:
            value = self._part(key)
        except (KeyError, ValueError, TypeError) as error:
            log.debug("no part %r: %s", key, error)
            self._sent.pop(key, None)
            return
        fingerprint = _fingerprint(value)
        with self._lock:
            if only_changed and self._sent.get(key) == fingerprint:
                return
            self._sent[key] = fingerprint
            if key in self.parts:
                # Initial parts are stored as widget state, so that later views of the widget get them too.
                self.parts = {**self.parts, key: value}
                if only_changed:
                    return
        self.send({"type": "part", "key": key, "data": value})

    def _part(self, key: str) -> Any:
        value = part(self.session, key, self._others, self._name)
        if self._hypothetical_call is not None and key.startswith("guards|"):
            case = hypothetical_case(self.session, self._hypothetical_call, key.split("|")[1])
            value["cases"][:0] = [case] if case else []
        return value

    def _send_code(self, view: str) -> None:
        try:
            self.send({"type": "code", "view": view, "text": lazy_view_text(view)})
        except KeyError:
            log.debug("no view %r", view)

    def _verify(self) -> None:
        if self._on_verify is None:
            self._send_message(
                "These kernels cannot be checked here: the session was loaded, not recorded in this kernel."
            )
            return
        if not self._verify_lock.acquire(blocking=False):
            self._send_message("The check is already running: its results appear as they arrive.")
            return
        # In a thread of its own: a check takes minutes, and other requests, such as what-if, need an answer meanwhile.
        threading.Thread(target=self._run_check, args=(self._on_verify,), name="explorer-verify", daemon=True).start()

    def _run_check(self, check: Callable[[], object]) -> None:
        try:
            check()
        except Exception as error:
            self._send_message(f"The check failed: {type(error).__name__}: {error}")
        finally:
            self._verify_lock.release()

    # Requests that need a live session. They import the engine only here: a saved session opens without torch.

    def _what_if(self, entry: str, edits: Any) -> None:
        from engine import api
        from engine.errors import EngineError

        changes = edits if isinstance(edits, dict) else {}
        answer: dict[str, Any] = {"inputs": {}, "asked": {}, "told": None, "problem": ""}
        try:
            frame = self.session.compilation(entry).frame
            answer["inputs"] = api.what_if_inputs(self.session, frame)
            answer["asked"] = api.what_if_inputs(self.session, frame, _texts(changes))
            answer["told"] = what_if(self.session, api.what_if(self.session, frame, _texts(changes)), entry)
        except (EngineError, KeyError, TypeError) as error:
            answer["problem"] = str(error)
        self.send({"type": "what-if", "entry": entry, "data": answer})

    def _measure(self) -> None:
        from engine import api

        count = api.measure_guards(self.session)
        sentence = f"Measured the guards of {pluralize(count, 'entry')}, each separately; the check evaluates them together and costs less than the sum."
        self._send_message(
            sentence
            if count
            else "Nothing could be measured: the session was loaded, or its functions and arguments are gone."
        )

    def _target(self, target: str) -> None:
        from engine import api
        from engine.errors import EngineError

        try:
            api.compile_for(self.session, target)
        except EngineError as error:
            self._send_message(str(error))

    def _replay_values(self, entry: str) -> None:
        from engine import api
        from engine.errors import EngineError

        try:
            self._send_message(api.record_tensor_values(self.session, entry))
        except EngineError as error:
            self._send_message(str(error))

    def _cancel(self) -> None:
        from engine import api

        api.cancel(self.session)

    def _measure_kernels(self) -> None:
        from engine import api
        from engine.errors import EngineError

        try:
            self._send_message(f"Measured {pluralize(api.measure_kernels(self.session), 'kernel')} on the GPU.")
        except EngineError as error:
            self._send_message(str(error))

    def _try(self) -> None:
        from engine import api

        count = api.try_fixes(self.session)
        self._send_message(
            f"{pluralize(count, 'fix')} verified; each tried fix shows its result."
            if count
            else "No fix could be verified; each tried fix shows the reason."
        )

    def _replay_edit(self, edit: str) -> None:
        if self._on_replay is None:
            self._send_message(
                "This cell cannot be replayed: the session was loaded, or was not recorded by a %%compile cell."
            )
            return
        try:
            result = replay_edit(self.session, edit, self._on_replay)
        except Exception as error:
            self._send_message(f"The replay failed: {type(error).__name__}: {error}")
            return
        self._send_part("home")
        verb = "has" if result and result.text.startswith("no effect") else "is"
        self._send_message(
            f"The edit {verb} {result.text}." if result else "The session changed: this edit is no longer offered."
        )

    def _try_checkpoints(self, entry: str) -> None:
        from engine.editing.try_checkpoints import try_checkpoints
        from engine.errors import EngineError

        try:
            trials = tuple(try_checkpoints(self.session, entry))
        except EngineError as error:
            self._send_message(str(error))
            return
        checkpoint_trials.setdefault(self.session, {})[entry] = trials
        self._send_part(f"memory|{entry}")
        self._send_message(f"Compiled the call under {pluralize(len(trials), 'policy')} and compared it with eager.")

    def _edit(self, content: dict[str, Any]) -> None:
        if self._editor is None:
            from notebook_ext.replay.edit_stages import StageEditor

            self._editor = StageEditor(self.session)
        action, *asked = (str(content.get(name, "")) for name in ("action", "entry", "stage", "text"))
        if action == "prepare":
            self._editor.prepare(asked[0], asked[2])
            return
        try:
            answer = self._editor.answer(action, *asked)
        except Exception as error:
            self.send({"type": "edit", "data": {"problem": f"The edit failed: {type(error).__name__}: {error}"}})
            return
        self.send({"type": "edit", "data": answer})
        if action != "keep":
            self._editor.prepare(answer["entry"], answer["text"])
        if new := {n: s for n, s in self._editor.tried.items() if n not in self._others}:
            self._others |= new
            self.overview = overview(self.session, self._others, self._name, can_edit=True)

    def _tune(self, content: dict[str, Any]) -> None:
        from engine.errors import EngineError
        from notebook_ext.replay.tune_kernel import tune_kernel

        try:
            said = tune_kernel(self.session, content)
        except EngineError as error:
            said = str(error)
        self._send_part("kernels")
        self.send({"type": "tune", "data": {"said": said}})

    def _script(self, entry: str, what: str) -> None:
        from engine.errors import EngineError
        from engine.reproducers import reproducer

        try:
            script = reproducer(self.session, entry, what)
            answer = {"text": script.text, "symptom": script.symptom, "problem": ""}
        except EngineError as error:
            answer = {"text": "", "symptom": "", "problem": str(error)}
        self.send({"type": "script", "data": answer})

    def _send_message(self, text: str) -> None:
        self.send({"type": "say", "text": text})


_last_pane_layout: dict[str, str] = {}
_last_views: WeakTable[Session, str] = WeakTable()


def _remember_pane_layout(change: Any) -> None:
    _last_pane_layout.clear()
    _last_pane_layout.update({str(slot): str(pane) for slot, pane in change.new.items()})


def _remember_view(change: Any) -> None:
    _last_views[change.owner.session] = str(change.new)


def last_view_of(session: Session) -> str:
    """Return the view that was last open on a session; empty if unknown."""
    return _last_views.get(session, "").partition("|")[0]


def _texts(edits: dict[Any, Any]) -> dict[str, dict[str, str]]:
    """Return the edits of a message with all keys and values as text."""
    return {str(p): {str(k): str(v) for k, v in e.items()} for p, e in edits.items() if isinstance(e, dict)}


def _receive(widget: Explorer, content: dict[str, Any], _buffers: object) -> None:
    widget.handle_message(content)


def _weak_refresh(widget: Explorer) -> Callable[[], None]:
    """Return a refresh that does not keep a closed widget alive until its time."""
    reference = weakref.ref(widget)

    def refresh() -> None:
        if (alive := reference()) is not None:
            alive.refresh()

    return refresh


def _weak_listener(widget: Explorer) -> Callable[[str], None]:
    """Return a session listener that holds only a weak reference to the widget."""
    alive = weakref.ref(widget)

    def follow(_what: str) -> None:
        widget = alive()
        if widget is not None:
            widget.schedule_refresh()

    return follow


def _is_shutting_down() -> bool:
    """Return True while the interpreter shuts down.

    Closing worker threads still change the session then, but nobody receives messages any more.
    """
    return not threading.main_thread().is_alive()


def _fingerprint(value: Any) -> int:
    return hash(json.dumps(value))
