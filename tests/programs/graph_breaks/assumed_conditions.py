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


@program(
    lambda: (torch.ones(3), torch.tensor([1, 2])),
    lambda: (torch.ones(3), torch.tensor([1, 9])),
    lambda: (torch.ones(3), torch.tensor([-1, 2])),
    lambda: (torch.ones(3), torch.tensor([0, 0])),
)
def checked_numbers(x, lengths):
    """Numbers out of tensors are checked, and used as sizes."""
    count = int(lengths.sum())
    if int(lengths[0]) < 0 or count > 5:
        raise ValueError(f"wrong lengths: {lengths.tolist()}")
    assert lengths.float().mean().item() < 2.5, "long"
    return x.new_ones(count).cumsum(0), x * count


@program(
    lambda: (torch.ones(3, 2), torch.tensor(3)),
    lambda: (torch.ones(3, 2), torch.tensor(4)),
    lambda: (torch.ones(5, 2), torch.tensor(5)),
    lambda: (torch.ones(1, 2), torch.tensor(1)),
)
def checked_sizes(x, rows):
    """The expected size, which a tensor tells, is compared whole; its equality is a value too."""
    expected = (int(rows), 2)
    if x.size() != expected:
        raise RuntimeError(f"expected {expected}, got {list(x.size())}")
    return x.view(expected).sin(), expected == (3, 2), (int(rows), "a") == (5, "a")


@program(lambda: (torch.ones(3), torch.tensor(False)), lambda: (torch.ones(3), torch.tensor(True)))
def checked_flag(x, is_wrong):
    """A flag in a tensor decides whether an error is raised; random numbers were drawn before."""
    y = torch.nn.functional.dropout(x)
    try:
        if is_wrong.item():
            raise ValueError("wrong")
    except ValueError as error:
        return str(error), y * torch.rand(3)
    return y * torch.rand(3)


@program(
    lambda: (torch.tensor(3), torch.ones(2, device="meta")),
    lambda: (torch.tensor(9), torch.ones(2, device="meta")),
    lambda: (torch.tensor(4), torch.ones(2, device="meta")),
    breaks=2,
)
def number_beside_another_device(n, x):
    """On another device, kernels behind the check could fail for good: it is not assumed."""
    y = x + 1
    if n.item() > 5:
        raise ValueError("too large")
    return n + 1, (y * 2).shape
