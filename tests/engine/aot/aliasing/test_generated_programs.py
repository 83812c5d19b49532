"""Compiled generated programs that alias and mutate tensors behave as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest

from engine.torch_private.autograd import SavedTensor
from tests.engine.aot.aliasing.compare_programs import check
from tests.engine.aot.aliasing.generate_programs import Case, Kind, generate

BLOCK = 50
SOME = 15
IN_DEFAULT_RING = 50
ALL = 5000
FOUND_FAR_OUT = (
    860169,
    863189,
    820990,
    802313,
    790624,
    741501,
    701363,
    745880,
    740755,
    101463,
    101922,
    103728,
    311330,
    18031,
    22281,
    15747,
    12869,
    13245,
    18580,
    20468,
    17533,
    14002,
    201628,
    202955,
    203025,
    205395,
    205707,
    210120,
    206047,
    220712,
    220902,
    405087,
    500554,
    502842,
    600163,
    506478,
)
"""Cases beyond ``ALL`` that differed once."""

FOUND_WIDER: tuple[tuple[Kind, int], ...] = (
    ("plain", 493),
    ("plain", 683),
    ("plain", 852),
    ("plain", 1249),
    ("plain", 10540),
    ("plain", 10813),
    ("plain", 11101),
    ("plain", 20788),
    ("plain", 30981),
    ("plain", 31076),
    ("plain", 41622),
    ("plain", 42723),
    ("plain", 43618),
    ("plain", 43703),
    ("plain", 43786),
    ("plain", 45153),
    ("plain", 44096),
    ("plain", 50485),
    ("plain", 72421),
    ("plain", 80453),
    ("plain", 81506),
    ("plain", 82552),
    ("plain", 84929),
    ("plain", 300079),
    ("plain", 300483),
    ("plain", 301273),
    ("plain", 403583),
    ("plain", 794426),
    ("plain", 771461),
    ("plain", 772027),
    ("plain", 772586),
    ("wrapped", 391),
    ("wrapped", 14078),
    ("wrapped", 80258),
    ("wrapped", 300862),
    ("sizes", 14818),
    ("sizes", 9010),
    ("sizes", 9043),
    ("sizes", 12018),
    ("sizes", 70278),
    ("sizes", 70470),
    ("sizes", 70343),
    ("sizes", 70387),
)
"""Cases with the statements of ``alias_wider`` that differed once."""


def _hold(cases: Iterable[Case], backend: str, *, dynamic: bool | None = None) -> None:
    found = {case: check(case, backend, dynamic=dynamic) for case in cases}
    wrong = {case: lines for case, lines in found.items() if lines}
    told = [f"{case.text}\n" + "\n".join(lines[:6]) for case, lines in list(wrong.items())[:5]]
    assert not wrong, f"{len(wrong)} of {len(found)} cases differ: {[c.seed for c in wrong]}\n" + "\n\n".join(told)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(n, marks=[] if n < IN_DEFAULT_RING else [pytest.mark.slow], id=f"{n}-{n + BLOCK - 1}")
        for n in range(0, ALL, BLOCK)
    ],
)
def test_compiled_is_plain(first: int, backend: str) -> None:
    """Generated programs match eager in results, gradients, aliasing and errors.

    Compared for each block of cases: outputs, gradients, mutations, views, version counters, layouts and
    exceptions.
    """
    _hold(map(generate, range(first, first + BLOCK)), backend)


def _blocks(count: int, step: int) -> list[Any]:
    """The first one in the default ring."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n else [], id=f"{n}") for n in range(0, count, step)]


@pytest.mark.parametrize("first", _blocks(1300, BLOCK))
def test_tensor_subclasses(first: int) -> None:
    """Generated programs match eager when arguments are tensor subclasses around two tensors.

    Runs in training and in inference, and compares the inner tensors, too.
    """
    _hold((generate(n, "wrapped") for n in range(first, first + BLOCK)), "aot_eager")


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", _blocks(500, SOME))
def test_sizes_that_vary(first: int, dynamic: bool | None) -> None:
    """Generated programs match eager over three sizes of each argument.

    The sizes are symbols from the first or from the second call on.
    """
    _hold((generate(n, "sizes") for n in range(first, first + SOME)), "aot_eager", dynamic=dynamic)


@pytest.mark.parametrize("first", _blocks(ALL, SOME))
@pytest.mark.parametrize("kind", get_args(Kind))
def test_more_than_views_and_writes(kind: Kind, first: int) -> None:
    """Wider generated programs match eager for many ways to run the backward.

    The programs use autograd functions, checkpoints, hooks, autocast and complex views.
    """
    _hold((generate(n, kind, is_wider=True) for n in range(first, first + SOME)), "aot_eager")


@pytest.mark.parametrize(("kind", "seed"), FOUND_WIDER)
def test_wider_cases_found(kind: Kind, seed: int) -> None:
    """Wider generated programs that once failed match eager.

    They cover: version counters after manual or list mutations; manual views under ``no_grad``, which stay
    forbidden to write to; and operators that overwrite what they read.
    """
    assert not check(generate(seed, kind, is_wider=True), "aot_eager")


@pytest.mark.skipif(not hasattr(SavedTensor, "unpack"), reason="this torch unpacks all saved tensors or none")
def test_a_wider_case_of_what_is_not_read() -> None:
    """What was written to since, and only a result that is not used needs, is not asked for."""
    assert not check(generate(84976, is_wider=True), "aot_eager")


@pytest.mark.parametrize("seed", FOUND_FAR_OUT)
def test_cases_found_far_out(seed: int) -> None:
    """Generated programs from distant seeds that once failed match eager.

    They cover: unused operators without a kernel, empty views, and version counters that rise by one in one call
    and by two in the next.
    """
    assert not check(generate(seed), "aot_eager")


@pytest.mark.parametrize("seed", [1378, 100455])
def test_cases_with_subclasses_found_far_out(seed: int) -> None:
    """A ``no_grad`` view is invalid after a write through a detached tensor, as in eager.

    The view's base requires a gradient; the arguments are tensor subclasses.
    """
    assert not check(generate(seed, "wrapped"), "aot_eager")


@pytest.mark.parametrize("seed", [2391, 2559, 101463])
def test_cases_with_sizes_found_far_out(seed: int) -> None:
    """What is written to and overlaps itself, or what is read, is known of symbolic sizes too."""
    assert not check(generate(seed, "sizes"), "aot_eager", dynamic=True)


@pytest.mark.parametrize("dynamic", [None, True])
def test_views_from_where_a_tensor_starts(dynamic: bool | None) -> None:
    """Views whose sizes hang on where an argument starts in its storage, which varies."""
    assert not check(generate(742127, "sizes"), "aot_eager", dynamic=dynamic)


@pytest.mark.thorough
def test_cases_cover_what_they_claim() -> None:
    """The first generated cases cover every feature that they claim to cover.

    Among them: shared inputs, duplicates, regions without gradients, views by ``detach`` and ``data``, layouts,
    and exceptions.
    """
    texts = [generate(seed).text for seed in range(400)]
    wanted = (
        ".detach()",
        ".data",
        "no_grad",
        "as_strided",
        "out=",
        ".t_()",
        "view_as_real",
        "expand",
        "channels_last",
        "(0, 3)",
    )
    assert not [w for w in wanted if not any(w in t for t in texts)]
    texts = [generate(seed, is_wider=True).text for seed in range(400)]
    wanted = (
        ".apply(",
        "cached_call(nested",
        "autocast",
        "register_hook",
        ".conj()",
        "detach_",
        "unbind",
        "backward twice",
        "backward strided",
    )
    assert not [w for w in wanted if not any(w in t for t in texts)]


def test_a_case_is_always_the_same() -> None:
    """A seed and a kind name one program."""
    for kind in get_args(Kind):
        for is_wider in (False, True):
            assert generate(7, kind, is_wider=is_wider) == generate(7, kind, is_wider=is_wider)
            assert generate(7, kind, is_wider=is_wider) != generate(8, kind, is_wider=is_wider)
