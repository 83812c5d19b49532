"""Save and restore state around a fallback to plain Python."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.frame_code.codegen_runtime.torch_contexts import _autocast, _set_autocast
from engine.torch_private.autograd import set_grad_enabled


class AssumptionError(Exception):
    """Raised if a tensor condition does not have the value that the graph assumed."""


def check_condition(tensor: torch.Tensor, truth: bool) -> None:
    """Raise unless the tensor has this boolean value."""
    if bool(tensor) is not truth:
        raise AssumptionError


@functools.singledispatch
def save_rng_state(generator: Any) -> Callable[[], None]:
    """Return a function that restores the present state of a random number generator."""
    return functools.partial(generator.setstate, generator.getstate())


@save_rng_state.register
def _save_numpy_state(generator: np.random.RandomState) -> Callable[[], None]:
    return functools.partial(generator.set_state, generator.get_state())


@save_rng_state.register
def _save_bit_generator(generator: np.random.Generator) -> Callable[[], None]:
    return functools.partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def save_requires_grad(tensor: torch.Tensor) -> Callable[[], None]:
    """Return a function that restores the present ``requires_grad`` of a leaf."""
    return functools.partial(_set_requires_grad, tensor, tensor.requires_grad)


def _set_requires_grad(tensor: torch.Tensor, requires_grad: bool) -> None:
    tensor.requires_grad_(requires_grad)


def save_grad_context() -> Callable[[], None]:
    """Return a function that restores the present grad mode and autocast state."""
    grad, autocast = torch.is_grad_enabled(), _autocast()

    def regain() -> None:
        set_grad_enabled(grad)
        _set_autocast(autocast)

    return regain
