"""``%guards f(x)``: the guards against that very call, passing or failing."""

from __future__ import annotations

import torch

import engine
from engine import api
from notebook_ext.display import _matches_session
from notebook_ext.views.guards import HYPOTHETICAL_CALL, hypothetical_case
from notebook_ext.widgets.explorer import Explorer
from tests.notebook_ext.sample_sessions import head_session


def test_a_call_that_was_never_made_is_shown_against_the_guards() -> None:
    """A hypothetical call fails at the shape or passes all guards, and is not recorded.

    Sizes that miss every entry fail at the shape. Sizes that hit one pass to the end. The session's calls stay
    unchanged.
    """
    engine.reset()
    compiled = engine.compile(lambda x: x.sin(), backend="aot_eager")
    with engine.record() as session:
        compiled(torch.ones(3))
    calls = session.calls
    (entry,) = (c.id for c in session.compilations)
    fails = hypothetical_case(session, api.explain_call(compiled, torch.ones(4, 4)), entry)
    passes = hypothetical_case(session, api.explain_call(compiled, torch.ones(3)), entry)
    assert fails is not None
    assert passes is not None
    assert (fails["call"], fails["passes"]) == (HYPOTHETICAL_CALL, False)
    assert fails["verdicts"][fails["failed"]][0] == "fail"
    assert passes["failed"] == -1
    assert {verdict for verdict, _ in passes["verdicts"]} == {"pass"}
    assert session.calls == calls
    widget = Explorer(session, asked=api.explain_call(compiled, torch.ones(4, 4)))
    assert widget._part(f"guards|{entry}")["cases"][0]["title"] == "hypothetical call"
    widget.close()


def test_a_session_of_something_else_is_not_shown() -> None:
    """Entries of another session, or with other guards, have no guards to show.

    The last session did not record such entries, or recorded them with other guards.
    """
    engine.reset()
    compiled = engine.compile(lambda x: x.sin(), backend="aot_eager")
    compiled(torch.ones(3))
    assert not _matches_session(head_session(), api.explain_call(compiled, torch.ones(4)))
