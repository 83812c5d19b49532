"""Joins the front end's ES modules and style sheets into bundles.

anywidget loads one module from a blob URL, in which relative imports fail. A page without a kernel
contains all modules as one. A widget's saved state contains its module, and every cell has a widget. So
a widget starts with the modules of the initial view only. The other views are fetched from the kernel
when they open, as functions of the initial module's exports.

A wheel has one file of all modules and style sheets, without comments: ``build_wheel.py`` writes it.
"""

from __future__ import annotations

import bz2
import functools
import json
import pathlib
import re
from collections.abc import Iterable

STATIC = pathlib.Path(__file__).parent.parent / "static"
PACKED_SOURCES = "sources.json.bz2"
"""File of a wheel, in ``STATIC``, with the texts of all modules and style sheets by name."""
INITIAL_MODULES = (
    "shared/dom.js",
    "shared/tokens.js",
    "shared/reasons.js",
    "shared/layout.js",
    "shared/keys.js",
    "shared/rows.js",
    "shared/views.js",
    "trail.js",
    "resize.js",
    "copy.js",
    "search.js",
    "finder.js",
    "newcell.js",
    "home.js",
    "links.js",
    "pane.js",
    "linked.js",
)
"""Modules that every widget loads; each module comes after the modules that it imports."""
LAZY_VIEW_MODULES = {
    "guards": ("guards.js",),
    "recompiles": ("recompiles.js",),
    "breaks": ("breaks.js",),
    "graph": ("layered.js", "picture.js", "graph.js"),
    "kernels": ("ladder.js", "heatmap.js", "tuning.js", "kernels.js"),
    "timings": ("timings.js",),
    "tracer": ("steps.js", "tracer.js"),
    "aot": ("aot_wrappers.js",),
    "memory": ("livebytes.js", "memory.js"),
    "compare": ("diff.js", "compare.js"),
    "compilations": ("compilations.js",),
    "backward": ("family.js", "backward.js"),
    "devices": ("devices.js",),
    "edit": ("edit.js",),
}
"""Modules of each view that is fetched when it opens."""
ENTRY_MODULE = "explorer.js"
MODULES = (*INITIAL_MODULES, *(name for names in LAZY_VIEW_MODULES.values() for name in names), ENTRY_MODULE)
STYLE_SHEETS = (
    "shared/frame.css",
    "home.css",
    "linked.css",
    "guards.css",
    "recompiles.css",
    "timings.css",
    "breaks.css",
    "graph.css",
    "kernels.css",
    "tracer.css",
    "aot_wrappers.css",
    "memory.css",
    "compare.css",
    "compilations.css",
    "backward.css",
    "edit.css",
)

_IMPORT = re.compile(r"^import \{(.*)\} from .*;\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
_NAME = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"^\s*(?:/\*\*(?:[^*]|\*(?!/))*\*/\s*|//.*)\n", re.MULTILINE)
_INDENT = re.compile(r"\n\s+")
_JOINED_LINES = re.compile(r"(?<=[;{,(\[])\n(?!$)")
"""Newlines that end no statement."""
_STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_RULE_ENDS = re.compile(r"(?<=[};{,])\s+|^\s+|;(?=\})")
"""White space and semicolons of a style sheet that separate nothing."""
_CAST = re.compile(r"/\*\* @type \{[^\n]*?\} \*/ ")


@functools.cache
def full_module_text() -> str:
    """Return all modules as one, without imports, inner exports and comments.

    The default export is ``{render}``, as anywidget expects.
    """
    return _join_sources(MODULES)


@functools.cache
def initial_module_text() -> str:
    """Return the initial module of a widget; it shares its exports with the lazy views."""
    names = ", ".join(exported_names(INITIAL_MODULES))
    return f"{_join_sources(INITIAL_MODULES)}Object.assign(SHARED, {{ {names} }});\n{_join_sources((ENTRY_MODULE,))}"


@functools.cache
def lazy_view_text(view: str) -> str:
    """Return the module of one lazy view.

    Its default export takes the shared exports of the initial module and registers the view.

    Raises:
        KeyError: there is no lazy view of that name.
    """
    names = LAZY_VIEW_MODULES[view]
    used = dict.fromkeys(name for file in names for name in imported_names(file) if name not in exported_names(names))
    return f"export default ({{ {', '.join(used)} }}) => {{\n{_join_sources(names)}}};\n"


@functools.cache
def joined_modules(files: tuple[str, ...]) -> str:
    """Return modules as one classic script, without imports, exports and comments."""
    return f"(() => {{\n{_join_sources(files)}}})();\n"


def exported_names(files: Iterable[str]) -> list[str]:
    """Return the names that modules export."""
    return [name for file in files for name in _NAME.findall(_read(file))]


def imported_names(file: str) -> list[str]:
    """Return the names that a module imports."""
    return [name.strip() for names in _IMPORT.findall(_read(file)) for name in names.split(",")]


@functools.cache
def style_text() -> str:
    """Return all style sheets as one, without comments."""
    return _without_style_comments("".join(map(_read, STYLE_SHEETS)))


def packed_sources() -> bytes:
    """Return modules and style sheets by file name, as compressed JSON, without comments."""
    modules = {file: _without_comments(_read(file)) for file in MODULES}
    styles = {file: _without_style_comments(_read(file)) for file in STYLE_SHEETS}
    return bz2.compress(json.dumps(modules | styles, ensure_ascii=False).encode())


def _join_sources(files: Iterable[str]) -> str:
    return "".join(_strip_module_syntax(_read(file)) for file in files)


def _read(file: str) -> str:
    return _unpacked_sources().get(file) or (STATIC / file).read_text(encoding="utf-8")


@functools.cache
def _unpacked_sources() -> dict[str, str]:
    path = STATIC / PACKED_SOURCES
    unpacked: dict[str, str] = json.loads(bz2.decompress(path.read_bytes())) if path.exists() else {}
    return unpacked


def _strip_module_syntax(text: str) -> str:
    return _JOINED_LINES.sub("", _without_comments(_EXPORT.sub("", _IMPORT.sub("", text))))


def _without_comments(text: str) -> str:
    return _INDENT.sub("\n", _CAST.sub("", _COMMENT.sub("", text)))


def _without_style_comments(text: str) -> str:
    return _RULE_ENDS.sub("", _STYLE_COMMENT.sub("", text))
