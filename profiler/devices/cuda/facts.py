"""Facts about attached GPUs: names, usability, missing packages and other problems."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from iosched.models.errors import DeviceError, IoschedError
from iosched.profiler.devices.cuda.attached import check_gpu
from iosched.profiler.devices.facts import DeviceFacts, Finding, package_version
from iosched.profiler.devices.gpus import spec_of
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.gpu.extras import (
    EXTRAS,
    NO_DRIVER,
    DriverGpu,
    DriverInfo,
    Extra,
    extra_for,
    query_driver,
    version_text,
    way_to_run,
)
from iosched.runtime.session import load_onnxruntime


def cuda_facts() -> DeviceFacts:
    """Facts about this machine's GPUs, and about the packages that are missing to use them."""
    seen = query_driver()
    names = [gpu.name for gpu in seen.gpus] or gpu_names()
    known = seen if seen.gpus else _by_name(names)
    extra = extra_for_machine(known)
    missing = [] if extra is None else missing_packages(extra)
    found = probe() if names and find_spec("cupy") is not None else GpuProbe()
    problems = [*_unservable(known), *found.problems]
    values = {
        "kind": "cuda",
        "names": names,
        "driver_cuda": version_text(seen.cuda) if seen.cuda else None,
        "extra": extra.name if names and extra is not None else None,
        "missing_packages": missing,
        "problems": problems,
        "remarks": list(found.remarks),
        "usable": found.usable,
    }
    rows = [("devices", ", ".join(names) or "none: no NVIDIA GPU, or its driver is not loaded")]
    if names or seen.problem != NO_DRIVER:
        rows.append(("driver", "; ".join(_of_driver(seen))))
    if names and extra is not None:
        rows.append(("extra", f"[{extra.name}]{_reason(extra, known)}"))
    if missing and extra is not None:
        there = ("missing", f"{', '.join(missing)}: {extra.way}")
        rows.append(there if names else ("packages", f"not installed; with a GPU, {extra.install}"))
    rows += [("problem", problem) for problem in problems]
    rows += [("note", remark) for remark in found.remarks]
    rows += [("self-test", "iosched devices --selftest")] * found.usable
    return DeviceFacts("cuda", values, tuple(rows), tuple(_findings(names, extra, missing, found)))


def _findings(names: Sequence[str], extra: Extra | None, missing: Sequence[str], found: GpuProbe) -> Iterator[Finding]:
    """Problems of attached GPUs. A GPU without any package is only a remark: the user may want only the CPU."""
    if not names:
        return
    where = ", ".join(names)
    if extra is None:
        yield Finding("models do not run on this GPU", where, "use the CPU, or simulate another GPU", is_broken=False)
        return
    if missing:
        is_begun = len(missing) < len(extra.packages)
        yield Finding(f"not installed: {', '.join(missing)}", where, extra.way, is_broken=is_begun)
    for problem in found.problems:
        yield Finding(problem, where, "run 'iosched devices --selftest' for details", is_broken=not missing)
    for remark in found.remarks:
        yield Finding(remark, where, extra.way, is_broken=False)


def _by_name(names: Sequence[str]) -> DriverInfo:
    """Facts that a new driver's library would report about these GPUs, except those without a specification."""
    specs = [(name, spec_of(name)) for name in names]
    gpus = (DriverGpu(name, spec.capability) for name, spec in specs if spec is not None)
    return DriverInfo(1000 * EXTRAS[0].cuda, tuple(gpus))


def missing_packages(extra: Extra) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for package in extra.packages if package_version(package) is None]


def extra_for_machine(seen: DriverInfo) -> Extra | None:
    """The extra for this machine: an installed one, unless the best one supports more of its GPUs.

    If the driver is too old for all extras, the one for a new driver; None if no extra has code for the GPUs.
    """
    driver = seen.cuda if extra_for(seen.cuda, seen.capabilities) else max(seen.cuda, 1000 * EXTRAS[0].cuda)
    best = extra_for(driver, seen.capabilities) if seen.gpus else EXTRAS[0]
    served = {extra: sum(extra.runs_on(driver, each) for each in seen.capabilities) for extra in EXTRAS}
    as_good = (extra for extra in EXTRAS if best is not None and served[extra] == served[best])
    return next((extra for extra in as_good if not missing_packages(extra)), best)


def _of_driver(seen: DriverInfo) -> list[str]:
    known = [f"for CUDA {version_text(seen.cuda)}"] if seen.cuda else []
    return [*known, seen.problem] if seen.problem else known


def _reason(extra: Extra, seen: DriverInfo) -> str:
    """Why this extra is not the newest one; empty if it is."""
    newest = EXTRAS[0]
    old = [gpu for gpu in seen.gpus if gpu.capability < newest.least_capability]
    if extra is newest or not seen.gpus:
        return ""
    if old:
        least, own = newest.least_capability / 10, old[0].capability / 10
        return f", since {old[0].name} has compute capability {own}, and [{newest.name}] needs {least} or newer"
    if seen.cuda // 1000 < newest.cuda:
        return f", since [{newest.name}] needs a driver for CUDA {newest.cuda}: {newest.least_driver} or newer"
    return ", which is installed"


def _unservable(seen: DriverInfo) -> list[str]:
    """For each GPU that no extra supports, the reason."""
    return [
        f"{gpu.name}: {way_to_run(seen.cuda, gpu.capability)}"
        for gpu in seen.gpus
        if extra_for(seen.cuda, [gpu.capability]) is None
    ]


def gpu_names() -> list[str]:
    """Names of the attached GPUs from the driver's files or tool, including those that its library hides."""
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


_CUDA_PROVIDER = "CUDAExecutionProvider"


@dataclass(frozen=True)
class GpuProbe:
    """Which GPUs of this machine can be used.

    Attributes:
        names: of the GPUs by their numbers in CUDA; "" for unusable ones.
        problems: why GPUs cannot be used, each with a fix.
        remarks: what is missing for full speed.
    """

    names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether at least one GPU can be used."""
        return any(self.names)


def probe() -> GpuProbe:
    """Tries CuPy, the driver, each GPU and cuDNN, up to the first failure."""
    names: list[str] = []
    problems: list[str] = []
    try:
        driver = CupyDriver()
        for index in range(driver.count):
            facts = driver.facts(index)
            try:
                check_gpu(facts)
                names.append(facts.name)
            except DeviceError as error:
                names.append("")
                problems.append(f"GPU {index}: {error}")
    except IoschedError as error:
        return GpuProbe(("",) * len(names), (*problems, str(error)))
    return GpuProbe(tuple(names), tuple(problems), _remarks())


def usable_names() -> tuple[str, ...]:
    """Names of the GPUs by their numbers, "" for unusable ones; none without CuPy or cuDNN's frontend."""
    if find_spec("cupy") is None or find_spec("cudnn") is None:
        return ()
    return probe().names


def _remarks() -> tuple[str, ...]:
    if find_spec("onnxruntime") is None:
        return ("onnxruntime is not installed: operators without a CUDA kernel cannot run",)
    if _CUDA_PROVIDER in load_onnxruntime().get_available_providers():
        return ()
    return (
        "this onnxruntime has no CUDA provider: operators without a CUDA kernel run on the CPU (install"
        " onnxruntime-gpu instead of onnxruntime)",
    )
