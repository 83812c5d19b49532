"""Source lines of instructions; one without a line gets that of its result's next use.

LLVM gives hoisted constants and merged instructions line 0, or the line of the branch before the loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from engine.kernels.debug_locations import InlineChain, InstructionLocation

_SPLIT = re.compile(r",\s*(?![^(\[{]*[)\]}])")
_REGISTER = re.compile(r"%?\b([xyz]mm\d+|[vqdshb]\d+|[xw]\d+|r\d+[dwb]?|[re]?(?:ax|bx|cx|dx|si|di|bp)|[abcd]l|k\d)\b")
_VALUE = re.compile(r"%[\w.$]+")
_SLOT = re.compile(r"-?\d+\(%rsp\)|\[sp(?:, #\d+)?\]")
_NO_RESULT = ("j", "b", "cb", "tb", "ret", "cmp", "test", "push", "pop", "stp", "ldp")
"""Branches, comparisons, and what saves and restores the caller's registers."""
_LEGACY = {f"{c}l": f"{c}x" for c in "abcd"}


def lines_by_use(
    locations: Sequence[InstructionLocation], weak_lines: frozenset[int], *, destination_first: bool
) -> list[InstructionLocation]:
    """Return the instructions; one without a line has that of the next use of its result.

    ``weak_lines``: lines of the kernel's text that hold control flow; only branches really come from them.
    """
    next_use: dict[str, InlineChain] = {}
    results: list[InstructionLocation] = []
    for location in reversed(locations):
        name, _, operands = location.text.partition("\t")
        parts = _SPLIT.split(operands) if operands else []
        target = parts.pop(0 if destination_first else -1) if parts else ""
        has_no_result = name.startswith(_NO_RESULT)
        written = set() if has_no_result else _storage(target)
        if not has_no_result and (
            not location.chain or not location.chain[-1].line or location.chain[-1].line in weak_lines
        ):
            chain = next((next_use[w] for w in written if w in next_use), ())
            location = location._replace(chain=chain or location.chain)
        results.append(location)
        for register in written:
            next_use.pop(register, None)
        if location.chain and location.chain[-1].line:
            address = _storage(target) if has_no_result or _reads_target(name, target) else set()
            for register in address.union(*map(_storage, parts)):
                next_use[register] = location.chain
    return results[::-1]


def values_by_use(locations: Iterable[InstructionLocation]) -> list[InstructionLocation]:
    """Return LLVM instructions; one without a line has that of the next use of its result."""
    next_use: dict[str, InlineChain] = {}
    results: list[InstructionLocation] = []
    for location in reversed(list(locations)):
        value, is_value, operation = location.text.partition(" = ")
        if is_value and not (location.chain and location.chain[-1].line):
            location = location._replace(chain=next_use.get(value, location.chain))
        results.append(location)
        if location.chain and location.chain[-1].line:
            next_use |= dict.fromkeys(_VALUE.findall(operation or value), location.chain)
    return results[::-1]


def _reads_target(name: str, target: str) -> bool:
    """Return True for an address, and for scalar arithmetic in place."""
    return "(" in target or "[" in target or name.startswith(("add", "sub", "imul", "and", "or", "xor", "sh"))


def _storage(operand: str) -> set[str]:
    """Return the registers and the stack slot of an operand, without their widths."""
    if slot := _SLOT.search(operand):
        return {slot[0]}
    return {_family(name) for name in _REGISTER.findall(operand)}


def _family(name: str) -> str:
    if name[1:3] == "mm":
        return f"v{name[3:]}"
    if name[0] in "vqdshbxw" and name[1:].isdigit():
        return f"{'x' if name[0] in 'xw' else 'v'}{name[1:]}"
    if name[0] == "r" and name[1].isdigit():
        return name.rstrip("dwb")
    name = _LEGACY.get(name, name)
    return name if name[0] not in "re" or name == "k0" else name[1:]
