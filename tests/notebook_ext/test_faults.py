"""Faults at files and processes: each row of the page on faults has a test here."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

import engine
from engine.records.session import Session
from engine.runtime.workers import compile_jobs
from engine.runtime.workers.process_pool import WorkerFailed, WorkerPool
from notebook_ext.trace_report import write_trace_report
from tests.engine.kernels import handwritten_kernels
from tests.engine.runtime.workers.test_compile_jobs import CollectedRecords, uncached_kernel
from tests.notebook_ext.conftest import Shell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of files and Triton are Linux's")
PAGE = pathlib.Path(__file__).parents[2] / "notebooks" / "reference" / "FAULTS.md"
CELL = "def f(x):\n    return torch.relu(x) * 2\ny = f(torch.ones(2, 4))\n"


@contextmanager
def full_disk(largest: int = 512) -> Iterator[None]:
    """Let the system refuse every file beyond some bytes, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def chain(x: torch.Tensor) -> torch.Tensor:
    """Some operators."""
    return x.sin() * 2 + x.cos()


def _compile_with_cache(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Compile and compare with eager; return what the record says about the disk cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(engine.config, "disk_cache", True)
    engine.reset()
    x = torch.randn(4, 4)
    with engine.record() as session:
        torch.testing.assert_close(engine.compile(chain, backend="aot_eager")(x), chain(x))
    aot = session.compilations[0].aot
    assert aot is not None
    return aot.cache


def cache_folder_cannot_be_made(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    (tmp_path / "file").write_text("")
    assert "the cache cannot be read: Not a directory" in _compile_with_cache(tmp_path / "file", monkeypatch)


def disk_is_full_for_the_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    with full_disk():
        said = _compile_with_cache(tmp_path, monkeypatch)
    assert "the cache cannot be written: File too large" in said
    assert [p.name for p in tmp_path.rglob("*") if p.is_file() and p.name != "key"] == []


def cached_graph_is_damaged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    _compile_with_cache(tmp_path, monkeypatch)
    (path,) = (p for p in tmp_path.rglob("*") if p.is_file() and p.name != "key")
    path.write_bytes(path.read_bytes()[:-7])
    assert "damaged" in _compile_with_cache(tmp_path, monkeypatch)


def disk_is_full_for_a_session(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    path = tmp_path / "s.json"
    session = Session()
    session.add_note("first")
    session.save(path)
    session.add_note("second" * 1000)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        session.save(path)
    assert Session.load(path).notes == ("first",)
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def disk_is_full_for_a_saved_cell(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    path = tmp_path / "cell.html"
    path.write_text("an earlier page")
    with full_disk(100_000):
        ran = shell.run(f"%%compile --save {path} --backend aot_eager\n{CELL}")
    assert ran.succeeded, ran.text
    assert shell.ns["y"].shape == (2, 4)
    assert any(note.startswith("Not saved as cell.html") for note in shell.ns["_compile"].notes)
    assert path.read_text() == "an earlier page"
    assert [p.name for p in tmp_path.iterdir()] == ["cell.html"]


def disk_is_full_for_a_report(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    log, page = tmp_path / "dedicated_log.log", tmp_path / "page.html"
    log.write_text('V1123 10:00:00.000000 1 torch/_logging/structured.py:27] {"str": ["a.py", 0]}\n')
    page.write_text("an earlier page")
    with full_disk(50_000):
        assert write_trace_report(log, page) == 2
    assert "cannot be read or written: File too large." in capsys.readouterr().err
    assert page.read_text() == "an earlier page"


def worker_is_killed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    pool = WorkerPool(1, {})
    try:
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            pool.call("os:kill", (pool.call("os:getpid", ()), 9))
        assert pool.call("operator:add", (1, 2)) == 3
    finally:
        pool.close()


def worker_is_out_of_memory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    pool = WorkerPool(1, {})
    try:
        with pytest.raises(WorkerFailed, match="MemoryError"):
            pool.call("operator:mul", ([0], 2**60))
        assert pool.call("operator:add", (1, 2)) == 3
    finally:
        pool.close()


def _kernel_error(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """Compile a kernel in a worker with this environment; return the error of its record."""
    compiler = compile_jobs._BackgroundCompiler()
    compiler._pool.close()
    compiler._pool = WorkerPool(1, {"TRITON_INTERPRET": "0", **environment})
    try:
        seen = CollectedRecords()
        kernel = uncached_kernel(handwritten_kernels.gelu(), f"{os.getpid()} {environment}")
        job = compile_jobs.CompileJob(seen, 1)
        compiler.submit([(kernel.id, compile_jobs.compile_unit_of(kernel))], "cuda:90", job)
        assert job.wait(60)
        return seen.last(kernel.id).error
    finally:
        compiler._pool.close()


def ptxas_fails(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    tool = tmp_path / "ptxas"
    version = "case $1 in --version) echo 'release 13.0, V13.0.1'; exit;; esac"
    tool.write_text(f"#!/bin/sh\n{version}\necho 'ptxas fatal   : Memory allocation failure' >&2\nexit 255\n")
    tool.chmod(0o755)
    error = _kernel_error(monkeypatch, TRITON_PTXAS_PATH=str(tool), TRITON_PTXAS_BLACKWELL_PATH=str(tool))
    assert error == "Triton could not compile gelu for cuda:90: ptxas fatal   : Memory allocation failure"


def ptxas_is_missing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    missing = str(tmp_path / "missing")
    assert _kernel_error(monkeypatch, TRITON_PTXAS_PATH=missing, TRITON_PTXAS_BLACKWELL_PATH=missing) == ""


def triton_cannot_write_its_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, shell: Shell) -> None:
    (tmp_path / "file").write_text("")
    error = _kernel_error(monkeypatch, TRITON_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert "cannot be used (Not a directory). Free some disk space, or set TRITON_CACHE_DIR" in error


FAULTS: dict[str, Callable[..., None]] = {
    "The cache folder cannot be made": cache_folder_cannot_be_made,
    "The disk is full while the cache is written": disk_is_full_for_the_cache,
    "A cached graph is damaged": cached_graph_is_damaged,
    "The disk is full while a session is saved": disk_is_full_for_a_session,
    "The disk is full while `%%compile --save` writes": disk_is_full_for_a_saved_cell,
    "The disk is full while a log's report is written": disk_is_full_for_a_report,
    "A compile worker is killed": worker_is_killed,
    "A compile worker is out of memory": worker_is_out_of_memory,
    "`ptxas` fails": ptxas_fails,
    "`TRITON_PTXAS_PATH` or `TRITON_PTXAS_BLACKWELL_PATH` names no file": ptxas_is_missing,
    "Triton cannot write its cache": triton_cannot_write_its_cache,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_the_effect_that_the_page_names(
    fault: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    shell: Shell,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Results stay right, earlier files stay, and one sentence names the cause."""
    options = {"capsys": capsys} if fault == "The disk is full while a log's report is written" else {}
    FAULTS[fault](tmp_path, monkeypatch, shell, **options)


def test_the_page_lists_each_fault() -> None:
    """The rows of the page are the faults tested here."""
    rows = re.findall(r"^\| (.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [row for row in rows if row not in ("What fails", "---")] == list(FAULTS)
