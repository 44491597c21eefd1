"""The bundled networks in JAX, compiled by `jax.jit`; timed by the clock on the wall, since XLA shows no events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu_prepare import Peer
from jax import lax

from iosched.models.model import Model
from iosched.models.node_attributes import values

_PRODUCTS = {"fp32": "highest", "tf32": "tensorfloat32", "fp16": "default"}


def peers(model: Model, inputs: Mapping[str, np.ndarray], precision: str) -> dict[str, Peer]:
    """The model compiled and warmed up.

    Raises:
        ValueError: an operator has no counterpart here.
    """
    dtype = jnp.float16 if precision == "fp16" else jnp.float32
    weights = {name: _stored(array, dtype) for name, array in model.weights.items()}
    arrays = {name: _stored(array, dtype) for name, array in inputs.items()}
    run = jax.jit(network(model))
    with jax.default_matmul_precision(_PRODUCTS[precision]):
        compiled = run.lower(weights, arrays).compile()

    def timed(repeats: int) -> tuple[float, ...]:
        """The first run by itself; those in a row together, since the wall shows no end but the last."""
        started = time.perf_counter()
        jax.block_until_ready(compiled(weights, arrays))
        alone = time.perf_counter()
        for _ in range(repeats - 1):
            last = compiled(weights, arrays)
        jax.block_until_ready(last if repeats > 1 else ())
        in_a_row_us = (time.perf_counter() - alone) / max(repeats - 1, 1) * 1e6
        return ((alone - started) * 1e6, *[in_a_row_us] * (repeats - 1))

    def outputs() -> dict[str, np.ndarray]:
        return {name: np.asarray(array) for name, array in compiled(weights, arrays).items()}

    timed(1)
    return {"jax": Peer(timed, outputs)}


def network(model: Model) -> Callable[[Mapping[str, jax.Array], Mapping[str, jax.Array]], dict[str, jax.Array]]:
    """What computes the outputs from weights and inputs, node by node.

    Raises:
        ValueError: an operator has no counterpart here.
    """
    nodes = list(model.proto.graph.node)
    unknown = {node.op_type for node in nodes} - set(OPERATORS)
    if unknown:
        raise ValueError(f"no JAX counterpart of {', '.join(sorted(unknown))}")
    attributes = [values(node) for node in nodes]
    shapes = {spec.name: spec.shape for spec in model.graph.tensor.values()}

    def forward(weights: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        values = {**weights, **inputs}
        for node, found in zip(nodes, attributes, strict=True):
            operands = [values[name] if name else None for name in node.input]
            values[node.output[0]] = OPERATORS[node.op_type]({**found, "": shapes.get(node.output[0])}, *operands)
        return {name: values[name] for name in model.graph.outputs}

    return forward


def _stored(array: np.ndarray, dtype: Any) -> jax.Array:
    return jnp.asarray(array, dtype if array.dtype.kind == "f" else None)


def _conv(a: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    rank = w.ndim - 2
    pads = a.get("pads", [0] * 2 * rank)
    margins, strides = list(zip(pads[:rank], pads[rank:], strict=True)), a.get("strides", [1] * rank)
    more = {"rhs_dilation": a.get("dilations", [1] * rank), "feature_group_count": a.get("group", 1)}
    found = lax.conv_general_dilated(x, w, strides, margins, **more)
    return found if b is None else found + b.reshape((1, -1) + (1,) * rank)


def _windows(a: Mapping[str, Any], x: Any, start: float, combine: Any) -> Any:
    """Combines each window; what lies beyond the padding (with `ceil_mode`) counts as padding."""
    kernel = list(a["kernel_shape"])
    rank = len(kernel)
    strides, pads = a.get("strides", [1] * rank), a.get("pads", [0] * 2 * rank)
    margins = []
    for axis in range(rank):
        want = x.shape[2 + axis] if a[""] is None else a[""][2 + axis]
        reach = (want - 1) * strides[axis] + kernel[axis]
        end = reach - x.shape[2 + axis] - pads[axis]
        margins.append((pads[axis], max(end, 0)))
    found = lax.reduce_window(x, start, combine, (1, 1, *kernel), (1, 1, *strides), [(0, 0), (0, 0), *margins])
    return found[(..., *(slice(extent) for extent in (a[""] or found.shape)[2:]))]


def _average_pool(a: Mapping[str, Any], x: Any) -> Any:
    rank = len(a["kernel_shape"])
    ones = jnp.ones_like(x[:1, :1])
    if a.get("count_include_pad", 0):
        pads = a.get("pads", [0] * 2 * rank)
        margins = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
        x, ones = jnp.pad(x, margins), jnp.pad(ones, margins, constant_values=1)
        a = {**a, "pads": [0] * 2 * rank}
    return _windows(a, x, 0.0, lax.add) / _windows(a, ones, 0.0, lax.add)


def _batch_norm(a: Mapping[str, Any], x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
    factor = scale / jnp.sqrt(variance + a.get("epsilon", 1e-5))
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return x * factor.reshape(shape) + (shift - mean * factor).reshape(shape)


def _gemm(a: Mapping[str, Any], x: Any, w: Any, b: Any = None) -> Any:
    x = x.T if a.get("transA", 0) else x
    product = a.get("alpha", 1.0) * (x @ (w.T if a.get("transB", 0) else w))
    return product if b is None else product + a.get("beta", 1.0) * b


OPERATORS: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "MaxPool": lambda a, x: _windows(a, x, -jnp.inf, lax.max),
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdims=True),
    "BatchNormalization": _batch_norm,
    "Relu": lambda a, x: jnp.maximum(x, 0),
    "Add": lambda a, x, y: x + y,
    "Sum": lambda a, *terms: sum(terms[1:], start=terms[0]),
    "Concat": lambda a, *terms: jnp.concatenate(terms, a["axis"]),
    "Flatten": lambda a, x: x.reshape((int(np.prod(x.shape[: a.get("axis", 1)])), -1)),
    "Gemm": _gemm,
}
