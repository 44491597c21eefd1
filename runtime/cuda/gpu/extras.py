"""The extras of this package that bring a CUDA: which of them runs on which GPU under which driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iosched.runtime.missing_dependencies import way_to_install


@dataclass(frozen=True)
class Extra:
    """The packages of one CUDA, as `pip install '.[NAME]'` in a clone brings them.

    Attributes:
        cuda: major version of CUDA.
        least_capability: of the GPUs that its compiler and cuDNN have code for, times ten.
        least_driver: version of NVIDIA's driver for Linux with which that CUDA begins, of any minor version (CUDA's
            "Minor Version Compatibility", and cuDNN's support matrix).
        packages: those without which models do not run, or only slowly.
    """

    name: str
    cuda: int
    least_capability: int
    least_driver: int
    packages: tuple[str, ...]

    @property
    def install(self) -> str:
        """The clause that tells people how to install it."""
        return way_to_install(self.name)

    @property
    def way(self) -> str:
        """The clause that tells people to install it: packages of two extras, or of [cpu], overwrite each other."""
        return f"in an environment of its own, {self.install}"

    def runs_on(self, driver: int, capability: int) -> bool:
        """Whether a driver that supports CUDA up to `driver` (12040 is 12.4) runs it on such a GPU."""
        return driver // 1000 >= self.cuda and capability >= self.least_capability


EXTRAS = (
    Extra("cuda", 13, 75, 580, ("cupy-cuda13x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu13", "onnxruntime-gpu")),
    Extra("cuda12", 12, 70, 525, ("cupy-cuda12x", "nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "onnxruntime-gpu")),
)
"""The newest first."""

_LAST_DRIVER_FOR_OLD_GPUS = 580
"""The last driver for GPUs older than compute capability 7.5 (NVIDIA's deprecation schedule for Unix drivers)."""


def extra_for(driver: int, capabilities: Sequence[int]) -> Extra | None:
    """The extra for a machine with these GPUs: the newest of those that run on most of them; None if none does."""
    counts = {extra: sum(extra.runs_on(driver, each) for each in capabilities) for extra in EXTRAS}
    best = max(EXTRAS, key=lambda extra: counts[extra])
    return best if counts[best] else None


def extra_with(cuda: int) -> Extra | None:
    """The extra with the CUDA of this version (12040 is 12.4); None if there is none of that major version."""
    return next((extra for extra in EXTRAS if extra.cuda == cuda // 1000), None)


def way_to_run(driver: int, capability: int) -> str:
    """What to do, on a machine with such a driver, to have models run on such a GPU: a clause for people."""
    extra = extra_for(driver, [capability])
    if extra is not None:
        return extra.way
    known = [extra for extra in EXTRAS if capability >= extra.least_capability]
    if not known:
        least = EXTRAS[-1].least_capability / 10
        return f"models do not run on GPUs of compute capability {capability / 10}: they need {least} or newer"
    until = f", up to {_LAST_DRIVER_FOR_OLD_GPUS}" if len(known) < len(EXTRAS) else ""
    return f"update NVIDIA's driver to {known[0].least_driver} or newer{until}"


def version_text(number: int) -> str:
    """A version as people write it: "12.4" for CUDA's 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"
