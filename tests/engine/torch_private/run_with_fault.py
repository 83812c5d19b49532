"""Import the engine while one entry is at fault, then compare programs with eager.

Run as ``python -m tests.engine.torch_private.run_with_fault``, with lines ``removed torch._C:_sync`` or ``changed ...`` on
standard input; each runs in a forked process and prints one line of JSON. What the engine imports from torch and other
packages is imported before the first fork, and shared; the engine itself is imported in each process.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
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


def _run_forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run work in a forked process; what programs print goes to standard error."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    if child := os.fork():
        os.close(writer)
        with os.fdopen(reader) as answers:
            text = answers.read()
        _, status = os.waitpid(child, 0)
        answer: dict[str, Any] = json.loads(text) if text else {"failed": f"ended with status {status}"}
        return answer
    os.dup2(2, 1)
    try:
        answer = work()
    except BaseException:
        answer = {"failed": traceback.format_exc(limit=-6)}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def _loaded_modules() -> dict[str, Any]:
    """Return the names of other packages' modules that the engine and the programs import."""
    observe("", "removed")
    return {"modules": [name for name in sys.modules if name.partition(".")[0] not in ("engine", "tests", "__main__")]}


def _preload() -> None:
    """Import what each process would import from other packages."""
    for name in _run_forked(_loaded_modules)["modules"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    """Answer each line of standard input."""
    torch.set_num_threads(1)
    _preload()
    for request in sys.stdin.read().splitlines():
        how, path = request.split()
        answer = _run_forked(lambda path=path, how=how: observe(path, how))  # type: ignore[misc]
        print(json.dumps({"how": how, "path": path, **answer}), flush=True)


if __name__ == "__main__":
    main()
