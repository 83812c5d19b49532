"""Line tables of a CPU kernel: the line of each instruction of its LLVM IR.

LLVM carries the lines through its passes into the assembly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_DEFINITION = re.compile(r"define .*@([\w.$]+)\(")
_FIRST_ID = 10
"""Number of the first metadata node that is not part of the head."""
_HEAD = """\
!llvm.dbg.cu = !{{!0}}
!llvm.module.flags = !{{!1}}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !2, isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)
!1 = !{{i32 2, !"Debug Info Version", i32 3}}
!2 = !DIFile(filename: "{file}", directory: "")
!3 = !DISubroutineType(types: !{{null}})
"""
_FUNCTION = (
    '!{id} = distinct !DISubprogram(name: "{name}", scope: !2, file: !2, line: {line}, type: !3, scopeLine: {line}, '
    "spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !0)"
)


def with_line_table(text: str, file: str) -> str:
    """Return LLVM IR in which each instruction has its line of ``text`` as debug location."""
    lines, nodes, scope = list[str](), list[str](), 0
    for number, line in enumerate(text.split("\n"), 1):
        marked_line = line
        if match := _DEFINITION.match(line):
            scope = _FIRST_ID + len(nodes)
            nodes.append(_FUNCTION.format(id=scope, name=match[1], line=number))
            marked_line = f"{line.removesuffix('{')}!dbg !{scope} {{"
        elif line.startswith("}"):
            scope = 0
        elif scope and is_instruction(line):
            marked_line = f"{line}, !dbg !{_FIRST_ID + len(nodes)}"
            nodes.append(f"!{_FIRST_ID + len(nodes)} = !DILocation(line: {number}, column: 1, scope: !{scope})")
        lines.append(marked_line)
    return "\n".join([*lines, _HEAD.format(file=file) + "\n".join(nodes), ""])


def is_instruction(line: str) -> bool:
    """Return True if a line inside a function is an instruction: no label, comment or blank."""
    code = line.strip()
    return bool(code) and not code.startswith(";") and not code.endswith(":")


def function_at_line(text: str) -> dict[int, str]:
    """Return the name of the function that each line of LLVM IR is in."""
    return dict(_functions(text))


def _functions(text: str) -> Iterator[tuple[int, str]]:
    name = ""
    for number, line in enumerate(text.split("\n"), 1):
        if match := _DEFINITION.match(line):
            name = match[1]
        if name:
            yield number, name
        if line.startswith("}"):
            name = ""
