"""Compares the packages that pip would install today for the GPU extras with those of the last `.ci/extras` run.

    python benchmarks/extras_resolved.py [cuda cuda12]

It prints the changes for each extra and installs nothing. The exit status is 1 if an extra can no longer be installed,
or only with packages that violate `.ci/extras.toml`. A newer version is no error, nor is an unreachable index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parent.parent
TRIED = ROOT / "benchmarks/results/extras.json"
SECONDS = 120
METADATA_ALONE = Version("25.3")  # older ones download whole packages, gigabytes, even if nothing is to be installed
OF_NO_CUDA = ("nvidia-cudnn-frontend", "nvidia-ml-py")

Versions = Mapping[str, str]


@dataclass(frozen=True)
class Promise:
    """Promises about an extra, whatever pip installs.

    Attributes:
        cuda: the major version of CUDA that all of its packages are for.
        capabilities: compute capabilities of the GPUs that it is for, times ten.
        gpus: for which GPUs, described in `devices/`, and in which precisions its cuDNN has plans.
        bounds: versions, by package.
    """

    cuda: int
    capabilities: Sequence[int]
    gpus: Mapping[str, Sequence[str]]
    bounds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """pip's answer: versions of all packages, or why there are none.

    Attributes:
        is_fault: whether the cause is the extra rather than pip or the connection to the index.
    """

    versions: Versions
    refusal: str = ""
    is_fault: bool = False


def promises(path: Path = ROOT / ".ci/extras.toml") -> dict[str, Promise]:
    """By extra."""
    return {name: Promise(**given) for name, given in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def requirements(extra: str) -> list[str]:
    """Requirements in pyproject.toml, of the package itself and of its extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def resolved(extra: str) -> Resolved:
    """Resolves the packages by the pip of this Python."""
    return ask_pip(requirements(extra))


def ask_pip(wanted: Sequence[str]) -> Resolved:
    """Packages that pip would install into an empty environment: from metadata alone, in about ten seconds."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    version = Version(_output([*pip, "--version"]).stdout.split()[1])
    if version < METADATA_ALONE:
        return Resolved({}, f"pip {version} would download everything; {METADATA_ALONE} or newer does not")
    # Not every index serves metadata separately; from others, pip reads the few KB of each package that have it.
    options = ["--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", "-"]
    quickly = ["--quiet", "--retries", "1", "--timeout", "15"]
    try:
        done = _output([*pip, "install", *options, *quickly, *wanted])
    except subprocess.TimeoutExpired:
        return Resolved({}, f"pip has not answered in {SECONDS} s")
    if done.returncode:
        return refused(done.stderr)
    return Resolved(versions_of(json.loads(done.stdout)))


def refused(said: str) -> Resolved:
    """Meaning of pip's error. If a connection failed, pip's conclusion from that is irrelevant."""
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    cut_off = re.search(r"Retrying \(|ConnectionError|[Tt]imed out|ProxyError|SSLError|HTTP error 5", said)
    no_such = re.search(r"No matching distribution|ResolutionImpossible|Invalid requirement", said)
    return Resolved({}, " ".join(errors) or "pip failed", is_fault=bool(no_such) and not cut_off)


def versions_of(report: Mapping[str, Any]) -> Versions:
    """Of pip's report, this package left out."""
    found = ((each["metadata"]["name"].lower(), each["metadata"]["version"]) for each in report["install"])
    return {name.replace("_", "-"): version for name, version in sorted(found) if name != "iosched"}


def broken(promise: Promise, versions: Versions) -> list[str]:
    """The broken promises, in words."""
    outside = [
        f"{name} {versions.get(name, '(none)')} is not {bound}"
        for name, bound in promise.bounds.items()
        if name not in versions or not SpecifierSet(bound, prereleases=True).contains(versions[name])
    ]
    return [*outside, *(f"{name} is not for CUDA {promise.cuda}" for name in versions if _is_alien(name, promise.cuda))]


def _is_alien(name: str, cuda: int) -> bool:
    """Whether a package is for another CUDA. NVIDIA's names end in "-cu12"; from CUDA 13 on, most have no suffix."""
    named = re.search(r"-cu(?:da)?(\d+)x?$", name)
    if named:
        return int(named[1]) != cuda
    return cuda <= 12 and name.startswith("nvidia-") and name not in OF_NO_CUDA


def moved(before: Versions, now: Versions) -> list[str]:
    """The changes, in words."""
    names = sorted(before.keys() | now.keys())
    changes = ((name, before.get(name, "(none)"), now.get(name, "(none)")) for name in names)
    return [f"{name} {old} -> {new}" for name, old, new in changes if old != new]


def verdict(extra: str, promise: Promise, found: Resolved, tried: Versions) -> tuple[str, bool]:
    """A line for people, and whether it is a fault."""
    if found.refusal:
        known = "cannot be installed" if found.is_fault else "not known whether it can be installed"
        return f"extra {extra}: {known}: {found.refusal}", found.is_fault
    faults = broken(promise, found.versions)
    if faults:
        return f"extra {extra}: not as .ci/extras.toml promises: {', '.join(faults)}", True
    changes = moved(tried, found.versions)
    if not changes:
        return f"extra {extra}: as .ci/extras tried it", False
    return f"extra {extra}: moved since .ci/extras tried it: {', '.join(changes)}", False


def main(arguments: Sequence[str], resolve: Callable[[str], Resolved] = resolved) -> int:
    promised = promises()
    extras = arguments or list(promised)
    tried = json.loads(TRIED.read_text(encoding="utf-8"))
    with ThreadPoolExecutor() as pool:
        found = dict(zip(extras, pool.map(resolve, extras), strict=True))
    before = {extra: tried.get(extra, {}).get("versions", {}) for extra in extras}
    verdicts = [verdict(extra, promised[extra], found[extra], before[extra]) for extra in extras]
    for line, _ in verdicts:
        print(line)
    return int(any(is_fault for _, is_fault in verdicts))


def _output(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
