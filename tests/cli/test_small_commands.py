"""`inspect`, `zoo`, `devices` and `profile`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.mutation.mutator import OperatorMutator, by_type
from iosched.models.mutation.variant import variant_of
from iosched.profiler.devices.cpu import facts as cpu_facts
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase, device_key

BLOCK_KEYS = {
    "index", "operators", "width", "upper_bound", "pruned_growth", "states", "transitions", "schedules", "stages",
    "signatures",
}  # fmt: skip


def test_inspect_json_has_the_keys_that_scripts_rely_on(invoke, model: Path) -> None:
    found = json.loads(invoke("inspect", model, "--json").stdout)
    assert set(found) == {
        "model", "operators", "nodes", "flops", "params", "pruning", "variant", "blocks", "schedules",
    }  # fmt: skip
    assert found["schedules"] == []
    assert (found["model"], found["pruning"]) == ("branches", {"r": 3, "s": 8})
    assert found["params"] == 8 * 8 * (1 + 9)
    assert found["flops"] >= 2 * 36 * found["params"]
    assert all(set(block) == BLOCK_KEYS for block in found["blocks"])
    assert sum(block["operators"] for block in found["blocks"]) == found["operators"]


def test_inspect_counts_what_pruning_leaves(invoke, model: Path) -> None:
    def stages(*words: object) -> int:
        return sum(block["stages"] for block in json.loads(invoke("inspect", model, "--json", *words).stdout)["blocks"])

    assert stages("-r", 1, "-s", 1) < stages("--no-pruning")
    assert json.loads(invoke("inspect", model, "--json", "--no-pruning").stdout)["pruning"] == {"r": None, "s": None}


def test_inspect_prints_a_row_for_each_block(invoke, model: Path) -> None:
    lines = invoke("inspect", model).stdout.splitlines()
    assert re.match(r"branches: 3 operators \(\d+ nodes\), [\d.]+ kFLOP, [\d,]+ parameters; ", lines[0])
    assert lines[1].split()[:4] == ["block", "n", "d", "states"]
    assert lines[2].split()[0] == "0"


def test_inspect_shows_the_origin_of_a_variant(invoke, model: Path, workdir: Path) -> None:
    """A record may contain anything: its text sends no escape codes to the terminal."""
    base = load_model(model, name="bad\x1bname")
    variant = variant_of(base, [OperatorMutator("op", by_type("Relu"), ["keep", "conv3"])], lambda question: 1)
    write_model(variant.model.proto, variant.model.weights, workdir / "variant.onnx")
    lines = invoke("inspect", "variant.onnx").stdout.splitlines()
    assert lines[1] == "a variant of 'bad\\x1bname': 1 choice, 2 seeded weights"
    found = json.loads(invoke("inspect", "variant.onnx", "--json").stdout)["variant"]
    assert found == {
        "base": "bad\x1bname",
        "digest": base.digest,
        "choices": {"op[c]/layer{keep,conv3}": "conv3"},
        "seeded": 2,
        "sliced": 0,
    }
    assert json.loads(invoke("inspect", model, "--json").stdout)["variant"] is None


def test_zoo_list_and_export(invoke, workdir: Path) -> None:
    names = invoke("zoo", "list").stdout.split()
    assert "squeezenet" in names
    assert json.loads(invoke("zoo", "list", "--json").stdout) == {"networks": names}
    result = invoke("zoo", "export", "squeezenet")
    assert (result.exit_code, result.stdout) == (0, "")
    onnx.checker.check_model(onnx.load(workdir / "squeezenet.onnx"))
    piped = invoke("zoo", "export", "squeezenet", "-o", "-")
    assert piped.stdout_bytes == (workdir / "squeezenet.onnx").read_bytes()
    assert piped.stderr == ""


def test_zoo_refuses_unknown_networks_and_folders(invoke, complains, workdir: Path) -> None:
    complains(invoke("zoo", "export", "squeeznet"), 2, "squeezenet")
    complains(invoke("zoo", "export", "squeezenet", "-o", "no/such/f.onnx"), 2, "no/such")
    assert list(workdir.iterdir()) == []


def test_devices_describes_the_cpu_and_cuda(invoke) -> None:
    cpu, cuda = json.loads(invoke("devices", "--json").stdout)["devices"]
    assert cpu["kind"] == "cpu"
    assert cpu["cores"] >= 1
    assert cpu["runtime"]["name"].startswith("onnxruntime")
    assert cuda["kind"] == "cuda"
    text = invoke("devices").stdout
    assert cpu["name"] in text
    assert cpu["runtime"]["version"] in text


def test_devices_shows_the_cpu_quota_of_the_process(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{cpu_facts.__name__}.cpu_quota", lambda: None)
    assert "quota" not in invoke("devices").stdout
    monkeypatch.setattr(f"{cpu_facts.__name__}.cpu_quota", lambda: 1.5)
    monkeypatch.setattr(f"{cpu_facts.__name__}.default_threads", lambda: 1)
    cpu, _ = json.loads(invoke("devices", "--json").stdout)["devices"]
    assert (cpu["quota"], cpu["threads"]) == (1.5, 1)
    assert "CPU time of 1.5 cores; default threads: 1" in invoke("devices").stdout


def test_devices_lists_the_gpus_that_can_be_simulated(invoke) -> None:
    known = json.loads(invoke("devices", "--json").stdout)["plannable"]
    assert {"device": "v100", "name": "Tesla V100-SXM2-16GB"} in known
    text = invoke("devices").stdout
    assert all(gpu["device"] in text and gpu["name"] in text for gpu in known)


def test_devices_names_the_command_that_installs_a_runtime(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cpu", "cuda"):
        monkeypatch.setattr(f"iosched.profiler.devices.{kind}.facts.package_version", lambda package: None)
    monkeypatch.setattr("iosched.profiler.devices.cuda.facts.gpu_names", lambda: ["NVIDIA H100"])
    text = invoke("devices").stdout
    assert "pip install '.[cpu]'" in text
    assert "pip install '.[cuda]'" in text
    assert not any(device["usable"] for device in json.loads(invoke("devices", "--json").stdout)["devices"])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A database with two measurements."""
    path = tmp_path / "measured.sqlite"
    with ProfileDatabase(path) as database:
        database.keep_stage("one\u2028stage", "some device", summarize([1.0, 2.0, 3.0]))
        database.keep_stage("another stage", "some device", summarize([4.0]))
    return path


def test_profile_stats(invoke, measured: Path) -> None:
    found = json.loads(invoke("profile", "stats", "--profile-db", measured, "--json").stdout)
    assert (found["path"], found["measurements"]) == (str(measured), 2)
    assert [(device["device"], device["samples"]) for device in found["devices"]] == [("some device", 4)]
    assert "some device" in invoke("profile", "stats", "--profile-db", measured).stdout


def test_profile_stats_accepts_any_device_key(invoke, tmp_path: Path) -> None:
    path = tmp_path / "strange.db"
    with ProfileDatabase(path) as database:
        for key in ("", "7", "{}", '{"versions": 1}', "[" * 100_000, '{"versions": {}, "name": "", "design": [7]}'):
            database.keep_stage("a", key, summarize([1.0]))
    assert invoke("profile", "stats", "--profile-db", path).exit_code == 0


def test_profile_stats_distinguishes_cpus_of_the_same_name(invoke, tmp_path: Path) -> None:
    path = tmp_path / "measured.sqlite"
    named = {"precision": "mixed", "threads": 2, "versions": {"onnxruntime": "1.2"}}
    design = {"vendor": "AuthenticAMD", "family": "25", "model": "17", "stepping": "", "caches": "L2 1M"}
    with ProfileDatabase(path) as database:
        for key in (
            device_key("cpu", "AMD EPYC", **named, design=design),
            device_key("cpu", "AMD EPYC", **named),
            device_key("cuda", "NVIDIA H100", **named),
        ):
            database.keep_stage("stage", key, summarize([1.0]))
    text = invoke("profile", "stats", "--profile-db", path).stdout
    assert "AMD EPYC (family 25, model 17), 2 threads, mixed, onnxruntime 1.2" in text
    assert "AMD EPYC (unknown design: no longer used), 2 threads" in text
    assert "NVIDIA H100, 2 threads" in text


def test_profile_travels_through_a_pipe(invoke, measured: Path, tmp_path: Path) -> None:
    lines = invoke("profile", "export", "-", "--profile-db", measured).stdout_bytes
    other = tmp_path / "other.sqlite"
    assert invoke("profile", "import", "-", "--profile-db", other, stdin=lines).exit_code == 0
    assert invoke("profile", "export", "-", "--profile-db", other).stdout_bytes == lines


def test_profile_clear_asks_first(invoke, complains, measured: Path) -> None:
    complains(invoke("profile", "clear", "--profile-db", measured), 2, "--yes")
    assert invoke("profile", "clear", "--profile-db", measured, "--yes").exit_code == 0
    assert json.loads(invoke("profile", "stats", "--profile-db", measured, "--json").stdout)["measurements"] == 0


def test_profile_refuses_bad_databases_exports_and_paths(invoke, complains, workdir: Path, measured: Path) -> None:
    (workdir / "text").write_bytes(b"no database" * 1000)
    complains(invoke("profile", "stats", "--profile-db", "text"), 2, "text")
    complains(invoke("profile", "import", "text", "--profile-db", measured), 2, "line 1")
    complains(invoke("profile", "import", "missing", "--profile-db", measured), 2, "missing")
    complains(invoke("profile", "import", "-", "--profile-db", measured, stdin=b"\xff\xfe"), 2, "UTF-8")
    complains(invoke("profile", "import", ".", "--profile-db", measured), 2, "directory")
    complains(invoke("profile", "import", "/dev/zero", "--profile-db", measured), 2, "line 1", "longer than")
    complains(invoke("profile", "export", "no/such", "--profile-db", measured), 2, "no folder")
    complains(invoke("profile", "export", measured, "--profile-db", measured), 2, "overwrite")
