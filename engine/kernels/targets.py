"""Named GPU targets. Kernels compile for them on any machine; no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import UnknownTarget

if TYPE_CHECKING:  # Worker processes compile without torch: its import takes longer than all their work.
    pass


@dataclass(frozen=True)
class Target:
    """A kind of GPU.

    ``architecture`` is Triton's name: a compute capability without its dot, or AMD's name. ``gpus`` lists well-known
    models.
    """

    name: str
    backend: str
    architecture: int | str
    warp_size: int
    gpus: str


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        t.name: t
        for t in (
            Target("cuda:80", "cuda", 80, 32, "A100"),
            Target("cuda:89", "cuda", 89, 32, "RTX 4090, L4, L40"),
            Target("cuda:90", "cuda", 90, 32, "H100, H200"),
            Target("cuda:100", "cuda", 100, 32, "B200, GB200"),
            Target("hip:gfx942", "hip", "gfx942", 64, "MI300"),
        )
    }
)


DEFAULT_TARGET = "cuda:90"


def parse_target(text: str) -> Target:
    """Return the target of this name.

    Raises:
        UnknownTarget: no target has this name.
    """
    target = TARGETS.get(text) if isinstance(text, str) else None
    if target is None:
        raise UnknownTarget(text, tuple(TARGETS))
    return target


def default_target() -> str:
    """Return the newest target that the local GPU can run; ``cuda:90`` without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return DEFAULT_TARGET
    if torch.version.hip is not None:
        return "hip:gfx942"
    major, minor = torch.cuda.get_device_capability()
    fitting = [t for t in TARGETS.values() if t.backend == "cuda" and int(t.architecture) <= major * 10 + minor]
    return max(fitting, key=lambda t: int(t.architecture)).name if fitting else DEFAULT_TARGET
