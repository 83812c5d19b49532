"""Warnings of operators name the user's line, and appear once for it, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import engine
from engine.records.session import Session


def loss(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(x, x[None])


def _warned(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[tuple[str, int, str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)
        # Where tracing is repeated for ATen, torch attributes its warnings to a file of its own.
        warnings.filterwarnings("ignore", module=r"torch\.fx\.")
        function(x)
    return [(w.filename, w.lineno, str(w.message)[:40]) for w in seen]


def test_a_warning_names_the_users_line() -> None:
    """The file, line and text are those of eager, and it appears once."""
    x = torch.randn(4)
    assert _warned(engine.compile(loss, backend="aot_eager"), x) == _warned(loss, x)
    assert [found[0] for found in _warned(loss, x)] == [__file__]


def test_a_warning_that_is_an_error_leaves_the_frame_to_python() -> None:
    """The user gets the warning as an exception; the recorded break is not an internal error."""
    with warnings.catch_warnings(), engine.record() as session:
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="Using a target size"):
            engine.compile(loss, backend="eager")(torch.randn(4))
    assert _break_kinds(session) == ["raises"]


def _break_kinds(session: Session) -> list[str]:
    return [found.kind for c in session.compilations if c.trace is not None for found in c.trace.breaks]


class LibraryWarning(UserWarning):
    """A warning of a library, which has a filter of its own, as IPython has in each kernel."""


@pytest.mark.parametrize(
    ("filtered", "issued", "count"),
    [(LibraryWarning, UserWarning, 0), (UserWarning, UserWarning, 1), (LibraryWarning, LibraryWarning, 1)],
)
def test_only_a_filter_that_matches_a_warning_breaks_the_graph(
    filtered: type[Warning], issued: type[Warning], count: int
) -> None:
    """An error filter for a library's class is ignored; one that matches raises, as in eager."""

    def warns(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("few points", issued, stacklevel=1)
        return x + 1

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("error", category=filtered)
        with engine.record() as session:
            raised = ""
            try:
                engine.compile(warns)(torch.ones(2))
            except issued as error:
                raised = str(error)
    assert raised == ("few points" if count else "")
    assert [str(w.message) for w in seen] == ([] if count else ["few points"])
    assert sum(len(c.trace.breaks) for c in session.compilations if c.trace) == count
