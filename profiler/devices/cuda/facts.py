"""Facts about attached GPUs: their names, the packages that are missing, and what else prevents their use."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from iosched.profiler.devices.cuda.probe import GpuProbe, probe
from iosched.profiler.devices.facts import DeviceFacts, package_version

PACKAGES = ("cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "onnxruntime-gpu")
_INSTALL = "pip install 'iosched[cuda]'"


def cuda_facts() -> DeviceFacts:
    """Facts about this machine's GPUs and about what is missing for using them."""
    missing = [package for package in PACKAGES if package_version(package) is None]
    names = gpu_names()
    found = probe() if names and find_spec("cupy") is not None else GpuProbe()
    values = {
        "kind": "cuda",
        "names": names,
        "missing_packages": missing,
        "problems": list(found.problems),
        "remarks": list(found.remarks),
        "usable": found.usable,
    }
    rows = [("devices", ", ".join(names) or "none: no NVIDIA GPU, or its driver is not loaded")]
    if missing:
        there = ("missing", f"{', '.join(missing)}: run  {_INSTALL}")
        rows.append(there if names else ("packages", f"not installed; with a GPU, run  {_INSTALL}"))
    rows += [("in the way", problem) for problem in found.problems]
    rows += [("note", remark) for remark in found.remarks]
    return DeviceFacts("cuda", values, tuple(rows))


def gpu_names() -> list[str]:
    """Names of the attached GPUs, from the files or the tool of the driver, so that no package has to be installed."""
    return _names_from_files() or _names_from_tool()


def _names_from_files() -> list[str]:
    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _names_from_tool() -> list[str]:
    """Names of the GPUs in a container, where the driver's files are missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
