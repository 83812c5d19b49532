"""The interpreter's stand-ins for libdevice mean what libdevice means."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from engine.runtime.triton_interpreter.libdevice import TORCH_EQUIVALENTS

X = torch.tensor([-2.5, -1.5, -0.5, 0.0, 0.3, 0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    "name", ["erf", "erfc", "expm1", "log1p", "sinh", "cosh", "tanh", "atan", "sin", "exp2", "cbrt"]
)
def test_functions_of_one_argument_agree_with_c(name: str) -> None:
    """Against the C library, element by element."""
    at = X.double() if name != "log1p" else X.double().clamp(min=-0.9)
    expected = [
        getattr(math, name)(value) if name != "cbrt" else math.copysign(abs(value) ** (1 / 3), value)
        for value in at.tolist()
    ]
    torch.testing.assert_close(TORCH_EQUIVALENTS[name](at), torch.tensor(expected, dtype=torch.float64))


def test_rint_rounds_halves_to_even_and_round_away_from_zero() -> None:
    """The two roundings of C differ at halves."""
    assert TORCH_EQUIVALENTS["rint"](X).tolist() == [-2.0, -2.0, -0.0, 0.0, 0.0, 0.0, 2.0, 2.0]
    assert TORCH_EQUIVALENTS["round"](X).tolist() == [-3.0, -2.0, -1.0, 0.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
def test_every_stand_in_replaces_a_function_of_libdevice() -> None:
    """No name here is one that Triton does not have."""
    pytest.importorskip("triton")
    from triton.language.extra import libdevice

    assert all(hasattr(libdevice, name) for name in TORCH_EQUIVALENTS)
