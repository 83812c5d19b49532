"""``flex_attention`` is decomposed in the functional graph."""

import inspect

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import engine


@pytest.fixture(autouse=True)
def no_entries_of_dynamo():
    """Reset Dynamo, which runs plain ``flex_attention`` and may raise for unlike calls."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


CAUSAL = create_block_mask(lambda b, h, i, j: i >= j, None, None, 32, 32, device="cpu", BLOCK_SIZE=16)


def capped_attention(q, k, v, bias):
    def cap(score, b, h, i, j):
        biased = score + bias[h, i, j]
        return 30 * torch.tanh(biased / 30)

    return flex_attention(q, k, v, score_mod=cap, block_mask=CAUSAL) * 2


@pytest.mark.thorough
def test_the_score_function_becomes_a_kernel_linked_to_its_lines():
    """Its operators stand in the functional graph, with the lines of the user's function."""
    q, k, v = torch.randn(3, 1, 2, 32, 8).unbind()
    bias = torch.randn(2, 32, 32)
    compiled = engine.compile(capped_attention, backend="triton")
    with engine.record() as session:
        found = compiled(q, k, v, bias)
    torch.testing.assert_close(found, capped_attention(q, k, v, bias))
    (graph,) = [g for g in session.compilations[0].graphs if g.stage == "aten"]
    assert not [n for n in graph.nodes if "flex_attention" in n.target]
    first = inspect.getsourcelines(capped_attention)[1]
    lines = {n.target: n.span.line for n in graph.nodes if n.span is not None}
    assert lines["aten.tanh"] == first + 3
    assert lines["aten.index.Tensor"] == first + 2
    assert lines["aten._safe_softmax"] == first + 5


@pytest.mark.thorough
def test_a_number_in_the_score_function_is_no_aten_call():
    """Under vmap a number is converted like a tensor; its kernel holds it as a constant."""

    def lean(score, b, h, i, j):
        return score - (i - j).abs() * 0.1

    q, k, v = torch.randn(3, 1, 2, 16, 8).unbind()
    compiled = engine.compile(lambda *values: flex_attention(*values, score_mod=lean), backend="triton")
    with engine.record() as session:
        found = compiled(q, k, v)
    torch.testing.assert_close(found, flex_attention(q, k, v, score_mod=lean))
    lowering = session.compilations[0].lowering
    assert lowering is not None
    assert [e.op for e in lowering.externs if e.kind == "lowering-failed"] == []


@pytest.mark.thorough
def test_lengths_and_shared_heads():
    """A second length and fewer heads of keys give eager's values and strides."""

    def f(q, k, v, slopes):
        def lean(score, b, h, i, j):
            return score + slopes[h] * (i - j)

        return flex_attention(q, k, v, score_mod=lean, enable_gqa=True, return_lse=True, scale=0.3)

    compiled = engine.compile(f, backend="triton", fullgraph=True)
    for length in (16, 20, 33):
        q, (k, v) = torch.randn(2, length, 4, 8).transpose(1, 2), torch.randn(2, 2, 2, length, 8)
        torch.compiler.reset()
        slopes = torch.rand(4)
        found, expected = compiled(q, k, v, slopes), f(q, k, v, slopes)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        torch.testing.assert_close(found, expected)


@pytest.mark.thorough
def test_autocast_casts_the_operands_only():
    """Under autocast, scores of bfloat16 operands are computed in float32, as in eager."""

    def f(q):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score - (i - j))

    q = torch.randn(1, 2, 32, 8)
    found, expected = engine.compile(f, backend="aot_eager", fullgraph=True)(q), f(q)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.thorough
def test_gradients_of_what_the_score_function_reads():
    """The graph holds the call, and gradients equal eager's, also in a row that sees no key."""
    hidden = create_block_mask(lambda b, h, i, j: (i >= j) & (i != 5), None, None, 32, 32, device="cpu", BLOCK_SIZE=16)

    def f(q, bias):
        def cap(score, b, h, i, j):
            return 5 * torch.tanh((score + bias[h, i, j]) / 5)

        out, sums = flex_attention(q, q, q, score_mod=cap, block_mask=hidden, return_lse=True)
        return out * 2, torch.where(sums.isinf(), 0.0, sums)

    q, bias = torch.randn(1, 2, 32, 8), torch.randn(2, 32, 32)
    found = []
    for call in (f, engine.compile(f, backend="triton", fullgraph=True)):
        torch.compiler.reset()
        leaf = bias.clone().requires_grad_()
        out, sums = call(q, leaf)
        (grad,) = torch.autograd.grad(out.sin().sum() + (sums * torch.linspace(0, 1, 32)).sum(), leaf)
        found.append((out, sums, grad))
    torch.testing.assert_close(found[1], found[0])
