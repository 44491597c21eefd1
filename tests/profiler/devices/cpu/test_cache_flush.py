"""The cache flush before a stage is near the size of its model's weights, and equal for models of similar size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import fire

from iosched.profiler.devices.cpu import cache_flush as sweep
from iosched.profiler.devices.cpu.cache_flush import LEAST_FLUSHED, MOST_FLUSHED, flushed_nbytes, flushed_nbytes_of
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.processor import read_processor

MIB = 1 << 20
NBYTES = st.integers(0, 1 << 40)


@pytest.mark.parametrize(
    ("weights_nbytes", "own_cache_nbytes", "wanted"),
    [
        (0, 0, LEAST_FLUSHED),
        (MIB, 0, MIB),
        (MIB + 1, 0, MIB),
        (2_355_688, 0, 2_493_948),
        (2_355_688, 4 * MIB, 2_493_948),  # on the edge of the cores' own caches
        (2 * MIB, 4 * MIB, 2 * MIB),
        (2 * MIB - 1, 4 * MIB, MIB // 2),  # all weights stay there
        (1, 4 * MIB, MIB // 2),
        (8 * MIB, 4 * MIB, 8 * MIB),
        (16 * MIB - 1, 4 * MIB, 8 * MIB),  # none do
        (15 * MIB, 5 * MIB, 10 * MIB),
        (1, LEAST_FLUSHED, LEAST_FLUSHED),
        (1 << 40, 4 * MIB, MOST_FLUSHED),
        (1 << 40, 0, MOST_FLUSHED),
    ],
)
def test_the_flush_is_near_the_size_of_the_weights_up_to_a_limit(
    weights_nbytes: int, own_cache_nbytes: int, wanted: int
) -> None:
    assert flushed_nbytes(weights_nbytes, own_cache_nbytes) == wanted


@given(NBYTES, NBYTES)
def test_the_flush_is_closest_to_the_weights_where_they_are_on_the_edge_of_the_caches(
    weights_nbytes: int, own_cache_nbytes: int
) -> None:
    found = flushed_nbytes(weights_nbytes, own_cache_nbytes)
    assert LEAST_FLUSHED <= found <= MOST_FLUSHED
    if not LEAST_FLUSHED <= weights_nbytes <= MOST_FLUSHED or weights_nbytes < own_cache_nbytes // 2:
        return
    is_fine = own_cache_nbytes == 0 or weights_nbytes < 2 * own_cache_nbytes
    low, high = (2**-0.13, 2**0.13) if is_fine else (0.5, 1.0)
    assert low <= found / weights_nbytes <= high


@given(NBYTES, NBYTES, NBYTES)
def test_a_larger_model_never_has_a_smaller_flush(one_nbytes: int, other_nbytes: int, own_cache_nbytes: int) -> None:
    small, large = sorted((one_nbytes, other_nbytes))
    assert flushed_nbytes(small, own_cache_nbytes) <= flushed_nbytes(large, own_cache_nbytes)


def test_the_caches_of_all_lanes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fire modules have some hundred kilobytes of weights, which fit only into large private caches."""
    known = read_processor()
    with CpuBackend(fire(), lanes=2) as backend:
        for caches, own_nbytes in (("", 0), ("L1d 48K, L2 2048K, L3 8M for 2", 4 * MIB), ("L2 64K", 128 << 10)):
            monkeypatch.setattr(sweep, "read_processor", lambda caches=caches: replace(known, caches=caches))
            assert flushed_nbytes_of(backend) == flushed_nbytes(backend.weights_nbytes, own_nbytes)
