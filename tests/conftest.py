"""Rings, expected files and the browser, for every test."""

from __future__ import annotations

import difflib
import gc
import importlib.util
import logging
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.markers import left_out_combinations, long_tests_first, thorough_items

os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
"""Inductor trusts what the processor says of its vector instructions.

Otherwise each process with a C++ kernel first starts several Pythons to try them.
"""

vars(sys)["modules"].setdefault("rfc3987_syntax", None)
"""jsonschema, which nbformat imports, does without this module.

Its import builds a parser of addresses for more than a second.
"""

EXPECTED = pathlib.Path(__file__).parent / "expected"
OWN_PROCESS = "TEST_IN_OWN_PROCESS"
"""Variable that is set in a process that pytest started for one test."""
DEPTH = sys.getrecursionlimit()
FRAMES_OF_A_TRACED_CALL = 10
"""Python calls that are nested, at most, while one nested call is traced."""
YOUNG_OBJECTS = 50_000
"""New objects after which garbage is collected, instead of Python 3.11's 700."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--accept``, to rewrite expected files, and ``--site``, a built site."""
    parser.addoption("--accept", action="store_true", help="write tests/expected from what the tests see")
    parser.addoption("--site", type=pathlib.Path, help="check this built site instead of one built for the tests")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # markers decide what -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark what each target leaves out, skip the gpu ring without a GPU, and order tests."""
    for item in left_out_combinations(items):
        item.add_marker(pytest.mark.slow)
    for item in thorough_items(item for item in items if item.get_closest_marker("slow") is None):
        item.add_marker(pytest.mark.thorough)
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no GPU here"))
    yield
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = long_tests_first(items, workers)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without garbage collection, which would visit all that was made again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Freeze what collection made, share the cores, defer jobs, and keep the interpreter.

    Each full collection would visit the thousands of tests and modules again. It still visits what tests import and
    cache, so collections are rarer. Workers that each start a thread for every core wait for one another at the end of
    each parallel loop. A new interpreter's process would import torch and Triton again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    if "engine.session_jobs" in sys.modules:
        from tests.deferred_compile_jobs import defer_compile_jobs

        defer_compile_jobs()
    if (verification := sys.modules.get("engine.runtime.verify.kernels")) is not None:
        verification._pool._idle_seconds = None
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Reset the recursion limit and torch's switches, and unfreeze backend flags.

    Inductor, torch's test tools and programs that set switches change them for good.
    """
    sys.setrecursionlimit(DEPTH)
    _release_trace_log()
    if (backends := sys.modules.get("torch.backends")) is not None:
        # what stands in sys.modules is a wrapper with a namespace of its own: the flag is a global of torch's functions
        backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
        _reset_switches(sys.modules["torch"])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test in a new process where this one cannot run what it is marked with."""
    if OWN_PROCESS in os.environ or not _needs_own_process(pyfuncitem):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", pyfuncitem.nodeid]
    ran = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, OWN_PROCESS: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        pytest.fail(ran.stdout + ran.stderr, pytrace=False)
    return True


def _needs_own_process(item: pytest.Function) -> bool:
    if item.get_closest_marker("nests_calls") is not None and _room_for_calls() < DEPTH * FRAMES_OF_A_TRACED_CALL:
        return True
    if item.get_closest_marker("forks_backward") is None:
        return False
    from tests.forked_backwards import backward_raises_in_fork

    return backward_raises_in_fork()


def _room_for_calls() -> int:
    """Return how deep calls may be nested here, at most twice as deep as tracing needs.

    After an error of its tracer, torch keeps its hook for frames. Python then counts each call as calls in C: Python 3.12
    allows 750, and Python 3.13 5,000.
    """
    sys.setrecursionlimit(2 * DEPTH * FRAMES_OF_A_TRACED_CALL)
    try:
        return _nest_calls(0)
    finally:
        sys.setrecursionlimit(DEPTH)


def _nest_calls(depth: int) -> int:
    try:
        return _nest_calls(depth + 1)
    except RecursionError:
        return depth


def _release_trace_log() -> None:
    """Take pytest's handlers off torch's structured trace.

    While it has a handler, torch formats a stack and a record for each tensor that it makes fake.
    """
    log = logging.getLogger("torch.__trace")
    for handler in [h for h in log.handlers if type(h).__module__ == "_pytest.logging"]:
        log.removeHandler(handler)


def _reset_switches(torch: ModuleType) -> None:
    """Set what programs switch to what it is when torch is imported."""
    torch.set_float32_matmul_precision("highest")
    torch.set_warn_always(False)
    torch.autograd.set_multithreading_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", torch.bfloat16)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Under CI on Linux, which has wheels of Triton, no test may be skipped for want of it."""
    if sys.platform == "linux" and os.environ.get("CI") == "true" and importlib.util.find_spec("triton") is None:
        raise pytest.UsageError("Triton is missing, and its tests would be skipped: pip install triton")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; skips without one, and fails instead under CI."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    message = "no Chromium was found on PATH: install it (on Debian: apt install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def site_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The static site, built once for all workers; with ``--site`` that folder."""
    if given := request.config.getoption("--site"):
        return pathlib.Path(given)
    import fcntl

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            _build_site(unfinished)
            unfinished.rename(folder)
    return folder


def _build_site(folder: pathlib.Path) -> None:
    """Build the site that tests share into a folder."""
    from notebook_ext.site.build_site import build_site
    from notebook_ext.site.lesson_explorers import COMMITTED, committed_explorers
    from tests.notebook_ext.sample_step_sessions import steps_session

    steps = folder.with_suffix(".steps.json")
    steps_session().save(steps)
    committed = {lesson: committed_explorers(lesson) for lesson in COMMITTED}
    build_site(folder, {"01_bytecode_to_graph": {"steps": steps}, **committed})


@pytest.fixture(scope="session")
def interpreter() -> Any:
    """The pool whose process interprets Triton's kernels, also for ``engine.verify``."""
    from engine.runtime.verify import kernels

    return kernels._pool


@pytest.fixture(scope="session")
def kernel_variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which notebook kernels are forked from a process for all workers."""
    from tests import forked_kernels

    base = tmp_path_factory.getbasetemp()
    return forked_kernels.kernel_variables((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels")


@pytest.fixture
def forked_kernels(kernel_variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the notebook kernels of this test."""
    for name, value in kernel_variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def expected(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that compares text with the test's expected file.

    The file is ``tests/expected/<test file>/<test name>.txt``. With ``--accept`` it is written instead.
    """
    path = EXPECTED / request.path.stem.removeprefix("test_") / f"{request.node.originalname.removeprefix('test_')}.txt"

    def compare(text: str) -> None:
        if request.config.getoption("--accept"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        known = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != known:
            difference = difflib.unified_diff(known.splitlines(), text.splitlines(), str(path), "now", lineterm="")
            pytest.fail("\n".join([*difference, "make accept writes the new text."]), pytrace=False)

    return compare


@pytest.fixture
def disk_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Enable a disk cache private to this test and return its folder.

    The folder holds the caches of the stages. No compiled code is left afterwards.
    """
    import engine

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(engine.config, "disk_cache", True)
    yield tmp_path / "compile-explorer"
    engine.reset()


@pytest.fixture
def torch_seed() -> Iterator[None]:
    """A fixed seed for the test, and the caller's random state back afterwards."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
