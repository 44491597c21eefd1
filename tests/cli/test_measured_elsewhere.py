"""Output on latencies partly measured on another machine: on a GPU made of host memory that poses as a V100."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, time_by_size
from thread_cluster import ThreadTransport, cpu_places

from iosched.cli.common.text import source_text
from iosched.jobs.matrix import MatrixSettings, matrix
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.pool import cluster as pool_cluster
from iosched.jobs.worker import Worker
from iosched.models.load import load_model
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.runtime.cuda.kernel import Gpu

pytestmark = needs_compiler

V100 = "Tesla V100-SXM2-16GB"


@pytest.fixture
def profile(invoke, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that `profile export` writes on the machine with the V100."""
    there, file = tmp_path / "there.db", tmp_path / "v100.jsonl"
    with monkeypatch.context() as attached:
        time_by_size(attached)
        gpu = HostGpu(0, V100, {"cudnn": "91002"}, HostDriver(gpu=Gpu(capability=70, processors=80)))
        attached.setattr(cuda_device, "attach", lambda index: gpu)
        assert invoke("optimize", model, "--device", "cuda", "--profile-db", there).exit_code == 0
    assert invoke("profile", "export", file, "--profile-db", there).exit_code == 0
    return file


def test_the_share_of_imported_measurements_is_shown_by_each_command(invoke, model: Path, profile: Path) -> None:
    before = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    assert before["latency_us"]["measured_share"] is None
    assert "of the SMs" in invoke("show", "branches.iosched.onnx").stdout
    assert invoke("profile", "import", profile).exit_code == 0
    found = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    share = found["latency_us"]["measured_share"]
    assert 0 < share <= 1
    assert found["cost"] == "analytic"
    assert any(f"Stages measured on {V100} (cudnn 91002, last on " in note for note in found["notes"])
    assert "by measured and computed latencies" in found["reason"]
    table = " ".join(invoke("optimize", model, "--device", "v100").stdout.split())
    assert f"cost analytic: {source_text(share, ' on such a GPU in another machine')}" in table
    assert "sequential, 100% of it measured" in table
    assert "stages looked up or computed" in table
    assert found["latency_us"]["sequential_measured_share"] == 1
    assert V100 in table
    shown = invoke("show", "branches.iosched.onnx").stdout
    assert f"(analytic: {source_text(share)})" in shown
    assert json.loads(invoke("show", "branches.iosched.onnx", "--json").stdout)["measured_share"] == share
    assert "of peak" in shown
    assert "of the SMs" not in shown, "only latencies by the model come with a share of SMs"
    assert source_text(share, " there") in invoke("run", "branches.iosched.onnx").stderr


def test_a_gpu_simulated_on_a_cluster_uses_imported_measurements(
    invoke, model: Path, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ThreadTransport(cpu_places(1), lambda device, _, say: Worker(device, 1, say))
    monkeypatch.setattr(pool_cluster, "RayTransport", lambda *_: cluster)
    assert invoke("profile", "import", profile).exit_code == 0
    here, there = (
        json.loads(invoke("rank", model, "--device", "v100", "--json", *where).stdout)["rows"][0]
        for where in ((), ("--cluster", "local:1"))
    )
    assert 0 < here["measured_share"] <= 1
    alike = ("cost", "latency_us", "low_us", "high_us", "measured_share", "notes")
    assert {key: there[key] for key in alike} == {key: here[key] for key in alike}


def test_explain_reports_the_source_of_its_own_latencies(invoke, model: Path, profile: Path, workdir: Path) -> None:
    """The schedule was made without measurements; its latencies now include those imported since."""
    invoke("optimize", model, "--device", "v100")
    operator = json.loads(Path("branches.schedule.json").read_text())["blocks"][0]["stages"][0]["groups"][0][0]
    words = "explain", "branches.iosched.onnx", operator
    assert json.loads(invoke(*words, "--json").stdout)["measured_share"] is None
    assert "not measured" in invoke(*words).stdout
    invoke("profile", "import", profile, "--profile-db", "other.db")
    assert json.loads(invoke(*words, "--json").stdout)["measured_share"] is None
    found = json.loads(invoke(*words, "--json", "--profile-db", "other.db").stdout)
    assert 0 < found["measured_share"] <= 1
    assert "of the SMs" not in invoke(*words, "--profile-db", "other.db").stdout
    assert source_text(found["measured_share"]) in invoke(*words, "--profile-db", "other.db").stdout


def test_a_dry_run_counts_the_stages_that_were_measured(invoke, model: Path, profile: Path) -> None:
    words = "optimize", model, "--device", "v100", "--dry-run"
    before = invoke(*words)
    assert "already known" not in before.stdout
    assert before.stderr == ""
    assert "computed from the GPU's specification" in before.stdout
    invoke("profile", "import", profile)
    found = json.loads(invoke(*words, "--json").stdout)
    known = sum(block["known"] for block in found["blocks"])
    assert 0 < known <= sum(block["signatures"] for block in found["blocks"])
    assert (found["measurements"], found["seconds"]) == (0, 0)
    told = invoke(*words)
    assert f"{known} of them were measured on such a GPU in another machine" in told.stdout
    assert V100 in told.stderr
    assert sum(block["known"] for block in json.loads(invoke(*words, "--json", "--no-resume").stdout)["blocks"]) == 0


def test_a_matrix_takes_measured_stages_on_the_gpus_that_have_them(invoke, model: Path, profile: Path) -> None:
    words = "matrix", model, "--device", "v100,v100pcie"
    before = invoke(*words)
    assert "* measured" not in before.stdout
    assert before.stderr == ""
    invoke("profile", "import", profile)
    found = json.loads(invoke(*words, "--json").stdout)
    (own, other), without = found["measured_share"]
    assert without == [None, None]
    assert 0 < own <= 1
    assert 0 <= other <= 1
    optimized = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)["latency_us"]
    assert (found["latency_us"][0][0], own) == (optimized["predicted"], optimized["measured_share"])
    assert [note.split(":")[0] for note in found["notes"]] == ["v100", "v100pcie"]
    assert "use --device v100 for them" in found["notes"][1]
    told = invoke(*words)
    title, headers, measured, computed, *_ = told.stdout.splitlines()
    assert "computed by the analytic model for one CUDA graph, except stages measured on another machine" in title
    assert headers.endswith("* measured")
    assert measured.rstrip().endswith(f" {own:.0%}")
    assert computed.rstrip().endswith("nothing")
    assert V100 in told.stderr
    assert invoke(*words, "--no-resume").stdout == before.stdout


def test_no_resume_ignores_imported_measurements(invoke, model: Path, profile: Path) -> None:
    words = "optimize", model, "--device", "v100", "--json"
    before = json.loads(invoke(*words).stdout)["latency_us"]
    invoke("profile", "import", profile)
    assert json.loads(invoke(*words, "--no-resume").stdout)["latency_us"] == before


def test_launches_in_streams_ignore_measurements_in_a_graph(invoke, model: Path, profile: Path) -> None:
    settings, loaded = OptimizeSettings("v100", launch="streams"), load_model(model)
    before = optimize(loaded, settings)
    invoke("profile", "import", profile)
    found = optimize(loaded, settings)
    assert found.predicted_us == before.predicted_us
    assert before.notes == ()
    (note,) = found.notes
    assert note.startswith(f"Stages measured on {V100} (")
    assert note.endswith("are ignored because they ran in a CUDA graph: use launch='graph' to include them.")
    assert estimate(loaded, settings).known == 0
    (target,) = matrix([(1, loaded)], MatrixSettings(("v100",), launch="streams")).targets
    assert target.notes == (note,)


@pytest.mark.parametrize("words", [("optimize", "--dry-run"), ("matrix",)])
def test_a_broken_database_is_refused_except_with_no_resume(invoke, complains, model: Path, words) -> None:
    Path("broken.db").write_bytes(b"none" * 100)
    call = *words, model, "--device", "v100", "--profile-db", "broken.db"
    complains(invoke(*call), 2, "broken.db is damaged", "--profile-db")
    assert invoke(*call, "--no-resume").exit_code == 0


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "latencies are computed from the GPU's specification, not measured"),
        (0.0, "latencies are computed, and scaled by measurements there"),
        (0.004, "less than 1% of the latency was measured there, the rest is computed"),
        (0.4, "40% of the latency was measured there, the rest is computed"),
        (0.996, "more than 99% of the latency was measured there, the rest is computed"),
        (1.0, "all of the latency was measured there, stage by stage"),
    ],
)
def test_a_measured_share_is_not_rounded_to_all_or_nothing(share: float | None, text: str) -> None:
    assert source_text(share, " there") == text


def test_an_impossible_measured_share_in_a_file_is_ignored(invoke, model: Path, profile: Path) -> None:
    invoke("profile", "import", profile)
    invoke("optimize", model, "--device", "v100")
    path = Path("branches.schedule.json")
    document = json.loads(path.read_text())
    for share in (7.0, -1.0, "all", None):
        path.write_text(json.dumps({**document, "runtime": {"precision": "fp32", "measured_share": share}}))
        assert "not measured" in invoke("show", path).stdout
