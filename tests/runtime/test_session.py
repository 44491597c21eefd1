"""onnxruntime as iosched loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
from small_models import branches


def test_onnxruntime_writes_no_device_identifier_for_its_telemetry(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "model.onnx")
    # Without the variables of CI services, under which onnxruntime sends nothing either.
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "iosched", "run", str(tmp_path / "model.onnx")]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name]
