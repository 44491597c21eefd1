"""A C++ program runs an exported model in onnxruntime with iosched as its provider, without Python."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from shipped import optimized_file
from small_models import branches

import iosched
from iosched.jobs.export import export
from iosched.runtime.cpu import library

COMPILER = shutil.which("c++")
pytestmark = [
    pytest.mark.skipif(not library.available(), reason="the compiled executor is not built"),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
]
SOURCE = Path(__file__).parents[2] / "support" / "provider_host.cpp"
X = (np.arange(8 * 6 * 6) % 7 - 3).astype(np.float32).reshape(1, 8, 6, 6)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    found = tmp_path_factory.mktemp("host") / "host"
    subprocess.run([str(COMPILER), "-std=c++17", str(SOURCE), "-o", str(found), "-ldl"], check=True)
    return found


def run(host: Path, model: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    given = [host, library.onnxruntime_path(), iosched.plugin_path(), model, "x", "y", str(X.size), *words]
    return subprocess.run([str(each) for each in given], capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("end", [(), ("release",)], ids=["open", "released"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_program_runs_a_plan_and_ends(host: Path, tmp_path: Path, lanes: int, end: tuple[str, ...]) -> None:
    path = export(optimized_file(tmp_path / "m.iosched.onnx", branches()), tmp_path / "out", threads=lanes).model
    found = run(host, path, *end)
    assert (found.returncode, found.stderr) == (0, b"")
    with iosched.load(path) as own:
        assert found.stdout == own.run({"x": X})["y"].tobytes()


def test_without_its_plan_the_program_reports_the_reason(host: Path, tmp_path: Path) -> None:
    path = export(optimized_file(tmp_path / "m.iosched.onnx", branches()), tmp_path / "out", threads=1).model
    path.with_suffix(".plan").unlink()
    found = run(host, path)
    assert found.returncode == 1
    assert b"No such file" in found.stderr
    assert b"fallback" in found.stderr
