"""Lists the GPUs for which a library has code, from the headers of its fat binaries.

    python benchmarks/fatbin.py site-packages/nvidia/cudnn/lib/libcudnn*.so.*

nvcc writes GPU code to a section of the library: a sequence of containers with entries, each with the compute
capability of its code. Where the CUDA toolkit is installed, `cuobjdump --list-elf` lists them too.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQ")  # name, type, flags, address, offset, size
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes after it
_ENTRY = struct.Struct("<HHIQIIHHI")  # kind, -, bytes of this header, bytes after it, -, -, -, -, capability times ten
_MAGIC = 0xBA55ED50
_PTX, _MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class DeviceCode:
    """Content of a library: numbers of entries by compute capability, times ten.

    Attributes:
        machine: runs on GPUs of the same major version that are not older.
        ptx: is compiled by the driver, for any GPU that is not older.
    """

    machine: Mapping[int, int]
    ptx: Mapping[int, int]

    def __bool__(self) -> bool:
        return bool(self.machine or self.ptx)

    def runs_on(self, capability: int) -> bool:
        """Whether any code does; code for a single kernel is not distinguished from code for all."""
        alike = (each for each in self.machine if each // 10 == capability // 10)
        return any(each <= capability for each in (*alike, *self.ptx))


def device_code(library: Path) -> DeviceCode:
    """Reads only headers, wherever they are: milliseconds for half a gigabyte.

    Raises:
        ValueError: the file is no ELF library of 64 bits, or its fat binaries are malformed.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            entries = Counter(_entries(content))
        except struct.error as error:
            raise ValueError(f"{library} is cut off: {error}") from error
        except ValueError as error:
            raise ValueError(f"{library} {error}") from error
    of_kind = {kind: {cap: n for (k, cap), n in sorted(entries.items()) if k == kind} for kind in (_PTX, _MACHINE_CODE)}
    return DeviceCode(of_kind[_MACHINE_CODE], of_kind[_PTX])


def _entries(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Kind and capability of every entry."""
    for begin, end in _fat_sections(content):
        at = begin
        while at < end:
            magic, _, header, nbytes = _CONTAINER.unpack_from(content, at)
            if magic != _MAGIC or header < _CONTAINER.size:
                raise ValueError(f"has no fat binary at byte {at}, where one should begin")
            yield from _entries_of(content, at + header, at + header + nbytes)
            at += header + nbytes


def _entries_of(content: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int]]:
    while at < end:
        kind, _, header, nbytes, *_, capability = _ENTRY.unpack_from(content, at)
        if header < _ENTRY.size:
            raise ValueError(f"has a header of {header} bytes in the fat binary at byte {at}")
        yield kind, capability
        at += header + nbytes


def _fat_sections(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    if content[: len(_ELF64_LITTLE_ENDIAN)] != _ELF64_LITTLE_ENDIAN:
        raise ValueError("is no ELF library of 64 bits")
    (table,) = struct.unpack_from("<Q", content, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", content, 0x3A)
    sections = [_SECTION.unpack_from(content, table + index * size) for index in range(count)]
    names = sections[of_names][4] if sections else 0
    for name, _, _, _, offset, nbytes in sections:
        if content[names + name : content.find(b"\0", names + name)] in _SECTIONS:
            yield offset, offset + nbytes


def main(arguments: Sequence[str]) -> None:
    for path in map(Path, arguments):
        code = device_code(path)
        print(f"{path.name}: {_text(code.machine)}; PTX {_text(code.ptx)}" if code else f"{path.name}: none")


def _text(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{count} for {capability / 10}" for capability, count in counts.items()) or "none"


if __name__ == "__main__":
    main(sys.argv[1:])
