"""Lists and deques from outside the frame that grow from call to call."""

import random
from collections import deque

import torch

import engine
from tests.programs import program

BUFFER = deque(maxlen=4)
LOG = {"loss": [], "steps": deque()}
LISTS = [lambda n=n: (torch.ones(2), list(range(n))) for n in (2, 3, 0, 1, 5)]
DEQUES = [lambda n=n: (torch.ones(2), deque(range(n), maxlen=3)) for n in (1, 2, 3, 0, 3)]
STEPS = [lambda n=n: (torch.full((2,), float(n)), n) for n in range(7)]


@program(*STEPS)
def replay_buffer(x, n):
    """The length decides a branch; the deque is full from the fourth call on."""
    BUFFER.append((x, n))
    if len(BUFFER) < 3:
        return None
    return x * len(BUFFER)


@program(*STEPS)
def history(x, n):
    """A list and a deque are only appended to."""
    LOG["loss"].append(x.sum())
    LOG["steps"].extend([n, -n])
    return x / len(LOG["loss"])


@program(*LISTS)
def length_before_and_after(x, items):
    """The length counts what was appended; nothing else is read."""
    before = len(items), bool(items)
    items.append(x)
    return x * len(items), before, len(items) > 3, bool(items)


@program(*DEQUES)
def bounded(x, items):
    """A full deque drops its first items, before and after it is read."""
    items.append(x)
    items.extend([1, 2])
    found = len(items), bool(items)
    items.append(3)
    return x + 1, found, list(items), items[0]


@program(*[lambda n=n: (torch.ones(2), deque(range(n), maxlen=0)) for n in (0, 1)])
def never_holds_anything(x, items):
    """A deque of maximum length 0."""
    items.append(x)
    return x * 2, len(items), bool(items), list(items)


@program(*LISTS, breaks=1)
def read_after_a_break(x, items):
    """What was appended is in the list that the rest of the function reads."""
    items.append(x.sin())
    print(len(items))
    items.append(x.cos())
    return torch.stack([i for i in items if isinstance(i, torch.Tensor)]), items.pop(), len(items)


@program(*DEQUES)
def other_ends(x, items):
    """Methods that need the items."""
    items.append(x)
    items.appendleft(4)
    items.rotate(1)
    first = items.popleft()
    return x.cos(), first, items.maxlen, list(items), items.copy()


@program(*LISTS, breaks=1)
def copied(x, items):
    """Copies have the items of their moment, whatever happens to the original later."""
    first, second = list(items), items.copy()
    items.append(x)
    third = list(items)
    third.append(len(third))
    engine.disable(items.insert)(0, 7)
    return x.exp(), first, second, third, list(items), second is items


@program(*DEQUES, breaks=1)
def sampled(x, items):
    """A copy of a deque, which may be full, goes to Python unread."""
    items.append(x)
    chosen = random.sample(list(items), 1)
    items.append(5)
    return x * 2, chosen, list(items)


def long_values(kind):
    """Many numbers, with one whose value, type or sign differs from call to call."""
    values = [float(n) for n in range(4100)]
    values[0] = {"int": 0, "negative": -0.0, "nan": float("nan")}.get(kind, 0.0)
    return (torch.ones(2), values)


@program(*[lambda k=k: long_values(k) for k in ("", "", "int", "negative", "nan")], breaks=1)
def long_list_of_numbers(x, values):
    """All numbers of a long list are read, before and after a break; then the list grows."""
    y = x * sum(values)
    kinds = {str(v)[:2] for v in values}
    engine.graph_break()
    total = sum(values)
    values.append(1.0)
    return y + max(values[1:]), values.index(4000), sorted(kinds), total, str(values[0])
