"""NumPy arrays of constants: elements decide the trace, and each call gets its own arrays."""

import numpy as np
import torch

from tests.programs import program


@program(lambda: (torch.arange(4.0), 5))
def schedule(x, steps):
    """A schedule of a sampler's: steps counted down, numbers and positions read from arrays."""
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 20))
    times = np.linspace(0, 19, steps).astype(int)[::-1]
    for i, t in enumerate(times):
        before = kept[times[i + 1]] if i + 1 < len(times) else 1.0
        x = x * float(np.sqrt(before / kept[t])) + torch.full((4,), float(t))
    return x


@program(lambda: (torch.ones(4),))
def decides(x):
    """Elements that decide jumps, and arrays as lists."""
    a = np.array([1, 2, 3])
    if (a > 0).all():
        x = x + 1
    if a.sum() > 5 and a[0] == 1:
        x = x * int(a.max())
    return x, a.tolist(), a.argmax(), [int(v) for v in a], a.item(1), a.mean()


@program(lambda: (torch.ones(2),))
def fresh_in_each_call(x):
    """Each call gets arrays that share memory among themselves, as they lie in numpy."""
    a = np.arange(6.0)
    b = a.reshape(2, 3)
    c = b[:, ::-1]
    a[0] = 7
    return x + 1, a, b, c, a is b


@program(lambda: (torch.arange(4.0),))
def given_and_changed(x):
    """An array over a tensor's memory: both see what the other changes."""
    a = np.arange(4.0)
    v = a[1:]
    t = torch.from_numpy(a)
    t.mul_(2)
    a += 1
    v[0] = 9
    return t + x, a, v, a[2], t


@program(lambda: (torch.arange(4.0),), lambda: (-torch.arange(4.0),), breaks=1)
def given_before_a_break(x):
    """An array over a tensor's memory, and one of its own, that outlive a break."""
    a = np.arange(4.0)
    b = np.zeros(2)
    t = torch.from_numpy(a)
    t.mul_(3)
    if x.sum() > 0:
        x = x + 1
    return x, t, a, b


@program(lambda: (torch.arange(4.0),), lambda: (-torch.arange(4.0),), breaks=1)
def changed_before_a_break_inside(x):
    """What a call changes before it breaks is changed once."""

    def count(a):
        a[0] += 1
        return a * 2 if x.sum() > 0 else a

    a = np.zeros(2)
    return x + 1, a, count(a), count(a)


@program(lambda: (torch.ones(4, 8),))
def positions(x):
    """Sines and cosines written into every second column."""
    at = np.arange(4)[:, None]
    n = np.arange(8)[None]
    angle = at / np.power(10000, (2 * (n // 2)) / 8.0)
    angle[:, 0::2] = np.sin(angle[:, 0::2])
    angle[:, 1::2] = np.cos(angle[:, 1::2])
    return x + torch.from_numpy(angle).float()


@program(lambda: (torch.ones(4), np.ones(4)), lambda: (torch.ones(4), np.arange(4.0)))
def beside_arguments(x, a):
    """Arrays made of constants that meet an argument, also as where a result goes."""
    b = np.arange(4.0)
    b += a
    c = np.zeros(4)
    np.add(a, b, out=c)
    return x + torch.from_numpy(c), b, c


@program(lambda: (torch.ones(3),), breaks=1)
def raises_after_numpy(x):
    """An index that there is not: numpy's own words."""
    a = np.arange(3)
    y = x + 1
    return y + a[5]


@program(lambda: (torch.ones(3),), lambda: (-torch.ones(3),))
def in_a_branch(x):
    """An array of outside the branches of torch.cond."""
    a = np.array([1.0, 2.0])
    return torch.cond(
        x.sum() > 0, lambda x: x + torch.from_numpy(a).sum(), lambda x: x - torch.from_numpy(a).sum(), (x,)
    )


@program(lambda: (torch.ones(4),))
def reversed_copies(x):
    """What lies backwards is given to torch as a copy."""
    a = np.arange(4.0)[::-1]
    return x + torch.tensor(a.copy()), x + torch.from_numpy(np.ascontiguousarray(a)), a


@program(lambda: (torch.ones(2),))
def copied_as_it_lies(x):
    """torch.tensor lies as the array does."""
    a = np.arange(6.0).reshape(2, 3).T
    return x + 1, torch.tensor(a), torch.tensor(a[::2]), torch.tensor(a, dtype=torch.float32)


@program(lambda: (torch.ones(3),), breaks=1)
def copied_backwards(x):
    """torch.tensor refuses what lies backwards: torch's own words."""
    y = x + 1
    return y, torch.tensor(np.arange(3.0)[::-1])


def message(run):
    try:
        return run()
    except TypeError as error:
        return str(error)


@program(lambda: (torch.ones(3),))
def array_of_no_dimensions(x):
    """An array without dimensions has neither length nor items: the messages of numpy."""
    a = np.array(2.0)
    return x * a.item(), message(lambda: list(a)), message(lambda: len(a))


@program(lambda: (torch.arange(6.0),))
def containers_of_arrays(x):
    """Lists, tuples and slices of arrays, dtypes and numbers among the arguments of one call."""
    a, b = x.numpy(), np.arange(6.0, dtype=np.float32)
    stacked = np.concatenate([a, (a + b)[1:3], b[::2]], dtype=np.float64)
    return torch.from_numpy(stacked), np.stack((a, b), axis=1), np.split(a, [2, 4])
