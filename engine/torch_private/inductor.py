"""Inductor, loaded at the first use since that takes most of a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_value, load_lazily

if TYPE_CHECKING:
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options, list_options
    from torch._inductor.compile_fx import compile_fx

ENTRIES = (
    *IfMissing("the backend of that name runs eagerly").entries(
        declare("torch._inductor.compile_fx:compile_fx", "Compiles a graph with Inductor.", "(a, b, config_patches=)"),
        declare("torch._inductor:list_mode_options", "Settings of Inductor for a mode.", "(mode)"),
    ),
    *IfMissing("options of Inductor raise an error").entries(
        declare("torch._inductor:list_options", "Names of Inductor's settings.", "()"),
    ),
    *IfMissing("sessions of torch.compile have less detail", Feature.OBSERVATION).entries(
        declare_value("torch._inductor:config", "Settings of Inductor.", alias="inductor_config"),
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
