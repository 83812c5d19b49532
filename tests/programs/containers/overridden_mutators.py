"""Mutate instances of container subclasses whose mutating methods are overridden.

Generated code that applies a mutation after the graph must never call the user's methods: the traced call
has already taken their effect into account.
"""

from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


class KeptList(list[Any]):
    """Ignores ``clear`` and doubles what ``append`` adds."""

    def clear(self) -> None:
        pass

    def append(self, item: Any) -> None:
        super().append(item * 2)

    def extend(self, items: Any) -> None:
        super().extend([9])

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, -value)


class KeptSet(set[Any]):
    """Ignores ``clear`` and ``update``."""

    def clear(self) -> None:
        pass

    def update(self, *others: Any) -> None:
        pass


class KeptDict(dict[Any, Any]):
    """Ignores ``clear`` and ``update``; adds one to each value."""

    def clear(self) -> None:
        pass

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value + 1)


LIST, SET, DICT = KeptList([1]), KeptSet({1}), KeptDict({1: 1})


@program(ones, ones, steady=False)  # the list grows with each call
def overridden_list(x: Any) -> Any:
    LIST.append(3)
    list.append(LIST, 4)
    LIST.clear()
    LIST.insert(0, 5)
    LIST[-1] = 6
    del LIST[1]
    return x + len(LIST), list(LIST)


@program(ones, ones)
def overridden_set(x: Any) -> Any:
    SET.add(len(SET) + 7)
    SET.discard(1)
    SET.clear()
    return x + len(SET), sorted(SET)


@program(ones, ones)
def overridden_dict(x: Any) -> Any:
    DICT[len(DICT) + 1] = 3
    DICT.pop(1, None)
    DICT.update({8: 8})
    return x + len(DICT), list(DICT.items())


@program(ones)
def overridden_and_created(x: Any) -> Any:
    items, unique, words = KeptList([1]), KeptSet({1}), KeptDict({1: 1})
    items.append(2)
    items.clear()
    unique.add(4)
    unique.clear()
    words[3] = 4
    words.clear()
    return x + 1, items, unique, words
