"""Code is generated for the graphs that run, once."""

import pytest
import torch

import engine


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_a_training_call_generates_the_code_of_its_traced_graph_only(backend, monkeypatch):
    """Joint graph, its halves and decompositions are read, not run: they have no code."""
    generated = []
    original = torch.fx.GraphModule.recompile

    def noted(module):
        generated.append(type(module).__name__)
        return original(module)

    block = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = torch.randn(3, 4, requires_grad=True)
    compiled = engine.compile(block, backend=backend)
    monkeypatch.setattr(torch.fx.GraphModule, "recompile", noted)
    compiled(x).sum().backward()
    assert generated == ["TracedGraph"]
    expected = torch.autograd.grad(block(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
