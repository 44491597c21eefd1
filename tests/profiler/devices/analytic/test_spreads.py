"""The uncertainty of kernels, launches and stages, by the measurements behind them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.devices.analytic.constants import Known, known_by
from iosched.profiler.devices.analytic.kernels import KernelKind
from iosched.profiler.devices.analytic.uncertainty import SHORT_US, SPREADS
from iosched.profiler.devices.gpus import gpu_keys, gpu_named

KERNELS: tuple[KernelKind, ...] = ("convolution", "product", "elementwise", "depthwise")
KNOWN: tuple[Known, ...] = ("networks", "kernels", "specification")


@given(st.sampled_from(KERNELS), st.floats(0.0, 1e6), st.sampled_from(KNOWN))
def test_every_kernel_has_a_spread_and_a_wider_one_on_tensor_cores(
    kind: KernelKind, size_us: float, known: Known
) -> None:
    found = SPREADS.of_kernel(kind, size_us, known)
    assert 0 < found.own < 0.5
    assert 0 < found.shared < 0.5
    half = SPREADS.of_kernel(kind, size_us, known, tensor_cores=True)
    assert (half.own, half.shared) > (found.own, found.shared)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("size_us", [1.0, SHORT_US, 1e5])
def test_fewer_measurements_of_a_gpu_widen_the_shared_spread(kind: KernelKind, size_us: float) -> None:
    networks, kernels, specification = (SPREADS.of_kernel(kind, size_us, known).shared for known in KNOWN)
    assert networks <= kernels <= specification
    assert networks < specification


def test_unmeasured_kernels_have_the_spread_of_a_convolution_of_their_size() -> None:
    for known in KNOWN:
        assert len({SPREADS.of_kernel(kind, SHORT_US - 1, known) for kind in set(KERNELS) - {"product"}}) == 1
        long = SPREADS.of_kernel("convolution", SHORT_US, known)
        assert SPREADS.of_kernel("depthwise", SHORT_US, known) == long
        assert SPREADS.of_kernel("elementwise", SHORT_US, known) != long


def test_stream_launches_share_no_error_where_networks_were_fitted() -> None:
    assert SPREADS.of_launches("streams", "networks").shared == 0
    assert SPREADS.of_launches("streams", "kernels").shared > 0
    assert SPREADS.of_launches("graph", "networks").shared > 0


def test_gpus_are_classed_by_the_measurements_of_their_chip() -> None:
    found = {key: known_by(gpu) for key in gpu_keys() if (gpu := gpu_named(key)) is not None}
    assert {key for key, known in found.items() if known == "networks"} == {"v100", "v100pcie"}
    assert {key for key, known in found.items() if known == "kernels"} == {
        "p100", "p100pcie", "t4", "a100", "a100pcie40", "a100pcie80"
    }  # fmt: skip


def test_gains_share_no_error_where_networks_were_fitted() -> None:
    assert SPREADS.of_gains("networks").shared == 0
    assert SPREADS.of_gains("kernels").shared == SPREADS.of_gains("specification").shared == SPREADS.gains > 0
