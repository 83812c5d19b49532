"""Print the Triton that belongs to the installed torch; ``make`` passes it to pip.

CUDA builds of torch name their Triton themselves. CPU builds name none, and pip would install the newest.
"""

from __future__ import annotations

import importlib.metadata
import sys

TRITON_OF_TORCH = {"2.11": "3.6", "2.12": "3.7", "2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}


def matching_triton(torch: str, platform: str = sys.platform) -> str:
    """Return the requirement; empty if Triton has no wheels or torch is unknown."""
    triton = TRITON_OF_TORCH.get(".".join(torch.split(".")[:2]))
    return f"triton=={triton}.*" if triton and platform == "linux" else ""


if __name__ == "__main__":
    print(matching_triton(importlib.metadata.version("torch")))
