"""Exercise graph breaks in every position: stack, loops, helpers, branches, ``with``."""

import contextlib
import operator

import torch

import engine
from tests.programs import program


@program(lambda: (torch.randn(3),), lambda: (-torch.randn(3).abs(),), breaks=1)
def if_on_tensor(x):
    """A branch on data runs the side that the data chooses."""
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


@program(lambda: (torch.randn(3).abs(),), lambda: (-torch.randn(3).abs(),), breaks=2)
def if_on_tensor_in_sequence(x):
    """Two branches on data one after another."""
    if x.sum() > 0:
        x = x - 5
    else:
        x = x + 5
    if x.mean() > 0:
        x = x * 2
    return x


@program(lambda: (torch.full((2,), 40.0),), breaks=1)
def while_on_tensor(x):
    """A loop that ends when the data says so."""
    steps = 0
    while x.sum() > 10:
        x = x / 2
        steps += 1
    return x, steps


@program(lambda: (torch.randn(3),), breaks=1)
def break_between(x):
    """An explicit break with live locals of many kinds."""
    a = [x, x + 1]
    b = {"k": (a, 3)}
    name = "text"
    engine.graph_break()
    return a[1] * b["k"][1], b["k"][0] is a, name


@program(lambda: (torch.randn(3),), breaks=1)
def break_with_stack(x):
    """A break while values wait on the stack."""
    return torch.add(x + 1, operator.truth((x * 2).sum() > -1e9)) + max(1, 2)


def noisy(x):
    y = x.sin()
    print("inside", tuple(y.shape), operator.truth(y.sum() > -100))
    return y.cos()


@program(lambda: (torch.randn(3),), breaks=2)
def break_in_helper(x):
    """A helper that breaks is compiled as a frame of its own."""
    y = x + 1
    z = noisy(y)
    return z * 2


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_comprehension(x):
    """A break inside a comprehension."""
    return [operator.truth((x * i).sum() > -1e9) for i in range(3)], x + 1


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_no_grad(x):
    """A break in a with block: the mode is entered again for the rest and left at the end."""
    with torch.no_grad():
        y = x * 2
        engine.graph_break()
        z = y + 1
        inside = torch.is_grad_enabled()
    return z, inside, torch.is_grad_enabled()


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_try(x):
    """A break in a try block whose handler is needed later."""
    try:
        y = x * 2
        print("in try", operator.truth(y[0] < 1e9))
        raise ValueError("caught")
    except ValueError as error:
        return x + len(str(error))
    finally:
        print("finally")


@program(lambda: (torch.randn(3),), breaks=2)
def break_in_for(x):
    """A break in a loop over an iterator that is half consumed."""
    names = iter(["a", "b", "c"])
    next(names)
    for name in names:
        print(name, operator.truth(x.sum() > -1e9))
        x = x + 1
    return x


@program(lambda: (torch.randn(3),), breaks=2)
def break_before_mutation(x):
    """In-place changes happen on the right side of the break."""
    x.add_(1)
    print("after add", operator.truth(x.sum() > -1e9))
    x.mul_(2)
    return x


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_closure(x):
    """A break while an inner function shares a cell."""
    total = x * 0

    def add(y):
        nonlocal total
        total = total + y

    add(x)
    engine.graph_break()
    add(x * 2)
    return total


@contextlib.contextmanager
def labelled(name):
    print("enter", name)
    yield name.upper()
    print("leave", name)


@program(lambda: (torch.randn(3),), breaks=1)
def generator_context_manager(x):
    """A context manager made from a generator function."""
    with labelled("block") as upper:
        y = x * len(upper)
    return y


@program(lambda: (torch.randn(3),), breaks=1)
def sorting_by_data(x):
    """Python's sorted over tensors compares data."""
    return sorted([float(v) for v in x])


@program(lambda: (torch.randn(3),))
def numpy_round_trip(x):
    """Out to numpy and back."""
    array = x.detach().numpy()
    return torch.from_numpy(array * 2) + 1


@program(lambda: (torch.randn(3),), breaks=1)
def unsupported_builtin(x):
    """Evaluating text is left to Python."""
    k = eval("1 + 2")
    return x * k


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),), breaks=1)
def truth_of_tensor(x):
    """not, and, or on a tensor ask for its value."""
    flag = (x > 100).any()
    return x if not flag else -x


@program(lambda: (torch.randn(6),))
def data_dependent_shape(x):
    """nonzero makes a shape that only data knows."""
    indices = (x > 0).nonzero()
    return indices.shape[1], indices.float().sum()


@engine.disable
def left_to_python(x):
    return x * 3


@program(lambda: (torch.randn(3),), breaks=1)
def disabled_helper(x):
    """A helper marked by engine.disable runs as Python."""
    return left_to_python(x + 1) - 1


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_nested_calls(x):
    """Three calls deep, the innermost breaks; every frame goes on."""

    def inner(y):
        y = y + 1
        engine.graph_break()
        return y * 2

    def middle(y):
        return inner(y - 1) + y

    return middle(x) * 3


@program(lambda: (torch.randn(3, 3),), breaks=1)
def break_in_autocast(x):
    """After a break under autocast, code keeps the lower precision and Python exits it."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        engine.graph_break()
        z = y @ x
    return z, x @ x, torch.is_autocast_enabled("cpu")


class Timer:
    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, kind, error, traceback):
        self.entered = False
        return kind is KeyError


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_own_context(x):
    """A break inside a context manager of the user's, which then swallows an exception."""
    timer = Timer()
    with timer as entered:
        y = x * 2
        engine.graph_break()
        y = y + 1
        {}["missing"]
    return y, entered is timer, timer.entered


@program(lambda: (torch.randn(3),), breaks=1)
def break_in_handler(x):
    """A break while an exception is handled: it is still the one being handled afterwards."""
    y = x + 1
    try:
        {}["missing"]
    except KeyError as error:
        y = y * 2
        engine.graph_break()
        try:
            raise ValueError("second")
        except ValueError as second:
            same = second.__context__ is error
        y = y + 1
    return y, same


@program(lambda: (torch.randn(3), torch.tensor([1])), lambda: (torch.randn(3), torch.tensor([9])))
def caught_from_the_graph(x, where):
    """An operator that raises on the values it meets, inside a try."""
    y = x + 1
    try:
        z = torch.index_select(y, 0, where)
    except IndexError:
        z = y * 2
    return z + 1
