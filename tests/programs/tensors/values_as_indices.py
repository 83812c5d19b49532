"""Numbers in tensors as indices of Python containers, and weak references to tensors."""

import weakref

import torch

from tests.programs import program

_TWO = (lambda: (torch.randn(3), torch.tensor(1)), lambda: (torch.randn(3), torch.tensor(1)))


@program(*_TWO)
def of_a_list(x, i):
    """An argument selects an item; its value is guarded."""
    items = [x, x + 1, x + 2]
    return items[i] * 2, (1, 2, 3)[i]


@program(*_TWO, lambda: (torch.randn(3), torch.tensor(2)), breaks=1)
def that_changes(x, i):
    """From the second value on, Python selects the item."""
    return [x, x + 1, x + 2][i] * 2


@program(lambda: (torch.randn(3), torch.tensor([[1]])), lambda: (torch.randn(3), torch.tensor([[0]])), breaks=1)
def of_more_dimensions(x, i):
    """A tensor of one integer has an index."""
    return [x, x + 1][i]


@program(lambda: (torch.randn(3), torch.tensor(1)), breaks=1)
def modified_before(x, i):
    """The value is the one after the write."""
    i.sub_(1)
    return [x, x + 1][i]


@program(lambda: (torch.randn(3), torch.tensor(1.0)), lambda: (torch.randn(3), torch.tensor(True)), breaks=1)
def of_another_type(x, i):
    """The error for a float is eager's; a bool is an index."""
    return [x, x + 1][i]


@program(lambda: (torch.randn(3), torch.tensor(7)), breaks=1)
def out_of_range(x, i):
    """The error is eager's."""
    return [x, x + 1][i]


@program(lambda: (torch.tensor(3), torch.randn(4)))
def negated_condition(n, x):
    """The negation of a condition on a number read from a tensor."""
    large = n.item() > 2
    return x + 1, torch.sym_not(large), int(large)


@program(lambda: (torch.randn(3), torch.tensor(0)), breaks=1)
def modified_through_data(x, i):
    """The value is the one after a write that no version counts."""
    i.data.add_(1)
    return [x, x + 1][i]


@program(lambda: (torch.randn(3), *(lambda i: (i, i.view(1)))(torch.tensor(0))), breaks=1)
def modified_through_an_alias(x, i, j):
    """The value is the one after a write to another input over the same memory."""
    j.add_(1)
    return [x, x + 1][i]


with torch.inference_mode():
    INDEX = torch.tensor(1)


@program(lambda: (torch.randn(3),))
def inference_tensor(x):
    """A tensor without a version."""
    return [x, x + 1][INDEX]


@program(lambda: (torch.randn(3),))
def weak_reference_to_an_intermediate(x):
    """It lives as long as the function holds it."""
    y = x + 1
    reference = weakref.ref(y)
    return reference() * 2, reference() is y


@program(lambda: (torch.randn(3),), breaks=1)
def weak_reference_to_a_dead_intermediate(x):
    """Python decides when it is freed."""
    y = x + 1
    reference = weakref.ref(y)
    del y
    return x * 2, reference() is None
