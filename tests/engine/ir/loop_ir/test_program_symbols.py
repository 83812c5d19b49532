"""Symbols of a lowered program know what defines them."""

from __future__ import annotations

import torch

from engine.ir.loop_ir.index_expr import static_product
from engine.ir.loop_ir.program_symbols import ProgramSymbols, expression_of
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.symbolic_shapes import ShapeEnv


def symbolic_tensor() -> torch.Tensor:
    """A fake tensor whose sizes are symbols."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.ones(6, 4))


def test_an_input_defines_its_symbols() -> None:
    """Each size symbol is read from the first input that has it; its hint is the traced size."""
    fake, symbols = symbolic_tensor(), ProgramSymbols()
    for position in (0, 1):
        for dim, size in enumerate(fake.shape):
            symbols.bind_input(size, position, dim)
    assert list(symbols.inputs.values()) == [(0, 0), (0, 1)]
    assert list(symbols.hints.values()) == [6, 4]


def test_undefined_symbols_are_unknown_until_a_result_defines_them() -> None:
    """The size of an ATen call's result defines a symbol that was unknown before.

    Numbers and products of known symbols are never unknown.
    """
    fake, symbols = symbolic_tensor(), ProgramSymbols()
    rows, columns = (expression_of(size) for size in fake.shape)
    assert symbols.unknown((3, rows)) == {str(rows)}
    made = TensorDef("made", torch.float32, (rows, columns * 2), (columns, 1), "extern")
    symbols.bind_result(made)
    assert symbols.unbacked == {str(rows): (made, 0)}
    assert symbols.unknown((rows * 2, columns)) == {str(columns)}


def test_products_are_static_without_symbols() -> None:
    """A product of numbers is a number; one with a symbol is None."""
    (rows, _) = (expression_of(size) for size in symbolic_tensor().shape)
    assert static_product((2, 3)) == 6
    assert static_product((2, rows)) is None
    assert static_product(()) == 1
