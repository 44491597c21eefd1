"""Facts about the CPU: the processor, the runtime, and the compiled executor."""

from __future__ import annotations

from collections.abc import Iterator

from iosched.profiler.devices.facts import DeviceFacts, Finding, package_version
from iosched.runtime.cores import allowed_cpus, cpu_quota
from iosched.runtime.cpu import library
from iosched.runtime.cpu.lane_cpus import PROCESS
from iosched.runtime.cpu.precision import precisions
from iosched.runtime.missing_dependencies import way_to_install
from iosched.runtime.openvino import library as openvino
from iosched.runtime.processor import read_processor
from iosched.runtime.topology import default_threads

_WAY = way_to_install("cpu")
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")


def cpu_facts() -> DeviceFacts:
    """Facts about this machine's CPU and its runtimes."""
    versions = {name: package_version(name) for name in RUNTIMES}
    runtime = next(((name, version) for name, version in versions.items() if version), None)
    processor, quota, threads = read_processor(), cpu_quota(), default_threads()
    name, cores, instructions = processor.name, len(allowed_cpus()), processor.instruction_set
    taken = sum(map(bool, PROCESS.others(allowed_cpus()).values()))
    compiled, missing = library.available(), library.missing()
    return DeviceFacts(
        "cpu",
        {
            "kind": "cpu",
            "name": name,
            "design": dict(processor.design),
            "cores": cores,
            "quota": quota,
            "threads": threads,
            "taken": taken,
            "instruction_set": instructions,
            "precisions": list(precisions()),
            "runtime": None if runtime is None else {"name": runtime[0], "version": runtime[1]},
            "openvino": openvino.installed_version() if openvino.available() else None,
            "compiled_executor": compiled,
            "compiled_executor_missing": missing,
            "compiled_executor_version": library.version(),
            "usable": runtime is not None,
        },
        (
            ("name", name),
            *([("design", processor.text)] if processor.text else []),
            ("cores", f"{cores}, {taken} of them used by other iosched processes" if taken else str(cores)),
            *([] if quota is None else [("quota", f"CPU time of {quota:g} cores; default threads: {threads}")]),
            ("instruction set", instructions),
            ("precisions", ", ".join(precisions())),
            ("runtime", f"{runtime[0]} {runtime[1]}" if runtime else f"none; {_WAY}"),
            ("openvino", openvino.missing() or f"openvino {openvino.installed_version()}"),
            ("executor", f"compiled, {library.version()}" if compiled else f"pure Python, slower: {missing}"),
        ),
        tuple(_findings(is_runnable=runtime is not None)),
    )


def _findings(*, is_runnable: bool) -> Iterator[Finding]:
    if not is_runnable:
        yield Finding("models cannot run on the CPU without onnxruntime", "onnxruntime", _WAY)
    slow = library.missing()
    if slow is not None and (is_runnable or library.compiled() is None):
        what, _, way = slow.partition("; ")
        what = f"{what}: models run on the slower Python executor"
        yield Finding(what, "compiled executor", way, is_broken=library.was_built())
    unused = openvino.missing()
    if unused is not None and openvino.installed_version() is not None:
        what, _, way = unused.partition("; ")
        yield Finding(what, "openvino", way)
