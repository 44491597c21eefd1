"""Writes the CUDA C++ of kernels in which every output element depends on one element of each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, preamble, stored
from iosched.runtime.cuda.source.loops import Loop, Operand, collapse, pack_width

_SMALL_BLOCK, _LARGE_BLOCK = 128, 256
_MANY_THREADS = 1 << 17


@dataclass(frozen=True)
class _Form:
    """All that the text of a source depends on."""

    body: str
    dtypes: tuple[str, ...]  # of the operands; the last one is written
    splats: tuple[bool, ...]  # whether the operand has one element for a whole pack
    rank: int
    width: int


def pointwise_call(
    extents: Sequence[int], reads: Sequence[Operand], write: Operand, body: str, *, entry: str
) -> CudaCall:
    """The launch that does `body` for every index of `extents`.

    Args:
        reads: operands in the order of the kernel's reads, with one stride for each of `extents`.
        body: statements of C++ in which `x0`, `x1`, ... are the elements read, and which define `y`.
        entry: name of the function.
    """
    loop = collapse(extents, [*reads, write])
    width = pack_width(loop)
    splats = tuple(width > 1 and given.strides[-1] == 0 for given in loop.operands)
    form = _Form(body, tuple(given.dtype for given in loop.operands), splats, len(loop.extents), width)
    return launch(_source(form, entry), entry, loop.count // width, _arguments(loop, width))


def launch(source: str, entry: str, threads: int, arguments: Sequence[Argument]) -> CudaCall:
    """One thread for each of `threads` pieces of work; small launches take small blocks, to reach more processors."""
    block = _LARGE_BLOCK if threads >= _MANY_THREADS else _SMALL_BLOCK
    return CudaCall(source, entry, (-(-threads // block), 1, 1), (block, 1, 1), tuple(arguments))


def _arguments(loop: Loop, width: int) -> list[Argument]:
    """Addresses; number of packs; extents but the outermost; for each operand its start and its strides."""
    found: list[Argument] = [Pointer(index) for index in range(len(loop.operands))]
    extents = [*loop.extents[:-1], loop.extents[-1] // width]
    found.append(np.int32(loop.count // width))
    found.extend(np.int32(extent) for extent in extents[1:])
    for given in loop.operands:
        found.append(np.int64(given.start))
        found.extend(np.int64(stride) for stride in given.strides[:-1])
        found.append(np.int64(given.strides[-1] * width))
    return found


def _source(form: _Form, entry: str) -> str:
    last = len(form.dtypes) - 1
    pointers = [f"const {C_TYPES[dtype]}* __restrict__ p{k}" for k, dtype in enumerate(form.dtypes[:-1])]
    pointers.append(f"{C_TYPES[form.dtypes[-1]]}* __restrict__ p{last}")
    sizes = ["int count", *(f"int e{axis}" for axis in range(1, form.rank))]
    steps = [
        f"long long {name}"
        for k in range(last + 1)
        for name in (f"o{k}", *(f"s{k}_{axis}" for axis in range(form.rank)))
    ]
    return "\n".join(
        [
            preamble(form.dtypes),
            f'extern "C" __global__ void {entry}({", ".join([*pointers, *sizes, *steps])}) {{',
            "  const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;",
            "  if (index >= (unsigned int)count) return;",
            *_walk(form),
            *(_load(form, k) for k in range(last)),
            f"  Pack<{C_TYPES[form.dtypes[-1]]}, {form.width}> result;",
            "#pragma unroll",
            f"  for (int lane = 0; lane < {form.width}; ++lane) {{",
            *(f"    const auto x{k} = {_element(form, k)};" for k in range(last)),
            f"    {form.body}",
            f"    result.at[lane] = {stored(form.dtypes[-1], 'y')};",
            "  }",
            f"  *reinterpret_cast<Pack<{C_TYPES[form.dtypes[-1]]}, {form.width}>*>(p{last} + o{last}) = result;",
            "}\n",
        ]
    )


def _walk(form: _Form) -> list[str]:
    """Statements that add to each operand's start where the index is in it."""
    lines = ["  unsigned int rest = index;"] if form.rank > 1 else []
    for axis in reversed(range(form.rank)):
        at = f"i{axis}"
        if axis == 0:
            lines.append(f"  const long long {at} = {'rest' if form.rank > 1 else 'index'};")
        else:
            lines.append(f"  const long long {at} = rest % (unsigned int)e{axis}; rest /= (unsigned int)e{axis};")
        lines.append("  " + " ".join(f"o{k} += {at} * s{k}_{axis};" for k in range(len(form.dtypes))))
    return lines


def _load(form: _Form, k: int) -> str:
    width = 1 if form.splats[k] else form.width
    pack = f"Pack<{C_TYPES[form.dtypes[k]]}, {width}>"
    return f"  const {pack} a{k} = *reinterpret_cast<const {pack}*>(p{k} + o{k});"


def _element(form: _Form, k: int) -> str:
    return loaded(form.dtypes[k], f"a{k}.at[{'0' if form.splats[k] else 'lane'}]")
