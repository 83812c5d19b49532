"""Whether dictionaries have not been written to, and classes and attributes are what they were: asked in one call of C where torch has it.

What answers in C are the nodes of Dynamo's guard trees, here over one tuple of all that is looked at. Optional: without them Python asks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any

from engine.guards.tensors import dict_version, guard_tree
from engine.ir.origin import MISSING

Ask = Callable[[], bool]
Attribute = tuple[Any, str, Any]
"""(object, attribute, value)."""

BRANCHES = 32
"""How many values one node has below it: a node looks for each new one among those that it has."""


def unwritten(dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[Attribute]) -> Ask:
    """A question: have no dictionaries been written to from now on, and are the objects' classes and the attributes these still?"""
    try:
        return in_c(dicts, objects, attributes)
    except (AttributeError, TypeError, RuntimeError):
        # Another torch, whose nodes are made in another way.
        return in_python(dicts, objects, attributes)


def in_python(dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[Attribute]) -> Ask:
    """The question asked by Python's own iterators."""
    versions = list(map(dict_version, dicts))
    types = list(map(type, objects))
    owners, names, values = ([a[i] for a in attributes] for i in range(3))

    def ask() -> bool:
        return (
            [*map(dict_version, dicts)] == versions
            and all(map(is_, map(type, objects), types))
            and all(map(is_, map(getattr, owners, names, repeat(MISSING)), values))
        )

    return ask


def in_c(dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[Attribute]) -> Ask:
    """The question asked by a tree of torch's nodes.

    Raises:
        AttributeError, TypeError, RuntimeError: this torch has none, or others.
    """
    nodes = [
        *((d, partial(_version, d)) for d in dicts),
        *((o, partial(_class, type(o))) for o in objects),
        *((a[0], partial(_attribute, a)) for a in attributes),
    ]
    tree = guard_tree()
    groups = [nodes[i : i + BRANCHES] for i in range(0, len(nodes), BRANCHES)]
    for index, group in enumerate(groups):
        branch = tree.tuple_getitem_manager(index, "", None, None)
        for place, (_, add) in enumerate(group):
            add(branch.tuple_getitem_manager(place, "", None, None))
    looked_at = tuple(tuple(value for value, _ in group) for group in groups)
    # Nodes compare addresses: what they compare with must live as long.
    kept = [*map(type, objects), *(value for _, _, value in attributes)]
    check: Callable[[Any], bool] = tree.check

    def ask(looked_at: Any = looked_at, check: Callable[[Any], bool] = check, kept: Any = kept) -> bool:
        return check(looked_at)

    return ask


def _version(space: Any, node: Any) -> None:
    node.add_dict_version_guard(space, _TOLD, None)


def _class(cls: type, node: Any) -> None:
    node.add_type_match_guard(id(cls), _TOLD, None)


def _attribute(attribute: Attribute, node: Any) -> None:
    _, name, value = attribute
    if name == "__code__":
        found = node.code_manager("", None, None)
    elif name == "__mro__":
        found = node.type_mro_manager("", None, None)
    else:
        found = node.getattr_manager(name, "", None, None)
    found.add_id_match_guard(id(value), _TOLD, None)


_TOLD = [""]
"""What a node would say of itself; nobody asks."""
