"""``sys._getframe``: the frames that a program sees are its own."""

import sys

import torch

from tests.programs import program


def _name_of_caller(depth):
    return sys._getframe(depth).f_code.co_name


def _caller_of_caller(depth):
    return _name_of_caller(depth)


@program(lambda: (torch.randn(3),), breaks=1)
def own_frame(x):
    """The frame of the function itself."""
    frame = sys._getframe()
    return x + 1, frame.f_code.co_name, frame.f_globals["__name__"] == __name__


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1)
def frames_of_callers(x):
    """A function asks who called it, and who called that."""
    y = x + 1
    names = _name_of_caller(0), _name_of_caller(1), _caller_of_caller(1), _caller_of_caller(2)
    return y, names, sys._getframe(1).f_code.co_name == "observe_call"


@program(lambda: (torch.randn(3),), breaks=1)
def too_deep(x):
    """The error is Python's."""
    return x + 1, sys._getframe(10**6)
