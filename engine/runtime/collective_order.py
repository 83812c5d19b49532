"""Compares the collectives of compiled graphs across ranks, while the ranks run."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed
import torch.fx

from engine.graph.to_records import fake_value_of
from engine.ir.graph_callable import Run
from engine.ir.node_metadata import provenance_of
from engine.ir.user_code_files import display_name
from engine.process_state import make_lock
from engine.torch_private import lazily_loaded
from engine.torch_private.pytree import tree_leaves

Collective = tuple[str, str]
"""Text and user line: ``("all_reduce(float32[4], sum)", "train.py:12")``."""
INTERVAL_SECONDS = 1.0
"""Seconds between two comparisons by the watcher's thread."""
WAITING_SECONDS = 60.0
"""Seconds without a collective of the next rank after which that is reported.

Half the group's time limit if that is less.
"""
WINDOW = 256
"""Number of latest collectives that ranks compare; a rank is rarely further ahead."""
SHOWN = 4
"""Collectives of each rank that a report shows up to the first difference."""


def watch_collectives(graph: torch.fx.Graph, run: Run) -> Run:
    """Return ``run``, which also notes the collectives of a graph that has any."""
    by_group = collectives_by_group(graph)
    if not by_group:
        return run
    watcher = _watcher_of_default_group()
    if watcher is None:
        return run

    def noted(*args: Any) -> Any:
        watcher.record(by_group)
        try:
            return run(*args)
        except RuntimeError:
            watcher.explain_failure(by_group)
            raise

    return noted


def collectives_by_group(graph: torch.fx.Graph) -> dict[str, list[Collective]]:
    """Return the collectives of a graph in order, by the name of their process group."""
    by_group: dict[str, list[Collective]] = {}
    for node in graph.nodes:
        if getattr(node.target, "namespace", "") != "_c10d_functional":
            continue
        arguments = dict(zip((a.name for a in node.target._schema.arguments), node.args, strict=False)) | dict(
            node.kwargs
        )
        if "group_name" in arguments:
            by_group.setdefault(str(arguments["group_name"]), []).append((_text(node, arguments), _line_text(node)))
    return by_group


def _text(node: torch.fx.Node, arguments: Mapping[str, Any]) -> str:
    """Return operator, dtype, sizes and constants.

    Sizes that are symbols or may differ between ranks are left out.
    """
    parts = []
    for name, value in arguments.items():
        fakes = [fake_value_of(n) for n in tree_leaves(value) if hasattr(n, "meta")]
        if fakes:
            parts += [_tensor_text(f, has_sizes="all_to_all" not in node.name) for f in fakes if torch.is_tensor(f)]
        elif name not in {"group_name", "tag"} and "split" not in name:
            parts.append(str(value))
    target: Any = node.target
    return f"{target.__name__.partition('.')[0]}({', '.join(parts)})"


def _tensor_text(fake: torch.Tensor, *, has_sizes: bool) -> str:
    sizes = ", ".join(str(s) if str(s).isdecimal() else "?" for s in fake.shape) if has_sizes else "..."
    return f"{str(fake.dtype).removeprefix('torch.')}[{sizes}]"


def _line_text(node: torch.fx.Node) -> str:
    span = provenance_of(node).span
    return f"{display_name(span.file)}:{span.line}" if span is not None else "an unknown line"


_watchers: list[CollectiveWatcher] = []
_watchers_lock = make_lock()


def _watcher_of_default_group() -> CollectiveWatcher | None:
    """Return the watcher of the default group, started if need be; None for one rank."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    if distributed.get_backend() == "fake":
        return None
    with _watchers_lock:
        _watchers[:] = [w for w in _watchers if w.is_current()]
        if not _watchers:
            _watchers.append(
                CollectiveWatcher(distributed.group.WORLD, lazily_loaded.c10d._get_default_store().clone())
            )
        return _watchers[0]


def _time_limit(name: str) -> float:
    """Return the time limit of a process group in seconds; infinity if its backend has none."""
    group = lazily_loaded.c10d._resolve_process_group(name)
    options: list[Any] = []
    with contextlib.suppress(RuntimeError):  # the group has no backend for a device
        options += [getattr(group._get_backend(device), "options", None) for device in group._device_types]
    return min((o._timeout.total_seconds() for o in options if hasattr(o, "_timeout")), default=float("inf"))


class _Stream:
    """Collectives that this rank ran in one group, with their count and the latest ones."""

    def __init__(self, name: str) -> None:
        group = lazily_loaded.c10d._resolve_process_group(name)
        self.ranks: list[int] = torch.distributed.get_process_group_ranks(group)
        self.next_rank = self.ranks[(self.ranks.index(torch.distributed.get_rank()) + 1) % len(self.ranks)]
        self.waiting_seconds = min(WAITING_SECONDS, _time_limit(name) / 2)
        self.key = f"engine_collectives/{name}/{'-'.join(map(str, self.ranks))}"
        self.count = self.posted = 0
        self.latest: deque[Collective] = deque(maxlen=WINDOW)
        self.ahead_since: tuple[int, float] | None = None
        self.first_ahead: Sequence[str] | None = None
        """First collective that this rank reached and the next rank has not posted."""
        self.is_reported = False


class CollectiveWatcher:
    """Compares what this rank ran with the next rank of each group.

    A thread posts it to the group's store and reads what others posted; the rank never waits for it. Ranks of a group
    must run the same collectives in the same order, else they wait for each other until the group's time limit.
    """

    def __init__(self, group: Any, store: Any) -> None:
        self._group = weakref.ref(group)
        self._store = store
        self._process = os.getpid()
        self._rank = torch.distributed.get_rank()
        self._streams: dict[str, _Stream] = {}
        self._lock = make_lock()
        self._ended, self._wake = threading.Event(), threading.Event()
        self._seen: set[int] = set()
        self._thread = threading.Thread(target=self._watch, name="engine-collective-order", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def is_current(self) -> bool:
        """Return True if its group is still this process's default group."""
        is_alive = self._process == os.getpid() and not self._ended.is_set()
        return is_alive and torch.distributed.is_initialized() and torch.distributed.group.WORLD is self._group()

    def record(self, by_group: Mapping[str, list[Collective]]) -> None:
        """Record the collectives that a graph is about to run; a forked process records none."""
        if self._process != os.getpid():
            return
        with self._lock:
            for name, collectives in by_group.items():
                stream = self._streams.get(name) or self._streams.setdefault(name, _Stream(name))
                stream.count += len(collectives)
                stream.latest.extend(collectives)
            if id(by_group) not in self._seen:  # ranks may differ from now on: post it without delay
                self._seen.add(id(by_group))
                self._wake.set()

    def explain_failure(self, by_group: Mapping[str, list[Collective]]) -> None:
        """Name the rank that differs, or those that are furthest behind, after collectives failed.

        It waits once, so that ranks which are only late can post what they ran.
        """
        if self._process != os.getpid():
            return
        with contextlib.suppress(RuntimeError):
            for stream in [s for name, s in self._streams.items() if name in by_group]:
                self._publish(stream)
                self._compare_with_next_rank(stream)
                if stream.is_reported or self._furthest_behind(stream)[0] >= stream.count:
                    continue
                time.sleep(1.5 * INTERVAL_SECONDS)
                count, ranks = self._furthest_behind(stream)
                missing = _by_number(stream.count, stream.latest).get(count)
                if missing is not None:
                    who = f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"
                    have, be = ("have", "are") if len(ranks) > 1 else ("has", "is")
                    self._print_warning(
                        f"{missing[0]} at {missing[1]} failed on rank {self._rank}, and {who} {have} not posted it."
                        f" {who.capitalize()} {have} ended, {be} late, or {'run' if len(ranks) > 1 else 'runs'} other code."
                    )

    def _furthest_behind(self, stream: _Stream) -> tuple[int, list[int]]:
        """Return the least number of collectives that a rank posted, and these ranks."""
        counts = {rank: self._posted_by(stream, rank)[0] for rank in stream.ranks}
        least = min(counts.values())
        return least, [rank for rank, count in counts.items() if count == least]

    def _posted_by(self, stream: _Stream, rank: int) -> tuple[int, Sequence[Sequence[str]]]:
        key = f"{stream.key}/{rank}"
        count, latest = json.loads(self._store.get(key)) if self._store.check([key]) else (0, [])
        return count, latest

    def stop(self) -> None:
        """End the thread, in the process that started it."""
        self._ended.set()
        self._wake.set()
        if self._process == os.getpid():
            self._thread.join(5.0)

    def _watch(self) -> None:
        # The store ends with the process that hosts it, which is no error of this rank.
        with contextlib.suppress(RuntimeError):
            while self.is_current():
                self._wake.wait(INTERVAL_SECONDS)
                self._wake.clear()
                with self._lock:
                    streams = list(self._streams.values())
                for stream in streams:
                    self._publish(stream)
                    self._compare_with_next_rank(stream)
        self._ended.set()
        atexit.unregister(self.stop)  # which would keep the store's connection open

    def _publish(self, stream: _Stream) -> None:
        with self._lock:
            count, latest = stream.count, list(stream.latest)
        if count != stream.posted:
            self._store.set(f"{stream.key}/{self._rank}", json.dumps([count, latest]))
            stream.posted = count

    def _compare_with_next_rank(self, stream: _Stream) -> None:
        if stream.is_reported:
            return
        count, latest = self._posted_by(stream, stream.next_rank)
        theirs = _by_number(count, latest)
        with self._lock:
            ours = _by_number(stream.count, stream.latest)
        for number in sorted(ours.keys() & theirs.keys()):
            if not _may_agree(ours[number][0], theirs[number][0]):
                stream.is_reported = True
                self._print_warning(_difference(self._rank, stream.next_rank, number, ours, theirs))
                return
        stream.first_ahead = ours.get(count)
        self._note_waiting(stream, count)

    def _note_waiting(self, stream: _Stream, count: int) -> None:
        if count >= stream.posted or stream.ahead_since is None or stream.ahead_since[0] != count:
            stream.ahead_since = (count, time.monotonic())
        elif time.monotonic() - stream.ahead_since[1] > stream.waiting_seconds and stream.first_ahead is not None:
            stream.ahead_since = (count, float("inf"))
            text, line = stream.first_ahead
            self._print_warning(
                f"Rank {self._rank} reached {text} at {line} more than {stream.waiting_seconds:.0f} s ago;"
                f" rank {stream.next_rank} has not. Rank {stream.next_rank} is slow, has ended, or runs other code."
            )

    def _print_warning(self, sentence: str) -> None:
        print(f"compile-explorer: {sentence}", file=sys.stderr, flush=True)


def _by_number(count: int, latest: Iterable[Sequence[str]]) -> dict[int, Sequence[str]]:
    """Return the latest of ``count`` collectives by their number."""
    numbers = list(latest)
    return dict(enumerate(numbers, count - len(numbers)))


def _may_agree(ours: str, theirs: str) -> bool:
    """Compare two texts; a size that is a symbol in one of them may be any number."""
    if ours == theirs:
        return True
    sides = [re.findall(r"[?\w]+|[^?\w]", text) for text in (ours, theirs)]
    return len(sides[0]) == len(sides[1]) and all("?" in (a, b) or a == b for a, b in zip(*sides, strict=True))


def _difference(
    rank: int, other_rank: int, number: int, ours: Mapping[int, Sequence[str]], theirs: Mapping[int, Sequence[str]]
) -> str:
    """Return the sentence about the first collective in which two ranks differ."""
    numbers = range(max(0, number - SHOWN + 1), number + 1)
    sequences = [" -> ".join(side[n][0] for n in numbers if n in side) for side in (ours, theirs)]
    return (
        f"Ranks {rank} and {other_rank} run different collectives, so they wait for each other until the group's time limit:"
        f" rank {rank} runs {ours[number][0]} at {ours[number][1]}, rank {other_rank} runs {theirs[number][0]} at"
        f" {theirs[number][1]}, after {number} that agree. Rank {rank}: {sequences[0]}. Rank {other_rank}: {sequences[1]}."
    )
