"""How well a few kernels predict others whose errors are known."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from iosched.profiler.devices.analytic.scaled import PRIOR

WAYS = {"not scaled", "median", "median of the kind", *(f"prior {prior}, by kind" for prior in ("1", "2", "4"))}


def drawn(module: ModuleType, convolutions: float, products: float):
    kinds = ["convolution"] * 60 + ["product"] * 20
    off = np.log([convolutions] * 60 + [products] * 20)
    return module.Series(kinds, off)


def test_a_shared_error_is_corrected_better_with_more_kernels(script) -> None:
    module = script("scaling")
    one, many = (module.errors([drawn(module, 1.5, 1.5)], count) for count in (1, 24))
    assert set(one) == {*WAYS, f"prior {PRIOR:g}"}
    assert one["not scaled"]["kernel"] == many["not scaled"]["kernel"] == pytest.approx(np.log(1.5), abs=1e-3)
    assert one["median"]["kernel"] == pytest.approx(0, abs=1e-3)
    for name in (f"prior {PRIOR:g}", f"prior {PRIOR:g}, by kind"):
        assert 0 < many[name]["kernel"] < one[name]["kernel"] < one["not scaled"]["kernel"]


def test_kinds_with_different_errors_need_separate_factors(script) -> None:
    module = script("scaling")
    found = module.errors([drawn(module, 1.0, 0.4)], 24)
    assert found[f"prior {PRIOR:g}, by kind"]["kernel"] < 0.3 * found[f"prior {PRIOR:g}"]["kernel"]


def test_rarity_is_the_number_of_kernels_of_the_kind(script) -> None:
    module = script("scaling")
    one = drawn(module, 1.0, 1.0)
    assert sorted(set(one.rarity.tolist())) == [20.0, 60.0]
