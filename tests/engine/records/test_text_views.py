"""A session by stage: what every view shows, as text and as plain values."""

from __future__ import annotations

import json

import pytest
import torch

import engine
from engine.records.session import Session
from engine.records.text_views import STAGES
from tests.notebook_ext.sample_sessions import hostile_session, verified_session


@pytest.fixture(scope="module")
def session() -> Session:
    """A trained call and a break, with steps."""
    engine.reset()

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        print("here")
        return y.sigmoid().sum()

    with engine.record(level="steps") as found:
        engine.compile(scaled, backend="aot_eager")(torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)).backward()
    return found


@pytest.mark.parametrize(
    ("stage", "held"),
    [
        ("bytecode", "LOAD_FAST"),
        ("trace", "break at line"),
        ("guards", "x"),
        ("graph", "# float32[2, 2]"),
        ("aot", "mode: training"),
        ("autograd", "Nothing was recorded for this stage: autograd."),
        ("runtime", "compiled"),
    ],
)
def test_each_stage_prints(session: Session, stage: str, held: str) -> None:
    """``print(session.trace)`` and its like say what the view of that stage shows."""
    assert held in str(getattr(session, stage))


def test_kernels_print_their_text_and_resources() -> None:
    """Triton text, what the target made of it, and what was fused."""
    told = verified_session()
    assert "tl.load" in str(told.kernels)
    assert "registers" in str(told.kernels)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_is_plain_values(session: Session, stage: str) -> None:
    """``to_dict()`` is JSON, by compilation; a loaded session gives the same."""
    told = getattr(session, stage).to_dict()
    assert json.loads(json.dumps(told)) == told
    assert set(told) == {c.id for c in session.compilations} | {"session"}
    again = Session.from_data(session.to_data())
    assert getattr(again, stage).to_dict() == told
    assert str(getattr(again, stage)) == str(getattr(session, stage))


@pytest.mark.parametrize("stage", STAGES)
def test_hostile_text_prints_without_escapes(stage: str) -> None:
    """No terminal escape comes through, and no line is longer than a terminal bears."""
    text = str(getattr(hostile_session(), stage))
    assert "\x1b" not in text
    assert all(len(line) <= 160 for line in text.split("\n"))
