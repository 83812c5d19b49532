"""Assumptions on unbacked sizes are checked before a kernel reads by those sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.backends import lower_to_program
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.runtime.aten_fallback import UnexpectedSize
from engine.runtime.program_executor import ProgramExecutor


def two_masks(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Two sizes that are taken to be the same."""
    return x[x > 0] + c[c > 0]


def mask_and_input(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A size that is taken to be an input's."""
    return x[x > 0] + c


def number(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """A number that the user says something of."""
    count = int((x > 0).sum().item())
    torch._check(count == 3)
    return c[:count] + x[:count]


def two_numbers(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Two numbers that the user relates."""
    one, other = int((x > 0).sum().item()), int((c > 0).sum().item())
    torch._check(one == other)
    return x.new_zeros(one) + c.new_ones(other)


GOOD = (torch.tensor([-1.0, 1.0, 0.5, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
OTHER = (torch.tensor([-1.0, -1.0, 0.5, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
FUNCTIONS = (two_masks, mask_and_input, two_numbers)


class Kernels:
    """Stand in for kernels: compute only the checked sizes and record the launches."""

    def __init__(self) -> None:
        self.launched: list[str] = []

    def __call__(self, source: Any, misaligned: frozenset[str] = frozenset()) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
            self.launched.append(source.name)
            if "sum" in source.name:  # how many are positive
                arguments[1].fill_(int((arguments[0] > 0).sum()))
            elif "gt" in source.name:  # one comparison, or two in one launch
                tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
                for out in (t for t in tensors if t.dtype == torch.bool):
                    (given,) = (t for t in tensors if t.dtype != torch.bool and t.shape == out.shape)
                    out.copy_(given > 0)

        return launch


def lowered(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> LoweredProgram:
    """Return a function's lowered program, compiled with valid sizes."""
    found: list[LoweredProgram] = []
    original = lower_to_program.lower

    def kept(*args: Any, **options: Any) -> LoweredProgram:
        found.append(original(*args, **options))
        return found[-1]

    monkeypatch.setattr(lower_to_program, "lower", kept)
    engine.reset()
    with engine.record() as session:
        engine.compile(function, backend="triton")(*GOOD)
    engine.verify(session)
    return found[0]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: str(f.__name__))
def test_kernels_do_not_read_by_wrong_sizes(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last kernel, which reads by the size, launches only if the assumption holds."""
    program = lowered(function, monkeypatch)
    kernels = Kernels()
    run = ProgramExecutor(program, kernels)
    run(*GOOD)
    last = program.kernels[-1].name
    assert last in kernels.launched
    kernels.launched.clear()
    with pytest.raises(UnexpectedSize):
        run(*OTHER)
    assert last not in kernels.launched


def test_a_false_claim_about_a_number_raises_as_in_eager() -> None:
    """The caller checks a claim of which no kernel makes use."""
    engine.reset()
    compiled = engine.compile(number, backend="triton")
    assert torch.equal(compiled(*GOOD), number(*GOOD))
    with pytest.raises(RuntimeError) as eager:
        number(*OTHER)
    with pytest.raises(RuntimeError, match=re.escape(str(eager.value))):
        compiled(*OTHER)


def warn_of_large(x: torch.Tensor, found: list[str]) -> torch.Tensor:
    """A helper with a branch on a number of the tensor."""
    top = x.max()
    if top.item() > 100:
        found.append("large")
    return top.clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_condition_that_the_caller_branches_on_is_a_result(dtype: torch.dtype) -> None:
    """Kernels run whether it is true or false: the graph returns it, and assumes nothing."""

    def scale(x: torch.Tensor, found: list[str]) -> torch.Tensor:
        return warn_of_large(x * 2, found) + 1

    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(scale, backend="triton")
        for values in ([1, 2], [3, 200]):
            seen: tuple[list[str], list[str]] = ([], [])
            x = torch.tensor(values, dtype=dtype)
            assert torch.equal(compiled(x, seen[0]), scale(x, seen[1]))
            assert seen[0] == seen[1]
    assert [f.sentence for f in session.failures] == []


def test_verification_says_what_does_not_hold() -> None:
    """Values for which the graph's assumption is wrong verify nothing."""
    engine.reset()
    with engine.record() as session:
        assert engine.compile(two_masks, backend="triton")(OTHER[0], torch.tensor([1.0, -1.0, -1.0])).shape == (2,)
    notes = {record.note for record in engine.verify(session).values()}
    assert len(notes) == 1
    assert "its graph assumes Eq(" in notes.pop()


@pytest.mark.thorough
def test_an_integer_result_is_no_condition() -> None:
    """A data-dependent size of zero that the graph returns does not send the call to ATen."""

    def suppress(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        order = scores.argsort(descending=True)
        kept = []
        while order.numel() > 0:
            first, others = order[0], order[1:]
            kept += [first.item()]
            if order.numel() == 1:
                break
            low = torch.max(boxes[first, :2], boxes[others, :2])
            high = torch.min(boxes[first, 2:], boxes[others, 2:])
            shared = (high - low).clamp(min=0).prod(-1)
            area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
            order = others[shared / (area[first] + area[others] - shared) <= 0.5]
        return torch.tensor(kept)

    torch.manual_seed(5)
    boxes = torch.rand(12, 4)
    boxes[:, 2:] += boxes[:, :2]
    scores = torch.rand(12)
    with engine.record() as session:
        found = engine.compile(suppress, backend="triton")(boxes, scores)
    assert found.tolist() == suppress(boxes, scores).tolist()
    assert session.failures == ()


def test_a_backward_with_data_dependent_sizes_has_kernels() -> None:
    """Tensors with such sizes are saved; their strides define no symbol that must be guarded."""

    def route(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.where(x > 0)
        return torch.zeros_like(x).index_add_(0, rows, F.silu(x[rows] @ w) * x[rows, columns, None])

    engine.reset()
    x, w = torch.randn(6, 4), torch.randn(4, 4)
    gradients = []
    with engine.record() as session:
        for call in (route, engine.compile(route, backend="triton")):
            leaves = [t.clone().requires_grad_() for t in (x, w)]
            call(*leaves).square().sum().backward()
            gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert [f.sentence for c in session.compilations for f in c.failures] == []
