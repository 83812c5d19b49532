"""Test how warnings of stock torch.compile become one note of the session."""

from __future__ import annotations

import logging

from engine.observe.torch_warnings import fold_torch_warnings
from engine.records.session import Session


def test_a_warning_that_ends_with_a_colon_goes_on() -> None:
    """The note has the line that the first line announces, as one sentence."""
    session = Session()
    logger, handler = logging.getLogger("torch._dynamo"), logging.StreamHandler()
    logger.addHandler(handler)
    try:
        with fold_torch_warnings(session):
            logger.warning("Graph break from `item()`, consider setting:\n    torch.x = True\nor:\n    y")
    finally:
        logger.removeHandler(handler)
    (note,) = session.notes
    assert note.startswith(
        "torch.compile logged 1 warning: Graph break from `item()`, consider setting: torch.x = True. "
    )
