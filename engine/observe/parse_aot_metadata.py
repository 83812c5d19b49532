"""Parser of AOTAutograd's printed view-and-mutation metadata; evaluates nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine.observe.json_values import as_list
from engine.records.aot import AotRecord, ValueFacts

_TOKEN = re.compile(
    r"""\s*(?:(?P<call>[\w.]+)\(|(?P<name>\w+)=|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<mark>[\[\](){},:<>])|(?P<word>[^\s\[\](){},:<>=]+)|(?P<other>.))"""
)
MAX_TOKENS = 200_000
INPUT_FACTS = {
    "mutates_data": "its data is mutated",
    "mutates_metadata": "its metadata is mutated",
    "mutates_storage_metadata": "its storage is changed",
    "mutation_inductor_storage_resize": "its storage is resized",
    "requires_grad": "requires grad",
}
OUTPUT_FACTS = {
    "alias_of_input": "a view of an input",
    "is_input": "an input, returned unchanged",
    "alias_of_intermediate": "a view of an intermediate value",
    "alias_of_intermediate_save_as_output": "a view of an intermediate value that is also an output of the graph",
    "alias_of_intermediate_base_is_user_output": "a view of another output",
    "unsafe_view_alias": "a view that can be treated as an independent tensor",
    "custom_function_view": "a view created by an autograd.Function",
}


@dataclass
class _Call:
    """A constructor call ``Name(key=value, ...)``; values are texts, calls or lists of them."""

    name: str
    values: dict[str, object] = field(default_factory=dict)


def parse_aot_metadata(text: str) -> AotRecord | None:
    """Return the input and output facts in the printed metadata; None if it cannot be parsed.

    A graph that was traced with tangents is for training.
    """
    root = _parse(text)
    if root is None:
        return None
    inputs, outputs = _calls_in(root.values.get("input_info")), _calls_in(root.values.get("output_info"))
    if not inputs and not outputs:
        return None
    values = [ValueFacts(f"input {i}", "input", _input_facts(c)) for i, c in enumerate(inputs)]
    values += [ValueFacts(f"output {i}", "output", _output_facts(c)) for i, c in enumerate(outputs)]
    return AotRecord("training" if as_list(root.values.get("traced_tangents")) else "inference", tuple(values))


def _input_facts(call: _Call) -> tuple[str, ...]:
    return tuple(words for key, words in INPUT_FACTS.items() if call.values.get(key) == "True")


def _output_facts(call: _Call) -> tuple[str, ...]:
    kind = str(call.values.get("output_type", "")).rpartition(".")[2]
    base = str(call.values.get("base_idx", "None"))
    facts = [OUTPUT_FACTS[kind] + (f" ({base})" if base.isdigit() else "")] if kind in OUTPUT_FACTS else []
    return (*facts, "requires grad") if call.values.get("requires_grad") == "True" else tuple(facts)


def _calls_in(value: object) -> list[_Call]:
    return [c for c in as_list(value) if isinstance(c, _Call)]


def _parse(text: str) -> _Call | None:
    """Return the outermost constructor call; None if the text has none or is too long.

    Enum members (``<OutputType.non_alias: 1>``) become their names, all other values texts.
    """
    root: _Call | None = None
    stack: list[_Call | list[object]] = []
    keys: list[str] = [""]
    for count, match in enumerate(_TOKEN.finditer(text)):
        if count > MAX_TOKENS:
            return None
        kind, piece = match.lastgroup, match.group(match.lastgroup or 0)
        if kind == "call":
            call = _Call(piece)
            root = root or call
            _append_value(stack, keys, call)
            stack.append(call)
            keys.append("")
        elif kind == "name":
            keys[-1] = piece
        elif kind == "mark" and piece in "[({":
            items: list[object] = []
            _append_value(stack, keys, items)
            stack.append(items)
            keys.append("")
        elif kind == "mark" and piece in "])}":
            if len(stack) <= 1:
                return root
            stack.pop()
            keys.pop()
        elif kind in ("word", "text"):
            _append_value(stack, keys, piece)
    return root


def _append_value(stack: list[_Call | list[object]], keys: list[str], value: object) -> None:
    if not stack:
        return
    holder = stack[-1]
    if isinstance(holder, list):
        holder.append(value)
    elif keys[-1]:
        holder.values.setdefault(keys[-1], value)
