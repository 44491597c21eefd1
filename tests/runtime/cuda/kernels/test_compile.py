"""Every kernel's source compiles for every GPU that the runtime can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from host_cuda import blank

from iosched.runtime.cuda.kernel import CudaCall, Gpu, Precision, SourceKernel
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.batch_norm import ScaleShift
from iosched.runtime.cuda.kernels.batched_matmul import BatchedMatMul
from iosched.runtime.cuda.kernels.binary import Binary, Where
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.kernels.dense_row import DenseRow
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.elementwise import Unary
from iosched.runtime.cuda.kernels.lrn import Lrn
from iosched.runtime.cuda.kernels.normalize import Normalize
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.resize import Resize
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.kernels.slicing import Pad, Slice
from iosched.runtime.cuda.kernels.softmax import Softmax
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import ACTIVATIONS, RELU, Activation
from iosched.runtime.cuda.source.windows import Window

# The oldest, the newest, and all that sources distinguish.
ARCHITECTURES = (70, 75, 90, 120)
IMAGES = (2, 16, 32, 33)
OF_IMAGES = (Depthwise, Lrn, Pool, Separable)
"""Kernels with another form where images are planar."""
Shapes = tuple[tuple[int, ...], ...]


def depthwise(size: int, stride: int) -> tuple[SourceKernel, Shapes, Shapes]:
    kernel = Depthwise(Window((size, size), (stride, stride), (size // 2,) * 4, (1, 1)), True, RELU)
    extents = tuple(-(-extent // stride) for extent in (64, 64))
    return kernel, ((2, 64, 64, 64), (size, size, 64)), ((2, 64, *extents),)


def separable(size: int, stride: int, precision: str, gpu: Gpu) -> tuple[SourceKernel, Shapes, Shapes]:
    window = Window((size, size), (stride, stride), (size // 2,) * 4, (1, 1))
    extent = -(-21 // stride)
    shapes = ((1, 84, 21, 21), (size, size, 84), (128, 128), (84,))
    return Separable(window, True, RELU, Precision(precision), gpu=gpu), shapes, ((1, 84, extent, extent),)


def summing(kernel: SourceKernel, reads: Shapes, writes: Shapes) -> tuple[SourceKernel, Shapes, Shapes]:
    """The separable convolution of a sum, with two tensors added."""
    assert isinstance(kernel, Separable)
    return replace(kernel, terms=4), (*reads[:1] * 4, *reads[1:], *writes * 2), writes


def samples(functions: Sequence[str]) -> Iterator[tuple[SourceKernel, Shapes, Shapes]]:
    for size in (3, 5, 7, 11):
        for stride in (1, 2):
            yield depthwise(size, stride)
    window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
    yield from ((Pool(window, average, average), (IMAGES,), (IMAGES,)) for average in (True, False))
    yield Pool(window, True, True, 2, RELU), (IMAGES,) * 3, (IMAGES,)
    yield Depthwise(window, True, RELU, 3), (*(IMAGES,) * 3, (3, 3, 16), (16,)), (IMAGES,)
    yield from ((Unary(Activation(kind, 0.5, 1.5)), (IMAGES,), (IMAGES,)) for kind in functions)
    yield AddN(RELU), (IMAGES,) * 5, (IMAGES,)
    for batches, m, n, k in ((3, 40, 33, 35), (12, 197, 256, 64), (64, 1024, 64, 1024), (64, 1024, 1024, 64)):
        yield BatchedMatMul(RELU), ((batches, m, k), (batches, k, n)), ((batches, m, n),)
    for k in (7, 64, 25088):
        yield DenseRow(activation=RELU), ((1, k), (40, k), (40,)), ((1, 40),)
    yield from ((Binary(kind), (IMAGES, (16, 1, 1)), (IMAGES,)) for kind in ("Add", "Pow", "Max", "PRelu"))
    yield ScaleShift(RELU), (IMAGES, (16,), (16,)), (IMAGES,)
    yield Reduce("Mean", (2, 3)), (IMAGES,), ((2, 16),)
    yield Reduce("L2", (1,)), (IMAGES,), ((2, 1, 32, 33),)
    yield Softmax((1,)), ((3, 1000),), ((3, 1000),)
    yield Softmax((1,), logarithm=True), (IMAGES,), (IMAGES,)
    yield Normalize((1,), 1e-5), (IMAGES, (33,), (33,)), (IMAGES,)
    yield Lrn(5, 1e-4, 0.75, 1.0), (IMAGES,), (IMAGES,)
    yield Slice((0, 0, 3, 31), (1, 1, 2, -1)), (IMAGES,), ((2, 16, 14, 20),)
    yield from ((Pad((0, 1, 2, 2), mode), (IMAGES,), ((2, 18, 36, 37),)) for mode in ("constant", "edge", "reflect"))
    yield Copy((0, 1, 3, 2)), ((2, 16, 33, 32),), (IMAGES,)
    yield Copy(), (IMAGES, (2, 20, 32, 33)), (IMAGES, (2, 20, 32, 33))
    yield Copy((0, 2, 1)), ((2, 64, 48),), ((2, 48, 64),)
    yield Copy(reshapes=True), ((2, 6, 4, 5),), ((5, 4, 3, 4),)


def separables(dtype: str, gpu: Gpu) -> Iterator[tuple[SourceKernel, Shapes, Shapes]]:
    of_floats = ("fp32", "tf32") if gpu.has_tf32 else ("fp32",)
    for precision in of_floats if dtype == "float32" else ("fp16",):
        yield from (separable(size, stride, precision, gpu) for size in (3, 5, 7) for stride in (1, 2))
        yield summing(*separable(3, 1, precision, gpu))


def calls(dtype: str, gpu: Gpu) -> Iterator[CudaCall]:
    functions = ACTIVATIONS if dtype == "float32" else ("HardSwish", "Gelu", "Round")
    for kernel, reads, writes in (*samples(functions), *separables(dtype, gpu)):
        for layout in Layout if isinstance(kernel, OF_IMAGES) else (Layout.NHWC,):
            views = [blank(shape, "float32" if len(shape) == 1 else dtype, layout=layout).view for shape in reads]
            yield kernel.call(views, [blank(shape, dtype, layout=layout).view for shape in writes])
    both = [blank(IMAGES).view, blank(IMAGES, "float16").view]
    yield Copy().call(both[:1], both[1:])
    chosen = [blank(IMAGES, "bool").view, blank(IMAGES, dtype).view, blank(IMAGES, dtype).view]
    yield Where().call(chosen, chosen[1:2])
    yield Binary("Less").call(chosen[1:], chosen[:1])
    taps = [blank((64, 2), kind).view for kind in ("int32", "float32")] * 2
    for layout in Layout:
        x, y = (blank(shape, dtype, layout=layout).view for shape in (IMAGES, (2, 16, 64, 64)))
        yield Resize(2).call([x, *taps], [y])


def one_unit(dtype: str, gpu: Gpu) -> str:
    """All sources as one translation unit: compilers take most of their time to begin."""
    parts = []
    for number, call in enumerate(calls(dtype, gpu)):
        body = call.source.replace("#include <cuda_fp16.h>", "")
        renamed, count = re.subn(rf"void {call.entry}\(", f"void {call.entry}_{number}(", body)
        assert count == 1
        parts.append(f"namespace n{number} {{\n{renamed}}}\n")
    return "#include <cuda_fp16.h>\n" + "".join(parts)


def by_nvrtc(source: str, architecture: int, folder: Path) -> None:
    from cupy.cuda import nvrtc

    if architecture < 75 and nvrtc.getVersion() >= (13, 0):
        pytest.skip("CUDA 13 compiles for nothing older than 7.5: this needs NVRTC of CUDA 12")
    program = nvrtc.createProgram(source, "kernels.cu", [], [])
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17", *(f"-I{each}" for each in include_folders())]
    try:
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    (folder / "kernels.cubin").write_bytes(nvrtc.getCUBIN(program))


def include_folders() -> list[Path]:
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    return [header.parent for root in roots for header in root.glob("*/include/cuda_fp16.h")]


def by_nvcc(source: str, architecture: int, folder: Path) -> None:
    path = folder / "kernels.cu"
    path.write_text(source)
    options = ["-cubin", f"-arch=sm_{architecture}", "-std=c++17", "-o", str(folder / "kernels.cubin")]
    if f"sm_{architecture}" not in subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True).stdout:
        pytest.skip(f"this nvcc does not compile for sm_{architecture}")
    done = subprocess.run(["nvcc", *options, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compiler() -> Callable[[str, int, Path], None]:
    if find_spec("cupy") is not None and include_folders():
        return by_nvrtc
    if shutil.which("nvcc") is not None:
        return by_nvcc
    pytest.skip("neither CuPy with NVRTC nor nvcc is here")


def wanted() -> list[tuple[int, str]]:
    """Architectures and types; all that `IOSCHED_ARCHITECTURES` names, where it is set, as in "70,86"."""
    named = os.environ.get("IOSCHED_ARCHITECTURES")
    if named:
        return [(int(each), dtype) for each in named.split(",") for dtype in ("float16", "float32")]
    return [*((each, "float16") for each in ARCHITECTURES), *((each, "float32") for each in (70, 75, 90))]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), wanted())
def test_sources_compile(architecture: int, dtype: str, tmp_path: Path) -> None:
    compiler()(one_unit(dtype, Gpu(architecture, 80)), architecture, tmp_path)
    assert (tmp_path / "kernels.cubin").stat().st_size > 0
