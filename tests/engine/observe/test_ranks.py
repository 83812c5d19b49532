"""Recordings of many ranks: equal ones are read once, and first divergences are named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import engine
from engine.observe.ranks import load_ranks as load_ranks_module
from engine.observe.ranks.group_ranks import group_ranks
from engine.observe.ranks.load_ranks import LoadedRanks
from engine.observe.ranks.rank_contents import RankContents, collectives_of, normalized_digest
from engine.observe.ranks.read_rank_logs import ParsedLineCache
from engine.observe.ranks.read_rank_sessions import read_rank_session
from engine.records.findings import find_problems
from engine.records.ranks.groups import RankDivergence, divergence_sides
from notebook_ext.__main__ import main
from notebook_ext.views.devices import outcome
from notebook_ext.views.explorer_parts import part
from tests.engine.observe import rank_programs

Logs = Mapping[str, list[bytes]]
PROGRAM = Path(rank_programs.__file__)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """Logs of two processes for each variant of the program."""
    return rank_programs.rank_logs(tmp_path_factory.mktemp("ranks"))


def fill(folder: Path, count: int, log: bytes, others: Mapping[int, bytes] | None = None, run: str = "a") -> Path:
    """Write one log for each rank, with its number, a process id and times of its own."""
    folder.mkdir(exist_ok=True)
    for rank in range(count):
        data = (others or {}).get(rank, log)
        if not data:
            continue
        data = re.sub(rb'"rank": \d+', b'"rank": %d' % rank, data)
        data = re.sub(rb"(?m)^(V\d{4} \d\d:\d\d:\d\d\.)\d+ \d+", rb"\g<1>%06d %d" % (rank, 4000 + rank), data)
        (folder / f"dedicated_log_torch_trace_rank_{rank}_{run}.log").write_bytes(data)
    return folder


def line_of(code: str) -> int:
    """The line of the program that starts with this code."""
    return next(i for i, row in enumerate(PROGRAM.read_text().split("\n"), 1) if row.strip().startswith(code))


@pytest.mark.thorough
def test_ranks_of_one_program_are_equal(tmp_path: Path, logs: Logs) -> None:
    """The logs of two real processes are one group, although ids, times and folders differ."""
    for variant in ("base", "recompile", "miss", "hit"):
        folder = tmp_path / variant
        folder.mkdir()
        for rank, log in enumerate(logs[variant]):
            (folder / f"dedicated_log_torch_trace_rank_{rank}_x.log").write_bytes(log)
        groups = engine.load_ranks(folder).groups
        assert [g.ranks for g in groups.groups] == [(0, 1)]
        assert not groups.divergences
        assert not groups.problems
        assert not groups.missing


DIVERGING = {
    "order": ("base", "0/0", "collective order", "gathered = ", "error"),
    "graph": ("base", "0/0", "graphs", "y = y @ weight", "warning"),
    "break": ("base", "0/0", "graph breaks", "print(end", "warning"),
    "rows": ("base", "0/0", "tensor metadata", "def step", "warning"),
    "recompile": ("base", "0/1", "compile ids", "def step", "warning"),
    "miss": ("hit", "0/0", "cache outcomes", "def step", "warning"),
}
"""Variant -> that of the other ranks, compile id, aspect, line, severity."""


@pytest.mark.thorough
@pytest.mark.parametrize("variant", DIVERGING)
def test_one_of_64_ranks_differs(tmp_path: Path, logs: Logs, variant: str) -> None:
    """The rank in the middle, the compile id, what differs and its line are named."""
    base, compilation, aspect, code, severity = DIVERGING[variant]
    folder = fill(tmp_path / "logs", 64, logs[base][0], {31: logs[variant][1]})
    loaded = engine.load_ranks(folder)
    others = tuple(r for r in range(64) if r != 31)
    assert [g.ranks for g in loaded.groups.groups] == [others, (31,)]
    (found,) = loaded.groups.divergences
    assert (found.ranks, found.others, found.compilation, found.aspect) == ((31,), others, compilation, aspect)
    assert found.span is not None
    assert (Path(found.span.file).name, found.span.line) == (PROGRAM.name, line_of(code))
    assert found.here != found.there
    (finding,) = [f for f in find_problems(loaded.session) if f.kind == "rank-divergence"]
    assert finding.title == f"Rank 31 differs from 63 others from compile id {compilation} on: {aspect}"
    assert finding.severity == severity


@pytest.mark.thorough
def test_names_hold_no_rank(tmp_path: Path, logs: Logs) -> None:
    """Functions have the same names in the sessions of all groups."""
    loaded = engine.load_ranks(fill(tmp_path / "logs", 4, logs["base"][0], {2: logs["graph"][0]}))
    assert [[f.name for f in s.frames] for s in loaded.sessions.values()] == [["step"], ["step"]]
    assert list(loaded.sessions) == ["ranks 0-1, 3", "rank 2"]


@pytest.mark.thorough
def test_cost_of_many_ranks(tmp_path: Path, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,024 ranks, one log of each group is loaded, and equal contents are kept once."""
    loaded_files = []
    load = load_ranks_module.load_torch_trace
    monkeypatch.setattr(
        load_ranks_module, "load_torch_trace", lambda path, **kw: loaded_files.append(path.name) or load(path, **kw)
    )
    folder = fill(tmp_path / "logs", 1024, logs["base"][0], {500: logs["graph"][1]})
    groups = engine.load_ranks(folder).groups
    assert len(groups.ranks) == 1024
    assert [len(g.ranks) for g in groups.groups] == [1023, 1]
    assert loaded_files == [g.file for g in groups.groups]
    assert groups.divergences[0].ranks == (500,)


@pytest.mark.thorough
def test_arrivals_name_the_last_rank(tmp_path: Path, logs: Logs) -> None:
    """The rank that arrives last is named, with the collectives that the others wait at."""
    at_noon, an_hour_later = (
        re.sub(rb"(?m)^(V\d{4} )\d\d(:\d\d:\d\d\.)", rb"\g<1>%d\2" % hour, logs["base"][0]) for hour in (12, 13)
    )
    groups = engine.load_ranks(fill(tmp_path / "logs", 4, at_noon, {2: an_hour_later})).groups
    forward = next(a for a in groups.arrivals if a.what == "forward")
    assert abs(forward.waited) > 3000
    assert forward.collectives == ("all_reduce('sum', '0')", "all_gather_into_tensor(2, '0')")
    assert len(forward.arrivals) == 4
    assert min(t for t in forward.arrivals if t is not None) == 0


def test_ranks_recorded_days_apart_are_not_late() -> None:
    """Ranks of two runs have no times in common; that is a problem to report, not a wait."""
    days = 3 * 86400.0
    contents = [RankContents(rank, Path(f"rank_{rank}.log")) for rank in range(3)]
    for one, start in zip(contents, (100.0, 101.0, 100.0 + days), strict=True):
        one.start, one.end, one.ready = start, start + 5, {("0/0", "forward"): start + 2}
        one.add("0/0", "graphs", "same")
    groups = group_ranks(contents)
    assert [a.arrivals for a in groups.arrivals] == [(0.0, 1.0, None)]
    (problem,) = groups.problems
    assert problem.startswith("The recordings of rank 2 and rank 0 are hours or days apart")


def test_comments_are_no_collectives() -> None:
    """A graph's comments show source lines, which may call what the node below them is."""
    graph = b"""
        # File: collectives.py:173 in all_reduce, code: t = torch.ops._c10d_functional.all_reduce(x, "max", group)
        t: "f32[2]cpu" = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0');  x = None
    """
    assert collectives_of(graph) == ("all_reduce('sum', '0')",)


def problems_of(loaded: LoadedRanks) -> str:
    """All problems as one text."""
    return " | ".join(loaded.groups.problems)


@pytest.mark.thorough
def test_bad_recordings_are_reported(tmp_path: Path, logs: Logs) -> None:
    """Missing, cut, empty and foreign logs: one sentence each; the rest is compared."""
    base = logs["base"][0]
    middle = base.index(b'"aot_joint_graph"')
    other_torch = base.replace(b"2.", b"9.", 1) if b'"torch_version"' not in base else base
    cut = base[: base.rindex(b"\n", 0, middle)]
    folder = fill(
        tmp_path / "logs", 8, base, {1: b"", 3: cut, 5: b"\x00junk\n<script>alert(1)</script>\n", 6: other_torch}
    )
    (folder / "dedicated_log_torch_trace_other.log").write_bytes(b"")
    loaded = engine.load_ranks(folder)
    text = problems_of(loaded)
    assert loaded.groups.missing == (1, 5)
    assert "rank 3 ends within compile id 0/0" in text
    assert "the log of rank 5 is empty or no log" in text
    assert "Logs that name no rank are not compared: 1, such as" in text
    assert loaded.groups.groups[0].ranks == (0, 2, 4, 6, 7)
    assert not loaded.groups.divergences


@pytest.mark.thorough
def test_a_log_cut_between_compilations_is_no_other_program(tmp_path: Path, logs: Logs) -> None:
    """The rank whose log is cut is named with its last compilation; the whole log leads."""
    whole = logs["recompile"][0]
    first = re.search(rb'(?m)^V.*"frame_compile_id": ?1\b', whole)
    assert first is not None
    loaded = engine.load_ranks(fill(tmp_path / "logs", 2, whole, {0: whole[: first.end() - 4]}))
    assert "The log of rank 0 ends after compile id 0/" in problems_of(loaded)
    assert not loaded.groups.divergences
    assert loaded.groups.groups[0].ranks == (1,)


@pytest.mark.thorough
def test_mixed_versions_are_reported(tmp_path: Path, logs: Logs) -> None:
    """Ranks that run another torch are named with both versions."""
    version = re.search(rb'"pytorch_version": ?"([^"]+)"', logs["base"][0])
    assert version is not None
    other = logs["base"][0].replace(version[1], b"1.0.0")
    loaded = engine.load_ranks(fill(tmp_path / "logs", 4, logs["base"][0], {2: other}))
    assert "different versions of torch" in problems_of(loaded)
    assert "1.0.0 (rank 2)" in problems_of(loaded)


@pytest.mark.thorough
def test_two_runs_in_one_folder(tmp_path: Path, logs: Logs) -> None:
    """The newest run is compared; the older recordings are counted and named."""
    older = re.sub(rb"(?m)^V\d{4} \d\d", b"V0101 00", logs["graph"][0])
    folder = fill(tmp_path / "logs", 3, older, run="old")
    fill(folder, 3, logs["base"][0], run="new")
    loaded = engine.load_ranks(folder)
    assert [g.ranks for g in loaded.groups.groups] == [(0, 1, 2)]
    assert all("new" in g.file for g in loaded.groups.groups)
    assert "several runs. Older recordings are not compared: 3, such as" in problems_of(loaded)


@pytest.mark.thorough
def test_sessions_of_torchrun(tmp_path: Path) -> None:
    """Sessions that two processes under torchrun save are grouped, with their waits."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*program, "record", str(tmp_path)], capture_output=True, text=True, env=env, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["session_rank_0.json", "session_rank_1.json"]
    loaded = engine.load_ranks(tmp_path)
    (found,) = loaded.groups.divergences
    assert found.aspect == "compile ids"
    assert found.compilation == "1/0"
    assert [a.what for a in loaded.groups.arrivals if a.compilation == "0/0"] == ["call 1", "call 2"]
    names = [[c.partition("(")[0] for c in a.collectives] for a in loaded.groups.arrivals if a.compilation == "0/0"]
    assert names == [["all_reduce", "all_gather_into_tensor"]] * 2


@pytest.mark.thorough
def test_doctor_and_page(tmp_path: Path, logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands take the folder: findings, exit status, JSON, a page with the view."""
    folder = fill(tmp_path / "logs", 64, logs["base"][0], {3: logs["order"][1]})
    assert main(["doctor", str(folder)]) == 1
    place = f"({PROGRAM.name}:{line_of('gathered = ')})"
    text = " ".join(capsys.readouterr().out.split())
    assert f"[error] Rank 3 differs from 63 others from compile id 0/0 on: collective order {place}" in text
    assert main(["doctor", "--json", str(folder)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"]["divergences"][0]["ranks"] == [3]
    assert main([str(folder), "-o", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "  64 ranks: 2 groups; this is the largest one.\n  Rank 3 differs from 63 others" in printed
    page = (tmp_path / "page.html").read_text()
    assert '"devices"' in page
    assert "difference||0" in page


@pytest.mark.thorough
def test_hostile_names_are_text(tmp_path: Path, logs: Logs) -> None:
    """Names from a log reach doctor and the page as plain text on one line."""
    hostile = logs["graph"][1].replace(b'"name": "step"', b'"name": "<img src=x onerror=alert(1)>\\u001b[31m"')
    folder = fill(tmp_path / "logs", 3, logs["base"][0], {1: hostile})
    view = part(engine.load_ranks(folder).session, "devices")
    assert any(s["title"] == "First divergences" for s in view["sections"])
    assert "\x1b" not in json.dumps(view, ensure_ascii=False)


@pytest.mark.thorough
def test_saved_session_keeps_its_ranks(tmp_path: Path, logs: Logs) -> None:
    """A session that was loaded from ranks is saved and loaded with their groups."""
    session = engine.load_ranks(fill(tmp_path / "logs", 3, logs["base"][0], {1: logs["graph"][1]})).session
    assert engine.Session.load(session.save(tmp_path / "session.json")).ranks == session.ranks


def test_folder_without_ranks(tmp_path: Path) -> None:
    """A folder without recordings of ranks is refused with the remedy."""
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(engine.NotATrace, match="TORCH_TRACE=folder torchrun"):
        engine.load_ranks(tmp_path)
    with pytest.raises(engine.NotATrace, match="does not exist"):
        engine.load_ranks(tmp_path / "missing")


def test_a_guard_on_the_rank_hides_no_extra_collective(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank with one collective more is named for it, although its guards differ too."""
    contents = [RankContents(rank, Path(f"rank_{rank}.log")) for rank in range(4)]
    for one in contents:
        calls = "all_reduce, all_gather" if one.rank == 2 else "all_reduce"
        one.add("0/0", "collective order", "all_reduce")
        one.add("0/0", "guards", f"rank == {one.rank}")
        one.add("0/1", "collective order", calls)
    groups = group_ranks(contents)
    named = {d.ranks: (d.compilation, d.aspect) for d in groups.divergences}
    assert named == {(1,): ("0/0", "guards"), (2,): ("0/1", "collective order"), (3,): ("0/0", "guards")}
    print(LoadedRanks(groups, {}))
    text = capsys.readouterr().out
    assert text.startswith("4 ranks, 4 groups of equals\n  rank 0: read from rank_0.log\n")
    assert "Rank 2 differs from rank 0 from compile id 0/1 on: collective order\n" in text


def test_the_sentence_on_ranks_names_a_few_and_counts_many() -> None:
    """Few ranks are named on both sides of a difference; many are counted."""

    def said(count: int, *differing: int) -> str:
        contents = [RankContents(rank, Path(f"rank_{rank}.log")) for rank in range(count)]
        for one in contents:
            one.add("0/0", "graphs", "other" if one.rank in differing else "same")
        return outcome(group_ranks(contents))

    assert said(3) == "All 3 ranks compiled the same."
    assert said(2, 1) == "2 ranks in 2 groups: rank 1 differs from rank 0."
    assert said(64, 31, 32) == "64 ranks in 2 groups: ranks 31-32 differ from 62 ranks."


def test_both_sides_of_a_divergence_are_named() -> None:
    """What each side has is said with its ranks."""
    divergence = RankDivergence((3,), (0, 1, 2), "0/1", "compile ids", ("compile ids",), "compiled (n is 4)", "")
    assert divergence_sides(divergence) == "on rank 3: compiled (n is 4); on 3 others: nothing"
    assert not divergence_sides(replace(divergence, here=""))


@pytest.mark.parametrize("source", ["L['self'].rank", "L['rank']", "G['GLOBAL_RANK']"])
def test_a_guard_on_the_ranks_own_number_is_equal(tmp_path: Path, source: str) -> None:
    """It is no difference in sessions and logs; any other number or name is."""

    def digests(source: str, *values: int) -> set[str]:
        found = set()
        for rank, value in enumerate(values):
            guards = [{"source": source, "kind": "equals", "expected": str(value)}]
            data = {"version": 1, "compilations": [{"id": "0/0", "guards": {"guards": guards}}]}
            path = tmp_path / f"rank{rank}.json"
            path.write_text(json.dumps(data))
            logged = normalized_digest(f"+- EQUALS_MATCH: {source} == {value}  # line".encode(), "guards", rank)
            found.add(read_rank_session(path, rank).digest("guards") + logged)
        return found

    assert len(digests(source, 0, 1, 2, 13)) == 2
    assert len(digests(source, *range(12))) == 1
    assert len(digests("L['ranking']", 0, 1)) == 2


@pytest.mark.parametrize(
    ("aspect", "line"),
    [
        ("guards", "+- TENSOR_MATCH: check_tensor(L['x'], Tensor, torch.float32, device=%d, size=[64], stride=[1])"),
        ("graphs", "scalar_tensor = torch.ops.aten.scalar_tensor.default(0, device = device(type='cuda', index=%d))"),
        ("graphs", 'x: "f32[64, 256][256, 1]cuda:%d" = torch.ops.aten.permute.default(y, [1, 0])'),
        ("kernels", "with torch.cuda._DeviceGuard(%d):"),
        ("kernels", "torch.cuda.set_device(%d)"),
        ("kernels", "stream%d = get_raw_stream(%d)"),
        ("kernels", "'device': DeviceProperties(type='cuda', index=%d, multi_processor_count=132, cc=90)"),
    ],
)
def test_each_rank_has_a_device_of_its_own(aspect: str, line: str) -> None:
    """The number of a rank's GPU is no difference; sizes and other numbers are."""

    def digest(text: str, rank: int) -> str:
        return normalized_digest(text.replace("%d", str(rank)).encode(), aspect, rank)

    assert len({digest(line, rank) for rank in (0, 1, 12)}) == 1
    assert digest(line, 0) != digest(f"{line} 1", 0)
    assert digest(line, 0) != digest(re.sub("64|132", "33", line), 0) or not re.search("64|132", line)


def test_a_line_is_known_whatever_the_rank() -> None:
    """Lines that differ in the rank alone are parsed once; others are not confused."""
    lines = ParsedLineCache()
    parsed = []
    for rank in (3, 4):
        lines.start_log(rank)
        parsed.append(
            [
                lines.parse(text % rank)
                for text in (
                    b'{"str": ["a", 0], "rank": %d}',
                    b'{"str": ["b", 0], "rank": %d, "frame_id": 1}',
                    b'{"str": %d',
                )
            ]
        )
    assert parsed[0] == [{"str": ["a", 0], "rank": 3}, {"str": ["b", 0], "rank": 3, "frame_id": 1}, None]
    assert [first is second for first, second in zip(*parsed, strict=True)] == [True, True, True]
    lines.start_log(5)
    assert lines.parse(b'{"str": ["a", 0], "rank": 4}') == {"str": ["a", 0], "rank": 4}
