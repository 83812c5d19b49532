"""Every code block in README and CONTRIBUTING runs and does what the page says."""

from __future__ import annotations

import ast
import html
import importlib.util
import json
import linecache
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import types
import urllib.parse
import urllib.request
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of code, in order."""
    return BLOCK.findall((ROOT / name).read_text(encoding="utf-8"))


EXAMPLES = [text for language, text in blocks("CONTRIBUTING.md") if language == "python"]


@pytest.mark.parametrize("text", EXAMPLES, ids=["opcode", "variable", "guard", "wrapper", "lowering", "widget"])
def test_an_example_of_contributing_works(text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worked example runs as it stands; its assertions hold."""
    file = str(tmp_path / "example.py")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # where dataclasses look for their names
    exec(compile(text, file, "exec"), vars(module))


def test_the_cells_of_the_readme_work(shell: Any) -> None:
    """The two cells for a notebook run, and the summary tells of one graph."""
    cells = [text for language, text in blocks("README.md") if language == "python" and text.startswith("%")]
    assert len(cells) == 2
    assert shell.run(cells[0]).succeeded
    assert "softmax_with_mask: 1 graph, no breaks" in shell.run(cells[1]).text


@pytest.mark.thorough
def test_the_code_of_the_readme_works(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for use without a notebook runs, given a log; so does a reproducer of it."""
    from tests.engine.observe.sample_traces import session_and_log

    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "dedicated_log_torch_trace_x.log").write_bytes(session_and_log()[1])
    (code,) = [text for language, text in blocks("README.md") if language == "python" and not text.startswith("%")]
    names: dict[str, Any] = {}
    exec(compile(code, "readme", "exec"), names)
    assert names["fast"](names["x"]).shape == (4, 2)
    assert names["theirs"].compilations
    assert names["before"].compilations
    assert (tmp_path / "session.json").stat().st_size > 100
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (call,) = re.findall(r"`(session\.reproducer\(.+?\))`", readme)
    first = names["session"].compilations[0].id  # "0/0" in a new process
    assert "import engine" not in eval(call.replace("0/0", first), names).text
    recipes = (ROOT / "notebook_ext" / "recipes.md").read_text(encoding="utf-8")
    assert f"recipes.md) has {len(re.findall('^##+ ', recipes, re.MULTILINE))} short programs" in readme


def commands() -> list[str]:
    """The lines of README's blocks for a shell, without comments."""
    lines = [row for language, text in blocks("README.md") if language != "python" for row in text.splitlines()]
    return [command for row in lines if (command := row.partition("#")[0].strip())]


def make(target: str) -> list[str]:
    """``make TARGET`` in the environment that runs the tests, which is not made anew."""
    return ["make", "--no-print-directory", target, f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed"]


@pytest.mark.slow  # it runs the tour once more
def test_the_demo_of_the_readme_runs() -> None:
    """``make demo`` prints each cell, what to look at, and a link to an open explorer.

    A second run executes nothing.
    """
    assert "make demo" in commands()
    ran = subprocess.run(make("demo"), cwd=ROOT, capture_output=True, text=True, check=True)
    *said, link = ran.stdout.strip().splitlines()
    assert "What to look at:" in ran.stdout
    parts = urllib.parse.urlsplit(link)
    assert parts.scheme == "file"
    page = pathlib.Path(urllib.request.url2pathname(parts.path))
    text = page.read_text(encoding="utf-8")
    assert "%%compile" in text
    opened = re.findall(r'<details class="output explorer"[^>]* open>', text)
    assert len(opened) == 1
    assert f'id="{parts.fragment}"' in opened[0]
    assert "masked_softmax" in html.unescape(text.split(opened[0])[1].split("</details>")[0])
    before = page.stat().st_mtime_ns
    again = subprocess.run(make("demo"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert again.startswith("Nothing changed")
    assert again.strip().splitlines()[-1] == link
    assert page.stat().st_mtime_ns == before
    if not said[0].startswith("Nothing changed"):
        assert sum(line.startswith("  cell ") for line in said) >= 15


@pytest.mark.thorough
def test_the_lab_of_the_readme_opens_the_tour(tmp_path: pathlib.Path) -> None:
    """``make lab`` starts JupyterLab on the tour, in the edition that hides answers."""
    assert "make lab" in commands()
    settings = {"ServerApp": {"allow_root": True, "port": 0}}
    (tmp_path / "jupyter_server_config.json").write_text(json.dumps(settings), encoding="utf-8")
    opened = tmp_path / "opened.html"
    browser = tmp_path / "browser"
    # The address begins with "file:/" from Python 3.14 on, before with "file:///".
    browser.write_text(f'#!/bin/sh\ncp "${{1#file:}}" {opened}.part && mv {opened}.part {opened}\n', encoding="utf-8")
    browser.chmod(0o755)
    environment = os.environ | {"JUPYTER_CONFIG_DIR": str(tmp_path), "BROWSER": f"{browser} %s"}
    with (tmp_path / "log").open("w", encoding="utf-8") as log:
        lab = subprocess.Popen(make("lab"), cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    end = time.monotonic() + 300
    try:
        while not opened.exists():
            is_waiting = lab.poll() is None and time.monotonic() < end
            assert is_waiting, (tmp_path / "log").read_text(encoding="utf-8")
            time.sleep(0.2)
        assert "00_tour.ipynb?token=" in opened.read_text(encoding="utf-8")
        said = (tmp_path / "log").read_text(encoding="utf-8")
        assert f"from local directory: {ROOT / 'build' / 'editions' / 'student'}" in said
    finally:
        os.killpg(lab.pid, signal.SIGTERM)
        lab.wait(timeout=60)


def test_the_command_for_logs_of_the_readme_runs(tmp_path: pathlib.Path) -> None:
    """``python -m notebook_ext logs`` writes the page that README names."""
    from tests.engine.observe.sample_traces import session_and_log

    (command,) = [line for line in commands() if line.startswith("python -m notebook_ext logs")]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "dedicated_log_torch_trace_x.log").write_bytes(session_and_log()[1])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_commands_of_the_readme_exist() -> None:
    """Commands for other systems name targets, modules, extras and files that exist.

    The targets are those of the Makefile.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in commands():
        words = shlex.split(line.replace("\\", "/"))
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), line
        for module in re.findall(r"python\S* -m (\w+)", line.replace("\\", "/")):
            assert importlib.util.find_spec(module), line
        for word in words:
            if word.startswith("notebooks/"):
                assert (ROOT / word).exists(), line


def test_examples_are_named() -> None:
    """There is one worked example for each of the six things that people add."""
    headings = re.findall(r"^### … (.+)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["an opcode", "a kind of variable", "a guard", "a wrapper", "a lowering", "a widget"]
    assert len(EXAMPLES) == len(headings)
    assert all(any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))) for text in EXAMPLES)
