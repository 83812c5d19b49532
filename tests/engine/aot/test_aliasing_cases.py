"""Generated programs that alias and mutate tensors in every way behave, compiled, as they do in plain PyTorch."""

from __future__ import annotations

import pytest

from tests.engine.aot.alias_cases import generate
from tests.engine.aot.alias_compare import check

BLOCK = 50
IN_DEFAULT_RING = 300
ALL = 5000
FOUND_FAR_OUT = (
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
)
"""Cases beyond ``ALL`` that differed once."""


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(n, marks=[] if n < IN_DEFAULT_RING else [pytest.mark.slow], id=f"{n}-{n + BLOCK - 1}")
        for n in range(0, ALL, BLOCK)
    ],
)
def test_compiled_is_plain(first: int, backend: str) -> None:
    """Outputs, gradients, mutations, views, version counters, layouts and exceptions of a block of cases are eager's."""
    # The two backends see different halves of the default ring, and each all of the cases.
    found = {seed: check(generate(seed), backend) for seed in range(first, first + BLOCK)}
    wrong = {seed: lines for seed, lines in found.items() if lines}
    told = [f"{generate(seed).text}\n" + "\n".join(lines[:6]) for seed, lines in list(wrong.items())[:5]]
    assert not wrong, f"{len(wrong)} of {BLOCK} cases differ: {list(wrong)}\n" + "\n\n".join(told)


@pytest.mark.parametrize("seed", FOUND_FAR_OUT)
def test_cases_found_far_out(seed: int) -> None:
    """Unread operators without a kernel, views of nothing, counters that are one in one call and two in the next are eager's."""
    assert not check(generate(seed), "aot_eager")


def test_cases_cover_what_they_claim() -> None:
    """Among the first cases are shared inputs, duplicates, islands without gradients, views by detach and data, layouts, and exceptions."""
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


def test_a_case_is_always_the_same() -> None:
    """A seed names one program."""
    assert generate(7) == generate(7)
    assert generate(7) != generate(8)
