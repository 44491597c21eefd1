"""Element types in CUDA C++, and how kernels load and store them.

Half precision is widened to float for arithmetic and rounded once, when stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

import numpy as np

C_TYPES = {
    "float32": "float", "float16": "__half", "float64": "double", "bool": "bool", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int",
    "int64": "long long", "uint64": "unsigned long long",
}  # fmt: skip
"""C types by numpy type."""

FLOATS = ("float32", "float16")
"""Types with float arithmetic."""

MAX_ACCESS_NBYTES = 16
"""Widest access of a thread."""

LOAD = """
template <int N, typename Item> __device__ __forceinline__ Pack<Item, N> load(const Item* at) {
  return *reinterpret_cast<const Pack<Item, N>*>(at);
}
"""
"""Loads of packs; follows `preamble`."""

STRIDED = """
// N elements that lie `step` apart, or side by side.
template <int N, bool SIDE_BY_SIDE, typename Item>
__device__ __forceinline__ Pack<Item, N> load_apart(const Item* at, long long step) {
  if constexpr (SIDE_BY_SIDE) {
    return load<N>(at);
  } else {
    Pack<Item, N> found;
#pragma unroll
    for (int k = 0; k < N; ++k) found.at[k] = at[k * step];
    return found;
  }
}

template <int N, bool SIDE_BY_SIDE, typename Item>
__device__ __forceinline__ void store_apart(Item* at, long long step, const Pack<Item, N>& pack) {
  if constexpr (SIDE_BY_SIDE) {
    *reinterpret_cast<Pack<Item, N>*>(at) = pack;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) at[k * step] = pack.at[k];
  }
}
"""
"""Strided loads and stores of packs; follows `LOAD`."""

_PACK = """
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T at[N]; };
template <typename To, typename From> __device__ __forceinline__ To convert(From x) { return static_cast<To>(x); }
"""
_HALF = """
template <> __device__ __forceinline__ float convert<float, __half>(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ __half convert<__half, float>(float x) { return __float2half_rn(x); }
"""


def item_nbytes(dtype: str) -> int:
    """Bytes of one element."""
    return np.dtype(dtype).itemsize


def compute_type(dtype: str) -> str:
    """The C type of `dtype` in arithmetic."""
    return "float" if dtype in FLOATS else C_TYPES[dtype]


def widened(array: np.ndarray) -> np.ndarray:
    """`array` in the type of arithmetic: float32 for half precision."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def summed(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape, in order, in the type of arithmetic."""
    return reduce(add, map(widened, arrays))


def preamble(dtypes: Iterable[str]) -> str:
    """Declarations at the start of every source: `Pack<T, N>` and `convert<To>(x)`."""
    half = "float16" in dtypes
    return ("#include <cuda_fp16.h>\n" if half else "") + _PACK.lstrip() + (_HALF.lstrip() if half else "")


def loaded(dtype: str, value: str) -> str:
    """C expression that converts the element `value` for arithmetic."""
    return f"convert<{compute_type(dtype)}, {C_TYPES[dtype]}>({value})"


def stored(dtype: str, value: str) -> str:
    """C expression that converts the computed `value` to an element."""
    return f"convert<{C_TYPES[dtype]}, {compute_type(dtype)}>(static_cast<{compute_type(dtype)}>({value}))"
