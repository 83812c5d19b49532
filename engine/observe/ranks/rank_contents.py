"""Contents of one rank: digests by compile id, without what differs in each process."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

_WAITS = ("wait_tensor", "wait_tensors")
_COLLECTIVE = re.compile(
    rb"(?m)^[^#\n]*?\b(?:_c10d_functional(?:_autograd)?|_dtensor|symm_mem)\.(\w+?)(?:\.\w+)?\(([^)\n]{0,2000})\)"
)
"""A call, not the source line that a comment above it shows."""
_CONSTANT = re.compile(rb"'[^'\n]{0,80}'|(?<![\w.])-?\d{1,9}(?![\w.])")
_GROUP_SIZE = re.compile(r"(\d{1,6}), '0'")
"""The size of the group of all ranks, in a collective that states it."""
_TENSOR = re.compile(r"\w+\[[^\[\]]*\]")
_NOISE = (
    (re.compile(rb"\b0x[0-9a-fA-F]{4,}|\b\d{12,}\b|(?<=\brank[_ =:])\d+|\b[a-z2-7]{40,}\b"), b"_"),
    (re.compile(rb"\b(cuda|xpu|hpu|npu|mtia):\d+"), rb"\1"),
    (re.compile(rb"(index=|device=|evice(?:Guard)?\(|raw_stream\(|\bstream)\d+\b"), rb"\1"),
    (re.compile(rb"(?:/[^\s/'\",:;()\[\]]+)+/"), b""),
)
"""Addresses and ids, rank numbers, hashes; device numbers; those in code; folders."""
COMPILER_SETTING = ".config._config["
"""In guards on torch's own settings.

Compiling without a cache leaves their defaults as set values.
"""
LONGEST_WAIT_SECONDS = 12 * 3600.0
"""Process groups give up sooner than this: a rank recorded later is of another run."""
_RANK_VALUE = rb"""(?i)(rank['"\]]*(?: == |, "[^"]*", "))%d(?![\w.])"""
"""In guards on a value whose name ends in ``rank``: the rank's own number."""
_GUARD_NOISE = re.compile(rb"Guard latency = [\d.]+ us|\b\d{6,}\b|(?<=_dict___)\d+|[ \t]+")


@dataclass
class RankContents:
    """One rank's recording: the file, and what was compiled.

    ``compilations``: (aspect, digest) pairs by compile id, in the order of the first event. ``collectives``: calls
    by compile id and phase. ``ready``: wall clock seconds by (compile id, phase) when the program could run.
    """

    rank: int
    file: Path
    version: str = ""
    compilations: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    collectives: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    start: float = 0.0
    end: float = 0.0
    unfinished: str = ""
    """Compile id within which the recording ends; empty if it does not."""
    damage: tuple[str, ...] = ()

    def add(self, compilation: str, aspect: str, digest: str) -> None:
        """Add the digest of one aspect of a compilation, such as its guards."""
        self.compilations.setdefault(compilation, []).append((aspect, digest))

    def digest(self, aspect: str = "") -> str:
        """Return a digest of one aspect, or of all: equal digests mean equal ranks."""
        facts = [(c, [d for a, d in fs if aspect in ("", a)]) for c, fs in self.compilations.items()]
        kept = facts if aspect in ("", "compile ids") else [f for f in facts if f[1]]
        return text_digest(repr(kept).encode())

    def share(self, equal: RankContents) -> None:
        """Use the facts of an equal rank, so that memory grows with distinct contents only."""
        self.compilations, self.collectives = equal.compilations, equal.collectives

    def may_wait_for(self, other: RankContents) -> bool:
        """Return True unless more time is between the recordings than a collective waits."""
        gap = max(other.start - self.end, self.start - other.end)
        return not all((self.start, self.end, other.start, other.end)) or gap < LONGEST_WAIT_SECONDS

    def world_size(self) -> int:
        """Return the number of ranks that collectives of the largest group state; 0 if unknown."""
        calls = (c for calls in self.collectives.values() for c in calls)
        return max((int(m[1]) for c in calls if (m := _GROUP_SIZE.search(c))), default=0)


def is_tensor_text(text: str) -> bool:
    """Return True if a recorded input is a tensor: ``f32[6, 8]``.

    Guards say which other values count.
    """
    return _TENSOR.match(text) is not None


def text_digest(text: bytes) -> str:
    """Return a digest of these bytes."""
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def normalized_digest(text: bytes, aspect: str, rank: int) -> str:
    """Return the digest of a text without addresses, ranks, device numbers and folders."""
    if aspect == "guards":
        text = re.sub(_RANK_VALUE % rank, rb"\1its rank", text)
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    if aspect == "guards":  # sets of names are in another order in each process
        lines = _GUARD_NOISE.sub(b" ", text).split(b"\n")
        text = b"\n".join(sorted(line for line in lines if COMPILER_SETTING.encode() not in line))
    return text_digest(text)


def collectives_of(graph: bytes) -> tuple[str, ...]:
    """Return a graph's collectives in order, with constants: ``all_reduce('sum', '0')``."""
    calls = ((m[1], m[2]) for m in _COLLECTIVE.finditer(graph))
    return tuple(
        f"{name.decode()}({', '.join(c.decode(errors='replace') for c in _CONSTANT.findall(arguments))})"
        for name, arguments in calls
        if name.decode() not in _WAITS
    )
