"""Whether dictionaries have not been written to, and classes and attributes are what they were: asked in one call of C where torch has it.

What answers in C are the nodes of Dynamo's guard trees, here over one tuple of all that is looked at. Optional: without them Python asks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any

from engine.guards.torch_c_helpers import dict_version, new_guard_tree
from engine.ir.sources.base import MISSING

UnchangedCheck = Callable[[], bool]
AttributeValue = tuple[Any, str, Any]
"""(object, attribute, value)."""

MAX_CHILDREN = 32
"""How many values one node has below it: a node looks for each new one among those that it has."""


def make_unchanged_check(
    dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[AttributeValue]
) -> UnchangedCheck:
    """A question: have no dictionaries been written to from now on, and are the objects' classes and the attributes these still?"""
    try:
        return make_c_check(dicts, objects, attributes)
    except (AttributeError, TypeError, RuntimeError):
        # Another torch, whose nodes are made in another way.
        return make_python_check(dicts, objects, attributes)


def make_python_check(
    dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[AttributeValue]
) -> UnchangedCheck:
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


def make_c_check(dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[AttributeValue]) -> UnchangedCheck:
    """The question asked by a tree of torch's nodes.

    Raises:
        AttributeError, TypeError, RuntimeError: this torch has none, or others.
    """
    nodes = [
        *((d, partial(_add_version_guard, d)) for d in dicts),
        *((o, partial(_add_type_guard, type(o))) for o in objects),
        *((a[0], partial(_add_attribute_guard, a)) for a in attributes),
    ]
    tree = new_guard_tree()
    groups = [nodes[i : i + MAX_CHILDREN] for i in range(0, len(nodes), MAX_CHILDREN)]
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


def _add_version_guard(space: Any, node: Any) -> None:
    node.add_dict_version_guard(space, _NO_MESSAGE, None)


def _add_type_guard(cls: type, node: Any) -> None:
    node.add_type_match_guard(id(cls), _NO_MESSAGE, None)


def _add_attribute_guard(attribute: AttributeValue, node: Any) -> None:
    _, name, value = attribute
    if name == "__code__":
        found = node.code_manager("", None, None)
    elif name == "__mro__":
        found = node.type_mro_manager("", None, None)
    else:
        found = node.getattr_manager(name, "", None, None)
    found.add_id_match_guard(id(value), _NO_MESSAGE, None)


_NO_MESSAGE = [""]
"""What a node would say of itself; nobody asks."""
