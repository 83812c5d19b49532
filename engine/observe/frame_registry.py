"""Frame registry: which function each compiled frame is.

Frames are user functions, resume functions, and wrappers (named by the function they wrap).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from engine.observe.source_files import SourceFiles
from engine.records.bytecode import Span
from engine.records.session import FrameRecord, Session

_RESUME = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")
_VARIADIC_DEF = re.compile(r"def \w+\(.*\*\w+.*\*\*\w+")
_CLASS = re.compile(r"class (?P<name>\w+)")
_MAX_CLASS_LINES = 5_000
"""Maximum number of lines above a method that are searched for its class."""
_SELF = re.compile(r"source=L\['self'\], [^\n]{0,400}?type=<class '(?P<name>[^'\n]{1,300})'>")
_CALLEE = re.compile(r"source=L\['fn'\](?:\.func)*, [^\n]{0,400}?type=<class '(?P<name>[^'\n]{1,300})'>")
"""Type of the called object; behind ``.func``, of what a ``functools.partial`` calls."""
_CALLEE_READS = re.compile(r"L\['fn'\]\.[^\n]{1,400}?  # [^\n]{1,300}:\d+ in (\w+)$", re.MULTILINE)
"""Function that reads an argument of a ``functools.partial``: the one that it calls."""
_PARTIAL = "partial"
_CALLEE_NAME = re.compile(
    r"not ___dict_contains\('(forward|__call__)', L\['fn'\]\.__dict__\)|L\['fn'\]\.__code__, \d+\), type=<code object (\w+) "
)
"""Method of a called object, or name of a called function.

Torch 2.13 and later print no names of code objects.
"""
_DYNAMO_FRAMES = "/torch/_dynamo/external_utils.py"
"""File of the wrappers that Dynamo compiles in place of some callables.

These are callables of torch, and, until torch 2.12, functions without a source file.
"""
WRAPPER_NAMES = frozenset({"wrapper", "wrapped", "inner", "decorated", "decorate_context", "_fn", "wrapper_fn", "_wrapper", "wrapped_fn", "_wrapped"})  # fmt: skip

_METHODS = ("forward", "__call__")
"""Methods that are named with their class: every module has them."""

CallStack = list[tuple[str, Span]]
"""Function names and spans, outermost first."""


class FrameRegistry:
    """The frames of one process, registered as compilations of them start."""

    def __init__(self, session: Session, sources: SourceFiles, suffix: str) -> None:
        self._session = session
        self._sources = sources
        self._suffix = suffix
        self._records: dict[str, FrameRecord] = {}
        self._first_inlined: dict[str, str] = {}
        """Frame -> the first user function that was inlined into it."""
        self._function_names: dict[str, str] = {}
        """Frame -> the name of its function."""
        self._callers_after_break: dict[tuple[str, str], str] = {}
        """(file, function) of a call with a graph break -> the frame that calls it as Python."""
        self._self_types: dict[str, str] = {}
        """Frame -> class of its ``self``, if it is a method."""

    def __contains__(self, id: str) -> bool:
        return id in self._records

    def display_name(self, id: str) -> str:
        """Return the frame's name, or its number if no event has named it."""
        return self._records[id].name if id in self._records else f"frame {id}"

    def add(self, id: str, stack: CallStack) -> None:
        """Register a frame when it is first compiled."""
        name, span = stack[-1]
        self._function_names[id] = _RESUME.sub(r"\g<name>", name)
        caller = self._callers_after_break.get((span.file, self._function_names[id]), "")
        self._store(self._make_record(id, name, span, caller))

    def add_named(self, id: str, name: str) -> None:
        """Register a frame that is not a user function, or of which only the name is known."""
        if id not in self._records:
            self._store(FrameRecord(id, name + self._suffix, "", 0))

    def record_inlined(self, id: str, locations: list[tuple[str, str]]) -> None:
        """Record functions (file, name) inlined into a frame, in order.

        The first one that is no wrapper may name the frame.
        """
        if id in self._first_inlined or id not in self._records:
            return
        own = self._records[id].name.removesuffix(self._suffix)
        for file, name in locations:
            if name not in (own, *WRAPPER_NAMES) and not name.startswith("<") and self._sources.is_user_file(file):
                self._first_inlined[id] = name
                return

    def record_self_type(self, id: str, text: str) -> None:
        """Record the class of a frame's ``self``, from its printed guards.

        Of a wrapper of Dynamo's own, record what it calls.
        """
        is_wrapper = self._is_dynamo_frame(id)
        matches = () if id in self._self_types else (_CALLEE if is_wrapper else _SELF).finditer(text)
        types = [match["name"].rpartition(".")[2] for match in matches]
        if types:
            inner = (t for t in types if types[0] == _PARTIAL and t not in (_PARTIAL, "function"))
            self._self_types[id] = next(inner, types[0])
        if is_wrapper and (callee := _CALLEE_NAME.search(text)):
            self._first_inlined[id] = callee[1] or callee[2]
        elif is_wrapper and (reader := _CALLEE_READS.search(text)):
            self._first_inlined.setdefault(id, reader[1])

    def record_break(self, id: str, stack: list[tuple[str, str]]) -> None:
        """Record a graph break, with the functions (file, name) of its stack.

        The stack may begin with callers of the frame. Functions below its own were inlined; they will be frames that
        Python calls.
        """
        own = [i for i, (_, name) in enumerate(stack) if _RESUME.sub(r"\g<name>", name) == self._function_names.get(id)]
        inlined = stack[own[-1] + 1 :] if own else []
        self.record_inlined(id, inlined if own else stack)
        for location in inlined:
            self._callers_after_break.setdefault(location, id)

    def finish(self) -> None:
        """Set the final names: wrappers by the wrapped function, methods with their class."""
        for frame in tuple(self._records.values()):
            name = self._final_name(frame)
            if name != frame.name:
                self._store(replace(frame, name=name))

    def _final_name(self, frame: FrameRecord) -> str:
        plain = frame.name.removesuffix(self._suffix)
        if not frame.file:
            return frame.name
        if frame.role == "resume":
            owner = self._owner(self._records[frame.parent]) if frame.parent in self._records else ""
            return f"{owner}.{frame.name}" if owner and plain.partition(" (from line ")[0] in _METHODS else frame.name
        inside = self._first_inlined.get(frame.id)
        if inside is not None and self._is_wrapper(plain, frame):
            plain = inside
        elif plain in WRAPPER_NAMES and not self._sources.is_user_file(frame.file):
            name = self._only_operator(frame.id) if self._is_dynamo_frame(frame.id) else ""
            name = name or (_PARTIAL if self._self_types.get(frame.id) == _PARTIAL else "")
            return (name or f"{plain} ({os.path.basename(frame.file)})") + self._suffix
        owner = self._owner(frame)
        return (f"{owner}.{plain}" if owner and plain in _METHODS else plain) + self._suffix

    def _is_dynamo_frame(self, id: str) -> bool:
        return id in self._records and self._records[id].file.replace("\\", "/").endswith(_DYNAMO_FRAMES)

    def _only_operator(self, id: str) -> str:
        """Return the name of the only operator in a frame's graph; empty if it has several."""
        graphs = [g for c in self._session.compilations if c.frame == id for g in c.graphs if g.stage == "fx"]
        calls = [n for n in graphs[0].nodes if n.op.startswith("call")] if graphs else []
        is_function = len(calls) == 1 and calls[0].op == "call_function"
        return calls[0].target.rpartition(".")[2] if is_function else ""

    def _owner(self, frame: FrameRecord) -> str:
        """Return the class of a frame's ``self``; empty if it is no method."""
        return self._self_types.get(frame.id) or self._class_around(frame)

    def _class_around(self, frame: FrameRecord) -> str:
        """Return the class whose body defines a frame's function; empty if it is no method."""
        indent = _indent(self._sources.line(frame.file, frame.first_line))
        last = max(0, frame.first_line - _MAX_CLASS_LINES)
        for number in range(frame.first_line - 1, last if indent else frame.first_line, -1):
            line = self._sources.line(frame.file, number)
            if line.strip() and _indent(line) < indent:
                match = _CLASS.match(line.strip())
                return match["name"] if match else ""
        return ""

    def _is_wrapper(self, name: str, frame: FrameRecord) -> bool:
        head = " ".join(self._sources.line(frame.file, frame.first_line + i).strip() for i in range(3))
        return name in WRAPPER_NAMES or _VARIADIC_DEF.search(head) is not None

    def _store(self, frame: FrameRecord) -> None:
        self._records[frame.id] = frame
        self._session.add_frame(frame)

    def _make_record(self, id: str, name: str, span: Span, caller: str) -> FrameRecord:
        """Return the record of a frame; role "callee" if a frame called it after a graph break."""
        resume = _RESUME.match(name)
        if resume is None:
            return FrameRecord(id, name + self._suffix, span.file, span.line, "callee" if caller else "root", caller)
        line = int(resume["line"])
        same = [
            f for f in self._records.values() if f.file == span.file and self._function_names[f.id] == resume["name"]
        ]
        roots = [f for f in same if f.role != "resume"]
        # Methods of one name share a file: the function that the line is in begins last before it.
        parent = max(roots, key=lambda f: (f.first_line <= line, f.first_line), default=None)
        shown = f"{resume['name']} (from line {resume['line']}){self._suffix}"
        return FrameRecord(
            id, shown, span.file, span.line, "resume", parent.id if parent else "", Span(span.file, line)
        )  # fmt: skip


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
