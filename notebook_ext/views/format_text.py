"""Text for people: numbers with units, short forms, and sanitized untrusted text."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from engine.records.guards import name_accessors, name_iterator_reads

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_PRINTABLE = b"\t\n" + bytes(range(0x20, 0x7F))
_UNIX_PATH = re.compile(r"(?<![\w.~/])/(?:[\w.+@-]+/)+([\w.+@-]+)")
_WINDOWS_PATH = re.compile(r"(?<!\w)[A-Za-z]:[\\/](?:[^\\/\s\"'<>|:]+[\\/])+([^\\/\s\"'<>|:]+)")
_DIMENSION = re.compile(r"^(\w+) in dimension (\d+)$")
_ARRAY = re.compile(r"^[\[(](.*)[\])]$")


def sanitize(text: str) -> str:
    """Remove terminal escapes; replace control and direction-changing characters.

    The replacement is a visible mark. Newlines and tabs stay.
    """
    if text.isprintable() or (text.isascii() and not text.encode().translate(None, _PRINTABLE)):
        return text
    return _CONTROL.sub("\ufffd", _ANSI.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = 120) -> str:
    """Return the text on one line, truncated with an ellipsis after ``limit`` characters."""
    if len(text) <= limit and text.isprintable() and "  " not in text and text.strip() == text:
        return text
    flat = " ".join(sanitize(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def _shorten_type(text: str, limit: int) -> str:
    """Return a type's name, without its module if the whole name is longer than ``limit``."""
    return one_line(text if len(text) <= limit else text.rpartition(".")[2], 60)


def shorten_paths(text: str) -> str:
    """Shorten absolute paths to their last part, so that saved text shows no local folders."""
    return _WINDOWS_PATH.sub(r"…/\1", _UNIX_PATH.sub(r"…/\1", text))


def pluralize(count: int, word: str) -> str:
    """Return a count with its noun: ``1 graph``, ``2 graphs``, ``2 entries``."""
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word[:-1]}ies" if word.endswith("y") and word[-2] not in "aeiou" else f"{count:,} {word}s"


_SHORT = {"bool": "b8", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64"}
_SHORT |= {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "complex64": "c64"}


def tensor_type(dtype: str, shape: Sequence[str] | None) -> str:
    """Return a type such as ``f32[64, 128]``; only the dtype if there is no shape."""
    return _tensor_type(dtype, None if shape is None else tuple(shape))


@functools.lru_cache(maxsize=4096)
def _tensor_type(dtype: str, shape: tuple[str, ...] | None) -> str:
    # Numbers of a graph: torch's names of floats, like zf41, are little known, and a condition is the node's own text.
    short = _SHORT.get(dtype) or re.sub(
        r"^SymInt\((.*)\)$", r"int \1", re.sub(r"^Sym(Float|Bool)\(.*", _number_name, dtype)
    )
    return one_line(short if shape is None else f"{short}[{', '.join(shape)}]", 80)


def _number_name(match: re.Match[str]) -> str:
    return match[1].lower()


UNKNOWN_SIZE = "unknown until it runs"
"""Said of bytes that depend on a symbol whose value only a run gives."""

STACK_VALUE = "value at a graph break"
"""Name of a value that a graph break left on Python's stack."""


_LOOP = r"\b__stack_\d+(?:\.__reduce__\(\)\[1\]\[0\])*"
"""Matches the iterator of a loop, or the one that ``enumerate`` wraps."""


_MODULE_MEMBER = re.compile(r"(?:\.__dict__\['_modules'\]|\._(?:modules|parameters|buffers))\['(\w+)'\]")
"""A module, parameter or buffer as Dynamo reads it: ``._modules['block']``."""


@functools.lru_cache(maxsize=4096)
def source_name(origin: str) -> str:
    """Return the user's name of a source: ``L['x']._modules['a'].w`` is ``x.a.w``.

    A value that a graph break left on Python's stack has no name.
    """
    named = re.sub(r"\b[LGC]\['([^']*)'\]", r"\1", origin)
    named = _MODULE_MEMBER.sub(lambda m: f"[{m[1]}]" if m[1].isdecimal() else f".{m[1]}", named)
    ahead = rf"{_LOOP}\.__next__\(\+(\d+)\)"
    named = re.sub(ahead, lambda m: f"item {int(m[1]) + 1} from here of a loop with a graph break", named)
    counted = re.sub(rf"{_LOOP}\.__reduce__\(\)\[(?:2|1\]\[1)\]", "position of a loop with a graph break", named)
    counted = re.sub(rf"{_LOOP}\.__length_hint__\(\) > 0", "items left in a loop with a graph break", counted)
    text = name_iterator_reads(re.sub(r"\b__(?:stack_|_stack)\d+\b", STACK_VALUE, counted))
    return name_accessors(text, STACK_VALUE, "a ")


def is_stack_value(origin: str) -> bool:
    """Return True for a value that a graph break left on the stack for the resume function."""
    return "__stack_" in origin or "___stack" in origin  # ours or Dynamo's name


EQUALITY_KINDS = ("equals", "equal")
"""Kinds of guards on a value itself: the values say it all."""
_LONG_FLOAT = re.compile(r"(?<![\w.])-?\d+\.\d{5,}(?:e[-+]?\d+)?")


def shorten_floats(text: str) -> str:
    """Print long floats with four digits."""
    return _LONG_FLOAT.sub(lambda f: f"{float(f[0]):.4g}", text)


def format_change(origin: str, kind: str, expected: str, actual: str) -> str:
    """Return a change in its shortest form.

    If one size of a shape differs it is ``x.size(0) 4 -> 8``, else the kind of the guard and both values.
    """
    name = one_line(source_name(origin), 60)
    before, after = _split_items(expected), _split_items(actual)
    if before is not None and after is not None and len(before) == len(after):
        differing = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        accessor = {"shape": "size", "size": "size", "sizes": "size", "stride": "stride", "strides": "stride"}.get(kind)
        if len(differing) == 1 and accessor:
            i = differing[0]
            return f"{_member_text(name, f'{accessor}({i})')} {one_line(before[i], 40)} -> {one_line(after[i], 40)}"
    if actual.startswith("missing"):
        return f"{name} is missing"
    dimension = _DIMENSION.match(expected)
    if dimension and actual:
        return f"{_member_text(name, f'size({dimension[2]})')} {one_line(dimension[1], 40)} -> {one_line(actual, 40)}"
    shorten = _shorten_type if kind == "type" else one_line
    arrow = " -> ".join(shorten_floats(shorten(t, 40)) for t in (expected, actual) if t)
    if kind in EQUALITY_KINDS or "None" in (expected, actual):
        return f"{name} {arrow}" if actual else f"{name} != {arrow}"
    return f"{name} {one_line(kind.removeprefix('tensor '), 40)}: {arrow}".strip()


def _member_text(name: str, member: str) -> str:
    """Return ``x.size(0)``, or in words for a value that has no name."""
    if not name.endswith(STACK_VALUE):
        return f"{name}.{member}"
    return f"{member} of {'a ' if name == STACK_VALUE else ''}{name}"


def _split_items(text: str) -> Sequence[str] | None:
    match = _ARRAY.match(text.strip())
    return [item.strip() for item in match.group(1).split(",")] if match else None
