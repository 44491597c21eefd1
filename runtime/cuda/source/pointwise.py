"""Sources of kernels in which each output element depends on one element of each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, preamble, stored
from iosched.runtime.cuda.source.loops import Loop, Operand, collapse, pack_width

_SMALL_BLOCK, _LARGE_BLOCK = 128, 256
_MANY_THREADS = 1 << 17
_INDEX = "  unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;"


@dataclass(frozen=True)
class _Text:
    body: str
    dtypes: tuple[str, ...]  # of operands; the last is written
    splats: tuple[bool, ...]  # whether the operand broadcasts one element to a pack
    rank: int
    width: int


def pointwise_call(
    extents: Sequence[int], reads: Sequence[Operand], write: Operand, body: str, *, entry: str
) -> CudaCall:
    """The launch that runs `body` for every index of `extents`.

    Args:
        reads: operands in the order of the kernel's reads.
        body: C++ statements that compute `y` from `x0`, `x1`, ...
        entry: name of the function.
    """
    loop = collapse(extents, [*reads, write])
    text = _text(loop, body)
    return launch(_source(text, entry), entry, loop.count // text.width, _arguments(loop, text.width))


def copies_call(loops: Sequence[Loop], *, entry: str) -> CudaCall:
    """The launch that copies the first operand of every loop to the second, all of one type.

    The kernel's reads are the first operands, its writes the second ones. Each loop has its own threads: the indices of
    earlier threads wrap around to beyond all later counts.
    """
    threads, arguments, types, lines = 0, list[Argument](), list[str](), list[str]()
    texts = [_text(loop, "const auto y = x0;") for loop in loops]
    parts = []
    for k, (loop, text) in enumerate(zip(loops, texts, strict=True)):
        own = _parameters(text)
        names = [f"a{k}_{number}" for number in range(len(own))]
        types += [f"{each.rpartition(' ')[0]} {name}" for each, name in zip(own, names, strict=True)]
        parts += [f"__device__ void part{k}(unsigned int index, {', '.join(own)}) {{", *_statements(text)]
        lines += [f"  part{k}(index, {', '.join(names)});", f"  index -= (unsigned int){names[len(loop.operands)]};"]
        arguments += [Pointer(k), Pointer(len(loops) + k), *_arguments(loop, text.width)[2:]]
        threads += loop.count // text.width
    head = f'extern "C" __global__ void {entry}({", ".join(types)}) {{'
    source = [preamble(texts[0].dtypes), *parts, head, _INDEX, *lines, "}\n"]
    return launch("\n".join(source), entry, threads, arguments)


def _text(loop: Loop, body: str) -> _Text:
    width = pack_width(loop)
    splats = tuple(width > 1 and each.strides[-1] == 0 for each in loop.operands)
    return _Text(body, tuple(each.dtype for each in loop.operands), splats, len(loop.extents), width)


def launch(source: str, entry: str, threads: int, arguments: Sequence[Argument]) -> CudaCall:
    """One thread for each piece of work; small launches use small blocks to reach more processors."""
    block = _LARGE_BLOCK if threads >= _MANY_THREADS else _SMALL_BLOCK
    return CudaCall(source, entry, (-(-threads // block), 1, 1), (block, 1, 1), tuple(arguments))


def _arguments(loop: Loop, width: int) -> list[Argument]:
    found: list[Argument] = [Pointer(index) for index in range(len(loop.operands))]
    extents = [*loop.extents[:-1], loop.extents[-1] // width]
    found.append(np.int32(loop.count // width))
    found.extend(np.int32(extent) for extent in extents[1:])
    for each in loop.operands:
        found.append(np.int64(each.start))
        found.extend(np.int64(stride) for stride in each.strides[:-1])
        found.append(np.int64(each.strides[-1] * width))
    return found


def _source(text: _Text, entry: str) -> str:
    head = f'extern "C" __global__ void {entry}({", ".join(_parameters(text))}) {{'
    return "\n".join([preamble(text.dtypes), head, _INDEX, *_statements(text)])


def _parameters(text: _Text) -> list[str]:
    last = len(text.dtypes) - 1
    pointers = [f"const {C_TYPES[dtype]}* __restrict__ p{k}" for k, dtype in enumerate(text.dtypes[:-1])]
    pointers.append(f"{C_TYPES[text.dtypes[-1]]}* __restrict__ p{last}")
    sizes = ["int count", *(f"int e{axis}" for axis in range(1, text.rank))]
    steps = [
        f"long long {name}"
        for k in range(last + 1)
        for name in (f"o{k}", *(f"s{k}_{axis}" for axis in range(text.rank)))
    ]
    return [*pointers, *sizes, *steps]


def _statements(text: _Text) -> list[str]:
    last = len(text.dtypes) - 1
    return [
        "  if (index >= (unsigned int)count) return;",
        *_walk(text),
        *(_load(text, k) for k in range(last)),
        f"  Pack<{C_TYPES[text.dtypes[-1]]}, {text.width}> result;",
        "#pragma unroll",
        f"  for (int lane = 0; lane < {text.width}; ++lane) {{",
        *(f"    const auto x{k} = {_element(text, k)};" for k in range(last)),
        f"    {text.body}",
        f"    result.at[lane] = {stored(text.dtypes[-1], 'y')};",
        "  }",
        f"  *reinterpret_cast<Pack<{C_TYPES[text.dtypes[-1]]}, {text.width}>*>(p{last} + o{last}) = result;",
        "}\n",
    ]


def _walk(text: _Text) -> list[str]:
    lines = ["  unsigned int rest = index;"] if text.rank > 1 else []
    for axis in reversed(range(text.rank)):
        at = f"i{axis}"
        if axis == 0:
            lines.append(f"  const long long {at} = {'rest' if text.rank > 1 else 'index'};")
        else:
            lines.append(f"  const long long {at} = rest % (unsigned int)e{axis}; rest /= (unsigned int)e{axis};")
        lines.append("  " + " ".join(f"o{k} += {at} * s{k}_{axis};" for k in range(len(text.dtypes))))
    return lines


def _load(text: _Text, k: int) -> str:
    width = 1 if text.splats[k] else text.width
    pack = f"Pack<{C_TYPES[text.dtypes[k]]}, {width}>"
    return f"  const {pack} a{k} = *reinterpret_cast<const {pack}*>(p{k} + o{k});"


def _element(text: _Text, k: int) -> str:
    return loaded(text.dtypes[k], f"a{k}.at[{'0' if text.splats[k] else 'lane'}]")
