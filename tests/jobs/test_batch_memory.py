"""The plan of a file of several models stays within the memory limit, as far as the file can be divided."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from batches import assert_as_alone
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from onnx import helper
from scripted import script_stages
from small_models import chains, loaded, proto_of

from iosched.jobs.batch import BatchSettings, batch
from iosched.jobs.batching.model_clusters import divided
from iosched.models.composition.compose import footprint_of, together_nbytes
from iosched.models.composition.members import members_of
from iosched.models.model import Model
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.executor import Candidate


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchSettings:
    """Settings for a CPU on which a schedule is always fastest."""

    def in_turn(candidates: Mapping[str, Candidate], *_: object) -> dict[str, Measurement]:
        return {name: summarize([1.0 if name == "mixed" else 5.0] * 7) for name in candidates}

    script_stages(monkeypatch)
    monkeypatch.setattr(cpu_open, "measure_interleaved", in_turn)
    return BatchSettings(device="cpu", threads=2, policy="greedy", profile_db=tmp_path / "db")


def estimated(models: Mapping[str, Model]) -> int:
    return together_nbytes(map(footprint_of, models.values()))


@pytest.mark.slow
def test_models_whose_plan_fits_are_one_file_and_others_are_divided(settings: BatchSettings) -> None:
    models = chains(2)
    (whole,) = batch(models, settings).clusters
    assert whole.shipped == "mixed"
    assert whole.estimated_nbytes == estimated(models)
    assert whole.plan_nbytes is not None
    assert whole.plan_nbytes - 1 > whole.estimated_nbytes  # else the models were divided before anything is measured
    with closing(CpuBackend(whole.model, lanes=2)) as backend:
        assert whole.plan_nbytes == backend.plan_nbytes(whole.document.schedule)

    fits = batch(models, replace(settings, memory_nbytes=whole.plan_nbytes))
    assert [len(each.members) for each in fits.clusters] == [2]
    assert fits.notes == ()

    limit = whole.plan_nbytes - 1
    parts = batch(models, replace(settings, memory_nbytes=limit))
    assert [[member.name for member in each.members] for each in parts.clusters] == [["a"], ["b"]]
    assert all(each.plan_nbytes is not None and each.plan_nbytes <= limit for each in parts.clusters)
    (note,) = parts.notes
    assert note.startswith("a, b as one file needs 0.0")
    assert note.endswith("MB: divided into 2 files")
    for each, (name, model) in zip(parts.clusters, models.items(), strict=True):
        assert_as_alone(each.model, members_of(each.model.proto), {name: model})


def test_a_single_model_over_the_limit_is_kept_with_a_note(settings: BatchSettings) -> None:
    models = chains(1)
    found = batch(models, replace(settings, memory_nbytes=estimated(models)))
    (alone,) = found.clusters
    assert alone.plan_nbytes is not None
    assert alone.plan_nbytes > estimated(models)
    (note,) = found.notes
    assert note.startswith("a needs 0.0")
    assert note.endswith("MB: a single model cannot be divided")


def test_unless_our_plan_ships_only_the_estimate_is_known(
    settings: BatchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated GPU, and if sessions ship."""

    def last_is_fastest(candidates: Mapping[str, Candidate], *_: object) -> dict[str, Measurement]:
        return {name: summarize([1.0 / place] * 7) for place, name in enumerate(candidates, 1)}

    monkeypatch.setattr(cpu_open, "measure_interleaved", last_is_fastest)
    models = chains(2)
    for each in (replace(settings, policy="serial"), BatchSettings(device="v100")):
        found = batch(models, replace(each, memory_nbytes=estimated(models)))
        assert [(one.plan_nbytes, one.estimated_nbytes) for one in found.clusters] == [(None, estimated(models))]
        assert found.notes == ()


@needs_compiler
def test_on_a_gpu_models_are_divided_by_the_size_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    settings = BatchSettings(device="cuda", policy="packed", profile_db=tmp_path / "db")
    (whole,) = batch(chains(2), settings).clusters
    assert whole.plan_nbytes is not None
    assert whole.plan_nbytes > whole.estimated_nbytes
    for limit, count in ((whole.plan_nbytes, 1), (whole.plan_nbytes - 1, 2)):
        assert len(batch(chains(2), replace(settings, memory_nbytes=limit)).clusters) == count


@pytest.mark.parametrize("percent", [101, 130, 199, 250, 400, 10_000])
def test_estimates_are_scaled_by_the_plan_of_the_whole(percent: int) -> None:
    """Four equal models are divided into parts that fit at that rate: at least two parts, at worst one model each."""
    models = chains(4)
    limit = estimated(models)
    parts = divided(models, BatchSettings(), limit, limit * percent // 100)
    assert sorted(name for part in parts for name in part) == list(models)
    most = max(1, 4 * 100 // percent)
    assert [len(part) for part in parts] == {3: [3, 1], 2: [2, 2], 1: [1] * 4}[most]


def test_models_that_add_nothing_to_the_estimate_are_divided_too() -> None:
    nothing = loaded(proto_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [0]}, ["y"], {}), "nothing")
    models = {**chains(1), "nothing": nothing}
    assert estimated({"nothing": nothing}) == 0
    assert divided(models, BatchSettings(), estimated(models), 2 * estimated(models)) == (("a",), ("nothing",))
