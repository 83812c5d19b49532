"""The table of opcode handlers."""

from __future__ import annotations

import pytest

import engine.trace.driver  # noqa: F401  fills the table
from engine.bytecode.opcodes import FAMILIES
from engine.trace.opcode_registry import HANDLERS, handles


def test_every_opcode_of_a_family_has_a_handler() -> None:
    """What is said to be traced, on any supported version, is."""
    assert [n for names in FAMILIES.values() for n in names if n not in HANDLERS] == []


@pytest.mark.parametrize("name", ["NO_SUCH_OPCODE", "LOAD_FAST"])
def test_unknown_and_taken_names_are_refused(name: str) -> None:
    """A handler for an opcode that does not exist, or a second one, is an error."""
    with pytest.raises(ValueError, match=name):
        handles(name)(lambda tx, frame, op: None)
