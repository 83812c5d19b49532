"""Torch's private names for symbolic shapes: ShapeEnv, its constraints and queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_exception, load

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
    *IfMissing("no symbols can be made", Feature.COMPILATION).entries(
        declare_class(
            "torch.fx.experimental.symbolic_shapes:DimDynamic",
            "Says which dimensions become symbols.",
            members=("DYNAMIC", "STATIC"),
        ),
        declare_class(
            "torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext",
            "Says which dimensions of a tensor become symbols.",
            "(dynamic_sizes=, constraint_sizes=)",
            "(a)",
        ),
        declare_class(
            "torch.fx.experimental.symbolic_shapes:StrictMinMaxConstraint",
            "Bounds that the user gave for a dimension.",
            "(vr=, warn_only=)",
        ),
        declare_class(
            "torch.fx.experimental.symbolic_shapes:SubclassSymbolicContext",
            "Says which dimensions of a tensor subclass become symbols.",
            "(dynamic_sizes=, constraint_sizes=, tensor_source=, inner_contexts=)",
        ),
    ),
    *IfMissing("such conditions are internal errors, which end the graph", Feature.COMPILATION).entries(
        declare_exception(
            "torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode",
            "Raised where a condition on an unbacked symbol is asked.",
        ),
    ),
    *IfMissing("nothing can be traced", Feature.COMPILATION).entries(
        declare_class("torch.fx.experimental.symbolic_shapes:ShapeEnv", "Owns symbols, their ranges and guards.", "()"),
    ),
    *IfMissing("the error has another class").entries(
        declare_exception(
            "torch.fx.experimental.symbolic_shapes:ConstraintViolationError",
            "Raised where code specializes a dimension that was marked as dynamic.",
        ),
    ),
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare("torch.fx.experimental.symbolic_shapes:_advise_is_bounded", "Traced advice on a size."),
        declare("torch.fx.experimental.symbolic_shapes:_advise_is_size", "Traced advice on a size."),
        declare("torch.fx.experimental.symbolic_shapes:guard_or_false", "Traced query on a symbol."),
        declare("torch.fx.experimental.symbolic_shapes:guard_or_true", "Traced query on a symbol."),
        declare("torch.fx.experimental.symbolic_shapes:guard_size_oblivious", "Traced query on a symbol."),
        declare("torch.fx.experimental.symbolic_shapes:has_free_unbacked_symbols", "Traced query on a value."),
        declare("torch.fx.experimental.symbolic_shapes:has_static_value", "Traced query on a symbol."),
        declare("torch.fx.experimental.symbolic_shapes:is_concrete_int", "Traced query on a symbol."),
        declare("torch.fx.experimental.symbolic_shapes:statically_known_false", "Traced query on a condition."),
        declare("torch.fx.experimental.symbolic_shapes:sym_and", "Traced operator on conditions."),
        declare("torch.fx.experimental.symbolic_shapes:sym_or", "Traced operator on conditions."),
    ),
    *IfMissing("unbacked symbols would be missed", Feature.COMPILATION).entries(
        declare(
            "torch.fx.experimental.symbolic_shapes:free_unbacked_symbols",
            "Lists the unbacked symbols of a value.",
            "(a)",
        ),
    ),
    *IfMissing("ragged dimensions are not recognized", Feature.COMPILATION).entries(
        declare(
            "torch.fx.experimental.symbolic_shapes:is_nested_int", "Recognizes symbols of ragged dimensions.", "(a)"
        ),
    ),
    *IfMissing("conditions on symbols are not decided", Feature.COMPILATION).entries(
        declare(
            "torch.fx.experimental.symbolic_shapes:statically_known_true",
            "Asks if a condition on symbols always holds.",
            "(a)",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
