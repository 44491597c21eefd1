"""CUDA C++ of `Separable`, after its constants.

Shared memory holds two slabs: some warps multiply one while others fill the next, so each needs one barrier. Rows are
padded by 16 bytes to avoid bank conflicts between the eight threads of an access.

Neighbouring threads access neighbours in memory: channels, or pixels of a row in PLANAR images. These are transposed
(see `windows`), so that a thread computes neighbours of a column, of V channels, to fill shared memory by 16 bytes.
"""

from __future__ import annotations

MULTIPLY_BY_FMA = """
typedef float S;
constexpr int PITCH = BK + 4, B_ROWS = BK, B_WIDTH = BN, B_PITCH = BN;
constexpr bool IN_ROWS = true;  // the weight lies (input, output)
constexpr int TM = 4, TN = 4, PER_PART = BM * BN / TM / TN;

template <typename From> __device__ __forceinline__ float rounded(From x) { return convert<float, From>(x); }

// Every thread makes TM pixels of TN channels, summed over its part of the input channels.
struct Product {
  float sum[TM][TN];

  __device__ __forceinline__ void add(const float* a, const float* b, int limit) {
    const int mine = threadIdx.x % PER_PART, begin = threadIdx.x / PER_PART * (BK / PARTS), end = begin + BK / PARTS;
    a += mine / (BN / TN) * (TM * PITCH);
    b += mine % (BN / TN) * TN;
#pragma unroll 2
    for (int k = begin; k < (limit < end ? limit : end); k += 4) {
      Pack<float, 4> pixels[TM];
#pragma unroll
      for (int i = 0; i < TM; ++i) pixels[i] = load<4>(a + i * PITCH + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto factors = load<TN>(b + (k + j) * B_PITCH);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
          for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(pixels[i].at[j], factors.at[n], sum[i][n]);
      }
    }
  }

  __device__ __forceinline__ void write(float* c, int pitch) const {
    const int mine = threadIdx.x % PER_PART;
    c += (threadIdx.x / PER_PART * BM + mine / (BN / TN) * TM) * pitch + mine % (BN / TN) * TN;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
      for (int n = 0; n < TN; ++n) c[i * pitch + n] = sum[i][n];
  }
};
"""
"""float32 products and sums; halves are widened in shared memory."""

MMA_OF_HALVES = """
__device__ __forceinline__ __half rounded(float x) { return __float2half_rn(x); }
__device__ __forceinline__ __half rounded(__half x) { return x; }

#ifdef __CUDACC__
// d += a (16 x 16) * b (16 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}
#endif
"""
"""Tensor cores of compute capability 7.5 and newer. On a host, tests define `mma`."""

MMA_OF_TF32 = """
#ifdef __CUDACC__
__device__ __forceinline__ float round_to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// d += a (16 x 8) * b (8 x 8)
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

__device__ __forceinline__ float rounded(float x) { return round_to_tf32(x); }
"""
"""Tensor cores of compute capability 8.0 and newer. On a host, tests define `mma` and `round_to_tf32`."""

MULTIPLY_BY_TENSOR_CORES = """
typedef T S;
constexpr int PITCH = BK + E, B_ROWS = BN, B_WIDTH = BK, B_PITCH = PITCH;
constexpr bool IN_ROWS = false;  // the weight lies (output, input)
constexpr int WM = BM < 32 ? BM : 32, WN = 16, WARPS_M = BM / WM, PER_PART = WARPS_M * (BN / WN), FM = WM / 16, FN = 2;
constexpr int PER_WORD = 4 / sizeof(T), WORDS = PITCH / PER_WORD;

// Every warp makes WM pixels of WN channels, summed over its part of the input channels, in fragments of 16 x 8.
struct Product {
  float sum[FM][FN][4];

  __device__ __forceinline__ void add(const T* a, const T* b, int limit) {
    const int warp = threadIdx.x / 32 % PER_PART, row = threadIdx.x % 32 / 4, word = threadIdx.x % 4;
    const int begin = threadIdx.x / 32 / PER_PART * (BK / PARTS), end = begin + BK / PARTS;
    const unsigned* from_a = reinterpret_cast<const unsigned*>(a) + (warp % WARPS_M * WM + row) * WORDS + word;
    const unsigned* from_b = reinterpret_cast<const unsigned*>(b) + (warp / WARPS_M * WN + row) * WORDS + word;
#pragma unroll 2
    for (int k = begin; k < (limit < end ? limit : end); k += 8 * PER_WORD) {
      const int at = k / PER_WORD;
      unsigned fragment[FM][4], factors[FN][2];
#pragma unroll
      for (int i = 0; i < FM; ++i)
#pragma unroll
        for (int part = 0; part < 4; ++part)
          fragment[i][part] = from_a[(i * 16 + part % 2 * 8) * WORDS + at + part / 2 * 4];
#pragma unroll
      for (int j = 0; j < FN; ++j)
#pragma unroll
        for (int part = 0; part < 2; ++part) factors[j][part] = from_b[j * 8 * WORDS + at + part * 4];
#pragma unroll
      for (int i = 0; i < FM; ++i)
#pragma unroll
        for (int j = 0; j < FN; ++j) mma(sum[i][j], fragment[i], factors[j]);
    }
  }

  __device__ __forceinline__ void write(float* c, int pitch) const {
    const int part = threadIdx.x / 32 / PER_PART, warp = threadIdx.x / 32 % PER_PART;
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    c += (part * BM + warp % WARPS_M * WM + row) * pitch + warp / WARPS_M * WN + column;
#pragma unroll
    for (int i = 0; i < FM; ++i)
#pragma unroll
      for (int j = 0; j < FN; ++j)
#pragma unroll
        for (int d = 0; d < 4; ++d) c[(i * 16 + d / 2 * 8) * pitch + j * 8 + d % 2] = sum[i][j][d];
  }
};
"""
"""Products of halves or tf32, summed in float32."""

_BODY = """
constexpr int A_SIZE = BM * PITCH, B_SIZE = B_ROWS * B_PITCH, STAGE = A_SIZE + B_SIZE;
constexpr int C_PITCH = BN + (PLANAR ? BM < 32 ? 32 / BM : 1 : 4);  // threads read what they write: down or along rows
constexpr int SLABS_NBYTES = 2 * STAGE * sizeof(S), C_NBYTES = PARTS * BM * C_PITCH * sizeof(float);
constexpr int PACKS = B_ROWS * B_WIDTH / E / THREADS, GROUPS = BM / G;
constexpr bool EARLY = COLUMNS * V <= 28;

// Pixel t of group g is row t * GROUPS + g of a tile.
struct Place {
  int image, top, left;  // of the first output's window
  int count;             // outputs of the group that there are
};

// An image, and its strides.
struct Image {
  const T* __restrict__ at;
  long long n, c, h, w;
};

// What a depthwise window over the sum of images gives for G neighbours of a row and V channels from c on.
__device__ __forceinline__ void slide(const Image* images, const T* __restrict__ taps, const Place& at, int in_h,
                                      int in_w, int c, int channels, float (&sum)[G][V]) {
  const T* from[TERMS];
#pragma unroll
  for (int i = 0; i < TERMS; ++i) from[i] = images[i].at + at.image * images[i].n + c * images[i].c;
#pragma unroll UNROLLED
  for (int ky = 0; ky < KH; ++ky) {
    const int h = at.top + ky * DH;
    const bool inside = h >= 0 && h < in_h;  // no branch around the row: the loads of several rows shall go together
    float part[COLUMNS][V];  // of these, what no tap sees is never loaded
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) {
      const int w = at.left + k;
      if (inside && w >= 0 && w < in_w) {
#pragma unroll
        for (int i = 0; i < TERMS; ++i) {
          const auto input = load_apart<V, !PLANAR>(from[i] + h * (int)images[i].h + w * (int)images[i].w, images[i].c);
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const float value = convert<float, T>(input.at[v]), sum = i ? part[k][v] + value : value;
            part[k][v] = RELU && i == TERMS - 1 ? fmaxf(sum, 0.0f) : sum;
          }
        }
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) part[k][v] = 0.0f;
      }
    }
#pragma unroll
    for (int kx = 0; kx < KW; ++kx) {
      const auto factor = load<V>(taps + (PLANAR ? kx * KH + ky : ky * KW + kx) * channels);
#pragma unroll
      for (int t = 0; t < G; ++t)
#pragma unroll
        for (int v = 0; v < V; ++v)
          sum[t][v] = fmaf(part[t * SW + kx * DW][v], convert<float, T>(factor.at[v]), sum[t][v]);
    }
  }
}

// This thread's share of the weight for a slab and a tile.
__device__ __forceinline__ void fetch(const T* __restrict__ weight, int pitch, int k0, int n0,
                                      Pack<T, E> (&held)[PACKS]) {
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int at = (i * THREADS + threadIdx.x) * E;
    const long long row = at / B_WIDTH + (IN_ROWS ? k0 : n0);
    held[i] = load<E>(weight + row * pitch + at % B_WIDTH + (IN_ROWS ? n0 : k0));
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 2) void separable(
    @pointers@, const T* __restrict__ taps, const T* __restrict__ weight, const float* __restrict__ bias,
    @added pointers@T* __restrict__ y, int groups, int per_row, int out_h, int out_w, int in_h, int in_w, int channels,
    int wide, int tiles, int pitch, long long yn, long long yc, long long yh, long long yw, @strides@) {
  const Image images[] = {@images@};  // the terms of x, then those of y
  __shared__ Pack<float, 4> memory[(SLABS_NBYTES > C_NBYTES ? SLABS_NBYTES : C_NBYTES) / 16];
  __shared__ Place places[GROUPS];
  const int first = blockIdx.x / tiles * GROUPS, n0 = blockIdx.x % tiles * BN;
  for (int g = threadIdx.x; g < GROUPS; g += THREADS) {
    const int index = first + g, line = index / (PLANAR ? out_h : per_row);
    const int row = PLANAR ? index % out_h : line % out_h, image = line / (PLANAR ? per_row : out_h);
    const int column = (PLANAR ? line : index) % per_row * G, left = out_w - column;
    places[g] = {image, row * SH - PT, column * SW - PL, index >= groups ? 0 : left < G ? left : G};
  }
  __syncthreads();

  Product product = {};
  for (int k0 = 0, stage = 0; k0 < channels; k0 += BK, stage ^= 1) {
    S* a = reinterpret_cast<S*>(memory) + stage * STAGE;
    S* b = a + A_SIZE;
    Pack<T, E> held[PACKS];
    if (EARLY) fetch(weight, pitch, k0, n0, held);  // on its way while the windows slide, where registers are left
    for (int task = threadIdx.x; task < GROUPS * (BK / V); task += THREADS) {
      const int c = (PLANAR ? task / GROUPS : task % (BK / V)) * V, g = PLANAR ? task % GROUPS : task / (BK / V);
      const Place at = places[g];
      float sum[G][V] = {};
      if (k0 + c < channels && at.count > 0)
        slide(images, taps + k0 + c, at, in_h, in_w, k0 + c, channels, sum);
#pragma unroll
      for (int t = 0; t < G; ++t) {
        Pack<S, V> result;
#pragma unroll
        for (int v = 0; v < V; ++v) result.at[v] = rounded(sum[t][v]);
        *reinterpret_cast<Pack<S, V>*>(a + (t * GROUPS + g) * PITCH + c) = result;
      }
    }
    if (!EARLY) fetch(weight, pitch, k0, n0, held);
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
      const int at = (i * THREADS + threadIdx.x) * E;
      Pack<S, E> factors;
#pragma unroll
      for (int e = 0; e < E; ++e) factors.at[e] = rounded(held[i].at[e]);
      *reinterpret_cast<Pack<S, E>*>(b + at / B_WIDTH * B_PITCH + at % B_WIDTH) = factors;
    }
    __syncthreads();
    product.add(a, b, channels - k0 < BK ? channels - k0 : BK);
  }

  __syncthreads();
  float* c = reinterpret_cast<float*>(memory);
  product.write(c, C_PITCH);
  __syncthreads();
  for (int at = threadIdx.x * W; at < BM * BN; at += THREADS * W) {
    const int m = PLANAR ? at % BM : at / BN, n = PLANAR ? at / BM : at % BN, t = m / GROUPS;
    const Place place = places[m % GROUPS];
    if (t >= place.count || n0 + n >= wide) continue;
    const int row = (place.top + PT) / SH, column = (place.left + PL) / SW + t;
    Pack<T, W> result, added[ADDED + 1];
#pragma unroll
    for (int i = 0; i < ADDED; ++i) {
      const Image from = images[TERMS + i];
      added[i] = load<W>(from.at + place.image * from.n + row * from.h + column * from.w + (n0 + n) * from.c);
    }
#pragma unroll
    for (int v = 0; v < W; ++v) {
      float sum = bias[n0 + n + v];
#pragma unroll
      for (int part = 0; part < PARTS; ++part) sum += c[(part * BM + m) * C_PITCH + n + v];
#pragma unroll
      for (int i = 0; i < ADDED; ++i) sum += convert<float, T>(added[i].at[v]);
      result.at[v] = convert<T, float>(activate(sum));
    }
    *reinterpret_cast<Pack<T, W>*>(y + place.image * yn + row * yh + column * yw + (n0 + n) * yc) = result;
  }
}
"""
"""The kernel, for `body`; `Product` accumulates slabs, `rounded` converts factors to type `S`."""


def body(terms: int, added: int) -> str:
    """The kernel for `terms` images whose sum is convolved, and `added` ones that are added to the result."""
    sources, extra = [f"x{k}" for k in range(terms)], [f"a{k}" for k in range(added)]
    strides = (f"long long {name}{axis}" for name in (*sources, *extra) for axis in "nchw")
    images = (f"{{{name}, {name}n, {name}c, {name}h, {name}w}}" for name in (*sources, *extra))
    text = _BODY.replace("@strides@", ", ".join(strides)).replace("@images@", ", ".join(images))
    text = text.replace("@pointers@", ", ".join(f"const T* __restrict__ {name}" for name in sources))
    return text.replace("@added pointers@", "".join(f"const T* __restrict__ {name}, " for name in extra))
