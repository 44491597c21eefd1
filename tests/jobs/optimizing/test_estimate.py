"""The search measures no more than `--dry-run` announces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.profiler.devices.cpu.open import CPU_PRICES
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy="concurrent")


def test_an_estimate_creates_no_database(settings: OptimizeSettings) -> None:
    found = estimate(fire(), settings)
    assert settings.profile_db is not None
    assert not settings.profile_db.exists()
    assert found.measurements > 0
    assert found.seconds == pytest.approx(found.measurements * CPU_PRICES.measurement_s + CPU_PRICES.comparison_s)


def test_a_search_measures_no_more_than_estimated(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    said = estimate(fire(), settings)
    done = optimize(fire(), settings)
    stages = sum(len(block.stages) for block in done.document.schedule.blocks)
    assert done.measurements <= said.measurements + 2 * stages  # the stages of the best schedules again
    assert done.stages == sum(block.stages for block in said.blocks)
    assert done.states == sum(block.states for block in said.blocks)


@needs_compiler
def test_a_gpu_search_measures_no_more_than_estimated_and_stores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = attach_host(monkeypatch)
    time_by_size(monkeypatch)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strategy="concurrent", exhaustive=True)
    said = estimate(fire(), settings)
    assert (said.device_kind, said.device_name, said.cost) == ("cuda", "Host 1000", "measured")
    done = optimize(fire(), settings)
    stages = sum(len(block.stages) for block in done.document.schedule.blocks)
    assert 0 < done.measurements <= said.measurements + 2 * stages
    after = estimate(fire(), settings)
    assert sum(block.known for block in after.blocks) == sum(block.signatures for block in said.blocks)
    times = [isinstance(memory, StoredCudnnPlans) and memory.times for memory in given]
    assert times == [False, True, False, False]  # estimated, searched, its outputs compared, estimated again
    assert after.measurements == 0


def test_measured_stages_are_known_to_the_next_estimate(settings: OptimizeSettings) -> None:
    before = estimate(fire(), settings)
    optimize(fire(), replace(settings, exhaustive=True))
    after = estimate(fire(), settings)
    assert sum(block.known for block in before.blocks) == 0
    assert sum(block.known for block in after.blocks) == sum(block.signatures for block in after.blocks)
    assert after.measurements == 0
    assert estimate(fire(), replace(settings, resume=False)).measurements == before.measurements
