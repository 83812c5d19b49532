"""Disassembles cubins and links each SASS instruction to its PTX line.

nvdisasm takes 0.2 seconds to start, whatever its input. One run therefore disassembles the code of many kernels, as
raw instructions, and the line table is parsed here. ptxas writes two tables: ``.debug_line`` (source files, without
the chain of inlined calls) and ``.nv_debug_line_sass``, which refers to lines of the PTX text. By the second table,
SASS inherits the whole chain that PTX has.
"""

from __future__ import annotations

import functools
import pathlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.kernels.link_listings import NO_LOCATION_LABEL, generated_label, listing_of_links
from engine.records.kernels import LineLink, Listing

_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s*(.*?)\s*;?\s*$")
_BRANCH = re.compile(r"^((?:@!?U?P\w+ )?(?:BRA|BSSY|CALL|RET|WARPSYNC|JMP)\b.*?)\b0x([0-9a-f]+)$")


@dataclass(frozen=True)
class CubinCode:
    """Instructions of a cubin's kernel, and the PTX line of each address where it changes."""

    text: bytes
    ptx_lines: tuple[tuple[int, int], ...]


def disassemble(cubins: Sequence[bytes], architecture: int, ptx: Sequence[Listing]) -> tuple[Listing, ...]:
    """Disassemble cubins to SASS with links; ``ptx`` are the listings they come from.

    Raises:
        subprocess.SubprocessError: nvdisasm failed.
        ValueError: a cubin has an unexpected form.
    """
    codes = [read_cubin(cubin) for cubin in cubins]
    raw = b"".join(code.text for code in codes)
    instructions = _run_nvdisasm(raw, architecture)
    listings: list[Listing] = []
    base = 0
    for code, source in zip(codes, ptx, strict=True):
        end = base + len(code.text)
        own = [(address - base, text) for address, text in instructions if base <= address < end]
        listings.append(_sass_listing(own, base, code, source))
        base = end
    return tuple(listings)


def _run_nvdisasm(raw: bytes, architecture: int) -> list[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "code.bin"
        path.write_bytes(raw)
        suffix = "a" if architecture >= 90 else ""
        command = [_nvdisasm_path(), "-b", f"SM{architecture}{suffix}", str(path)]
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    matches = (_INSTRUCTION.match(line) for line in text.splitlines())
    return [(int(m[1], 16), m[2]) for m in matches if m]


@functools.cache
def _nvdisasm_path() -> str:
    from triton import knobs

    return str(knobs.nvidia.nvdisasm.path)


def _sass_listing(instructions: list[tuple[int, str]], base: int, code: CubinCode, ptx: Listing) -> Listing:
    """Build the listing of one kernel; branch targets become labels."""
    branches = {address: m for address, text in instructions if (m := _BRANCH.match(text))}
    starts = {address for address, _ in instructions}
    targets = sorted({t for m in branches.values() if (t := int(m[2], 16) - base) in starts})
    labels = {target: f".L_{number}" for number, target in enumerate(targets)}
    by_line = {link.line: link for link in ptx.links}
    ptx_line = _ptx_line_by_address(code, instructions)
    lines: list[str] = []
    links: list[LineLink] = []
    for address, text in instructions:
        if address in labels:
            lines.append(f"{labels[address]}:")
        if branch := branches.get(address):
            target = int(branch[2], 16) - base
            text = f"{branch[1]}{labels.get(target, hex(target))}"
        lines.append(f"  /*{address:04x}*/ {text};")
        links.append(_link_to_ptx(len(lines), text, by_line, ptx_line.get(address, 0)))
    return listing_of_links("sass", "\n".join(lines) + "\n", links)


def _link_to_ptx(line: int, text: str, by_line: dict[int, LineLink], ptx_line: int) -> LineLink:
    """Copy the link of the PTX line to a SASS line.

    NOPs after the code carry the line of the instruction before them, but are padding.
    """
    if text.startswith("NOP"):
        return LineLink(line, label=generated_label(text))
    source = by_line.get(ptx_line)
    if source is not None:
        return replace(source, line=line, ptx_line=ptx_line)
    # The opening brace and declarations of a PTX function: setup code of ptxas.
    label = "generated: prologue" if ptx_line else generated_label(text)
    return LineLink(line, label=label or NO_LOCATION_LABEL, ptx_line=ptx_line)


def _ptx_line_by_address(code: CubinCode, instructions: list[tuple[int, str]]) -> dict[int, int]:
    rows = sorted(code.ptx_lines)
    lines: dict[int, int] = {}
    at = -1
    for address, _ in instructions:
        while at + 1 < len(rows) and rows[at + 1][0] <= address:
            at += 1
        if at >= 0:
            lines[address] = rows[at][1]
    return lines


# ---- the cubin (ELF64, little endian) -----------------------------------------------------------------------------


def read_cubin(cubin: bytes) -> CubinCode:
    """Read the code and the PTX line table of a cubin that contains one kernel.

    Raises:
        ValueError: the cubin is not an ELF file, or contains no code.
    """
    sections = _elf_sections(cubin)
    texts = [data for name, data in sections if name.startswith(".text.")]
    if not texts:
        raise ValueError("The cubin holds no code.")
    tables = [data for name, data in sections if name == ".nv_debug_line_sass"]
    # With several functions it is unknown to which of them the table's addresses are relative.
    rows = _parse_line_table(tables[0]) if tables and len(texts) == 1 else ()
    return CubinCode(b"".join(texts), rows)


def _elf_sections(elf: bytes) -> list[tuple[str, bytes]]:
    if elf[:4] != b"\x7fELF":
        raise ValueError("The cubin is not an ELF file.")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    sections: list[tuple[str, bytes]] = []
    for name, kind, _, _, offset, length in headers:
        end = elf.index(b"\0", names + name)
        has_bytes = kind != 8  # SHT_NOBITS
        sections.append((elf[names + name : end].decode(), elf[offset : offset + length] if has_bytes else b""))
    return sections


class _ByteReader:
    """Reader of a cubin's line table at a position that advances."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def read_number(self, form: str) -> int:
        """Read one little-endian number in ``struct`` notation."""
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def read_leb128(self, *, signed: bool = False) -> int:
        """Read one LEB128 number."""
        value = shift = 0
        while True:
            byte = self.read_number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value - (1 << shift) if signed and byte & 0x40 else value


def _parse_line_table(table: bytes) -> tuple[tuple[int, int], ...]:
    """Run a DWARF 2 line program; return ``(address, line)`` where the line changes."""
    rows: list[tuple[int, int]] = []
    unit = 0
    while unit + 10 < len(table):
        read = _ByteReader(table, unit)
        end = unit + 4 + read.read_number("I")
        read.read_number("H")
        program = read.read_number("I")
        program += read.at
        step = read.read_number("B")
        read.read_number("B")
        line_base, line_range, opcode_base = read.read_number("b"), read.read_number("B"), read.read_number("B")
        operands = [read.read_number("B") for _ in range(opcode_base - 1)]
        read.at = program
        rows.extend(_run_line_program(read, min(end, len(table)), step, line_base, line_range, operands))
        unit = end
    return tuple(rows)


def _run_line_program(
    read: _ByteReader, end: int, step: int, line_base: int, line_range: int, operands: list[int]
) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    address, line = 0, 1
    while read.at < end:
        opcode = read.read_number("B")
        if opcode > len(operands):
            opcode -= len(operands) + 1
            address += opcode // line_range * step
            line += line_base + opcode % line_range
            rows.append((address, line))
        elif opcode == 0:
            address, line = _run_extended_opcode(read, address, line)
        elif opcode == 1:
            rows.append((address, line))
        elif opcode == 2:
            address += read.read_leb128() * step
        elif opcode == 3:
            line += read.read_leb128(signed=True)
        elif opcode == 8:
            address += (255 - len(operands) - 1) // line_range * step
        elif opcode == 9:
            address += read.read_number("H")
        else:
            for _ in range(operands[opcode - 1]):
                read.read_leb128()
    return rows


def _run_extended_opcode(read: _ByteReader, address: int, line: int) -> tuple[int, int]:
    """Run an extended opcode: end of sequence or set address. NVIDIA's own are skipped."""
    length = read.read_leb128()
    end = read.at + length
    kind = read.read_number("B") if length else 0
    if kind == 1:
        address, line = 0, 1
    elif kind == 2:
        address = read.read_number("Q" if length > 8 else "I")
    read.at = end
    return address, line
