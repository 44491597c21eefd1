"""Which CPU this is. Its product name does not say: machines of very different speeds are all called "AMD EPYC"."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from iosched.runtime.cores import allowed_cpus, numbers_in

_INSTRUCTION_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}
_VECTORS = {"flags": ("avx", "fma", "f16c", "amx"), "Features": ("asimd", "sve", "sme", "i8mm", "bf16", "fphp")}
"""What the names of vector instructions begin with, in Linux's lists of what a processor has: on x86, and on ARM."""


@dataclass(frozen=True)
class Processor:
    """A CPU, as far as it changes latencies. What Linux does not say, as in some virtual machines, is empty.

    Attributes:
        name: the product's name, which several designs may share; the platform's name for it where Linux does not say.
        vendor: who made it; on ARM the number of the implementer.
        family: with `model`, the number of the design; on ARM of the architecture.
        model: on ARM the number of the part. Where processors of a machine differ, all are named, with "+" between.
        stepping: the number of the revision; on ARM of variant and revision.
        instructions: the vector instructions that all processors have, as Linux calls them, in alphabetical order.
        caches: "L1d 48K, L2 2048K, L3 32768K for 16": the sizes of what a processor has, and how many share it.
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
        """All but the name: what tells CPUs of one name apart."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    @property
    def instruction_set(self) -> str:
        """The widest vector instructions, as people call them: "AVX2"."""
        present = set(self.instructions.split())
        return next((text for flag, text in _INSTRUCTION_SETS.items() if flag in present), "baseline")

    @property
    def own_cache_nbytes(self) -> int:
        """Bytes of the second-level cache that a processor has, or its share of one; 0 where Linux does not say."""
        found = re.search(r"\bL2 (\d+)K(?: for (\d+))?", self.caches)
        return int(found[1]) * 1024 // int(found[2] or 1) if found else 0

    @property
    def text(self) -> str:
        """The design for people, without its instructions: "family 25, model 17, stepping 1; L1d 32K, L2 1024K"."""
        numbers = [f"{key} {getattr(self, key)}" for key in ("family", "model", "stepping") if getattr(self, key)]
        return "; ".join(part for part in (", ".join(numbers), self.caches) if part)


@cache
def read_processor() -> Processor:
    """The CPU of this machine, whose caches are those of the first processor that this process may use; read once."""
    return processor_of(Path("/"), allowed_cpus()[0])


def processor_of(machine: Path, cpu: int) -> Processor:
    """The CPU of a machine, read from /proc and /sys.

    Args:
        machine: the folder that stands for the root of the file system.
        cpu: the number of the processor whose caches count.
    """
    processors = _processors(_text(machine / "proc/cpuinfo"))
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
    """The product name of the processor; the platform's name for it where Linux does not say."""
    return read_processor().name


def _processors(text: str) -> list[dict[str, str]]:
    """The fields of each processor; what stands behind the last one, on ARM, is about none of them."""
    blocks = ([line.partition(":") for line in block.split("\n")] for block in text.split("\n\n"))
    found = [{key.strip(): value.strip() for key, _, value in block} for block in blocks]
    return [each for each in found if "processor" in each]


def _all(processors: Sequence[Mapping[str, str]], *keys: str, joined: str = "") -> str:
    """The different values under these keys, in alphabetical order.

    Of the keys, the first one counts that a processor has; with `joined`, the values of all with that text between.
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
    level, kind, size = (_text(folder / name).strip() for name in ("level", "type", "size"))
    letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
    sharing = len(numbers_in(_text(folder / "shared_cpu_list")))
    return f"L{level}{letter} {size}{f' for {sharing}' if sharing > 1 else ''}" if level and size else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
