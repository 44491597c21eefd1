"""On a GPU each of our own kernels writes the same as its `interpret`, and nothing else.

These are the tests of tests/runtime/cuda, run there in a separate process: a kernel that breaks memory ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iosched.profiler.devices.cuda.attached import AttachedGpu

TESTS = Path(__file__).parents[1] / "runtime" / "cuda"
FILES = sorted(path for path in TESTS.rglob("test_*.py") if "needs_compiler" in path.read_text(encoding="utf-8"))


def test_there_are_kernels() -> None:
    assert {"test_depthwise.py", "test_pool.py", "test_binary.py"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.removeprefix("test_"))
def test_kernels(gpu: AttachedGpu, path: Path) -> None:
    paths = (str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)
    environment = {**os.environ, "IOSCHED_KERNELS_ON": "gpu", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
