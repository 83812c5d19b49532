"""Exercise tensor conditions that only guard errors: the graph continues, checks follow."""

import torch

from tests.programs import program


@program(lambda: (torch.rand(3) + 1,), lambda: (torch.tensor([1.0, -1.0]),), lambda: (torch.rand(3) + 1,))
def raises_on_values(x):
    """A check that holds, and one that does not."""
    if (x < 0).any():
        raise ValueError(f"negative: {x.min().item()}")
    return x.sqrt()


@program(lambda: (torch.rand(3) + 1,), lambda: (torch.tensor([1.0, -1.0]),))
def asserts_on_values(x):
    """An assertion about values."""
    assert (x > 0).all(), "not positive"
    assert torch.isfinite(x).all()
    return x.log()


def checked(x):
    if not (x == x).all():
        raise RuntimeError("not a number")
    return x * 2


@program(lambda: (torch.ones(3),), lambda: (torch.tensor([1.0, float("nan")]),))
def checked_in_helper(x):
    """The check is in a helper, and the caller handles the error."""
    try:
        return checked(x + 1)
    except RuntimeError as error:
        return str(error), x * 0 == 0


@program(lambda: (torch.ones(3), []), lambda: (-torch.ones(3), []))
def checked_after_effects(x, seen):
    """What happened before the error is seen."""
    seen.append(x.shape[0])
    if (x < 0).any():
        raise ValueError("negative")
    seen.append(2)
    return x + 1


@program(lambda: (torch.ones(3),), lambda: (-torch.ones(3),))
def checked_before_change(x):
    """An argument is changed in place after the check; where the check fails it is as it was."""
    y = x * 2
    if (y < 0).any():
        raise ValueError("negative")
    x.add_(1)
    return y


@program(lambda: (torch.ones(3),), lambda: (-torch.ones(3),))
def checked_after_change(x):
    """An argument was changed in place already; where the check fails, it was changed once."""
    x.add_(1)
    if (x < 1).any():
        raise ValueError("small")
    return x * 2


@program(lambda: (torch.ones(3, requires_grad=True),))
def checked_with_gradients(x):
    """Gradients through a checked graph."""
    y = x * 3
    if y.isnan().any():
        raise ValueError
    return y.sum()
