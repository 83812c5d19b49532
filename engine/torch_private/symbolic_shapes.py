"""Torch's private names for symbolic shapes: ShapeEnv, its constraints and queries."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

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

ENTRIES = load_into(globals())("""
If missing, no symbols can be made (COMPILATION):
    class torch.fx.experimental.symbolic_shapes:DimDynamic members=DYNAMIC,STATIC
        -- Says which dimensions become symbols.
    class torch.fx.experimental.symbolic_shapes:StatelessSymbolicContext (dynamic_sizes=, constraint_sizes=) (a)
        -- Says which dimensions of a tensor become symbols.
    class torch.fx.experimental.symbolic_shapes:StrictMinMaxConstraint (vr=, warn_only=)
        -- Bounds that the user gave for a dimension.
    class torch.fx.experimental.symbolic_shapes:SubclassSymbolicContext (dynamic_sizes=, constraint_sizes=,
         tensor_source=, inner_contexts=) -- Says which dimensions of a tensor subclass become symbols.
If missing, such conditions are internal errors, which end the graph (COMPILATION):
    exception torch.fx.experimental.symbolic_shapes:GuardOnDataDependentSymNode
        -- Raised where a condition on an unbacked symbol is asked.
If missing, nothing can be traced (COMPILATION):
    class torch.fx.experimental.symbolic_shapes:ShapeEnv () -- Owns symbols, their ranges and guards.
If missing, an index that varies would not be compared with the size (COMPILATION):
    function torch.fx.experimental.symbolic_shapes:guard_or_false -- Traced query on a symbol.
If missing, the error has another class:
    exception torch.fx.experimental.symbolic_shapes:ConstraintViolationError
        -- Raised where code specializes a dimension that was marked as dynamic.
If missing, traced code that calls it breaks the graph:
    function torch.fx.experimental.symbolic_shapes:_advise_is_bounded -- Traced advice on a size.
    function torch.fx.experimental.symbolic_shapes:_advise_is_size -- Traced advice on a size.
    function torch.fx.experimental.symbolic_shapes:guard_or_true -- Traced query on a symbol.
    function torch.fx.experimental.symbolic_shapes:guard_size_oblivious -- Traced query on a symbol.
    function torch.fx.experimental.symbolic_shapes:has_free_unbacked_symbols -- Traced query on a value.
    function torch.fx.experimental.symbolic_shapes:has_static_value -- Traced query on a symbol.
    function torch.fx.experimental.symbolic_shapes:is_concrete_int -- Traced query on a symbol.
    function torch.fx.experimental.symbolic_shapes:statically_known_false -- Traced query on a condition.
    function torch.fx.experimental.symbolic_shapes:sym_and -- Traced operator on conditions.
    function torch.fx.experimental.symbolic_shapes:sym_or -- Traced operator on conditions.
If missing, unbacked symbols would be missed (COMPILATION):
    function torch.fx.experimental.symbolic_shapes:free_unbacked_symbols (a) -- Lists the unbacked symbols of a value.
If missing, ragged dimensions are not recognized (COMPILATION):
    function torch.fx.experimental.symbolic_shapes:is_nested_int (a) -- Recognizes symbols of ragged dimensions.
If missing, conditions on symbols are not decided (COMPILATION):
    function torch.fx.experimental.symbolic_shapes:statically_known_true (a)
        -- Asks if a condition on symbols always holds.
""")
