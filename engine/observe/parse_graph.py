"""Parser of FX graphs that torch printed as Python: nodes, types, inputs, user lines."""

from __future__ import annotations

import functools
import keyword
import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from engine.records.bytecode import Span
from engine.records.graph import NodeRecord

DTYPES = {
    "f64": ("float64", 8), "f32": ("float32", 4), "f16": ("float16", 2), "bf16": ("bfloat16", 2), "i64": ("int64", 8), "i32": ("int32", 4),
    "i16": ("int16", 2), "i8": ("int8", 1), "u8": ("uint8", 1), "u16": ("uint16", 2), "u32": ("uint32", 4), "u64": ("uint64", 8),
    "b8": ("bool", 1), "c64": ("complex64", 8), "c128": ("complex128", 16), "c32": ("complex32", 4),
    "f8e4m3fn": ("float8_e4m3fn", 1), "f8e5m2": ("float8_e5m2", 1), "f8e4m3fnuz": ("float8_e4m3fnuz", 1), "f8e5m2fnuz": ("float8_e5m2fnuz", 1),
}  # fmt: skip

SHORT_DTYPES = {name: short for short, (name, _) in DTYPES.items()}
"""Short name by name, as the other records write dtypes."""

_TYPE = re.compile(r"(?P<dtype>[a-z]+\d\w*)\[(?P<shape>[^\]]*)\](?:\[(?P<stride>[^\]]*)\])?(?P<device>[a-z]*[:\d]*)")
_FORWARD_DEF = re.compile(r"^    def forward\(self(?P<inputs>.*)\):\s*$")
_INPUT = re.compile(r"(?P<name>\w+)\s*:\s*(?:\"(?P<type>[^\"]*)\"|torch\.\w+)")
_BODY_INPUT = re.compile(r"^        (?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")?(?:  #.*)?$")
"""Input of a joint graph, whose signature only has ``primals, tangents``."""
_STATEMENT = re.compile(r"^        (?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = (?P<code>.*)$")
_IN_PLACE = re.compile(
    r"^        (?P<written>\w+) (?P<operator>\*\*|//|<<|>>|[-+*/%@&|^])= (?P<operand>.*?);\s+"
    r"(?P<name>\w+)(?:: \"(?P<type>[^\"]*)\")? = (?P=written)\b"
)
"""``y += x;  y_1: "f32[2]" = y``: the node's name follows the statement."""
_SET_ITEM = re.compile(r"^        (?P<code>(?P<written>\w+)\[.*\] = .*?);\s+(?P<name>\w+) = (?P=written)\b")
_IN_PLACE_NAMES = {
    "+": "iadd", "-": "isub", "*": "imul", "/": "itruediv", "//": "ifloordiv", "%": "imod", "**": "ipow", "@": "imatmul",
    "&": "iand", "|": "ior", "^": "ixor", "<<": "ilshift", ">>": "irshift",
}  # fmt: skip
_FILE_COMMENT = re.compile(r"^ {8,9}# File: (?P<file>.*):(?P<line>\d+) in (?P<function>.*?), code: ?(?P<code>.*)$")
"""User line of the nodes below; before torch 2.7 it is indented by one more."""
_CALLEE = re.compile(r"^([A-Za-z_][\w.]*)\(")
_NAME = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*")
_SOURCE_NAME = re.compile(r"\b(?P<scope>[LG])_(?P<path>\w+)_(?=\s*:)")
_ASSIGNED = re.compile(r"(?:^ {8}|;\s+)(\w+)", re.MULTILINE)
_MODULE_DICT = re.compile(r"_(?:modules|parameters|buffers)_")
_COMMENT = re.compile(r"\s+# .*$")
_FREE_SUFFIX = re.compile(r";\s+\w+( = \w+)* = None\s*$")


def parse_nodes(text: str, prefix: str, compilation: str) -> tuple[NodeRecord, ...]:
    """Return the nodes of a printed graph, inputs first, without nested graphs.

    Nested graphs are bodies of higher-order operators.
    """
    nodes: dict[str, NodeRecord] = {}
    text = _with_short_inputs(text) if prefix == "fx" else text
    start = f"{prefix}:{compilation}:"
    for node in _nodes(text, lambda name: start + name, nodes):
        nodes[node.name] = node
    return tuple(nodes.values())


def _with_short_inputs(text: str) -> str:
    """Return a graph's text with inputs named as by this compiler: ``layers_0_weight``.

    Dynamo's names, here ``L_self_modules_layers_modules_0_parameters_weight_``, also spell the dicts of a module.
    """
    lines = text.splitlines()
    signature = " ".join(lines[: _body_start(lines)])
    taken = {"self", "torch", "operator", *_ASSIGNED.findall(text)}
    short: dict[str, str] = {}
    for match in _SOURCE_NAME.finditer(signature):
        path = _MODULE_DICT.sub("_", match["path"]).removeprefix("self_")
        name = f"self_{path}" if path[0].isdigit() or keyword.iskeyword(path) else path
        while name in taken:
            name += "_"
        taken.add(name)
        for scope in (match["scope"], match["scope"].lower()):
            short[f"{scope}_{match['path']}_"] = name
    return _NAME.sub(lambda m: short.get(m[0], m[0]), text) if short else text


@functools.lru_cache(maxsize=1024)
def _file_comment(line: str) -> Span | None:
    """Return the user's line that a comment names; most comments are equal to others."""
    where = _FILE_COMMENT.match(line)
    return Span(where["file"], int(where["line"])) if where else None


class _Statement(NamedTuple):
    """An assignment: name, type as text, code, operation, and the names in the code."""

    name: str
    type: str
    code: str
    op: str
    target: str
    names: tuple[str, ...]


@functools.lru_cache(maxsize=8192)
def _statement(line: str) -> _Statement | None:
    """Return the assignment on a line; most lines are in the graphs of several stages."""
    match = _STATEMENT.match(line)
    if match is None:
        return None
    code = match["code"]
    if code.endswith("None"):
        code = _FREE_SUFFIX.sub("", code)
    callee = _CALLEE.match(code)
    target = callee[1] if callee else code
    op = "call_function" if callee and "." in target else "call"
    return _Statement(match["name"], match["type"] or "", code, op, target, tuple(dict.fromkeys(_NAME.findall(code))))


def _nodes(text: str, node_id: Callable[[str], str], node_by_name: dict[str, NodeRecord]) -> Iterator[NodeRecord]:
    lines = text.splitlines()
    body = _body_start(lines)
    for match in _INPUT.finditer(" ".join(lines[:body])):
        yield _node(node_id, match["name"], "placeholder", match["name"], match["name"], match["type"] or "", (), None)
    span: Span | None = None
    for line in lines[body:]:
        mark = line[8:9]
        if mark == "#" or (mark == " " and line[9:10] == "#"):
            where = _file_comment(line)
            span = None if line.lstrip().startswith("# No stacktrace") else where or span
        elif mark == " " or not line.startswith("        "):
            continue
        elif mark == "r" and line.startswith("return", 8):
            code = _return_statement(lines[lines.index(line) :])
            yield _node(node_id, "output", "output", "output", code, "", _inputs(code, node_by_name), None)
            return
        elif statement := _statement(line):
            name, code = statement.name, statement.code
            if code == name and code in node_by_name:  # Dynamo names each input twice
                continue
            if "fx_pytree." in code:  # unpacks the arguments: no node
                continue
            inputs = tuple([node_by_name[n].id for n in statement.names if n in node_by_name])
            yield _node(node_id, name, statement.op, statement.target, f"{name} = {code}", statement.type, inputs, span)
        elif written := _IN_PLACE.match(line):
            code = f"({written['written']} {written['operator']}= {written['operand']})"
            target = f"operator.{_IN_PLACE_NAMES[written['operator']]}"
            name = written["name"]
            yield _node(
                node_id, name, "call_function", target, f"{name} = {code}", written["type"] or "", _inputs(code, node_by_name), span
            )  # fmt: skip
        elif stored := _SET_ITEM.match(line):
            code, name = stored["code"], stored["name"]
            yield _node(node_id, name, "call_function", "operator.setitem", code, "", _inputs(code, node_by_name), span)
        elif (body_input := _BODY_INPUT.match(line)) and body_input["name"] not in ("pass", "return"):
            yield _node(
                node_id,
                body_input["name"],
                "placeholder",
                body_input["name"],
                body_input["name"],
                body_input["type"] or "",
                (),
                None,
            )


def _body_start(lines: list[str]) -> int:
    """Return the index of the first line after ``def forward(...):``, which may span lines."""
    for index, line in enumerate(lines):
        if _FORWARD_DEF.match(line):
            return index + 1
        if line.rstrip() == "    ):":
            return index + 1
    return len(lines)


_UNFLATTENED = re.compile(r"return pytree\.tree_unflatten\(\[(.+?),?\], self\._out_spec\)")
"""The return of a joint graph."""


def _return_statement(lines: list[str]) -> str:
    """Return the statement at the head of some lines as one line, without comments."""
    statement = lines[0].strip()
    if statement.endswith(("(", "[")):
        parts = [_COMMENT.sub("", line).strip() for line in lines]
        end = next((n for n, part in enumerate(parts) if n and part.startswith((")", "]"))), len(parts))
        statement = f"{parts[0]}{' '.join(parts[1:end])}{''.join(parts[end : end + 1]) or ')'}"
    unflattened = _UNFLATTENED.fullmatch(statement)
    return f"return ({unflattened[1]},)" if unflattened is not None else statement


def _inputs(code: str, node_by_name: dict[str, NodeRecord]) -> tuple[str, ...]:
    names = dict.fromkeys(filter(node_by_name.__contains__, _NAME.findall(code)))
    return tuple([node_by_name[name].id for name in names])


def _node(
    node_id: Callable[[str], str], name: str, op: str, target: str, text: str, type_text: str, inputs: tuple[str, ...], span: Span | None
) -> NodeRecord:  # fmt: skip
    shape, stride, dtype, device, size = parse_tensor_type(type_text)
    stack = () if span is None else (span,)
    return NodeRecord(
        node_id(name), name, op, target, text, inputs, shape, stride, dtype, device, size, span=span, stack=stack,
        note="" if span is not None or op in ("placeholder", "output") else "torch's trace has no line of your code for it",
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def parse_tensor_type(text: str) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, str, str, int | None]:
    """Parse ``f32[2, 4][4, 1]cpu`` into shape, stride, dtype, device and bytes.

    Shape, stride and bytes are None if the value is no tensor.
    """
    match = _TYPE.search(text)
    if match is None or match["dtype"] not in DTYPES:
        return None, None, "", "", None
    dtype, width = DTYPES[match["dtype"]]
    shape = _numbers(match["shape"])
    stride = None if match["stride"] is None else _numbers(match["stride"])
    size = math.prod(map(int, shape)) * width if all(s.isdigit() for s in shape) else None
    return shape, stride, dtype, match["device"], size


def _numbers(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
