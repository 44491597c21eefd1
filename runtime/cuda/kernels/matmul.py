"""Products of matrices by cuDNN: by a matrix of weights as convolutions of single pixels, others in batches.

cuDNN's tuned engines for convolutions know a bias and a ReLU in all precisions; for `matmul` it has none in strict
float32, where a kernel of our own does it, and compiles all others at run time
(benchmarks/reports/cudnn-coverage.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iosched.runtime.cuda.cudnn.graph import Epilogue, Shape, add_tensor, convolve, vector_shape, write_tensor
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import widened
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

MOST_AXES = 3
"""Axes of a factor at most: cuDNN sees it as a batch of matrices, or as pixels of images."""


@dataclass(frozen=True)
class Dense:
    """y = activation(x @ weight.T + bias?) over the last axis of x; sums are float32.

    Reads x (..., K) of one to three axes, weight (N, K) and the bias (N,), all of the type of y (..., N). The last axis
    of each is dense in memory. cuDNN has tuned engines for identity and ReLU, the latter with a bias.
    """

    bias: bool = True
    activation: Activation = IDENTITY
    precision: Precision = Precision("fp32")

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        product = widened(reads[0]) @ widened(reads[1]).T
        writes[0][...] = self.activation(product + widened(reads[2]) if self.bias else product)

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """See `CudnnKernel.build`.

        Raises:
            ValueError: a view does not begin at a multiple of 16 bytes.
        """
        x = add_tensor(graph, reads[0], 1, _pixels(reads[0]))
        n, k = shape_of(reads[1])
        weight = add_tensor(graph, reads[1], 2, Shape((n, k, 1, 1), (k, 1, k, k)))
        bias = add_tensor(graph, reads[2], 3, vector_shape(reads[2])) if self.bias else None
        product = convolve(graph, x, weight, (0, 0, 0, 0), (1, 1), (1, 1))
        result = Epilogue(None, bias, self.activation).add(graph, product)
        write_tensor(result, writes[0], len(reads) + 1, _pixels(writes[0]))


@dataclass(frozen=True)
class MatMul:
    """y = a @ b for a (A, M, K) and b (B, K, N), where A and B are equal or one of them is 1 or missing.

    Sums are float32. Not in strict float32, for which cuDNN has no engine.
    """

    precision: Precision

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = widened(reads[0]) @ widened(reads[1])

    def build(self, graph: Any, reads: Sequence[View], writes: Sequence[View]) -> None:
        """See `CudnnKernel.build`.

        Raises:
            ValueError: a view does not begin at a multiple of 16 bytes.
        """
        a, b = (add_tensor(graph, view, uid, _batch(view)) for uid, view in enumerate(reads, start=1))
        write_tensor(graph.matmul(A=a, B=b), writes[0], 3, _batch(writes[0]))


def _batch(view: View) -> Shape:
    """Two or three axes as three."""
    extents, strides = shape_of(view), element_strides(view)
    if len(extents) == MOST_AXES:
        return Shape(extents, strides)
    return Shape((1, *extents), (extents[0] * strides[0], *strides))


def _pixels(view: View) -> Shape:
    """(..., C) of one to three axes as pixels of C channels: (N, C, H, 1)."""
    extents, strides = shape_of(view), element_strides(view)
    channels = extents[-1]
    if len(extents) == 1:
        return Shape((1, channels, 1, 1), (channels, 1, channels, channels))
    row = strides[-2]
    height, image = (extents[1], strides[0]) if len(extents) == MOST_AXES else (1, row)
    return Shape((extents[0], channels, height, 1), (image, 1, row, row))
