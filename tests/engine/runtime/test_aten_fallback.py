"""Calls that run out of memory or fail to launch fall back to ATen; other errors raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.runtime.aten_fallback import (
    EVERY_CALL_NOTE,
    THIS_CALL_NOTE,
    UnexpectedSize,
    describe_oom,
    with_aten_fallback,
)


class Failing:
    """Raise the given errors in turn, then work; empty the input list like a boxed program."""

    def __init__(self, *errors: BaseException, is_boxed: bool = False) -> None:
        self.errors = list(errors)
        self.is_boxed = is_boxed
        self.calls = 0

    def __call__(self, *inputs: Any) -> Any:
        """The first input doubled."""
        self.calls += 1
        values = list(inputs[0]) if self.is_boxed else list(inputs)
        if self.is_boxed:
            inputs[0].clear()
        if self.errors:
            raise self.errors.pop(0)
        return (values[0] * 2,)


def plain(*inputs: Any) -> Any:
    """The same by ATen."""
    values = inputs[0] if isinstance(inputs[0], list) else inputs
    return (values[0] * 2,)


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
REFUSED = RuntimeError("Triton Error [CUDA]: invalid argument")


def told_by(*errors: BaseException, is_boxed: bool = False) -> tuple[Any, Failing, list[tuple[str, str]]]:
    """A rescued run that fails so, and what it tells."""
    told: list[tuple[str, str]] = []
    run = Failing(*errors, is_boxed=is_boxed)
    call = with_aten_fallback(
        run, lambda: plain, lambda error, text, done: told.append((text, done)), is_boxed=is_boxed
    )
    return call, run, told


def test_a_call_without_room_is_computed_by_aten() -> None:
    """The result is there, a sentence says why, and the next call uses the kernels again."""
    call, run, told = told_by(FULL)
    assert [call(3), call(4)] == [(6,), (8,)]
    assert run.calls == 2
    ((sentence, done),) = told
    assert sentence.startswith("The GPU is out of memory: ")
    assert done == THIS_CALL_NOTE


def test_a_call_whose_sizes_do_not_fit_is_computed_by_aten() -> None:
    """And the next one by kernels again."""
    heard: list[tuple[str, str]] = []
    failing = Failing(UnexpectedSize("the graph assumes Eq(u0, u1)"))
    run = with_aten_fallback(
        failing, lambda: plain, lambda error, text, done: heard.append((text, done)), is_boxed=False
    )
    assert [run(torch.ones(1))[0].item() for _ in range(2)] == [2, 2]
    assert failing.calls == 2
    assert heard == [("The kernels are not valid for this call: the graph assumes Eq(u0, u1).", THIS_CALL_NOTE)]


def test_a_kernel_that_cannot_start_is_not_tried_again() -> None:
    """ATen computes this call and all later ones."""
    call, run, told = told_by(REFUSED)
    assert [call(3), call(4)] == [(6,), (8,)]
    assert run.calls == 1
    assert told == [("A kernel could not be launched: Triton Error [CUDA]: invalid argument.", EVERY_CALL_NOTE)]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("x"),
    ],
)
def test_other_errors_are_raised_as_they_are(error: BaseException) -> None:
    """The user's own, and those after which the card is lost."""
    call, _, told = told_by(error)
    with pytest.raises(type(error)) as caught:
        call(3)
    assert caught.value is error
    assert told == []


def test_where_nothing_has_room_the_error_is_torchs() -> None:
    """The other way fails too: what is raised is what the kernels' allocation raised."""

    def full(*inputs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory, again.")

    call = with_aten_fallback(Failing(FULL), lambda: full, lambda *a: None, is_boxed=False)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        call(3)
    assert caught.value is FULL


@pytest.mark.parametrize("error", [FULL, REFUSED])
def test_what_a_boxed_program_was_given_is_gone(error: BaseException) -> None:
    """Nothing can be computed from it again: the error is told, and raised."""
    call, _, told = told_by(error, is_boxed=True)
    with pytest.raises(RuntimeError) as caught:
        call([3])
    assert caught.value is error
    assert [done for _, done in told] == [""]


def test_it_is_told_whose_memory_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is named as such, and what can be done differs."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**8, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 79 * 10**9)
    ours = describe_oom(FULL)
    assert ours == (
        "The GPU is out of memory: this process uses 79.0 GB of 80.0 GB. Use smaller batches, or delete tensors that you no longer need."
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 9 * 10**9)
    theirs = describe_oom(FULL)
    assert theirs == (
        "The GPU is out of memory: this process uses 9.0 GB of 80.0 GB and other processes use 70.9 GB. End them, or use another GPU."
    )
