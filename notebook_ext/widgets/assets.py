"""The front end's modules and style sheets, joined: anywidget loads one module from a blob, where relative imports fail."""

from __future__ import annotations

import functools
import pathlib
import re

STATIC = pathlib.Path(__file__).parent.parent / "static"
MODULES = (
    "shared/dom.js",
    "shared/tokens.js",
    "shared/layout.js",
    "shared/keys.js",
    "shared/rows.js",
    "links.js",
    "pane.js",
    "linked.js",
    "guards.js",
    "recompiles.js",
    "timings.js",
    "breaks.js",
    "kernels.js",
    "graph.js",
    "steps.js",
    "tracer.js",
    "onion.js",
    "contents.js",
    "explorer.js",
)
"""In an order in which every module comes after those that it imports."""
STYLES = (
    "shared/frame.css",
    "linked.css",
    "guards.css",
    "recompiles.css",
    "timings.css",
    "breaks.css",
    "graph.css",
    "tracer.css",
    "onion.css",
    "contents.css",
)

_IMPORT = re.compile(r"^import .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(?:/\*\*(?:[^*]|\*(?!/))*\*/\s*|//.*)\n", re.MULTILINE)
_INDENT = re.compile(r"\n\s+")
_CAST = re.compile(r"/\*\* @type \{[^\n]*?\} \*/ ")


@functools.cache
def module_text() -> str:
    """All modules as one, without imports, inner exports and comments; the default export is anywidget's ``{render}``."""
    return "".join(_stripped((STATIC / name).read_text(encoding="utf-8")) for name in MODULES)


@functools.cache
def style_text() -> str:
    """All style sheets as one."""
    return "".join((STATIC / name).read_text(encoding="utf-8") for name in STYLES)


def _stripped(text: str) -> str:
    text = _EXPORT.sub("", _IMPORT.sub("", text))
    return _INDENT.sub("\n", _CAST.sub("", _COMMENT.sub("", text)))
