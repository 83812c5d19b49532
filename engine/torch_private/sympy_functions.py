"""Torch's private functions, printers and value ranges on top of sympy."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch.utils._sympy import functions as sympy_functions
    from torch.utils._sympy.functions import FloorDiv, Mod, ToFloat
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.singleton_int import SingletonInt
    from torch.utils._sympy.symbol import SymT, symbol_is_type
    from torch.utils._sympy.value_ranges import ValueRanges

ENTRIES = load_into(globals())("""
If missing, graphs with symbols are not stored on disk (DISK_CACHE):
    module torch.utils._sympy:functions alias=sympy_functions -- Functions of symbols, by name in stored graphs.
If missing, guards on symbols cannot be written (COMPILATION):
    class torch.utils._sympy.functions:FloorDiv (a, b) -- Division of symbols in guards.
    class torch.utils._sympy.functions:Mod (a, b) -- Remainder of symbols in guards.
    class torch.utils._sympy.functions:ToFloat (a) -- Integer of a guard as a float.
    class torch.utils._sympy.printers:PythonPrinter () -- Prints expressions as Python.
If missing, run-time checks of unbacked symbols cannot be emitted (COMPILATION):
    function torch.utils._sympy.interp:sympy_interp (a, b, c) -- Evaluates an expression as graph nodes.
    class torch.utils._sympy.reference:PythonReferenceAnalysis -- Operators with which an expression is evaluated.
If missing, ranges of symbols are unknown (COMPILATION):
    value torch.utils._sympy.numbers:int_oo -- Infinity of integer ranges.
If missing, ragged dimensions are not recognized (COMPILATION):
    class torch.utils._sympy.singleton_int:SingletonInt -- Sizes of ragged dimensions.
If missing, unbacked symbols are not recognized (COMPILATION):
    class torch.utils._sympy.symbol:SymT members=UNBACKED_FLOAT,UNBACKED_INT -- Kinds of symbols.
    function torch.utils._sympy.symbol:symbol_is_type (a, b) -- Asks for the kind of a symbol.
If missing, bounds of marked sizes are unknown (COMPILATION):
    class torch.utils._sympy.value_ranges:ValueRanges (a, b) -- Range of a symbol that the user marked.
""")
