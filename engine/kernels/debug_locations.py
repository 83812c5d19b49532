"""Parses debug locations of instructions: TTIR and TTGIR, LLVM IR, PTX, AMDGCN.

Each reader yields one ``InstructionLocation`` per instruction, with the whole chain of inlined calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple


class InlineFrame(NamedTuple):
    """One level of inlining: the file's base name and the line (0: none given)."""

    file: str
    line: int


InlineChain = tuple[InlineFrame, ...]
"""Frames of an instruction, the innermost call first."""


class InstructionLocation(NamedTuple):
    """One instruction of a listing: line (from 1), text without comments, inline chain."""

    line: int
    text: str
    chain: InlineChain


_FRAME = re.compile(r"([^\s\[\]:;]*):(\d+):\d+")


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _parse_frames(text: str) -> InlineChain:
    """Parse ``standard.py:170:27 @[ softmax.py:11:18 ]`` into frames."""
    return tuple(InlineFrame(_basename(file), int(line)) for file, line in _FRAME.findall(text))


# ---- assembly -----------------------------------------------------------------------------------------------------

_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")


def _assembly_locations(
    text: str, comment: str, is_instruction: Callable[[str], bool]
) -> Iterator[InstructionLocation]:
    """Yield the instructions of an assembly listing, with the location of the last ``.loc``.

    The comment of a ``.loc`` directive contains the inline chain. Since Triton 3.9 the directive itself names the ``.loc`` of
    the call site instead, which precedes it.
    """
    lines = text.splitlines()
    files = {m[1]: _basename(m[3] or m[2]) for line in lines if (m := _FILE.match(line))}
    chain: InlineChain = ()
    chains: dict[tuple[str, ...], InlineChain] = {}
    for number, line in enumerate(lines, 1):
        code, _, remark = line.partition(comment)
        if loc := _LOC.match(code):
            chain = _parse_frames(remark) or (InlineFrame(files.get(loc[1], ""), int(loc[2])),)
            if loc[4]:
                chain += chains.get(loc.group(4, 5, 6)) or (InlineFrame(files.get(loc[4], ""), int(loc[5])),)
            chains[loc.group(1, 2, 3)] = chain
        elif is_instruction(code := code.strip()):
            yield InstructionLocation(number, code, chain)


def ptx_locations(text: str) -> Iterator[InstructionLocation]:
    """Yield the instructions of a PTX listing; a call over several lines counts once.

    Its location is that of its first line.
    """
    state = {"in_body": False, "in_statement": False}

    def is_instruction(code: str) -> bool:
        if code in {"{", "}"}:
            state["in_body"] = code == "{" or state["in_body"]
            return False
        if not code or not state["in_body"] or code.startswith(".") or code.endswith(":"):
            return False
        starts = not state["in_statement"]
        state["in_statement"] = not code.endswith((";", "{", "}"))
        return starts and code not in {"}", "};"}

    body = text.partition("\n\t.section")[0]
    # The file table follows the code.
    tables = "\n".join(line for line in text.splitlines() if line.lstrip().startswith(".file"))
    end = body.count("\n") + 1
    return (p for p in _assembly_locations(f"{body}\n{tables}", "//", is_instruction) if p.line <= end)


def x86_locations(text: str) -> Iterator[InstructionLocation]:
    """Yield the instructions of an x86-64 listing in AT&T syntax."""
    return _assembly_locations(text, "#", _is_cpu_instruction)


def aarch64_locations(text: str) -> Iterator[InstructionLocation]:
    """Yield the instructions of an AArch64 listing."""
    return _assembly_locations(text, "//", _is_cpu_instruction)


def _is_cpu_instruction(code: str) -> bool:
    return bool(re.match(r"[a-z][\w.]*(\s|$)", code))


def amdgcn_locations(text: str) -> Iterator[InstructionLocation]:
    """Yield the instructions of an AMDGCN listing."""

    def is_instruction(code: str) -> bool:
        return bool(re.match(r"[a-z]\w*(\s|$)", code))

    body = text.partition("\n.Lfunc_end")[0]
    return _assembly_locations(body, ";", is_instruction)


# ---- LLVM IR ------------------------------------------------------------------------------------------------------

_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!(DI\w+)\((.*)\)\s*$", re.MULTILINE)
_FIELD = re.compile(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|!(\d+)|([^,]+))')


def llvm_locations(text: str) -> Iterator[InstructionLocation]:
    """Yield the instructions of an LLVM IR listing, by ``!dbg`` and ``inlinedAt``."""
    nodes = {m[1]: {f[1]: f[2] or f[3] or f[4] for f in _FIELD.finditer(m[3])} for m in _METADATA.finditer(text)}

    def file_of(scope: str | None) -> str:
        for _ in range(64):
            node = nodes.get(scope or "", {})
            if "file" in node:
                return _basename(nodes.get(node["file"], {}).get("filename", ""))
            scope = node.get("scope")
        return ""

    def chain_of(location: str | None) -> InlineChain:
        frames: list[InlineFrame] = []
        while location is not None and (node := nodes.get(location)) is not None and len(frames) < 64:
            frames.append(InlineFrame(file_of(node.get("scope")), int(node.get("line") or 0)))
            location = node.get("inlinedAt")
        return tuple(frames)

    in_body = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("define "):
            in_body = True
        elif line.startswith("}"):
            in_body = False
        elif (
            in_body
            and line.startswith("  ")
            and (code := line.strip())
            and not code.startswith((";", "]", "i32 ", "i64 "))
        ):
            match = re.search(r"!dbg !(\d+)", code)
            yield InstructionLocation(number, code, chain_of(match[1]) if match else ())


# ---- MLIR ---------------------------------------------------------------------------------------------------------

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)\s*$", re.MULTILINE)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r":(\d+):(\d+)(?: to (?:\d+)?:\d+)?")
_LAST_LOC = re.compile(r" loc\((?=[^()]*(?:\([^()]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)[^()]*)*\)[^()]*)*\)[ {]*$)")


class _MlirLocations:
    """MLIR location expressions and their aliases (``#loc12``)."""

    def __init__(self, text: str) -> None:
        self._aliases = {m[1]: m[2] for m in _ALIAS.finditer(text)}
        self._known: dict[str, InlineChain] = {}

    def chain(self, expression: str) -> InlineChain:
        """Return the chain of the expression between the parentheses of ``loc(...)``."""
        chain = self._known.get(expression)
        if chain is None:
            self._known[expression] = ()  # Ends the recursion of an alias that refers to itself.
            chain = self._known[expression] = self._parse(expression, 0)[0]
        return chain

    def _parse(self, text: str, at: int) -> tuple[InlineChain, int]:
        """Parse the location at ``at``; return its chain and its end."""
        if alias := re.compile(r"#loc\d*").match(text, at):
            return self.chain(self._aliases.get(alias[0], "unknown")), alias.end()
        if name := _STRING.match(text, at):
            return self._parse_named(text, name)
        if text.startswith("callsite(", at):
            callee, at = self._parse(text, at + len("callsite("))
            caller, at = self._parse(text, at + len(" at "))
            return callee + caller, at + 1
        if text.startswith("fused", at):
            return self._parse_fused(text, at)
        end = re.compile(r"[\w#.]*").match(text, at)
        return (), end.end() if end else at

    def _parse_named(self, text: str, name: re.Match[str]) -> tuple[InlineChain, int]:
        if position := _POSITION.match(text, name.end()):
            return (InlineFrame(_basename(name[1]), int(position[1])),), position.end()
        if text.startswith("(", name.end()):
            inner, at = self._parse(text, name.end() + 1)
            return inner, at + 1
        return (), name.end()

    def _parse_fused(self, text: str, at: int) -> tuple[InlineChain, int]:
        """Parse a fused location; return the first chain that is not empty."""
        at = text.find("[", at) + 1
        first: InlineChain = ()
        while 0 < at < len(text) and text[at - 1] != "]":
            chain, at = self._parse(text, at)
            first = first or chain
            at += 2 if text.startswith(", ", at) else 1
        return first, at


_CONSTANT = re.compile(r"(%[\w.]+) = arith\.constant\b")


def mlir_locations(text: str) -> Iterator[InstructionLocation]:
    """Return the operations of a TTIR or TTGIR listing, in order.

    The location of an operation with a region follows the region. The compiler moves constants to the front and
    drops their locations: a constant without one has that of its first use.
    """
    locations = _MlirLocations(text)
    open_regions: list[tuple[int, str]] = []
    operations: list[InstructionLocation] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.strip()
        if not code or code.startswith(("#", "^", "//", "{-#")):
            continue
        match = _LAST_LOC.search(line)
        chain = locations.chain(line[match.end() :].rstrip(" {").removesuffix(")")) if match else ()
        instruction = line[: match.start()].strip() if match else code
        if code.startswith("}"):
            if code.endswith("{"):  # `} else {`: the operation continues.
                continue
            opened = open_regions.pop() if open_regions else None
            if opened is not None and not opened[1].startswith(("module", "tt.func", '"builtin')):
                operations.append(InstructionLocation(*opened, chain))
        elif code.endswith("{"):
            open_regions.append((number, instruction))
        else:
            operations.append(InstructionLocation(number, instruction, chain))
    operations.sort()
    return (location if location.chain else _with_location_of_use(location, operations) for location in operations)


def _with_location_of_use(location: InstructionLocation, locations: list[InstructionLocation]) -> InstructionLocation:
    constant = _CONSTANT.match(location.text)
    if constant is None:
        return location
    use = re.compile(re.escape(constant[1]) + r"(?![\w.])")
    later = (p for p in locations if p.line > location.line and p.chain and use.search(p.text))
    return location._replace(chain=next(later, location).chain)
