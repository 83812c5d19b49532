"""The disk cache returns what was stored and reads only files of the user's own process."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import pickle
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import engine
from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.cache.environment_key import version_key
from engine.options import user_cache_dir
from engine.records.base import to_json

NAME = "a" * 64


@pytest.fixture(autouse=True)
def folder(disk_cache: pathlib.Path) -> pathlib.Path:
    """Where the stage keeps what it made."""
    return disk_cache / "aot"


def trains(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Forward and backward, a view, a constant and a write."""
    y = (x @ w).sin()
    y.add_(1)
    return y.sum(0), y.t(), 3


def infers(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Writes to an input, and returns a view of it."""
    with torch.no_grad():
        x.mul_(2)
        return x[1:], (x @ w).softmax(-1)


def _drops(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.sin(), 0.5, True).cos()


def draws(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Random numbers in an activation checkpoint, and attention."""
    y = checkpoint(_drops, x * 2, use_reentrant=False) @ w
    return F.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None])


def _call(run: Callable[..., Any], *, needs: bool) -> list[Any]:
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    w = torch.randn(4, 4).requires_grad_(needs)
    out = run(x, w)
    tensors = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, torch.Tensor)]
    if needs:
        sum(t.sum() for t in tensors).backward()  # type: ignore[union-attr]
    return [*tensors, x, w.grad, torch.rand(2), [t._base is x for t in tensors]]


def _told(fn: Callable[..., Any], backend: str = "aot_eager", *, needs: bool = True) -> tuple[list[str], list[Any]]:
    """What the records say about the cache, and what the call gave."""
    engine.reset()
    with engine.record() as session:
        found = _call(engine.compile(fn, backend=backend), needs=needs)
    return [c.aot.cache for c in session.compilations if c.aot is not None], found


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize(
    ("fn", "needs"), [(trains, True), (infers, False), (draws, True)], ids=["trains", "infers", "draws"]
)
def test_what_is_read_is_what_was_made(fn: Callable[..., Any], needs: bool, backend: str) -> None:
    """The second compilation loads the first one's graphs from disk and matches eager.

    Results, gradients, mutations, views and random numbers are eager's both times.
    """
    expected = _call(fn, needs=needs)
    for note in ("saved to disk", "loaded from disk"):
        notes, found = _told(fn, backend, needs=needs)
        assert notes == [note]
        for e, f in zip(expected, found, strict=True):
            if isinstance(e, torch.Tensor) and backend == "triton":  # kernels for the CPU round otherwise
                torch.testing.assert_close(f, e)
            else:
                assert torch.equal(e, f) if isinstance(e, torch.Tensor) else e == f


def test_another_torch_rebuilds_and_keeps_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one torch stored is not loaded by another, and is still there for the first."""
    assert _told(infers, needs=False)[0] == ["saved to disk"]
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "99.0")
        version_key.cache_clear()
        assert _told(infers, needs=False)[0] == ["saved to disk"]
    version_key.cache_clear()
    assert _told(infers, needs=False)[0] == ["loaded from disk"]


def _grows(x: torch.Tensor) -> Any:
    y = x * 2
    y[1:].add_(1)
    return y.sin(), x.t(), x.shape[0] * 2


def _over_sizes(fn: Callable[..., Any], run: Callable[..., Any], sizes: tuple[int, ...]) -> None:
    for size in sizes:
        calls = []
        for f in (fn, run):
            x = torch.arange(float(size * 3)).view(size, 3).requires_grad_()
            y, view, number = f(x)
            y.sum().backward()
            calls.append((y.detach(), x.grad, number, view.shape, view._base is x))
        for e, f in zip(*calls, strict=True):
            assert torch.equal(e, f) if isinstance(e, torch.Tensor) else e == f


def test_sizes_that_vary() -> None:
    """A cached graph with symbols loads for other sizes and restores its shape guards."""
    guards = []
    for note in ("saved to disk", "loaded from disk"):
        engine.reset()
        run = engine.compile(_grows, backend="aot_eager", dynamic=True)
        with engine.record() as session:
            _over_sizes(_grows, run, (5, 7, 4))
        (record,) = session.compilations
        assert record.aot is not None and record.aot.note == ""
        assert record.aot.cache == note
        assert record.guards is not None
        guards.append(sum(g.kind == "shape relation" for g in record.guards.guards))
        _over_sizes(_grows, run, (2, 3))
    assert guards[0] == guards[1]


def test_other_bounds_of_a_size_are_another_result() -> None:
    """What is known of a symbol decides what is computed, so it is part of the key."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    notes = []
    for low in (2, 4, 2):
        engine.reset()
        x = torch.ones(6)
        engine.mark_dynamic(x, 0, min=low, max=100)
        with engine.record() as session:
            engine.compile(fn, backend="aot_eager")(x)
        notes += [c.aot.cache for c in session.compilations if c.aot is not None]
    assert notes == ["saved to disk", "saved to disk", "loaded from disk"]


def test_inputs_over_one_memory() -> None:
    """The cache key includes how inputs share memory.

    Views of one tensor and equal views of different tensors have separate cache entries.
    """

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        return x.sin() + w.view(-1), w.t(), x[1:]

    def call(run: Callable[..., Any], is_one: bool) -> Any:
        whole, other = torch.arange(6.0), torch.arange(6.0)
        x, w = whole.view(-1), (whole if is_one else other).view(2, 3)
        total, view, part = run(x, w)
        return total, view._base is whole, part._base is whole

    for note in ("saved to disk", "loaded from disk"):
        for is_one in (True, False):
            engine.reset()
            with engine.record() as session:
                found = call(engine.compile(fn, backend="aot_eager"), is_one)
            assert [c.aot.cache for c in session.compilations if c.aot is not None] == [note]
            expected = call(fn, is_one)
            assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_records_are_the_same() -> None:
    """Records of graphs, partition and user code lines are equal for saved and loaded results."""
    texts = []
    for _ in range(2):
        engine.reset()
        with engine.record() as session:
            _call(engine.compile(draws, backend="aot_eager"), needs=True)
        (record,) = session.compilations
        assert [g.stage for g in record.graphs] == ["fx", "joint", "forward", "backward"]
        assert record.aot is not None
        told = [to_json(r) for r in (*record.graphs, replace(record.aot, cache=""))]
        texts.append([re.sub(r"\b\d+/0\b", "here", t) for t in told])
    assert texts[0] == texts[1]


@pytest.mark.thorough
def test_another_process_reads_it(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that never compiled the function traces it, and reads the rest."""
    program = tmp_path / "program.py"
    program.write_text(
        "import engine, torch\n"
        "def f(x):\n    return (x.sin() * x).sum()\n"
        "x = torch.arange(4.).requires_grad_()\n"
        "with engine.record() as s:\n    engine.compile(f, backend='triton')(x).backward()\n"
        "(c,) = s.compilations\n"
        "print(c.aot.cache, c.lowering.cache, [x.grad.tolist(), [k.text for k in c.kernels]])\n",
        encoding="utf-8",
    )
    env = os.environ | {"ENGINE_DISK_CACHE": "1", "PYTHONPATH": str(pathlib.Path(engine.__file__).parents[1])}
    runpy.run_path(str(program))
    written = capsys.readouterr().out
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=True)
    assert written.startswith("saved to disk saved to disk [")
    assert done.stdout.startswith("loaded from disk loaded from disk [")
    assert written.partition("[")[2] == done.stdout.partition("[")[2]


def _truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _tamper(data: bytes) -> bytes:
    return data.replace(b"aten::mm.default", b"aten::mv.default")


class _Bomb:
    def __reduce__(self) -> Any:
        return (os._exit, (3,))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": _truncate,
    "tampered": _tamper,
    "empty": lambda _: b"",
    "pickled": lambda _: pickle.dumps(_Bomb()),
    "foreign": lambda data: data[:19] + b"0" * 64 + data[83:],
    "text": lambda _: json.dumps({"graph": []}).encode(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_and_foreign_files_are_not_looked_into(folder: pathlib.Path, damage: Callable[[bytes], bytes]) -> None:
    """They are made anew and written over, with the reason in the record."""
    expected = _call(trains, needs=True)
    _told(trains)
    (path,) = (p for p in folder.iterdir() if p.name != "key")
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    notes, found = _told(trains)
    assert notes == ["recompiled: a file in the cache is damaged, or another user wrote it"]
    assert all(torch.equal(e, f) for e, f in zip(expected, found, strict=True) if isinstance(e, torch.Tensor))
    assert _told(trains)[0] == ["loaded from disk"]


def test_what_decides_the_result_is_in_the_key() -> None:
    """Sizes, constants, autocast and the default dtype are each part of the cache key."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * 2

    def otherwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * 3

    assert _told(scaled)[0] == ["saved to disk"]
    assert _told(otherwise)[0] == ["saved to disk"]
    with torch.autocast("cpu"):
        assert _told(scaled)[0] == ["saved to disk"]
    assert _told(scaled, needs=False)[0] == ["saved to disk"]
    assert _told(scaled)[0] == ["loaded from disk"]


def test_what_another_process_may_not_have_is_not_kept() -> None:
    """A custom operator with code known only to the dispatcher is not cached.

    The record says why.
    """
    library = torch.library.Library("kept_nowhere", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")

    def custom(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.kept_nowhere.twice(x) + w

    notes, _ = _told(custom, needs=False)
    assert len(notes) == 1 and notes[0].startswith("not saved to disk: ") and "twice" in notes[0]


def test_switched_off_it_does_nothing(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option no folder is made and the record is silent."""
    monkeypatch.setattr(engine.config, "disk_cache", False)
    assert _told(trains)[0] == [""]
    assert not folder.exists()


# The store by itself.


def test_a_text_comes_back(tmp_path: pathlib.Path) -> None:
    """A stored text can be read again, also by another ``DiskStore`` over the same folder.

    An unknown name returns None.
    """
    DiskStore(tmp_path / "s").put(NAME, "text ä")
    assert DiskStore(tmp_path / "s").get(NAME) == "text ä"
    assert DiskStore(tmp_path / "s").get("b" * 64) is None


def test_an_entry_under_another_name_is_refused(tmp_path: pathlib.Path) -> None:
    """The keyed hash covers the name."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")
    (store.folder / NAME).rename(store.folder / ("b" * 64))
    with pytest.raises(DiskStoreError):
        store.get("b" * 64)


def test_links_and_what_others_may_write_are_refused(tmp_path: pathlib.Path) -> None:
    """A link in place of a file, a file that others may write, a key that others may read."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")
    path = store.folder / NAME
    path.chmod(0o666)
    with pytest.raises(DiskStoreError):
        store.get(NAME)
    path.chmod(0o600)
    (store.folder / "key").chmod(0o644)
    with pytest.raises(DiskStoreError, match="key"):
        store.get(NAME)
    (store.folder / "key").chmod(0o600)
    assert store.get(NAME) == "text"
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    with pytest.raises(DiskStoreError):
        store.get(NAME)


def test_a_folder_that_others_may_write_is_not_used(tmp_path: pathlib.Path) -> None:
    """Nothing is read from it, nothing put into it."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")
    store.folder.chmod(0o777)
    assert store.get(NAME) is None
    with pytest.raises(DiskStoreError, match="other users can write"):
        store.put(NAME, "text")


def test_the_oldest_go_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full folder loses what was not used for the longest time."""
    store = DiskStore(tmp_path / "s")
    for n, name in enumerate("abc"):
        store.put(name * 64, "x" * 100)
        os.utime(store.folder / (name * 64), (n, n))
    monkeypatch.setattr("engine.cache.disk_store.MAX_STORE_BYTES", 600)
    store.put("d" * 64, "x" * 100)
    assert store.get("a" * 64) is None
    assert store.get("d" * 64) == "x" * 100


def test_a_path_that_is_not_absolute_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG specification asks, a relative ``XDG_CACHE_HOME`` counts for nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_dir() == pathlib.Path.home() / ".cache" / "compile-explorer"


def test_a_full_disk_is_not_filled_further(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written whole leaves nothing behind, and what is there is read."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")

    class Full:
        def __init__(self, handle: int, mode: str) -> None:  # noqa: ARG002
            self.handle = handle

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *raised: object) -> None:
            os.close(self.handle)

        def write(self, data: bytes) -> None:
            os.write(self.handle, data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DiskStoreError, match="No space left on device"):
        patch.setattr(os, "fdopen", Full)
        store.put("b" * 64, "other")
    assert {f.name for f in store.folder.iterdir()} == {"key", NAME}
    assert store.get(NAME) == "text"


def test_a_folder_that_is_read_only_is_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a text was used last cannot be noted there, which is no reason to do without it."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")

    def refuse(path: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert store.get(NAME) == "text"


_HAMMER = """
import pathlib, random, sys
from engine.cache import disk_store as stores
stores.MAX_STORE_BYTES = 20000
store, draw = stores.DiskStore(pathlib.Path(sys.argv[1])), random.Random(int(sys.argv[2]))
for _ in range(600):
    name = format(draw.randrange(16), "x") * 64
    if draw.random() < 0.5:
        store.put(name, name * 50)
    else:
        assert store.get(name) in (None, name * 50)
"""


@pytest.mark.thorough
def test_processes_share_a_small_folder(tmp_path: pathlib.Path) -> None:
    """Processes that write and evict in one folder read complete texts or none.

    None of them gets an error.
    """
    env = os.environ | {"PYTHONPATH": str(pathlib.Path(engine.__file__).parents[1])}
    command = [sys.executable, "-c", _HAMMER, str(tmp_path / "s")]
    running = [subprocess.Popen([*command, str(n)], env=env) for n in range(3)]
    assert [p.wait() for p in running] == [0, 0, 0]
    assert all(not f.name.startswith(".") for f in (tmp_path / "s").iterdir())


def test_a_cache_folder_that_is_a_link_is_refused(tmp_path: pathlib.Path) -> None:
    """A cache folder that leads elsewhere, or whose parent does, is not written to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "compile-explorer").symlink_to(elsewhere)
    with pytest.raises(DiskStoreError, match="is a link"):
        DiskStore(tmp_path / "compile-explorer" / "aot").put(NAME, "text")
    with pytest.raises(DiskStoreError):
        DiskStore(tmp_path / "compile-explorer").put(NAME, "text")
    assert not list(elsewhere.iterdir())


def _open_parent(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a cache folder below a parent that everybody can write to."""
    folder = tmp_path / "compile-explorer" / "aot"
    folder.parent.mkdir()
    folder.parent.chmod(0o777)
    return folder


def _open_root(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a cache folder below a root that everybody can write to."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)
    return tmp_path / "root" / "compile-explorer" / "aot"


def _linked_root(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a cache folder below a link to a root that everybody can write to."""
    (tmp_path / "link").symlink_to(_open_root(tmp_path).parents[1])
    return tmp_path / "link" / "compile-explorer" / "aot"


@pytest.mark.parametrize("make", [_open_parent, _open_root, _linked_root])
def test_a_folder_that_others_can_replace_is_not_written_to(
    make: Callable[[pathlib.Path], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """Nobody else may be able to put another folder in place; a sticky bit forbids it."""
    folder = make(tmp_path)
    with pytest.raises(DiskStoreError, match="others can write to it"):
        DiskStore(folder).put(NAME, "text")
    assert not folder.exists()
    for parent in folder.parents[:2]:
        if parent.exists():
            parent.chmod(0o1777)
    DiskStore(folder).put(NAME, "text")
    assert DiskStore(folder).get(NAME) == "text"


def test_a_cache_below_a_link_of_the_users_own_is_used(tmp_path: pathlib.Path) -> None:
    """A home folder may link to a larger disk."""
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "root").symlink_to(tmp_path / "disk")
    DiskStore(tmp_path / "root" / "compile-explorer" / "aot").put(NAME, "text")
    assert (tmp_path / "disk" / "compile-explorer" / "aot" / NAME).exists()


def test_a_pipe_in_place_of_a_file_is_not_read(tmp_path: pathlib.Path) -> None:
    """Reading a pipe would wait for a writer for ever."""
    store = DiskStore(tmp_path / "s")
    store.put(NAME, "text")
    (store.folder / NAME).unlink()
    os.mkfifo(store.folder / NAME, 0o600)
    with pytest.raises(DiskStoreError, match="damaged"):
        store.get(NAME)
