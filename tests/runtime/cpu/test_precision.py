"""A CPU accepts the precisions that it has instructions for, and names the missing instructions of others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.facts import cpu_facts
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.cpu import precision
from iosched.runtime.openvino import library
from iosched.runtime.processor import read_processor


@pytest.fixture(autouse=True)
def openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library", lambda: None)


def having(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    there = replace(read_processor(), name="Some CPU", instructions=flags)
    monkeypatch.setattr(precision, "read_processor", lambda: there)


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        ("avx2 avx512f", ("fp32",)),
        ("avx512f avx512_bf16", ("fp32", "bf16")),
        ("avx512_fp16 avx512_bf16 amx_tile", ("fp32", "bf16", "fp16")),
        ("avx512_bf16_and_more", ("fp32",)),
    ],
)
def test_precisions_follow_from_instructions(flags: str, has: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, flags)
    assert precision.precisions() == has
    for each in has:
        CpuDevice().check(OpenSettings(precision=each))
    for each in {"bf16", "fp16"} - {*has}:
        with pytest.raises(UsageError, match=rf"Some CPU has no {each} instructions \(avx512_{each}\)"):
            CpuDevice().check(OpenSettings(precision=each))


@pytest.mark.parametrize("unknown", ["tf32", "int8", ""])
def test_unknown_precisions_are_refused_by_name(unknown: str) -> None:
    with pytest.raises(UsageError, match=f"CPUs do not compute in {unknown}: use --precision fp32, bf16, fp16"):
        CpuDevice().check(OpenSettings(precision=unknown))


def test_without_openvino_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise DeviceError("OpenVINO is not installed; run in a clone of iosched: pip install '.[openvino]'")

    having(monkeypatch, "avx512_bf16")
    monkeypatch.setattr(library, "library", missing)
    CpuDevice().check(OpenSettings())
    with pytest.raises(DeviceError, match="openvino"):
        CpuDevice().check(OpenSettings(precision="bf16"))


def test_cpu_facts_list_the_precisions() -> None:
    facts = cpu_facts()
    assert facts.values["precisions"] == list(precision.precisions())
    assert dict(facts.rows)["precisions"] == ", ".join(precision.precisions())
