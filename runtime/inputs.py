"""Seeded random inputs, and checks of inputs."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import TensorSpec
from iosched.runtime.memory import check_inputs_fit

Arrays = Mapping[str, np.ndarray]
"""A model's inputs or outputs by name."""

DEFAULT_SEED = 0
"""Seed of random inputs."""

_WORDS = ("a", "b", "one", "two")


def check_names(inputs: Collection[str], known: Collection[str]) -> None:
    """Check that exactly the inputs of a model are passed.

    Raises:
        UsageError: one is missing or unknown.
    """
    if missing := [name for name in known if name not in inputs]:
        raise UsageError(f"input {missing[0]!r} is missing")
    if unknown := [name for name in inputs if name not in known]:
        raise UsageError(f"the model has no input {unknown[0]!r}; it has {', '.join(known) or 'none'}")


def random_inputs(specs: Sequence[TensorSpec], seed: int = DEFAULT_SEED) -> dict[str, np.ndarray]:
    """One array for each input; its values depend only on its name, type, shape and the seed.

    Floats are standard normal, booleans are fair coins. 8-bit integers span their range, as pixels and quantized values
    do. Wider integers are 0 or 1: valid as token, index, mask and class. Texts are short words.

    Raises:
        UsageError: an input is a sequence or map, or its shape is unknown.
        DeviceError: they need more memory than is free.
    """
    check_inputs_fit(specs)
    return {spec.name: _random(spec, seed) for spec in specs}


def _random(spec: TensorSpec, seed: int) -> np.ndarray:
    if spec.shape is None or not (spec.is_static or spec.dtype == "string"):
        reason = "its shape is known only at run time" if spec.shape is None else "this type has no random values"
        holds_arrays = "(" in spec.dtype  # no .npy file holds a sequence, map or optional
        way = "Run the model from Python with iosched.load." if holds_arrays else "Pass it with --input NAME=FILE.npy."
        raise UsageError(f"input {spec.name!r} ({spec.dtype}) cannot be filled with random values: {reason}.\n{way}")
    source = np.random.default_rng([seed, zlib.crc32(spec.name.encode("utf-8", "surrogatepass"))])
    if spec.dtype == "string":
        return source.choice(np.array(_WORDS, dtype=object), spec.shape)
    if spec.dtype == "bool":
        return source.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.dtype in ("int8", "uint8"):
        limits = np.iinfo(spec.dtype)
        return source.integers(limits.min, limits.max, spec.shape, dtype=spec.dtype, endpoint=True)
    if "int" in spec.dtype:
        return source.integers(0, 2, spec.shape).astype(spec.dtype)
    return _normal(source, spec.dtype, spec.shape)


def _normal(source: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(source.standard_normal(shape))
    if dtype.startswith("complex"):
        return (values + 1j * np.asarray(source.standard_normal(shape))).astype(dtype)
    if dtype == "bfloat16":
        import ml_dtypes  # comes with onnx

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(dtype)


def as_specified(spec: TensorSpec, inputs: Arrays) -> np.ndarray:
    """The array of the input `spec`, C-contiguous.

    Raises:
        UsageError: it is missing, or has another type or shape.
    """
    if spec.name not in inputs:
        raise UsageError(f"input {spec.name!r} is missing; got: {', '.join(inputs) or 'none'}")
    array = np.asarray(inputs[spec.name])
    if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
        wanted = f"{spec.dtype} of shape {spec.shape}"
        raise UsageError(f"input {spec.name!r} must be {wanted}, not {array.dtype} of shape {array.shape}")
    return np.asarray(array, order="C")


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of that name, including those of `ml_dtypes`."""
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, name))
    return dtype
