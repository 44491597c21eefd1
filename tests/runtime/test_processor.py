"""CPUs of the same product name are distinguished, and rows of undistinguished ones are not used for either."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.version import iosched_version
from iosched.profiler.devices.cpu import device as cpu_device
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase, device_key, export_lines
from iosched.runtime.cpu import lane_cpus
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lower import LOWERING
from iosched.runtime.processor import Processor, processor_of
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Stage, Strategy

CACHES = {
    "index0": {"level": "1", "type": "Data", "size": "32K", "shared_cpu_list": "0,64"},
    "index1": {"level": "1", "type": "Instruction", "size": "32K", "shared_cpu_list": "0,64"},
    "index2": {"level": "2", "type": "Unified", "size": "1024K", "shared_cpu_list": "0,64"},
    "index3": {"level": "3", "type": "Unified", "size": "32768K", "shared_cpu_list": "0-7,64-71"},
    "index10": {"level": "4", "type": "Unified", "size": "1G", "shared_cpu_list": "0"},
}


def machine(top: Path, cpuinfo: str, caches: Mapping[str, Mapping[str, str]] = {}, cpu: int = 0) -> Path:
    """Creates the file tree of a simulated machine, replacing the previous one."""
    shutil.rmtree(top, ignore_errors=True)
    files = {"proc/cpuinfo": cpuinfo}
    for index, values in caches.items():
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/{index}"
        files |= {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def x86(number: int, **changed: str) -> str:
    fields = {
        "vendor_id": "AuthenticAMD",
        "cpu family": "25",
        "model": "17",
        "model name": "AMD EPYC",
        "stepping": "1",
        "microcode": "0x1",
        "flags": "fpu smep sme fma f16c avx avx2 avx512f avx512_bf16 constant_tsc",
    } | {key.replace("_", " "): value for key, value in changed.items()}
    return f"processor\t: {number}\n" + "".join(f"{key}\t: {value}\n" for key, value in fields.items()) + "\n"


def test_processor_is_read_with_its_design(tmp_path: Path) -> None:
    found = processor_of(machine(tmp_path, x86(0) + x86(1), CACHES), cpu=0)
    assert found == Processor(
        name="AMD EPYC",
        vendor="AuthenticAMD",
        family="25",
        model="17",
        stepping="1",
        instructions="avx avx2 avx512_bf16 avx512f f16c fma",
        caches="L1d 32K for 2, L1i 32K for 2, L2 1024K for 2, L3 32768K for 16, L4 1G",
    )
    assert found.text.startswith("family 25, model 17, stepping 1; L1d 32K for 2")
    assert processor_of(machine(tmp_path, x86(0), CACHES, cpu=3), cpu=3).caches == found.caches


@pytest.mark.parametrize(
    ("caches", "wanted"),
    [
        ("L1d 48K, L1i 32K, L2 2048K, L3 266240K for 2", 2048 << 10),
        ("L1d 32K for 2, L2 1024K for 2, L3 32768K for 16", 512 << 10),
        ("L1d 32K, L3 2048K", 0),
        ("L2 1G", 0),
        ("", 0),
    ],
)
def test_share_of_the_l2_cache(tmp_path: Path, caches: str, wanted: int) -> None:
    found = processor_of(machine(tmp_path, x86(0)), cpu=0)
    assert replace(found, caches=caches).own_cache_nbytes == wanted


def test_machine_of_different_processors_has_their_common_instructions(tmp_path: Path) -> None:
    found = processor_of(machine(tmp_path, x86(0) + x86(1, model="18", flags="avx fma")), cpu=0)
    assert (found.model, found.instructions, found.caches) == ("17+18", "avx fma", "")


ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes asimddp sve i8mm bf16 sme
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 2

Hardware\t: Something
"""


def test_an_arm_processor_has_a_part_number_but_no_product_name(tmp_path: Path) -> None:
    found = processor_of(machine(tmp_path, ARM), cpu=0)
    assert found == Processor(
        name=platform.processor() or platform.machine(),
        vendor="0x41",
        family="8",
        model="0xd40",
        stepping="0x1.2",
        instructions="asimd asimddp bf16 i8mm sme sve",
        caches="",
    )


@pytest.mark.parametrize("cpuinfo", ["", "\n\n", "no colon\n", "processor\n", "processor: 0\n", "flags: avx\n"])
def test_unknown_fields_are_empty(tmp_path: Path, cpuinfo: str) -> None:
    found = processor_of(machine(tmp_path, cpuinfo, {"index0": {"level": "1"}}), cpu=0)
    assert found.name == (platform.processor() or platform.machine())
    assert (set(found.design.values()), found.text) == ({""}, "")
    assert set(processor_of(tmp_path / "nothing", cpu=0).design.values()) == {""}


WORDS = st.text("abz019_", min_size=1, max_size=4)


@given(
    st.fixed_dictionaries(dict.fromkeys(("vendor_id", "cpu family", "model", "stepping"), WORDS)),
    st.sets(WORDS.map("avx{}".format), max_size=4),
    st.sets(WORDS.map("other{}".format), max_size=4),
    st.sampled_from(["vendor_id", "cpu family", "model", "stepping", "flags", "cache", "microcode"]),
)
def test_the_key_distinguishes_every_difference_of_processors(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, str], vectors: set[str], others: set[str], changed: str
) -> None:
    """Except those that depend on the Linux kernel: the microcode, and flags of other instructions."""
    top = tmp_path_factory.getbasetemp() / "processor"

    def key(fields: Mapping[str, str], flags: set[str], caches: Mapping[str, Mapping[str, str]]) -> str:
        text = "".join(f"{name}\t: {value}\n" for name, value in (fields | {"flags": " ".join(flags)}).items())
        found = processor_of(machine(top, f"processor\t: 0\nmodel name\t: X\n{text}", caches), cpu=0)
        return device_key("cpu", found.name, precision="mixed", threads=2, versions={}, design=found.design)

    before = key(fields, vectors | others, CACHES)
    assert before == key(dict(reversed(fields.items())), vectors, CACHES)
    if changed == "microcode":
        assert key({**fields, changed: "0x2"}, vectors, CACHES) == before
    elif changed == "flags":
        assert key(fields, vectors | {"avx-new"}, CACHES) != before
    elif changed == "cache":
        larger = {**CACHES, "index3": {**CACHES["index3"], "size": "65536K"}}
        assert key(fields, vectors, larger) != before
    else:
        assert key({**fields, changed: fields[changed] + "7"}, vectors, CACHES) != before


EPYC = Processor("AMD EPYC", "AuthenticAMD", "25", "17", "1", "avx avx2", "L2 1024K")
ALONE = Stage(Strategy.CONCURRENT, (("f1",),))


def known_on(processor: Processor, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Number of stages that one request measures on this processor; and its key."""
    monkeypatch.setattr(cpu_cost, "read_processor", lambda: processor)
    with CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        cost.stage_latency_us(ALONE)
        return cost.measurements, cost.device


def test_a_stage_is_measured_once_on_each_processor_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    with ProfileDatabase(":memory:") as database:
        others = [replace(EPYC, **{key: "other"}) for key in EPYC.design]
        assert [known_on(each, database, monkeypatch)[0] for each in (EPYC, *others, EPYC)] == [1] * 7 + [0]


def test_schedule_file_names_its_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(cpu_device, "read_processor", lambda: EPYC)
    monkeypatch.setattr(cpu_device, "cpu_name", lambda: EPYC.name)
    settings = OptimizeSettings(device="cpu", threads=1, strategy="sequential")
    document = optimize(fire(), settings).document
    assert document.device == {"kind": "cpu", "name": "AMD EPYC", **EPYC.design}
    assert ScheduleDocument.from_json(document.to_json()).device == document.device


def test_unpinned_lanes_have_separate_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    with ProfileDatabase(":memory:") as database:
        known_on(EPYC, database, monkeypatch)
        monkeypatch.setattr(lane_cpus, "is_time_shared", lambda: True)
        assert known_on(EPYC, database, monkeypatch)[0] == 1


def test_rows_of_earlier_versions_are_kept_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its key held only the name, which many machines share; the database may have come from another one."""
    script_stages(monkeypatch)
    versions = {
        **{"onnxruntime": load_onnxruntime().__version__, "iosched": iosched_version()},
        **{"executor": "compiled", "lowering": str(LOWERING)},
    }
    old = device_key("cpu", EPYC.name, precision="mixed", threads=2, versions=versions)
    with ProfileDatabase(":memory:") as database, CpuBackend(fire(), lanes=2) as backend:
        signature = CpuStageCost(backend, database)._signature(ALONE, 2)
        database.keep_stage(signature, old, summarize([1.0] * 6))
        database.keep_calibration(old, summarize([1.0] * 6))
        measured, new = known_on(EPYC, database, monkeypatch)
        assert (measured, database.stage(signature, old)) == (1, summarize([1.0] * 6))
        assert old != new
        assert {each.device for each in database.stats().devices} == {old, new}
        assert sum('"table":"stage"' in line for line in export_lines(database)) == 2
        assert database.clear(old) == 2
        assert [each.device for each in database.stats().devices] == [new]
