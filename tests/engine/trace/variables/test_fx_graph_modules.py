"""Tests of torch.fx graph modules inside compiled modules.

Libraries that generate code create such modules.
"""

from __future__ import annotations

import pytest
import torch
import torch.fx

import engine


class Halved(torch.nn.Module):
    """A module that is traced into a graph before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, self.weight).relu() / 2


class Holder(torch.nn.Module):
    """Calls its graphs: plainly, with a hook, by name; and catches what one raises."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.fx.symbolic_trace(Halved()), torch.fx.symbolic_trace(Halved())
        self.second.register_forward_hook(lambda module, args, out: out + 1)

    def forward(self, x: torch.Tensor, fits: bool = True) -> torch.Tensor:
        try:
            y = self.second(self.first(x if fits else x.T))
        except RuntimeError:
            y = x * 2
        return y + self.first(x=x)


def _two() -> tuple[Holder, Holder]:
    plain, other = Holder(), Holder()  # a copy would have no hooks: graphs do not keep them
    other.load_state_dict(plain.state_dict())
    return plain, other


def test_graphs_are_part_of_the_graph() -> None:
    """Operators of FX graph modules are captured with the code around them.

    Hooks run, and the gradients are those of eager.
    """
    plain, other = _two()
    compiled = engine.compile(other, backend="eager", fullgraph=True)
    for rows in (2, 4):
        x = torch.randn(rows, 3)
        expected, got = plain(x), compiled(x)
        assert torch.equal(expected, got)
        expected.sum().backward()
        got.sum().backward()
    for mine, wanted in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, wanted.grad)


def test_a_graph_that_raises_prints_what_it_prints_in_python(capfd: pytest.CaptureFixture[str]) -> None:
    """Torch's message for an exception in an FX graph is printed, even if it is caught."""
    plain, other = _two()
    compiled = engine.compile(other, backend="eager")
    x = torch.randn(2, 3)
    expected = plain(x, False)
    capfd.readouterr()
    assert torch.equal(compiled(x, False), expected)
    assert "Call using an FX-traced Module" in capfd.readouterr().err


def test_a_graph_called_by_its_class() -> None:
    """Wrappers call a graph by the function that torch gives to its class."""
    plain, other = _two()
    compiled = engine.compile(lambda x: type(other.first).__call__(other.first, x) + 1, backend="eager", fullgraph=True)
    for rows in (2, 4):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), plain.first(x) + 1)
