"""Recording calls for ``--compare`` never disturbs them, for any kind of tensor.

This holds for tensors that the calls take and for tensors that they return.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from engine.records.session_comparison import AspectComparison, FrameComparison, SessionComparison
from engine.torch_private.inductor import inductor_config
from notebook_ext.call_recorder import CallRecorder
from notebook_ext.compare_with_torch import TorchComparison, compare_with_torch
from notebook_ext.views.comparison.session_comparison import headline

# Inductor imports it when it first compiles: after some other tests of the same process, it could not.
importlib.import_module("setuptools")


def compared(function: Any, *arguments: Any) -> TorchComparison:
    """One call, recorded and repeated."""
    tape = CallRecorder()
    result = tape.record_calls(function, function)(*arguments)
    assert result is not None
    return compare_with_torch(tape)


def test_a_sparse_argument_is_said() -> None:
    """The call goes through; what cannot be copied is told."""
    assert "sparse" in compared(lambda x: x * 2, torch.eye(3).to_sparse()).text


@pytest.mark.thorough
def test_sparse_and_quantized_results_are_compared() -> None:
    """By their values at each place."""
    assert compared(lambda x: x.to_sparse(), torch.eye(3)).max_difference == 0
    assert compared(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), torch.eye(3)).max_difference == 0


@pytest.mark.thorough
def test_inference_mode() -> None:
    """Tensors made there count no writes, and are compared all the same."""
    with torch.inference_mode():
        assert compared(lambda x: x * 2, torch.ones(2)).max_difference == 0


@pytest.mark.thorough
def test_torch_compile_used_before() -> None:
    """A comparison does not wait for the compile threads of an earlier torch.compile.

    These threads do not exist in the process of the comparison.
    """
    with inductor_config.patch(compile_threads=4, force_disable_caches=True):
        torch.compile(lambda x: x.sin() * 3)(torch.ones(3))
        assert compared(lambda x: x * 2, torch.ones(2)).max_difference == 0


def test_results_are_compared_where_a_fork_runs_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builds of torch run no backward in a fork: gradients are left out, with the reason."""

    def backward(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Unable to handle autograd's threading in combination with fork-based multiprocessing.")

    monkeypatch.setattr(torch.autograd, "backward", backward)
    found = compared(lambda x: x.sin() * 2, torch.ones(2, requires_grad=True))
    assert found.max_difference == 0
    assert [row.value for row in found.rows] == ["result"]
    assert "gradients are not compared: this build of torch runs no backward in a fork" in found.text


def test_the_headline_names_the_counts_that_it_ignores() -> None:
    """Two compilers guard in their own ways: the number in the table is no contradiction."""
    guards = AspectComparison("guards", "17", "27", is_figure=True)
    times = AspectComparison("compile time", "2 s", "1 s", is_figure=True)
    frame = FrameComparison("f", "a cell", ("0/0",), ("0/0",), (guards, times))
    told = headline(SessionComparison((guards,), (frame,)), "stock", "ours")
    assert told == "stock and ours: no difference in 1 function, ignoring times, numbers of guards on values."
