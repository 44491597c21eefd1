"""Elementwise functions, mainly activations, in numpy and as CUDA C++ expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, isinf, isnan, sqrt

import numpy as np


@dataclass(frozen=True)
class Activation:
    """An elementwise function with parameters normalized from ONNX attributes and constant inputs.

    Attributes:
        type: ONNX type, or "" for the identity.
        alpha: slope (LeakyRelu, Elu, Celu, Selu, HardSigmoid), lower bound (Clip), threshold (ThresholdedRelu), factor
            (Swish).
        beta: offset (HardSigmoid), upper bound (Clip), gamma (Selu); 1 for Gelu approximated by tanh.
    """

    type: str = ""
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Applies the function to float32 or float64 values."""
        with np.errstate(all="ignore"):
            return np.asarray(_NUMPY[self.type](x, self), x.dtype)

    @property
    def is_identity(self) -> bool:
        """Whether it is the identity."""
        return self.type == ""

    def expression(self, x: str) -> str:
        """CUDA C++ of the function of the float variable `x`."""
        return _CUDA[self.type](x, _number(self.alpha), _number(self.beta))


IDENTITY = Activation()
RELU = Activation("Relu")


def is_supported(op_type: str) -> bool:
    """Whether the ONNX type is such a function."""
    return op_type in _NUMPY


def _number(value: float) -> str:
    with np.errstate(over="ignore"):
        rounded = np.float32(value).item()
    if isnan(rounded):
        return "__int_as_float(0x7fc00000)"
    if isinf(rounded):
        return f"__int_as_float({'0x7f800000' if rounded > 0 else '0xff800000'})"
    return f"({rounded!r}f)"


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([erf(value) for value in x.reshape(-1).tolist()]).reshape(x.shape)


def _gelu(x: np.ndarray, a: Activation) -> np.ndarray:
    if a.beta:
        return np.asarray(x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2)
    return np.asarray(x * (1 + _erf(x / sqrt(2))) / 2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + half), half / (1 + half)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


_NUMPY: dict[str, Callable[[np.ndarray, Activation], np.ndarray]] = {
    "": lambda x, a: x,
    "Relu": lambda x, a: np.maximum(x, 0),
    "LeakyRelu": lambda x, a: np.where(x < 0, a.alpha * x, x),
    "Clip": lambda x, a: np.minimum(np.maximum(x, a.alpha), a.beta),
    "Sigmoid": lambda x, a: _sigmoid(x),
    "HardSigmoid": lambda x, a: np.clip(a.alpha * x + a.beta, 0, 1),
    "HardSwish": lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1),
    "Tanh": lambda x, a: np.tanh(x),
    "Elu": lambda x, a: np.where(x < 0, a.alpha * np.expm1(np.minimum(x, 0)), x),
    "Celu": lambda x, a: np.where(x < 0, a.alpha * np.expm1(np.minimum(x, 0) / a.alpha), x),
    "Selu": lambda x, a: a.beta * np.where(x <= 0, a.alpha * np.expm1(np.minimum(x, 0)), x),
    "Softplus": lambda x, a: _softplus(x),
    "Softsign": lambda x, a: x / (1 + np.abs(x)),
    "Mish": lambda x, a: x * np.tanh(_softplus(x)),
    "Gelu": _gelu,
    "Swish": lambda x, a: x * _sigmoid(a.alpha * x),
    "ThresholdedRelu": lambda x, a: np.where(x > a.alpha, x, 0),
    "Abs": lambda x, a: np.abs(x),
    "Ceil": lambda x, a: np.ceil(x),
    "Cos": lambda x, a: np.cos(x),
    "Erf": lambda x, a: _erf(x),
    "Exp": lambda x, a: np.exp(x),
    "Floor": lambda x, a: np.floor(x),
    "Log": lambda x, a: np.log(x),
    "Neg": lambda x, a: -x,
    "Reciprocal": lambda x, a: 1 / x,
    "Round": lambda x, a: np.rint(x),
    "Sign": lambda x, a: np.sign(x),
    "Sin": lambda x, a: np.sin(x),
    "Sqrt": lambda x, a: np.sqrt(x),
}

ACTIVATIONS = tuple(kind for kind in _NUMPY if kind)
"""ONNX types of all functions."""

_SIGMOID = "(1.0f / (1.0f + expf(-({0}))))"
_SOFTPLUS = "(fmaxf({0}, 0.0f) + log1pf(expf(-fabsf({0}))))"

_CUDA: dict[str, Callable[[str, str, str], str]] = {
    "": lambda x, a, b: x,
    "Relu": lambda x, a, b: f"(({x}) < 0.0f ? 0.0f : ({x}))",
    "LeakyRelu": lambda x, a, b: f"(({x}) < 0.0f ? {a} * ({x}) : ({x}))",
    "Clip": lambda x, a, b: f"(({x}) < {a} ? {a} : (({x}) > {b} ? {b} : ({x})))",
    "Sigmoid": lambda x, a, b: _SIGMOID.format(x),
    "HardSigmoid": lambda x, a, b: f"fminf(fmaxf({a} * ({x}) + {b}, 0.0f), 1.0f)",
    "HardSwish": lambda x, a, b: f"(({x}) * fminf(fmaxf(({x}) / 6.0f + 0.5f, 0.0f), 1.0f))",
    "Tanh": lambda x, a, b: f"tanhf({x})",
    "Elu": lambda x, a, b: f"(({x}) < 0.0f ? {a} * expm1f({x}) : ({x}))",
    "Celu": lambda x, a, b: f"(({x}) < 0.0f ? {a} * expm1f(({x}) / {a}) : ({x}))",
    "Selu": lambda x, a, b: f"({b} * (({x}) <= 0.0f ? {a} * expm1f({x}) : ({x})))",
    "Softplus": lambda x, a, b: _SOFTPLUS.format(x),
    "Softsign": lambda x, a, b: f"(({x}) / (1.0f + fabsf({x})))",
    "Mish": lambda x, a, b: f"(({x}) * tanhf({_SOFTPLUS.format(x)}))",
    "Gelu": lambda x, a, b: (
        f"(({x}) * 0.5f * ({b} != 0.0f ? 1.0f + tanhf(0.7978845608f * (({x}) + 0.044715f * ({x}) * ({x}) * ({x})))"
        f" : 1.0f + erff(({x}) * 0.7071067812f)))"
    ),
    "Swish": lambda x, a, b: f"(({x}) * {_SIGMOID.format(f'{a} * ({x})')})",
    "ThresholdedRelu": lambda x, a, b: f"(({x}) > {a} ? ({x}) : 0.0f)",
    "Abs": lambda x, a, b: f"fabsf({x})",
    "Ceil": lambda x, a, b: f"ceilf({x})",
    "Cos": lambda x, a, b: f"cosf({x})",
    "Erf": lambda x, a, b: f"erff({x})",
    "Exp": lambda x, a, b: f"expf({x})",
    "Floor": lambda x, a, b: f"floorf({x})",
    "Log": lambda x, a, b: f"logf({x})",
    "Neg": lambda x, a, b: f"(-({x}))",
    "Reciprocal": lambda x, a, b: f"(1.0f / ({x}))",
    "Round": lambda x, a, b: f"rintf({x})",
    "Sign": lambda x, a, b: f"(({x}) > 0.0f ? 1.0f : (({x}) < 0.0f ? -1.0f : ({x})))",
    "Sin": lambda x, a, b: f"sinf({x})",
    "Sqrt": lambda x, a, b: f"sqrtf({x})",
}
