"""What is opened for a job: a profile database only where there is one, or where measurements are to be kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_models import branches

import iosched


def test_a_database_in_a_folder_that_may_not_be_searched_is_passed_over_where_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat, access = tmp_path / "locked" / "profile.sqlite", Path.stat, os.access

    def searched(self: Path, **words: bool) -> os.stat_result:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(self, **words)

    monkeypatch.setattr(Path, "stat", searched)
    monkeypatch.setattr(os, "access", lambda each, mode: each != path and access(each, mode))
    result = iosched.optimize(branches().SerializeToString(), device="v100", profile_db=path)
    assert result.cost == "analytic"
