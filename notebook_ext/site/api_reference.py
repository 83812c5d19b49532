"""Reference pages from docstrings: public names, magics, and the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import os
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any
from unittest import mock

from notebook_ext.site.markdown_html import Slugs, code_html, heading_html

MODULES: Mapping[str, str] = {
    "engine": "The compiler: compile, record, ask.",
    "notebook_ext": "The extension that `%load_ext notebook_ext` loads.",
    "notebook_ext.lesson": "Building blocks of lessons.",
}
"""Modules whose public names, those in ``__all__``, have an entry; each with a sentence."""
COMMAND_WIDTH = "96"
SIGNATURE_WIDTH = 90
_LITERAL = re.compile(r"``(.+?)``|`([^`]+)`")
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|See also):(.*)$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, [\w.]+)*): (.*)$", re.DOTALL)


def api_html(module: str, slugs: Slugs) -> str:
    """Return the reference of a module's public names: functions, objects, classes, errors."""
    home = importlib.import_module(module)
    parts = [heading_html(1, escape(module), slugs), docstring_html(home.__doc__ or "")]
    names = sorted(home.__all__, key=lambda name: _sort_rank(getattr(home, name)))
    parts += [part for name in names for part in _entry_html(name, getattr(home, name), slugs)]
    return "\n".join(parts)


def magics_html(slugs: Slugs) -> str:
    """Return the reference of the magics, with the options of ``%%compile`` as a table."""
    from notebook_ext.cell_arguments import COMPILE_OPTIONS
    from notebook_ext.lesson import LessonMagics
    from notebook_ext.magics import CompileMagics

    parts = [
        heading_html(1, "Magics", slugs),
        "<p>In a notebook, <code>%load_ext notebook_ext</code> or <code>%load_ext compile_explorer</code> adds these.</p>",
    ]
    for group in (CompileMagics, LessonMagics):
        for kind, mark in (("cell", "%%"), ("line", "%")):
            for name, method in group.magics[kind].items():
                parts.append(heading_html(2, f"<code>{mark}{escape(name)}</code>", slugs))
                text = _own_docstring(group, method)
                parts.append(docstring_html(text))
                if mark + name == "%%compile":
                    parts.append(_options_table(COMPILE_OPTIONS))
    return "\n".join(parts)


def command_line_html(slugs: Slugs) -> str:
    """Return the ``--help`` text of each command as HTML."""
    from notebook_ext.commands.console import COMMANDS

    parts = [
        heading_html(1, "Command line", slugs),
        "<p><code>compile-explorer COMMAND</code>, or <code>python -m notebook_ext COMMAND</code>.</p>",
    ]
    for name, command in COMMANDS.items():
        parts.append(heading_html(2, f"<code>{escape(name)}</code>", slugs))
        if name == "lab":  # It passes all options on to JupyterLab.
            parts.append(docstring_html(command.__doc__ or ""))
            continue
        shown = io.StringIO()
        with (
            mock.patch.dict(os.environ, {"COLUMNS": COMMAND_WIDTH}),
            contextlib.redirect_stdout(shown),
            contextlib.suppress(SystemExit),
        ):
            command(["--help"])
        parts.append(code_html(shown.getvalue(), "text"))
    return "\n".join(parts)


def docstring_html(text: str) -> str:
    """Return the HTML of a docstring of this project; all of it is text.

    Paragraphs, lists, indented code, and the sections ``Args``, ``Returns``, ``Raises`` and ``Yields`` are known.
    """
    return "".join(_text_blocks(inspect.cleandoc(text)))


def _text_blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        section = _SECTION.match(lines[0]) if lines else None
        if section and section.group(1) != "See also":
            yield f'<p class="docsection">{section.group(1)}</p>'
            yield _entries_html(inspect.cleandoc("\n".join(["", *lines[1:]])))
        elif lines and lines[0].startswith("    "):
            yield code_html(inspect.cleandoc("\n".join(["", *lines])), "python")
        elif any(line.startswith("- ") for line in lines):
            yield _list_html(lines)
        elif lines and all(line.startswith("``") for line in lines):
            yield f"<ul>{''.join(f'<li>{_literal_html(line)}</li>' for line in lines)}</ul>"
        elif lines:
            yield f"<p>{_literal_html(' '.join(lines))}</p>"


def _list_html(lines: list[str]) -> str:
    items: list[str] = []
    before: list[str] = []
    for line in lines:
        if line.startswith("- "):
            items.append(line[2:])
        elif items:
            items[-1] += f" {line.strip()}"
        else:
            before.append(line)
    head = f"<p>{_literal_html(' '.join(before))}</p>" if before else ""
    return f"{head}<ul>{''.join(f'<li>{_literal_html(item)}</li>' for item in items)}</ul>"


def _entries_html(text: str) -> str:
    """Return a list of named entries, else a paragraph."""
    items: list[str] = []
    for line in text.splitlines():
        if items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    matches = [_ENTRY.match(item) for item in items]
    if not all(matches):
        return f"<p>{_literal_html(' '.join(items))}</p>"
    rows = "".join(
        f"<dt><code>{escape(m.group(1))}</code></dt><dd>{_literal_html(m.group(2))}</dd>"
        for m in matches
        if m is not None
    )
    return f"<dl>{rows}</dl>"


def _literal_html(text: str) -> str:
    """Escape text and set names in backquotes as code."""
    parts = []
    at = 0
    for literal in _LITERAL.finditer(text):
        parts += [escape(text[at : literal.start()]), f"<code>{escape(literal.group(1) or literal.group(2))}</code>"]
        at = literal.end()
    return "".join([*parts, escape(text[at:])])


def _sort_rank(value: Any) -> int:
    """Return 0 for a function, 1 for another object, 2 for a class and 3 for an error."""
    if inspect.isclass(value):
        return 3 if issubclass(value, BaseException) else 2
    return 0 if inspect.isroutine(value) else 1


def _entry_html(name: str, value: Any, slugs: Slugs) -> Iterator[str]:
    yield heading_html(2, f"<code>{escape(name)}</code>", slugs)
    kind = value if inspect.isclass(value) or inspect.isroutine(value) else type(value)
    if inspect.isroutine(value) or (inspect.isclass(value) and not issubclass(value, BaseException)):
        yield code_html(f"{name}{_signature_text(value)}", "python")
    yield docstring_html(kind.__doc__ or "")
    if dataclasses.is_dataclass(kind) and kind is not value:  # a configuration object
        fields = "".join(
            f"<tr><td><code>{f.name}</code></td><td><code>{escape(str(f.default))}</code></td></tr>"
            for f in dataclasses.fields(kind)
        )
        yield f'<div class="wide" tabindex="0" role="group" aria-label="Defaults"><table><thead><tr><th>Setting</th><th>Default</th></tr></thead><tbody>{fields}</tbody></table></div>'
    if inspect.isclass(value):
        yield from _own_members(name, value)


def _own_members(owner: str, kind: type) -> Iterator[str]:
    """Yield the documented public methods and properties that the class itself defines."""
    rows = []
    for name, value in vars(kind).items():
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        text = inspect.getdoc(plain) or ""
        is_public = not name.startswith("_") and (inspect.isfunction(plain) or isinstance(value, property))
        if is_public and text:
            shown = f"{name}{_signature_text(plain)}" if inspect.isfunction(plain) else name
            rows.append(f"<dt><code>{escape(shown)}</code></dt><dd>{docstring_html(text)}</dd>")
    if rows:
        yield f'<p class="docsection">Members of {escape(owner)}</p><dl class="members">{"".join(rows)}</dl>'


class _Plain(str):
    """An annotation that was written as text; its repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature_text(value: Any) -> str:
    """Return the signature as written, with a line for each parameter if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = signature.replace(
        parameters=[p.replace(annotation=_annotation_text(p.annotation)) for p in signature.parameters.values()],
        return_annotation=_annotation_text(signature.return_annotation),
    )
    text = str(plain)
    if len(text) <= SIGNATURE_WIDTH:
        return text
    returned = "" if plain.return_annotation is inspect.Signature.empty else f" -> {plain.return_annotation}"
    marks = {p.kind for p in plain.parameters.values()}
    rows = [str(p) for p in plain.parameters.values()]
    first = next((n for n, p in enumerate(plain.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if first is not None and inspect.Parameter.VAR_POSITIONAL not in marks:
        rows.insert(first, "*")
    return "(\n" + "".join(f"    {row},\n" for row in rows) + f"){returned}"


def _annotation_text(annotation: Any) -> Any:
    return _Plain(annotation) if type(annotation) is str else annotation


def _own_docstring(group: type, method: str) -> str:
    """Return a magic's docstring as written.

    IPython appends the options to that of a magic with options.
    """
    text = inspect.getdoc(getattr(group, method)) or ""
    if text.startswith("::"):
        text = text.partition("\n\n")[2].partition("\n\n")[2].partition("positional arguments:")[0]
    return text


def _options_table(options: tuple[tuple[str, dict[str, Any]], ...]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(' '.join(filter(None, (flag, details.get('metavar')))))}</code></td><td>{_literal_html(details['help'])}</td></tr>"
        for flag, details in options
    )
    return (
        '<div class="wide" tabindex="0" role="group" aria-label="Options"><table><thead><tr><th>Option</th><th>Meaning</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
