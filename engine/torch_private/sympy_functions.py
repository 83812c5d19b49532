"""Torch's private functions, printers and value ranges on top of sympy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_module, declare_value, load

if TYPE_CHECKING:
    from torch.utils._sympy import functions as sympy_functions
    from torch.utils._sympy.functions import FloorDiv, Mod
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.singleton_int import SingletonInt
    from torch.utils._sympy.symbol import SymT, symbol_is_type
    from torch.utils._sympy.value_ranges import ValueRanges

ENTRIES = (
    *IfMissing("graphs with symbols are not stored on disk", Feature.DISK_CACHE).entries(
        declare_module(
            "torch.utils._sympy:functions", "Functions of symbols, by name in stored graphs.", alias="sympy_functions"
        ),
    ),
    *IfMissing("guards on symbols cannot be written", Feature.COMPILATION).entries(
        declare_class("torch.utils._sympy.functions:FloorDiv", "Division of symbols in guards.", "(a, b)"),
        declare_class("torch.utils._sympy.functions:Mod", "Remainder of symbols in guards.", "(a, b)"),
        declare_class("torch.utils._sympy.printers:PythonPrinter", "Prints expressions as Python.", "()"),
    ),
    *IfMissing("run-time checks of unbacked symbols cannot be emitted", Feature.COMPILATION).entries(
        declare("torch.utils._sympy.interp:sympy_interp", "Evaluates an expression as graph nodes.", "(a, b, c)"),
        declare_class(
            "torch.utils._sympy.reference:PythonReferenceAnalysis", "Operators with which an expression is evaluated."
        ),
    ),
    *IfMissing("ranges of symbols are unknown", Feature.COMPILATION).entries(
        declare_value("torch.utils._sympy.numbers:int_oo", "Infinity of integer ranges."),
    ),
    *IfMissing("ragged dimensions are not recognized", Feature.COMPILATION).entries(
        declare_class("torch.utils._sympy.singleton_int:SingletonInt", "Sizes of ragged dimensions."),
    ),
    *IfMissing("unbacked symbols are not recognized", Feature.COMPILATION).entries(
        declare_class(
            "torch.utils._sympy.symbol:SymT", "Kinds of symbols.", members=("UNBACKED_FLOAT", "UNBACKED_INT")
        ),
        declare("torch.utils._sympy.symbol:symbol_is_type", "Asks for the kind of a symbol.", "(a, b)"),
    ),
    *IfMissing("bounds of marked sizes are unknown", Feature.COMPILATION).entries(
        declare_class(
            "torch.utils._sympy.value_ranges:ValueRanges", "Range of a symbol that the user marked.", "(a, b)"
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
