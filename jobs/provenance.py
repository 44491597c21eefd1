"""Where results come from: the machine, the versions, the command, the seeds and the time."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError

from iosched.models.version import iosched_commit, iosched_version
from iosched.profiler.devices.facts import package_version
from iosched.runtime.cores import allowed_cpus, cpu_quota
from iosched.runtime.memory import machine_nbytes
from iosched.runtime.processor import read_processor

_PACKAGES = (
    *("numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino"),
    *("cupy-cuda12x", "cupy-cuda13x", "nvidia-cudnn-frontend", "torch"),
)
"""Packages that compute or measure something."""

_OF_THE_MOMENT = ("cores", "quota", "kernel")
"""Facts that change on the same machine, left out of files that are compared byte by byte."""


@dataclass(frozen=True)
class Machine:
    """The machine that something was computed or measured on.

    Attributes:
        cpu: the product name of its processor.
        design: see `Processor.design`.
        cores: the numbers of the processors that this process may use.
        quota: the CPU quota in cores, if limited.
        processors: the number of processors of the machine.
        memory_nbytes: bytes of memory of the machine.
        system: the operating system ("Linux").
        kernel: the release of the operating system's kernel.
        architecture: the processor's architecture ("x86_64").
    """

    cpu: str
    design: Mapping[str, str]
    cores: tuple[int, ...]
    quota: float | None
    processors: int | None
    memory_nbytes: int | None
    system: str
    kernel: str
    architecture: str


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from.

    Attributes:
        machine: where it was computed.
        versions: of iosched, its commit if known, Python and libraries.
        seeds: seeds by purpose.
        command: the words of the command line, as they were typed; None if it was no command.
        time: when the result was made, in UTC (ISO 8601).
    """

    machine: Machine
    versions: Mapping[str, str]
    seeds: Mapping[str, int] = field(default_factory=dict)
    command: tuple[str, ...] | None = None
    time: str | None = None

    def as_kept(self) -> dict[str, object]:
        """The constant part, for files that are reproducible byte by byte."""
        machine = {key: value for key, value in asdict(self.machine).items() if key not in _OF_THE_MOMENT}
        return {"machine": machine, "versions": dict(self.versions), "seeds": dict(self.seeds)}


def provenance(seeds: Mapping[str, int] = {}, command: Sequence[str] | None = None) -> Provenance:
    """The provenance of a result that this process makes now.

    Args:
        seeds: seeds by purpose.
        command: the words of the command line, without secrets.
    """
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Provenance(this_machine(), own_versions(), dict(seeds), None if command is None else tuple(command), time)


def this_machine() -> Machine:
    """This machine, as this process sees it."""
    processor = read_processor()
    return Machine(
        cpu=processor.name,
        design=dict(processor.design),
        cores=tuple(allowed_cpus()),
        quota=cpu_quota(),
        processors=os.cpu_count(),
        memory_nbytes=machine_nbytes(),
        system=platform.system(),
        kernel=platform.release(),
        architecture=platform.machine(),
    )


def own_versions() -> dict[str, str]:
    """Versions of installed packages, without importing them."""
    try:
        own = {"iosched": iosched_version()}
    except PackageNotFoundError:  # found on Python's path alone
        own = {}
    known = {"commit": iosched_commit(), **{name: package_version(name) for name in _PACKAGES}}
    return {**own, "python": platform.python_version(), **{name: text for name, text in known.items() if text}}
