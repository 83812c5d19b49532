"""Inductor, loaded at the first use since that takes most of a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load_lazily

if TYPE_CHECKING:
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options, list_options
    from torch._inductor.compile_fx import compile_fx

ENTRIES = (
    Entry(
        "torch._inductor.compile_fx:compile_fx",
        Kind.FUNCTION,
        "Compiles a graph with Inductor.",
        without="the backend of that name runs eagerly",
        calls=("(a, b, config_patches=)",),
    ),
    Entry(
        "torch._inductor:list_mode_options",
        Kind.FUNCTION,
        "Settings of Inductor for a mode.",
        without="the backend of that name runs eagerly",
        calls=("(mode)",),
    ),
    Entry(
        "torch._inductor:list_options",
        Kind.FUNCTION,
        "Names of Inductor's settings.",
        without="options of Inductor raise an error",
        calls=("()",),
    ),
    Entry(
        "torch._inductor:config",
        Kind.VALUE,
        "Settings of Inductor.",
        without="sessions of torch.compile have less detail",
        off=Feature.OBSERVATION,
        alias="inductor_config",
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
