"""Plain onnxruntime is tried with the threads that this process may use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.profiler.baselines import onnxruntime
from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime import cores
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import ReferenceSettings

MODEL = fire()


@given(
    asked=st.none() | st.integers(1, 64),
    allowed=st.sets(st.integers(0, 15), min_size=1),
    quota=st.none() | st.floats(0.1, 32),
    per_core=st.sampled_from([1, 2, 4]),
)
def test_threads_are_limited_by_request_affinity_and_quota(
    asked: int | None, allowed: set[int], quota: float | None, per_core: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "allowed_cpus", lambda: tuple(sorted(allowed)))
        patch.setattr(cores, "cpu_quota", lambda: quota)
        patch.setattr(cores.os, "cpu_count", lambda: 16)
        patch.setattr(
            cores, "siblings", lambda cpu: frozenset(n for n in range(16) if n // per_core == cpu // per_core)
        )
        plain = CpuDevice().plain(MODEL, OpenSettings(threads=asked))
        assert plain is not None
        settings = plain.settings
    most = min(asked or 16, len(allowed), max(1, int(quota or 16)))
    n_cores = len({cpu // per_core for cpu in allowed})
    assert settings[0] == ReferenceSettings("sequential", most)
    assert max(max(each.intra_threads, each.inter_threads) for each in settings) == most
    assert ReferenceSettings("sequential", min(most, n_cores)) in settings
    assert all(len(allowed) == 16 and each.intra_threads == 16 // per_core for each in settings if each.binds_threads)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_the_usual_setting_is_kept_beside_other_processes(is_quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "watch", lambda _: lambda: is_quiet)
    monkeypatch.setattr(onnxruntime, "fastest_setting", lambda opened: len(opened) - 1)
    plain = OnnxruntimeBaseline(MODEL, 2)
    assert len(plain.settings) > 1
    assert plain.best(random_inputs(MODEL.graph.inputs)) == plain.settings[-1 if is_quiet else 0]
