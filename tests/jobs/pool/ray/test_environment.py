"""The environment in which Ray runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from iosched.jobs.pool.ray.address import LocalCluster, RunningCluster
from iosched.jobs.pool.ray.ray_transport import environment

THEIRS = {"RAY_ADDRESS": "ray://head:10001", "RAY_AUTH_TOKEN": "theirs", "RAY_USE_TLS": "1", "PATH": "/bin"}


def test_a_local_cluster_ignores_the_users_settings_for_other_clusters(tmp_path: Path) -> None:
    found = environment(LocalCluster(2), tmp_path, THEIRS)
    assert found["PATH"] == "/bin"
    assert {"RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_USE_TLS"}.isdisjoint(found)
    assert (found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"], found["RAY_AUTH_MODE"]) == ("0", "token")


def test_each_local_cluster_has_a_token_that_only_the_user_reads(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    paths = [Path(environment(LocalCluster(1), folder, {})["RAY_AUTH_TOKEN_PATH"]) for folder in folders]
    assert [path.parent for path in paths] == folders
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    tokens = {path.read_text() for path in paths}
    assert len(tokens) == 2
    assert all(len(bytes.fromhex(token)) >= 32 for token in tokens)


def test_on_a_running_cluster_the_users_settings_hold(tmp_path: Path) -> None:
    found = environment(RunningCluster("head:6379"), tmp_path, THEIRS)
    assert {**found, **THEIRS, "RAY_USAGE_STATS_ENABLED": "0"} == found
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("theirs", "grace"), [({}, "10"), ({"RAY_CLIENT_RECONNECT_GRACE_PERIOD": "60"}, "60")])
def test_the_reconnect_grace_period_is_10_s_unless_the_user_sets_it(
    tmp_path: Path, theirs: dict[str, str], grace: str
) -> None:
    found = environment(RunningCluster("ray://head:10001"), tmp_path, theirs)
    assert found["RAY_CLIENT_RECONNECT_GRACE_PERIOD"] == grace


def test_modules_are_found_from_another_working_folder(tmp_path: Path) -> None:
    found = environment(RunningCluster(None), tmp_path, {"PYTHONPATH": "here::/there"})
    assert found["PYTHONPATH"] == f"{Path.cwd() / 'here'}:/there"
