"""Normal form of what modified bytecode returns and writes, over the graph's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.records.bytecode import Instruction

_IGNORED = {"RESUME", "PRECALL", "NOP", "COPY_FREE_VARS", "MAKE_CELL", "CACHE", "KW_NAMES"}
_BUILDERS = {"BUILD_TUPLE", "BUILD_LIST", "BUILD_SET", "BUILD_MAP", "BUILD_CONST_KEY_MAP"}
_WRITES = (")", "]")
"""Last characters of calls and extended lists, dropped where only the effect counts."""
GRAPH = "graph"

Stack = list[str]


def returned_term(instructions: Sequence[Instruction]) -> str:
    """Return the returned value and the side effects as a term; empty if they cannot be read.

    ``tuple(graph[0], graph[1], graph[0])`` for a function whose third result is its first one again. Side effects
    follow in the order of their text, as independent statements may be exchanged.
    """
    stack: Stack = []
    names: dict[str, str] = {}
    effects: Stack = []
    try:
        for each in instructions:
            if each.opname.startswith("LOAD_FAST"):
                stack.append(names.get(each.argument, each.argument))
            elif each.opname == "STORE_FAST":
                names[each.argument] = stack.pop()
            elif each.opname == "RETURN_VALUE":
                return "; ".join([stack.pop(), *sorted(effects)])
            elif each.opname == "POP_TOP":
                effects += [dropped] if (dropped := stack.pop()).endswith(_WRITES) else []
            elif each.opname not in _IGNORED:
                _EFFECTS[each.opname](stack, each.argument)
    except (KeyError, IndexError, ValueError):
        return ""
    return ""


def _call(stack: Stack, argument: str) -> None:
    arguments = _pop_values(stack, int(argument))
    function = next((f for f in _pop_values(stack, 2) if f != "NULL"), "")
    stack.append(GRAPH if "'graph'" in function else f"{function}({', '.join(arguments)})")


def _pop_values(stack: Stack, count: int) -> Stack:
    if count > len(stack):
        raise IndexError
    popped = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return popped


def _unpack(stack: Stack, argument: str) -> None:
    value = stack.pop()
    stack.extend(f"{value}[{i}]" for i in reversed(range(int(argument))))


def _swap(stack: Stack, argument: str) -> None:
    n = int(argument)
    stack[-1], stack[-n] = stack[-n], stack[-1]


def _extend(stack: Stack, argument: str) -> None:
    values = stack.pop()
    stack[-int(argument)] += f".extend({values})"


def _item(stack: Stack, _argument: str) -> None:
    value, index = _pop_values(stack, 2)
    stack.append(f"{value}[{index}]")


def _build(kind: str) -> Callable[[Stack, str], None]:
    def build(stack: Stack, argument: str) -> None:
        count = int(argument) * (2 if kind == "BUILD_MAP" else 1) + (kind == "BUILD_CONST_KEY_MAP")
        stack.append(f"{kind.removeprefix('BUILD_').lower()}({', '.join(_pop_values(stack, count))})")

    return build


_EFFECTS: dict[str, Callable[[Stack, str], None]] = {
    "LOAD_CONST": lambda stack, argument: stack.append(argument),
    "PUSH_NULL": lambda stack, argument: stack.append("NULL"),
    "COPY": lambda stack, argument: stack.append(stack[-int(argument)]),
    "LOAD_GLOBAL": lambda stack, argument: stack.append(argument),
    "BINARY_SUBSCR": _item,
    "LOAD_ATTR": lambda stack, argument: stack.append(f"{stack.pop()}.{argument}"),
    "LIST_EXTEND": _extend,
    "SWAP": _swap,
    "CALL": _call,
    "UNPACK_SEQUENCE": _unpack,
    **{kind: _build(kind) for kind in _BUILDERS},
}
