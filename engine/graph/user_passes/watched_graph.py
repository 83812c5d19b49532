"""A graph that notes which line of the user's pass created each node."""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
from types import FrameType
from typing import Any

import torch.fx

from engine.ir.user_code_files import is_library_file
from engine.records.bytecode import Span

_OWN_FOLDER = str(pathlib.Path(__file__).parents[2]) + os.sep


MAX_CREATED_NODES = 100_000
"""Maximum number of nodes that one pass may create.

A pass that walks over its own new nodes never ends.
"""


class WatchedGraph(torch.fx.Graph):
    """A graph that notes the source line of each node created while ``is_watching``."""

    is_watching = False
    created_count = 0

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Create a node, and note the line of the caller."""
        node = super().create_node(*args, **kwargs)
        if self.is_watching:
            self.created_count += 1
            if self.created_count > MAX_CREATED_NODES:
                raise RecursionError(f"more than {MAX_CREATED_NODES:,} nodes were created: a loop may not end")
            node.meta[_LINE_KEY] = line_of_frame(sys._getframe(1))
        return node


_LINE_KEY = "engine_line_of_pass"
_TEXT_LINE_KEY = "engine_line_of_text"


class InvalidPassResult(Exception):
    """The graph of a pass or edit is invalid: at a node, at a line, or in general."""

    def __init__(self, sentence: str, node: torch.fx.Node | None = None, span: Span | None = None) -> None:
        self.node = node
        self.span = span
        super().__init__(sentence)


def set_line(node: torch.fx.Node, span: Span) -> None:
    """Note the line that a node was read from."""
    node.meta[_LINE_KEY] = span


def set_text_line(node: torch.fx.Node, span: Span) -> None:
    """Note the line of an edited text that shows a node, changed or not."""
    node.meta[_TEXT_LINE_KEY] = span


def text_line_of(node: torch.fx.Node) -> Span | None:
    """Return the line of an edited text that shows a node."""
    span: Span | None = node.meta.get(_TEXT_LINE_KEY)
    return span


def forget_lines(node: torch.fx.Node) -> None:
    """Forget the lines of passes and of texts that were noted at a node."""
    for key in (_LINE_KEY, _TEXT_LINE_KEY):
        node.meta.pop(key, None)


def line_of(node: torch.fx.Node) -> Span | None:
    """Return the line of the pass that created a node; None if it is not known."""
    span: Span | None = node.meta.get(_LINE_KEY)
    return span


def line_of_frame(frame: FrameType | None) -> Span | None:
    """Return the innermost line of the user's code among a frame and its callers."""
    while frame is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Span(frame.f_code.co_filename, frame.f_lineno)


def line_of_error(error: BaseException) -> Span | None:
    """Return the innermost line of the user's code in the traceback of an error."""
    frames = [s for s in traceback.extract_tb(error.__traceback__) if not _is_ours(s.filename) and s.lineno]
    return Span(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def _is_ours(file: str) -> bool:
    return is_library_file(file) or file.startswith(_OWN_FOLDER)
