"""Of the standard library: dates, text buffers, pickles of plain data."""

import datetime as dt
import io
import pickle
from typing import Any

import torch

from tests.programs import program


@program(lambda: (torch.ones(2),))
def dates(x: torch.Tensor) -> tuple[Any, ...]:
    """Arithmetic, comparison and text of dates and durations."""
    day = dt.date(2020, 2, 28) + dt.timedelta(days=2)
    time = dt.datetime(2020, 1, 1, 3, tzinfo=dt.timezone.utc)
    days = (day - dt.date(2020, 1, 1)).days
    return (
        x * day.day,
        day.isoformat(),
        day > dt.date(2020, 1, 1),
        days,
        f"{time:%H}",
        time.replace(hour=5),
        {day: 1}[day],
    )


@program(lambda: (torch.ones(2), dt.timedelta(seconds=90)), lambda: (torch.ones(2), dt.timedelta(seconds=30)))
def a_duration_from_outside(x: torch.Tensor, wait: dt.timedelta) -> tuple[Any, ...]:
    """Another duration is another result."""
    return x * wait.total_seconds(), wait


@program(lambda: (torch.ones(2),), breaks=1)
def text_buffers(x: torch.Tensor) -> tuple[Any, ...]:
    """Written, printed to, read from and returned."""
    text = io.StringIO()
    text.write("a\n")
    print("b", 3, sep="-", file=text)
    text.seek(0)
    lines = list(text)
    kept = io.StringIO("kept")
    kept.read(2)
    try:
        text.write(3)  # type: ignore[arg-type]
    except TypeError as error:
        refused = str(error)
    return x + len(lines), lines, text.getvalue(), refused, kept.tell(), kept.read()


@program(lambda: (torch.ones(2),), breaks=1)
def byte_buffers(x: torch.Tensor) -> tuple[Any, ...]:
    """As a context manager, which closes it."""
    with io.BytesIO(b"abc") as data:
        start = data.read(2)
    return x + len(start), start, data.closed


@program(lambda: (torch.ones(2),), breaks=4)
def pickles(x: torch.Tensor) -> tuple[Any, ...]:
    """A copy by way of bytes."""
    table = {"a": [1, (2, 3)], "b": {4}}
    copy = pickle.loads(pickle.dumps(table))  # noqa: S301 - its own
    copy["a"].append(5)
    return x + len(copy["a"]), table, copy, pickle.loads(pickle.dumps(True, 2))  # noqa: S301 - its own
