"""Specifications of GPUs; the numbers and their sources are in `gpus.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from iosched.scheduler.precision import PrecisionName

_MAKE = re.compile(r"^(?:nvidia|geforce|tesla|rtx)+")
_OTHER_CARDS = frozenset({"pcie", "nvl", "mig", "laptop", "mobile", "q", "fhhl", "d"})
"""Words in a driver's name of another card: on another board, throttled, cut down, or a part of one."""


@dataclass(frozen=True)
class GpuSpec:
    """The specification of a GPU.

    Attributes:
        key: the short name for `--device` ("v100").
        cores_per_sm: FP32 lanes of each streaming multiprocessor.
        boost_mhz: clock of the peaks below, in 10^12 operations a second.
        fp32_tflops: peak of the CUDA cores.
        tf32_tflops: dense peak of the tensor cores; None if they do not support TF32.
        fp16_tensor_tflops: dense peak of the tensor cores, FP32 accumulate; None without any.
        dram_gb_per_s: bandwidth of the device memory, 10^9 bytes a second.
        l2_nbytes: size of the cache shared by all SMs.
        power_watts: power limit as delivered.
        process_nm: nominal process of its chip.
        confidence: "A" if every number was read in a source, "B" if one was recalled.
    """

    key: str
    name: str
    compute_capability: str
    sms: int
    cores_per_sm: int
    boost_mhz: float
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tensor_tflops: float | None
    dram_gb_per_s: float
    l2_nbytes: int
    power_watts: float
    process_nm: float
    confidence: str

    @property
    def capability(self) -> int:
        """The compute capability times ten."""
        major, _, minor = self.compute_capability.partition(".")
        return 10 * int(major) + int(minor)

    @property
    def has_tf32(self) -> bool:
        """Whether its tensor cores support TF32."""
        return self.tf32_tflops is not None

    def peak_tflops(self, precision: PrecisionName) -> float:
        """Peak of matrix products: of the tensor cores if they support this precision, else of the CUDA cores."""
        tensor_cores = {"fp32": None, "tf32": self.tf32_tflops, "fp16": self.fp16_tensor_tflops}
        return tensor_cores[precision] or self.fp32_tflops


def known_gpus() -> tuple[GpuSpec, ...]:
    """All GPUs of the table, oldest first."""
    return tuple(_known().values())


def gpu_keys() -> tuple[str, ...]:
    """Keys of the known GPUs, oldest first."""
    return tuple(_known())


def gpu_named(text: str) -> GpuSpec | None:
    """The GPU with this key, ignoring case, blanks, dashes and the make ("Tesla", "RTX"); None if there is none."""
    return _by_plain_name().get(_plain(text))


def spec_of(device_name: str) -> GpuSpec | None:
    """The GPU that a driver calls `device_name` ("NVIDIA H100 80GB HBM3"); None if the table does not have it.

    Full names come first: the keys of cards with other memories do not occur in a driver's name.
    """
    words = _split(device_name)
    named = [spec for spec in known_gpus() if _words(spec.name) <= set(words)]
    if named:
        return max(named, key=lambda spec: len(_words(spec.name)))
    # Longer runs of words first: a "V100-PCIE" is not the V100.
    runs = ("".join(words[start:end]) for start in range(len(words)) for end in range(start + 3, start, -1))
    return next((_known()[run] for run in runs if run in _known()), None)


def card_of(device_name: str) -> GpuSpec | None:
    """The GPU whose specification applies to a driver's name.

    Also None for another card with a similar name: an "NVIDIA H100 PCIe" has fewer SMs than the H100 of the table.
    """
    spec = spec_of(device_name)
    return spec if spec is not None and not (_words(device_name) - _words(spec.name)) & _OTHER_CARDS else None


def gpu_called(name: str) -> GpuSpec | None:
    """The GPU with this full name, as in schedules ("Tesla V100-SXM2-16GB"); None if there is none."""
    return next((spec for spec in _known().values() if spec.name.lower() == name.lower()), None)


def _split(name: str) -> list[str]:
    return re.split(r"[\s_/-]+", name.lower())


def _words(name: str) -> frozenset[str]:
    return frozenset(_split(name))


@cache
def _known() -> Mapping[str, GpuSpec]:
    table = json.loads(resources.files("iosched.profiler.devices").joinpath("gpus.json").read_text(encoding="utf-8"))
    return MappingProxyType({key: _spec(key, entry) for key, entry in table["gpus"].items()})


@cache
def _by_plain_name() -> Mapping[str, GpuSpec]:
    return MappingProxyType({_plain(key): spec for key, spec in _known().items()})


def _plain(text: str) -> str:
    return _MAKE.sub("", re.sub(r"[\s_-]", "", text.lower()))


def _spec(key: str, entry: Mapping[str, object]) -> GpuSpec:
    names = ("boost_mhz", "fp32_tflops", "dram_gb_per_s", "l2_mb", "power_watts", "process_nm")
    numbers = {name: _number(entry[name]) for name in names}
    return GpuSpec(
        key=key,
        name=str(entry["name"]),
        compute_capability=str(entry["compute_capability"]),
        sms=round(_number(entry["sms"])),
        cores_per_sm=round(_number(entry["cores_per_sm"])),
        boost_mhz=numbers["boost_mhz"],
        fp32_tflops=numbers["fp32_tflops"],
        tf32_tflops=_optional(entry["tf32_tflops"]),
        fp16_tensor_tflops=_optional(entry["fp16_tensor_tflops"]),
        dram_gb_per_s=numbers["dram_gb_per_s"],
        l2_nbytes=round(numbers["l2_mb"] * 2**20),
        power_watts=numbers["power_watts"],
        process_nm=numbers["process_nm"],
        confidence=str(entry["confidence"]),
    )


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return float(value)


def _optional(value: object) -> float | None:
    return None if value is None else _number(value)
