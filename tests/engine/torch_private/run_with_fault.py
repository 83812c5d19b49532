"""Import the engine while one entry is at fault, then compare programs with eager.

Run as ``python -m tests.engine.torch_private.run_with_fault``, with lines ``removed torch._C:_sync`` or ``changed ...`` on
standard input; each runs in a forked process and prints one line of JSON.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch

from engine.torch_private import entries
from engine.torch_private.entries import Kind


def _mutate(x: torch.Tensor) -> list[torch.Tensor]:
    y = x * 2
    x.add_(1)
    print("broken")
    return [y.sin() + x, x.view(-1)[:2]]


def _train(x: torch.Tensor) -> list[torch.Tensor]:
    w = torch.arange(6.0).reshape(3, 2).requires_grad_()
    loss = torch.nn.functional.gelu(x @ w).sum()
    loss.backward()
    return [loss, w.grad]  # type: ignore[list-item]


def _branch(x: torch.Tensor) -> list[torch.Tensor]:
    if x.sum() > 0:
        x = x[x > 0]
    return [torch.cat([x, x]).softmax(0)]


def _differentiate(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.func.grad(lambda t: t.cos().sum())(x), torch.func.vmap(torch.sum)(x)]


def _lookup(x: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad(), torch.autocast("cpu"):
        named = {"a": x, "b": [x + 1]}
        return [named["b"][0].to(torch.float64), torch.nn.functional.linear(x, torch.ones(2, 3))]


PROGRAMS: tuple[Callable[[torch.Tensor], list[torch.Tensor]], ...] = (_mutate, _train, _branch, _differentiate, _lookup)


def _changed(entry: entries.Entry) -> Any:
    """Return an object that takes the place of an entry, with another kind or signature."""

    def unexpected(*, keyword_of_another_version: object) -> None: ...

    return 3 if entry.kind in (Kind.CLASS, Kind.EXCEPTION, Kind.MODULE, Kind.TABLE) or not entry.calls else unexpected


def _plant(path: str, how: str) -> None:
    """Let one name be missing, or another object, whenever an entry is loaded."""
    resolve, check = entries.resolve, entries.check

    def resolve_with_fault(wanted: str) -> Any:
        if wanted == path and how == "removed":
            raise AttributeError(wanted)
        return resolve(wanted)

    def check_with_fault(entry: entries.Entry, found: Any) -> str:
        if entry.path != path or how != "changed":
            return check(entry, found)
        return check(entry, _changed(entry)) or "has changed"

    entries.resolve, entries.check = resolve_with_fault, check_with_fault
    entries.FAULTS.known = None


class _Listener(logging.Handler):
    """Collects what the engine says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def observe(path: str, how: str) -> dict[str, Any]:
    """Import the engine with a fault, and return what it says and which programs differ."""
    listener = _Listener()
    logging.getLogger("engine").addHandler(listener)
    logging.getLogger("engine").propagate = False
    _plant(path, how)
    import engine.api

    differing = []
    for program in PROGRAMS:
        x = torch.linspace(-1, 2, 6).reshape(2, 3)
        given = copy.deepcopy(x)
        expected = [t.detach() for t in program(x)]
        for backend in ("aot_eager", "eager"):
            held = copy.deepcopy(given)
            try:
                result = [t.detach() for t in engine.compile(program, backend=backend)(held)]
                torch.testing.assert_close([*result, held], [*expected, x], rtol=1e-5, atol=1e-6)
            except Exception:
                differing.append(f"{program.__name__} ({backend}): {traceback.format_exc(limit=-4)}")
    return {"said": listener.said, "differing": differing}


def _run_forked(line: str) -> None:
    how, path = line.split()
    sys.stdout.flush()
    if child := os.fork():
        os.waitpid(child, 0)
        return
    out = os.dup(1)
    os.dup2(2, 1)  # programs print
    try:
        answer = observe(path, how)
    except BaseException:
        answer = {"failed": traceback.format_exc(limit=-6)}
    os.write(out, (json.dumps({"how": how, "path": path, **answer}) + "\n").encode())
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for request in sys.stdin.read().splitlines():
        _run_forked(request)
