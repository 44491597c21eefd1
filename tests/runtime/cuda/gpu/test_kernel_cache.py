"""CuPy keeps compiled kernels in the home of the user; if that cannot be written, in a separate folder."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from iosched.runtime.cuda.gpu.cupy import _find_cache

NO_HOME = "/proc/none"  # not even root can make it


def test_a_home_that_cannot_be_written_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", NO_HOME)
    monkeypatch.setenv("CUPY_CACHE_DIR", "")
    _find_cache()
    found = Path(os.environ["CUPY_CACHE_DIR"])
    assert found.is_dir()
    assert found.stat().st_mode & 0o077 == 0, "others could put kernels there"
    _find_cache()
    assert os.environ["CUPY_CACHE_DIR"] == str(found), "one folder for a process"


def test_a_requested_folder_that_cannot_be_written_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", f"{NO_HOME}/cache")
    _find_cache()
    assert Path(os.environ["CUPY_CACHE_DIR"]).is_dir()


def test_a_folder_that_can_be_written_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUPY_CACHE_DIR", "")
    _find_cache()
    assert not os.environ["CUPY_CACHE_DIR"]
    assert (tmp_path / ".cupy" / "kernel_cache").is_dir()


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_the_search_for_gpus_without_a_home_leaves_no_files() -> None:
    code = (
        "import os; from iosched.profiler.devices.cuda.facts import usable_names\n"
        "print(usable_names() is not None, os.environ['CUPY_CACHE_DIR'])"
    )
    environment = {key: value for key, value in os.environ.items() if key != "CUPY_CACHE_DIR"} | {"HOME": NO_HOME}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    usable, folder = done.stdout.split()
    assert usable == "True"
    assert not Path(folder).exists()
