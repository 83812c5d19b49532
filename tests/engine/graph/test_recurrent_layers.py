"""Results of recurrent layers have the shape that eager gives them."""

from typing import Any

import pytest
import torch

from engine.graph.recurrent_layers import run_recurrent


def test_states_with_a_dimension_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dimension of size 1, as torch's decomposition before 2.13 adds, is removed."""
    layer, run = torch.nn.LSTM(4, 6, 2, bidirectional=True), torch.lstm
    x, hidden = torch.randn(5, 3, 4), [torch.randn(4, 3, 6), torch.randn(4, 3, 6)]
    given: Any = (x, hidden, list(layer.parameters()), True, 2, 0.0, True, True, False)
    expected = run(*given)

    def with_one_more(*args: Any) -> tuple[torch.Tensor, ...]:
        out, *states = run(*args)
        return (out, *(s[:, None] for s in states))

    torch.testing.assert_close(run_recurrent("lstm", *given), expected)
    monkeypatch.setattr(torch, "lstm", with_one_more)
    torch.testing.assert_close(run_recurrent("lstm", *given), expected)
