"""if, for, while, comprehensions and unpacking, on values known while tracing."""

import torch

from tests.programs import program


@program(lambda: (torch.randn(3), 2), lambda: (torch.randn(3), 5))
def if_on_integer(x, n):
    """A branch on an argument is decided while tracing and guarded."""
    if n > 3:
        return x * n
    return x - n


@program(lambda: (torch.randn(3), "add"), lambda: (torch.randn(3), "sub"))
def if_elif_on_string(x, mode):
    """A chain of comparisons on text."""
    if mode == "add":
        y = x + 1
    elif mode == "sub":
        y = x - 1
    else:
        y = x
    return y


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3, 4),))
def if_on_rank(x):
    """A branch on the number of dimensions."""
    if x.dim() == 1:
        return x.unsqueeze(0)
    return x.sum(0)


@program(lambda: (torch.randn(3), None), lambda: (torch.randn(3), torch.randn(3)))
def if_is_none(x, mask):
    """An optional tensor."""
    if mask is None:
        return x
    return x * mask


@program(lambda: (torch.randn(3), 4))
def for_over_range(x, n):
    """A loop over a range unrolls."""
    for i in range(n):
        x = x + i
    return x


@program(lambda: (torch.randn(3),))
def nested_loops(x):
    """Loops inside loops, with break, continue and else."""
    total = x * 0
    for i in range(4):
        if i == 1:
            continue
        for j in range(i, 10, 2):
            if j > 6:
                break
            total = total + x * j
        else:
            total = total - 1
    return total


@program(lambda: (torch.randn(3), 5))
def while_on_integer(x, n):
    """A while loop on a plain number."""
    while n > 0:
        x = x * 0.5 + n
        n -= 2
    return x, n


@program(lambda: (torch.randn(4, 3),))
def for_over_tensor(x):
    """Iterating over the rows of a tensor."""
    total = torch.zeros(3)
    for row in x:
        total = total + row.sin()
    return total


@program(lambda: ([torch.randn(2), torch.randn(2), torch.randn(2)],))
def for_over_list_of_tensors(xs):
    """Iterating over a list argument, with enumerate and zip."""
    total = xs[0] * 0
    for i, x in enumerate(xs):
        total = total + i * x
    for a, b in zip(xs, xs[1:]):
        total = total + a * b
    return total


@program(lambda: (torch.randn(3),))
def comprehensions(x):
    """List, dict, set comprehensions and a generator expression."""
    squares = [x**i for i in range(3)]
    named = {f"p{i}": s for i, s in enumerate(squares) if i != 1}
    sizes = {s.shape[0] for s in squares}
    return squares, named, sizes, sum(s for s in squares)


@program(lambda: (torch.randn(3),))
def nested_comprehension(x):
    """A comprehension in a comprehension that reads the outer scope."""
    k = 2
    return torch.stack([torch.stack([x[i] * k + j for i in range(3)]) for j in range(2)])


@program(lambda: (torch.randn(3), torch.randn(3)))
def conditional_expression(x, y):
    """Conditional expressions and short-circuit operators on plain values."""
    n = x.shape[0]
    z = x if n > 2 else y
    w = (n and y) if not (n == 4 or n == 5) else x
    return z + w, 1 < n <= 3, n == 3 and "three"


@program(lambda: ((torch.randn(2), (torch.randn(3), torch.randn(4))),))
def nested_unpacking(pair):
    """Unpacking nested tuples, with a starred name."""
    a, (b, c) = pair
    first, *rest = [a, b, c]
    *init, last = rest
    return first, rest, init, last


@program(lambda: (torch.randn(3),))
def walrus(x):
    """Assignment expressions."""
    if (n := x.numel()) > 2:
        x = x * n
    return [y := x + 1, y * 2]


@program(lambda: (torch.randn(3), 3), lambda: (torch.randn(3), "text"), lambda: (torch.randn(3), (1, 2)))
def match_statement(x, value):
    """match over literals, types and sequences."""
    match value:
        case 3:
            return x * 3
        case str():
            return x * len(value)
        case (a, b):
            return x * a + b
        case _:
            return x


@program(lambda: (torch.randn(3),))
def sorted_and_reversed(x):
    """Builtins over plain values: sorted, reversed, any, all, map, filter, min with a key."""
    order = sorted([3, 1, 2], key=lambda v: -v)
    back = list(reversed(order))
    return (
        x * order[0] + back[0],
        any(v > 2 for v in order),
        all(order),
        list(map(lambda v: v + 1, back)),
        list(filter(lambda v: v > 1, back)),
        min(order, key=abs),
        sum(back),
    )


@program(lambda: (torch.randn(3),))
def deep_loop(x):
    """Two hundred operations from one line."""
    for _ in range(200):
        x = x * 0.99 + 0.01
    return x


@program(lambda: (torch.randn(3), 0), lambda: (torch.randn(3), 1), lambda: (torch.randn(3), 2))
def early_returns(x, n):
    """Several returns of several kinds."""
    if n == 0:
        return None
    if n == 1:
        return x, x + 1
    return {"x": x}


@program(lambda: (torch.randn(3),))
def chained_assignment(x):
    """Chained and swapped assignment, del."""
    a = b = x + 1
    a, b = b * 2, a * 3
    c = a
    del a
    return b, c
