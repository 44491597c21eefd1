"""Arrays of a run: inputs are bound in place, and each run has separate outputs."""

from __future__ import annotations

import numpy as np
import pytest

from iosched.models.errors import UsageError
from iosched.runtime.cpu.arrays import InputArrays, OutputArrays, address
from iosched.runtime.plan import View

FLOATS = View("x", "float32", (2, 3), nbytes=24)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def read_only() -> np.ndarray:
    found = X.copy()
    found.flags.writeable = False
    return found


@pytest.mark.parametrize("array", [X, read_only(), np.asfortranarray(X), X[::-1], X.astype(X.dtype.newbyteorder("="))])
def test_an_input_is_bound_without_a_copy_if_it_is_contiguous(array: np.ndarray) -> None:
    inputs = InputArrays([FLOATS])
    kept = inputs.bind({"x": array})
    if array.flags.c_contiguous:
        assert inputs.pointers[0] == address(array)
    else:
        np.testing.assert_array_equal(kept[0], array)
        assert kept[0].flags.c_contiguous
        assert inputs.pointers[0] == address(kept[0])


@pytest.mark.parametrize("array", [X.astype(np.float64), X.T, X.astype(">f4"), [1, 2, 3]])
def test_an_input_of_another_type_or_shape_is_refused(array: object) -> None:
    with pytest.raises(UsageError, match=r"input 'x' must be float32 of shape \(2, 3\), not"):
        InputArrays([FLOATS]).bind({"x": array})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="input 'x' is missing; got: y"):
        InputArrays([FLOATS]).bind({"y": X})


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (1000, 30)])
def test_outputs_of_different_runs_do_not_overlap(shape: tuple[int, ...]) -> None:
    nbytes = 4 * int(np.prod(shape))
    outputs = OutputArrays([View("y", "float32", shape, nbytes=nbytes), FLOATS])
    taken = [outputs.take() for _ in range(40)]
    for number, (arrays, addresses) in enumerate(taken):
        assert [arrays["y"].shape, arrays["x"].shape] == [shape, (2, 3)]
        assert all(each % 64 == 0 for each in addresses[-1:])
        arrays["y"][...] = number
        arrays["x"][...] = -number
        assert addresses[1] == address(arrays["x"])
    for number, (arrays, _) in enumerate(taken):
        assert (arrays["y"] == number).all()
        assert (arrays["x"] == -number).all()


def test_a_model_may_have_no_outputs_of_known_size() -> None:
    assert [OutputArrays([]).take() for _ in range(3)] == [({}, [])] * 3


def test_all_outputs_may_be_empty() -> None:
    outputs = OutputArrays([View("y", "float32", (3, 0, 5), nbytes=0)])
    for _ in range(40):
        arrays, addresses = outputs.take()
        assert arrays["y"].shape == (3, 0, 5)
        assert len(addresses) == 1
