"""Tables that decorators fill: each key once, all keys or none."""

from __future__ import annotations

import pytest

from engine.ir.register_once import register_once


def test_an_entry_stands_under_each_key_and_is_returned() -> None:
    """The decorated function keeps its name, and is found under each key."""
    table: dict[type, object] = {}
    entry = object()
    assert register_once(table, (int, str), "a rule")(entry) is entry
    assert table == {int: entry, str: entry}


def test_a_second_entry_is_refused_and_changes_nothing() -> None:
    """The error names the key and what it has; no key of the refused call is stored."""
    table: dict[type, object] = {int: "first"}
    with pytest.raises(ValueError, match=r"^int has a rule already$"):
        register_once(table, (str, int), "a rule")("second")
    assert table == {int: "first"}
