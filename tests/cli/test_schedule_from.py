"""Schedules of another model of the same structure: `run`, `bench`, `explain` and `optimize --schedule-from`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from networks import zoo_file
from onnx import numpy_helper
from small_models import branches
from variants import renamed, retrained, shuffled

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.scheduler.document import ScheduleDocument


@pytest.fixture
def planned(invoke, model: Path) -> Path:
    """A schedule file of `branches.onnx`, planned for a GPU; the optimized model is in the same folder."""
    result = invoke("optimize", model, "--device", "v100")
    assert result.exit_code == 0, result.stderr
    return Path("branches.schedule.json")


@pytest.fixture
def other(workdir: Path) -> Path:
    """The same network with other weights, names and order of nodes."""
    path = workdir / "other.onnx"
    onnx.save(shuffled(renamed(retrained(branches(), 2)), 3), path)
    return path


@pytest.mark.parametrize("source", ["branches.schedule.json", "branches.iosched.onnx"])
def test_run_takes_it_and_computes_the_new_model(invoke, planned: Path, other: Path, source: str) -> None:
    result = invoke("run", other, "--schedule", source, "--check", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["check"]["passed"]
    assert list(found["outputs"]) == [onnx.load(other).graph.output[0].name]


def test_bench_measures_it_as_iosched(invoke, planned: Path, other: Path) -> None:
    result = invoke("bench", other, "--schedule", planned, "--with", "iosched", "--rounds", 3, "--json")
    assert result.exit_code == 0, result.stderr
    assert {row["name"] for row in json.loads(result.stdout)["rows"]} == {"iosched", "sequential"}


def test_explain_names_the_operators_of_the_new_model(invoke, planned: Path, other: Path) -> None:
    name = load_model(other).graph.operators[0].name
    result = invoke("explain", planned, name, "--model", other, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["operator"], found["model"]) == (name, "other")
    assert name in {each for group in found["present"]["groups"] for each in group}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["branches.schedule.json", "branches.iosched.onnx"])
def test_optimize_writes_the_new_model_with_it(invoke, planned: Path, other: Path, source: str) -> None:
    result = invoke("optimize", other, "--schedule-from", source, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["search"]["states"], found["search"]["measurements"], found["search"]["gap"]) == (0, 0, None)
    assert found["latency_us"]["reference"] is not None
    assert "nothing was searched" in result.stderr
    assert invoke("run", "other.iosched.onnx", "--check").exit_code == 0
    document = ScheduleDocument.from_json(Path("other.schedule.json").read_text())
    assert document.sha256 == load_model(other).digest


def test_another_structure_is_refused_with_the_difference(invoke, complains, planned: Path, workdir: Path) -> None:
    proto = branches()
    next(item for item in proto.graph.node if item.op_type == "Relu").op_type = "Tanh"
    onnx.save(proto, workdir / "tanh.onnx")
    words = ["another structure", "operator 'c': expected Conv (Conv, Relu), found Conv (Conv, Tanh)"]
    complains(invoke("run", "tanh.onnx", "--schedule", planned, "-q"), 2, *words)
    complains(invoke("bench", "tanh.onnx", "--schedule", planned, "-q"), 2, *words)
    complains(invoke("explain", planned, "c", "--model", "tanh.onnx", "-q"), 2, *words)
    complains(invoke("optimize", "tanh.onnx", "--schedule-from", planned, "-q"), 2, *words)
    assert not Path("tanh.iosched.onnx").exists()


def test_options_of_a_search_contradict_it(invoke, complains, planned: Path, other: Path) -> None:
    for words in (
        ["-r", 2],
        ["--strategy", "both"],
        ["--no-pruning"],
        ["--exhaustive"],
        ["--no-search"],
        ["--dry-run"],
    ):
        text = complains(invoke("optimize", other, "--schedule-from", planned, *words), 2, "searches nothing")
        assert str(words[0]) in text


def test_the_source_schedule_is_not_overwritten(invoke, complains, planned: Path, model: Path) -> None:
    before = planned.read_text()
    complains(invoke("optimize", model, "--schedule-from", planned), 2, "would overwrite the input")
    complains(invoke("optimize", model, "--schedule-from", "-", stdin=b"{}"), 2, "not a schedule")
    complains(invoke("optimize", "-", "--schedule-from", "-", stdin=b"{}"), 2, "both")
    assert planned.read_text() == before


def test_an_optimized_model_whose_weights_were_replaced_runs(invoke, planned: Path) -> None:
    """Its schedule has the digest of other weights, but the same structure."""
    proto = onnx.load("branches.iosched.onnx")
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype.kind == "f":
            tensor.CopyFrom(numpy_helper.from_array(values[::-1] * 2, tensor.name))
    onnx.save(proto, "replaced.onnx")
    loaded = load_model(Path("replaced.onnx"))
    assert loaded.schedule_json is not None
    assert ScheduleDocument.from_json(loaded.schedule_json).sha256 != loaded.digest
    result = invoke("run", "replaced.onnx", "--check", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["check"]["passed"]


def test_the_schedule_of_a_model_from_an_older_version_can_be_reused(
    invoke, complains, planned: Path, other: Path
) -> None:
    """Its schedule does not contain the structure, but the model that carries it does; a schedule file has none."""
    old = replace(ScheduleDocument.from_json(planned.read_text()), structure=None).to_json()
    proto = onnx.load("branches.iosched.onnx")
    next(item for item in proto.metadata_props if item.key == "io.iosched.schedule").value = old
    onnx.save(proto, "old.onnx")
    assert invoke("run", other, "--schedule", "old.onnx", "--check").exit_code == 0
    Path("old.json").write_text(old)
    assert invoke("run", "branches.onnx", "--schedule", "old.json", "--check").exit_code == 0
    complains(invoke("run", other, "--schedule", "old.json", "-q"), 2, "without input")


@pytest.mark.slow
def test_a_retrained_squeezenet_runs_by_the_schedule_of_the_first(
    invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("optimize", zoo_file("squeezenet"), "--device", "v100", "-o", "first.onnx").exit_code == 0
    monkeypatch.setattr("iosched.models.zoo.network.zlib.crc32", lambda _: 7)
    onnx.save(zoo.build("squeezenet"), "second.onnx")
    for source in ("first.onnx", "first.schedule.json"):
        result = invoke("run", "second.onnx", "--schedule", source, "--check")
        assert result.exit_code == 0, result.stderr
        assert "iosched, " in result.stdout
