"""Progress line with a Cancel button, shown while a long compilation runs."""

from __future__ import annotations

import _thread
import contextvars
import re
import signal
import sys
import threading
import time
from typing import Any, Protocol, Self

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from engine.records.session import Session
from notebook_ext.display import has_widgets

DELAY_SECONDS = 0.7
"""Seconds of compiling before the line appears; it must appear within one second."""
POLL_SECONDS = 0.15
CANCELLED = "Cancelled: the part that was not compiled ran as plain Python, with the same results. Run the cell again to compile it."
_AUTOTUNE_STAGE = re.compile(r"tuning (\d+): (\d+) ways to compute \w+:(\w+)/\w+:(\w+)")
"""Text of the session's stage while autotuning measures kernels."""


class ProgressLine(Protocol):
    """Interface of a line whose text can change."""

    def set_text(self, text: str) -> None:
        """Replace the text of the line."""
        ...

    def close(self) -> None:
        """Remove the line."""
        ...


class CompileProgress:
    """Thread that watches the session's stage while the cell runs."""

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        self._shell = shell
        self._session = session
        self._is_done = threading.Event()
        # Output that a thread sends belongs to the cell only if the thread has the cell's message context.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._watch,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done.set()
        self._thread.join(2.0)

    def _watch(self) -> None:
        since: float | None = None
        line: ProgressLine | None = None
        try:
            while not self._is_done.wait(POLL_SECONDS):
                stage = self._session.stage
                now = time.monotonic()
                since = None if not stage and line is None else since or now
                if since is not None and now - since >= DELAY_SECONDS:
                    line = line or make_progress_line(self._shell, self._session)
                    line.set_text(progress_text(self._session, stage, now - since))
        finally:
            if line is not None:
                line.close()


def progress_text(session: Session, stage: str, seconds: float) -> str:
    """Return the text of the line: ``Compiling GPT.forward: lowering, 3 s``.

    Between compilations it says that the cell is running.
    """
    if tuning := _AUTOTUNE_STAGE.fullmatch(stage):
        count, ways, frame, node = tuning.groups()
        name = next((f.name for f in session.frames if f.id == frame), "the cell")
        return (
            f"Compiling {name}: autotuning {count}, measuring {ways} candidates for {node} on the GPU, {seconds:.0f} s"
        )
    stage_name, _, compilation = stage.partition(" ")
    frame = compilation.partition("/")[0]
    name = next((f.name for f in session.frames if f.id == frame), "")
    if not stage_name:
        return f"Running the cell, {seconds:.0f} s"
    if stage_name == "compare":
        return f"Running the same calls through torch.compile, {seconds:.0f} s"
    verb = "Checking" if stage_name == "verify" else "Compiling"
    doing = "" if stage_name in {"compile", "verify"} else f": {stage_name}"
    return f"{verb} {name or 'the cell'}{doing}, {seconds:.0f} s"


def make_progress_line(shell: InteractiveShell, session: Session) -> ProgressLine:
    """Return the best progress line that the shell can display."""
    if has_widgets(shell):
        return WidgetProgressLine(shell, session)
    return TerminalProgressLine()


class WidgetProgressLine:
    """Progress line with a button, as a widget.

    The output is emptied at the end, so that a saved notebook has no view without a widget.
    """

    def __init__(self, shell: InteractiveShell, session: Session) -> None:
        from notebook_ext.widgets.progress_widget import ProgressWidget

        can_cancel = getattr(getattr(shell, "kernel", None), "_supports_kernel_subshells", False)
        self._hint = "" if can_cancel else " (interrupt the kernel to cancel)"
        self._widget = ProgressWidget(can_cancel=bool(can_cancel))
        self._widget.on_msg(lambda *_: cancel(session))
        self._handle: Any = None

    def set_text(self, text: str) -> None:
        """Show the text in the cell's output."""
        self._widget.text = text + self._hint
        handle_messages_while_busy(self._widget)
        if self._handle is None:
            self._handle = display(self._widget, display_id=True)

    def close(self) -> None:
        """Empty the output, then close the widget."""
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)
        self._widget.close()


class TerminalProgressLine:
    """Progress line on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._width = 0

    def set_text(self, text: str) -> None:
        """Overwrite the line on stderr if it is a terminal."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}{' ' * (self._width - len(text))}")
            sys.stderr.flush()
            self._width = len(text)

    def close(self) -> None:
        """Blank the line."""
        if self._width:
            sys.stderr.write(f"\r{' ' * self._width}\r")
            sys.stderr.flush()


def handle_messages_while_busy(widget: Any) -> None:
    """Handle a widget's clicks while the cell that created it runs.

    Front ends send the clicks to a subshell. Recent versions of ipykernel route messages of a widget to the
    shell that sent its last message, which is the busy shell. Without that stored shell id, a message stays
    in the subshell.
    """
    vars(widget.comm).pop("_reply_subshell_id", None)


def cancel(session: Session) -> None:
    """Cancel compiling, from any thread: the rest of the cell runs as plain Python.

    If nothing is compiling, or on the second call, interrupt the cell.
    """
    is_first = not session.is_cancelled
    session.is_cancelled = True
    if is_first:
        session.add_note(CANCELLED)
    interrupt()


def interrupt() -> None:
    """Interrupt the main thread as Ctrl-C does, from any thread."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        # A real signal also ends a system call that blocks the main thread.
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()
