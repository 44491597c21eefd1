"""Policy files: read back as written, for the same models only, and on other machines with a warning."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import branches, chain, feeds_for, loaded

from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.policy_file import (
    Measured,
    PolicyFile,
    PolicyMachine,
    PolicyModel,
    PolicyPair,
    adapted,
    hash_of,
    read_policy,
    relative,
)
from iosched.jobs.serving.served_models import serve_together
from iosched.models.errors import InvalidScheduleError, OtherDeviceWarning, UsageError
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.cores import cpu_count

CPU = resolve("cpu").info


@pytest.fixture
def file(tmp_path: Path) -> PolicyFile:
    """A policy for two models in the folder."""
    (tmp_path / "sub").mkdir()
    onnx.save(branches(), tmp_path / "sub" / "a.onnx")
    onnx.save(chain(), tmp_path / "b.onnx")
    latency_us = {1: Measured(10.0, 9.0, 11.0)}
    paths = {"a": "sub/a.onnx", "b": "b.onnx"}
    models = {
        name: PolicyModel(path, hash_of(tmp_path / path), 5.0, 5e4, latency_us, ((0.5, 2), (0.9, 1)))
        for name, path in paths.items()
    }
    pair = PolicyPair("a", "b", Measured(1.5, 1.4, 1.6))
    return PolicyFile(PolicyMachine.of(CPU, cpu_count()), models, (pair,))


def written(file: PolicyFile, folder: Path) -> Path:
    (folder / "p.json").write_bytes(file.to_json())
    return folder / "p.json"


def test_a_file_is_read_back(file: PolicyFile, tmp_path: Path) -> None:
    found = read_policy(written(file, tmp_path))
    assert found == file
    steps = ModelPolicy(((0.5, 2), (0.9, 1)))
    assert adapted(found, CPU, None) == (ServingPolicy({"a": steps, "b": steps}), None)


def test_the_models_of_a_file_are_served(file: PolicyFile, tmp_path: Path) -> None:
    model = loaded(chain())
    inputs = feeds_for(model)
    with serve_together(str(written(file, tmp_path))) as served:
        assert set(served.models) == {"a", "b"}
        outputs = served.run("b", inputs)
    with serve_together({"b": tmp_path / "b.onnx"}) as served:
        for name, array in served.run("b", inputs).items():
            np.testing.assert_array_equal(outputs[name], array)


def test_changed_and_missing_models_are_refused(file: PolicyFile, tmp_path: Path) -> None:
    path = written(file, tmp_path)
    onnx.save(chain(seed=1), tmp_path / "b.onnx")
    with pytest.raises(InvalidScheduleError, match=r"for another .*b\.onnx: measure again"):
        serve_together(path)
    (tmp_path / "b.onnx").write_bytes(b"")
    with pytest.raises(InvalidScheduleError, match="for another"):
        read_policy(path)
    (tmp_path / "b.onnx").unlink()
    with pytest.raises(InvalidScheduleError, match="for another"):
        read_policy(path)


def test_changed_external_data_is_refused(file: PolicyFile, tmp_path: Path) -> None:
    path = written(file, tmp_path)
    (tmp_path / "b.onnx.data").write_bytes(b"weights")
    with pytest.raises(InvalidScheduleError, match=r"for another .*b\.onnx"):
        read_policy(path)


@pytest.mark.parametrize("path", ["../a.onnx", "/etc/passwd", "sub/../../a.onnx"])
def test_paths_do_not_lead_out_of_the_folder(file: PolicyFile, tmp_path: Path, path: str) -> None:
    models = {"a": msgspec.structs.replace(file.models["a"], path=path)}
    with pytest.raises(InvalidScheduleError, match="leads out of its folder"):
        read_policy(written(msgspec.structs.replace(file, models=models), tmp_path))
    with pytest.raises(UsageError, match="has all models in it"):
        relative(tmp_path / "a.onnx", tmp_path / "sub")
    assert relative(tmp_path / "sub" / "a.onnx", tmp_path) == "sub/a.onnx"


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_other_files_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "other.json"
    path.write_bytes(data)
    with pytest.raises(InvalidScheduleError, match=r"other\.json: this is no policy"):
        read_policy(path)


@pytest.mark.parametrize("wrong", ['"version": 2', '"machine": 3'])
def test_other_versions_are_refused(file: PolicyFile, tmp_path: Path, wrong: str) -> None:
    text = file.to_json().decode().replace('"version": 1', wrong) if "version" in wrong else "{" + wrong + "}"
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InvalidScheduleError, match="no policy"):
        read_policy(tmp_path / "p.json")


def test_another_machine_uses_the_default_policy(file: PolicyFile, tmp_path: Path) -> None:
    other = replace(CPU, design={**CPU.design, "caches": "none"})
    policy, remark = adapted(file, other, None)
    assert policy == ServingPolicy()
    assert remark is not None
    assert f"{cpu_count()} cores of {CPU.name}" in remark
    assert adapted(file, CPU, cpu_count() + 1)[0] == ServingPolicy()
    machine = msgspec.structs.replace(file.machine, cores=100)
    path = written(msgspec.structs.replace(file, machine=machine), tmp_path)
    with pytest.warns(OtherDeviceWarning, match="measured on 100 cores"), serve_together(path) as served:
        assert served.models.keys() == {"a", "b"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherDeviceWarning)
        serve_together(path, ServingPolicy()).close()  # the policy of the file is not used


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidScheduleError, match=r"missing\.json: No such file or directory: check the path"):
        serve_together(str(tmp_path / "missing.json"))
