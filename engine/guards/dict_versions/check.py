"""Check that dicts, classes and attributes are unchanged, if possible in one C call.

The C check is a Dynamo guard tree over one tuple of all values. It is optional; the Python check is
equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_
from typing import Any

from engine.ir.sources.base import MISSING
from engine.torch_private.guard_helpers import RootGuardManager, dict_version

UnchangedCheck = Callable[[], bool]
AttributeValue = tuple[Any, str, Any]
"""(object, attribute, value)."""

MAX_CHILDREN = 32
"""Maximum number of children of a guard tree node.

A node searches its children linearly when one is added.
"""


def make_unchanged_check(
    dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[AttributeValue]
) -> UnchangedCheck:
    """Return a check that dict versions, object classes and attribute values are unchanged."""
    try:
        return make_c_check(dicts, objects, attributes)
    except (AttributeError, TypeError, RuntimeError):
        # Another torch version with other node constructors.
        return make_python_check(dicts, objects, attributes)


def make_python_check(
    dicts: Sequence[Any], objects: Sequence[Any], attributes: Sequence[AttributeValue]
) -> UnchangedCheck:
    """Return the check in Python, for a torch version whose guard tree differs."""
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
    """Return the check in C, as a tree of torch's guard nodes.

    Raises:
        AttributeError, TypeError, RuntimeError: this torch has no guard nodes, or different ones.
    """
    nodes = [
        *((d, partial(_add_version_guard, d)) for d in dicts),
        *((o, partial(_add_type_guard, type(o))) for o in objects),
        *((a[0], partial(_add_attribute_guard, a)) for a in attributes),
    ]
    tree: Any = RootGuardManager()
    groups = [nodes[i : i + MAX_CHILDREN] for i in range(0, len(nodes), MAX_CHILDREN)]
    for index, group in enumerate(groups):
        branch = tree.tuple_getitem_manager(index, "", None, None)
        for position, (_, add) in enumerate(group):
            add(branch.tuple_getitem_manager(position, "", None, None))
    looked_at = tuple(tuple(value for value, _ in group) for group in groups)
    ask: Any = partial(tree.check, looked_at)
    # Nodes compare addresses, so the expected objects must stay alive.
    ask.referents = [*map(type, objects), *(value for _, _, value in attributes)]
    return ask  # type: ignore[no-any-return]


def _add_version_guard(space: Any, node: Any) -> None:
    node.add_dict_version_guard(space, _NO_MESSAGE, None)


def _add_type_guard(cls: type, node: Any) -> None:
    node.add_type_match_guard(id(cls), _NO_MESSAGE, None)


def _add_attribute_guard(attribute: AttributeValue, node: Any) -> None:
    _, name, value = attribute
    if name == "__code__":
        manager = node.code_manager("", None, None)
    elif name == "__mro__":
        manager = node.type_mro_manager("", None, None)
    else:
        manager = node.getattr_manager(name, "", None, None)
    manager.add_id_match_guard(id(value), _NO_MESSAGE, None)


_NO_MESSAGE = [""]
"""Failure message of a node; unused."""
