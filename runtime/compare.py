"""Compares the outputs of two runs of a model.

An error is relative to max |expected| of the whole tensor, not of the element: another order of summation leaves
absolute errors of about the same size everywhere in a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

RTOL = 1e-4
"""Tolerance for 32-bit and wider floats."""

HALF_RTOL = 2e-2
"""Tolerance for 16-bit floats: a few units in the last place of bfloat16, a few dozen of float16."""

TF32_RTOL = 1e-2
"""Tolerance for tf32 factors: their rounding alone costs one convolution 3.5e-4 and whole networks 8e-4."""

STEP_DTYPES = ("int8", "uint8")
"""Output types of quantized models, which may differ by one step: rounding may fall to either side.
All other integers must be equal."""


_TENSORS = (np.ndarray, np.generic, float, int)


@dataclass(frozen=True)
class Check:
    """Difference between outputs and the expected ones.

    Attributes:
        max_abs: largest absolute difference; infinite if the outputs cannot be compared.
        max_rel: largest difference relative to max |expected| of its tensor.
        passed: whether every output is within its tolerance.
        reasons: for users: one line for each output that failed.
    """

    max_abs: float
    max_rel: float
    passed: bool
    reasons: tuple[str, ...] = ()


def rtol_of(precision: str) -> float:
    """Tolerance of outputs whose floats were multiplied in this precision."""
    return {"fp16": HALF_RTOL, "bf16": HALF_RTOL, "tf32": TF32_RTOL}.get(precision, RTOL)


def compare(outputs: Mapping[str, Any], expected: Mapping[str, Any], *, rtol: float = RTOL) -> Check:
    """Compare outputs by name: arrays, and lists and dicts of arrays for ONNX sequences and maps.

    Floats pass within `rtol` of the tensor's maximum (16-bit floats within at least `HALF_RTOL`), `STEP_DTYPES` within
    one step, other types if equal. NaN and infinities must be at the same positions. O(elements).
    """
    checks = [_missing(f"output {name!r} is missing") for name in expected if name not in outputs]
    checks += [_missing(f"unexpected output {name!r}") for name in outputs if name not in expected]
    checks += [_compare_value(name, outputs[name], expected[name], rtol) for name in expected if name in outputs]
    return combine(checks)


def combine(checks: Sequence[Check]) -> Check:
    """Merge checks into one that passes if all do."""
    return Check(
        max((check.max_abs for check in checks), default=0.0),
        max((check.max_rel for check in checks), default=0.0),
        all(check.passed for check in checks),
        tuple(reason for check in checks for reason in check.reasons),
    )


def _missing(reason: str) -> Check:
    return Check(inf, inf, False, (reason,))


def _compare_value(name: str, found: Any, expected: Any, rtol: float) -> Check:
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return _missing(f"output {name!r} has {len(found)} elements, expected {len(expected)}")
        pairs = zip(found, expected, strict=True)
        return combine([_compare_value(f"{name}[{i}]", one, other, rtol) for i, (one, other) in enumerate(pairs)])
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        return combine([_compare_value(f"{name}[{key!r}]", found[key], expected[key], rtol) for key in expected])
    if isinstance(expected, _TENSORS) and isinstance(found, _TENSORS):
        return _compare_arrays(name, np.asarray(found), np.asarray(expected), rtol)
    same = type(found) is type(expected) and found == expected
    return Check(0.0, 0.0, True) if same else _missing(f"output {name!r} differs")


def _compare_arrays(name: str, found: np.ndarray, expected: np.ndarray, rtol: float) -> Check:
    if found.shape != expected.shape:
        return _missing(f"output {name!r} has shape {list(found.shape)}, expected {list(expected.shape)}")
    if found.dtype != expected.dtype:
        return _missing(f"output {name!r} is {found.dtype}, expected {expected.dtype}")
    if expected.dtype.kind in "OSU":
        same = bool(np.all(found == expected))
        return Check(0.0, 0.0, True) if same else _missing(f"output {name!r} differs in its text")
    if "int" in expected.dtype.name or expected.dtype == np.bool_:  # numpy's kind of int4 is not integer
        return _compare_integers(name, found, expected)
    return _compare_floats(name, found, expected, rtol)


def _compare_integers(name: str, found: np.ndarray, expected: np.ndarray) -> Check:
    if np.array_equal(found, expected):
        return Check(0.0, 0.0, True)
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    # Adjacent integers above 2**53 are equal as float64.
    max_abs = max(float(difference.max()), 1.0)
    max_rel = _relative(max_abs, float(np.abs(expected.astype(np.float64)).max()))
    if expected.dtype.name in STEP_DTYPES and max_abs <= 1:
        return Check(max_abs, max_rel, True)
    places = int(np.count_nonzero(found != expected))
    reason = f"output {name!r} differs in {places} of {found.size} values, by up to {max_abs:g}"
    return Check(max_abs, max_rel, False, (reason,))


def _compare_floats(name: str, found: np.ndarray, expected: np.ndarray, rtol: float) -> Check:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    one, other = found.astype(wide), expected.astype(wide)
    finite = np.isfinite(other)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(one[finite]).all():
        return _missing(f"output {name!r} has NaN or infinity at unexpected positions")
    with np.errstate(over="ignore"):
        max_abs = float(np.abs(one[finite] - other[finite]).max(initial=0.0))
    max_rel = _relative(max_abs, float(np.abs(other[finite]).max(initial=0.0)))
    tolerance = max(rtol, HALF_RTOL) if expected.dtype.itemsize <= 2 else rtol
    if max_rel <= tolerance:
        return Check(max_abs, max_rel, True)
    reason = f"output {name!r} differs by {max_abs:.3g}, {max_rel:.3g} of its maximum (tolerance {tolerance:.3g})"
    return Check(max_abs, max_rel, False, (reason,))


def _relative(difference: float, scale: float) -> float:
    if difference == 0:
        return 0.0
    return difference / scale if scale > 0 else inf
