"""Sessions saved before schema version 2, with other field names, load with equal facts.

``session_schema_1.json`` was recorded by the code of commit 6f4341d and shortened; facts that no CPU records
(autotuning, smaller blocks) were filled in with that code's record classes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from engine.records.base import SCHEMA_VERSION, Record, RecordError, to_jsonable
from engine.records.migrate import RENAMED_FIELDS, RENAMED_VALUES, migrate_session
from engine.records.session import Session
from engine.records.text_views import STAGES
from notebook_ext.views.explorer_parts import all_keys, overview, part

ROOT = Path(__file__).parents[3]
OLD_FILE = Path(__file__).with_name("session_schema_1.json")


@pytest.fixture(scope="module")
def old() -> dict[str, Any]:
    """The JSON values of the version-1 session."""
    return json.loads(OLD_FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def session() -> Session:
    """The version-1 session, loaded."""
    return Session.load(OLD_FILE)


def compared(record: Any, old: Any) -> Iterator[tuple[type[Record], str, Any, Any]]:
    """Yield class, old name, value and old value for each field of a record, recursively.

    The old value is the JSON value, with its new name if it is a name.
    """
    if isinstance(record, Record):
        old_names = {new: name for name, new in RENAMED_FIELDS.get(type(record), {}).items()}
        found = {old_names.get(field.name, field.name): getattr(record, field.name) for field in fields(record)}
        defaults = {field.name: field.default for field in fields(record)}
        added = {name for name in found if name not in old}
        assert set(found) - added == set(old), type(record).__name__
        assert all(found[name] == defaults[name] for name in added), type(record).__name__
        for name, value in found.items():
            if name in added:
                continue
            new_values = RENAMED_VALUES.get((type(record), name), {})
            old_value = new_values.get(old[name], old[name]) if new_values else old[name]
            yield type(record), name, value, old_value
            yield from compared(value, old_value)
    elif isinstance(record, tuple):
        assert len(record) == len(old)
        for value, old_value in zip(record, old, strict=True):
            yield from compared(value, old_value)
    elif isinstance(record, dict):
        assert set(record) == set(old)
        for key, value in record.items():
            yield from compared(value, old[key])
    else:
        assert record == old


def test_every_field_carries_its_old_value(session: Session, old: dict[str, Any]) -> None:
    """Each old value is found under its field's new name, and each renamed field is covered.

    The file holds every renamed field with a value other than its default.
    """
    assert old["version"] == 1
    data = session.to_data()
    assert data.version == SCHEMA_VERSION == 2
    seen = set()
    for cls, name, value, old_value in compared(data, old | {"version": 2}):
        if name in RENAMED_FIELDS.get(cls, {}):
            default = next(f.default for f in fields(cls) if f.name == RENAMED_FIELDS[cls][name])
            if default is MISSING or value != default:
                seen.add((cls, name))
        if not isinstance(value, (Record, tuple, dict)):
            assert value == old_value
    assert seen == {(cls, name) for cls, names in RENAMED_FIELDS.items() for name in names}


@pytest.mark.parametrize("cls", RENAMED_FIELDS, ids=lambda c: c.__name__)
def test_each_new_name_is_a_field_and_no_old_name_is(cls: type[Record]) -> None:
    """The table names fields that exist, once each, and none that still has its old name."""
    names = {field.name for field in fields(cls)}
    new = list(RENAMED_FIELDS[cls].values())
    assert set(new) <= names
    assert len(new) == len(set(new))
    assert not names & set(RENAMED_FIELDS[cls])


def test_facts_of_each_stage(session: Session) -> None:
    """Migrated records state the recorded facts of each stage.

    Checked are breaks, guard failures, steps, training, kernels, symbols and skipped frames.
    """
    assert [c.id for c in session.compilations] == ["0/0", "0/1", "2/0", "9/1"]
    first, second, training, observed = session.compilations
    assert first.trace is not None
    assert first.trace.steps
    assert first.trace.breaks[0].context == "print('norm')"
    assert first.trace.breaks[0].hints
    assert second.trace is not None
    assert second.trace.symbols[-1].sources == ("L['x'].shape[0]", "L['w'].shape[0]")
    assert [c.outcome for c in session.calls] == ["compiled", "compiled", "hit", "compiled"]
    failure = session.calls[1].guard_failures[0]
    assert (failure.entry, failure.source, failure.expected, failure.actual) == ("0/0", "L['x']", "[2, 4]", "[5, 4]")
    assert training.aot is not None
    assert training.aot.partition is not None
    assert training.aot.partition.saved_input_bytes == 32
    assert training.backward_lowering is not None
    assert {k.id for k in training.kernels} == {"k0", "b0"}
    assert all(k.launch_args for k in training.kernels)
    assert training.lowering is not None
    assert [p.name for p in training.lowering.passes] == [
        "decompose",
        "fuse_attention",
        "pad_matmul",
        "bool_to_bias_mask",
    ]
    assert [p.name for g in first.graphs for p in g.passes] == ["eliminate_dead_code"]
    assert observed.compiler == "torch"
    assert observed.observed_symbols[0].hint == "5"
    assert {e.kind for s in observed.observed_symbols for e in s.events} == {"guard", "specialized"}
    assert [s.name for s in session.skipped] == ["rows"]
    assert session.backwards[0].symbolic_sizes == 3


def test_views_open(session: Session) -> None:
    """The overview, every explorer part and every stage's text work on migrated records."""
    assert [e["id"] for e in overview(session)["entries"]] == ["0/0", "0/1", "2/0", "9/1"]
    parts = {key: json.dumps(part(session, key)) for key in all_keys(session)}
    assert "print('norm')" in parts["breaks"]
    assert "size 5 in dimension 0" in parts["recompiles"]
    assert "saved_input" not in OLD_FILE.read_text(encoding="utf-8")
    for stage in set(STAGES) - {"memory"}:  # version 1 recorded no memory
        assert "Nothing was recorded" not in str(getattr(session, stage))


def test_migrated_session_is_saved_in_the_new_version(session: Session, tmp_path: Path) -> None:
    """What is saved again is a version-2 file, and loads as the same records."""
    path = session.save(tmp_path / "new.json")
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == 2
    assert Session.load(path).to_data() == session.to_data()


def test_migration_leaves_its_input_unchanged(old: dict[str, Any], session: Session) -> None:
    """Migration leaves its input unchanged and returns what the loaded session would save.

    Fields added since then are left out.
    """
    before = json.dumps(old)
    migrated = migrate_session(old)
    assert migrated == without_added(to_jsonable(session.to_data()), migrated)
    assert json.dumps(old) == before


def without_added(new: Any, known: Any) -> Any:
    """``new`` without the entries of its dicts that ``known`` does not have."""
    if isinstance(new, dict):
        return {key: without_added(value, known[key]) for key, value in new.items() if key in known}
    if isinstance(new, list):
        return [without_added(value, other) for value, other in zip(new, known, strict=True)]
    return new


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p | {"compilations": 3}, "compilations: expected a list"),
        (
            lambda p: p | {"compilations": [p["compilations"][0] | {"passages": [4]}]},
            "call_values[0]: expected an object",
        ),
        (lambda p: p | {"calls": [p["calls"][0] | {"asked": None}]}, "calls[0].checked_entries: expected"),
        (lambda p: {k: v for k, v in p.items() if k != "subject"}, "'compiler' is missing"),
        (lambda p: p | {"version": SCHEMA_VERSION + 1}, f"format {SCHEMA_VERSION + 1}"),
        (lambda p: p | {"version": 0}, "format 0"),
        (lambda p: p | {"version": "1"}, "format 1"),
    ],
)
def test_damaged_old_session_says_what_is_wrong(old: dict[str, Any], tmp_path: Path, change: Any, words: str) -> None:
    """A damaged version-1 file, or one of an unknown version, is refused in one sentence."""
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(change(old)), encoding="utf-8")
    with pytest.raises(RecordError) as raised:
        Session.load(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_old_session_opens_without_torch() -> None:
    """Migration needs no torch."""
    program = (
        "import sys\n"
        "for name in ('torch', 'triton', 'numpy', 'sympy', 'IPython', 'ipywidgets'): sys.modules[name] = None\n"
        f"import engine\nprint(len(engine.Session.load({str(OLD_FILE)!r}).compilations))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "4", ran.stderr


def test_committed_sessions_are_of_this_version() -> None:
    """Sessions that notebooks open are version-2 files, byte for byte as saved."""
    paths = sorted((ROOT / "notebooks" / "sessions").glob("*.json"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert json.dumps(Session.load(path).to_dict(), ensure_ascii=False) == text
