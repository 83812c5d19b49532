"""Kernels compile in the background, with partial results, cancellation and clean exit.

Failures are reported, and no process stays behind.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.ir.kernels.compile_triton import compile_unit_of
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.records.kernels import TargetRecord
from engine.runtime.workers import compile_jobs
from engine.runtime.workers.process_pool import WorkerFailed, WorkerPool
from tests.engine.kernels import handwritten_kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
ROOT = pathlib.Path(__file__).parents[4]


class CollectedRecords:
    """Takes what a job tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, TargetRecord]] = []
        self.threads: set[int] = set()

    def __call__(self, kernel: str, record: TargetRecord) -> None:
        self.told.append((kernel, record))
        self.threads.add(threading.get_ident())

    def last(self, kernel: str) -> TargetRecord:
        """The last record of a kernel."""
        return [record for k, record in self.told if k == kernel][-1]


def uncached_kernel(source: GeneratedKernel, note: str) -> GeneratedKernel:
    """The same kernel with another text, so that no cache knows it."""
    return replace(source, text=source.text.replace("):\n    ", f"):\n    note = {zlib.crc32(note.encode())}\n    ", 1))


def stages(record: TargetRecord) -> set[str]:
    """Names of a record's listings."""
    return {listing.stage for listing in record.listings}


@pytest.mark.thorough
def test_every_kernel_is_told_with_ptx_first_and_then_with_sass() -> None:
    """Results come in another thread, complete at the end."""
    heard = CollectedRecords()
    kernels = [
        uncached_kernel(make(kernel=f"k{i}"), f"{os.getpid()}-{i}")
        for i, make in enumerate(handwritten_kernels.ALL_KERNELS)
    ]
    job = compile_jobs.submit_compile_job(kernels, "cuda:90", heard)
    assert job.wait(60)
    assert job.done
    for kernel in kernels:
        told = [record for k, record in heard.told if k == kernel.id]
        assert [("sass" in stages(r), "ptx" in stages(r), r.error) for r in told] == [
            (False, True, ""),
            (True, True, ""),
        ]
    assert threading.get_ident() not in heard.threads


def test_workers_compile_without_torch() -> None:
    """What compiles a kernel imports no torch: 130 MB and two seconds in each worker."""
    unit = compile_unit_of(handwritten_kernels.gelu())
    pool = compile_jobs._compiler._pool
    pool.call(compile_jobs.COMPILE_TASK, (unit, "cuda:90"))
    assert not pool.call(
        "builtins:eval", ("__import__('engine.kernels.compile_kernel') and 'torch' in __import__('sys').modules",)
    )


@pytest.mark.thorough
def test_known_kernels_are_told_again_without_compiling() -> None:
    """The second job for the same text is answered from memory, also under another id."""
    first, second = CollectedRecords(), CollectedRecords()
    kernel = uncached_kernel(handwritten_kernels.gelu(), f"again {os.getpid()}")
    assert compile_jobs.submit_compile_job([kernel], "cuda:80", first).wait(60)
    job = compile_jobs.submit_compile_job([replace(kernel, id="k7"), replace(kernel, id="k8")], "cuda:80", second)
    assert job.wait(5)
    assert [k for k, _ in second.told] == ["k7", "k8"]
    assert second.last("k7") is second.last("k8") is first.last("k0")


def test_equal_kernels_of_one_job_compile_once_and_are_all_told() -> None:
    """Twelve equal blocks need one compile."""
    heard = CollectedRecords()
    kernel = uncached_kernel(handwritten_kernels.embedding(), f"equal {os.getpid()}")
    assert compile_jobs.submit_compile_job([replace(kernel, id=f"k{i}") for i in range(12)], "cuda:90", heard).wait(60)
    assert len({id(heard.last(f"k{i}")) for i in range(12)}) == 1


def test_a_job_without_kernels_is_done_at_once() -> None:
    """Nothing to compile is not a job that never ends."""
    assert compile_jobs.submit_compile_job([], "cuda:90", CollectedRecords()).done


def test_a_kernel_that_cannot_compile_is_told_and_does_not_stop_the_others() -> None:
    """One error record, and results for the rest."""
    heard = CollectedRecords()
    bad = replace(
        uncached_kernel(handwritten_kernels.softmax(), "bad"),
        text="import triton\n\n@triton.jit\ndef softmax(x): y = nothing\n",
    )
    good = uncached_kernel(handwritten_kernels.gelu(kernel="k1"), f"beside bad {os.getpid()}")
    assert compile_jobs.submit_compile_job([bad, good], "cuda:90", heard).wait(60)
    assert "could not compile softmax" in heard.last("k0").error
    assert not heard.last("k1").error


def test_a_callback_that_raises_does_not_stop_the_job() -> None:
    """What the caller does wrong with one result costs no other."""
    seen: list[str] = []

    def on_done(kernel: str, record: TargetRecord) -> None:
        seen.append(kernel)
        raise RuntimeError

    kernels = [uncached_kernel(handwritten_kernels.gelu(kernel=f"k{i}"), f"raises {os.getpid()} {i}") for i in range(3)]
    assert compile_jobs.submit_compile_job(kernels, "cuda:90", on_done).wait(60)
    assert set(seen) == {"k0", "k1", "k2"}


def test_a_cancelled_job_ends_at_once_and_tells_nothing_more() -> None:
    """cancel() returns soon, wait() too; a later job for the same kernels still gets them."""
    heard, later = CollectedRecords(), CollectedRecords()
    kernels = [
        uncached_kernel(handwritten_kernels.softmax(kernel=f"k{i}"), f"cancel {os.getpid()} {i}") for i in range(30)
    ]
    job = compile_jobs.submit_compile_job(kernels, "cuda:90", heard)
    start = time.monotonic()
    job.cancel()
    assert job.wait(1)
    assert job.done
    assert time.monotonic() - start < 1
    told = len(heard.told)
    assert compile_jobs.submit_compile_job(kernels[:3], "cuda:90", later).wait(60)
    assert len(heard.told) - told <= 1  # a call that was under way
    assert all("sass" in stages(later.last(f"k{i}")) for i in range(3))


@pytest.fixture
def pool() -> Any:
    """One worker process of its own."""
    made = WorkerPool(1, {})
    yield made
    made.close()


def test_a_worker_that_dies_is_told_and_replaced(pool: WorkerPool) -> None:
    """A task that kills its worker fails with the exit cause; the next gets a new process."""
    before = pool.call("os:getpid", ())
    with pytest.raises(WorkerFailed, match=r"exit status 3"):
        pool.call("os:_exit", (3,))
    with pytest.raises(WorkerFailed, match="SIGSEGV"):
        pool.call("os:kill", (pool.call("os:getpid", ()), 11))
    after = pool.call("os:getpid", ())
    assert after not in (before, os.getpid())


def test_a_task_that_takes_too_long_is_stopped(pool: WorkerPool) -> None:
    """The limit is per task, and the next task is served."""
    with pytest.raises(WorkerFailed, match=r"longer than 0\.3 s"):
        pool.call("time:sleep", (30,), timeout=0.3)
    assert pool.call("operator:add", (1, 2)) == 3


def test_a_task_that_raises_leaves_the_process_alive(pool: WorkerPool) -> None:
    """The reason names the exception; the process is kept."""
    before = pool.call("os:getpid", ())
    with pytest.raises(WorkerFailed, match="ZeroDivisionError"):
        pool.call("operator:truediv", (1, 0))
    assert pool.call("os:getpid", ()) == before


def test_what_a_task_prints_does_not_disturb_the_answers(pool: WorkerPool) -> None:
    """Compilers print to standard output, from C as well."""
    pool.call("os:system", ("echo noise",))
    pool.call("builtins:print", ("noise",))
    assert pool.call("operator:add", (1, 2)) == 3


def test_closing_removes_the_process_and_its_files(pool: WorkerPool) -> None:
    """Closing removes the worker process, its temporary folder and the files in it."""
    pid = pool.call("os:getpid", ())
    folder = pathlib.Path(pool.call("os:getenv", ("TMPDIR",)))
    pool.call("os:mkdir", (str(folder / "left"),))
    pool.close()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.call("operator:add", (1, 2)) == 3


@pytest.mark.thorough
def test_workers_run_neither_the_users_main_nor_a_file_that_shadows_the_engine(tmp_path: pathlib.Path) -> None:
    """Workers run neither a script without a main guard nor a user's ``engine.py``.

    A script beside such a file compiles a kernel and is run once.
    """
    (tmp_path / "engine.py").write_text("raise SystemExit('shadow')\n")
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, pathlib; sys.path.insert(0, {str(ROOT)!r})\n"
        "with pathlib.Path('runs').open('a') as f: f.write('x')\n"
        "from engine.runtime.workers import compile_jobs as worker\n"
        "from tests.engine.kernels import handwritten_kernels as written\n"
        "job = worker.submit_compile_job([written.gelu()], 'cuda:90', lambda k, r: print(k, r.error or 'compiled', flush=True))\n"
        "print(job.wait(60))\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "k0 compiled" in ran.stdout
    assert "True" in ran.stdout
    assert (tmp_path / "runs").read_text() == "x"
    assert not ran.stderr


@pytest.mark.thorough
def test_leaving_with_work_under_way_ends_soon_and_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    """An interpreter that exits with a full queue does not wait for it; its workers are gone."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from dataclasses import replace\n"
        "from engine.runtime.workers import compile_jobs as worker, process_pool as pool\n"
        "from tests.engine.kernels import handwritten_kernels as written\n"
        "p = pool.WorkerPool(1, {}); print(p.call('os:getpid', ()), flush=True)\n"
        "p.submit('time:sleep', (60,), lambda value, reason: None)\n"
        "ks = [replace(written.gelu(), text=written.gelu().text + f'# {i}') for i in range(200)]\n"
        "worker.submit_compile_job(ks, 'cuda:90', lambda k, r: None)\n"
    )
    start = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert time.monotonic() - start < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)
    assert not list(tmp_path.glob("engine-worker-*"))


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, even if the tests run in the background.

    A process started in the background ignores SIGINT.
    """
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, was)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_call_stops_its_worker(pool: WorkerPool) -> None:
    """Ctrl-C while waiting for an answer: the next task is not held up by the one given up."""
    pool.call("os:getpid", ())
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pool.call("time:sleep", (60,))
    start = time.monotonic()
    assert pool.call("operator:add", (1, 2)) == 3
    assert time.monotonic() - start < 10


def test_without_triton_every_kernel_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is started; the job ends."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    heard = CollectedRecords()
    assert compile_jobs.submit_compile_job([handwritten_kernels.gelu()], "cuda:90", heard).wait(10)
    assert "PTX and SASS need" in heard.last("k0").error


def test_a_worker_leaves_when_its_parent_is_killed(tmp_path: pathlib.Path) -> None:
    """A killed notebook kernel leaves no process and no files, even during a long task."""
    script = (
        f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from engine.runtime.workers.process_pool import WorkerPool as Pool\n"
        "p = Pool(1, {}); print(p.call('os:getpid', ()), flush=True)\n"
        "p.submit('time:sleep', (300,), lambda value, reason: None)\n"
        "import time; time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    end = time.monotonic() + 10
    while time.monotonic() < end and list(tmp_path.glob("engine-worker-*")):
        time.sleep(0.1)
    assert not list(tmp_path.glob("engine-worker-*"))
    time.sleep(0.2)
    assert not pathlib.Path(f"/proc/{int(ran.stdout)}/cmdline").exists() or not _is_running(int(ran.stdout))


def _is_running(pid: int) -> bool:
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
