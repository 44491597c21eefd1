"""Tests whether the installed packages of a GPU extra support its GPUs.

    bash .ci/extras [--record] [--into FOLDER] [cuda cuda12]     # calls  python benchmarks/extras_tried.py EXTRA

Needs no GPU, and measures nothing. cuDNN and cuBLAS must hold code for every compute capability in `.ci/extras.toml`,
and all of our kernels must compile for each. The tests of CuPy and cuDNN on the emulated CUDA must pass. For a share of
cuDNN's graphs, the plan chosen without timing copies its tensors or is of a generic engine, which is slow; this share
must not exceed that in `results/extras.json`.

Options:
    --record: write the findings to results/extras.json
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from command_line import read_options
from cudnn_layouts import read
from extras_resolved import ROOT, TRIED, Promise, Versions, broken, promises, requirements
from fatbin import DeviceCode, device_code
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from results_files import keep_results, known_results

NETWORKS = ("inception_v3", "randwire", "nasnet_a", "squeezenet")
NEEDED = ("libcudnn", "libcublas")  # operators that onnxruntime has no code for run on the CPU
COMPILING = ("tests/runtime/cuda/kernels/test_compile.py",)
AT_THE_DESK = (
    "tests/runtime/cuda/gpu/test_cupy_driver.py",
    "tests/runtime/cuda/gpu/test_cupy_exchange.py",
    "tests/runtime/cuda/cudnn/test_cudnn_plans.py",
)


@dataclass(frozen=True)
class Plans:
    """cuDNN's plans for the different graphs of the networks, in the preferred image layout.

    Attributes:
        gpu: the GPU described, by its file in `devices/`.
        generic: graphs for which the plan taken without timing is of a generic engine.
        copying: graphs for which it copies whole tensors.
    """

    gpu: str
    precision: str
    graphs: int
    generic: int
    copying: int

    def worse(self, before: Plans) -> list[str]:
        """The growth, in words."""
        pairs = (("generic", self.generic, before.generic), ("copying", self.copying, before.copying))
        return [
            f"{self.gpu} {self.precision}: {what} plans for {now} of {self.graphs} graphs, before for {then} of"
            f" {before.graphs}"
            for what, now, then in pairs
            if now * before.graphs > then * self.graphs
        ]


@dataclass(frozen=True)
class Passed:
    """A run of tests.

    Attributes:
        problems: those that failed or were skipped.
    """

    tests: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Tried:
    """Findings about an extra."""

    versions: Versions
    code: Mapping[str, DeviceCode]
    compiled: Passed
    desk: Passed
    plans: Sequence[Plans]
    unbuilt: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """For the results file."""
        return {
            "versions": self.versions,
            "code": {name: {"machine": list(each.machine), "ptx": list(each.ptx)} for name, each in self.code.items()},
            "compiled": self.compiled.tests,
            "desk": self.desk.tests,
            "plans": [asdict(each) for each in self.plans],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    takes = {"extra": {"choices": list(promises())}}
    options = read_options(__file__, arguments, takes, record=False)
    promise = promises()[options.extra]
    recorded = known_results(TRIED)
    tried = _tried(options.extra, promise)
    before = [Plans(**each) for each in recorded.get(options.extra, {}).get("plans", [])]
    found = faults(promise, tried, [] if options.record else before)
    for line in (*report(promise, tried, before), *(f"FAULT: {each}" for each in found)):
        print(line)
    if options.record:
        recorded[options.extra] = tried.record()
        extras = {extra: recorded[extra] for extra in promises() if extra in recorded}
        keep_results(TRIED, extras, seeds={}, goes_on=True, in_lines=True)
    return int(bool(found))


def faults(promise: Promise, tried: Tried, before: Sequence[Plans]) -> list[str]:
    """Broken promises and deteriorations, in words."""
    recorded = {(each.gpu, each.precision): each for each in before}
    return [
        *broken(promise, tried.versions),
        *(f"{name} has no code for {capability / 10}" for name, capability in _lacks(promise, tried.code, NEEDED)),
        *(f"not compiled: {each}" for each in tried.compiled.problems),
        *(f"not passed: {each}" for each in tried.desk.problems),
        *(f"not built: {each}" for each in tried.unbuilt),
        *(words for each in tried.plans for words in each.worse(recorded.get((each.gpu, each.precision), each))),
    ]


def report(promise: Promise, tried: Tried, before: Sequence[Plans]) -> Iterator[str]:
    """The findings as text."""
    yield " ".join(f"{name}=={version}" for name, version in tried.versions.items())
    for name, code in tried.code.items():
        machine, ptx = (", ".join(str(each / 10) for each in kind) for kind in (code.machine, code.ptx))
        yield f"{name}: machine code for {machine or 'none'}; PTX for {ptx or 'none'}"
    for name, capability in _lacks(promise, tried.code):
        yield f"note: {name} has no code for {capability / 10}"
    yield f"{tried.compiled.tests} compilations of all kernels, {tried.desk.tests} tests at the desk"
    old = {(each.gpu, each.precision): f"; before {each.generic}, {each.copying} of {each.graphs}" for each in before}
    for each in tried.plans:
        counts = f"{each.generic} with generic plans, {each.copying} with plans that copy tensors"
        recorded = old.get((each.gpu, each.precision), "")
        yield f"{each.gpu} {each.precision}: of {each.graphs} graphs {counts}{recorded}"


def _lacks(
    promise: Promise, code: Mapping[str, DeviceCode], beginnings: tuple[str, ...] = ("",)
) -> Iterator[tuple[str, int]]:
    """Libraries that have code for GPUs, with the capabilities that they lack."""
    for name, each in code.items():
        if name.startswith(beginnings):
            yield from ((name, capability) for capability in promise.capabilities if not each.runs_on(capability))


def _tried(extra: str, promise: Promise) -> Tried:
    capabilities = ",".join(map(str, promise.capabilities))
    built = {gpu: _rows(gpu, precisions) for gpu, precisions in promise.gpus.items()}
    return Tried(
        versions=installed(requirements(extra)),
        code=_device_codes(),
        compiled=run_tests(COMPILING, IOSCHED_ARCHITECTURES=capabilities),
        desk=run_tests(AT_THE_DESK),
        plans=[each for gpu, rows in built.items() for each in plans_of(rows, gpu)],
        unbuilt=[f"plans for {gpu}" for gpu, rows in built.items() if not rows],
    )


def installed(wanted: Sequence[str]) -> Versions:
    """Versions of the installed packages that these requirements need, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(each), "") for each in wanted]
    while waiting:
        requirement, within = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": within}):
            continue
        name = canonicalize_name(requirement.name)
        found[name] = metadata.version(name)
        for extra in {"", *requirement.extras} - {extra for each, extra in seen if each == name}:
            seen.add((name, extra))
            waiting += [(Requirement(each), extra) for each in metadata.requires(name) or []]
    return dict(sorted(found.items()))


def _device_codes() -> dict[str, DeviceCode]:
    """Of the libraries of cuDNN, of cuBLAS and of onnxruntime that hold code for GPUs."""
    site = Path(str(metadata.distribution("onnxruntime-gpu").locate_file("")))
    names = ("nvidia/*/lib/libcudnn*.so*", "nvidia/*/lib/libcublas*.so*", "onnxruntime/capi/libonnxruntime_providers_*")
    libraries = [path for name in names for path in site.glob(name)]
    found = {path.name: device_code(path) for path in sorted(libraries)}
    return {name: code for name, code in found.items() if code}


def run_tests(files: Sequence[str], **variables: str) -> Passed:
    """Runs test files; a skipped test is a problem, since its requirements are installed."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-n", "auto", f"--junitxml={path}", *files]
        done = subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, check=False, stdout=subprocess.DEVNULL)
        return passed(ET.parse(path)) if path.exists() else Passed(0, (f"pytest ended with {done.returncode}",))


def passed(tree: ET.ElementTree) -> Passed:
    """Reads pytest's XML."""
    cases = list(tree.iter("testcase"))
    problems = [
        f"{case.get('name')}: {kind.tag}, {(kind.get('message') or '').splitlines()[:1]}"
        for case in cases
        for kind in case
        if kind.tag in ("failure", "error", "skipped")
    ]
    return Passed(len(cases), tuple(problems) if cases else ("no tests",))


def _rows(gpu: str, precisions: Sequence[str]) -> list[Mapping[str, Any]]:
    """One for each distinct graph of the networks, see `cudnn_layouts.py`; none if one of them has no plan."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        words = [sys.executable, "benchmarks/cudnn_layouts.py", "--networks", ",".join(NETWORKS), "--batch-sizes", "1"]
        words += ["--device", f"benchmarks/devices/{gpu}.json", "--precisions", ",".join(precisions), "-o", str(path)]
        subprocess.run(words, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
        return read(path)["graphs"] if path.exists() else []


def plans_of(rows: Sequence[Mapping[str, Any]], gpu: str) -> list[Plans]:
    """One for each precision."""
    copies: dict[str, list[str]] = {}
    for row in rows:
        if row["preferred"]:
            copies.setdefault(row["precision"], []).append(row["taken_copies"])
    return [
        Plans(gpu, precision, len(found), generic=found.count("generic"), copying=found.count("tensors"))
        for precision, found in copies.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
