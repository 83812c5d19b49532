"""Symbols: ShapeEnv, its constraints and queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import (
        ConstraintViolationError,
        DimDynamic,
        GuardOnDataDependentSymNode,
        ShapeEnv,
        StatelessSymbolicContext,
        StrictMinMaxConstraint,
        SubclassSymbolicContext,
        free_unbacked_symbols,
        guard_or_false,
        guard_or_true,
        guard_size_oblivious,
        has_free_unbacked_symbols,
        has_static_value,
        is_concrete_int,
        is_nested_int,
        statically_known_false,
        statically_known_true,
        sym_and,
        sym_or,
    )
    from torch.fx.experimental.symbolic_shapes import _advise_is_bounded as advise_is_bounded
    from torch.fx.experimental.symbolic_shapes import _advise_is_size as advise_is_size

ENTRIES = (
    Entry(
        "torch.fx.experimental.symbolic_shapes:DimDynamic",
        Kind.CLASS,
        "Says which dimensions become symbols.",
        without="no symbols can be made",
        off=Feature.COMPILATION,
        members=("DYNAMIC", "STATIC"),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode",
        Kind.EXCEPTION,
        "Raised where a condition on an unbacked symbol is asked.",
        without="such conditions are internal errors, which end the graph",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:ShapeEnv",
        Kind.CLASS,
        "Owns symbols, their ranges and guards.",
        without="nothing can be traced",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext",
        Kind.CLASS,
        "Says which dimensions of a tensor become symbols.",
        without="no symbols can be made",
        off=Feature.COMPILATION,
        calls=("(dynamic_sizes=, constraint_sizes=)", "(a)"),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:ConstraintViolationError",
        Kind.EXCEPTION,
        "Raised where code specializes a dimension that was marked as dynamic.",
        without="the error has another class",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:StrictMinMaxConstraint",
        Kind.CLASS,
        "Bounds that the user gave for a dimension.",
        without="no symbols can be made",
        off=Feature.COMPILATION,
        calls=("(vr=, warn_only=)",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:SubclassSymbolicContext",
        Kind.CLASS,
        "Says which dimensions of a tensor subclass become symbols.",
        without="no symbols can be made",
        off=Feature.COMPILATION,
        calls=("(dynamic_sizes=, constraint_sizes=, tensor_source=, inner_contexts=)",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:_advise_is_bounded",
        Kind.FUNCTION,
        "Traced advice on a size.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:_advise_is_size",
        Kind.FUNCTION,
        "Traced advice on a size.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:free_unbacked_symbols",
        Kind.FUNCTION,
        "Lists the unbacked symbols of a value.",
        without="unbacked symbols would be missed",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:guard_or_false",
        Kind.FUNCTION,
        "Traced query on a symbol.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:guard_or_true",
        Kind.FUNCTION,
        "Traced query on a symbol.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:guard_size_oblivious",
        Kind.FUNCTION,
        "Traced query on a symbol.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:has_free_unbacked_symbols",
        Kind.FUNCTION,
        "Traced query on a value.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:has_static_value",
        Kind.FUNCTION,
        "Traced query on a symbol.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:is_concrete_int",
        Kind.FUNCTION,
        "Traced query on a symbol.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:is_nested_int",
        Kind.FUNCTION,
        "Recognizes symbols of ragged dimensions.",
        without="ragged dimensions are not recognized",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:statically_known_false",
        Kind.FUNCTION,
        "Traced query on a condition.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:statically_known_true",
        Kind.FUNCTION,
        "Asks if a condition on symbols always holds.",
        without="conditions on symbols are not decided",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:sym_and",
        Kind.FUNCTION,
        "Traced operator on conditions.",
        without="traced code that calls it breaks the graph",
    ),
    Entry(
        "torch.fx.experimental.symbolic_shapes:sym_or",
        Kind.FUNCTION,
        "Traced operator on conditions.",
        without="traced code that calls it breaks the graph",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
