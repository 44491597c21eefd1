"""Facts about the CPU: the processor, the runtime, and whether the compiled executor was built."""

from __future__ import annotations

from pathlib import Path

from iosched.profiler.devices.cpu.cost import cpu_name
from iosched.profiler.devices.facts import DeviceFacts, package_version
from iosched.runtime.cores import allowed_cpus, cpu_count
from iosched.runtime.cpu import library
from iosched.runtime.cpu.claims import PROCESS
from iosched.runtime.quota import cpu_quota

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_INSTRUCTION_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}


def cpu_facts() -> DeviceFacts:
    """Facts about this machine's CPU and what is installed to run on it."""
    versions = {name: package_version(name) for name in RUNTIMES}
    runtime = next(((name, version) for name, version in versions.items() if version), None)
    name, cores, quota, threads = cpu_name(), len(allowed_cpus()), cpu_quota(), cpu_count()
    instructions = _instruction_set(_cpu_field("flags") or _cpu_field("Features") or "")
    taken = sum(map(bool, PROCESS.others(allowed_cpus()).values()))
    compiled, missing = library.available(), library.missing()
    return DeviceFacts(
        "cpu",
        {
            "kind": "cpu",
            "name": name,
            "cores": cores,
            "quota": quota,
            "threads": threads,
            "taken": taken,
            "instruction_set": instructions,
            "runtime": None if runtime is None else {"name": runtime[0], "version": runtime[1]},
            "compiled_executor": compiled,
            "compiled_executor_missing": missing,
            "usable": runtime is not None,
        },
        (
            ("name", name),
            ("cores", f"{cores}, other processes of iosched have taken {taken}" if taken else str(cores)),
            *([] if quota is None else [("quota", f"the time of {quota:g} cores; threads by default: {threads}")]),
            ("instruction set", instructions),
            ("runtime", f"{runtime[0]} {runtime[1]}" if runtime else "none: run  pip install 'iosched[cpu]'"),
            ("executor", "compiled" if compiled else f"pure Python, slower: {missing}"),
        ),
    )


def _cpu_field(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == key), None)


def _instruction_set(flags: str) -> str:
    present = set(flags.split())
    return next((text for flag, text in _INSTRUCTION_SETS.items() if flag in present), "baseline")
