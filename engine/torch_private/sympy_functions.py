"""Torch's functions, printers and ranges on top of sympy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch.utils._sympy:functions",
        Kind.MODULE,
        "Functions of symbols, by name in stored graphs.",
        without="graphs with symbols are not stored on disk",
        off=Feature.DISK_CACHE,
        alias="sympy_functions",
    ),
    Entry(
        "torch.utils._sympy.functions:FloorDiv",
        Kind.CLASS,
        "Division of symbols in guards.",
        without="guards on symbols cannot be written",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch.utils._sympy.functions:Mod",
        Kind.CLASS,
        "Remainder of symbols in guards.",
        without="guards on symbols cannot be written",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch.utils._sympy.interp:sympy_interp",
        Kind.FUNCTION,
        "Evaluates an expression as graph nodes.",
        without="run-time checks of unbacked symbols cannot be emitted",
        off=Feature.COMPILATION,
        calls=("(a, b, c)",),
    ),
    Entry(
        "torch.utils._sympy.numbers:int_oo",
        Kind.VALUE,
        "Infinity of integer ranges.",
        without="ranges of symbols are unknown",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils._sympy.printers:PythonPrinter",
        Kind.CLASS,
        "Prints expressions as Python.",
        without="guards on symbols cannot be written",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch.utils._sympy.reference:PythonReferenceAnalysis",
        Kind.CLASS,
        "Operators with which an expression is evaluated.",
        without="run-time checks of unbacked symbols cannot be emitted",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils._sympy.singleton_int:SingletonInt",
        Kind.CLASS,
        "Sizes of ragged dimensions.",
        without="ragged dimensions are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils._sympy.symbol:SymT",
        Kind.CLASS,
        "Kinds of symbols.",
        without="unbacked symbols are not recognized",
        off=Feature.COMPILATION,
        members=("UNBACKED_FLOAT", "UNBACKED_INT"),
    ),
    Entry(
        "torch.utils._sympy.symbol:symbol_is_type",
        Kind.FUNCTION,
        "Asks for the kind of a symbol.",
        without="unbacked symbols are not recognized",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch.utils._sympy.value_ranges:ValueRanges",
        Kind.CLASS,
        "Range of a symbol that the user marked.",
        without="bounds of marked sizes are unknown",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
