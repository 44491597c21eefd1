"""Opening a model for a job: a profile database is opened only if it exists or if measurements are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_models import branches

import iosched


def test_a_database_in_an_inaccessible_folder_is_ignored_if_nothing_is_measured(
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
