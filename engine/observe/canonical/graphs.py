"""Normal form of a recorded graph, and the comparison of two graphs by structure."""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.observe.canonical.call_arguments import NodeValue
from engine.observe.canonical.calls import canonical_call
from engine.observe.canonical.parse_node_text import read_call
from engine.records.graph import GraphRecord, NodeRecord

_SYMBOL = re.compile(r"\b([su]+)\d+\b")
SavedValues = tuple[Mapping[str, NodeValue], Mapping[str, NodeValue]]
_INPUT_PARTS = re.compile(r"(?:^|_)(?:modules|parameters|buffers|l)(?=_)")


@dataclass(frozen=True, slots=True)
class CanonicalNode:
    """One operation in normal form.

    ``key`` is equal for equal computations of equal inputs. ``local`` leaves out which values are read:
    operator, constants and types alone. ``is_in_place``: it writes its first operand.
    """

    node: NodeRecord
    key: str
    local: str
    inputs: tuple[str, ...]
    is_in_place: bool


@dataclass(frozen=True, slots=True)
class CanonicalGraph:
    """A graph in normal form: its operations in order, and the keys of what it returns."""

    nodes: tuple[CanonicalNode, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphInputs:
    """Facts about the inputs of a graph that other graphs of its compilation have.

    ``names``: inputs that the graph only numbers, by what the traced graph calls them. ``forward``: of a backward,
    the graph whose values it reads by name.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    forward: GraphRecord | None = None


@dataclass(frozen=True, slots=True)
class GraphDifference:
    """Nodes of two graphs without an equal in the other; none if both compute the same.

    ``is_reordered``: the same operations, in another order. ``has_other_order_of_outputs``: the same results, in another order.
    """

    first: tuple[NodeRecord, ...] = ()
    second: tuple[NodeRecord, ...] = ()
    is_reordered: bool = False
    has_other_outputs: bool = False
    has_other_order_of_outputs: bool = False

    @property
    def is_same(self) -> bool:
        """True if both graphs compute the same."""
        return not self.first and not self.second and not self.has_other_outputs and not self.has_other_order_of_outputs


def compare_graphs(
    first: GraphRecord,
    second: GraphRecord,
    *,
    with_strides: bool = True,
    inputs: tuple[GraphInputs, GraphInputs] = (GraphInputs(), GraphInputs()),
) -> GraphDifference:
    """Compare two graphs by structure, not by the names of their values.

    Spellings of one computation are equal: positional and keyword arguments, methods and functions, defaults,
    negative dimensions, operands of commutative operators in either order. Inputs of other sizes are a difference
    of the inputs, not of each operation. ``with_strides``: also compare the strides of results, on which
    graphs of one compiler agree. ``inputs``: what is known of the inputs of each graph.
    """
    saved = _saved_values(inputs, with_strides=with_strides)
    mine, theirs = _inputs_by_name(first, inputs[0], saved[0]), _inputs_by_name(second, inputs[1], saved[1])
    names = _match_inputs(mine, theirs)
    resized = _inputs_with_other_sizes(mine, theirs, names)
    own_names = {n.name: name for name, n in mine.items()}
    a = _Normalizer(with_strides, with_sizes=not resized[0], input_names=own_names, saved=saved[0]).run(first)
    b = _Normalizer(with_strides, with_sizes=not resized[0], input_names=names, saved=saved[1]).run(second)
    keys_a, keys_b = [n.key for n in a.nodes], [n.key for n in b.nodes]
    if Counter(keys_a) == Counter(keys_b):
        parting = None if keys_a == keys_b else _first_exchanged_write(a.nodes, b.nodes)
        if parting is not None:
            return GraphDifference((*resized[0], parting[0].node), (*resized[1], parting[1].node))
        has_other_order = a.outputs != b.outputs and Counter(a.outputs) == Counter(b.outputs)
        return GraphDifference(
            *resized,
            is_reordered=keys_a != keys_b,
            has_other_outputs=a.outputs != b.outputs and not has_other_order,
            has_other_order_of_outputs=has_other_order,
        )
    key, local = operator.attrgetter("key"), operator.attrgetter("local")
    only_a, only_b = _surplus_nodes(a.nodes, b.nodes, key), _surplus_nodes(b.nodes, a.nodes, key)
    # Nodes that differ only because an operand does are not shown.
    shown_a, shown_b = _surplus_nodes(only_a, only_b, local), _surplus_nodes(only_b, only_a, local)
    if not shown_a and not shown_b:
        shown_a, shown_b = _first_in_data_flow(only_a), _first_in_data_flow(only_b)
    return GraphDifference((*resized[0], *(n.node for n in shown_a)), (*resized[1], *(n.node for n in shown_b)))


def _saved_values(inputs: tuple[GraphInputs, GraphInputs], *, with_strides: bool) -> SavedValues:
    """Return the keys of the values that two backwards may read of their forwards, by name.

    A value's name says only which one of its operator it is, and that changes with the order of statements.
    """
    first, second = (i.forward for i in inputs)
    if first is None or second is None:
        return {}, {}
    mine, theirs = _inputs_by_name(first, inputs[0], {}), _inputs_by_name(second, inputs[1], {})
    own_names = {n.name: name for name, n in mine.items()}
    normalizers = tuple(_Normalizer(with_strides, input_names=n) for n in (own_names, _match_inputs(mine, theirs)))
    for normalizer, graph in zip(normalizers, (first, second), strict=True):
        normalizer.run(graph)
    return normalizers[0].operands, normalizers[1].operands


def _first_exchanged_write(
    first: Sequence[CanonicalNode], second: Sequence[CanonicalNode]
) -> tuple[CanonicalNode, CanonicalNode] | None:
    """Return the first nodes whose order a write makes count; None if there are none."""
    if not any(n.is_in_place for n in first):
        return None
    uses = _uses_of_written(first), _uses_of_written(second)
    for storage in uses[0].keys() | uses[1].keys():
        for a, b in zip(uses[0].get(storage, []), uses[1].get(storage, []), strict=False):
            if a.key != b.key:
                return a, b
    return None


def _uses_of_written(nodes: Sequence[CanonicalNode]) -> dict[str, list[CanonicalNode]]:
    """Return the nodes that may use each storage that some node writes, in order.

    A result may be a view of each operand.
    """
    storages: dict[str, frozenset[str]] = {}
    uses: dict[str, list[CanonicalNode]] = {}
    written: set[str] = set()
    for node in nodes:
        reached = [storages.get(key, frozenset((key,))) for key in node.inputs]
        storages[node.key] = frozenset((node.key,)).union(*reached)
        written |= reached[0] if node.is_in_place and reached else set()
        for storage in storages[node.key]:
            uses.setdefault(storage, []).append(node)
    return {storage: uses[storage] for storage in written if storage in uses}


def _inputs_with_other_sizes(
    mine: Mapping[str, NodeRecord], theirs: Mapping[str, NodeRecord], names: Mapping[str, str]
) -> tuple[tuple[NodeRecord, ...], tuple[NodeRecord, ...]]:
    """Return the inputs of both graphs that have one name and other fixed sizes."""
    named = ((names[n.name], n) for n in theirs.values())
    pairs = [(mine[k], n) for k, n in named if k in mine and _static_shape(mine[k]) != _static_shape(n)]
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _inputs_by_name(
    graph: GraphRecord, graph_inputs: GraphInputs, saved: Mapping[str, NodeValue]
) -> dict[str, NodeRecord]:
    """Return the inputs that are no saved values, by a name that all graphs share."""
    inputs = (n for n in graph.nodes if n.op == "placeholder" and n.name not in saved)
    return {graph_inputs.names.get(n.name) or input_name(n.name): n for n in inputs}


def _static_shape(node: NodeRecord) -> tuple[str, ...] | None:
    return None if node.shape is None else tuple(s if s.isdigit() else "symbol" for s in node.shape)


@dataclass(slots=True)
class _Normalizer:
    with_strides: bool
    with_sizes: bool = True
    input_names: Mapping[str, str] = field(default_factory=dict)
    saved: Mapping[str, NodeValue] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    operands: dict[str, NodeValue] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def run(self, graph: GraphRecord) -> CanonicalGraph:
        operations = []
        for node in sorted((n for n in graph.nodes if n.name in self.input_names), key=self._input_name):
            self._type(node)  # numbers its size symbols, which statements in another order mention in another order
        for node in graph.nodes:
            if node.name in self.saved and node.op == "placeholder":
                self.operands[node.name] = self.saved[node.name]
            elif node.op == "placeholder":
                self._add(node, f"input {self._input_name(node)}")
            elif node.op == "output":
                self.outputs = self._outputs(node)
            elif node.op == "get_attr":
                self._add(node, f"attribute {node.target}")
            else:
                operations.append(self._operation(node))
        return CanonicalGraph(tuple(operations), self.outputs)

    def _input_name(self, node: NodeRecord) -> str:
        return self.input_names[node.name]

    def _operation(self, node: NodeRecord) -> CanonicalNode:
        call = read_call(node.text, self.operands.get)
        is_in_place = False
        if call is None:
            local, computation = f"{node.target} {self._type(node)}", node.text
        else:
            name, arguments = canonical_call(call, is_float="float" in node.dtype)
            is_in_place = _is_in_place(name) or dict(arguments).get("inplace") is True
            shown = self._rename_symbols(repr(arguments))
            local = f"{name} {_KEY.sub('value', shown)} {self._type(node)}"
            computation = f"{name} {shown}"
        inputs = self._inputs(node)
        self._add(node, computation)
        if is_in_place and node.inputs:  # what is read from now on is the written value
            written = node.inputs[0].rpartition(":")[2]
            for name in {written, _name_in_code(written)} & self.operands.keys():
                self.operands[name] = replace(self.operands[name], key=self.operands[node.name].key)
        return CanonicalNode(node, self.operands[node.name].key, local, inputs, is_in_place)

    def _add(self, node: NodeRecord, computation: str) -> None:
        key = _digest(f"{computation} {self._type(node)}")
        self.operands[node.name] = NodeValue(key, node.shape)
        if node.op == "placeholder":
            self.operands.setdefault(_name_in_code(node.name), self.operands[node.name])

    def _inputs(self, node: NodeRecord) -> tuple[str, ...]:
        names = (i.rpartition(":")[2] for i in node.inputs)
        return tuple(self.operands[n].key for n in names if n in self.operands)

    def _outputs(self, node: NodeRecord) -> tuple[str, ...]:
        names = re.findall(r"\w+", node.text.removeprefix("return"))
        return tuple(self.operands[n].key if n in self.operands else n for n in names)

    def _type(self, node: NodeRecord) -> str:
        shape = "" if node.shape is None else ",".join(node.shape) if self.with_sizes else str(len(node.shape))
        has_stride = node.stride is not None and self.with_strides and self.with_sizes
        stride = ",".join(node.stride or ()) if has_stride else ""
        device = node.device.partition(":")[0]
        return self._rename_symbols(f"{node.dtype if node.shape is not None else ''}[{shape}][{stride}]{device}")

    def _rename_symbols(self, text: str) -> str:
        """Return the text with size symbols numbered in the order of their first mention."""
        return _SYMBOL.sub(lambda m: self.symbols.setdefault(m[0], f"size{len(self.symbols)}"), text)


_KEY = re.compile(r"'#[0-9a-f]{16}'")


def _is_in_place(operator: str) -> bool:
    return operator == "setitem" or (operator.endswith("_") and not operator.endswith("__"))


def _name_in_code(name: str) -> str:
    """Return an input's name in torch's code: ``l_x_`` where its signature has ``L_x_``."""
    return name.replace("L_", "l_", 1)


def _digest(text: str) -> str:
    return "#" + hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def input_name(name: str) -> str:
    """Return the name of a graph's input as both compilers would spell it.

    ``L_self_modules_l_parameters_weight_`` and ``self_l_weight`` are one input.
    """
    return _INPUT_PARTS.sub("", name.lower()).strip("_")


def _match_inputs(mine: Mapping[str, NodeRecord], theirs: Mapping[str, NodeRecord]) -> dict[str, str]:
    """Return a name for each input of the second graph, by its own name there.

    Inputs that only the second graph has take the names of the first graph's unmatched inputs of equal type: those
    of equal sizes first, then those with the longest common end of their names.
    """
    free = [name for name in mine if name not in theirs]
    matches: dict[str, str] = {}
    for name, node in theirs.items():
        alike = [] if name in mine else [f for f in free if _same_type(mine[f], node)]
        scores = [(_static_shape(mine[f]) == _static_shape(node), _common_end(f, name)) for f in alike]
        equal = alike[scores.index(max(scores))] if alike else None
        if equal is not None:
            free.remove(equal)
        matches[node.name] = equal or name
    return matches


def _common_end(first: str, second: str) -> int:
    """Return the length of the common suffix of two names."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _same_type(first: NodeRecord, second: NodeRecord) -> bool:
    ranks = [None if n.shape is None else len(n.shape) for n in (first, second)]
    return ranks[0] == ranks[1] and (ranks[0] is None or first.dtype == second.dtype)


def _surplus_nodes(
    nodes: Iterable[CanonicalNode], others: Iterable[CanonicalNode], form: Callable[[CanonicalNode], str]
) -> list[CanonicalNode]:
    """Return the nodes that have no equal of this form among the others."""
    left = Counter(map(form, others))
    surplus = []
    for node in nodes:
        if left[form(node)] > 0:
            left[form(node)] -= 1
        else:
            surplus.append(node)
    return surplus


def _first_in_data_flow(nodes: Sequence[CanonicalNode]) -> list[CanonicalNode]:
    """Return the nodes that read no other listed node: the first differences in data flow."""
    keys = {n.key for n in nodes}
    return [n for n in nodes if not keys & set(n.inputs)]
