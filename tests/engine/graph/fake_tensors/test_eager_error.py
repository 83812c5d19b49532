"""The record of an exception has the words of eager, not those of fake tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.records.counts import errors_of

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "broadcast": lambda x: x * torch.ones(4, 5),
    "product": lambda x: x @ torch.ones(3, 3),
    "linear": lambda x: F.linear(x, torch.ones(2, 5)),
    "cat": lambda x: torch.cat([x, torch.zeros(2, 3)]),
    "in place": lambda x: x.add_(torch.ones(7, 4, 8)),
    "stack": lambda x: torch.stack([x, x[:2]]),
    "layer norm": lambda x: F.layer_norm(x, (7,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_exception_is_told_in_the_words_of_eager(name: str) -> None:
    """Fake tensors check these arguments by other code, with other messages."""
    with pytest.raises(RuntimeError) as eager:
        CALLS[name](torch.ones(4, 8))
    engine.reset()
    with engine.record() as session, pytest.raises(RuntimeError) as ours:
        engine.compile(CALLS[name], backend="eager")(torch.ones(4, 8))
    assert str(ours.value) == str(eager.value)
    ((_, found),) = errors_of(session.compilations)
    assert str(eager.value) in found.context


def test_a_custom_operator_is_not_called_for_its_message() -> None:
    """It may have side effects; a call of the program runs it once."""
    ran: list[torch.Size] = []

    @torch.library.custom_op("eager_error::checked", mutates_args=())
    def checked(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape)
        raise ValueError("too many rows")

    @checked.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("rows")

    for call in (checked, torch.ops.eager_error.checked):
        engine.reset()
        ran.clear()
        with pytest.raises(ValueError, match="too many rows"):
            engine.compile(lambda x, call=call: call(x + 1), backend="eager")(torch.ones(3))
        assert len(ran) == 1
