"""Bug reports as Python text, from live and from loaded sessions."""

from __future__ import annotations

import ast
import pathlib

import torch

import engine
from engine.records.session import Session


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def talks(x: torch.Tensor, flag: bool, table: dict[str, int], rest: list[int]) -> torch.Tensor:
    y = helper(x)
    print("talking")
    return y * table["k"] + len(rest) if flag else y


def test_report_of_a_loaded_session(tmp_path: pathlib.Path) -> None:
    """A repro script is valid Python with the break's line, definitions and rebuilt inputs.

    Loading the session and writing the script run nothing.
    """
    with engine.record() as session:
        engine.compile(talks, backend="eager")(torch.randn(3, 4, dtype=torch.float64), True, {"k": 2}, [5])
    session.save(tmp_path / "session.json")
    loaded = Session.load(tmp_path / "session.json")
    text = loaded.repro_script(loaded.compilations[0].id)
    tree = ast.parse(text)
    assert f"torch {torch.__version__}" in text.splitlines()[0]
    assert f"test_repro_script.py:{talks.__code__.co_firstlineno + 2}" in text
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert {"helper", "talks"} <= names
    for line in (
        "x = torch.ones((3, 4,), dtype=torch.float64)",
        "flag = True",
        "table = {'k': 2}",
        "rest = ...  # list of 1: to be filled in",
        "engine.compile(talks)(x=x, flag=flag, table=table, rest=rest)",
    ):
        assert line in text.splitlines()


def parts(batch: dict[str, torch.Tensor], /, *weights: torch.Tensor, scale: float = 1.0, **more: str) -> torch.Tensor:
    x = batch["x"] * scale
    for w in weights:
        x = x @ w
    return x + len(more["note"])


def test_inputs_in_containers_and_of_every_kind_of_parameter() -> None:
    """Tensors in containers are rebuilt; each parameter is passed as its function allows."""
    with engine.record() as session:
        run = engine.compile(parts, backend="eager")
        run({"x": torch.randn(2, 3)}, torch.randn(3, 4), torch.randn(4, 4), scale=2.0, note="f32[2], it's")
        run({"x": torch.tensor(1.0)}, note="")
    lines = session.repro_script(session.compilations[0].id).splitlines()
    assert lines[-5:-1] == [
        "batch = {'x': torch.ones((2, 3,), dtype=torch.float32)}",
        "scale = 2.0",
        "weights = (torch.ones((3, 4,), dtype=torch.float32), torch.ones((4, 4,), dtype=torch.float32))",
        """more = {'note': "f32[2], it's"}""",
    ]
    assert lines[-1] == "engine.compile(parts)(batch, *weights, scale=scale, **more)"
    assert "batch = {'x': torch.ones((), dtype=torch.float32)}" in session.repro_script(session.compilations[1].id)
    ast.parse("\n".join(lines))
