"""Inductor, loaded at the first use since that takes most of a second."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_lazily_into

if TYPE_CHECKING:
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options, list_options
    from torch._inductor.compile_fx import compile_fx

ENTRIES = load_lazily_into(globals())("""
If missing, the backend of that name runs eagerly:
    function torch._inductor.compile_fx:compile_fx (a, b, config_patches=) -- Compiles a graph with Inductor.
    function torch._inductor:list_mode_options (mode) -- Settings of Inductor for a mode.
If missing, options of Inductor raise an error:
    function torch._inductor:list_options () -- Names of Inductor's settings.
If missing, sessions of torch.compile have less detail (OBSERVATION):
    value torch._inductor:config alias=inductor_config -- Settings of Inductor.
""")
