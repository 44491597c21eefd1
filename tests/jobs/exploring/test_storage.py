"""Files that are not studies of iosched are refused before any code in them runs."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import optuna
import pytest
from toy_study import card, go_on

from iosched.jobs.exploring.objectives import CARD_KEY
from iosched.jobs.exploring.storage import open_storage
from iosched.jobs.exploring.study import begun_study, opened_study
from iosched.models.errors import UsageError


def _changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A study with a trial."""
    go_on(tmp_path / "study.db", "random", 1)
    return tmp_path / "study.db"


@pytest.mark.parametrize(
    "data", [b"\x80\x04cos\nsystem\n", b'{"format": "iosched.study"}', b"SQLite format 3\x00" + b"\x00" * 200]
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(data)
    for use in (opened_study, lambda path: begun_study(path, card())):
        with pytest.raises(UsageError, match="is not a study"):
            use(path)
    assert path.read_bytes() == data


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = _changed(tmp_path / "photos.db", "CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="photos"):
        begun_study(path, card())
    assert path.read_bytes() == before


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    optuna.create_study(storage=f"sqlite:///{path}", study_name="mine")
    with pytest.raises(UsageError, match="'mine'"):
        begun_study(path, card())
    optuna.delete_study(storage=f"sqlite:///{path}", study_name="mine")
    optuna.create_study(storage=f"sqlite:///{path}", study_name="iosched").add_trial(optuna.create_trial(value=1.0))
    with pytest.raises(UsageError, match="not a study of iosched"):
        begun_study(path, card())


@pytest.mark.parametrize(
    "program",
    [
        "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END",
        "CREATE VIEW v AS SELECT load_extension('x')",
    ],
)
def test_a_file_with_programs_in_it_is_refused(path: Path, program: str) -> None:
    _changed(path, program)
    for use in (opened_study, lambda path: begun_study(path, card())):
        with pytest.raises(UsageError, match=r"it has the (trigger|view)"):
            use(path)


@pytest.mark.parametrize(
    "value",
    ['"no"', "null", "[]", '{"format": "iosched.study", "version": 1}', '{"format": "other"}'],
)
def test_an_invalid_card_is_refused(path: Path, value: str) -> None:
    _changed(path, f"UPDATE study_user_attributes SET value_json = '{value}'")
    with pytest.raises(UsageError, match="not a study of iosched"):
        opened_study(path)


def test_a_study_of_a_later_version_is_refused(path: Path) -> None:
    later = {**json.loads(json.dumps(card().plain())), "version": 2}
    _changed(path, f"UPDATE study_user_attributes SET value_json = '{json.dumps(later)}' WHERE key = '{CARD_KEY}'")
    with pytest.raises(UsageError, match="has version 2"):
        opened_study(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trial_user_attributes SET value_json = '{\"values\": [1]}' WHERE key = 'feedback'",
        "UPDATE trial_user_attributes SET value_json = 'no json'",
        "UPDATE trial_params SET distribution_json = 'no json'",
        "UPDATE trial_params SET param_value = 99",
    ],
)
def test_a_damaged_trial_is_reported(path: Path, statement: str) -> None:
    _changed(path, statement)
    with pytest.raises(UsageError, match="damaged"):
        opened_study(path).history()


def test_an_invalid_claim_does_not_block_a_trial(path: Path) -> None:
    _changed(
        path,
        "UPDATE trials SET state = 'RUNNING', datetime_complete = NULL",
        'UPDATE trial_user_attributes SET value_json = \'{"process": "a b c d", "at": 1e300, "attempt": 1}\' '
        "WHERE key = 'claim'",
    )
    assert [each.state for each in go_on(path, "random", 2).history()] == ["complete", "complete"]


def test_a_path_is_never_read_as_a_url(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#{SCHEMA_VERSION} %41.db"
    go_on(path, "random", 1)
    assert path.exists()
    assert opened_study(path).card == card()
    with pytest.raises(UsageError, match="no such file"):
        opened_study(Path("sqlite:///study.db"))


def test_an_empty_file_can_become_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.touch()
    with pytest.raises(UsageError, match="is not a study"):
        opened_study(path)
    assert len(go_on(path, "random", 1).history()) == 1


@pytest.mark.slow
def test_a_file_without_the_index_of_a_table_is_usable(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    open_storage(path, makes=True).engine.dispose()
    _changed(path, "DROP INDEX ix_studies_study_name")
    for trials in (1, 2):
        assert len(go_on(path, "random", trials).history()) == trials
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM studies").fetchone() == (1,)
