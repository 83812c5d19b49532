"""Entries of the contract with torch: what is checked, and what stands for a missing name."""

from __future__ import annotations

import ast
import contextlib
import inspect
import pathlib
import types

import pytest
import torch

from engine.torch_private import contract, entries, entry_check_cache
from engine.torch_private.entries import Entry, Feature, Kind, MissingTorchName


def entry(path: str, kind: Kind = Kind.FUNCTION, **facts: object) -> Entry:
    """Return an entry for a test."""
    return Entry(path, kind, "Used in a test.", without="nothing", **facts)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the faults of a test out of the process."""
    monkeypatch.setattr(entries.FAULTS, "entries", {})
    monkeypatch.setattr(entries.FAULTS, "checked", {})
    monkeypatch.setattr(entries.FAULTS, "known", None)


def test_an_entry_is_torchs_own_object() -> None:
    """Where torch has a name as expected, the entry is that object."""
    for found in contract.ENTRIES:
        if found.is_expected_here:
            assert entries.load_entry(found) is entries.resolve(found.path), found.path
    assert entries.sentence() == ""


def test_declarations_for_the_type_checker_agree_with_the_entries() -> None:
    """For mypy, each module declares names from their paths, or ``__getattr__``."""
    for module in contract.MODULES:
        declared: dict[str, str] = {}
        block = next(n for n in ast.parse(inspect.getsource(module)).body if isinstance(n, ast.If))
        for node in block.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch"):
                declared.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                declared[node.target.id] = ""
        paths = {e.name: e.public_path for e in module.ENTRIES}
        declares_others = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in block.body)
        assert declares_others or declared.keys() == paths.keys()
        assert all(path in ("", paths[name]) for name, path in declared.items())


def test_each_entry_says_what_happens_without_it() -> None:
    """The entries are declared in groups, each with its effect; none stands outside a group."""
    assert [e.path for e in contract.ENTRIES if not e.without] == []


def test_names_are_declared_once() -> None:
    """No name has two entries."""
    paths = [e.path for e in contract.ENTRIES]
    assert len(paths) == len(set(paths))


def test_a_module_that_fails_to_import_is_named_with_its_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault says which error importing the module raised, instead of hiding it."""
    (tmp_path / "module_that_fails.py").write_text("raise OSError('libcuda is damaged')")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries.load_entry(entry("module_that_fails:name", Kind.FUNCTION, off=Feature.KERNELS))
    assert "raises OSError when it is imported: libcuda is damaged" in entries.why_off(Feature.KERNELS)


@pytest.mark.parametrize(
    ("path", "kind", "facts", "fault"),
    [
        ("torch:_no_such_name", Kind.FUNCTION, {}, "is not there"),
        ("torch._no_such_module:name", Kind.CLASS, {}, "is not there"),
        ("torch:Tensor", Kind.FUNCTION, {}, "is a class, not a function"),
        ("torch:float32", Kind.TABLE, {}, "is of type dtype, not a mapping"),
        ("torch:Tensor", Kind.EXCEPTION, {}, "is a class, not an exception class"),
        ("torch:compile", Kind.FUNCTION, {"calls": ("(a, b, c)",)}, "does not take (a, b, c)"),
        ("torch:compile", Kind.FUNCTION, {"calls": ("(a, nothing=)",)}, "does not take (a, nothing=)"),
        ("torch._C:_dispatch_keys", Kind.FUNCTION, {"calls": ("()",)}, "does not take ()"),
        ("torch:Tensor", Kind.CLASS, {"members": ("no_such_member",)}, "has no no_such_member"),
    ],
)
def test_a_difference_is_a_fault(path: str, kind: Kind, facts: dict[str, object], fault: str) -> None:
    """Presence, kind, signature and members are compared; the sentence names the entry."""
    placeholder = entries.load_entry(entry(path, kind, off=Feature.KERNELS, **facts))
    assert not entries.is_available(placeholder)
    assert fault in entries.why_off(Feature.KERNELS)
    assert entries.why_off(Feature.COMPILATION) == ""
    text = entries.sentence()
    assert fault in text
    assert text.endswith("graphs run in ATen, without kernels.")
    assert torch.__version__ in text


def test_absence_outside_of_the_known_versions_is_no_fault() -> None:
    """A name that only later, or only earlier, versions have turns nothing off."""
    for facts in ({"since": "99.0"}, {"until": "1.13"}):
        assert not entries.is_available(entries.load_entry(entry("torch:_no_such_name", **facts)))
    assert entries.sentence() == ""


def test_a_name_that_moved_is_found() -> None:
    """The paths of other versions are tried in order."""
    moved = entry("torch:_no_such_name", elsewhere=("torch._no_such_module:x", "torch:relu"))
    assert entries.load_entry(moved) is torch.relu


def test_a_missing_function_raises_at_its_use() -> None:
    """A placeholder can be registered, but neither called, tested nor iterated."""
    missing = entries.load_entry(entry("torch:_no_such_name"))
    table = {missing: 1, missing.attribute: 2}
    assert table[missing] == 1
    assert dir(missing) == []
    for use in (missing, missing.attribute, bool, list, len, lambda found: isinstance(1, found)):
        with pytest.raises(MissingTorchName, match=r"torch\._no_such_name .* is not there: nothing"):
            use(missing)


def test_a_missing_class_can_be_a_base() -> None:
    """Deriving from a placeholder works; making or testing for an instance raises."""
    missing = entries.load_entry(entry("torch:_NoSuchClass", Kind.CLASS))
    derived = types.new_class("Derived", (missing,))
    assert missing in derived.__mro__
    assert not isinstance(1, derived)
    for use in (missing, derived, lambda: isinstance(1, missing), missing.method):
        with pytest.raises(MissingTorchName):
            use()


def test_a_missing_exception_can_be_caught() -> None:
    """An ``except`` clause with a placeholder matches nothing."""
    missing = entries.load_entry(entry("torch:_NoSuchError", Kind.EXCEPTION))
    with pytest.raises(ValueError, match="its own"), contextlib.suppress(missing):
        raise ValueError("its own")


def test_results_of_the_check_are_stored_by_version(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A second process reads the results; another torch or a damaged file has none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert entry_check_cache.read() is None
    entry_check_cache.write({"torch:_sync": "is not there"})
    assert entry_check_cache.read() == {"torch:_sync": "is not there"}
    (file,) = (tmp_path / "compile-explorer" / "torch_contract").iterdir()
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "99.0")
        assert entry_check_cache.read() is None
    for damaged in ("", "entries checked: 2\ntorch:_sync\t", "entries checked: 1\ntorch:_sync"):
        file.write_text(damaged, encoding="utf-8")
        assert entry_check_cache.read() is None


def test_stored_results_replace_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stored results an entry is not inspected again."""
    monkeypatch.setattr(entries.FAULTS, "known", {"torch:relu": "is of another kind"})
    monkeypatch.setattr(entries, "check", lambda *_: pytest.fail("it was inspected"))
    assert not entries.is_available(entries.load_entry(entry("torch:relu")))
