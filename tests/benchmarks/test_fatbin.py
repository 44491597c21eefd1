"""The GPUs that a library holds code for are read from its fat binaries."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

PTX, ELF, OTHER = 1, 2, 64
NAMES = b"\0.text\0.nv_fatbin\0.shstrtab\0"
Entry = tuple[int, int, int]  # kind, capability, bytes of code

entries = st.lists(
    st.tuples(st.sampled_from((PTX, ELF, OTHER)), st.sampled_from((50, 75, 90, 120)), st.integers(0, 99)), max_size=4
)


@pytest.fixture(scope="module")
def fatbin() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        import fatbin

        return fatbin


def container(content: Sequence[Entry]) -> bytes:
    body = b"".join(
        struct.pack("<HHIQIIHHI", kind, 0x101, 64, nbytes, 0, 0, 0, 1, capability).ljust(64, b"\0") + b"\x50" * nbytes
        for kind, capability, nbytes in content
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(fat: bytes) -> bytes:
    """An ELF file of four sections: nothing, some text, fat binaries, names."""
    contents = (b"", b"\xc3" * 7, fat, NAMES)
    names = (0, NAMES.index(b".text"), NAMES.index(b".nv_fatbin"), NAMES.index(b".shstrtab"))
    body, table = b"\0" * 64, b""
    for name, content in zip(names, contents, strict=True):
        table += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, len(body), len(content), 0, 0, 1, 0)
        body += content
    header = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, len(body), 0, 64, 56, 0, 64, len(contents), 3
    )
    return header + body[64:] + table


@given(st.lists(entries, max_size=3))
def test_every_entry_of_every_container_counts(fatbin: ModuleType, containers: list[list[Entry]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        path.write_bytes(library(b"".join(map(container, containers))))
        code = fatbin.device_code(path)
    counts = Counter((kind, capability) for each in containers for kind, capability, _ in each)
    assert code.machine == {capability: n for (kind, capability), n in counts.items() if kind == ELF}
    assert code.ptx == {capability: n for (kind, capability), n in counts.items() if kind == PTX}
    assert bool(code) == bool(code.machine or code.ptx)


@pytest.mark.parametrize(
    ("machine", "ptx", "runs", "fails"),
    [
        ((70, 80), (), (70, 75, 80, 86, 89), (60, 90, 100)),
        ((80, 90), (90,), (80, 86, 90, 100, 120), (70, 75)),
        ((86,), (), (86, 89), (80, 75)),
        ((), (), (), (70, 120)),
    ],
)
def test_machine_code_runs_on_its_major_version_and_ptx_on_all_later_ones(
    fatbin: ModuleType, machine: Sequence[int], ptx: Sequence[int], runs: Sequence[int], fails: Sequence[int]
) -> None:
    code = fatbin.DeviceCode(dict.fromkeys(machine, 1), dict.fromkeys(ptx, 1))
    assert all(map(code.runs_on, runs))
    assert not any(map(code.runs_on, fails))


def test_device_code_is_listed_by_file(fatbin: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fat, slim = tmp_path / "fat.so", tmp_path / "slim.so"
    fat.write_bytes(library(container([(ELF, 75, 8), (ELF, 90, 8), (ELF, 90, 3), (PTX, 120, 5)])))
    slim.write_bytes(library(b""))
    fatbin.main([str(fat), str(slim)])
    assert capsys.readouterr().out == "fat.so: 1 for 7.5, 2 for 9.0; PTX 1 for 12.0\nslim.so: none\n"


def _without_magic(whole: bytes) -> bytes:
    return whole.replace(struct.pack("<I", 0xBA55ED50), b"CCOB")


def _without_headers(whole: bytes) -> bytes:
    return whole.replace(struct.pack("<HHI", ELF, 0x101, 64), struct.pack("<HHI", ELF, 0x101, 0))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: b"!<arch>\n", "no ELF library"),
        (lambda whole: whole[:90], "cut off"),
        (_without_magic, "no fat binary at byte"),
        (_without_headers, "a header of 0 bytes"),
    ],
)
def test_malformed_libraries_are_refused(
    fatbin: ModuleType, tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = tmp_path / "odd.so"
    path.write_bytes(damage(library(container([(ELF, 75, 8)]))))
    with pytest.raises(ValueError, match=f"odd.so .*{words}"):
        fatbin.device_code(path)
