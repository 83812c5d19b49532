"""Traces to load: small programs run under torch.compile, observed and logged at once."""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from engine.observe.observe_torch import observe_torch
from engine.records.session import Session
from engine.torch_private.torch_compile import structured_logging as structured
from engine.torch_private.torch_compile import torch_logging


def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets to pass the name on."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * 2

    return wrapper


@scaled
def add_ten(x: torch.Tensor) -> torch.Tensor:
    """Decorated: its frame is the decorator's."""
    return x + 10


def breaks_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    """One break, with work before and after."""
    y = x.sin()
    print(end="")
    return y.cos()


def trained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A joint graph, and a guard on a symbol."""
    if x.shape[0] > 2:
        return (x @ w).relu()
    return x @ w


def run() -> None:
    """Everything: a break, a recompile with a symbol, a backward, a decorated function."""
    torch.compiler.reset()
    torch.compile(breaks_in_the_middle, backend="eager")(torch.ones(3))
    train = torch.compile(trained, backend="aot_eager")
    for size in (4, 5, 6):
        train(torch.randn(size, 3), torch.randn(3, 2, requires_grad=True)).sum().backward()
    torch.compile(add_ten, backend="eager")(torch.ones(2))


@contextlib.contextmanager
def log_to_file(handler: logging.Handler) -> Iterator[None]:
    """Send torch's trace to a handler too, with an empty string table as in a new process."""
    handler.setFormatter(torch_logging.TorchLogsFormatter(trace=True))
    table = dict(structured.INTERN_TABLE)
    structured.INTERN_TABLE.clear()
    torch_logging.trace_log.addHandler(handler)
    try:
        yield
    finally:
        torch_logging.trace_log.removeHandler(handler)
        handler.close()
        structured.INTERN_TABLE.clear()
        structured.INTERN_TABLE.update(table)


@functools.cache
def session_and_log() -> tuple[Session, bytes]:
    """One run as it was watched, and the log that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.log"
        with log_to_file(logging.FileHandler(path)), observe_torch() as session:
            run()  # loads Dynamo, before which torch logs nothing
            getattr(torch_logging, "_log_torch_version", lambda: None)()  # torch 2.11 has none
        return session, path.read_bytes()
