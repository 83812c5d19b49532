"""``pathlib`` objects: immutable values that compiled code reads, compares and makes."""

import copy
import datetime as dt
import os
import pathlib

import torch

from tests.programs import program

ROOT = pathlib.Path("/x")


@program(
    lambda: (torch.randn(3), pathlib.Path("/a/b.txt")),
    lambda: (torch.randn(3), pathlib.Path("/a/c.txt")),
    lambda: (torch.randn(3), pathlib.PurePosixPath("/a/c.txt")),
)
def parts_of_an_argument(x, path):
    """A path with another name or of another class is compiled again."""
    names = path.name, path.parent, path.suffix, path.parts, path.stem, path.suffixes
    made = path / "c", "x" / path, path.with_suffix(".q")
    asked = path.is_absolute(), path == pathlib.Path("/a/c.txt"), path in {ROOT: 1}
    return x + len(str(path)), names, made, asked, f"{path} {path!r}"


@program(lambda: (torch.randn(3),))
def made_inside(x):
    """Paths made by their constructors and operators."""
    path = pathlib.Path("a") / "b"
    other = pathlib.PurePosixPath("x", "y"), pathlib.Path(path, "c"), pathlib.Path(), path.joinpath("d", "e")
    return x + 1, path, other, os.fspath(path), path < pathlib.Path("z"), path.relative_to("a")


@program(lambda: (torch.randn(3), pathlib.Path("/a/b.txt"), dt.date(2020, 1, 2)))
def identity_and_copies(x, path, date):
    """A path stays the object it is; a copy is another object."""
    one, two, day = copy.copy(path), copy.deepcopy(path), copy.copy(date)
    same = path is path, one is path, one is two, day is date, path / "" is path
    return x + 1, path, {path: 1}, [path, path], one, two, same, copy.deepcopy([path, (path, 1)])


@program(lambda: (torch.randn(3), pathlib.Path("/usr")), breaks=2)
def file_system(x, path):
    """What reads the file system runs in Python."""
    y = x + 1
    return y * 2, path.exists(), path.is_dir()


@program(
    lambda: (torch.randn(3), pathlib.Path("/a/b.txt")), lambda: (torch.randn(3), pathlib.Path("/q/b.txt")), breaks=1
)
def error(x, path):
    """The error is the one of pathlib."""
    return x, path.relative_to("/q")
