"""`--budget` of a command on a real local cluster, on a machine that is always noisy, where a worker dies."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from clusters import surroundings
from scripted import fire_proto

from iosched.cli.main import cli
from iosched.jobs.pool import cluster as pool_cluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.runtime.cores import cpu_count

pytestmark = [pytest.mark.slow, pytest.mark.skipif(cpu_count() < 2, reason="needs two cores")]

BUDGET_S = 6.0
PROMISED_S = 1.1 * BUDGET_S + 5.0
STARTING_S = 60.0
"""A generous time for a cluster and three workers to start alongside other tests, for the longest stage, and to end."""


def test_a_search_keeps_its_budget_if_the_machine_is_noisy_and_its_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IOSCHED_PROFILE_DB", str(tmp_path / "profile.sqlite"))
    monkeypatch.setattr(pool_cluster, "RayTransport", partial(RayTransport, made_by="ray_workers:Noisy"))
    onnx.save(fire_proto(), "fire.onnx")
    words = ("optimize", "fire.onnx", "--cluster", "local:2", "--threads", "1", "--budget", f"{BUDGET_S:g}", "--json")
    with surroundings(tmp_path, IOSCHED_TEST_DIES=str(tmp_path / "died")):
        began = time.monotonic()
        result = CliRunner().invoke(cli, list(words), prog_name="iosched")
        took_s = time.monotonic() - began
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found["cluster"]["lost"]) == 1, "the worker that searched first died"
    assert found["search"]["seconds"] <= PROMISED_S
    assert took_s <= STARTING_S + PROMISED_S
