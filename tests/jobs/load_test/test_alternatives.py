"""Each alternative computes what onnxruntime computes, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import onnx
import pytest
from small_models import chain, chains

from iosched.jobs.load_test import alternatives, model_process
from iosched.jobs.load_test.alternatives import OPENERS, Served, default_settings
from iosched.jobs.load_test.load_test import served_alone
from iosched.jobs.load_test.model_process import ModelProcess
from iosched.models.errors import ExecutionError
from iosched.profiler.baselines.names import UNDER_LOAD
from iosched.runtime.compare import compare
from iosched.runtime.openvino import library
from iosched.runtime.reference import ReferenceSettings


@pytest.fixture(scope="module")
def served() -> dict[str, Served]:
    return {name: served_alone(model, 1) for name, model in chains(2).items()}


@pytest.mark.parametrize("name", OPENERS)
def test_outputs_are_those_of_onnxruntime_on_many_requests(name: str, served: dict[str, Served]) -> None:
    if name == "openvino-streams" and not library.available():
        pytest.skip("OpenVINO is not installed")
    opened = OPENERS[name](served, 2)
    try:
        answers = [(model, opened.submit(model)) for _ in range(8) for model in served]
        for model, answer in answers:
            assert compare(answer.result(), served[model].expected).passed
    finally:
        opened.close()
    with pytest.raises(RuntimeError):
        opened.submit("a")


def test_every_alternative_has_a_description() -> None:
    assert set(OPENERS) <= set(UNDER_LOAD)


def test_models_that_were_opened_are_freed_if_the_next_one_fails(served: dict[str, Served]) -> None:
    freed = []

    class Runnable:
        def run(self, inputs: object) -> dict[str, object]:
            return {}

        def close(self) -> None:
            freed.append(self)

    def opener(model: object) -> Runnable:
        if model is list(served.values())[1].model:
            raise ExecutionError("no memory")
        return Runnable()

    with pytest.raises(ExecutionError, match="no memory"):
        alternatives.calls(served, opener, dict.fromkeys(served, ThreadPoolExecutor(1)))
    assert len(freed) == 1


def test_default_settings_leave_the_whole_machine_to_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "allowed_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(alternatives, "has_whole_machine", lambda: True)
    assert default_settings(4) == ReferenceSettings("sequential", 4, binds_threads=True)
    assert default_settings(2) == ReferenceSettings("sequential", 2)
    monkeypatch.setattr(alternatives, "has_whole_machine", lambda: False)
    assert default_settings(4) == ReferenceSettings("sequential", 4)


def test_a_process_that_ends_early_is_an_error_not_a_wait(served: dict[str, Served]) -> None:
    each = next(iter(served.values()))
    process = ModelProcess(each.model, ReferenceSettings())
    pid = process._manager._process.pid  # type: ignore[attr-defined]
    try:
        assert compare(process.run(each.inputs), each.expected).passed
        os.kill(pid, 9)
        with pytest.raises(ExecutionError, match="ended early"):
            process.run(each.inputs)
    finally:
        process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


_PROCESS = (
    "import os, sys, iosched\n"
    "from iosched.jobs.load_test.model_process import ModelProcess\n"
    "from iosched.runtime.reference import ReferenceSettings\n"
    "process = ModelProcess(iosched.load_model(sys.argv[1]), ReferenceSettings())\n"
)


def test_a_process_starts_where_temporary_files_have_long_paths(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "m.onnx")
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    words = [sys.executable, "-c", _PROCESS + "process.close()", str(tmp_path / "m.onnx")]
    subprocess.run(words, env={**os.environ, "TMPDIR": str(folder)}, timeout=60, check=True)
    assert not list(folder.iterdir())


def test_a_process_that_does_not_start_is_an_error(served: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process._Manager, "start", Mock(side_effect=EOFError))
    with pytest.raises(ExecutionError, match="ended early"):
        ModelProcess(next(iter(served.values())).model, ReferenceSettings())


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    onnx.save(chain(), tmp_path / "m.onnx")
    code = _PROCESS + "print(process._manager._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    words = [sys.executable, "-c", code, str(tmp_path / "m.onnx")]
    # the process inherits stdout, which is read until it has ended too
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip().isdigit()) == (-9, True)
