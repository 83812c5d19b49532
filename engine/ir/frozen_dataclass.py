"""Base class of frozen dataclasses: a subclass needs no decorator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import dataclass_transform


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FrozenDataclass:
    """Base of class hierarchies in which each class is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True)(cls)
