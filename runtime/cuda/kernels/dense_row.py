"""Dense layers of a single row in strict float32, where cuDNN's plans, made for images, are slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import LOAD, MAX_ACCESS_NBYTES, preamble
from iosched.runtime.cuda.source.loops import element_strides, shape_of
from iosched.runtime.plan import View

_MAX_THREADS = 128
_PACK = 4


@dataclass(frozen=True)
class DenseRow:
    """y = activation(weight @ x + bias?) for one row x, with a block for each element of y.

    Reads x (..., K) of K elements, weight (N, K) and bias (N,), writes y (..., N); float32, last axes dense.
    The first dense layer of VGG-16 takes 843 us in cuDNN on an H100, where reading its weights takes 123 us: see
    benchmarks/reports/cuda-h100.md.
    """

    bias: bool = True
    activation: Activation = IDENTITY

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        product = reads[0] @ reads[1].T
        writes[0][...] = self.activation(product + reads[2] if self.bias else product)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        (n, k), (step, _) = shape_of(reads[1]), element_strides(reads[1])
        is_aligned = all(view.offset % MAX_ACCESS_NBYTES == 0 for view in reads[:2])
        width = _PACK if is_aligned and k % _PACK == step % _PACK == 0 else 1
        threads = 32
        while threads < _MAX_THREADS and threads * width < k:
            threads *= 2
        pointers: list[Argument] = [Pointer(index) for index in range(len(reads) + 1)]
        source = _SOURCE.format(
            preamble=preamble(["float32"]) + LOAD,
            threads=threads,
            width=width,
            bias_parameter="const float* __restrict__ bias, " if self.bias else "",
            bias_term=" + bias[row]" if self.bias else "",
            result=self.activation.expression("sum"),
        )
        return CudaCall(source, "dense_row", (n, 1, 1), (threads, 1, 1), (*pointers, np.int32(k), np.int64(step)))


_SOURCE = """{preamble}
constexpr int THREADS = {threads}, WIDTH = {width};

extern "C" __global__ void dense_row(const float* __restrict__ x, const float* __restrict__ weight,
                                     {bias_parameter}float* __restrict__ y, int k, long long step) {{
  __shared__ float shared[THREADS];
  const int lane = threadIdx.x, row = blockIdx.x;
  const float* __restrict__ factors = weight + row * step;
  float sums[WIDTH] = {{}};
#pragma unroll 4
  for (int at = lane * WIDTH; at < k; at += THREADS * WIDTH) {{
    const Pack<float, WIDTH> a = load<WIDTH>(factors + at), b = load<WIDTH>(x + at);
#pragma unroll
    for (int which = 0; which < WIDTH; ++which) sums[which] = fmaf(a.at[which], b.at[which], sums[which]);
  }}
  float sum = 0.0f;
#pragma unroll
  for (int which = 0; which < WIDTH; ++which) sum += sums[which];
  shared[lane] = sum;
  for (int half = THREADS / 2; half > 0; half /= 2) {{
    __syncthreads();
    if (lane < half) shared[lane] += shared[lane + half];
  }}
  if (lane == 0) {{
    sum = shared[0]{bias_term};
    y[row] = {result};
  }}
}}
"""
