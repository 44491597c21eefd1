"""`iosched devices`: what this machine can run on, and what is missing for the rest."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from iosched.cli.options import json_option, verbosity_options
from iosched.cli.output import emit_json

if TYPE_CHECKING:
    from iosched.profiler.devices.cuda.probe import GpuProbe

CPU_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
CUDA_PACKAGES = ("cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "onnxruntime-gpu")


@click.command(name="devices", short_help="Devices seen, and what is missing to use them.")
@json_option
@verbosity_options
def command(as_json: bool) -> None:
    """List the devices of this machine, what is missing to use them, and GPUs that can be planned for."""
    cpu, gpu = cpu_facts(), cuda_facts()
    if as_json:
        emit_json({"devices": [cpu, gpu], "plannable": plannable()})
        return
    from iosched.cli.tables import print_pairs

    print_pairs("cpu", _cpu_rows(cpu), to_stderr=False)
    print_pairs("cuda", _cuda_rows(gpu), to_stderr=False)
    rows = [(known["device"], known["name"]) for known in plannable()]
    print_pairs("can be planned for without being here: optimize --device NAME", rows, to_stderr=False)


def plannable() -> list[dict[str, str]]:
    """The GPUs that `optimize --device` can plan for by the analytic model."""
    from iosched.profiler.devices.gpus import gpu_named, gpu_names

    specs = [gpu_named(name) for name in gpu_names()]
    return [{"device": spec.key, "name": spec.name} for spec in specs if spec is not None]


def cpu_facts() -> dict[str, Any]:
    """The processor, the runtime, and whether the compiled executor was built."""
    import os

    from iosched.profiler.devices.cpu.cost import cpu_name
    from iosched.runtime.cpu import native

    runtime = _first_installed(CPU_RUNTIMES)
    return {
        "kind": "cpu",
        "name": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_set": _instruction_set(_cpu_field("flags") or _cpu_field("Features") or ""),
        "runtime": None if runtime is None else {"name": runtime[0], "version": runtime[1]},
        "compiled_executor": native.available(),
        "compiled_executor_missing": native.missing(),
        "usable": runtime is not None,
    }


def cuda_facts() -> dict[str, Any]:
    """The GPUs that the driver shows, which packages are missing, and what else is in the way of using them."""
    missing = [package for package in CUDA_PACKAGES if _version(package) is None]
    names = _gpu_names()
    found = _probed() if names and find_spec("cupy") is not None else None
    return {
        "kind": "cuda",
        "names": names,
        "missing_packages": missing,
        "problems": [] if found is None else list(found.problems),
        "remarks": [] if found is None else list(found.remarks),
        "usable": found is not None and found.usable,
    }


def _probed() -> GpuProbe:
    from iosched.profiler.devices.cuda.probe import probe

    return probe()


def _first_installed(packages: tuple[str, ...]) -> tuple[str, str] | None:
    return next(((name, version) for name in packages if (version := _version(name))), None)


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_field(key: str) -> str | None:
    from pathlib import Path

    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next(
        (value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == key), None
    )


def _instruction_set(flags: str) -> str:
    known = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}
    present = set(flags.split())
    return next((text for flag, text in known.items() if flag in present), "baseline")


def _gpu_names() -> list[str]:
    """Names from the driver's own files or its own tool: nothing has to be installed for them."""
    return _names_from_files() or _names_from_tool()


def _names_from_files() -> list[str]:
    from pathlib import Path

    names = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _names_from_tool() -> list[str]:
    """Names from nvidia-smi, for containers, which do not have the driver's files."""
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _cpu_rows(cpu: dict[str, Any]) -> list[tuple[str, str]]:
    runtime = cpu["runtime"]
    return [
        ("name", cpu["name"]),
        ("cores", str(cpu["cores"])),
        ("instruction set", cpu["instruction_set"]),
        (
            "runtime",
            f"{runtime['name']} {runtime['version']}" if runtime else "none: run  pip install 'iosched[cpu]'",
        ),
        (
            "executor",
            "compiled" if cpu["compiled_executor"] else f"pure Python, slower: {cpu['compiled_executor_missing']}",
        ),
    ]


def _cuda_rows(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("devices", ", ".join(gpu["names"]) or "none: no NVIDIA GPU, or its driver is not loaded")]
    if gpu["missing_packages"] and gpu["names"]:
        rows.append(("missing", f"{', '.join(gpu['missing_packages'])}: run  pip install 'iosched[cuda]'"))
    elif gpu["missing_packages"]:
        rows.append(("packages", "not installed; with a GPU, run  pip install 'iosched[cuda]'"))
    rows += [("in the way", problem) for problem in gpu["problems"]]
    rows += [("note", remark) for remark in gpu["remarks"]]
    return rows
