"""`iosched devices --cluster`."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iosched.jobs.pool import survey
from iosched.jobs.pool.messages import Facts
from iosched.jobs.pool.ray import ray_transport
from iosched.jobs.pool.transport import Place
from iosched.models.version import iosched_version

KEYS = {"node", "address", "device", "count", "threads", "cores", "name", "versions", "usable", "problem"}


@pytest.mark.slow
def test_a_local_cluster_has_the_cpu_of_this_machine(invoke) -> None:
    done = invoke("devices", "--cluster", "local:1", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cluster"] == "local:1"
    (device,) = found["devices"]
    assert set(device) == KEYS
    assert (device["device"], device["versions"]["iosched"]) == ("cpu", iosched_version())
    assert len(device["cores"]) >= device["threads"] >= 1


def test_people_see_a_line_for_each_device_of_each_machine(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(versions={"iosched": "1", "cupy": "14"}, device="v100", name="Tesla V100", key="k", threads=8)
    found = (
        survey.Surveyed(Place("box", "10.0.0.1", "v100", 4, 8), facts),
        survey.Surveyed(Place("box", "10.0.0.1", "cpu", 1, 8), facts, "it is noisy"),
        survey.Surveyed(Place("head", "10.0.0.2", "cpu", 0, 8), problem="its CPU is not offered"),
        survey.Surveyed(Place("desk", "10.0.0.3", "v100"), replace(facts, disturbed_by=("first", "others had 60%"))),
    )
    monkeypatch.setattr(ray_transport, "RayTransport", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(survey, "survey", lambda *_: found)
    assert invoke("devices", "--cluster", "head:6379").stdout.splitlines() == [
        "box (10.0.0.1)",
        "  v100  4 of Tesla V100, 8 threads; iosched 1, cupy 14",
        "  cpu   not usable: it is noisy; Tesla V100, 8 threads; iosched 1, cupy 14",
        "head (10.0.0.2)",
        "  cpu  not usable: its CPU is not offered",
        "desk (10.0.0.3)",
        "  v100  Tesla V100, 8 threads; iosched 1, cupy 14; its machine is noisy: others had 60%",
    ]


@pytest.mark.slow
def test_a_missing_cluster_or_ray_exits_3(invoke, complains, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    text = f"ray://127.0.0.1:{port}"
    complains(invoke("devices", "--cluster", text), 3, f"no Ray cluster at {text}: connection refused")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    complains(invoke("devices", "--cluster", "auto"), 3, "no Ray cluster is known on this machine", "--cluster local:N")
    monkeypatch.setattr(ray_transport, "find_spec", lambda name: None)
    complains(invoke("devices", "--cluster", "auto"), 3, "pip install '.[fleet]'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "here"], "the port is missing, as in here:6379"),
        (["--cluster", "local:1024"], "local:1024 with one thread each needs 1024 cores"),
        (["--cluster", "local:1", "--selftest"], "--selftest tests a device of this machine: leave --cluster out"),
        (["--cluster", "local:1", "--device", "cpu"], "--selftest tests a device of this machine: leave --cluster out"),
    ],
)
def test_wrong_usage_is_refused(invoke, complains, words: list[str], said: str) -> None:
    complains(invoke("devices", *words), 2, said)
