"""Named GPU targets. Kernels compile for them on any machine; no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.errors import UnknownTarget


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
            Target("cuda:75", "cuda", 75, 32, "T4, RTX 2080"),
            Target("cuda:80", "cuda", 80, 32, "A100"),
            Target("cuda:86", "cuda", 86, 32, "RTX 3090, A10, A40"),
            Target("cuda:87", "cuda", 87, 32, "Jetson Orin"),
            Target("cuda:89", "cuda", 89, 32, "RTX 4090, L4, L40"),
            Target("cuda:90", "cuda", 90, 32, "H100, H200"),
            Target("cuda:100", "cuda", 100, 32, "B200, GB200"),
            Target("cuda:103", "cuda", 103, 32, "B300, GB300"),
            Target("cuda:110", "cuda", 110, 32, "Jetson Thor"),
            Target("cuda:120", "cuda", 120, 32, "RTX 5090, RTX PRO 6000"),
            Target("cuda:121", "cuda", 121, 32, "DGX Spark"),
            Target("hip:gfx90a", "hip", "gfx90a", 64, "MI210, MI250"),
            Target("hip:gfx942", "hip", "gfx942", 64, "MI300"),
            Target("hip:gfx950", "hip", "gfx950", 64, "MI350"),
            Target("hip:gfx1100", "hip", "gfx1100", 32, "RX 7900"),
            Target("hip:gfx1200", "hip", "gfx1200", 32, "RX 9060"),
            Target("hip:gfx1201", "hip", "gfx1201", 32, "RX 9070"),
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
    import torch  # Worker processes compile without torch: its import takes longer than all their work.

    if not torch.cuda.is_available():
        return DEFAULT_TARGET
    if torch.version.hip is not None:
        local = f"hip:{torch.cuda.get_device_properties().gcnArchName.partition(':')[0]}"
        return local if local in TARGETS else "hip:gfx942"
    major, minor = torch.cuda.get_device_capability()
    fitting = [t for t in TARGETS.values() if t.backend == "cuda" and int(t.architecture) <= major * 10 + minor]
    return max(fitting, key=lambda t: int(t.architecture)).name if fitting else DEFAULT_TARGET
