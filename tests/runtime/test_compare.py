"""When two runs of a model count as equal."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from iosched.runtime.compare import Check, compare, rtol_of


def check(found: Any, expected: Any, **options: float) -> Check:
    return compare({"y": found}, {"y": expected}, **options)


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


def test_equal_outputs_pass_without_any_difference() -> None:
    values = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    assert check(values, values.copy()) == Check(0.0, 0.0, True)


def test_the_error_is_relative_to_the_scale_of_the_tensor() -> None:
    found = check(floats(1000.0, 0.05), floats(1000.0, 0.0))
    assert found.max_abs == pytest.approx(0.05)
    assert found.max_rel == pytest.approx(5e-5)
    assert found.passed
    assert not check(floats(1.0, 2e-4), floats(1.0, 0.0)).passed
    assert check(floats(1.0, 2e-4), floats(1.0, 0.0), rtol=1e-3).passed


def test_each_tensor_has_its_own_scale() -> None:
    expected = {"large": floats(1e6), "small": floats(1.0)}
    found = compare({"large": floats(1e6), "small": floats(1.001)}, expected)
    assert not found.passed
    assert len(found.reasons) == 1
    assert "'small'" in found.reasons[0]


def test_anything_but_zero_differs_from_an_all_zero_tensor() -> None:
    assert check(floats(0.0, 0.0), floats(0.0, 0.0)).passed
    assert check(floats(0.0, 1e-30), floats(0.0, 0.0)).max_rel == math.inf


@pytest.mark.parametrize(
    ("found", "expected", "passed"),
    [
        ([1, math.nan], [1, math.nan], True),
        ([math.nan, 1], [1, math.nan], False),
        ([1, 2], [1, math.nan], False),
        ([1, math.nan], [1, 2], False),
        ([math.inf, 1], [math.inf, 1], True),
        ([-math.inf, 1], [math.inf, 1], False),
        ([3e38, 1], [math.inf, 1], False),
        ([math.inf, 1], [3e38, 1], False),
        ([math.nan, math.nan], [math.nan, math.nan], True),
    ],
)
def test_nan_and_infinity_must_be_at_the_same_positions(
    found: list[float], expected: list[float], passed: bool
) -> None:
    result = check(floats(*found), floats(*expected))
    assert result.passed is passed
    if not passed:
        assert result.max_abs == math.inf


def test_wrong_value_next_to_a_nan_is_wrong() -> None:
    assert not check(floats(math.nan, 2.0), floats(math.nan, 1.0)).passed


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_has_a_wider_tolerance(dtype: Any) -> None:
    assert check(floats(1.0, 0.51, dtype=dtype), floats(1.0, 0.5, dtype=dtype)).passed
    assert not check(floats(1.0, 0.55, dtype=dtype), floats(1.0, 0.5, dtype=dtype)).passed


def test_extreme_doubles_do_not_overflow_into_a_pass() -> None:
    assert not check(floats(1.7e308, dtype=np.float64), floats(-1.7e308, dtype=np.float64)).passed


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantised_outputs_may_be_one_step_off(dtype: str) -> None:
    expected = np.array([0, 100, 127], dtype)
    found = check(np.array([1, 99, 126], dtype), expected)
    assert found.passed
    assert found.max_abs == 1.0
    assert not check(np.array([2, 100, 127], dtype), expected).passed


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64", "uint64"])
def test_other_integers_are_exact(dtype: str) -> None:
    result = check(np.array([1, 3], dtype), np.array([1, 2], dtype))
    assert not result.passed
    assert result.max_abs == 1.0
    assert "1 of 2 values" in result.reasons[0]


def test_large_integers_that_are_neighbours_differ() -> None:
    result = check(np.array([2**62 + 1]), np.array([2**62]))
    assert not result.passed
    assert result.max_abs >= 1


def test_booleans_text_and_other_values_are_exact() -> None:
    assert check(np.array([True, False]), np.array([True, False])).passed
    assert not check(np.array([True, True]), np.array([True, False])).passed
    assert check(np.array(["a", "b"], object), np.array(["a", "b"], object)).passed
    assert not check(np.array(["a", "c"], object), np.array(["a", "b"], object)).passed
    assert check([{1: 0.5}], [{1: 0.5 + 1e-9}]).passed
    assert not check([{1: 0.5}], [{2: 0.5}]).passed
    assert not check([{1: 0.5}], [{1: 0.25}]).passed


def test_sequences_are_compared_element_by_element() -> None:
    assert check([floats(1.0), floats(2.0)], [floats(1.0), floats(2.0)]).passed
    result = check([floats(1.0), floats(9.0)], [floats(1.0), floats(2.0)])
    assert not result.passed
    assert "y[1]" in result.reasons[0]
    assert "1 elements, expected 2" in check([floats(1.0)], [floats(1.0), floats(2.0)]).reasons[0]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (np.zeros((2, 3), np.float32), r"shape \[2, 3\], expected \[3, 2\]"),
        (np.zeros((3, 2), np.float64), "is float64, expected float32"),
        ([np.zeros((3, 2), np.float32)], "differs"),
    ],
)
def test_another_shape_or_type_is_a_difference(found: Any, reason: str) -> None:
    result = check(found, np.zeros((3, 2), np.float32))
    assert not result.passed
    assert result.max_rel == math.inf
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(result.reasons[0])


def test_missing_and_unexpected_outputs_are_differences() -> None:
    result = compare({"a": floats(1.0)}, {"b": floats(1.0)})
    assert not result.passed
    assert result.reasons == ("output 'b' is missing", "unexpected output 'a'")


def test_empty_tensors_and_scalars() -> None:
    assert check(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).passed
    assert check(np.zeros((0,), np.int64), np.zeros((0,), np.int64)).passed
    assert check(np.float32(1.0), np.float32(1.0)).passed
    assert not check(np.float32(1.5), np.float32(1.0)).passed
    assert compare({}, {}).passed


@pytest.mark.parametrize(("precision", "passes"), [("fp32", False), ("tf32", False), ("fp16", True), ("bf16", True)])
def test_only_models_in_16_bits_may_be_off_by_more_than_a_hundredth(precision: str, passes: bool) -> None:
    expected = {"y": np.array([1.0, 2.0], np.float32)}
    found = {"y": np.array([1.03, 2.0], np.float32)}
    assert compare(found, expected, rtol=rtol_of(precision)).passed == passes


@pytest.mark.parametrize(("precision", "passes"), [("fp32", False), ("tf32", True), ("fp16", True)])
def test_factors_rounded_to_tf32_may_be_off_by_a_thousandth(precision: str, passes: bool) -> None:
    expected = {"y": np.array([1.0, 2.0], np.float32)}
    found = {"y": np.array([1.0, 2.002], np.float32)}
    assert compare(found, expected, rtol=rtol_of(precision)).passed == passes
