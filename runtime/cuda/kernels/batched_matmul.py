"""Batched matrix products in float32, where cuDNN has no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from iosched.runtime.cuda.kernel import H100, Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import C_TYPES, LOAD, preamble, widened
from iosched.runtime.cuda.source.loops import Loop, Operand, collapse, element_strides, pack_width, shape_of
from iosched.runtime.plan import View

_THREADS = 256
_MAX_WIDTH = 4


@dataclass(frozen=True)
class _Tile:
    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int

    def work(self, batches: int, rows: int, columns: int, processors: int) -> int:
        """Estimated issue slots of the busiest processor for each summed index; one block leaves it half idle."""
        blocks = batches * -(-rows // self.rows) * -(-columns // self.columns)
        factors = self.thread_rows + self.thread_columns
        return max(2, -(-blocks // processors)) * (self.thread_rows * self.thread_columns + 2 * factors)


_TILES = (_Tile(128, 128, 8, 8, 8), _Tile(128, 64, 16, 8, 4), _Tile(64, 64, 16, 4, 4), _Tile(32, 32, 32, 2, 2))


@dataclass(frozen=True)
class BatchedMatMul:
    """y = activation(a @ b) with numpy's rules for broadcast batches and vectors: (..., M, K) by (..., K, N).

    One type, float32 or float16, in any layout and rank. Products and sums are float32, by FMA. Each block computes a
    tile of y of one batch; slabs of a and b pass through shared memory, double-buffered through registers.

    Attributes:
        processors: of the GPU, for the choice of tile.
    """

    activation: Activation = IDENTITY
    processors: int = H100.processors

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        writes[0][...] = self.activation(np.asarray(widened(reads[0]) @ widened(reads[1])))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        a, b, y = _matrices(reads[0], reads[1], writes[0])
        batch_shape = y.batch
        loop = collapse(batch_shape, [each.batch_operand(batch_shape) for each in (a, b, y)])
        (rows, columns), depth = y.shape, a.shape[1]
        tile = min(_TILES, key=lambda each: each.work(loop.count, rows, columns, self.processors))
        across, down = -(-columns // tile.columns), -(-rows // tile.rows)
        arguments: list[Argument] = [Pointer(0), Pointer(1), Pointer(2)]
        arguments += map(np.int32, (rows, columns, depth, down, across))
        arguments += [np.int64(stride) for each in (a, b, y) for stride in each.strides]
        arguments += map(np.int32, loop.extents[1:])
        arguments += [np.int64(stride) for each in loop.operands for stride in each.strides]
        source = self._source(tile, a, b, y, len(loop.extents))
        return CudaCall(
            source, "batched_matmul", (loop.count * down * across, 1, 1), (_THREADS, 1, 1), tuple(arguments)
        )

    def _source(self, tile: _Tile, a: _Matrix, b: _Matrix, y: _Matrix, rank: int) -> str:
        sizes = {
            "THREADS": _THREADS, "BM": tile.rows, "BN": tile.columns, "BK": tile.depth, "TM": tile.thread_rows,
            "TN": tile.thread_columns, "WA": a.width, "WB": b.width,
            "WY": min(y.width, tile.thread_columns) if y.is_dense_along(1) else 1,
        }  # fmt: skip
        along = {"A_ALONG_K": a.is_dense_along(1), "B_ALONG_K": b.is_dense_along(0)}
        head = [
            preamble([y.operand.dtype]),
            "constexpr int " + ", ".join(f"{name} = {value}" for name, value in sizes.items()) + ";",
            "constexpr bool " + ", ".join(f"{name} = {str(value).lower()}" for name, value in along.items()) + ";",
            f"typedef {C_TYPES[y.operand.dtype]} T;",
            f"__device__ __forceinline__ float activate(float x) {{ return {self.activation.expression('x')}; }}",
        ]
        names = [f"int e{axis}" for axis in range(1, rank)]
        names += [f"long long {name}b{axis}" for name in "aby" for axis in range(rank)]
        return "\n".join(
            [*head, LOAD, _TILES_OF_OPERANDS, _KERNEL % {"batches": ", ".join(names), "walk": _walk(rank)}]
        )


@dataclass(frozen=True)
class _Matrix:
    """An operand: its last two axes are a matrix, the others a batch; strides in elements.

    Attributes:
        operand: type, offset and strides of all axes.
    """

    batch: tuple[int, ...]
    batch_strides: tuple[int, ...]
    shape: tuple[int, int]
    strides: tuple[int, int]
    operand: Operand

    @classmethod
    def of(cls, view: View, one: int | None = None) -> _Matrix:
        """`view` with an axis of length one inserted at `one`, counted from the end."""
        shape, strides = list(shape_of(view)), list(element_strides(view))
        if one is not None:
            shape.insert(len(shape) + 1 + one, 1)
            strides.insert(len(strides) + 1 + one, 1)
        (rows, columns), (down, along) = shape[-2:], strides[-2:]
        operand = Operand(view.dtype, tuple(strides), 0, view.offset)
        return cls(tuple(shape[:-2]), tuple(strides[:-2]), (rows, columns), (down, along), operand)

    def batch_operand(self, batch: Sequence[int]) -> Operand:
        known = zip(self.batch, self.batch_strides, strict=True)
        seen = (*(0,) * len(batch), *(0 if extent == 1 else stride for extent, stride in known))
        return replace(self.operand, strides=seen[len(seen) - len(batch) :])

    def is_dense_along(self, axis: int) -> bool:
        """Whether neighbouring threads should take neighbours along `axis`."""
        own, other = self.strides[axis], self.strides[1 - axis]
        return (abs(own), -self.shape[axis]) <= (abs(other), -self.shape[1 - axis])

    @property
    def width(self) -> int:
        axis = 1 if self.is_dense_along(1) else 0
        batch = self.batch_operand(self.batch).strides
        other = 0 if self.shape[1 - axis] == 1 else self.strides[1 - axis]
        operand = replace(self.operand, strides=(*batch, other, self.strides[axis]))
        return min(pack_width(Loop((*self.batch, self.shape[1 - axis], self.shape[axis]), (operand,))), _MAX_WIDTH)


def _matrices(a: View, b: View, y: View) -> tuple[_Matrix, _Matrix, _Matrix]:
    """A vector on the left is a row, on the right a column; y does not have that axis."""
    is_row, is_column = len(shape_of(a)) == 1, len(shape_of(b)) == 1
    left, right = _Matrix.of(a, -2 if is_row else None), _Matrix.of(b, -1 if is_column else None)
    if is_row and is_column:
        return left, right, _Matrix.of(replace(y, shape=(1, 1), strides=None))
    return left, right, _Matrix.of(y, -2 if is_row else -1 if is_column else None)


def _walk(rank: int) -> str:
    lines = []
    for axis in reversed(range(rank)):
        at = "rest" if axis == 0 else f"(rest % (unsigned int)e{axis})"
        lines += [f"{name} += (long long){at} * {name}b{axis};" for name in "aby"]
        lines += [f"rest /= (unsigned int)e{axis};"] if axis else []
    return "  " + "\n  ".join(lines)


_TILES_OF_OPERANDS = """
// A thread's share of slabs of SIZE rows (of a) or columns (of b), which lie side by side in shared memory.
template <int SIZE, bool ALONG_K, int W> struct Share {
  static constexpr int PACKS = SIZE * BK / W / THREADS, NEXT_O = ALONG_K ? THREADS * W / BK : 0,
                       NEXT_K = ALONG_K ? 0 : THREADS * W / SIZE;
  static_assert(PACKS * W * THREADS == SIZE * BK, "packs are shared out evenly");
  Pack<T, W> held[PACKS];
  const T* from;  // of the first pack, as are o and k
  int o, k;

  __device__ __forceinline__ static int outer() { return ALONG_K ? threadIdx.x * W / BK : threadIdx.x * W % SIZE; }
  __device__ __forceinline__ static int depth() { return ALONG_K ? threadIdx.x * W % BK : threadIdx.x * W / SIZE; }

  __device__ __forceinline__ void begin(const T* matrix, int o0, long long step_o, long long step_k) {
    o = o0 + outer();
    k = depth();
    from = matrix + o * step_o + k * step_k;
  }

  // The next slab; packs are wholly inside or outside, since extents are multiples of W.
  __device__ __forceinline__ void fetch(int most_o, int most_k, long long step_o, long long step_k) {
#pragma unroll
    for (int index = 0; index < PACKS; ++index) {
      if (o + index * NEXT_O < most_o && k + index * NEXT_K < most_k) {
        held[index] = load<W>(from + index * (NEXT_O * step_o + NEXT_K * step_k));
      } else {
#pragma unroll
        for (int v = 0; v < W; ++v) held[index].at[v] = convert<T, float>(0.0f);
      }
    }
    from += BK * step_k;
    k += BK;
  }

  template <int PITCH> __device__ __forceinline__ void store(float* slab) const {
    slab += depth() * PITCH + outer();
#pragma unroll
    for (int index = 0; index < PACKS; ++index) {
      float* to = slab + index * (NEXT_K * PITCH + NEXT_O);
      Pack<float, W> row;
#pragma unroll
      for (int v = 0; v < W; ++v) row.at[v] = convert<float, T>(held[index].at[v]);
      if (ALONG_K) {
#pragma unroll
        for (int v = 0; v < W; ++v) to[v * PITCH] = row.at[v];
      } else {
        *reinterpret_cast<Pack<float, W>*>(to) = row;
      }
    }
  }
};

// A thread's rows (columns) lie in pieces of as many as are read at once, the pieces as far apart as can be.
template <int SIZE, int MINE> struct Pieces {
  static constexpr int WIDTH = MINE < 4 ? MINE : 4, STEP = SIZE / (MINE / WIDTH);

  __device__ __forceinline__ static int place(int thread, int index) {
    return index / WIDTH * STEP + thread * WIDTH + index % WIDTH;
  }
  __device__ __forceinline__ static void read(const float* from, int thread, float (&to)[MINE]) {
#pragma unroll
    for (int index = 0; index < MINE; index += WIDTH) {
      const auto piece = load<WIDTH>(from + place(thread, index));
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) to[index + v] = piece.at[v];
    }
  }
};
"""

_KERNEL = """
extern "C" __global__ __launch_bounds__(THREADS, 2) void batched_matmul(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ y, int rows, int columns, int sums, int down,
    int across, long long am, long long ak, long long bk, long long bn, long long ym, long long yn, %(batches)s) {
  constexpr int A_PITCH = BM + 4, B_PITCH = BN + 4, A_SIZE = BK * A_PITCH, STAGE = A_SIZE + BK * B_PITCH;
  typedef Pieces<BM, TM> Rows;
  typedef Pieces<BN, TN> Columns;
  __shared__ Pack<float, 4> memory[2 * STAGE / 4];
  float* slabs = reinterpret_cast<float*>(memory);
  const int n0 = blockIdx.x %% across * BN, m0 = blockIdx.x / across %% down * BM;
  unsigned int rest = blockIdx.x / across / down;
%(walk)s
  const int column = threadIdx.x %% (BN / TN), row = threadIdx.x / (BN / TN);

  Share<BM, A_ALONG_K, WA> next_a;
  Share<BN, B_ALONG_K, WB> next_b;
  float sum[TM][TN] = {};
  next_a.begin(a, m0, am, ak);
  next_b.begin(b, n0, bn, bk);
  next_a.fetch(rows, sums, am, ak);
  next_b.fetch(columns, sums, bn, bk);
  next_a.template store<A_PITCH>(slabs);
  next_b.template store<B_PITCH>(slabs + A_SIZE);
  __syncthreads();
  for (int k0 = 0, stage = 0; k0 < sums; k0 += BK, stage ^= 1) {
    const bool more = sums - k0 > BK;
    if (more) {
      next_a.fetch(rows, sums, am, ak);
      next_b.fetch(columns, sums, bn, bk);
    }
    const float* slab = slabs + stage * STAGE;
#pragma unroll 8
    for (int k = 0; k < BK; ++k) {
      float left[TM], right[TN];
      Rows::read(slab + k * A_PITCH, row, left);
      Columns::read(slab + A_SIZE + k * B_PITCH, column, right);
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
    if (more) {
      float* other = slabs + (stage ^ 1) * STAGE;
      next_a.template store<A_PITCH>(other);
      next_b.template store<B_PITCH>(other + A_SIZE);
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const int m = m0 + Rows::place(row, i);
#pragma unroll
    for (int j = 0; j < TN; j += WY) {
      const int n = n0 + Columns::place(column, j);
      if (m >= rows || n >= columns) continue;
      Pack<T, WY> result;
#pragma unroll
      for (int v = 0; v < WY; ++v) result.at[v] = convert<T, float>(activate(sum[i][j + v]));
      *reinterpret_cast<Pack<T, WY>*>(y + m * ym + n * yn) = result;
    }
  }
}
"""
