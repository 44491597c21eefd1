"""Seeded random inputs."""

from __future__ import annotations

import numpy as np
import pytest

from iosched.models.errors import UsageError
from iosched.models.graph import TensorSpec
from iosched.runtime.inputs import random_inputs

ALL = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
       "uint64", "bool", "complex64")  # fmt: skip


@pytest.mark.parametrize("dtype", ALL)
def test_every_type_gets_its_shape_and_more_than_one_value(dtype: str) -> None:
    (array,) = random_inputs([TensorSpec("x", dtype, (8, 9))]).values()
    assert array.dtype.name == dtype
    assert array.shape == (8, 9)
    assert len(np.unique(array.astype(np.complex128))) > 1


def test_values_depend_on_name_and_seed_and_not_on_other_inputs() -> None:
    x, y = TensorSpec("x", "float32", (16,)), TensorSpec("y", "float32", (16,))
    alone, together = random_inputs([x], seed=3), random_inputs([y, x], seed=3)
    assert np.array_equal(alone["x"], together["x"])
    assert not np.array_equal(together["x"], together["y"])
    assert not np.array_equal(alone["x"], random_inputs([x], seed=4)["x"])


def test_wide_integers_are_legal_indices_and_bytes_span_their_range() -> None:
    found = random_inputs([TensorSpec("token", "int64", (999,)), TensorSpec("pixel", "uint8", (9999,))])
    assert set(np.unique(found["token"])) == {0, 1}
    assert (found["pixel"].min(), found["pixel"].max()) == (0, 255)


def test_random_texts_have_the_type_that_onnxruntime_accepts() -> None:
    (x,) = random_inputs([TensorSpec("x", "string", (40, 2))]).values()
    assert (x.dtype, x.shape) == (np.dtype(object), (40, 2))
    assert {type(word) for word in x.flat} == {str}
    assert len(set(x.flat)) > 1
    assert np.array_equal(x, random_inputs([TensorSpec("x", "string", (40, 2))])["x"])


def test_scalars_and_empty_inputs() -> None:
    found = random_inputs(
        [TensorSpec("s", "float32", ()), TensorSpec("e", "int64", (0, 3)), TensorSpec("b", "bool", ())]
    )
    assert isinstance(found["s"], np.ndarray)
    assert found["s"].shape == ()
    assert isinstance(found["b"], np.ndarray)
    assert found["e"].shape == (0, 3)


@pytest.mark.parametrize(
    ("spec", "reason", "way"),
    [
        (TensorSpec("t", "optional(tensor(float))", (2,)), "no random values", "iosched.load"),
        (TensorSpec("t", "string", None), "shape is known only at run time", "--input"),
        (TensorSpec("t", "seq(tensor(float))", None), "shape is known only at run time", "iosched.load"),
        (TensorSpec("t", "float32", None), "shape is known only at run time", "--input"),
    ],
)
def test_inputs_that_cannot_be_generated_are_an_error_with_the_fix(spec: TensorSpec, reason: str, way: str) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        random_inputs([spec])
    assert way in str(error.value)
