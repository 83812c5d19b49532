"""``TORCH_TRACE`` logs load as the same records as observing the run, in bounded memory.

Damaged logs load too.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from engine.observe import log_reader as lines_module
from engine.observe.log_reader import LogDamage, read_log_records, read_raw_records
from engine.observe.observe_torch import observe_torch
from engine.records.session import Session
from engine.torch_private.torch_compile import torch_logging
from tests.engine.observe.sample_traces import add_ten, breaks_in_the_middle, log_to_file, session_and_log

CLOCK = re.compile(r"^(start|seconds)$")


class Log(bytes):
    """A log that does not fill the page when a test fails."""

    def __repr__(self) -> str:
        return f"<log of {len(self)} bytes>"


@pytest.fixture(scope="module")
def log() -> Log:
    """The trace of a run with a break, a recompile, symbols and a backward."""
    return Log(session_and_log()[1])


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """torch.compile with empty caches."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def load(tmp_path: Path, data: bytes, name: str = "trace.log", *, read_sources: bool = False) -> Session:
    """Load a log with these bytes."""
    path = tmp_path / name
    path.write_bytes(data)
    return engine.load_torch_trace(path, read_sources=read_sources)


def without_clock(value: Any) -> Any:
    """Drop times, and guard verdicts that only a live run can give, from records."""
    if isinstance(value, dict):
        only_live = {"guard", "results", "fixes"} if "sentence" in value and "entry" in value else set()
        return {k: without_clock(v) for k, v in value.items() if not CLOCK.match(k) and k not in only_live}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


@pytest.mark.thorough
def test_file_and_live_give_the_same_records(tmp_path: Path) -> None:
    """A run observed live and the same run loaded from its trace give equal records.

    Compared are frames, compilations, calls, files and skipped names.
    """
    live, data = session_and_log()
    told, loaded = (without_clock(s.to_dict()) for s in (live, load(tmp_path, data, read_sources=True)))
    told["calls"] = [c | {"index": i} for i, c in enumerate(c for c in told["calls"] if c["outcome"] != "hit")]
    for part in ("frames", "compilations", "calls", "files", "skipped", "failures", "compiler"):
        assert loaded[part] == told[part], part
    # A log does not say which devices there were, only which ones its tensors were on.
    assert (loaded["device"], told["device"]) == ("cpu", "cuda" if torch.cuda.is_available() else "cpu")
    assert loaded["versions"]["torch"] == told["versions"]["torch"]
    assert loaded["notes"] == told["notes"] == []


def test_what_a_trace_tells(tmp_path: Path, log: bytes) -> None:
    """A trace holds breaks, recompile reasons, symbols, training graphs, guards and times."""
    session = load(tmp_path, log)
    breaks = [b for c in session.compilations if c.trace for b in c.trace.breaks]
    assert any("print" in b.context and b.hints and b.span is not None for b in breaks)
    assert any(c.guard_failures for c in session.calls)
    symbols = [s for c in session.compilations for s in c.observed_symbols]
    assert any("L['x']" in s.source and any(e.span is not None for e in s.events) for s in symbols)
    stages = {g.stage for c in session.compilations for g in c.graphs}
    assert {"fx", "joint", "forward", "backward"} <= stages
    assert all(c.guards is not None and c.guards.guards for c in session.compilations if c.graphs)
    assert all(t.seconds >= 0 for c in session.compilations for t in c.timings)
    assert any(c.aot is not None and c.aot.values for c in session.compilations)
    assert any(f.role == "resume" for f in session.frames)


def test_wrappers_are_named_by_what_they_wrap(tmp_path: Path, log: bytes) -> None:
    """A decorated function's frame has the function's name, not the decorator's "wrapper"."""
    names = {f.name for f in load(tmp_path, log).frames}
    assert "add_ten" in names
    assert not names & {"wrapper", "inner"}
    assert add_ten.__name__ == "wrapper"


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_traces(tmp_path: Path, log: bytes, pack: Any) -> None:
    """A compressed trace loads like a plain one; a truncated one loads in part with a note.

    The file's name does not matter.
    """
    assert load(tmp_path, pack(log), "trace.bin").to_dict() == load(tmp_path, log).to_dict()


def test_cut_compressed_trace_says_so(tmp_path: Path, log: bytes) -> None:
    """A compressed trace that was cut off is shown as far as it goes."""
    packed = gzip.compress(log)
    session = load(tmp_path, packed[: len(packed) // 2], "cut.bin")
    assert session.compilations
    assert any("truncated or its compressed data is damaged" in n for n in session.notes)


def test_zstandard_names_the_remedy(tmp_path: Path) -> None:
    """Where Python cannot read Zstandard, the error says how to unpack it."""
    with pytest.raises(engine.NotATrace):
        load(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(20), "trace.log.zst")


def test_folder_of_ranks(tmp_path: Path, log: bytes) -> None:
    """Each rank in a folder has its own compilations, frames and strings, named by rank."""
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(3):
        (folder / f"dedicated_log_torch_trace_rank_{rank}_x.log").write_bytes(log)
    session = engine.load_torch_trace(folder)
    alone = load(tmp_path, log)
    assert len(session.compilations) == 3 * len(alone.compilations)
    assert {f.name.rpartition(" (")[2] for f in session.frames} == {"rank 0)", "rank 1)", "rank 2)"}
    assert len({c.id for c in session.compilations}) == len(session.compilations)
    assert all(any(f.id == c.frame for f in session.frames) for c in session.compilations)
    entries = {c.id for c in session.compilations}
    assert all(r.entry in entries for call in session.calls for r in call.guard_failures)


def test_two_runs_in_one_folder_are_named(tmp_path: Path, log: bytes) -> None:
    """Logs of several processes without a rank are told apart by process, file and start."""
    folder = tmp_path / "traces"
    folder.mkdir()
    later = re.sub(rb"(?m)^(V\d{4} )\S+ \d+ ", rb"\g<1>23:59:58.000000 77777 ", log)
    (folder / "first.log").write_bytes(log)
    (folder / "second.log").write_bytes(later)
    (note,) = engine.load_torch_trace(folder).notes
    assert "2 processes without a rank" in note
    assert re.search(
        r"process \d+ \(first\.log, from \d\d-\d\d .*\), process 77777 \(second\.log, from .* 23:59:58\)", note
    )
    assert load(tmp_path, log).notes == ()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "contains no torch trace"),
        (b"hello\nworld\n", "contains no torch trace"),
        (b"\x00" * 1000, "contains no torch trace"),
        (b'{"version": 1}', "contains no torch trace"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, data: bytes, words: str) -> None:
    """A file without one record of a trace is refused with the remedy."""
    with pytest.raises(engine.NotATrace, match=words) as told:
        load(tmp_path, data)
    assert "TORCH_TRACE" in str(told.value)
    with pytest.raises(engine.NotATrace, match="does not exist"):
        engine.load_torch_trace(tmp_path / "missing")


def test_damage_is_counted(tmp_path: Path, log: bytes) -> None:
    """Foreign lines, broken JSON, merged records and cut payloads are counted; the rest loads."""
    rows = log.split(b"\n")
    heads = [i for i, row in enumerate(rows) if row.startswith(b"V") and b'"chromium_event"' in row]
    rows[heads[3]] = rows[heads[3]][:-9]
    inside = rows[heads[5]].index(b'"frame_id"')  # an installation's path before it may be of any length
    rows[heads[5]] = rows[heads[5]][:inside] + rows[heads[5]]
    rows.insert(heads[1], b"[rank0]: some program printed this")
    rows.insert(0, b"\tthe end of a payload whose beginning is lost")
    cut = next(i for i, row in enumerate(rows) if b'"dynamo_output_graph"' in row)
    del rows[cut + 3]
    notes = " ".join(load(tmp_path, b"\n".join(rows)).notes)
    assert re.search(r"2 lines outside of torch's trace", notes)
    assert re.search(r"2 damaged lines", notes)
    assert "1 text" in notes


def test_strings_that_were_never_defined(tmp_path: Path, log: bytes) -> None:
    """File names whose definition is missing are shown as unknown, and counted."""
    kept = b"\n".join(row for row in log.split(b"\n") if b'] {"str": [' not in row)
    session = load(tmp_path, kept)
    assert any("not defined" in n for n in session.notes)
    assert session.compilations
    assert all(f.file == "?" for f in session.frames if f.file)


def test_unknown_names_are_listed_and_shown(tmp_path: Path, log: bytes) -> None:
    """Records and artifacts of a newer torch are named in the notes, and their texts kept."""
    extra = (
        b'V0101 00:00:00.000000 1 torch/x.py:1] {"artifact": {"name": "from_the_future", "encoding": "string"}, "frame_id": 0, "frame_compile_id": 0}\n'
        b"\tits text\n"
        b'V0101 00:00:00.000000 1 torch/x.py:1] {"new_kind": {"a": 1}}\n'
        b'V0101 00:00:00.000000 1 torch/x.py:1] {"one": 1, "two": 2}\n'
    )
    session = load(tmp_path, extra + log)
    note = next(n for n in session.notes if n.startswith("Unknown kinds of records"))
    assert "from_the_future (1)" in note
    assert "new_kind (1)" in note
    texts = {t.name: t.text for c in session.compilations for t in c.artifacts} | {
        t.name: t.text for t in session.artifacts
    }
    assert texts["from_the_future"] == "its text"
    assert json.loads(texts["new_kind"]) == {"a": 1}


def test_files_of_this_machine_are_read_only_when_known(tmp_path: Path) -> None:
    """A file that a log names is added only if asked for, and if every quoted line matches it.

    Otherwise only the quoted lines are shown, so a log cannot reveal a file's content.
    """
    secret = tmp_path / "secret.py"
    secret.write_text("PASSWORD = 'x'\nprint(1)\n", encoding="utf-8")

    def record(line: int, loc: str) -> bytes:
        stack = [{"line": line, "name": "f", "filename": str(secret), "loc": loc}]
        facts = {"dynamo_start": {"stack": stack}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0}
        return b"V0101 00:00:00.000000 1 torch/x.py:1] " + json.dumps(facts).encode() + b"\n"

    def found(data: bytes, *, read_sources: bool) -> bool:
        return "PASSWORD" in json.dumps(load(tmp_path, data, read_sources=read_sources).to_dict())

    assert not found(record(2, "something else"), read_sources=True)
    assert not found(record(2, ""), read_sources=True)
    assert not found(record(2, "print(1)"), read_sources=False)
    assert found(record(2, "print(1)"), read_sources=True)
    assert load(tmp_path, record(10**9, "print(1)")).to_dict()


HOSTILE: list[Any] = [
    None, 1, -1, 10**30, True, "", "x", "</script><b>", [], [1], [[]], {}, {"a": {}}, [{"line": "x", "filename": 99, "name": None}],
    {"stack": [{"line": -5, "filename": -1, "name": 3, "loc": 7}, 4]}, {"stack": 3}, {"name": ["x"]}, {"size": 3, "dtype": None},
    {"symbol": None, "user_stack": 5}, {"fail_type": 1, "fail_reason": {}, "start_time": "soon", "restart_reasons": 3},
    {"co_name": "f", "entire_frame_compile_time_s": "x", "restart_reasons": ["a"], "start_time": 1e300},
]  # fmt: skip


@pytest.mark.parametrize("kind", [
    "dynamo_start", "describe_tensor", "describe_source", "compilation_metrics", "bwd_compilation_metrics", "create_symbol",
    "guard_added_fast", "symbolic_shape_specialization", "artifact", "dynamo_output_graph", "dynamo_cpp_guards_str",
    "inductor_output_code", "str", "link", "compiled_autograd_graph", "missing_fake_kernel",
])  # fmt: skip
def test_odd_facts_do_no_harm(tmp_path: Path, kind: str) -> None:
    """A trace with malformed facts loads, round-trips through JSON and keeps other records."""
    rows = []
    for number, facts in enumerate(HOSTILE):
        for envelope in (
            {"frame_id": number, "frame_compile_id": 0, "attempt": 0},
            {"frame_id": "x", "attempt": []},
            {},
        ):
            row = json.dumps({kind: facts, **envelope})
            rows.append(f"V0101 00:00:00.000000 1 torch/x.py:1] {row}\n\tname = (((\n\t\n\tend")
    session = load(tmp_path, "\n".join(rows).encode())
    assert Session.load(session.save(tmp_path / "session.json")).to_dict() == session.to_dict()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), cuts=st.integers(1, 12))
@pytest.mark.thorough
def test_damaged_logs_load(tmp_path_factory: pytest.TempPathFactory, log: bytes, seed: int, cuts: int) -> None:
    """A damaged log loads or holds no record at all, and its session is valid JSON.

    Damage is a deleted, repeated, mixed or overwritten part.
    """
    data = bytearray(log)
    chance = random.Random(seed)
    for _ in range(cuts):
        at, length = chance.randrange(len(data)), chance.choice([1, 7, 100, 5000])
        match chance.randrange(5):
            case 0:
                del data[at : at + length]
            case 1:
                data[at:at] = data[at : at + length]
            case 2:
                data[at : at + length] = chance.randbytes(min(length, len(data) - at))
            case 3:
                data[at:at] = chance.choice([b"\n", b"\t", b"\x00", b"{", b'"', b"V1121 ", b"\r\n", b"\n\n\t"])
            case _:
                del data[at:]
                data += b"\n"
    try:
        session = load(tmp_path_factory.mktemp("fuzz"), bytes(data))
    except engine.NotATrace:
        return
    assert json.dumps(session.to_dict())


def plain_records(data: bytes) -> list[tuple[bytes, bytes]]:
    """What ``read_raw_records`` should give, the obvious way."""
    found: list[tuple[bytes, list[bytes]]] = []
    for row in data.split(b"\n"):
        if row.startswith(b"\t") and found:
            found[-1][1].append(row)
        elif row:
            found.append((b"", [row]) if row.startswith(b"\t") else (row, []))
    return [(head, b"\n".join(rows)) for head, rows in found]


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.sampled_from([b"V1", b"\tpay", b"\t", b"noise", b"\t\tdeep", b"V22"]), max_size=30),
    block=st.integers(1, 9),
)
def test_blocks_do_not_show(rows: list[bytes], block: int) -> None:
    """Records are the same whatever the size of a block, and each payload is where it says."""
    data = b"\n".join(rows) + b"\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK_SIZE", block)
        found = [r for r in read_raw_records(io.BytesIO(data)) if r.head or r.payload]
    expected = plain_records(data)
    heads = [(r.head, r.payload) for r in found]
    if expected and not expected[0][0]:  # a payload without a head
        first, heads, expected = heads[0], heads[1:], expected[1:]
        assert first[0].startswith(b"\t")
    assert heads == expected
    assert all(data[r.start : r.start + len(r.payload)] == r.payload for r in found if r.payload)


def test_endless_record_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record above the memory limit is truncated and counted, and the next one is read."""
    monkeypatch.setattr(lines_module, "BLOCK_SIZE", 100)
    monkeypatch.setattr(lines_module, "MAX_RECORD_BYTES", 1000)
    row = b'V0101 00:00:00.000000 7 torch/x.py:1] {"dump_file": {}}\n'
    damage = LogDamage()
    found = list(read_log_records(io.BytesIO(row + b"\tlong\n" * 2000 + row + b"x" * 5000 + b"\n" + row), damage))
    assert (damage.records, damage.truncated, len(found)) == (3, 2, 3)


@pytest.mark.thorough
def test_memory_stays_far_below_the_log(tmp_path: Path, log: bytes) -> None:
    """Loading a large trace holds a small part of it in memory; texts are read on demand.

    The trace is tens of megabytes.
    """
    path = tmp_path / "large.log"
    with path.open("wb") as file:
        for copy in range(40):
            moved = re.sub(rb'"frame_id": (\d+)', lambda m, n=copy: b'"frame_id": %d' % (int(m[1]) + 100 * n), log)
            file.write(moved)
            graph = b"".join(b"\t        x%d = torch.sin(x)\n" % i for i in range(15_000))
            file.write(b'V0101 00:00:00.000000 1 torch/x.py:1] {"dump_file": {"name": "x"}}\n' + graph)
    engine.load_torch_trace(tmp_path / "large.log")
    tracemalloc.start()
    session = engine.load_torch_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 25_000_000
    assert peak < path.stat().st_size / 1.4
    assert sum(len(t.text) for t in session.artifacts) > 15_000_000


def test_handler_of_torch_writes_what_we_read(tmp_path: Path) -> None:
    """A log of torch's own handler, with its version header line, loads without a note."""
    with log_to_file(torch_logging.LazyTraceHandler(str(tmp_path))), observe_torch():
        torch.compile(breaks_in_the_middle, backend="eager")(torch.ones(3))
    session = engine.load_torch_trace(tmp_path)
    assert (session.notes, session.failures) == ((), ())
    assert next(f.name for f in session.frames) == "breaks_in_the_middle"
