"""What people are told where a part of a latency was measured elsewhere: on a GPU made of host memory, as if a V100."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, time_by_size

from iosched.profiler.devices.cuda import device as cuda_device
from iosched.runtime.cuda.target import Gpu

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


def test_what_was_measured_elsewhere_is_said_wherever_the_schedule_is_shown(invoke, model: Path, profile: Path) -> None:
    before = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    assert before["latency_us"]["measured_share"] is None
    assert invoke("profile", "import", profile).exit_code == 0
    found = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    share = found["latency_us"]["measured_share"]
    assert 0 < share <= 1
    assert found["cost"] == "analytic"
    assert any(f"Of this latency {share:.0%} was measured elsewhere" in note for note in found["notes"])
    table = " ".join(invoke("optimize", model, "--device", "v100").stdout.split())
    assert f"cost analytic: {share:.0%} of the latency was measured on such a GPU elsewhere" in table
    assert V100 in table
    remark = f"(analytic: {share:.0%} of the latency was measured, the rest is computed)"
    assert remark in invoke("show", "branches.iosched.onnx").stdout
    assert f"{share:.0%} of its latency was measured" in invoke("run", "branches.iosched.onnx").stderr


def test_by_the_specification_alone_nothing_measured_is_taken(invoke, model: Path, profile: Path) -> None:
    words = "optimize", model, "--device", "v100", "--json"
    before = json.loads(invoke(*words).stdout)["latency_us"]
    invoke("profile", "import", profile)
    assert json.loads(invoke(*words, "--no-resume").stdout)["latency_us"] == before


def test_a_file_of_a_stranger_tells_no_impossible_share(invoke, model: Path, profile: Path) -> None:
    invoke("profile", "import", profile)
    invoke("optimize", model, "--device", "v100")
    path = Path("branches.schedule.json")
    document = json.loads(path.read_text())
    for share in (7.0, -1.0, "all", None):
        path.write_text(json.dumps({**document, "runtime": {"precision": "fp32", "measured_share": share}}))
        assert "not measured" in invoke("show", path).stdout
