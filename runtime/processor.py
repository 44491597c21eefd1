"""The CPU model. Its product name is not enough: CPUs of very different speeds are all called "AMD EPYC"."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from iosched.runtime.cores import allowed_cpus, file_text, numbers_in

_INSTRUCTION_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}
_VECTORS = {"flags": ("avx", "fma", "f16c", "amx"), "Features": ("asimd", "sve", "sme", "i8mm", "bf16", "fphp")}
"""Prefixes of vector instructions in Linux's lists of CPU features, on x86 and on ARM."""


@dataclass(frozen=True)
class Processor:
    """Properties of a CPU that latencies depend on; empty if Linux does not report them, as in some virtual machines.

    Attributes:
        name: product name, which several designs may share; the platform's name if Linux reports none.
        vendor: manufacturer; on ARM the implementer's number.
        family: with `model`, the number of the design; on ARM the architecture.
        model: on ARM the part number. If the processors of a machine differ, all are listed, joined by "+".
        stepping: revision; on ARM variant and revision.
        instructions: vector instructions that all processors have, by Linux's names, sorted.
        caches: sizes of a processor's caches and how many processors share them: "L1d 48K, L2 2048K, L3 32768K for 16".
    """

    name: str
    vendor: str
    family: str
    model: str
    stepping: str
    instructions: str
    caches: str

    @property
    def design(self) -> Mapping[str, str]:
        """All fields but the name: they distinguish CPUs of the same name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    @property
    def instruction_set(self) -> str:
        """Common name of the widest vector instructions: "AVX2"."""
        present = set(self.instructions.split())
        return next((text for flag, text in _INSTRUCTION_SETS.items() if flag in present), "baseline")

    @property
    def own_cache_nbytes(self) -> int:
        """Bytes of a processor's L2 cache, or of its share; 0 if unknown."""
        found = re.search(r"\bL2 (\d+)K(?: for (\d+))?", self.caches)
        return int(found[1]) * 1024 // int(found[2] or 1) if found else 0

    @property
    def text(self) -> str:
        """The design for users, without instructions: "family 25, model 17, stepping 1; L1d 32K, L2 1024K"."""
        numbers = [f"{key} {getattr(self, key)}" for key in ("family", "model", "stepping") if getattr(self, key)]
        return "; ".join(part for part in (", ".join(numbers), self.caches) if part)


@cache
def read_processor() -> Processor:
    """The CPU of this machine, with the caches of the first allowed processor; read once."""
    return processor_of(Path("/"), allowed_cpus()[0])


def processor_of(machine: Path, cpu: int) -> Processor:
    """The CPU of the machine at this root folder, from /proc and /sys, with the caches of processor `cpu`."""
    processors = _processors(file_text(machine / "proc/cpuinfo"))
    return Processor(
        name=next((each["model name"] for each in processors if each.get("model name")), "")
        or platform.processor()
        or platform.machine(),
        vendor=_all(processors, "vendor_id", "CPU implementer"),
        family=_all(processors, "cpu family", "CPU architecture"),
        model=_all(processors, "model", "CPU part"),
        stepping=_all(processors, "stepping") or _all(processors, "CPU variant", "CPU revision", joined="."),
        instructions=_instructions(processors),
        caches=_caches(machine / f"sys/devices/system/cpu/cpu{cpu}/cache"),
    )


def cpu_name() -> str:
    """Product name of the CPU; the platform's name if Linux reports none."""
    return read_processor().name


def _processors(text: str) -> list[dict[str, str]]:
    blocks = ([line.partition(":") for line in block.split("\n")] for block in text.split("\n\n"))
    found = [{key.strip(): value.strip() for key, _, value in block} for block in blocks]
    return [each for each in found if "processor" in each]


def _all(processors: Sequence[Mapping[str, str]], *keys: str, joined: str = "") -> str:
    """The distinct values of these keys, sorted and joined by "+".

    The first key that a processor has counts; with `joined`, all its values joined by that text.
    """
    values = ([each[key] for key in keys if each.get(key)] for each in processors)
    return "+".join(sorted({joined.join(found) if joined else found[0] for found in values if found}))


def _instructions(processors: Sequence[Mapping[str, str]]) -> str:
    found = [_vectors(each) for each in processors]
    return " ".join(sorted(frozenset.intersection(*found))) if found else ""


def _vectors(processor: Mapping[str, str]) -> frozenset[str]:
    flags = ((flag, beginnings) for key, beginnings in _VECTORS.items() for flag in processor.get(key, "").split())
    return frozenset(flag for flag, beginnings in flags if flag.startswith(beginnings))


def _caches(folder: Path) -> str:
    indexes = sorted(folder.glob("index*"), key=lambda path: (len(path.name), path.name))
    return ", ".join(text for index in indexes if (text := _cache(index)))


def _cache(folder: Path) -> str:
    level, kind, size = (file_text(folder / name).strip() for name in ("level", "type", "size"))
    letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
    sharing = len(numbers_in(file_text(folder / "shared_cpu_list")))
    return f"L{level}{letter} {size}{f' for {sharing}' if sharing > 1 else ''}" if level and size else ""
