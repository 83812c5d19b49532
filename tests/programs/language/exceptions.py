"""Exceptions: raised to the caller, caught inside, with else and finally, assertions."""

import torch

from tests.programs import program


class TooWide(ValueError):
    """A user's own exception."""

    def __init__(self, width):
        super().__init__(f"{width} is too wide")
        self.width = width


@program(lambda: (torch.randn(3), 2), lambda: (torch.randn(3), 20), breaks=1)
def raises_own(x, width):
    """A user's exception with its message."""
    if width > 10:
        raise TooWide(width)
    return x * width


@program(lambda: (torch.randn(3), torch.randn(4)), breaks=1)
def shape_mismatch(x, y):
    """PyTorch's own error, as plain PyTorch words it."""
    return x + y


@program(lambda: (torch.randn(3, 4), torch.randn(3, 4)), breaks=1)
def matmul_mismatch(x, y):
    """A product that does not fit."""
    z = x + 1
    return z @ y


@program(lambda: (torch.randn(3),))
def caught_inside(x):
    """An exception raised by a helper and caught."""
    try:
        raise TooWide(3)
    except TooWide as error:
        return x * error.width, str(error)


def lookup(table, key):
    try:
        return table[key]
    except KeyError:
        return None
    else:
        return 1
    finally:
        table["asked"] = key


@program(lambda: (torch.randn(3),))
def try_else_finally(x):
    """Handlers, else and finally in a helper."""
    table = {"a": 2}
    found, missing = lookup(table, "a"), lookup(table, "b")
    return x * found, missing, table


@program(lambda: (torch.randn(3),), breaks=1)
def raise_from(x):
    """An exception with a cause reaches the caller."""
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no such setting") from error
    return x


@program(lambda: (torch.randn(3),), lambda: (torch.randn(4),), breaks=1)
def assertion(x):
    """A failing assertion on a shape reaches the caller."""
    assert x.shape[0] == 3, f"expected 3, got {x.shape[0]}"
    return x + 1


@program(lambda: (torch.randn(3),))
def nested_handlers(x):
    """An exception that passes one handler and is caught by the next, then raised again."""
    trail = []
    try:
        try:
            trail.append("inner")
            raise KeyError("k")
        except IndexError:
            trail.append("wrong")
        finally:
            trail.append("finally")
    except LookupError as error:
        trail.append(type(error).__name__)
    return x, trail


@program(lambda: (torch.randn(3), [1, 2]), breaks=1)
def index_error(x, items):
    """A builtin exception from plain Python."""
    return x * items[5]


@program(lambda: (torch.randn(3),), breaks=1)
def type_error(x):
    """A call with wrong arguments."""

    def needs_two(a, b):
        return a + b

    return needs_two(x)


@program(lambda: (torch.randn(3),), breaks=1)
def attribute_error(x):
    """An attribute that is not there."""
    return x.no_such_method()


@program(lambda: (torch.randn(3), 0), breaks=1)
def zero_division(x, n):
    """Division of plain numbers by zero."""
    return x * (1 / n)


@program(lambda: (torch.randn(3),), breaks=2)
def raises_after_mutation(x):
    """What happened before the exception stays."""
    x.add_(1)
    print("added")
    raise RuntimeError("stop")


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3) * float("nan"),))
def raises_on_data(x):
    """An exception that depends on data."""
    if torch.isnan(x).any():
        raise ValueError("found NaN")
    return x * 2


@program(lambda: (torch.randn(3),), breaks=1)
def unbound_local(x):
    """A name read before it is assigned."""
    if x.shape[0] == 99:
        y = x
    return y


@program(
    lambda: (torch.randn(3, 4), torch.tensor([1, 2, 3])),
    lambda: (torch.randn(3, 4), torch.tensor([1, 2, 9])),
    lambda: (torch.randn(3, 4), torch.tensor([0, 0, 0])),
    steady=False,
)
class NormThenLookup(torch.nn.Module):
    """Normalization statistics update once if a later operation raises into a handler."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.table = torch.nn.Embedding(5, 4)
        self.said = ()

    def forward(self, x, index):
        y = x
        try:
            y = self.norm(x)
            return y + self.table(index), self.norm.running_mean * 1
        except IndexError as error:
            self.said = (*self.said, str(error))
            return y, self.norm.running_mean * 1
        finally:
            self.said = (*self.said, "left")


@program(
    lambda: (torch.zeros(5), torch.tensor([1, 2]), []),
    lambda: (torch.zeros(5), torch.tensor([1, 7]), []),
)
def change_then_raise(x, index, log):
    """An argument mutated before the graph raises is mutated once when the handler runs."""
    try:
        x.add_(1)
        y = torch.ones(5)[index]
        x.mul_(y.sum())
    except IndexError:
        log.append(x.sum())
    finally:
        log.append("left")
    return x * 2, log


@program(lambda: (torch.zeros(3, 1).expand(3, 4),), lambda: (torch.zeros(3, 4),))
def change_what_shares_places(x):
    """Writing to overlapping elements fails in the running graph and reaches the handler."""
    try:
        x.add_(1)
    except RuntimeError as error:
        return str(error)
    return x * 2
