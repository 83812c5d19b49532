"""Loader of recordings of many ranks: groups of equals, one session for each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import NotATrace
from engine.observe.load_torch_trace import is_torch_trace, load_torch_trace
from engine.observe.ranks.divergence_details import with_divergence_details
from engine.observe.ranks.group_ranks import group_ranks
from engine.observe.ranks.rank_contents import RankContents
from engine.observe.ranks.read_rank_logs import RankLogReader, rank_of
from engine.observe.ranks.read_rank_sessions import read_rank_session
from engine.observe.trace_files import trace_files
from engine.records.base import RecordError
from engine.records.ranks.groups import RankGroups, format_ranks
from engine.records.session import Session

MAX_SESSIONS = 8
"""Maximum number of groups whose sessions are loaded: the largest ones."""

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedRanks:
    """Ranks of one program: groups, and one session for each group.

    ``session`` is that of the largest group; its ``ranks`` are ``groups``.
    """

    groups: RankGroups
    sessions: dict[str, Session]

    @property
    def session(self) -> Session:
        """Session of the largest group of ranks that compiled the same."""
        return next(iter(self.sessions.values()))

    def __repr__(self) -> str:
        return str(self.groups)


def holds_ranks(folder: Path) -> bool:
    """Return True if a folder has recordings of at least two ranks."""
    return folder.is_dir() and len({rank for _, rank in _with_ranks(_recordings(folder)) if rank is not None}) > 1


def load_sessions(
    path: Path, progress: ProgressCallback | None = None, *, read_sources: bool = False
) -> dict[str, Session]:
    """Load a log, a saved session, or a folder of one or many ranks, by display name.

    The first session is the one to show; the others are of ranks that differ from it.

    Raises:
        NotATrace: the path does not exist, or contains no torch trace.
        RecordError: the file is no saved session, or is damaged.
    """
    if holds_ranks(path):
        return load_ranks(path, progress, read_sources=read_sources).sessions
    if path.exists() and not is_torch_trace(path):
        return {path.name: Session.load(path)}
    return {path.name: load_torch_trace(path, progress, read_sources=read_sources)}


def load_ranks(
    folder: str | Path, progress: ProgressCallback | None = None, *, read_sources: bool = False
) -> LoadedRanks:
    """Load a folder with one recording for each rank: ``TORCH_TRACE`` logs, or saved sessions.

    Ranks with equal contents are read once; time and memory grow with what differs. Addresses, rank numbers,
    process ids, times and folders are no difference. ``read_sources`` is as for ``load_torch_trace``.

    Raises:
        NotATrace: the folder does not exist, or has no recording of a rank.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotATrace(f"The folder {folder} does not exist.")
    files = _recordings(folder)
    total, done = sum(f.stat().st_size for f in files), 0

    def seen(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    contents, problems = _read(files, seen)
    if not contents:
        raise NotATrace(
            f"{folder.name} contains no recording of a rank. Create one with TORCH_TRACE=folder torchrun program.py, and pass the folder."
        )
    newest, older = _newest_run(contents)
    if older:
        problems.append(
            f"The folder holds several runs. Older recordings are not compared: {len(older):,}, such as"
            f" {older[0].file.name[:80]}. Move them to a folder of their own to see them"
        )
    return _load_groups(newest, problems, read_sources=read_sources)


def _recordings(folder: Path) -> list[Path]:
    logs = trace_files(folder)
    return (
        logs
        if any("torch_trace" in f.name for f in logs)
        else list(dict.fromkeys((*logs, *sorted(folder.glob("*.json")))))
    )


def _with_ranks(files: Iterable[Path]) -> Iterable[tuple[Path, int | None]]:
    for file in files:
        try:
            yield file, rank_of(file)
        except OSError:
            yield file, None


def _read(files: Iterable[Path], seen: Callable[[int], None]) -> tuple[list[RankContents], list[str]]:
    """Return the readable recordings by rank and time, and sentences about the others."""
    reader = RankLogReader(seen)
    first_by_digest: dict[str, RankContents] = {}
    ranked, problems = [], []
    unranked = []
    for file, rank in _with_ranks(files):
        if rank is None:
            unranked.append(file)
            continue
        try:
            contents = read_rank_session(file, rank) if file.suffix == ".json" else reader.read(file, rank)
        except (OSError, RecordError, NotATrace) as error:
            problems.append(f"{file.name[:80]} cannot be read: {str(error)[:200].rstrip('.')}")
            continue
        if not contents.end:
            problems.append(f"{file.name[:80]} holds no record: the log of rank {rank} is empty or no log")
            continue
        contents.share(first_by_digest.setdefault(contents.digest(), contents))
        ranked.append(contents)
    if unranked:
        problems.append(f"Logs that name no rank are not compared: {len(unranked):,}, such as {unranked[0].name[:80]}")
    return sorted(ranked, key=lambda c: (c.rank, c.start)), problems


def _newest_run(contents: list[RankContents]) -> tuple[list[RankContents], list[RankContents]]:
    """Separate the newest run: it starts after the end of each replaced recording."""
    newest = {c.rank: c for c in contents}
    repeated = [c.end for c in contents if newest[c.rank] is not c]
    if not repeated:
        return contents, []
    ended = max(repeated)
    is_newest = {id(c) for c in newest.values() if c.start >= ended} or {id(c) for c in newest.values()}
    return [c for c in contents if id(c) in is_newest], [c for c in contents if id(c) not in is_newest]


def _load_groups(contents: list[RankContents], problems: list[str], *, read_sources: bool) -> LoadedRanks:
    groups = group_ranks(contents, problems)
    by_rank = {c.rank: c.file for c in contents}
    sessions: dict[str, Session] = {}
    by_group = {}
    for group in groups.groups[:MAX_SESSIONS]:
        file = by_rank[group.ranks[0]]
        is_session = file.suffix == ".json"
        session = Session.load(file) if is_session else load_torch_trace(file, read_sources=read_sources)
        by_group[group.ranks] = sessions[format_ranks(group.ranks)] = session
    largest = next(iter(sessions.values()))
    details = tuple(
        with_divergence_details(d, by_group[d.ranks], largest) if d.ranks in by_group else d for d in groups.divergences
    )
    left = len(groups.groups) - len(sessions)
    more = (
        (f"{left:,} more groups of ranks differ and are not loaded: pass the log of one of their ranks to see it",)
        if left
        else ()
    )
    groups = replace(groups, divergences=details, problems=(*groups.problems, *more))
    largest.ranks = groups
    return LoadedRanks(groups, sessions)
