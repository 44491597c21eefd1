"""The scripts in `examples/` export, optimize, and run as their docstrings say."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
import pytest
from example_scripts import EXAMPLES, environment

import iosched


def run_example(path: Path, *words: object, folder: Path) -> str:
    """The stdout of a script, which runs in this process to share its imports."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setenv("IOSCHED_PROFILE_DB", ":memory:")
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(path), *map(str, words)])
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `digits.onnx`, exported from scikit-learn's ensemble, and the optimized model."""
    pytest.importorskip("skl2onnx", reason="the extra [examples] is not installed")
    folder = tmp_path_factory.mktemp("digits")
    words = ("digits.onnx", "--width", 16, "--optimize", "digits.iosched.onnx", "--budget", 1)
    printed = run_example(EXAMPLES / "export_sklearn.py", *words, folder=folder).splitlines()
    assert "of the test images are classified correctly" in printed[0]
    assert printed[1].startswith("digits.iosched.onnx: same outputs as scikit-learn; ships ")
    return folder


@pytest.mark.slow
def test_changing_one_import_keeps_the_answers(folder: Path) -> None:
    script = (EXAMPLES / "classify.py").read_text()
    ours, theirs = "from iosched import InferenceSession", "from onnxruntime import InferenceSession"
    assert script.count(ours) == 1
    (folder / "before.py").write_text(script.replace(ours, theirs))
    said = {
        run_example(path, model, folder=folder)
        for path, model in (
            (folder / "before.py", "digits.onnx"),
            (EXAMPLES / "classify.py", "digits.onnx"),
            (EXAMPLES / "classify.py", "digits.iosched.onnx"),
        )
    }
    assert len(said) == 1
    assert "% right: 0 " in said.pop()
    with iosched.load(folder / "digits.iosched.onnx") as model:
        assert model.document is not None
        session = iosched.InferenceSession(folder / "digits.iosched.onnx")
        assert session.is_scheduled == model.document.is_shipped


def make(out: Path, model: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    settings = [f"OUT={out}", f"PYTHON={sys.executable}", f"EXPORT=cp {model}", "BUDGET=1", "ROUNDS=6"]
    words = ["make", "-C", str(EXAMPLES / "pipeline"), *settings, *targets]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_pipeline_ends_with_a_gate_that_can_fail(folder: Path, tmp_path: Path) -> None:
    done = make(tmp_path, folder / "digits.onnx")
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout
    names = {"model.onnx", "model.iosched.onnx", "model.schedule.json", "checked", "bench.json", "baseline.json"}
    assert names | {"pipeline.log"} == {path.name for path in tmp_path.iterdir()}
    assert onnxruntime.InferenceSession(tmp_path / "model.iosched.onnx")
    log = (tmp_path / "pipeline.log").read_text()
    start = f"] iosched.cli.common.log_file: iosched --log-file {tmp_path}/pipeline.log"
    assert [log.count(f"{start} {command}") for command in ("optimize", "run", "bench", "diff")] == [1, 1, 1, 1]
    bench = json.loads((tmp_path / "bench.json").read_text())
    bench["samples_us"]["iosched"] = [each / 10 for each in bench["samples_us"]["iosched"]]
    (tmp_path / "baseline.json").write_text(json.dumps(bench))
    again = make(tmp_path, folder / "digits.onnx")
    assert again.returncode != 0
    assert "Error 4" in again.stderr
    assert "optimize" not in again.stdout  # existing files are kept


def exported(script: str, folder: Path) -> str:
    """The stdout of a script in a separate process, since it imports a framework."""
    words = ["m.onnx", "--optimize", "m.iosched.onnx", "--budget", "5"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: for Linux it brings gigabytes of CUDA")
def test_a_pytorch_network_keeps_its_outputs(tmp_path: Path) -> None:
    assert "m.iosched.onnx: same outputs as PyTorch" in exported("export_torch.py", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tf2onnx") is None, reason="Keras and TensorFlow are not installed: they are in [bench]")
def test_a_keras_network_keeps_its_outputs(tmp_path: Path) -> None:
    assert "m.iosched.onnx: same outputs as Keras" in exported("export_keras.py", tmp_path)
