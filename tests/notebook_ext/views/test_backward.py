"""The view of captured backwards: linked panes, causes and every backward that ran.

It has three linked panes. The causes are those of the captures.
"""

from __future__ import annotations

import json

import torch

import engine
from engine.records.session import Session
from notebook_ext.views.backward import backward
from notebook_ext.views.explorer_parts import all_keys, part
from notebook_ext.views.summary import summary


def recorded(backend: str) -> Session:
    """Two backwards that accumulate, and one that torch's engine runs."""
    engine.reset()
    m = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    m[0].weight.register_hook(lambda g: g * 2)
    x = torch.randn(2, 4)
    with engine.record() as session, engine.compiled_autograd(backend):
        for _ in range(2):
            m(x).sum().backward()
        with torch.autograd.set_detect_anomaly(True):
            torch.autograd.grad(m(x).sum(), list(m.parameters()), create_graph=True)
    engine.reset()
    return session


def test_three_panes_are_linked_row_by_row() -> None:
    """Every row of a graph links to its source rows in the previous pane.

    The links lead down to the graph that a backend compiled.
    """
    told = backward(recorded("aot_eager"))
    eager, captured, compiled = told["captures"][0]["panes"]
    assert eager["rows"][0][0].startswith("0 GraphRoot")
    texts = [row[0] for row in compiled["rows"]]
    mm = next(n for n, text in enumerate(texts) if "aten.mm(" in text)
    (above,) = compiled["rows"][mm][2]
    assert "AddmmBackward0" in captured["rows"][above][0]
    (top,) = captured["rows"][above][2]
    assert "AddmmBackward0" in eager["rows"][top][0]
    assert any("tensor_pre_hook" in row[1] for row in eager["rows"])
    assert told["captures"][0]["entry"]


def test_causes_and_outcomes_are_told() -> None:
    """Each capture names its cause, and the eager backward its reason; the text counts them.

    The second capture says what changed. The reason says why the eager backward was not captured.
    """
    session = recorded("eager")
    told = backward(session)
    assert "now have a .grad to accumulate into" in told["captures"][1]["cause"]
    assert [c["outcome"] for c in told["calls"]] == ["captured", "captured", "eager"]
    assert "anomaly" in told["calls"][2]["reason"]
    assert told["captures"][0]["panes"][2]["empty"].startswith('Backend "eager"')
    assert told["text"] == "3 backwards: 2 captured, 1 run by autograd's engine"
    json.dumps(told)


def test_the_summary_of_captures_alone() -> None:
    """The headline counts captured backwards if nothing was compiled.

    It does not say that nothing happened.
    """
    told = "".join(i.text for i in summary(recorded("eager"), timed=False).items)
    assert told == "3 backwards: 2 captures, 1 run by autograd's engine, run operator by operator"


def test_a_compiled_backward_points_to_its_view() -> None:
    """The Source pane of what was compiled of a backward says where its account stands."""
    session = recorded("aot_eager")
    told = part(session, f"linked|{session.compilations[0].id}|")
    assert "Backward view" in json.dumps(told)


def test_an_empty_session_says_what_to_do() -> None:
    """Without a captured backward the view names the context manager to use.

    The part has its own key.
    """
    told = part(Session(), "backward")
    assert "engine.compiled_autograd()" in told["empty"]
    assert "backward" in list(all_keys(Session()))
